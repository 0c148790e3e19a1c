package sandbox

import (
	"context"
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
