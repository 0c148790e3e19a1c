package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"sandgate/sandbox"
	"sandgate/sandbox/guest"
)

// A snapshot is an image of this gateway's, whose tag is the snapshot's id. A sandbox
// that begins with one has a tag of its own on it, so that the snapshot can be dropped.

func (d *Driver) snapshotRepository() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return "sandgate-" + d.instance
}

func (d *Driver) snapshotImage(id sandbox.ID) string {
	return d.snapshotRepository() + ":" + string(id)
}

// Snapshot implements sandbox.Snapshotter. What runs stands still meanwhile.
func (d *Driver) Snapshot(ctx context.Context, from, id sandbox.ID) (cut bool, err error) {
	if _, err := sandbox.ParseID(string(id)); err != nil {
		return false, err
	}
	return false, d.do("snapshot", from, func(e *entry) error {
		defer e.claim()()
		return d.engine.commit(ctx, d.name(from), d.snapshotImage(id))
	})
}

// DropSnapshot implements sandbox.Snapshotter.
func (d *Driver) DropSnapshot(ctx context.Context, id sandbox.ID) error {
	select {
	case <-d.used:
	default:
		return nil // nothing was ever made
	}
	if err := d.engine.removeImage(ctx, d.snapshotImage(id)); err != nil {
		return fmt.Errorf("drop snapshot %s: %w", id, err)
	}
	return nil
}

// Snapshots implements sandbox.Snapshotter.
func (d *Driver) Snapshots(ctx context.Context) ([]sandbox.ID, error) {
	select {
	case <-d.used:
	default:
		return nil, nil // nothing was ever made
	}
	tags, err := d.engine.tags(ctx, d.snapshotRepository())
	if err != nil {
		return nil, err
	}
	var ids []sandbox.ID
	for _, tag := range tags {
		if id, err := sandbox.ParseID(tag); err == nil {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// image returns what a sandbox is to be made of: its image, or its own tag on the
// snapshot that it begins with.
func (d *Driver) image(ctx context.Context, spec sandbox.Spec) (ref string, c imageConfig, err error) {
	if spec.From == "" {
		c, err = d.engine.image(ctx, spec.Image)
		if errors.Is(err, errNoImage) {
			err = sandbox.ErrNoImage
		}
		return spec.Image, c, err
	}
	ref = d.snapshotImage(spec.ID)
	if err = d.engine.tag(ctx, d.snapshotImage(spec.From), ref); err == nil {
		c, err = d.engine.image(ctx, ref)
	}
	if errors.Is(err, errNoImage) {
		err = sandbox.ErrNoSnapshot
	}
	return ref, c.inner(), err
}

// removeOwnImage takes back what image has done for a sandbox that could not be made.
func (d *Driver) removeOwnImage(ctx context.Context, spec sandbox.Spec) error {
	if spec.From == "" {
		return nil
	}
	return d.engine.removeImage(ctx, d.snapshotImage(spec.ID))
}

// inner returns what the image had that a committed sandbox was made of: the sandbox
// had that in its settings.
func (c imageConfig) inner() imageConfig {
	for _, kv := range c.env {
		text, ok := strings.CutPrefix(kv, guest.SettingsVariable+"=")
		var s guest.Settings
		if ok && json.Unmarshal([]byte(text), &s) == nil {
			return imageConfig{env: s.Env, user: s.User, dir: s.Dir}
		}
	}
	return c
}
