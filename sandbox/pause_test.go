package sandbox_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"sandgate/sandbox"
	"sandgate/sandbox/guest"
	"sandgate/store"
)

// A pausing driver can make its sandboxes stand still, and lose what runs in them.
type pausing struct {
	*counted
	mu     sync.Mutex
	paused map[sandbox.ID]bool
	full   error  // why none can be paused
	lost   string // why none can go on
}

func newPausing(t *testing.T) (*world, *pausing) {
	w := newWorld(t)
	p := &pausing{counted: w.driver, paused: make(map[sandbox.ID]bool)}
	w.use(p)
	return w, p
}

func (p *pausing) Pause(_ context.Context, id sandbox.ID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.full == nil {
		p.paused[id] = true
	}
	return p.full
}

func (p *pausing) Start(ctx context.Context, id sandbox.ID) error {
	p.mu.Lock()
	was, lost := p.paused[id], p.lost
	delete(p.paused, id)
	p.mu.Unlock()
	if was && lost != "" {
		return errors.Join(p.Local.Stop(ctx, id), &sandbox.LostError{Reason: lost})
	}
	return p.counted.Start(ctx, id)
}

func (p *pausing) Stop(ctx context.Context, id sandbox.ID) error {
	p.mu.Lock()
	delete(p.paused, id)
	p.mu.Unlock()
	return p.counted.Stop(ctx, id)
}

func (p *pausing) List(ctx context.Context) ([]sandbox.Status, error) {
	all, err := p.counted.List(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range all {
		if p.paused[all[i].ID] {
			all[i].State = sandbox.Paused
		}
	}
	return all, err
}

func (w *world) pause(row store.Sandbox) {
	w.t.Helper()
	if err := w.Pause(w.t.Context(), row); err != nil {
		w.t.Fatal(err)
	}
	w.wantState(row, sandbox.Paused)
}

// Who uses a sandbox that is paused is told so, and the next use makes it go on.
func TestPause(t *testing.T) {
	w, p := newPausing(t)
	row := w.create("web")
	if err := w.Pause(t.Context(), row); !errors.Is(err, sandbox.ErrNotRunning) {
		t.Errorf("a stopped one: %v", err)
	}
	lease, err := w.Wake(t.Context(), row)
	if err != nil {
		t.Fatal(err)
	}
	job := guest.Run{ID: guest.NewJobID(), Command: guest.Command{Text: []byte("exec sleep 1000")}}
	if _, err := lease.Run(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	w.pause(row)
	w.pause(row)
	<-lease.Done()
	if e, ok := errors.AsType[*sandbox.PausedError](lease.Gone()); !ok || *e != (sandbox.PausedError{Sandbox: "web", Owner: "alice", Deed: "paused"}) {
		t.Errorf("its users are told %v", lease.Gone())
	}
	lease.Release()
	w.restart()
	w.wantState(row, sandbox.Paused)
	for range 2 {
		lease, err := w.Wake(t.Context(), row)
		if err != nil {
			t.Fatal(err)
		}
		if i, err := lease.Job(t.Context(), job.ID); err != nil || !i.Running() {
			t.Errorf("its job is %+v, %v", i, err)
		}
		lease.Release()
	}
	w.wantState(row, sandbox.Running)

	// It runs on if it cannot be paused.
	p.mu.Lock()
	p.full = errors.New("the disk is full")
	p.mu.Unlock()
	if lease, err = w.Wake(t.Context(), row); err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	if err := w.Pause(t.Context(), row); !errors.Is(err, p.full) {
		t.Errorf("with a full disk: %v", err)
	}
	if i, err := lease.Job(t.Context(), job.ID); err != nil || !i.Running() {
		t.Errorf("its job is %+v, %v", i, err)
	}
}

// What cannot go on is started anew, and who waits for it is told why.
func TestPauseLost(t *testing.T) {
	w, p := newPausing(t)
	row := w.create("web")
	w.mustRun(row)
	w.pause(row)
	p.lost = "it is of another version"
	var told []string
	lease, err := w.WakeShowing(t.Context(), row, sandbox.Show{Tell: func(s string) { told = append(told, s) }})
	if err != nil {
		t.Fatal(err)
	}
	lease.Release()
	if len(told) != 1 || told[0] != "what ran in the sandbox when it was paused could not be brought back: it is of another version; it was started anew, and its disk is as it was" {
		t.Errorf("told is %q", told)
	}
	if n := p.count(); n != 2 {
		t.Errorf("it was started %d times", n)
	}
}

// A paused sandbox is not charged and takes no place, and there has to be one for it
// to go on.
func TestPauseCharged(t *testing.T) {
	w, _ := newPausing(t)
	w.quota(sandbox.QuotaRunning, 1)
	row, other := w.create("web"), w.create("other")
	w.mustRun(row)
	w.pause(row)
	charged := func() time.Duration {
		rows, err := w.db.UsageBy(t.Context(), w.user.ID, time.Now(), store.BySandbox)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			if r.Sandbox == "web" {
				return r.Running
			}
		}
		return 0
	}
	before := charged()
	w.mustRun(other)
	if _, err := w.Wake(t.Context(), row); !isQuota(err, sandbox.QuotaRunning) {
		t.Errorf("beyond the quota: %v", err)
	}
	w.wantState(row, sandbox.Paused)
	time.Sleep(20 * time.Millisecond)
	w.restart() // which charges what runs
	if after := charged(); after != before {
		t.Errorf("charged was %v, and %v while it was paused", before, after)
	}
	w.pause(other)
	w.mustRun(row)
	time.Sleep(2 * time.Millisecond)
	w.pause(row)
	if after := charged(); after <= before {
		t.Errorf("charged is %v, and was %v before it went on", after, before)
	}
}

func isQuota(err error, m sandbox.Measure) bool {
	q, ok := errors.AsType[*sandbox.QuotaError](err)
	return ok && q.Measure == m
}

// The idle rule pauses what nobody uses.
func TestIdlePause(t *testing.T) {
	w, _ := newPausing(t)
	w.driver.takes(0, nil)
	row := w.create("web")
	if _, err := w.Set(t.Context(), row, sandbox.Change{Idle: sandbox.Idle{Pause: sandbox.Duration(10 * time.Minute)}}); err != nil {
		t.Fatal(err)
	}
	w.mustRun(row)
	now := time.Now()
	w.reap(now)
	w.reap(now.Add(9 * time.Minute))
	w.wantState(row, sandbox.Running)
	w.reap(now.Add(11 * time.Minute))
	w.wantState(row, sandbox.Paused)
	w.reap(now.Add(time.Hour))
	w.wantState(row, sandbox.Paused)
	w.mustRun(row)
	w.reap(now.Add(2 * time.Hour))
	w.wantState(row, sandbox.Running)
}

// A driver that cannot pause says so when it is asked to.
func TestPauseUnsupported(t *testing.T) {
	w := newWorld(t)
	row := w.create("web")
	w.mustRun(row)
	_, set := w.Set(t.Context(), row, sandbox.Change{Idle: sandbox.Idle{Pause: sandbox.Duration(time.Hour)}})
	_, create := w.Create(t.Context(), w.user, "other", sandbox.Options{Idle: sandbox.Idle{Pause: sandbox.Duration(time.Hour)}})
	for what, err := range map[string]error{"Pause": w.Pause(t.Context(), row), "Set": set, "Create": create} {
		if _, ok := errors.AsType[*sandbox.UnsupportedError](err); !ok {
			t.Errorf("%s: %v", what, err)
		}
	}
	w.wantState(row, sandbox.Running)
}
