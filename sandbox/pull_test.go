package sandbox_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"sandgate/sandbox"
	"sandgate/sandbox/drivertest"
	"sandgate/store"
)

// A puller is a local driver whose images have to be pulled. Each pull waits for
// an answer.
type puller struct {
	*drivertest.Local
	began chan struct{}
	reply chan error
	ended chan struct{}

	mu     sync.Mutex
	here   map[string]bool
	pulls  int
	afresh int // of them by Refresh
}

func (p *puller) Create(ctx context.Context, spec sandbox.Spec) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.here[spec.Image] {
		return sandbox.ErrNoImage
	}
	return p.Local.Create(ctx, spec)
}

func (p *puller) Pull(ctx context.Context, ref string, report func(sandbox.Progress)) error {
	p.mu.Lock()
	p.pulls++
	p.mu.Unlock()
	for done := range int64(1000) {
		report(sandbox.Progress{Layer: "a", State: sandbox.LayerDownloading, Done: done, Total: 1000})
	}
	report(sandbox.Progress{Layer: "b", State: sandbox.LayerReady})
	report(sandbox.Progress{Layer: "a", State: sandbox.LayerReady})
	p.began <- struct{}{}
	var err error
	select {
	case err = <-p.reply:
	case <-ctx.Done():
		err = ctx.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.here[ref] = err == nil
	p.ended <- struct{}{}
	return err
}

func (p *puller) Refresh(ctx context.Context, ref string, report func(sandbox.Progress)) error {
	p.mu.Lock()
	p.afresh++
	p.mu.Unlock()
	return p.Pull(ctx, ref, report)
}

// Close leaves the sandboxes running, as other drivers do.
func (p *puller) Close() error { return nil }

// newPuller is a world with a puller as its driver.
func newPuller(t *testing.T) (*world, *puller) {
	w := newWorld(t)
	p := &puller{Local: w.driver.Local, began: make(chan struct{}, 10), reply: make(chan error), ended: make(chan struct{}, 10), here: make(map[string]bool)}
	w.Manager.Close()
	var err error
	w.Manager, err = sandbox.NewManager(sandbox.Config{Driver: "local"}, w.db,
		map[string]sandbox.Driver{"local": p}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return w, p
}

func (w *world) createOf(image, name string) store.Sandbox {
	w.t.Helper()
	row, err := w.Create(w.t.Context(), w.user, name, sandbox.Options{Image: image})
	if err != nil {
		w.t.Fatal(err)
	}
	return row
}

// wakeLater wakes a sandbox in the background.
func (w *world) wakeLater(ctx context.Context, row store.Sandbox, show func([]sandbox.Progress)) <-chan error {
	over := make(chan error, 1)
	go func() {
		lease, err := w.WakeShowing(ctx, row, sandbox.Show{Pull: show})
		if err == nil {
			lease.Release()
		}
		over <- err
	}()
	return over
}

// awaitWaiting waits until n callers wait for the image debian.
func (w *world) awaitWaiting(n int) {
	w.t.Helper()
	for end := time.Now().Add(time.Minute); w.Waiting("local", "debian") != n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("%d wait for the image, want %d", w.Waiting("local", "debian"), n)
		}
	}
}

// However many sandboxes need an image at once, it is pulled once, and everybody
// is shown all of it.
func TestPullOnce(t *testing.T) {
	w, p := newPuller(t)
	const n = 4
	var overs []<-chan error
	seen := make([][]sandbox.Progress, n)
	for i := range n {
		show := func(changed []sandbox.Progress) { seen[i] = append(seen[i], changed...) }
		overs = append(overs, w.wakeLater(t.Context(), w.createOf("debian", string(rune('a'+i))), show))
	}
	<-p.began
	w.awaitWaiting(n)
	p.reply <- nil
	for i, over := range overs {
		if err := <-over; err != nil {
			t.Error(err)
		}
		want := []sandbox.Progress{
			{Layer: "a", State: sandbox.LayerDownloading, Done: 999, Total: 1000},
			{Layer: "b", State: sandbox.LayerReady},
			{Layer: "a", State: sandbox.LayerReady},
		}
		got := seen[i]
		for len(got) > 0 && got[0].State == sandbox.LayerDownloading && got[0].Done < 999 {
			got = got[1:]
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d was shown %v, want %v", i, seen[i], want)
		}
	}
	w.mustRun(w.createOf("debian", "later"))
	if p.pulls != 1 {
		t.Errorf("%d pulls", p.pulls)
	}
}

