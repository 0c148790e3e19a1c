//go:build linux

package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// What is in a sandbox's folder, beside its record.
const (
	rootDir  = "root"  // what it wrote to its root folder
	upperDir = "upper" // what it wrote over the host's programs
	workDir  = "work"  // the kernel's, to go with the others

	savePrefix = "save-"  // a saved disk; the last in order counts
	savingDir  = "saving" // one that is not complete
)

// makeDisk makes the sandbox's folder, with a disk that is new but for the
// sandbox's name.
func (e *entry) makeDisk(b base) error {
	root, upper, work := filepath.Join(e.dir, rootDir), filepath.Join(e.dir, upperDir), filepath.Join(e.dir, workDir)
	dirs := []string{filepath.Join(root, "etc"), upper}
	if !e.Saved {
		dirs = append(dirs, filepath.Join(work, rootDir))
		for _, dir := range b.folders {
			dirs = append(dirs, filepath.Join(upper, dir), filepath.Join(work, dir))
		}
	}
	if err := os.MkdirAll(e.dir, 0o700); err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	for _, n := range nameFiles(e.Spec.Hostname, e.Spec.Network) {
		if err := n.write(root); err != nil {
			return err
		}
	}
	if e.Saved {
		return nil
	}
	if err := errors.Join(own(root, e.shift()), own(upper, e.shift())); err != nil {
		return err
	}
	return errors.Join(imitate(b.root, root, ".", e.shift()), imitate(b.root, root, "etc", e.shift()))
}

// lastSave returns the name of the folder with the disk as it was last saved, or
// "" if it never was.
func (e *entry) lastSave() string { return lastSaveIn(e.dir) }

func lastSaveIn(dir string) string {
	last := ""
	files, _ := os.ReadDir(dir) // in order
	for _, f := range files {
		if strings.HasPrefix(f.Name(), savePrefix) {
			last = f.Name()
		}
	}
	return last
}

// saveOften saves the disks of running sandboxes every now and then.
func (d *Driver) saveOften() {
	tick := time.NewTicker(saveEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-d.closing.Done():
			return
		}
		for _, e := range d.all() {
			e.op.Lock()
			if e.running() {
				if err := d.save(d.closing, e); err != nil {
					d.log.Error("disk not saved", "sandbox", e.Spec.ID, "err", err)
				}
			}
			e.op.Unlock()
		}
	}
}

// save saves the disk of a running sandbox if that is needed. The sandbox stands
// still meanwhile. If it fails, the last one that was saved remains.
func (d *Driver) save(ctx context.Context, e *entry) error {
	if !e.Saved {
		return nil
	}
	if err := d.saveDisk(ctx, e); err != nil {
		return fmt.Errorf("save disk: %w", err)
	}
	return nil
}

func (d *Driver) saveDisk(ctx context.Context, e *entry) error {
	saving := filepath.Join(e.dir, savingDir)
	if err := os.RemoveAll(saving); err != nil {
		return err
	}
	err := d.runsc(ctx, e, saveTimeout, "fscheckpoint", "--leave-running", "--image-path="+saving, string(e.Spec.ID))
	if err != nil {
		return err
	}
	if err := syncFilesystem(saving); err != nil {
		return err
	}
	last := e.lastSave()
	next := fmt.Sprintf("%s%020d", savePrefix, saveNumber(last)+1)
	if err := os.Rename(saving, filepath.Join(e.dir, next)); err != nil {
		return err
	}
	if last == "" {
		return nil
	}
	return os.RemoveAll(filepath.Join(e.dir, last))
}

func saveNumber(name string) (n int64) {
	fmt.Sscanf(strings.TrimPrefix(name, savePrefix), "%d", &n)
	return n
}

// removeAll is os.RemoveAll, also for folders that forbid it to their owner.
func removeAll(path string) error {
	if err := os.RemoveAll(path); !errors.Is(err, os.ErrPermission) {
		return err
	}
	filepath.WalkDir(path, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			os.Chmod(path, 0o700)
		}
		return nil
	})
	return os.RemoveAll(path)
}

// own gives everything in dir, whatever our umask made of it, to a sandbox whose
// root is shift.
func own(dir string, shift int) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			err = os.Chmod(path, 0o755)
		}
		if err != nil {
			return err
		}
		return os.Lchown(path, shift, shift)
	})
}

// syncFilesystem waits until all on the file system of dir is on the disk.
func syncFilesystem(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}
