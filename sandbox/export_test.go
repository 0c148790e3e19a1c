package sandbox

import (
	"context"
	"errors"
	"time"
)

// Waiting returns how many callers wait for the image of a driver.
func (m *Manager) Waiting(driver, image string) int {
	m.pulls.mu.Lock()
	defer m.pulls.mu.Unlock()
	if p := m.pulls.byID[pullID{driver: driver, image: image}]; p != nil {
		return p.waiting
	}
	return 0
}

// Reap does at once, and as if it were now, what the manager does every few seconds.
func (m *Manager) Reap(ctx context.Context, now time.Time) error { return m.reap(ctx, now) }

// SetClock has sandboxes charged by another clock than the host's. It is to be called
// before Adopt.
func (m *Manager) SetClock(now func() time.Time) { m.now = now }

// Beat does at once what the manager does every few seconds for the ledger.
func (m *Manager) Beat(ctx context.Context) error {
	return errors.Join(m.charge(ctx), m.enforce(ctx))
}
