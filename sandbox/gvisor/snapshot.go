//go:build linux

package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"sandgate/sandbox"
)

func (d *Driver) snapshotDir(id sandbox.ID) string {
	return filepath.Join(d.state, "snapshots", string(id))
}

// Snapshot implements sandbox.Snapshotter. What runs is paused for that, and goes on
// at once, where its disk does not have to be saved anyhow.
func (d *Driver) Snapshot(ctx context.Context, from, id sandbox.ID) (cut bool, err error) {
	err = d.do("snapshot", from, func(e *entry) error {
		if e.Saved {
			if e.running() {
				if err := d.save(ctx, e); err != nil {
					return err
				}
			}
			return d.keepSnapshot(e, id)
		}
		cut = e.running()
		return d.halted(ctx, e, func() error {
			if err := d.freeze(e); err != nil {
				return err
			}
			return d.keepSnapshot(e, id)
		})
	})
	return cut, err
}

// keepSnapshot remembers what the disk of a sandbox is now. The record comes last.
func (d *Driver) keepSnapshot(e *entry, id sandbox.ID) error {
	r := record{Spec: sandbox.Spec{ID: id}, Digest: e.Digest, Saved: e.Saved, Shared: e.Shared, Layers: slices.Clone(e.Layers)}
	d.mu.Lock()
	d.snapshots[id] = r
	d.mu.Unlock()
	dir := d.snapshotDir(id)
	err := os.MkdirAll(dir, 0o700)
	if save := e.lastSave(); err == nil && e.Saved && save != "" {
		err = linkAll(filepath.Join(e.dir, save), filepath.Join(dir, save))
	}
	if err == nil {
		err = r.write(dir)
	}
	if err != nil {
		return errors.Join(err, d.DropSnapshot(context.Background(), id))
	}
	return nil
}

// DropSnapshot implements sandbox.Snapshotter.
func (d *Driver) DropSnapshot(_ context.Context, id sandbox.ID) error {
	if _, err := sandbox.ParseID(string(id)); err != nil {
		return err
	}
	dir := d.snapshotDir(id)
	if err := os.Remove(filepath.Join(dir, recordName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	d.mu.Lock()
	delete(d.snapshots, id)
	d.mu.Unlock()
	return errors.Join(removeAll(dir), d.dropLayers(), d.collectImages())
}

// Snapshots implements sandbox.Snapshotter.
func (d *Driver) Snapshots(context.Context) ([]sandbox.ID, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var ids []sandbox.ID
	for id := range d.snapshots {
		ids = append(ids, id)
	}
	return ids, nil
}

// createFrom makes a sandbox that begins with a snapshot.
func (d *Driver) createFrom(spec sandbox.Spec) error {
	d.mu.Lock()
	r, ok := d.snapshots[spec.From]
	d.mu.Unlock()
	if !ok {
		return sandbox.ErrNoSnapshot
	}
	if r.Saved != d.saves(spec) || r.Shared != !d.host.overlay {
		return &sandbox.UnsupportedError{Reason: "the snapshot is of a disk of another kind: of two sandboxes one has a limit on its disk, or the gateway did not run as the same user"}
	}
	r.Layers = slices.Clone(r.Layers)
	return d.establish(spec, r, func(c *entry) error { return d.fill(c, d.snapshotDir(spec.From)) })
}

// findSnapshots reads the snapshots that there are, and clears away what a crash has
// left of others.
func (d *Driver) findSnapshots() error {
	dirs, err := os.ReadDir(filepath.Join(d.state, "snapshots"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		id, err := sandbox.ParseID(dir.Name())
		if err != nil {
			continue
		}
		r, err := readRecord(d.snapshotDir(id))
		if errors.Is(err, fs.ErrNotExist) {
			err = removeAll(d.snapshotDir(id))
		} else if err == nil {
			d.snapshots[id] = r
		}
		if err != nil {
			return fmt.Errorf("snapshot %s: %w", id, err)
		}
	}
	return nil
}
