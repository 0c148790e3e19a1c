package sandbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"

	"sandgate/store"
)

// A Puller is a Driver that fetches images before it can make sandboxes of them.
// Its Create fails with ErrNoImage, and leaves nothing behind, when the image of
// the spec is not on its host; the Manager then calls Pull and Create again. A
// Driver that is no Puller has ImageHost only.
type Puller interface {
	// Pull fetches the image ref, NAME[:TAG|@DIGEST] and never ImageHost, if it is
	// not on the driver's host, and keeps it there at least until a Create that
	// follows at once. The error is an *ImageError wherever one of its faults is
	// the cause. When ctx ends, Pull soon does; what it has fetched may be kept.
	//
	// report is called at every change of a layer's state and, while it is
	// downloaded or extracted, every now and then. It may be called by several
	// goroutines at once, never blocks, and must not be called after Pull has
	// returned. The order in which layers are first reported is that in which
	// they are shown: all of them are best reported as Waiting at the beginning.
	Pull(ctx context.Context, ref string, report func(Progress)) error

	// Refresh is Pull, but asks what ref means now if an image of that name is on
	// the driver's host. Sandboxes that are there keep theirs.
	Refresh(ctx context.Context, ref string, report func(Progress)) error
}

// A PullPolicy says when the image of a new sandbox is fetched.
type PullPolicy string

// The policies.
const (
	PullMissing PullPolicy = "missing" // when it is not on the driver's host
	PullAlways  PullPolicy = "always"  // always, as it is by now
	PullNever   PullPolicy = "never"
)

// An Entrypointer is a Driver that knows what images run by themselves.
type Entrypointer interface {
	// Entrypoint returns the command of the image that a sandbox was made of, with
	// its arguments; nil if it has none.
	Entrypoint(ctx context.Context, id ID) ([]string, error)
}

// Entrypoint returns the command of the image that a sandbox was made of; nil if it
// has none.
func (m *Manager) Entrypoint(ctx context.Context, row store.Sandbox) ([]string, error) {
	d, err := m.driverOf(row)
	if err != nil {
		return nil, err
	}
	if e, ok := d.(Entrypointer); ok {
		return e.Entrypoint(ctx, ID(row.ID))
	}
	return nil, nil
}

// Progress is how far the pull of one layer has come.
type Progress struct {
	Layer string // names it among those of the image, for people: the first 12 digits of its digest
	State LayerState
	Done  int64 // bytes, of what State says; 0 if not known
	Total int64 // bytes; 0 if not known
}

// A LayerState is what happens to a layer. A driver may leave out any but
// LayerReady.
type LayerState string

// The states of a layer.
const (
	LayerWaiting     LayerState = "waiting"
	LayerDownloading LayerState = "downloading"
	LayerExtracting  LayerState = "extracting"
	LayerReady       LayerState = "ready"    // also when it was there already
	LayerRetrying    LayerState = "retrying" // its download broke off and begins again
)

// ErrNoImage is what the Create of a Puller fails with when it first needs a Pull.
var ErrNoImage = errors.New("the image is not here yet")

// An ImageError says why an image cannot be had.
type ImageError struct {
	Image string // as the user named it
	Fault ImageFault
	Err   error // the cause; for the log
}

func (e *ImageError) Error() string { return fmt.Sprintf("image %q: %v", e.Image, e.Err) }

func (e *ImageError) Unwrap() error { return e.Err }

// An ImageFault is what is wrong with an image, as far as a user can do something
// about it.
type ImageFault int

// The faults of images.
const (
	ImageMalformed   ImageFault = iota + 1 // the reference is none
	ImageNotFound                          // no such repository, tag or digest
	ImageDenied                            // not without other credentials
	ImageUnreachable                       // no answer, or no sensible one, from its registry
	ImageDiskFull                          // no room for it on the driver's host
	ImagePlatform                          // none for the driver's host
	ImageCorrupt                           // not what its digest says, or no image
	ImageTooBig                            // more bytes or files than the driver takes
	ImageTooMany                           // its registry allows no more pulls for now
)

// checkImage says whether ref can be the name of an image.
func checkImage(ref string) error {
	if ref == ImageHost {
		return nil
	}
	if _, err := name.ParseReference(ref); err != nil {
		return &ImageError{Image: ref, Fault: ImageMalformed, Err: err}
	}
	return nil
}

// pullTimeout bounds one pull. Whether it moves at all is the driver's matter.
const pullTimeout = time.Hour

// showEvery is how often a caller that waits for a pull is told about it.
const showEvery = 100 * time.Millisecond

// pulls are those under way.
type pulls struct {
	mu   sync.Mutex
	byID map[pullID]*pull
}

type pullID struct {
	driver, image string
	anew          bool // also if there is one
}

