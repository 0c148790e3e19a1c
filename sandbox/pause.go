package sandbox

import (
	"context"
	"errors"
	"fmt"

	"sandgate/store"
)

// A Pauser is a Driver that can make a sandbox stand still and go on later. Start is
// what makes it go on: it either does, with all that ran in it, or returns a
// *LostError. Stop and Remove end for good what stands still.
type Pauser interface {
	// Pause makes a running sandbox stand still; from then on its state is Paused.
	// If it fails the sandbox runs on. ErrNotFound if there is no such sandbox, and
	// ErrNotRunning if it does not run.
	Pause(ctx context.Context, id ID) error
}

// A Forker is a Driver that can make copies of sandboxes.
type Forker interface {
	// Fork makes a new sandbox as spec has it with the disk of another one, from. If
	// that runs or is paused, memory is true: the new one is paused, with all that runs
	// in from, which goes on where it was; its connections may have been cut. Fork
	// is not repeated after a crash of the gateway, which leaves all of the new
	// sandbox or nothing. ErrNotFound if there is no sandbox from.
	Fork(ctx context.Context, from ID, spec Spec) (memory bool, err error)
}

// A Snapshotter is a Driver that can keep the disk of a sandbox as it is now, for
// others to begin with (Spec.From).
type Snapshotter interface {
	// Snapshot keeps the disk of the sandbox from under the name id. What runs goes
	// on; cut says that its connections do not. ErrNotFound if there is no such
	// sandbox.
	Snapshot(ctx context.Context, from, id ID) (cut bool, err error)

	// DropSnapshot forgets a snapshot. What began with it stays. Dropping what is
	// not there is not an error.
	DropSnapshot(ctx context.Context, id ID) error

	// Snapshots returns the snapshots that there are.
	Snapshots(ctx context.Context) ([]ID, error)
}

// ErrNoSnapshot says that a driver has no snapshot of that name.
var ErrNoSnapshot = errors.New("no such snapshot")

// ErrNotRunning says that a sandbox does not run and is to do what only a running one
// can.
var ErrNotRunning = errors.New("the sandbox does not run")

// A LostError says why what ran in a paused sandbox cannot be brought back. The
// sandbox is stopped now, with its disk as it was, and can be started anew.
type LostError struct{ Reason string }

func (e *LostError) Error() string { return e.Reason }

// A PausedError is why those who use a sandbox have to leave it: it was paused, if
// only for a moment, or, having Failed, was not, and runs on.
type PausedError struct {
	Sandbox, Owner string
	Deed           string // what it was: paused, forked, …
	Failed         bool
}

func (e *PausedError) Error() string {
	if e.Failed {
		return fmt.Sprintf("sandbox %q could not be paused, and your connection to it is lost; what ran in it runs on", e.Sandbox)
	}
	return fmt.Sprintf("sandbox %q was %s", e.Sandbox, e.Deed)
}

// Pause makes a sandbox stand still until somebody uses it. One that is paused stays
// so; ErrNotRunning if it is stopped.
func (m *Manager) Pause(ctx context.Context, row store.Sandbox) error {
	l := m.life(ID(row.ID))
	if err := l.take(ctx); err != nil {
		return err
	}
	defer l.give()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pauseTimeout)
	defer cancel()
	infos, err := m.Infos(ctx, []store.Sandbox{row})
	if err != nil {
		return err
	}
	switch info := infos[ID(row.ID)]; info.State {
	case Paused:
		return nil
	case Unknown:
		return fmt.Errorf("pause sandbox %q: %w", row.Name, errors.New(info.Notes[0]))
	case Stopped:
		return ErrNotRunning
	}
	return m.suspend(ctx, row, l)
}

// suspend pauses a sandbox that runs. The caller has its turn.
func (m *Manager) suspend(ctx context.Context, row store.Sandbox, l *life) error {
	d, err := m.driverOf(row)
	if err != nil {
		return err
	}
	p, ok := d.(Pauser)
	if !ok {
		return cannotPause(row.Driver)
	}
	// First, or a gateway that follows might bring it up.
	if err := m.db.SetDesired(ctx, row.ID, store.DesiredStopped); err != nil {
		return err
	}
	used := m.read(ctx, d, ID(row.ID))
	if err := p.Pause(ctx, ID(row.ID)); err != nil {
		l.announceLoss(&PausedError{Sandbox: row.Name, Owner: row.Owner, Failed: true})
		return errors.Join(fmt.Errorf("pause sandbox %q: %w", row.Name, err), m.db.SetDesired(ctx, row.ID, store.DesiredRunning))
	}
	l.announceStop(&PausedError{Sandbox: row.Name, Owner: row.Owner, Deed: "paused"})
	m.ended(ctx, ID(row.ID), used)
	l.disconnect()
	m.log.Info("sandbox paused", keySandbox, row.ID)
	return nil
}

// run starts a sandbox on its driver, anew if it was paused and what ran in it is
// lost, which it tells.
func (m *Manager) run(ctx context.Context, d Driver, id ID, tell func(string)) error {
	err := d.Start(ctx, id)
	lost, ok := errors.AsType[*LostError](err)
	if !ok {
		return err
	}
	m.log.Warn("paused sandbox started anew", keySandbox, id, keyErr, err)
	if tell != nil {
		tell("what ran in the sandbox when it was paused could not be brought back: " + lost.Reason + "; it was started anew, and its disk is as it was")
	}
	return d.Start(ctx, id)
}

// announceLoss tells those who use the sandbox why their connection is lost, if it
// is.
func (l *life) announceLoss(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.client != nil && !l.connected() {
		l.end.announce(why)
	}
}

func cannotPause(driver string) error {
	return &UnsupportedError{Reason: fmt.Sprintf("the driver %q cannot pause sandboxes; it can stop them", driver)}
}

// checkIdle says whether a driver can do what a rule asks for.
func (m *Manager) checkIdle(driver string, rule Idle) error {
	if d := m.drivers[driver]; d != nil && rule.Pause.On() {
		if _, ok := d.(Pauser); !ok {
			return cannotPause(driver)
		}
	}
	return nil
}
