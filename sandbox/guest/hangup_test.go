//go:build linux

package guest

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

// A client that goes for good closes the pipes of a plain command at once, and
// hangs up what that does not end; what has left the group stays.
func TestHangup(t *testing.T) {
	c := newWorld(t).connect()
	dir := t.TempDir()
	p, err := c.Start(command("cd "+dir+"; exec 2>/dev/null; trap 'touch hup; exit' HUP; (cat; touch eof) & setsid sh -c 'sleep 30; :' <&- >&- 2>&- & echo $! >stays; touch ready; while :; do sleep 0.1; done"), false)
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "start", func() bool { return exists(dir + "/ready") })
	p.Hangup()
	waitFor(t, "end of file", func() bool { return exists(dir + "/eof") })
	waitFor(t, "HUP", func() bool { return exists(dir + "/hup") })
	pid, _ := os.ReadFile(dir + "/stays")
	if !exists("/proc/" + strings.TrimSpace(string(pid))) {
		t.Error("what had left the group was ended too")
	}
}

// It is the same when the client's going is what ended the wait for the command.
func TestHangupAfterWait(t *testing.T) {
	c := newWorld(t).connect()
	for name, wait := range map[string]func(*Process) error{
		"context": func(p *Process) error {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			_, err := p.Wait(ctx, io.Discard, io.Discard)
			return err
		},
		"output": func(p *Process) error {
			_, err := p.Wait(t.Context(), brokenWriter{}, io.Discard)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			p, err := c.Start(Command{
				Text:     []byte("cd " + dir + "; trap 'touch hup; exit' HUP; touch ready; echo ready; while :; do sleep 0.1; done"),
				Terminal: &Terminal{},
			}, false)
			if err != nil {
				t.Fatal(err)
			}
			waitFor(t, "start", func() bool { return exists(dir + "/ready") })
			if err := wait(p); err == nil {
				t.Fatal("the wait ended without an error")
			}
			p.Hangup()
			waitFor(t, "HUP", func() bool { return exists(dir + "/hup") })
		})
	}
}

// A command that is kept runs on without its client: its input ends, what it
// prints goes nowhere, and it is not hung up.
func TestKeptCommand(t *testing.T) {
	c := newWorld(t).connect()
	dir := t.TempDir()
	p, err := c.Start(Command{
		Text: []byte("cd " + dir + "; touch ready; cat; for i in $(seq 100); do echo working; sleep 0.1; done; touch done"),
		Keep: true,
	}, false)
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "start", func() bool { return exists(dir + "/ready") })
	p.Hangup()
	waitFor(t, "its own end", func() bool { return exists(dir + "/done") })
}

// A gateway that goes away leaves jobs running; the next one finds them.
func TestGatewayRestart(t *testing.T) {
	w := newWorld(t)
	c := w.connect()
	dir := t.TempDir()
	p, err := c.Start(command("touch "+dir+"/ready; while ! test -e "+dir+"/go; do echo working; sleep 0.05; done; echo done; exit 5"), false)
	if err != nil {
		t.Fatal(err)
	}
	go p.Wait(t.Context(), io.Discard, io.Discard)
	waitFor(t, "start", func() bool { return exists(dir + "/ready") })
	c.Close()
	began := time.Now()
	c = w.connect()
	if d := time.Since(began); d > 30*time.Second {
		t.Errorf("the guest came back after %v", d)
	}
	jobs, err := c.Jobs(t.Context())
	if err != nil || len(jobs) != 1 || jobs[0].Attached != 0 {
		t.Fatalf("jobs %+v, %v", jobs, err)
	}
	p, err = c.Attach(jobs[0].ID, Viewing{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var out bytes.Buffer
	seen := onWrite(func() { os.WriteFile(dir+"/go", nil, 0o600) })
	exit, err := p.Wait(t.Context(), io.MultiWriter(&out, seen), io.Discard)
	if err != nil || exit.Code != 5 || !strings.HasSuffix(out.String(), "working\ndone\n") {
		t.Errorf("exit %+v, %v, output %q", exit, err, out.String())
	}
	p, err = c.Attach("nosuch", Viewing{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var stderr bytes.Buffer
	if exit, err := p.Wait(t.Context(), io.Discard, &stderr); err != nil || exit.Code != 255 || stderr.String() != "sandgate: no such job\n" {
		t.Errorf("exit %+v, %v, stderr %q", exit, err, stderr.String())
	}
}

// onWrite does something whenever something is written to it.
type onWrite func()

func (f onWrite) Write(p []byte) (int, error) {
	f()
	return len(p), nil
}
