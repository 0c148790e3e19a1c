//go:build linux

package guest

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"

	uv "github.com/charmbracelet/ultraviolet"
	"github.com/charmbracelet/x/ansi"
	"github.com/charmbracelet/x/vt"
)

// The bounds of a screen: what it remembers costs memory of the sandbox, some hundred
// bytes for each cell.
const (
	maxColumns    = 500
	maxRows       = 200
	maxScrollback = 200
	maxTitle      = 200
	maxRepeat     = 10_000 // times that one sequence may ask for something
)

// A screen is what a job's terminal shows: a terminal emulator follows all that the
// job prints, so that whoever comes later can be shown the same. It is guarded by its
// job's lock.
type screen struct {
	term    *vt.Emulator
	replies chan<- []byte

	// What the emulator does not tell by itself.
	modes       map[ansi.Mode]bool // that are not as a terminal begins
	pen         uv.Style
	top, bottom int // margins as they were set; 0: none
	title       string
	main        *picture // the main screen, while the other one is shown

	pending []byte // printed, and not followed yet
}

// maxPending is how much a screen may lag behind. The emulator is slow, and much at
// once is often a flood of lines of which only the last are ever seen.
const maxPending = 256 << 10

// A picture is what a screen shows.
type picture struct {
	lines  []string
	cursor uv.Position
}

// newScreen returns an empty screen. What the job asks its terminal is answered on
// replies, as far as there is room; the channel is never closed.
func newScreen(s Size, replies chan<- []byte) *screen {
	sc := &screen{replies: replies}
	sc.reset(dimensions(s))
	return sc
}

func dimensions(s Size) (columns, rows int) {
	s = s.orUsual()
	return int(min(s.Columns, maxColumns)), int(min(s.Rows, maxRows))
}

// reset begins with an empty screen.
func (s *screen) reset(columns, rows int) {
	term := vt.NewEmulator(columns, rows)
	term.SetScrollbackSize(maxScrollback)
	s.term, s.modes, s.pen, s.title, s.main = term, make(map[ansi.Mode]bool), uv.Style{}, "", nil
	s.top, s.bottom = 0, 0
	term.SetCallbacks(vt.Callbacks{
		EnableMode:  func(m ansi.Mode) { s.setMode(m, true) },
		DisableMode: func(m ansi.Mode) { s.setMode(m, false) },
		Title:       func(t string) { s.title = t },
		AltScreen: func(on bool) {
			s.top, s.bottom = 0, 0
			if !on {
				s.main = nil
			}
		},
	})
	// These see what the emulator is about to do, and leave it to that.
	term.RegisterCsiHandler('m', func(p ansi.Params) bool {
		uv.ReadStyle(p, &s.pen)
		return false
	})
	term.RegisterCsiHandler('r', func(p ansi.Params) bool {
		s.top, _, _ = p.Param(0, 0)
		s.bottom, _, _ = p.Param(1, 0)
		return false
	})
	term.RegisterCsiHandler(ansi.Command('?', 0, 'h'), func(p ansi.Params) bool {
		for _, n := range p {
			switch ansi.DECMode(n.Param(0)) {
			case ansi.ModeAltScreen, ansi.ModeAltScreenSaveCursor:
				if !term.IsAltScreen() {
					s.main = s.picture()
				}
			}
		}
		return false
	})
	term.RegisterEscHandler('c', func() bool {
		s.pen, s.top, s.bottom, s.main = uv.Style{}, 0, 0, nil
		return false
	})
	// What is done without bound would go on for minutes.
	for _, command := range "@bILMPSTXZ" {
		term.RegisterCsiHandler(int(command), func(p ansi.Params) bool {
			n, _, _ := p.Param(0, 1)
			return n > maxRepeat
		})
	}
	go func() {
		buf := make([]byte, 1024)
		for {
			n, err := term.Read(buf) // or the emulator would wait for ever
			if err != nil {
				return
			}
			select {
			case s.replies <- slices.Clone(buf[:n]):
			default:
			}
		}
	}()
}

func (s *screen) setMode(m ansi.Mode, on bool) {
	if on == begins[m] {
		delete(s.modes, m)
	} else if len(s.modes) < 64 {
		s.modes[m] = on
	}
}

// begins are the modes that are set in a new terminal.
var begins = map[ansi.Mode]bool{ansi.ModeAutoWrap: true, ansi.ModeTextCursorEnable: true}

// restored are the modes that a repainted terminal is put into: those that change
// what keys and the mouse send, and how it writes.
var restored = []ansi.Mode{
	ansi.ModeCursorKeys, ansi.ModeAutoWrap, ansi.ModeMouseX10, ansi.ModeMouseNormal, ansi.ModeMouseHighlight,
	ansi.ModeMouseButtonEvent, ansi.ModeMouseAnyEvent, ansi.ModeFocusEvent, ansi.ModeMouseExtSgr,
	ansi.ModeBracketedPaste, ansi.ModeNumericKeypad,
}

// close ends the emulator. Its own Close is not for use while something reads.
func (s *screen) close() {
	if pipe, ok := s.term.InputPipe().(io.Closer); ok {
		pipe.Close()
	}
}

// survive makes a fault of the emulator's an empty screen.
func (s *screen) survive(columns, rows int) {
	if recover() != nil {
		s.close()
		s.reset(columns, rows)
	}
}

// write takes what the job has printed, and reports whether it is the first that waits
// for flush.
func (s *screen) write(p []byte) (first bool) {
	first = len(s.pending) == 0
	s.pending = append(s.pending, p...)
	if len(s.pending) > maxPending {
		s.flush()
		return false
	}
	return first
}

