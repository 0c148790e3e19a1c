package sandbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"sandgate/sandbox/guest"
	"sandgate/store"
)

// A Watcher is a Driver whose engine lives apart from the gateway: it can end
// sandboxes that nobody here ended, go away itself and come back.
type Watcher interface {
	// Watch calls report with what happens that this driver did not do itself,
	// until ctx ends. It follows the engine for as long as that is there and looks
	// for it again when it has gone. report may be called at any time and does not
	// call the driver.
	Watch(ctx context.Context, report func(Event))
}

// An Event is what a Watcher reports.
type Event struct {
	Kind  EventKind
	ID    ID     // of the sandbox; empty where Kind is about the engine
	Cause string // of Ending, Ended and EngineLost: a sentence without its full stop
}

// An EventKind is what has happened.
type EventKind int

// The kinds of events.
const (
	Ending      EventKind = iota + 1 // a sandbox was told to end, and will or has
	Ended                            // a sandbox has ended
	Frozen                           // somebody else made a sandbox stand still until the next Start
	Thawed                           // it does not any more
	EngineLost                       // the engine is gone; sandboxes may be, too
	EngineFound                      // the engine is there, for the first time or again
)

// An UnavailableError says that a driver's engine cannot be reached just now.
type UnavailableError struct {
	Reason string // a sentence for users
	Remedy string // what can be done, or empty
	Err    error  // the cause; for the log
}

func (e *UnavailableError) Error() string { return e.Reason + ": " + e.Err.Error() }

func (e *UnavailableError) Unwrap() error { return e.Err }

// An EndedError says why a sandbox ended that nobody here ended. It is a
// guest.ErrGone.
type EndedError struct{ Cause string }

func (e *EndedError) Error() string { return "the sandbox ended: " + e.Cause }

func (e *EndedError) Unwrap() error { return guest.ErrGone }

// How long it may take until the cause of a sandbox's end is known, or, when it is
// not certain that a sandbox ends, until it has.
const (
	causeWait  = 2 * time.Second
	endingWait = 7 * time.Second
	apartWait  = 500 * time.Millisecond // the same where there is nothing but a suspicious signal
)

// An end is how the time of one client is over.
type end struct {
	watched  bool          // a Watcher tells the cause
	stopping chan struct{} // closed when what the client runs is about to be ended

	mu    sync.Mutex
	why   error // valid when stopping is closed; nil: somebody asked for it
	doubt error // why it may have ended, as its engine is gone
	apart bool  // there is such an engine, which can end it without a word to us
}

func newEnd(watched, apart bool) *end {
	return &end{watched: watched, apart: apart, stopping: make(chan struct{})}
}

// announce says that the sandbox is about to end, and why if nobody asked for it.
// It may be called again; what was announced first stays.
func (e *end) announce(why error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.announced() {
		e.why = why
		close(e.stopping)
	}
}

func (e *end) announced() bool {
	select {
	case <-e.stopping:
		return true
	default:
		return false
	}
}

// suspect says that the sandbox may have ended because of why, or, with nil, that
// it has not.
func (e *end) suspect(why error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.doubt, e.apart = why, true
}

func (e *end) suspected() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.doubt
}

// Stopping says whether the sandbox is being ended, which ends what runs in it.
func (l *Lease) Stopping() bool {
	wait := l.end.wait()
	if wait == 0 {
		return l.end.announced()
	}
	select {
	case <-l.end.stopping:
		return true
	case <-l.Done():
		return true
	case <-time.After(wait):
		return false
	}
}

// wait is how long it takes to know whether a sandbox ends in which a command was
// ended by a signal.
func (e *end) wait() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.announced():
		return 0
	case e.doubt != nil:
		return endingWait
	case e.apart:
		return apartWait
	}
	return 0
}

// Gone is why the sandbox has gone: guest.ErrGone, or what more is known, or soon
// is where a Watcher may tell.
func (l *Lease) Gone() error {
	for late := time.After(causeWait); l.end.watched && !l.end.announced() && l.end.suspected() == nil; {
		select {
		case <-l.end.stopping:
		case <-time.After(10 * time.Millisecond):
			continue
		case <-late:
		}
		break
	}
	l.end.mu.Lock()
	defer l.end.mu.Unlock()
	why := l.end.why
	if !l.end.announced() {
		why = l.end.doubt
	}
	if why == nil {
		return guest.ErrGone
	}
	return why
}

