package drivertest

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"sandgate/sandbox/guest"
)

// A seat is the place of one case in the sandbox that many share.
type seat struct {
	*testing.T
	client  *guest.Client
	bench   *bench // the driver and the sandbox; lent, for sandboxes of one's own
	newHost func(*testing.T) Host
	dir     string // see folder
}

// folder returns a folder of the case's own in the sandbox, where anybody may
// write.
func (s *seat) folder() string {
	s.Helper()
	if s.dir == "" {
		s.dir = s.sh(`d=$(mktemp -d /tmp/case.XXXXXX) && chmod 777 "$d" && printf %s "$d"`)
		s.Cleanup(func() { s.sh("rm -rf " + s.dir) })
	}
	return s.dir
}

// sh runs a command that has to succeed, and returns what it wrote.
func (s *seat) sh(text string) string {
	s.Helper()
	return s.feed(text, nil)
}

// feed is sh for a command that reads.
func (s *seat) feed(text string, stdin []byte) string {
	s.Helper()
	got := s.do(guest.Command{Text: []byte(text)}, stdin)
	if got.exit != (guest.Exit{}) {
		s.Fatalf("%q: %+v", text, got)
	}
	return got.stdout
}

// want runs a command that has to succeed and to write that.
func (s *seat) want(want, text string) {
	s.Helper()
	if got := s.sh(text); got != want {
		s.Errorf("%q wrote %.200q, want %.200q", text, got, want)
	}
}

// An outcome is what came of a command.
type outcome struct {
	stdout, stderr string
	exit           guest.Exit
}

// do runs a command to its end, whatever that is.
func (s *seat) do(cmd guest.Command, stdin []byte) outcome {
	s.Helper()
	var stdout, stderr bytes.Buffer
	exit, err := execute(s.client, cmd, stdin, &stdout, &stderr)
	if err != nil {
		s.Fatalf("%q: %v; it wrote %.200q and %.200q", cmd.Text, err, stdout.String(), stderr.String())
	}
	return outcome{stdout.String(), stderr.String(), exit}
}

// does is a testCase: a command and what comes of it.
type does struct {
	text  string
	stdin string
	bulk  int // MiB of standard input, in the place of stdin
	env   []string
	user  string

	out    string // all of it
	err    string // a part of it; empty: none at all
	code   int
	signal string
}

func (d does) run(s *seat) {
	cmd := guest.Command{Text: []byte(d.text), User: d.user}
	for _, kv := range d.env {
		cmd.Env = append(cmd.Env, []byte(kv))
	}
	stdin := []byte(d.stdin)
	if d.bulk > 0 {
		stdin = []byte(megabytes(d.bulk))
	}
	got := s.do(cmd, stdin)
	if want := (guest.Exit{Code: d.code, Signal: d.signal}); got.exit.Code != want.Code || got.exit.Signal != want.Signal {
		s.Errorf("ended with %+v, want %+v", got.exit, want)
	}
	if got.stdout != d.out {
		s.Errorf("wrote %.300q, want %.300q", got.stdout, d.out)
	}
	if !strings.Contains(got.stderr, d.err) || d.err == "" && got.stderr != "" {
		s.Errorf("wrote %.300q to stderr, want %q", got.stderr, d.err)
	}
}

// A running is a command that a case talks to.
type running struct {
	*guest.Process
	s    *seat
	out  lockedBuffer
	errs lockedBuffer
	over chan guest.Exit // receives how it ended, unless the case hung up
}

// begin starts a command, or a login shell where it has no text.
func (s *seat) begin(cmd guest.Command) *running {
	s.Helper()
	p, err := s.client.Start(cmd, cmd.Text == nil)
	if err != nil {
		s.Fatal(err)
	}
	return s.follow(p)
}

func (s *seat) follow(p *guest.Process) *running {
	r := &running{Process: p, s: s, over: make(chan guest.Exit, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		if exit, err := p.Wait(ctx, &r.out, &r.errs); err == nil {
			r.over <- exit
		}
	}()
	s.Cleanup(func() {
		p.Hangup()
		cancel()
		<-waited
	})
	return r
}

// terminal starts a command on a terminal of 80x24.
func (s *seat) terminal(text string) *running {
	s.Helper()
	return s.begin(guest.Command{Text: []byte(text), Terminal: terminal80()})
}

func terminal80() *guest.Terminal {
	return &guest.Terminal{Term: "xterm", Size: guest.Size{Columns: 80, Rows: 24}}
}

// says waits for a part of the output.
func (r *running) says(part string) {
	r.s.Helper()
	eventually(r.s, fmt.Sprintf("%q", part), func() bool {
		return strings.Contains(r.out.String(), part) || r.s.Failed()
	})
}

// types sends input.
func (r *running) types(text string) {
	r.s.Helper()
	if _, err := r.Write([]byte(text)); err != nil {
		r.s.Fatal(err)
	}
}

// ends waits for the end.
func (r *running) ends(want guest.Exit) {
	r.s.Helper()
	select {
	case got := <-r.over:
		if got.Core = false; got != want {
			r.s.Errorf("ended with %+v, want %+v; it wrote %.300q and %.300q", got, want, r.out.String(), r.errs.String())
		}
	case <-r.s.Context().Done():
		r.s.Fatal("the test was over first")
	case <-time.After(patience):
		r.s.Fatalf("did not end; it wrote %.300q and %.300q", r.out.String(), r.errs.String())
	}
}
