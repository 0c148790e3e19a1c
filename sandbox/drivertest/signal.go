package drivertest

import (
	"strings"

	"sandgate/sandbox/guest"
)

// Signals to a command.
var signalCases = cases{
	"HUP": caught("HUP"), "INT": caught("INT"), "QUIT": caught("QUIT"), "TERM": caught("TERM"),
	"USR1": caught("USR1"), "USR2": caught("USR2"), "ALRM": caught("ALRM"), "ABRT": caught("ABRT"),
	"FPE": caught("FPE"), "ILL": caught("ILL"), "SEGV": caught("SEGV"), "PIPE": caught("PIPE"),
	"Deadly":  check(signalDeadly),
	"KILL":    check(signalKill),
	"Group":   check(signalGroup),
	"Unknown": check(signalUnknown),
	"Flood":   check(signalFlood),
}

// caught sends a signal to a command that waits for it.
type caught string

func (sig caught) run(s *seat) {
	r := s.begin(guest.Command{Text: []byte(`trap 'echo got; exit 3' ` + string(sig) + `; echo ready; while :; do sleep 0.05; done`)})
	r.says("ready")
	r.Signal(string(sig))
	r.ends(guest.Exit{Code: 3})
	if out := r.out.String(); out != "ready\ngot\n" {
		s.Errorf("wrote %q", out)
	}
}

func signalDeadly(s *seat) {
	r := s.begin(guest.Command{Text: []byte("echo ready; exec sleep 1000")})
	r.says("ready")
	r.Signal("USR1")
	r.ends(guest.Exit{Signal: "USR1"})
}

func signalKill(s *seat) {
	r := s.begin(guest.Command{Text: []byte("trap '' TERM HUP INT; echo ready; while :; do sleep 0.05; done")})
	r.says("ready")
	r.Signal("TERM")
	r.Signal("KILL")
	r.ends(guest.Exit{Signal: "KILL"})
}

// The children get it, too.
func signalGroup(s *seat) {
	r := s.begin(guest.Command{Text: []byte(`sh -c 'trap "echo child; exit 0" TERM; echo ready; while :; do sleep 0.05; done'; trap : TERM; exit 5`)})
	r.says("ready")
	r.Signal("TERM")
	r.says("child")
}

func signalUnknown(s *seat) {
	r := s.begin(guest.Command{Text: []byte("echo ready; cat")})
	r.says("ready")
	for _, name := range []string{"", "NOPE", "-9", "9", "STOP", "../x", strings.Repeat("x", 1000)} {
		r.Signal(name)
	}
	r.types("still\n")
	r.says("still")
	r.CloseWrite()
	r.ends(guest.Exit{})
}

func signalFlood(s *seat) {
	r := s.begin(guest.Command{Text: []byte("trap : USR1; echo ready; while :; do read x && exit 8; done")})
	r.says("ready")
	for range 10_000 {
		r.Signal("USR1")
	}
	r.types("x\nx\nx\n")
	r.ends(guest.Exit{Code: 8})
}
