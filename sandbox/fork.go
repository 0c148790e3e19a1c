package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"sandgate/store"
)

// A Forking says what is copied of a sandbox.
type Forking struct {
	Owner store.User
	Name  string // of the copy

	// May is asked when it is known whether what is in memory is copied, too.
	May func(memory bool) error
}

// Fork makes a copy of a sandbox, with its options, its services and its disk, and with
// memory if the driver can and the sandbox is not stopped. The copy is not started.
// The errors are those of Create.
func (m *Manager) Fork(ctx context.Context, row store.Sandbox, f Forking) (child store.Sandbox, memory bool, err error) {
	l := m.life(ID(row.ID))
	if err := l.take(ctx); err != nil {
		return child, false, err
	}
	defer l.give()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pauseTimeout)
	defer cancel()
	row, o, err := m.current(ctx, row)
	if err != nil {
		return child, false, err
	}
	state, err := m.copyable(ctx, row)
	if err != nil {
		return child, false, err
	}
	d := m.drivers[row.Driver]
	forker, forks := d.(Forker)
	if err := f.May(forks && state != Stopped); err != nil {
		return child, false, err
	}
	o.Expires = expiry(o.TTL, time.Now())
	child = store.Sandbox{ID: string(NewID()), UserID: f.Owner.ID, Owner: f.Owner.Name, Name: f.Name, Driver: row.Driver, Desired: store.DesiredStopped}
	if !forks {
		o.From = ID(child.ID) // the snapshot is the copy's own
	}
	if child.Spec, err = json.Marshal(o); err != nil {
		return child, false, err
	}
	if child, err = m.enrol(ctx, child); err != nil {
		return child, false, err
	}
	err = m.copyRows(ctx, row, child)
	if err == nil && forks && state != Stopped {
		err = m.copyExposed(ctx, row, child)
	}
	if err == nil && forks {
		memory, err = forker.Fork(ctx, ID(row.ID), specOf(child, o))
		if state == Running {
			m.begun(ctx, ID(row.ID)) // a beat may have found it standing still
			l.interrupted(&PausedError{Sandbox: row.Name, Owner: row.Owner, Deed: "forked"})
		}
	} else if err == nil {
		_, err = d.(Snapshotter).Snapshot(ctx, ID(row.ID), o.From)
		if err == nil {
			err = d.Create(ctx, specOf(child, o))
		}
	}
	if err != nil {
		return child, false, errors.Join(fmt.Errorf("fork sandbox %q: %w", row.Name, err), m.disown(ctx, d, child))
	}
	m.log.Info("sandbox forked", keySandbox, row.ID, "to", child.ID, "memory", memory)
	return child, memory, nil
}

// copyable returns the state of a sandbox whose disk is to be copied, or why it cannot
// be.
func (m *Manager) copyable(ctx context.Context, row store.Sandbox) (State, error) {
	d, err := m.driverOf(row)
	if err != nil {
		return "", err
	}
	if _, ok := d.(Snapshotter); !ok {
		return "", &UnsupportedError{Reason: fmt.Sprintf("the driver %q cannot copy the disk of a sandbox", row.Driver)}
	}
	if needs, err := m.needsSetup(ctx, row); err != nil {
		return "", err
	} else if needs {
		return "", &UnsupportedError{Reason: fmt.Sprintf("sandbox %q is not complete: its setup command has still to run; start it first", row.Name)}
	}
	infos, err := m.Infos(ctx, []store.Sandbox{row})
	if err != nil {
		return "", err
	}
	info := infos[ID(row.ID)]
	if info.State == Unknown {
		return "", errors.New(info.Notes[0])
	}
	// One that was never used has no disk yet.
	found, err := d.List(ctx)
	if err != nil {
		return "", err
	}
	for _, s := range found {
		if s.ID == ID(row.ID) {
			return info.State, nil
		}
	}
	return info.State, m.create(ctx, d, row)
}

// enrol adds a row if its owner may have one more sandbox.
func (m *Manager) enrol(ctx context.Context, row store.Sandbox) (store.Sandbox, error) {
	m.admitting.Lock()
	defer m.admitting.Unlock()
	if err := m.Refused(ctx, row.UserID, QuotaSandboxes); err != nil {
		return row, err
	}
	return m.db.CreateSandbox(ctx, row)
}

// disown takes back a sandbox that could not be made.
func (m *Manager) disown(ctx context.Context, d Driver, row store.Sandbox) error {
	return errors.Join(d.Remove(ctx, ID(row.ID)), m.dropOwn(ctx, d, row), m.db.DeleteSandbox(ctx, row.ID))
}

// dropOwn drops the snapshot that is a sandbox's own, if there is one.
func (m *Manager) dropOwn(ctx context.Context, d Driver, row store.Sandbox) error {
	s, ok := d.(Snapshotter)
	o, err := OptionsOf(row)
	if !ok || err != nil || o.From != ID(row.ID) {
		return err
	}
	return s.DropSnapshot(ctx, o.From)
}

