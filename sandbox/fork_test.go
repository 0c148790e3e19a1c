package sandbox_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"sandgate/sandbox"
	"sandgate/store"
)

// A snapping driver keeps the names of snapshots, and can fail to make one.
type snapping struct {
	*pausing
	snaps map[sandbox.ID]bool // guarded by pausing.mu
	fail  error
}

func newSnapping(t *testing.T) (*world, *snapping) {
	w, p := newPausing(t)
	s := &snapping{pausing: p, snaps: make(map[sandbox.ID]bool)}
	w.use(s)
	return w, s
}

func (s *snapping) Snapshot(_ context.Context, _, id sandbox.ID) (cut bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.snaps[id] = true
	return true, s.fail
}

func (s *snapping) DropSnapshot(_ context.Context, id sandbox.ID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.snaps, id)
	return nil
}

func (s *snapping) Snapshots(context.Context) ([]sandbox.ID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.snaps)), nil
}

func (s *snapping) Create(ctx context.Context, spec sandbox.Spec) error {
	s.mu.Lock()
	missing := spec.From != "" && !s.snaps[spec.From]
	s.mu.Unlock()
	if missing {
		return sandbox.ErrNoSnapshot
	}
	return s.Local.Create(ctx, spec)
}

// A forking driver copies what runs, too.
type forking struct{ *snapping }

func (f forking) Fork(ctx context.Context, from sandbox.ID, spec sandbox.Spec) (memory bool, err error) {
	f.mu.Lock()
	fail := f.fail
	f.mu.Unlock()
	if fail != nil {
		return false, fail
	}
	all, err := f.List(ctx)
	if err != nil {
		return false, err
	}
	for _, s := range all {
		memory = memory || s.ID == from && s.State != sandbox.Stopped
	}
	if err := f.Create(ctx, spec); err != nil {
		return false, err
	}
	f.mu.Lock()
	f.paused[spec.ID] = memory
	f.mu.Unlock()
	return memory, nil
}

func (w *world) fork(row store.Sandbox, name string, may error) (store.Sandbox, bool, error) {
	return w.Fork(w.t.Context(), row, sandbox.Forking{Owner: w.user, Name: name, May: func(bool) error { return may }})
}

func (s *snapping) kept() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.snaps)
}

