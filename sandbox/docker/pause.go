package docker

import (
	"context"
	"errors"
	"fmt"

	"sandgate/sandbox"
)

// Pause implements sandbox.Pauser with the engine's freezer: what is paused takes no
// processor time, and keeps its memory.
func (d *Driver) Pause(ctx context.Context, id sandbox.ID) error {
	e := d.find(id)
	if e == nil {
		return sandbox.ErrNotFound
	}
	e.op.Lock()
	defer e.op.Unlock()
	defer e.claim()()
	err := d.pause(ctx, d.name(id))
	if errors.Is(err, sandbox.ErrNotFound) {
		return errors.Join(sandbox.ErrNotFound, d.leave(id))
	}
	if err != nil {
		return fmt.Errorf("pause sandbox %s: %w", id, err)
	}
	return nil
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