// watch follows the engines of the drivers that have one, until the manager is
// closed.
func (m *Manager) watch() {
	for name, d := range m.drivers {
		if w, ok := d.(Watcher); ok {
			m.watching.Go(func() {
				w.Watch(m.closing, func(e Event) { m.observe(name, e) })
			})
		}
	}
}

// observe deals with what the driver of that name reports.
func (m *Manager) observe(name string, e Event) {
	m.mu.Lock()
	l := m.lives[e.ID]
	lives := slices.Collect(maps.Values(m.lives))
	if e.Kind == EngineFound {
		m.apart[name] = true
	}
	m.mu.Unlock()
	switch e.Kind {
	case EngineLost:
		m.log.Warn("engine lost", keyDriver, name, keyErr, e.Cause)
		suspect(lives, name, &EndedError{Cause: e.Cause})
	case EngineFound:
		m.log.Info("engine found", keyDriver, name)
		suspect(lives, name, nil)
		// In its own time: it calls the driver.
		m.watching.Go(func() {
			if err := m.adopt(m.closing, name); err != nil && m.closing.Err() == nil {
				m.log.Warn("sandboxes not adopted", keyDriver, name, keyErr, err)
			}
		})
	default:
		if l != nil {
			m.observeLife(l, e)
		}
	}
}

// suspect says of all sandboxes of a driver that they may have ended because of
// why, or, with nil, that they have not.
func suspect(lives []*life, driver string, why error) {
	for _, l := range lives {
		l.mu.Lock()
		if l.client != nil && l.driver == driver {
			l.end.suspect(why)
		}
		l.mu.Unlock()
	}
}

// observeLife deals with what happens to one sandbox.
func (m *Manager) observeLife(l *life, e Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.client == nil {
		return
	}
	switch e.Kind {
	case Frozen, Thawed:
		l.paused = e.Kind == Frozen
	case Ending:
		l.end.announce(&EndedError{Cause: e.Cause})
	case Ended:
		m.log.Info("sandbox ended", keySandbox, e.ID, "cause", e.Cause)
		l.end.announce(&EndedError{Cause: e.Cause})
		client := l.client
		l.client = nil
		m.watching.Go(func() { client.Close() })
	}
}

// adopt puts rows and the sandboxes of one driver together. Sandboxes are listed
// before rows are read, since a new one has its row first.
func (m *Manager) adopt(ctx context.Context, name string) error {
	d := m.drivers[name]
	found, err := d.List(ctx)
	if err != nil {
		return err
	}
	rows, err := m.db.Sandboxes(ctx)
	if err != nil {
		return err
	}
	owned := make(map[ID]bool, len(rows))
	for _, r := range rows {
		owned[ID(r.ID)] = true
	}
	var errs []error
	for _, s := range found {
		if owned[s.ID] {
			if s.State == Running {
				m.log.Info("sandbox adopted", keySandbox, s.ID)
			}
			continue
		}
		m.log.Info("orphan removed", keySandbox, s.ID)
		if err := d.Remove(ctx, s.ID); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, m.dropOrphans(ctx, d), m.reportLost(ctx, name, rows, found))...)
}

func (l *life) isPaused() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.paused && l.connected()
}

// resume makes a sandbox go on that somebody has paused, with the client that there
// is. The caller has its turn.
func (m *Manager) resume(ctx context.Context, row store.Sandbox, l *life) (*Lease, error) {
	d, err := m.driverOf(row)
	if err != nil {
		return nil, err
	}
	if err := m.admit(ctx, row); err != nil {
		return nil, err
	}
	if err := d.Start(ctx, ID(row.ID)); err != nil {
		return nil, fmt.Errorf("resume sandbox %q: %w", row.Name, err)
	}
	l.mu.Lock()
	l.paused = false
	l.mu.Unlock()
	lease, ok := l.lease()
	if !ok {
		return nil, guest.ErrGone
	}
	return lease, nil
}