// A fork has what its parent was told to be, and its parent's users are told why their
// connection ended.
func TestFork(t *testing.T) {
	w, s := newSnapping(t)
	w.use(forking{s})
	row, err := w.Create(t.Context(), w.user, "web", sandbox.Options{TTL: sandbox.Duration(time.Hour), Env: []string{"A=1"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.db.AddService(t.Context(), row.ID, store.Service{Name: "api", Command: "true"}); err != nil {
		t.Fatal(err)
	}
	if err := w.db.Expose(t.Context(), row.ID, "TOKEN"); err != nil {
		t.Fatal(err)
	}
	lease, err := w.Wake(t.Context(), row)
	if err != nil {
		t.Fatal(err)
	}
	denied := errors.New("it has secrets")
	if _, _, err := w.fork(row, "copy", denied); !errors.Is(err, denied) {
		t.Errorf("which may not be: %v", err)
	}
	if !w.is(row, sandbox.Running) || lease.Stopping() {
		t.Error("that has interrupted it")
	}
	child, memory, err := w.fork(row, "copy", nil)
	if err != nil || !memory {
		t.Fatalf("with memory: %t, %v", memory, err)
	}
	<-lease.Done()
	if e, ok := errors.AsType[*sandbox.PausedError](lease.Gone()); !ok || e.Deed != "forked" {
		t.Errorf("its users are told %v", lease.Gone())
	}
	lease.Release()
	w.wantState(row, sandbox.Running)
	w.wantState(child, sandbox.Paused)
	o, err := sandbox.OptionsOf(child)
	if err != nil || !slices.Equal(o.Env, []string{"A=1"}) || o.From != "" || time.Until(o.Expires) < 59*time.Minute {
		t.Errorf("its options are %+v, %v", o, err)
	}
	if services, err := w.db.Services(t.Context(), child.ID); err != nil || len(services) != 1 || services[0].Name != "api" {
		t.Errorf("its services are %v, %v", services, err)
	}
	if names, err := w.db.Exposed(t.Context(), child.ID); err != nil || !slices.Equal(names, []string{"TOKEN"}) {
		t.Errorf("it may have %v, %v", names, err)
	}
	if _, _, err := w.fork(row, "copy", nil); !errors.Is(err, store.ErrExists) {
		t.Errorf("a name that is taken: %v", err)
	}

	// What is stopped has no secrets in memory, nor has its copy.
	if err := w.Stop(t.Context(), row); err != nil {
		t.Fatal(err)
	}
	other, memory, err := w.fork(row, "other", nil)
	if err != nil || memory {
		t.Fatalf("with memory: %t, %v", memory, err)
	}
	for _, r := range []store.Sandbox{row, other} {
		if names, err := w.db.Exposed(t.Context(), r.ID); err != nil || len(names) > 0 {
			t.Errorf("%s may have %v, %v", r.Name, names, err)
		}
	}

	// Of one that cannot be made nothing is left.
	s.mu.Lock()
	s.fail = errors.New("the disk is full")
	s.mu.Unlock()
	if _, _, err := w.fork(row, "third", nil); !errors.Is(err, s.fail) {
		t.Errorf("with a full disk: %v", err)
	}
	if all, err := w.db.Sandboxes(t.Context()); err != nil || len(all) != 3 {
		t.Errorf("there are %v, %v", all, err)
	}
	w.quota(sandbox.QuotaSandboxes, 3)
	if _, _, err := w.fork(row, "fourth", nil); !isQuota(err, sandbox.QuotaSandboxes) {
		t.Errorf("beyond the quota: %v", err)
	}
}

// is says whether a sandbox is in a state.
func (w *world) is(row store.Sandbox, state sandbox.State) bool {
	infos, err := w.Infos(w.t.Context(), []store.Sandbox{row})
	return err == nil && infos[sandbox.ID(row.ID)].State == state
}

// Where only disks can be copied a fork begins with a snapshot of its own, which goes
// with it.
func TestForkOfDisk(t *testing.T) {
	w, s := newSnapping(t)
	row := w.create("web")
	w.mustRun(row)
	child, memory, err := w.fork(row, "copy", nil)
	if err != nil || memory {
		t.Fatalf("with memory: %t, %v", memory, err)
	}
	w.mustRun(child)
	w.restart()
	if s.kept() != 1 {
		t.Error("its snapshot is gone")
	}
	if err := w.Remove(t.Context(), child); err != nil {
		t.Fatal(err)
	}
	if n := s.kept(); n != 0 {
		t.Errorf("%d snapshots are left", n)
	}
}

// Snapshots have names, and rows; what has no row is dropped by the next gateway.
func TestSnapshot(t *testing.T) {
	w, s := newSnapping(t)
	row := w.create("web")
	snap, err := w.Snapshot(t.Context(), row, "before") // of a sandbox that was never used
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Snapshot(t.Context(), row, "before"); !errors.Is(err, store.ErrExists) {
		t.Errorf("a name that is taken: %v", err)
	}
	s.mu.Lock()
	s.snaps[sandbox.NewID()] = true
	s.mu.Unlock()
	w.restart()
	if n := s.kept(); n != 1 {
		t.Errorf("%d snapshots are kept", n)
	}
	o, err := sandbox.FromSnapshot(snap, sandbox.Options{Limits: sandbox.Limits{PIDs: 9}})
	if err != nil {
		t.Fatal(err)
	}
	from, err := w.Create(t.Context(), w.user, "from", o)
	if err != nil {
		t.Fatal(err)
	}
	got, err := sandbox.OptionsOf(from)
	if err != nil || got.PIDs != 9 || got.Memory != 1<<20 || got.From != sandbox.ID(snap.ID) {
		t.Errorf("its options are %+v, %v", got, err)
	}
	if err := w.DropSnapshot(t.Context(), snap); err != nil {
		t.Fatal(err)
	}
	w.mustRun(from)
	if _, err := w.Create(t.Context(), w.user, "late", o); !errors.Is(err, sandbox.ErrNoSnapshot) {
		t.Errorf("of one that is gone: %v", err)
	}
	if rows, err := w.db.Sandboxes(t.Context()); err != nil || len(rows) != 2 {
		t.Errorf("there are %v, %v", rows, err)
	}
	s.mu.Lock()
	s.fail = errors.New("the disk is full")
	s.mu.Unlock()
	if _, err := w.Snapshot(t.Context(), row, "other"); !errors.Is(err, s.fail) {
		t.Errorf("with a full disk: %v", err)
	}
	if all, err := w.db.SnapshotsOf(t.Context(), 0); err != nil || len(all) != 0 {
		t.Errorf("there are %v, %v", all, err)
	}
}

// A standing driver has what it forks stand still for so long that a beat sees it.
type standing struct {
	forking
	beat func() error
}

func (s standing) Fork(ctx context.Context, from sandbox.ID, spec sandbox.Spec) (bool, error) {
	still := func(paused bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.paused[from] = paused
	}
	still(true)
	err := s.beat()
	still(false)
	if err != nil {
		return false, err
	}
	return s.forking.Fork(ctx, from, spec)
}

// What stands still for its copy's sake counts as running right after, so that the copy
// takes no place that there is not.
func TestForkedCounts(t *testing.T) {
	w, s := newSnapping(t)
	w.use(standing{forking{s}, func() error { return w.Beat(t.Context()) }})
	row := w.create("web")
	lease, err := w.Wake(t.Context(), row)
	if err != nil {
		t.Fatal(err)
	}
	lease.Release()
	if _, _, err := w.fork(row, "web2", nil); err != nil {
		t.Fatal(err)
	}
	if running, err := w.db.RunningSandboxes(t.Context()); err != nil || len(running) != 1 || running[0].ID != row.ID {
		t.Errorf("running: %+v, %v", running, err)
	}
}
