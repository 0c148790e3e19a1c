//go:build linux

package gvisor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandgate/sandbox"
)

// Fork implements sandbox.Forker. What runs is paused for that, and goes on at once.
func (d *Driver) Fork(ctx context.Context, from sandbox.ID, spec sandbox.Spec) (memory bool, err error) {
	if _, err := sandbox.ParseID(string(spec.ID)); err != nil {
		return false, err
	}
	err = d.do("fork", from, func(e *entry) error {
		return d.halted(ctx, e, func() error {
			if !e.Saved {
				if err := d.freeze(e); err != nil {
					return err
				}
			}
			memory = e.isPaused()
			return d.clone(e, spec, memory)
		})
	})
	return memory, err
}

// halted does something with the disk of a sandbox that does not run meanwhile: one
// that runs is paused and goes on afterwards.
func (d *Driver) halted(ctx context.Context, e *entry, do func() error) error {
	if !e.running() {
		return do()
	}
	if err := d.pause(ctx, e); err != nil {
		return err
	}
	err := do()
	return errors.Join(err, d.resume(context.WithoutCancel(ctx), e))
}

// clone makes a sandbox of the disk of another one, and, with memory, of what that has
// in memory, being paused.
func (d *Driver) clone(e *entry, spec sandbox.Spec, memory bool) error {
	r := record{Digest: e.Digest, Saved: e.Saved, Shared: e.Shared, Layers: slices.Clone(e.Layers)}
	return d.establish(spec, r, func(c *entry) error {
		err := d.fill(c, e.dir)
		if err == nil && memory {
			err = c.copyMemory(e)
		}
		return err
	})
}

// fill makes the folder of a sandbox that begins with a disk: the layers that its
// record has, or what is saved in the folder from.
func (d *Driver) fill(c *entry, from string) error {
	b, err := d.base(c.record)
	if err != nil {
		return err
	}
	if len(c.Layers) == 0 {
		if err := c.makeDisk(b); err != nil {
			return err
		}
		save := lastSaveIn(from)
		if save == "" {
			return nil
		}
		return linkAll(filepath.Join(from, save), filepath.Join(c.dir, save))
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return err
	}
	if err := c.makeFolders(b, d, c.Layers); err != nil {
		return err
	}
	return c.nameAnew(d)
}

// nameAnew gives a sandbox that begins with the disk of another one its own name,
// where that had a folder for it.
func (c *entry) nameAnew(d *Driver) error {
	top := c.Layers[0]
	if info, err := os.Lstat(filepath.Join(d.layerDir(top.ID), rootDir, "etc")); err != nil || !info.IsDir() {
		return nil
	}
	root := filepath.Join(c.dir, rootDir)
	etc := filepath.Join(root, "etc")
	if err := os.Mkdir(etc, 0o755); err != nil {
		return err
	}
	for _, n := range nameFiles(c.Spec.Hostname, c.Spec.Network) {
		if err := n.write(root); err != nil {
			return err
		}
	}
	if err := own(etc, c.shift()); err != nil {
		return err
	}
	return imitate(filepath.Join(d.layerDir(top.ID), rootDir), root, "etc", c.shift()-top.Shift)
}

// copyMemory makes a sandbox a paused one with the memory of another, which is. It
// differs from that in what the host sees of it.
func (c *entry) copyMemory(e *entry) error {
	from, to := filepath.Join(e.dir, pausedDir), filepath.Join(c.dir, pausedDir)
	began := readLaunch(from)
	if began == nil {
		return errors.New("the record of how it was started is missing")
	}
	if err := linkAll(from, to); err != nil {
		return err
	}
	// Linked files are both sandboxes': this one is replaced.
	if err := os.Remove(filepath.Join(to, launchName)); err != nil {
		return err
	}
	began.Spec.Hostname = c.Spec.Hostname
	began.Spec.Linux.CgroupsPath = filepath.Join(filepath.Dir(began.Spec.Linux.CgroupsPath), string(c.Spec.ID))
	if shift := c.shift(); shift > 0 {
		ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: uint32(shift), Size: idsPerSandbox}}
		began.Spec.Linux.UIDMappings, began.Spec.Linux.GIDMappings = ids, ids
	}
	// runsc would object to the change of the last.
	const lenient = "--restore-spec-validation=ignore"
	if !slices.Contains(began.Args, lenient) {
		began.Args = append(began.Args, lenient)
	}
	if err := began.write(to); err != nil {
		return err
	}
	c.setPaused(true)
	return errors.Join(syncFilesystem(c.dir), syncFolder(to))
}

// linkAll makes the folder to, with the files of the folder from.
func linkAll(from, to string) error {
	files, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	for _, f := range files {
		if err := os.Link(filepath.Join(from, f.Name()), filepath.Join(to, f.Name())); err != nil {
			return err
		}
	}
	return nil
}
