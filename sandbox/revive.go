package sandbox

import (
	"context"
	"errors"

	"sandgate/store"
)

// Revive starts a sandbox that is meant to run, as Wake does, though nobody uses it. It
// does nothing if the sandbox runs, or was stopped, paused or removed in the meantime.
func (m *Manager) Revive(ctx context.Context, row store.Sandbox) error {
	err := m.revive(ctx, row)
	if errors.Is(err, ErrNoImage) {
		if err = m.pull(ctx, row, false, nil); err == nil {
			err = m.revive(ctx, row)
		}
	}
	return err
}

func (m *Manager) revive(ctx context.Context, row store.Sandbox) error {
	l := m.life(ID(row.ID))
	if err := l.take(ctx); err != nil {
		return err
	}
	defer l.give()
	if l.gone() || l.hasClient() {
		return nil
	}
	row, err := m.db.Sandbox(ctx, row.ID)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil || row.Desired != store.DesiredRunning {
		return err
	}
	lease, err := m.bringUp(ctx, row, l, nil)
	if err != nil {
		return err
	}
	lease.probe = true
	lease.Release()
	return nil
}

// hasClient says whether there is one, be the sandbox paused or not.
func (l *life) hasClient() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.connected()
}