// A pull ends with the last who waits for it, and not before.
func TestPullGivenUp(t *testing.T) {
	w, p := newPuller(t)
	one, two := w.createOf("debian", "one"), w.createOf("debian", "two")
	ctx1, cancel1 := context.WithCancel(t.Context())
	ctx2, cancel2 := context.WithCancel(t.Context())
	defer cancel2()
	over1 := w.wakeLater(ctx1, one, nil)
	over2 := w.wakeLater(ctx2, two, nil)
	<-p.began
	w.awaitWaiting(2)
	cancel1()
	if err := <-over1; !errors.Is(err, context.Canceled) {
		t.Errorf("who gives up gets %v", err)
	}
	select {
	case err := <-over2:
		t.Fatalf("the other one gets %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	cancel2()
	if err := <-over2; !errors.Is(err, context.Canceled) {
		t.Errorf("who gives up last gets %v", err)
	}
	<-p.ended // or it could take the next one's reply
	// The next one begins again.
	over1 = w.wakeLater(t.Context(), one, nil)
	<-p.began
	p.reply <- nil
	if err := <-over1; err != nil || p.pulls != 2 {
		t.Errorf("%v after %d pulls", err, p.pulls)
	}
}

// A pull that fails is not remembered.
func TestPullFails(t *testing.T) {
	w, p := newPuller(t)
	row := w.createOf("debian", "web")
	over := w.wakeLater(t.Context(), row, nil)
	<-p.began
	p.reply <- &sandbox.ImageError{Image: "debian", Fault: sandbox.ImageDenied, Err: errors.New("no")}
	if bad, ok := errors.AsType[*sandbox.ImageError](<-over); !ok || bad.Fault != sandbox.ImageDenied {
		t.Errorf("got %v", bad)
	}
	made := make(chan error, 1)
	go func() { made <- w.Make(t.Context(), row, sandbox.PullMissing, nil) }()
	<-p.began
	p.reply <- nil
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	w.mustRun(row)
}

// An image is pulled when the policy says so.
func TestPullPolicy(t *testing.T) {
	w, p := newPuller(t)
	err := w.Make(t.Context(), w.createOf("debian", "never"), sandbox.PullNever, nil)
	if bad, ok := errors.AsType[*sandbox.OptionError](err); !ok || bad.Remedy == "" {
		t.Errorf("never: %v", err)
	}
	for i, c := range []struct {
		policy sandbox.PullPolicy
		pulls  int
	}{{sandbox.PullMissing, 1}, {sandbox.PullAlways, 2}, {sandbox.PullMissing, 2}, {sandbox.PullNever, 2}} {
		row := w.createOf("debian", "web"+strconv.Itoa(i))
		made, pulls := make(chan error, 1), p.pulls < c.pulls
		go func() { made <- w.Make(t.Context(), row, c.policy, nil) }()
		if pulls {
			<-p.began
			p.reply <- nil
		}
		if err := <-made; err != nil {
			t.Fatal(err)
		}
		if p.pulls != c.pulls {
			t.Errorf("%s: %d pulls, want %d", c.policy, p.pulls, c.pulls)
		}
	}
	if p.afresh != 1 {
		t.Errorf("%d pulls of what was there", p.afresh)
	}
}

// A sandbox can be removed while its image is pulled, and does not come back.
func TestRemoveDuringPull(t *testing.T) {
	w, p := newPuller(t)
	row := w.createOf("debian", "web")
	over := w.wakeLater(t.Context(), row, nil)
	<-p.began
	if err := w.Remove(t.Context(), row); err != nil {
		t.Fatal(err)
	}
	p.reply <- nil
	if err := <-over; !errors.Is(err, sandbox.ErrRemoved) {
		t.Errorf("woken all the same: %v", err)
	}
	if all, _ := p.List(t.Context()); len(all) != 0 {
		t.Errorf("made again: %v", all)
	}
}

// A driver without images says so.
func TestNoPuller(t *testing.T) {
	w := newWorld(t)
	w.driver.failWith(sandbox.ErrNoImage)
	_, err := w.Wake(t.Context(), w.createOf("debian", "web"))
	if _, ok := errors.AsType[*sandbox.UnsupportedError](err); !ok {
		t.Errorf("got %v", err)
	}
}
