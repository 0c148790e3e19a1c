package gateway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/term"

	"sandgate/sandbox/guest"
)

// A console is the lobby on a client's terminal: a prompt, or one verb.
type console struct {
	s      *session
	keys   *keyboard
	prompt *term.Terminal // nil: one verb

	mu      sync.Mutex
	size    guest.Size
	running *session // of the verb that runs; nil: none
}

// newConsole returns the console of a session with a terminal, from which alone the
// session's input is read from now on.
func newConsole(s *session, prompts bool) *console {
	c := &console{s: s, keys: newKeyboard(s.ctx, s.ch)}
	if prompts {
		c.prompt = term.NewTerminal(struct {
			io.Reader
			io.Writer
		}{c.keys, s.ch}, s.paint(bold, "gate> "))
		c.prompt.AutoCompleteCallback = c.complete
	}
	c.Resize(s.terminal.Size)
	s.setProc(c)
	return c
}

// Resize implements process.
func (c *console) Resize(size guest.Size) {
	c.mu.Lock()
	c.size = size
	running := c.running
	c.mu.Unlock()
	if c.prompt != nil && size.Columns > 0 {
		c.prompt.SetSize(int(min(size.Columns, maxColumns)), int(size.Rows))
	}
	if running != nil {
		running.resized(size)
	}
}

// Signal implements process.
func (c *console) Signal(name string) {
	c.mu.Lock()
	running := c.running
	c.mu.Unlock()
	if running != nil && !running.signalled(name) && name == "INT" {
		running.end(errInterrupted)
	}
}

// errInterrupted is why a verb ends that was interrupted at the keyboard.
var errInterrupted = errors.New("interrupted")

// exitInterrupted is the code of such a verb, as shells have it.
const exitInterrupted = 130

// A verbChannel is the session's channel as a verb sees it, which reads from the
// keyboard.
type verbChannel struct {
	ssh.Channel
	in *verbInput
}

func (c verbChannel) Read(p []byte) (int, error) { return c.in.Read(p) }

// verb carries out one verb, in a session of its own that ends with it.
func (c *console) verb(line string) int {
	ctx, cancel := context.WithCancelCause(c.s.ctx)
	defer cancel(nil)
	in := c.keys.forVerb(ctx, func() {
		io.WriteString(c.s.ch, "^C\r\n")
		cancel(errInterrupted)
	})
	defer in.end()
	c.mu.Lock()
	terminal := *c.s.terminal
	terminal.Size = c.size
	inner := &session{login: c.s.login, ch: verbChannel{c.s.ch, in}, metered: c.s.metered, ctx: ctx, end: cancel, env: c.s.env, terminal: &terminal}
	c.running = inner
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.running = nil
	}()
	// Nobody else turns LF into CRLF here.
	call := &verbCall{ctx: ctx, login: c.s.login, session: inner, stdin: in, stdout: crlfWriter{c.s.ch}, stderr: crlfWriter{c.s.ch.Stderr()}}
	if c.prompt != nil {
		call.atPrompt, call.stderr = true, call.stdout // what goes to two pipes at once has no order
	}
	return carryOut(line, call)
}

// The words that end a prompt or a script. They are no verbs, as one shot has no use
// for them.
func isExit(line string) bool { return line == "exit" || line == "quit" }

// runPrompt reads verbs from the client's terminal until it has had enough, and
// returns the code of the last one.
func (c *console) runPrompt() (int, error) {
	s := c.s
	c.prompt.History = s.login.loadHistory(s.ctx)
	if s.terminal.Term != "dumb" {
		c.prompt.SetBracketedPasteMode(true)
		defer c.prompt.SetBracketedPasteMode(false)
	}
	fmt.Fprintf(c.prompt, "sandgate %s. You are %s. help lists the verbs, TAB completes, Ctrl-D leaves.\n", s.login.gate.cfg.Version, s.login.user.Name)
	s.login.warn(s.ctx, s.login.user.ID, c.prompt)
	code := 0
	for {
		line, err := c.prompt.ReadLine()
		switch {
		case s.ctx.Err() != nil:
			io.WriteString(s.ch, "\r\n")
			return code, context.Cause(s.ctx)
		case errors.Is(err, io.EOF):
			io.WriteString(s.ch, "\r\n")
			return code, nil
		case err != nil && err != term.ErrPasteIndicator:
			return code, errClientGone
		}
		line = printable(line)
		words := strings.TrimSpace(line)
		if words == "" {
			continue
		}
		if isExit(words) {
			return code, nil
		}
		code = c.verb(words)
		if s.ctx.Err() != nil && code != 0 { // which the verb has told
			return code, nil
		}
		if code != int(usage) {
			s.login.keepHistory(s.ctx, line)
		}
	}
}

