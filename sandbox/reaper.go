package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sandgate/sandbox/guest"
	"sandgate/store"
)

// reapEvery is how often it is looked after sandboxes whose time is over, or in
// which nothing goes on.
const reapEvery = 5 * time.Second

// probeTimeout bounds the question to a guest what it is doing.
const probeTimeout = 5 * time.Second

// busyShare is how much of the time a processor has to be at work for a sandbox for
// it to count as work: 1 in so many. Less is what an idle kernel takes.
const busyShare = 100

// A Gauge is a Driver that can tell what processor time a sandbox takes, also where
// it is no Meter.
type Gauge interface {
	// Busy returns the processor time of all that runs for a sandbox. It falls
	// when something ends. An error says that it is not to be had.
	Busy(ctx context.Context, id ID) (time.Duration, error)
}

// An ExpiredError says that a sandbox was removed as its time to live was over.
type ExpiredError struct {
	Sandbox string
	TTL     Duration
}

func (e *ExpiredError) Error() string {
	return fmt.Sprintf("sandbox %q was removed: its time to live of %s is over", e.Sandbox, e.TTL)
}

// An activity is what a sandbox was last seen doing.
type activity struct {
	used   bool          // somebody used it since it was last looked at
	worked time.Time     // when work was last seen, or could have gone on unseen
	seen   time.Time     // when it was last looked at
	busy   time.Duration // at that time
}

// reapOften removes and stops what is due until ctx ends.
func (m *Manager) reapOften(ctx context.Context) {
	tick := time.NewTicker(reapEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if err := m.reap(ctx, time.Now()); err != nil && ctx.Err() == nil {
			m.log.Warn("sandboxes not removed or stopped that are due, to be tried again", keyErr, err)
		}
	}
}

// reap removes the sandboxes whose time is over, and stops or pauses those in which
// nothing has gone on for as long as their rule says.
func (m *Manager) reap(ctx context.Context, now time.Time) error {
	rows, err := m.db.Sandboxes(ctx)
	if err != nil {
		return err
	}
	var errs []error
	var ruled []store.Sandbox
	for _, row := range rows {
		o, err := OptionsOf(row)
		switch {
		case err != nil:
			errs = append(errs, err)
		case o.expired(now):
			errs = append(errs, m.expire(ctx, row, now))
		case o.Idle.After().On():
			ruled = append(ruled, row)
		}
	}
	if len(ruled) == 0 {
		return errors.Join(errs...)
	}
	infos, err := m.Infos(ctx, ruled)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, row := range ruled {
		if infos[ID(row.ID)].State == Running {
			errs = append(errs, m.rest(ctx, row, now))
		}
	}
	return errors.Join(errs...)
}

func (o Options) expired(now time.Time) bool { return !o.Expires.IsZero() && !now.Before(o.Expires) }

// expire removes a sandbox whose time is over.
func (m *Manager) expire(ctx context.Context, row store.Sandbox, now time.Time) error {
	// What its owner may have changed in the meantime.
	row, err := m.db.Sandbox(ctx, row.ID)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	o, err := OptionsOf(row)
	if err != nil || !o.expired(now) {
		return err
	}
	m.log.Info("sandbox removed, as its time is over", keySandbox, row.ID, "name", row.Name)
	return m.remove(ctx, row, &ExpiredError{Sandbox: row.Name, TTL: o.TTL})
}

// rest stops or pauses a sandbox that runs, if nothing has gone on in it for as long
// as its rule says.
func (m *Manager) rest(ctx context.Context, row store.Sandbox, now time.Time) error {
	o, err := OptionsOf(row)
	if err != nil {
		return err
	}
	l := m.life(ID(row.ID))
	if since := now.Sub(m.worked(ctx, l, row, now)); since < time.Duration(o.Idle.After()) {
		return nil
	}
	if err := l.take(ctx); err != nil {
		return err
	}
	defer l.give()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pauseTimeout)
	defer cancel()
	client, ok := l.retire()
	if !ok {
		return nil // somebody came
	}
	if client != nil {
		defer client.Close()
	}
	if o.Idle.Pause.On() {
		return m.suspend(ctx, row, l)
	}
	m.log.Info("sandbox stopped, as it was idle", keySandbox, row.ID, "rule", o.Idle.String())
	if err := m.db.SetDesired(ctx, row.ID, store.DesiredStopped); err != nil {
		return err
	}
	return m.halt(ctx, row)
}

