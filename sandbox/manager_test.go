package sandbox_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sandgate/sandbox"
	"sandgate/sandbox/drivertest"
	"sandgate/sandbox/guest"
	"sandgate/store"
)

func TestMain(m *testing.M) {
	if guest.IsGuest(os.Args) {
		os.Exit(guest.Main(os.Args))
	}
	goleak.VerifyTestMain(m)
}

// A counted driver counts its starts, and can be told to fail.
type counted struct {
	*drivertest.Local
	mu     sync.Mutex
	starts int
	fail   error

	// What Busy returns, more each time or an error.
	busy, each time.Duration
	busyErr    error
}

// takes says how much processor time sandboxes take each time that is asked.
func (c *counted) takes(each time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.each, c.busyErr = each, err
}

func (c *counted) Busy(context.Context, sandbox.ID) (time.Duration, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy += c.each
	return c.busy, c.busyErr
}

func (c *counted) Start(ctx context.Context, id sandbox.ID) error {
	c.mu.Lock()
	fail := c.fail
	c.mu.Unlock()
	if fail != nil {
		return fail
	}
	all, _ := c.List(ctx)
	ran := slices.ContainsFunc(all, func(s sandbox.Status) bool { return s.ID == id && s.State == sandbox.Running })
	err := c.Local.Start(ctx, id)
	if err == nil && !ran {
		c.mu.Lock()
		c.starts++
		c.mu.Unlock()
	}
	return err
}

func (c *counted) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.starts
}

func (c *counted) failWith(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fail = err
}

// Close leaves the sandboxes running, as other drivers do.
func (c *counted) Close() error { return nil }

// A world is a store with one user, a driver, and a manager over both.
type world struct {
	t      *testing.T
	db     *store.DB
	user   store.User
	driver *counted
	used   sandbox.Driver // is driver, or something around it
	clock  func() time.Time
	*sandbox.Manager
}

func newWorld(t *testing.T) *world {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	db, err := store.Open(t.Context(), filepath.Join(dir, "db"))
	if err != nil {
		t.Fatal(err)
	}
	user, err := db.CreateUser(t.Context(), "alice", store.RoleUser)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, db: db, user: user, driver: &counted{Local: drivertest.NewLocal(dir, self, "guest")}}
	w.driver.Home = t.TempDir() // what the host has for its own shells may take long
	w.use(w.driver)
	t.Cleanup(func() {
		w.Manager.Close()
		w.driver.Local.Close()
		db.Close()
	})
	return w
}

// use restarts the gateway with another driver of the same sandboxes.
func (w *world) use(d sandbox.Driver) {
	w.t.Helper()
	w.used = d
	w.restart()
}

// restart is a new gateway over the same store and sandboxes.
func (w *world) restart() {
	w.t.Helper()
	if w.Manager != nil {
		w.Manager.Close()
	}
	var err error
	w.Manager, err = sandbox.NewManager(sandbox.Config{Driver: "local", Defaults: sandbox.Options{Limits: sandbox.Limits{PIDs: 7}}}, w.db,
		map[string]sandbox.Driver{"local": w.used}, slog.New(slog.DiscardHandler))
	if err != nil {
		w.t.Fatal(err)
	}
	if w.clock != nil {
		w.SetClock(w.clock)
	}
	if err := w.Adopt(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) create(name string) store.Sandbox {
	w.t.Helper()
	row, err := w.Create(w.t.Context(), w.user, name, sandbox.Options{Limits: sandbox.Limits{Memory: 1 << 20}})
	if err != nil {
		w.t.Fatal(err)
	}
	return row
}

// run runs a command in a sandbox and returns what it prints.
func (w *world) run(row store.Sandbox, text string) (string, error) {
	lease, err := w.Wake(w.t.Context(), row)
	if err != nil {
		return "", err
	}
	defer lease.Release()
	p, err := lease.Start(guest.Command{Text: []byte(text)}, false)
	if err != nil {
		return "", err
	}
	defer p.Close()
	p.CloseWrite()
	var out bytes.Buffer
	_, err = p.Wait(w.t.Context(), &out, io.Discard)
	return out.String(), err
}

func (w *world) mustRun(row store.Sandbox) {
	w.t.Helper()
	if out, err := w.run(row, "echo hi"); out != "hi\n" || err != nil {
		w.t.Fatalf("got %q, %v", out, err)
	}
}

func TestCreate(t *testing.T) {
	w := newWorld(t)
	row := w.create("web")
	o, err := sandbox.OptionsOf(row)
	want := sandbox.Options{Image: sandbox.ImageHost, Network: sandbox.NetworkNone, Limits: sandbox.Limits{Memory: 1 << 20, PIDs: 7}}
	if err != nil || !reflect.DeepEqual(o, want) {
		t.Errorf("options %+v, %v; want %+v", o, err, want)
	}
	if _, err := w.Create(t.Context(), w.user, "web", sandbox.Options{}); !errors.Is(err, store.ErrExists) {
		t.Errorf("a second one of that name: %v", err)
	}
	_, err = w.Create(t.Context(), w.user, "other", sandbox.Options{Image: "De bian"})
	if bad, ok := errors.AsType[*sandbox.ImageError](err); !ok || bad.Fault != sandbox.ImageMalformed {
		t.Errorf("an image that can be none: %v", err)
	}
	if all, _ := w.driver.List(t.Context()); len(all) != 0 {
		t.Errorf("%d sandboxes are there before their first use", len(all))
	}
}

// However many use it at once, a sandbox is started once.
func TestWakeOnce(t *testing.T) {
	w := newWorld(t)
	for i := range 10 {
		row := w.create("web" + string(rune('a'+i)))
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if out, err := w.run(row, "echo hi"); out != "hi\n" || err != nil {
					t.Errorf("got %q, %v", out, err)
				}
			})
		}
		wg.Wait()
		if n := w.driver.count(); n != i+1 {
			t.Fatalf("%d starts of %d sandboxes", n, i+1)
		}
	}
}