// A pull is what all who wait for one image share.
type pull struct {
	cancel  context.CancelFunc
	waiting int // callers; guarded by pulls.mu

	done chan struct{} // closed at the end
	err  error         // to be read after that

	mu     sync.Mutex
	told   []Progress     // all that the driver reported, but only the last of one layer in one state
	latest map[string]int // index in told of the last of each layer
}

// maxTold bounds what a pull remembers.
const maxTold = 4096

// report is for the driver.
func (p *pull) report(step Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i, known := p.latest[step.Layer]
	switch {
	case known && p.told[i].State == step.State:
		p.told[i] = step
	case len(p.told) < maxTold:
		p.latest[step.Layer] = len(p.told)
		p.told = append(p.told, step)
	}
}

// news returns what has changed since shown, in order, and what is shown then.
func (p *pull) news(shown []Progress) (changed, now []Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, step := range p.told {
		if i >= len(shown) {
			shown = append(shown, Progress{})
		}
		if shown[i] != step {
			shown[i] = step
			changed = append(changed, step)
		}
	}
	return changed, shown
}

// pull fetches the image of a sandbox, together with all who need the same one.
// The last of them to give up ends it. show, if not nil, is called now and then
// with what has changed: all changes of state, and how far what goes on has come.
func (m *Manager) pull(ctx context.Context, row store.Sandbox, anew bool, show func([]Progress)) error {
	o, err := OptionsOf(row)
	if err != nil {
		return err
	}
	puller, ok := m.drivers[row.Driver].(Puller)
	if !ok {
		return &UnsupportedError{Reason: fmt.Sprintf("image %q: the driver %q has only the image %q", o.Image, row.Driver, ImageHost)}
	}
	id := pullID{row.Driver, o.Image, anew}
	p := m.join(id, puller)
	defer m.part(id, p)
	tick := time.NewTicker(showEvery)
	defer tick.Stop()
	for shown, over := []Progress(nil), false; !over; {
		select {
		case <-p.done:
			over = true
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		var changed []Progress
		if changed, shown = p.news(shown); len(changed) > 0 && show != nil {
			show(changed)
		}
	}
	return p.err
}

// join returns the pull of an image, which it begins if there is none.
func (m *Manager) join(id pullID, puller Puller) *pull {
	m.pulls.mu.Lock()
	defer m.pulls.mu.Unlock()
	p := m.pulls.byID[id]
	if p == nil {
		ctx, cancel := context.WithTimeout(context.Background(), pullTimeout)
		p = &pull{cancel: cancel, done: make(chan struct{}), latest: make(map[string]int)}
		m.pulls.byID[id] = p
		m.pulling.Go(func() {
			began := time.Now()
			fetch := puller.Pull
			if id.anew {
				fetch = puller.Refresh
			}
			p.err = fetch(ctx, id.image, p.report)
			if p.err == nil {
				m.log.Info("image pulled", "image", id.image, keyTook, time.Since(began).Round(time.Millisecond))
			} else if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				p.err = &ImageError{Image: id.image, Fault: ImageUnreachable, Err: fmt.Errorf("not pulled within %v: %w", pullTimeout, p.err)}
			}
			close(p.done)
		})
	}
	p.waiting++
	return p
}

// part ends a caller's share in a pull.
func (m *Manager) part(id pullID, p *pull) {
	m.pulls.mu.Lock()
	defer m.pulls.mu.Unlock()
	if p.waiting--; p.waiting > 0 {
		return
	}
	p.cancel()
	delete(m.pulls.byID, id)
}

// endPulls gives up all pulls.
func (m *Manager) endPulls() {
	m.pulls.mu.Lock()
	for _, p := range m.pulls.byID {
		p.cancel()
	}
	m.pulls.mu.Unlock()
	m.pulling.Wait()
}

// Make makes a sandbox on its driver, which the first Wake does otherwise, and
// pulls its image as the policy says. show is Show.Pull.
func (m *Manager) Make(ctx context.Context, row store.Sandbox, policy PullPolicy, show func([]Progress)) error {
	if policy == PullAlways {
		if err := m.pull(ctx, row, true, show); err != nil {
			return err
		}
	}
	err := m.make(ctx, row)
	if errors.Is(err, ErrNoImage) && policy == PullNever {
		return &OptionError{Fault: OptionUnknown, Reason: "the image is not here yet, and is not to be pulled", Remedy: "leave --pull never out"}
	}
	if errors.Is(err, ErrNoImage) {
		if err = m.pull(ctx, row, false, show); err == nil {
			err = m.make(ctx, row)
		}
	}
	return err
}

// make makes a sandbox of an image that is there.
func (m *Manager) make(ctx context.Context, row store.Sandbox) error {
	l := m.life(ID(row.ID))
	if err := l.take(ctx); err != nil {
		return err
	}
	defer l.give()
	if l.gone() {
		return ErrRemoved
	}
	d, err := m.driverOf(row)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wakeTimeout)
	defer cancel()
	return m.create(ctx, d, row)
}
