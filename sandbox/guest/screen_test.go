//go:build linux

package guest

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"
)

func newTestScreen(t testing.TB, columns, rows uint32) *screen {
	s := newScreen(Size{Columns: columns, Rows: rows}, make(chan []byte, 1))
	t.Cleanup(func() { s.close() })
	return s
}

// print is what the job prints.
func (s *screen) print(p string) {
	s.write([]byte(p))
	s.flush()
}

// same says how two screens differ; "" if they show and do the same.
func same(a, b *screen) string {
	switch {
	case a.term.String() != b.term.String():
		return "text:\n" + a.term.String() + "\nand\n" + b.term.String()
	case a.term.CursorPosition() != b.term.CursorPosition():
		return "cursor"
	case a.term.CursorHidden() != b.term.CursorHidden():
		return "visibility of the cursor"
	case a.term.IsAltScreen() != b.term.IsAltScreen():
		return "which screen is shown"
	case a.term.Render() != b.term.Render():
		return "colours:\n" + a.term.Render() + "\nand\n" + b.term.Render()
	}
	for _, m := range restored {
		if a.modes[m] != b.modes[m] {
			return "a mode"
		}
	}
	return ""
}

// What a screen is repainted with makes any other show the same, and go on the same.
func TestRepaint(t *testing.T) {
	for name, printed := range map[string]string{
		"a shell":          "$ ls\r\nfile\r\n$ ",
		"long output":      strings.Repeat("line\r\n", 100) + "end",
		"colours":          "\x1b[1;31mred\x1b[0m \x1b[38;5;200mpink\x1b[48;2;1;2;3m on dark",
		"wide letters":     "日本語 ä é 🎉 x",
		"an editor":        "$ vim\r\n\x1b[?1049h\x1b[?1h\x1b=\x1b[H\x1b[2J~\r\n~\r\n\x1b[7mstatus\x1b[m\x1b[3;4H\x1b[?25l",
		"left an editor":   "$ vim\r\n\x1b[?1049h\x1b[2Jtext\x1b[?1049l$ ",
		"paste and mouse":  "\x1b[?2004h\x1b[?1000h\x1b[?1006hmore",
		"margins":          "a\r\nb\r\nc\x1b[2;3r\x1b[3;1Hd",
		"full last column": strings.Repeat("x", 40) + "y",
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newTestScreen(t, 40, 10), newTestScreen(t, 40, 10)
			a.print(printed)
			b.print("something else\r\n\x1b[?1049h\x1b[31m\x1b[5;5Hhere\x1b[?25l\x1b[?1002h")
			b.print(string(a.repaint()))
			if diff := same(a, b); diff != "" {
				t.Fatalf("differs after repainting: %s", diff)
			}
			const more = "more\r\n\x1b[?1049l$ back\n\n\n\n\n\n\n\n\n\n\nthere"
			a.print(more)
			b.print(more)
			if diff := same(a, b); diff != "" {
				t.Errorf("differs when it goes on: %s", diff)
			}
		})
	}
}

// Whatever a program prints, its screen survives it, and can be repainted.
func FuzzScreen(f *testing.F) {
	f.Add([]byte("\x1b[?1049h\x1b[2J\x1b[10;10Hx\x1b[999999999b"), uint8(80), uint8(24))
	f.Add([]byte("\x1b[5;2r\x1b[999999999S\x1b[999999999L\x1b[999999999@\x1b[999999999P"), uint8(1), uint8(1))
	f.Add([]byte("\x1b]0;title\x1b[31m\x07\x1b]8;;http://x\x07link\x1bP+q\x1b\\"), uint8(5), uint8(200))
	f.Add([]byte("e\u0301\u0301\u0301🏳️‍🌈\xff\xc3"), uint8(2), uint8(2))
	f.Fuzz(func(t *testing.T, printed []byte, columns, rows uint8) {
		s := newScreen(Size{Columns: uint32(columns), Rows: uint32(rows)}, make(chan []byte, 1))
		defer func() { s.close() }()
		began := time.Now()
		s.print(string(printed))
		s.resize(Size{Columns: uint32(rows), Rows: uint32(columns)})
		s.print(string(printed))
		out := s.repaint()
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("%d bytes took %v", len(printed), d)
		}
		again := newScreen(Size{Columns: uint32(rows), Rows: uint32(columns)}, make(chan []byte, 1))
		defer func() { again.close() }()
		again.print(string(out))
	})
}

// A recorder is what a client's terminal is sent.
type recorder struct {
	mu sync.Mutex
	b  strings.Builder
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.b.Write(p)
}

func (r *recorder) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.b.String()
}

// attached is a client at a named session or a job with a terminal.
func attached(t testing.TB, p *Process, err error) *recorder {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	r := new(recorder)
	go p.Wait(context.Background(), r, io.Discard)
	t.Cleanup(p.Hangup)
	return r
}

