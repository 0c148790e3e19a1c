//go:build linux

package guest

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Services are started in order, started again when they end, changed and ended as
// they are asked for, and end with the sandbox.
func TestServices(t *testing.T) {
	w := newWorld(t)
	c := w.connect()
	dir := t.TempDir()
	service := func(name, text string) Service { return Service{Name: name, Command: command(text)} }
	first := service("first", "echo first >>"+dir+"/order; exec sleep 7261")
	second := service("second", "echo second >>"+dir+"/order; exit 3")
	serve := func(services ...Service) {
		t.Helper()
		if err := c.Serve(t.Context(), services); err != nil {
			t.Fatal(err)
		}
	}
	order := func() string {
		b, _ := os.ReadFile(dir + "/order")
		return string(b)
	}
	serve(first, second)
	waitFor(t, "both", func() bool { return order() == "first\nsecond\n" || order() == "second\nfirst\n" })
	waitFor(t, "the second again", func() bool { return strings.Count(order(), "second") >= 2 })
	job, err := c.Job(t.Context(), "first")
	if err != nil || job.Kind != KindService || !job.Running() {
		t.Fatalf("the first is %+v, %v", job, err)
	}
	// What has not changed goes on; what is not wanted any more ends.
	serve(first)
	if again, err := c.Job(t.Context(), "first"); err != nil || again.ID != job.ID || !again.Running() {
		t.Errorf("asked for again, the first is %+v, %v", again, err)
	}
	n := strings.Count(order(), "second")
	if ended, err := c.Job(t.Context(), "second"); err != nil || ended.Running() {
		t.Errorf("the second is %+v, %v", ended, err)
	}
	// One that is killed comes again, as does one whose command is another now.
	if err := c.Kill(t.Context(), job.ID, "KILL"); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the first again", func() bool {
		again, err := c.Job(t.Context(), "first")
		return err == nil && again.Running() && again.ID != job.ID
	})
	serve(service("first", "echo changed >>"+dir+"/order; exec sleep 7262"))
	waitFor(t, "the changed one", func() bool { return strings.HasSuffix(order(), "changed\n") })
	if strings.Count(order(), "second") != n {
		t.Error("the second was started after its end")
	}
	for _, bad := range [][]Service{{first, first}, {service("A b", "true")}} {
		if err := c.Serve(t.Context(), bad); err == nil {
			t.Errorf("%+v can be served", bad)
		}
	}
	job, err = c.Job(t.Context(), "first")
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	w.restart(syscall.SIGTERM)
	c = w.connect()
	if i := wait(t, c, job.ID); i.Reason != ReasonStopped {
		t.Errorf("with the sandbox it ended as %+v", i)
	}
	if again, err := c.Job(t.Context(), "first"); err != nil || again.ID != job.ID {
		t.Errorf("nobody has asked for %+v, %v", again, err)
	}
}

// A service is well when its health command says so. Those after it wait for that; one
// that is not well any more is ended and started again.
func TestServiceHealth(t *testing.T) {
	w := newWorld(t)
	c := w.connect()
	dir := t.TempDir()
	first := Service{Name: "first", Command: command("echo run >>runs; exec sleep 7263"), Health: &Health{
		Text: []byte("setsid sleep 7264 & test -e well || { echo not yet >&2; exit 4; }"), Interval: time.Second, Timeout: 20 * time.Second, Failures: 2, Grace: time.Hour,
	}}
	first.Dir = dir
	second := Service{Name: "second", Command: command("exec sleep 7265")}
	if err := c.Serve(t.Context(), []Service{first, second}); err != nil {
		t.Fatal(err)
	}
	look := func(name string) JobInfo {
		i, _ := c.Job(t.Context(), name)
		return i
	}
	waitFor(t, "a look at the first", func() bool {
		i := look("first")
		return i.Health == HealthStarting && i.HealthSays == "exit 4: not yet"
	})
	if i := look("second"); i.ID != "" {
		t.Errorf("the second did not wait: %+v", i)
	}
	if err := os.WriteFile(dir+"/well", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the second", func() bool { i := look("second"); return i.ID != "" && i.Running() })
	job := look("first")
	if job.Health != HealthHealthy || job.HealthSays != "" {
		t.Errorf("the first is %+v", job)
	}
	os.Remove(dir + "/well")
	if i := wait(t, c, job.ID); i.Reason != ReasonUnhealthy || i.Health != HealthUnhealthy || i.HealthSays != "exit 4: not yet" {
		t.Errorf("the first ended as %+v", i)
	}
	waitFor(t, "the first again", func() bool { i := look("first"); return i.ID != job.ID && i.Running() && i.Health == HealthStarting })
	if err := c.Serve(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the end of what the command has started", func() bool { return run(t, c, command("pgrep -xf 'sleep 7264'"), nil).exit.Code == 1 })
}

// A health command that does not come to an end is ended, with what it has started.
func TestServiceHealthHangs(t *testing.T) {
	w := newWorld(t)
	c := w.connect()
	s := Service{Name: "hung", Command: command("exec sleep 7266"), Health: &Health{
		Text: []byte("sh -c 'sleep 7267; :' & sleep 7267; :"), Interval: time.Second, Timeout: time.Second, Failures: 1,
	}}
	if err := c.Serve(t.Context(), []Service{s}); err != nil {
		t.Fatal(err)
	}
	job, err := c.Job(t.Context(), "hung")
	if err != nil {
		t.Fatal(err)
	}
	if i := wait(t, c, job.ID); i.Reason != ReasonUnhealthy || i.HealthSays != "no answer within 1s" {
		t.Errorf("it ended as %+v", i)
	}
	if err := c.Serve(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the end of all", func() bool { return run(t, c, command("pgrep -xf 'sleep 7267'"), nil).exit.Code == 1 })
}

// A service that cannot be started says why, and one that somebody ends begins anew at
// once.
func TestServiceStarts(t *testing.T) {
	w := newWorld(t)
	c := w.connect()
	lost := Service{Name: "lost", Command: command("true")}
	lost.Dir = "/nosuch"
	if err := c.Serve(t.Context(), []Service{lost, {Name: "ended", Command: command("exec sleep 7268")}}); err != nil {
		t.Fatal(err)
	}
	job, err := c.Job(t.Context(), "lost")
	if err != nil || job.Running() || job.Exit == nil || job.Exit.Code != 126 {
		t.Errorf("the lost one is %+v, %v", job, err)
	}
	if _, errs, _ := printed(t, c, job.ID, Span{}); !strings.Contains(errs, "cannot start in /nosuch") {
		t.Errorf("it says %q", errs)
	}
	for range 4 { // each time later, it would be some 15 s
		before, err := c.Job(t.Context(), "ended")
		if err != nil {
			t.Fatal(err)
		}
		if err := c.End(t.Context(), before.ID, ""); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "the next run", func() bool {
			i, err := c.Job(t.Context(), "ended")
			return err == nil && i.ID != before.ID && i.Running()
		})
	}
	if err := c.Serve(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
}
