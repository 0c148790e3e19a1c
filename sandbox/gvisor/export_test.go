//go:build linux

package gvisor

import (
	"context"
	"log/slog"

	"sandgate/sandbox"
)

// OpenSaved is New on a host without usable kernel overlays.
func OpenSaved(cfg Config, log *slog.Logger) (*Driver, error) {
	best := modes()
	return open(cfg, log, best[min(1, len(best)-1):])
}

// Memory is how many bytes a sandbox that runs has in memory.
func (d *Driver) Memory(id sandbox.ID) int64 { return d.find(id).sentry().memory() }

// Save does at once what the driver does every few minutes.
func (d *Driver) Save(ctx context.Context, id sandbox.ID) error {
	return d.do("save", id, func(e *entry) error { return d.save(ctx, e) })
}
