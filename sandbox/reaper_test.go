package sandbox_test

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"sandgate/sandbox"
	"sandgate/sandbox/guest"
	"sandgate/store"
)

// reap looks after sandboxes as it would be done at a time.
func (w *world) reap(at time.Time) {
	w.t.Helper()
	if err := w.Reap(w.t.Context(), at); err != nil {
		w.t.Error(err)
	}
}

// A sandbox whose time is over is removed, also one that is in use.
func TestExpire(t *testing.T) {
	w := newWorld(t)
	row, err := w.Create(t.Context(), w.user, "web", sandbox.Options{TTL: sandbox.Duration(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	forever := w.create("forever")
	w.mustRun(forever)
	lease, err := w.Wake(t.Context(), row)
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	now := time.Now()
	w.reap(now.Add(59 * time.Minute))
	w.wantState(row, sandbox.Running)
	if _, err := w.Set(t.Context(), row, sandbox.Change{TTL: sandbox.Duration(2 * time.Hour)}); err != nil {
		t.Fatal(err)
	}
	w.reap(now.Add(61 * time.Minute))
	w.wantState(row, sandbox.Running)
	w.reap(now.Add(121 * time.Minute))
	select {
	case <-lease.Done():
	case <-time.After(time.Minute):
		t.Fatal("the guest is still connected")
	}
	if e, ok := errors.AsType[*sandbox.ExpiredError](lease.Gone()); !ok || e.Sandbox != "web" {
		t.Errorf("users are told %v", lease.Gone())
	}
	if _, err := w.db.Sandbox(t.Context(), row.ID); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("its row: %v", err)
	}
	w.wantState(forever, sandbox.Running)
}

// idle makes a sandbox that is stopped after ten minutes without work.
func (w *world) idle() store.Sandbox {
	w.t.Helper()
	row, err := w.Create(w.t.Context(), w.user, "web", sandbox.Options{Idle: sandbox.Idle{Stop: sandbox.Duration(10 * time.Minute)}})
	if err != nil {
		w.t.Fatal(err)
	}
	w.driver.takes(0, nil)
	w.mustRun(row)
	return row
}

// A sandbox in which nothing goes on is stopped when its rule says so, and not
// before; the next use starts it again.
func TestIdle(t *testing.T) {
	w := newWorld(t)
	row, busy := w.idle(), w.create("busy")
	w.mustRun(busy)
	now := time.Now()
	w.reap(now)
	w.reap(now.Add(9 * time.Minute))
	w.wantState(row, sandbox.Running)
	w.reap(now.Add(11 * time.Minute))
	w.wantState(row, sandbox.Stopped)
	w.wantState(busy, sandbox.Running) // has no rule
	w.mustRun(row)
	w.reap(now.Add(12 * time.Minute))
	w.reap(now.Add(21 * time.Minute))
	w.wantState(row, sandbox.Running)
	w.reap(now.Add(23 * time.Minute))
	w.wantState(row, sandbox.Stopped)
}

// All that is work keeps a sandbox awake, until it ends.
func TestWork(t *testing.T) {
	for name, work := range map[string]func(*world, store.Sandbox) (end func()){
		"a session": func(w *world, row store.Sandbox) func() {
			lease, err := w.Wake(w.t.Context(), row)
			if err != nil {
				w.t.Fatal(err)
			}
			return lease.Release
		},
		"a job": func(w *world, row store.Sandbox) func() {
			lease, err := w.Wake(w.t.Context(), row)
			if err != nil {
				w.t.Fatal(err)
			}
			defer lease.Release()
			p, err := lease.Start(guest.Command{Text: []byte("echo begun; read x")}, false)
			if err != nil {
				w.t.Fatal(err)
			}
			var out bytes.Buffer
			ended := make(chan struct{})
			begun := make(chan struct{})
			go func() {
				defer close(ended)
				p.Wait(w.t.Context(), io.MultiWriter(&out, writerFunc(func() { close(begun) })), io.Discard)
			}()
			<-begun
			return func() {
				p.CloseWrite()
				<-ended
				p.Close()
			}
		},
		"processor time": func(w *world, row store.Sandbox) func() {
			w.driver.takes(time.Minute, nil)
			return func() { w.driver.takes(0, nil) }
		},
		"what cannot be measured": func(w *world, row store.Sandbox) func() {
			w.driver.takes(0, errors.New("no idea"))
			return func() { w.driver.takes(0, nil) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			row := w.idle()
			now := time.Now()
			w.reap(now)
			end := work(w, row)
			for range 5 {
				now = now.Add(9 * time.Minute)
				w.reap(now)
			}
			w.wantState(row, sandbox.Running)
			end()
			w.reap(now.Add(time.Minute))
			w.reap(now.Add(9 * time.Minute))
			w.wantState(row, sandbox.Running)
			w.reap(now.Add(12 * time.Minute))
			w.wantState(row, sandbox.Stopped)
		})
	}
}

// A job that has ended is listed for a day, and is no work.
func TestIdleAfterJob(t *testing.T) {
	w := newWorld(t)
	row := w.idle()
	lease, err := w.Wake(t.Context(), row)
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	job, err := lease.Run(t.Context(), guest.Run{ID: guest.NewJobID(), Command: guest.Command{Text: []byte("true")}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lease.WaitJob(t.Context(), job.ID); err != nil {
		t.Fatal(err)
	}
	if jobs, err := lease.Jobs(t.Context()); err != nil || len(jobs) != 1 {
		t.Fatalf("jobs %+v, %v", jobs, err)
	}
	lease.Release()
	now := time.Now()
	w.reap(now)
	w.reap(now.Add(11 * time.Minute))
	w.wantState(row, sandbox.Stopped)
}

// A detached job that is quiet for hours, as an agent is that waits, is work for as long
// as it runs, also for a gateway that was started meanwhile. When it has ended the rule
// holds.
func TestIdleQuietJob(t *testing.T) {
	w := newWorld(t)
	row := w.idle()
	lease, err := w.Wake(t.Context(), row)
	if err != nil {
		t.Fatal(err)
	}
	job, err := lease.Run(t.Context(), guest.Run{ID: guest.NewJobID(), Command: guest.Command{Text: []byte("exec sleep 3600")}})
	if err != nil {
		t.Fatal(err)
	}
	lease.Release()
	now := time.Now()
	for hour := range 8 {
		if hour == 4 {
			w.restart()
		}
		for range 12 {
			now = now.Add(5 * time.Minute)
			w.reap(now)
		}
		w.wantState(row, sandbox.Running)
	}
	if lease, err = w.Wake(t.Context(), row); err != nil {
		t.Fatal(err)
	}
	if err := lease.End(t.Context(), job.ID, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := lease.WaitJob(t.Context(), job.ID); err != nil {
		t.Fatal(err)
	}
	lease.Release()
	w.reap(now.Add(time.Minute))
	w.reap(now.Add(9 * time.Minute))
	w.wantState(row, sandbox.Running)
	w.reap(now.Add(12 * time.Minute))
	w.wantState(row, sandbox.Stopped)
}

// A new gateway does not know since when nothing went on, and does not guess.
func TestIdleAfterRestart(t *testing.T) {
	w := newWorld(t)
	row := w.idle()
	now := time.Now()
	w.reap(now)
	w.restart()
	w.reap(now.Add(11 * time.Minute))
	w.wantState(row, sandbox.Running)
	w.reap(now.Add(22 * time.Minute))
	w.wantState(row, sandbox.Stopped)
}

type writerFunc func()

func (f writerFunc) Write(p []byte) (int, error) {
	f()
	return len(p), nil
}
