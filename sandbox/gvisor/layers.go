//go:build linux

package gvisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"sandgate/sandbox"
)

// A layer is what one sandbox has once written to its disk, and what others begin
// with: it lies under their own writable folders and never changes again. So a copy of
// a disk costs nothing, whatever is on it.
type layer struct {
	ID    sandbox.ID // a folder with rootDir and upperDir
	Shift int        // the host's user id of the root that it was written by
}

// maxLayers bounds those of one sandbox. The kernel would take a few hundred.
const maxLayers = 60

func (d *Driver) layersDir() string { return filepath.Join(d.state, "layers") }

func (d *Driver) layerDir(id sandbox.ID) string { return filepath.Join(d.layersDir(), string(id)) }

// freeze makes a layer of what a sandbox which does not run has written, and gives it
// fresh folders to write to over that. A crash of the gateway on the way is made good
// by settle. The caller holds op.
func (d *Driver) freeze(e *entry) error {
	if len(e.Layers) >= maxLayers {
		return &sandbox.UnsupportedError{Reason: fmt.Sprintf("its disk was copied %d times, which is the most; copy its files to a new sandbox instead", maxLayers)}
	}
	if err := e.change(func(r *record) { r.Freezing = sandbox.NewID() }); err != nil {
		return err
	}
	return d.settle(e)
}

// settle does what is left of a freeze. All of it may have been done before.
func (d *Driver) settle(e *entry) error {
	if e.Freezing == "" {
		return nil
	}
	frozen := layer{ID: e.Freezing, Shift: e.shift()}
	dir := d.layerDir(frozen.ID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, part := range []string{rootDir, upperDir} {
		to := filepath.Join(dir, part)
		if _, err := os.Lstat(to); err == nil {
			continue // what there is in its place by now is fresh
		}
		if err := os.Rename(filepath.Join(e.dir, part), to); err != nil {
			return err
		}
	}
	if err := errors.Join(syncFolder(dir), syncFolder(e.dir), removeAll(filepath.Join(e.dir, workDir))); err != nil {
		return err
	}
	b, err := d.base(e.record)
	if err != nil {
		return err
	}
	above := slices.Insert(slices.Clone(e.Layers), 0, frozen)
	if err := e.makeFolders(b, d, above); err != nil {
		return err
	}
	return e.change(func(r *record) { r.Layers, r.Freezing = above, "" })
}

// change changes what is remembered of a sandbox, or nothing if that fails.
func (e *entry) change(to func(*record)) error {
	e.mu.Lock()
	before := e.record
	to(&e.record)
	e.mu.Unlock()
	err := e.writeRecord()
	if err != nil {
		e.mu.Lock()
		e.record = before
		e.mu.Unlock()
	}
	return err
}

// makeFolders makes the folders that a sandbox writes to over layers. They look as
// what they cover.
func (e *entry) makeFolders(b base, d *Driver, over []layer) error {
	root, upper, work := filepath.Join(e.dir, rootDir), filepath.Join(e.dir, upperDir), filepath.Join(e.dir, workDir)
	top := d.layerDir(over[0].ID)
	shift := e.shift() - over[0].Shift
	if err := os.MkdirAll(filepath.Join(work, rootDir), 0o755); err != nil {
		return err
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	if err := imitate(filepath.Join(top, rootDir), root, ".", shift); err != nil {
		return err
	}
	for _, dir := range b.folders {
		for _, in := range []string{upper, work} {
			if err := os.MkdirAll(filepath.Join(in, dir), 0o755); err != nil {
				return err
			}
		}
		if err := os.Lchown(filepath.Join(upper, dir), e.shift(), e.shift()); err != nil {
			return err
		}
		err := imitate(filepath.Join(top, upperDir), upper, dir, shift)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // the host has it only since then
			return err
		}
	}
	return os.MkdirAll(upper, 0o755)
}

// below returns the folders of layers under a part of a disk, the topmost first.
func (d *Driver) below(layers []layer, part string) []lower {
	var found []lower
	for _, l := range layers {
		dir := filepath.Join(d.layerDir(l.ID), part)
		if info, err := os.Lstat(dir); err == nil && info.IsDir() {
			found = append(found, lower{Source: dir, Shift: l.Shift})
		}
	}
	return found
}

// dropLayers removes the layers that nothing is made of. Nothing new is made of
// a layer but by those who have it.
func (d *Driver) dropLayers() error {
	dirs, err := os.ReadDir(d.layersDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	used := make(map[string]bool)
	use := func(r record) {
		used[string(r.Freezing)] = true
		for _, l := range r.Layers {
			used[string(l.ID)] = true
		}
	}
	for _, e := range d.entries {
		use(e.remembered())
	}
	for _, r := range d.snapshots {
		use(r)
	}
	var errs []error
	for _, dir := range dirs {
		if !used[dir.Name()] {
			errs = append(errs, removeAll(filepath.Join(d.layersDir(), dir.Name())))
		}
	}
	return errors.Join(errs...)
}