func said(t testing.TB, r *recorder, what string) {
	t.Helper()
	waitFor(t, what, func() bool { return strings.Contains(r.String(), what) })
}

// Several clients see one session; who typed last has their size, and who only
// watches changes nothing.
func TestViewers(t *testing.T) {
	c := newWorld(t).connect()
	cmd := Command{Name: "build", Terminal: &Terminal{Term: "xterm", Size: Size{Columns: 100, Rows: 30}}, Env: plainShell(t)}
	first, err := c.Start(cmd, true)
	one := attached(t, first, err)
	io.WriteString(first, "echo marker-$((40+2)); stty size\n")
	said(t, one, "marker-42")
	said(t, one, "30 100")
	cmd.Terminal.Size = Size{Columns: 60, Rows: 20}
	second, err := c.Start(cmd, true)
	two := attached(t, second, err)
	said(t, two, "marker-42") // repainted
	job := ""
	waitFor(t, "both", func() bool {
		jobs, err := c.Jobs(t.Context())
		if err != nil || len(jobs) != 1 {
			return false
		}
		job = jobs[0].ID
		return jobs[0].Attached == 2 && jobs[0].Kind == KindSession && jobs[0].Name == "build"
	})
	third, err := c.Attach(job, Viewing{Size: Size{Columns: 10, Rows: 5}, Watch: true})
	three := attached(t, third, err)
	said(t, three, "marker-42")
	io.WriteString(third, "exit 3\n")
	third.Resize(Size{Columns: 11, Rows: 6})
	io.WriteString(second, "echo now; stty size\n")
	for _, r := range []*recorder{one, two, three} {
		said(t, r, "20 60")
	}
	io.WriteString(first, "echo then; stty size; printf '\\033[?1049h\\033[2Jalt-%s' screen; read x\n")
	waitFor(t, "the first one's size again", func() bool { return strings.Count(two.String(), "30 100") >= 2 })
	said(t, two, "alt-screen")
	first.Hangup()
	second.Hangup()
	fourth, err := c.Attach(job, Viewing{Size: Size{Columns: 80, Rows: 24}})
	four := attached(t, fourth, err)
	said(t, four, "alt-screen")
	if s := four.String(); !strings.Contains(s, "\x1b[?1049h") || !strings.Contains(s, "marker-42") {
		t.Errorf("repainted with %q", s)
	}
	if err := c.End(t.Context(), job, ""); err != nil {
		t.Fatal(err)
	}
	wait(t, c, job)
}

// A client that stops reading, as a closed laptop does, does not stop a session, and
// sees how it stands when it reads again.
func TestStalledViewer(t *testing.T) {
	c := newWorld(t).connect()
	run := Run{ID: NewJobID(), Command: Command{
		Text:     []byte("read x; yes | head -c 4000000; echo; echo finished-$((40+2)); read y"),
		Terminal: &Terminal{Term: "xterm", Size: Size{Columns: 80, Rows: 24}},
	}}
	p, err := c.RunAttached(run)
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(p, "go\n") // and reads nothing
	waitFor(t, "the job", func() bool { _, err := c.Job(t.Context(), run.ID); return err == nil })
	waitFor(t, "the job's progress", func() bool {
		out, _, _ := printed(t, c, run.ID, Span{Tail: 2})
		return strings.Contains(out, "finished-42")
	})
	r := attached(t, p, nil)
	said(t, r, "finished-42")
	if n := len(r.String()); n > 3_500_000 {
		t.Errorf("all %d bytes came", n)
	}
	io.WriteString(p, "end\n")
	if i := wait(t, c, run.ID); i.Exit == nil || i.Exit.Code != 0 {
		t.Errorf("ended %+v", i)
	}
}

func BenchmarkScreen(b *testing.B) {
	s := newTestScreen(b, 80, 24)
	p := []byte(strings.Repeat("\x1b[32mgreen\x1b[m and some plain text of a line\r\n", 1000))
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		s.write(p)
	}
}

// What passes by too quickly to be seen is left out, and nobody can tell.
func TestFloodOfLines(t *testing.T) {
	var flood strings.Builder
	flood.WriteString("\x1b[?2004hbegun\r\n")
	for n := range 20_000 {
		fmt.Fprintf(&flood, "\x1b[%dmline %d\x1b[1m\r\n", 30+n%8, n)
	}
	flood.WriteString("\x1b[0;4mend")
	a, b := newTestScreen(t, 40, 10), newTestScreen(t, 40, 10)
	if begin, end := passing([]byte(flood.String()), 210); end-begin < flood.Len()/2 {
		t.Errorf("of %d bytes only %d to %d are left out", flood.Len(), begin, end)
	}
	a.print(flood.String())
	for line := range strings.Lines(flood.String()) {
		b.print(line)
	}
	if diff := same(a, b); diff != "" {
		t.Errorf("differs: %s", diff)
	}
	if a, b := string(a.repaint()), string(b.repaint()); a != b {
		t.Errorf("repainted with %q and %q", a, b)
	}
}
