package demo

import (
	"fmt"
	"os"
	"strings"
)

// A screen is what the person sees. Commands and what they wrote look as in a
// terminal; what the demo itself says looks like a shell's comment.
type screen struct {
	out    *os.File
	colour bool
}

func newScreen(out *os.File) *screen {
	info, err := out.Stat()
	return &screen{out, err == nil && info.Mode()&os.ModeCharDevice != 0}
}

const (
	bold  = "\x1b[1m"
	dim   = "\x1b[2m"
	plain = "\x1b[0m"
)

func (s *screen) heading(text string)     { s.print("\n", bold, text) }
func (s *screen) command(text string)     { s.print("", bold, "$ "+text) }
func (s *screen) note(f string, a ...any) { s.print("# ", dim, fmt.Sprintf(f, a...)) }

// print writes lines with a prefix, in a style where there is colour. Nothing can
// be done about an error: if the reader has gone, a signal ends the demo.
func (s *screen) print(prefix, style, text string) {
	for line := range strings.SplitSeq(text, "\n") {
		if s.colour {
			line = style + prefix + line + plain
		} else {
			line = prefix + line
		}
		fmt.Fprintln(s.out, line)
	}
}

// output writes what a command wrote. It may come out of a sandbox, so that it is
// not believed to be fit for a terminal.
func (s *screen) output(text string) {
	if text == "" {
		return
	}
	text = strings.TrimSuffix(strings.ReplaceAll(text, "\r\n", "\n"), "\n")
	fmt.Fprintln(s.out, strings.Map(printable, text))
}

func printable(r rune) rune {
	if r < ' ' && r != '\n' && r != '\t' || r == 0x7f || r >= 0x80 && r < 0xa0 {
		return '?'
	}
	return r
}