// copyRows gives a copy what else there is to know about its disk.
func (m *Manager) copyRows(ctx context.Context, from, to store.Sandbox) error {
	setup, err := m.db.Setup(ctx, from.ID)
	if err == nil {
		err = m.db.PutSetup(ctx, to.ID, setup)
	} else if errors.Is(err, store.ErrNotFound) {
		err = nil
	}
	if err != nil {
		return err
	}
	services, err := m.db.Services(ctx, from.ID)
	if err != nil {
		return err
	}
	for _, s := range services {
		if err := m.db.AddService(ctx, to.ID, s); err != nil {
			return err
		}
	}
	return nil
}

// copyExposed remembers what a copy with memory may have in it.
func (m *Manager) copyExposed(ctx context.Context, from, to store.Sandbox) error {
	names, err := m.db.Exposed(ctx, from.ID)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := m.db.Expose(ctx, to.ID, name); err != nil {
			return err
		}
	}
	return nil
}

// interrupted ends the connection to a sandbox that goes on, and tells its users why.
func (l *life) interrupted(why error) {
	l.announceStop(why)
	l.disconnect()
}

// Snapshot keeps the disk of a sandbox as it is now, under a name that is unique among
// its owner's: store.ErrExists if it is not.
func (m *Manager) Snapshot(ctx context.Context, row store.Sandbox, name string) (store.Snapshot, error) {
	l := m.life(ID(row.ID))
	if err := l.take(ctx); err != nil {
		return store.Snapshot{}, err
	}
	defer l.give()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pauseTimeout)
	defer cancel()
	row, _, err := m.current(ctx, row)
	if err != nil {
		return store.Snapshot{}, err
	}
	if _, err := m.copyable(ctx, row); err != nil {
		return store.Snapshot{}, err
	}
	snap, err := m.db.CreateSnapshot(ctx, store.Snapshot{
		ID: string(NewID()), UserID: row.UserID, Name: name, Driver: row.Driver, Spec: row.Spec, Sandbox: row.Name,
	})
	if err != nil {
		return snap, err
	}
	cut, err := m.drivers[row.Driver].(Snapshotter).Snapshot(ctx, ID(row.ID), ID(snap.ID))
	if cut {
		l.interrupted(&PausedError{Sandbox: row.Name, Owner: row.Owner, Deed: "copied into a snapshot"})
	}
	if err != nil {
		return snap, errors.Join(fmt.Errorf("snapshot of sandbox %q: %w", row.Name, err), m.db.DeleteSnapshot(ctx, snap.ID))
	}
	m.log.Info("snapshot made", keySandbox, row.ID, "snapshot", snap.ID)
	return snap, nil
}

// DropSnapshot forgets a snapshot. Sandboxes that began with it stay.
func (m *Manager) DropSnapshot(ctx context.Context, snap store.Snapshot) error {
	if s, ok := m.drivers[snap.Driver].(Snapshotter); ok {
		if err := s.DropSnapshot(ctx, ID(snap.ID)); err != nil {
			return fmt.Errorf("remove snapshot %q: %w", snap.Name, err)
		}
	}
	if err := m.db.DeleteSnapshot(ctx, snap.ID); err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	return nil
}

// FromSnapshot returns the options of a new sandbox that begins with a snapshot, and
// is for the rest as o says, or else as the sandbox was of which it is.
func FromSnapshot(snap store.Snapshot, o Options) (Options, error) {
	was, err := OptionsOf(store.Sandbox{ID: snap.ID, Spec: snap.Spec})
	if err != nil {
		return o, err
	}
	setup := o.Setup // of the other it was done before
	was.Driver, was.Template, was.Expires = snap.Driver, "", time.Time{}
	o = o.Or(was)
	o.Setup, o.From = setup, ID(snap.ID)
	return o, nil
}

// dropOrphans drops the snapshots of a driver that nobody owns.
func (m *Manager) dropOrphans(ctx context.Context, d Driver) error {
	s, ok := d.(Snapshotter)
	if !ok {
		return nil
	}
	found, err := s.Snapshots(ctx)
	if err != nil {
		return err
	}
	snaps, err := m.db.SnapshotsOf(ctx, 0)
	if err != nil {
		return err
	}
	rows, err := m.db.Sandboxes(ctx)
	if err != nil {
		return err
	}
	owned := make(map[ID]bool)
	for _, snap := range snaps {
		owned[ID(snap.ID)] = true
	}
	for _, r := range rows {
		owned[ID(r.ID)] = true
	}
	var errs []error
	for _, id := range found {
		if !owned[id] {
			m.log.Info("orphaned snapshot removed", "snapshot", id)
			errs = append(errs, s.DropSnapshot(ctx, id))
		}
	}
	return errors.Join(errs...)
}
