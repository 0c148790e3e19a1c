package drivertest

import (
	"strings"

	"sandgate/sandbox/guest"
)

// Commands and shells on a terminal.
var terminalCases = cases{
	"Is":              onTerminal{text: "test -t 0 && test -t 1 && test -t 2 && tty", out: "/dev/pts/"},
	"Controlling":     onTerminal{text: "echo yes >/dev/tty", out: "yes\r\n"},
	"EXIT-02":         onTerminal{text: "exit 7", exit: guest.Exit{Code: 7}},
	"EXIT-02/127":     onTerminal{text: "no_such_cmd_xyz", out: "not found", exit: guest.Exit{Code: 127}},
	"Signal":          onTerminal{text: "kill -KILL $$", exit: guest.Exit{Signal: "KILL"}},
	"Term":            onTerminal{text: "echo $TERM", out: "xterm\r\n"},
	"Errors":          onTerminal{text: "echo e >&2", out: "e\r\n"},
	"PTY-01/Size":     onTerminal{text: "stty size", size: guest.Size{Columns: 132, Rows: 43}, out: "43 132\r\n"},
	"PTY-01/Zero":     onTerminal{text: "stty size", size: guest.Size{}, out: "24 80\r\n"},
	"PTY-01/Huge":     onTerminal{text: "stty size", size: guest.Size{Columns: 1 << 31, Rows: 1}, out: "1 65535\r\n"},
	"PTY-02/CRLF":     onTerminal{text: `printf 'a\nb\n'`, out: "a\r\nb\r\n"},
	"PTY-02/Modes":    onTerminal{text: "stty -a", modes: []byte{1, 0, 0, 0, 2, 53, 0, 0, 0, 0, 72, 0, 0, 0, 0, 0}, out: "intr = ^B"},
	"PTY-02/Echo":     onTerminal{text: "stty -a", modes: []byte{53, 0, 0, 0, 0, 0}, out: "-echo "},
	"PTY-02/Nonsense": onTerminal{text: "echo fine", modes: []byte{99, 1, 2, 3}, out: "fine"},
	"PTY-01/Resize":   check(terminalResize),
	"PTY-03":          check(terminalInterrupt),
	"PTY-03/Shell":    check(terminalShell),
	"Stop":            check(terminalStop),
	"Quit":            check(terminalQuit),
	"EndOfInput":      check(terminalEOF),
	"PTY-04":          check(terminalKeys),
	"OUT-02":          check(terminalTail),
	"DISC-01":         check(terminalHangup),
	"DISC-01/Shell":   where{walls, check(terminalShellHangup)},
	"Paste":           check(terminalPaste),
	"Background":      check(terminalBackground),
}

// onTerminal is a testCase: a command on a terminal, a part of its output, and how
// it ends.
type onTerminal struct {
	text  string
	size  guest.Size
	modes []byte
	out   string
	exit  guest.Exit
}

func (o onTerminal) run(s *seat) {
	r := s.begin(guest.Command{
		Text:     []byte(o.text),
		Terminal: &guest.Terminal{Term: "xterm", Size: o.size, Modes: o.modes},
	})
	r.ends(o.exit)
	if out := r.out.String(); !strings.Contains(out, o.out) {
		s.Errorf("wrote %q, want %q", out, o.out)
	}
	if e := r.errs.String(); e != "" {
		s.Errorf("wrote %q beside the terminal", e)
	}
}

func terminalResize(s *seat) {
	r := s.terminal(`trap 'stty size' WINCH; stty size; while :; do sleep 0.05; done`)
	r.says("24 80")
	r.Resize(guest.Size{Columns: 10, Rows: 5})
	r.says("5 10")
	// Of many at once the last counts. A shell can miss a signal that comes while it
	// does what the last one was for, so this one looks by itself.
	r = s.terminal(`while :; do stty size; sleep 0.05; done`)
	r.says("24 80")
	for i := range uint32(50) {
		r.Resize(guest.Size{Columns: 28 + i, Rows: 33})
	}
	r.says("33 77")
}