// complete completes the word before the cursor when TAB is typed, or shows what it
// could become.
func (c *console) complete(line string, pos int, key rune) (string, int, bool) {
	if key != '\t' {
		return "", 0, false
	}
	head, tail := line[:pos], line[pos:]
	words, ok := wordsOf(head)
	if !ok {
		return line, pos, true
	}
	ctx, cancel := context.WithTimeout(c.s.ctx, completeTimeout)
	defer cancel()
	found := c.s.login.Complete(ctx, words)
	last := words[len(words)-1]
	common := commonPrefix(found)
	switch {
	case len(found) == 0:
	case len(found) == 1 && !openEnded(common):
		common += " "
		fallthrough
	case len(common) > len(last):
		head = strings.TrimSuffix(head, last) + common
	default:
		io.WriteString(c.prompt, columnsOf(found, c.width()))
	}
	return head + tail, len(head), true
}

// completeTimeout bounds the wait for names to complete.
const completeTimeout = 3 * time.Second

// width is that of the terminal, as far as it says.
func (c *console) width() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.size.Columns == 0 {
		return 80
	}
	return int(min(c.size.Columns, maxColumns))
}

// mostShown bounds the names that are shown at once.
const mostShown = 200

// columnsOf lays names out in as many columns as there is room for.
func columnsOf(names []string, width int) string {
	more := ""
	if n := len(names) - mostShown; n > 0 {
		names = names[:mostShown]
		more = fmt.Sprintf("… and %d more\n", n)
	}
	widest := 0
	for _, n := range names {
		widest = max(widest, len(n))
	}
	columns := max(1, (width+columnGap)/(widest+columnGap))
	rows := (len(names) + columns - 1) / columns
	var b strings.Builder
	for row := range rows {
		var line strings.Builder
		for i := row; i < len(names); i += rows {
			fmt.Fprintf(&line, "%-*s", widest+columnGap, names[i])
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String() + more
}

// maxScriptLine bounds a line of a script.
const maxScriptLine = 64 << 10

// script carries out what comes on the standard input of a client without a
// terminal, a verb to a line, and stops at the first that fails, with its code: the
// ones after it may build on it. Verbs of a script get no input of their own.
func (s *session) script() int {
	lines := bufio.NewScanner(s.ch)
	lines.Buffer(nil, maxScriptLine)
	nothing := true
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		if isExit(line) {
			return 0
		}
		nothing = false
		code := carryOut(line, s.verbCall(bytes.NewReader(nil)))
		if code != 0 {
			fmt.Fprintf(s.ch.Stderr(), "sandgate: stopped at line %d\n", n)
			return code
		}
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		text, p := s.login.tell(&problem{kind: usage, sentence: fmt.Sprintf("a line has more than %d KiB", maxScriptLine>>10)})
		io.WriteString(s.ch.Stderr(), text)
		return int(p.kind)
	}
	if nothing {
		return carryOut("help", s.verbCall(bytes.NewReader(nil)))
	}
	return 0
}

// verbCall is a verb as a client without a terminal has it carried out.
func (s *session) verbCall(stdin io.Reader) *verbCall {
	return &verbCall{ctx: s.ctx, login: s.login, session: s, stdin: stdin, stdout: s.ch, stderr: s.ch.Stderr()}
}

// colours says whether the client wants them: a terminal that can show them, and no
// word against it (no-color.org).
func (s *session) colours() bool {
	if s == nil || s.terminal == nil || s.terminal.Term == "" || s.terminal.Term == "dumb" {
		return false
	}
	for _, kv := range s.env {
		if value, ok := strings.CutPrefix(string(kv), "NO_COLOR="); ok && value != "" {
			return false
		}
	}
	return true
}

func (s *session) paint(colour, text string) string { return paint(s.colours(), colour, text) }