func TestStopAndWake(t *testing.T) {
	w := newWorld(t)
	row := w.create("web")
	w.mustRun(row)
	lease, err := w.Wake(t.Context(), row)
	if err != nil {
		t.Fatal(err)
	}
	if infos, err := w.Infos(t.Context(), []store.Sandbox{row}); err != nil || infos[sandbox.ID(row.ID)].Users != 1 || infos[sandbox.ID(row.ID)].State != sandbox.Running {
		t.Errorf("infos %+v, %v", infos, err)
	}
	lease.Release()
	lease.Release()
	for range 2 { // stopping what is stopped is not an error
		if err := w.Stop(t.Context(), row); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-lease.Done():
	case <-time.After(time.Minute):
		t.Error("the guest of a stopped sandbox is still connected")
	}
	if infos, err := w.Infos(t.Context(), []store.Sandbox{row}); err != nil || infos[sandbox.ID(row.ID)].Users != 0 || infos[sandbox.ID(row.ID)].State != sandbox.Stopped {
		t.Errorf("infos %+v, %v", infos, err)
	}
	w.mustRun(row)
}

// A failure to start is told, and the next use tries again.
func TestWakeFails(t *testing.T) {
	w := newWorld(t)
	row := w.create("web")
	broken := errors.New("no more memory")
	w.driver.failWith(broken)
	if _, err := w.Wake(t.Context(), row); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	w.driver.failWith(nil)
	w.mustRun(row)
}

// What was removed does not come back, by whatever row somebody still holds.
func TestRemove(t *testing.T) {
	w := newWorld(t)
	row := w.create("web")
	w.mustRun(row)
	if err := w.Remove(t.Context(), row); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Wake(t.Context(), row); !errors.Is(err, sandbox.ErrRemoved) {
		t.Errorf("got %v", err)
	}
	if all, _ := w.driver.List(t.Context()); len(all) != 0 {
		t.Errorf("left: %+v", all)
	}
	again := w.create("web")
	if again.ID == row.ID {
		t.Error("the new sandbox has the old one's id")
	}
	w.mustRun(again)
}

// A new gateway finds what runs, starts nothing twice, and removes what nobody
// owns.
func TestAdopt(t *testing.T) {
	w := newWorld(t)
	row := w.create("web")
	if out, err := w.run(row, "sleep 600 >/dev/null 2>&1 </dev/null & echo $!"); err != nil || out == "" {
		t.Fatalf("got %q, %v", out, err)
	}
	orphan := sandbox.Spec{ID: sandbox.NewID()}
	if err := w.driver.Create(t.Context(), orphan); err != nil {
		t.Fatal(err)
	}
	w.restart()
	if all, _ := w.driver.List(t.Context()); len(all) != 1 || string(all[0].ID) != row.ID {
		t.Errorf("after a restart there are %+v", all)
	}
	w.mustRun(row)
	if n := w.driver.count(); n != 1 {
		t.Errorf("started %d times", n)
	}
	if err := w.Stop(t.Context(), row); err != nil {
		t.Fatal(err)
	}
}

func TestParseID(t *testing.T) {
	id := sandbox.NewID()
	if got, err := sandbox.ParseID(string(id)); got != id || err != nil {
		t.Errorf("%q parses to %q, %v", id, got, err)
	}
	for _, s := range []string{"", "0123", "0123456789ABCDEF", "0123456789abcdeg", "../../etc/passwd", "0123456789abcdef0"} {
		if _, err := sandbox.ParseID(s); err == nil {
			t.Errorf("%q is taken for an id", s)
		}
	}
}