func terminalInterrupt(s *seat) {
	r := s.terminal(`trap 'echo INT; exit 33' INT; echo ready; while :; do sleep 0.05; done`)
	r.says("ready")
	r.types("\x03")
	r.ends(guest.Exit{Code: 33})
	// Not every kernel shows ^C.
	if out := r.out.String(); strings.Replace(out, "^C", "", 1) != "ready\r\nINT\r\n" {
		s.Errorf("wrote %q", out)
	}
}

// ^C ends the job in the foreground, and not the shell.
func terminalShell(s *seat) {
	r := s.terminal("PS1='prompt: ' sh -i")
	r.says("prompt: ")
	r.types("sh -c 'echo go; while :; do sleep 1; done'\n") // what says so is in the foreground
	r.says("go\r\n")
	r.types("\x03")
	r.types("echo st=$?\n")
	r.says("st=130")
	r.types("exit 0\n")
	r.ends(guest.Exit{})
}

func terminalStop(s *seat) {
	r := s.terminal("PS1='prompt: ' sh -i")
	r.says("prompt: ")
	r.types("sh -c 'echo go; while :; do sleep 1; done'\n") // what says so is in the foreground
	r.says("go\r\n")
	r.types("\x1a")
	r.types("jobs\n")
	r.says("topped")
	r.types("kill %1; exit 4\nexit 4\n")
	r.ends(guest.Exit{Code: 4})
}

func terminalQuit(s *seat) {
	r := s.terminal(`trap 'echo QUIT; exit 3' QUIT; echo ready; while :; do sleep 0.05; done`)
	r.says("ready")
	r.types("\x1c")
	r.ends(guest.Exit{Code: 3})
}

func terminalEOF(s *seat) {
	r := s.terminal("cat; echo end")
	r.types("line\n")
	r.says("line\r\nline\r\n")
	r.types("\x04")
	r.ends(guest.Exit{})
}

// No key sequence belongs to an engine.
func terminalKeys(s *seat) {
	r := s.terminal("stty raw -echo; echo R; head -c 3 | od -An -tx1")
	r.says("R")
	r.types("\x10\x11A")
	r.ends(guest.Exit{})
	if out := r.out.String(); !strings.Contains(out, "10 11 41") {
		s.Errorf("got %q", out)
	}
}

func terminalTail(s *seat) {
	for i := range 5 {
		r := s.terminal("seq 1 20000")
		r.ends(guest.Exit{})
		if n := len(r.out.String()); n != 128894 {
			s.Fatalf("run %d: %d bytes of 128894", i, n)
		}
	}
}

func terminalHangup(s *seat) {
	file := s.folder() + "/hup"
	r := s.terminal("trap 'echo hup >" + file + "; exit' HUP; echo ready; while :; do sleep 0.05; done")
	r.says("ready")
	r.Hangup()
	eventually(s, "HUP", func() bool { return s.sh("cat "+file+" 2>/dev/null || true") == "hup\n" })
}

func terminalShellHangup(s *seat) {
	file := s.folder() + "/pids"
	r := s.begin(guest.Command{Terminal: terminal80()})
	r.types("sh -c 'echo $$ $PPID >" + file + "; exec sleep 1000'\n")
	eventually(s, "the shell", func() bool { return strings.Contains(s.sh("cat "+file+" 2>/dev/null || true"), "\n") })
	r.Hangup()
	eventually(s, "the shell and what it ran to end", func() bool {
		return s.sh(`for p in $(cat `+file+`); do kill -0 $p 2>/dev/null && echo $p; done; true`) == ""
	})
}

func terminalPaste(s *seat) {
	r := s.terminal("stty raw -echo; echo R; head -c 100000 | wc -c")
	r.says("R")
	r.types(strings.Repeat("0123456789", 10_000))
	r.ends(guest.Exit{})
	if out := r.out.String(); !strings.Contains(out, "100000") {
		s.Errorf("got %q", out)
	}
}

// What still holds the terminal does not hold up the end.
func terminalBackground(s *seat) {
	r := s.terminal("sleep 1000 & echo hi; exit 6")
	r.ends(guest.Exit{Code: 6})
	if out := r.out.String(); out != "hi\r\n" {
		s.Errorf("got %q", out)
	}
}