// retire takes away the client of a sandbox that nobody uses: whoever comes from
// now on waits for their turn. It returns false if somebody does use it.
func (l *life) retire() (*guest.Client, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users > 0 {
		return nil, false
	}
	client := l.client
	l.client, l.activity = nil, activity{}
	return client, true
}

// worked returns when work last went on in a sandbox: somebody used it, a job ran,
// or its programs took processor time. What cannot be known counts as work.
func (m *Manager) worked(ctx context.Context, l *life, row store.Sandbox, now time.Time) time.Time {
	busy, err := m.busy(ctx, row)
	works := err != nil || m.users(ID(row.ID)) > 0 || m.hasJobs(ctx, row)
	l.mu.Lock()
	defer l.mu.Unlock()
	a := &l.activity
	if now.Before(a.seen) {
		return a.worked
	}
	if works || a.used || a.seen.IsZero() || busy < a.busy || busy-a.busy > now.Sub(a.seen)/busyShare {
		a.worked = now
	}
	a.used, a.seen, a.busy = false, now, busy
	return a.worked
}

// busy returns the processor time that a sandbox has taken.
func (m *Manager) busy(ctx context.Context, row store.Sandbox) (time.Duration, error) {
	d, err := m.driverOf(row)
	if err != nil {
		return 0, err
	}
	if g, ok := d.(Gauge); ok {
		return g.Busy(ctx, ID(row.ID))
	}
	if r := m.read(ctx, d, ID(row.ID)); r.CPU != nil {
		return *r.CPU, nil
	}
	return 0, errors.New("the driver cannot measure processor time")
}

// hasJobs reports whether jobs run in a sandbox, or may run.
func (m *Manager) hasJobs(ctx context.Context, row store.Sandbox) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	lease, err := m.Look(ctx, row)
	if err != nil {
		return true
	}
	defer lease.Release()
	jobs, err := lease.Jobs(ctx)
	return err != nil || slices.ContainsFunc(jobs, func(j guest.JobInfo) bool { return j.Reason == "" })
}

// Look returns the use of a sandbox that runs, for a look at what goes on in it: it
// starts none, and keeps none from being idle.
func (m *Manager) Look(ctx context.Context, row store.Sandbox) (*Lease, error) {
	lease, err := m.reach(ctx, row)
	if err == nil {
		lease.probe = true
	}
	return lease, err
}

// reach returns the use of a sandbox that runs. Unlike Wake it starts none.
func (m *Manager) reach(ctx context.Context, row store.Sandbox) (*Lease, error) {
	l := m.life(ID(row.ID))
	if lease, ok := l.lease(); ok {
		return lease, nil
	}
	if err := l.take(ctx); err != nil {
		return nil, err
	}
	defer l.give()
	if lease, ok := l.lease(); ok {
		return lease, nil
	}
	d, err := m.driverOf(row)
	if err != nil {
		return nil, err
	}
	if l.isPaused() {
		return nil, errors.New("it is paused")
	}
	if needs, err := m.needsSetup(ctx, row); err != nil || needs {
		return nil, errors.Join(err, errors.New("its setup is not done"))
	}
	infos, err := m.Infos(ctx, []store.Sandbox{row})
	if err != nil || infos[ID(row.ID)].State != Running {
		return nil, errors.Join(err, guest.ErrGone)
	}
	client, err := m.connect(ctx, d, row)
	if err != nil {
		return nil, err
	}
	return m.joined(l, row, client)
}