// flush follows what was written.
func (s *screen) flush() {
	defer s.survive(s.term.Width(), s.term.Height())
	p := s.pending
	s.pending = s.pending[:0]
	if begin, end := passing(p, s.term.Height()+maxScrollback); s.top == 0 && s.bottom == 0 && begin < end {
		s.term.Write(p[:begin])
		// Of what passes by only the colours last.
		s.term.Write(colours(p[begin:end]))
		p = p[end:]
	}
	s.term.Write(p)
}

// sgrLen returns the length of the sequence that p begins with, if it is one that sets
// colours, else 0.
func sgrLen(p []byte) int {
	const most = 64
	if len(p) < 3 || p[0] != 0x1b || p[1] != '[' {
		return 0
	}
	for i, c := range p[2:min(len(p), most)] {
		switch {
		case c == 'm':
			return i + 3
		case (c < '0' || c > '9') && c != ';' && c != ':':
			return 0
		}
	}
	return 0
}

// colours returns the sequences in p that set colours, but not those from before the
// last that sets all of them back.
func colours(p []byte) []byte {
	var all []byte
	for {
		i := bytes.IndexByte(p, 0x1b)
		if i < 0 {
			return all
		}
		n := sgrLen(p[i:])
		if n == 0 {
			p = p[i+1:]
			continue
		}
		if sgr := p[i : i+n]; string(sgr) == "\x1b[m" || string(sgr) == "\x1b[0m" {
			all = append(all[:0], sgr...)
		} else {
			all = append(all, sgr...)
		}
		p = p[i+n:]
	}
}

// passing returns which part of p consists of whole lines of nothing but text and
// colours that are followed by at least n more of the same, up to p's end.
func passing(p []byte, n int) (begin, end int) {
	for i := 0; i < len(p); i++ {
		switch c := p[i]; {
		case c >= ' ' && c != 0x7f || c == '\r' || c == '\n' || c == '\t':
		case c == 0x1b:
			if n := sgrLen(p[i:]); n > 0 {
				i += n - 1
			} else {
				begin = i + 1
			}
		default:
			begin = i + 1
		}
	}
	first := bytes.IndexByte(p[begin:], '\n') // where a sequence that began before is over
	if first < 0 {
		return 0, 0
	}
	begin += first + 1
	end = len(p)
	for range n + 1 {
		if end = bytes.LastIndexByte(p[:end], '\n'); end < begin {
			return 0, 0
		}
	}
	return begin, end + 1
}

// resize follows the terminal's size.
func (s *screen) resize(size Size) {
	columns, rows := dimensions(size)
	if columns == s.term.Width() && rows == s.term.Height() {
		return
	}
	s.flush()
	defer s.survive(columns, rows)
	s.term.Resize(columns, rows)
	s.top, s.bottom = 0, 0
}

// picture returns what the screen shows.
func (s *screen) picture() *picture {
	return &picture{lines: strings.Split(s.term.Render(), "\n"), cursor: s.term.CursorPosition()}
}

// repaint returns what makes another terminal show the same, whatever it shows now,
// and behave the same. Lines that have left the screen go to where that terminal keeps
// its own.
func (s *screen) repaint() (out []byte) {
	s.flush()
	defer s.survive(s.term.Width(), s.term.Height())
	var b strings.Builder
	put := func(format string, args ...any) { fmt.Fprintf(&b, format, args...) }
	// Not RIS, which would forget what is above.
	put("\x1b[?1049l\x1b[!p\x1b[m\x1b[?7h\x1b[r\x1b[H\x1b[2J")
	for _, m := range restored {
		if !begins[m] {
			put("%s", ansi.ResetMode(m))
		}
	}
	for _, line := range s.term.Scrollback().Lines() {
		put("%s\r\n", line.Render())
	}
	if s.term.IsAltScreen() {
		if s.main != nil {
			s.main.paint(&b)
		}
		put("\x1b[?1049h\x1b[H\x1b[2J")
	}
	now := s.picture()
	now.paint(&b)
	if s.title != "" {
		put("\x1b]2;%s\x07", oneTitle(s.title))
	}
	if style, blink := s.term.CursorStyle(); style != vt.CursorBlock || !blink {
		n := 2*int(style) + 1
		if !blink {
			n++
		}
		put("\x1b[%d q", n)
	}
	if s.top != 0 || s.bottom != 0 {
		put("\x1b[%d;%dr", max(s.top, 1), max(s.bottom, 0))
		now.place(&b)
	}
	for _, m := range restored {
		if on, changed := s.modes[m]; changed && on {
			put("%s", ansi.SetMode(m))
		} else if changed {
			put("%s", ansi.ResetMode(m))
		}
	}
	if !s.pen.IsZero() {
		put("%s", s.pen.String())
	}
	if s.term.CursorHidden() {
		put("\x1b[?25l")
	} else {
		put("\x1b[?25h")
	}
	return []byte(b.String())
}

// paint writes the picture from where the cursor is, at the left of the top line or
// below what has scrolled by.
func (p *picture) paint(b *strings.Builder) {
	for i, line := range p.lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(line)
	}
	p.place(b)
}

func (p *picture) place(b *strings.Builder) {
	fmt.Fprintf(b, "\x1b[%d;%dH", p.cursor.Y+1, p.cursor.X+1)
}

// oneTitle makes a title harmless: a terminal may take it for more than a title.
func oneTitle(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return -1
		}
		return r
	}, s)
	return s[:min(len(s), maxTitle)]
}
