package docker

import (
	"context"

	"sandgate/sandbox"
)

// Pause implements sandbox.Pauser with the engine's freezer: what is paused takes no
// processor time, and keeps its memory.
func (d *Driver) Pause(ctx context.Context, id sandbox.ID) error {
	return d.do("pause", id, func(e *entry) error {
		defer e.claim()()
		return d.pause(ctx, d.name(id))
	})
}

func (d *Driver) pause(ctx context.Context, name string) error {
	b, err := d.engine.inspect(ctx, name)
	if err != nil || b.paused {
		return err
	}
	if !b.running {
		return sandbox.ErrNotRunning
	}
	return d.engine.pause(ctx, name)
}
