//go:build linux

package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandgate/sandbox"
)

// A paused sandbox is a folder pausedDir beside its disk, with its memory and its
// launch. How it comes and goes is such that a gateway which is killed in between
// leaves one thing and not two:
//
//	pausingDir    is being written; the sandbox stands still, or is about to, and
//	              runs on if it is not completed
//	pausedDir     is complete; the sandbox is paused, and whatever still runs of it
//	              is killed
//	resumingDir   is being read; if the sandbox runs it is not needed any more, and
//	              if not it is only used again if runsc has not even begun: what ran
//	              for a moment may have changed the disk
const (
	pausingDir  = "pausing"
	pausedDir   = "paused"
	resumingDir = "resuming"
)

// A launch is how a sandbox was started. Only the same can go on with its memory: the
// same program on the same files.
type launch struct {
	Program string // that was runsc and guest, see keepProgram
	Image   string // base.root of a sandbox with the image host; empty: another image

	Spec *specs.Spec
	Args []string // of runsc, before its command
}

const launchName = "launch.json"

// write puts the launch into the folder dir.
func (l *launch) write(dir string) error {
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, launchName), text, 0o600)
}

// readLaunch returns the launch in dir, or nil if there is none that can be read.
func readLaunch(dir string) *launch {
	text, err := os.ReadFile(filepath.Join(dir, launchName))
	if err != nil {
		return nil
	}
	var l launch
	if json.Unmarshal(text, &l) != nil || l.Spec == nil {
		return nil
	}
	return &l
}

// Pause implements sandbox.Pauser.
func (d *Driver) Pause(ctx context.Context, id sandbox.ID) error {
	return d.do("pause", id, func(e *entry) error {
		if e.isPaused() {
			return nil
		}
		return d.pause(ctx, e)
	})
}

func (d *Driver) pause(ctx context.Context, e *entry) error {
	sentry := e.sentry()
	if sentry == nil {
		return sandbox.ErrNotRunning
	}
	if e.launch == nil {
		return errors.New("it was started by a gateway that could not pause it; stop it and start it once")
	}
	fresh := filepath.Join(e.dir, pausingDir)
	if err := removeAll(fresh); err != nil {
		return err
	}
	if !e.hasRoom(sentry.memory()) {
		return errNoRoom
	}
	// Before anything happens, so that it can be undone.
	if err := os.Mkdir(fresh, 0o700); err != nil {
		return err
	}
	// Stands still first, so that memory and disk are of the same moment.
	err := d.onStage(ctx, e, "pause")
	if err == nil {
		err = d.save(ctx, e)
	}
	if err == nil {
		err = d.checkpoint(ctx, e, fresh)
	}
	if err != nil {
		return errors.Join(e.noRoom(err), removeAll(fresh), d.goOn(e))
	}
	e.setPaused(true)
	return d.sweep(e)
}

// What a pause leaves of the disk's room to the others, and as little room as a disk has
// on which nothing can be written.
const (
	spareRoom = 64 << 20
	fullDisk  = 1 << 20
)

var errNoRoom = &sandbox.UnsupportedError{Reason: "the sandbox runs on: the gateway's disk has no room for what it has in memory"}

// hasRoom says whether that many bytes of memory can be put on the disk. It is asked
// before anything is written, as a full disk is everybody's trouble, and before the
// sandbox stands still, which cuts its connections.
func (e *entry) hasRoom(memory int64) bool {
	free, err := e.room()
	return err != nil || memory+spareRoom <= free
}

// noRoom is the error of a pause, or a sentence if it is that the disk is full, which
// runsc says in some hundred lines.
func (e *entry) noRoom(err error) error {
	if free, statErr := e.room(); statErr == nil && free < fullDisk {
		return errNoRoom
	}
	return err
}

// room returns how many bytes can be written to the disk with the sandbox's folder.
func (e *entry) room() (int64, error) {
	var disk unix.Statfs_t
	err := unix.Statfs(e.dir, &disk)
	return int64(disk.Bavail) * disk.Bsize, err
}

// checkpoint writes all that a sandbox which stands still has in memory into the
// folder fresh, and makes that its pausedDir. Without --leave-running a failure would
// end the sandbox.
func (d *Driver) checkpoint(ctx context.Context, e *entry, fresh string) error {
	err := d.runsc(ctx, e, saveTimeout, "checkpoint", "--leave-running", "--compression=none",
		"--exclude-committed-zero-pages", "--image-path="+fresh, string(e.Spec.ID))
	if err != nil {
		return fmt.Errorf("write memory to the disk: %w", err)
	}
	if err := e.launch.write(fresh); err != nil {
		return err
	}
	if err := syncFilesystem(fresh); err != nil {
		return err
	}
	return errors.Join(os.Rename(fresh, filepath.Join(e.dir, pausedDir)), syncFolder(e.dir))
}

// goOn makes a sandbox run again that stands still. Its guest dials again, as its
// connection may have been cut.
func (d *Driver) goOn(e *entry) error {
	ctx := context.Background()
	return errors.Join(d.onStage(ctx, e, "resume"), d.runsc(ctx, e, callTimeout, "kill", string(e.Spec.ID), "USR1"))
}

// onStage runs a command of runsc that changes what runsc has written about the
// sandbox, which it looks for where that was.
func (d *Driver) onStage(ctx context.Context, e *entry, command string) error {
	p := plan{
		Mount: e.run,
		Binds: []bind{
			{Source: "/proc", Target: "/proc"},
			{Source: "/dev", Target: "/dev"},
			{Source: filepath.Dir(e.launch.Program), Target: stageGuest, ReadOnly: true},
			{Source: e.runsc(), Target: stageRunsc},
		},
		Args:   []string{"--root=" + stageRunsc, command, string(e.Spec.ID)},
		Pinned: e.launch.Program != d.program,
	}
	if err := d.runStage(ctx, e, p, nil); err != nil {
		return fmt.Errorf("runsc %s: %w", command, err)
	}
	return nil
}

// resume starts a paused sandbox where it was paused. If that fails it is stopped,
// and the error is a *sandbox.LostError.
func (d *Driver) resume(ctx context.Context, e *entry) error {
	reading := filepath.Join(e.dir, resumingDir)
	if err := errors.Join(d.sweep(e), os.MkdirAll(e.runsc(), 0o700)); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(e.dir, pausedDir), reading); err != nil {
		return err
	}
	e.setPaused(false)
	began := readLaunch(reading)
	err := d.fits(began)
	if err == nil {
		// Whoever has asked may give up: what runs in it must not be lost for that.
		err = d.start(context.WithoutCancel(ctx), e, began)
	}
	if err != nil {
		err = errors.Join(d.clear(e), d.lost(e, err))
	}
	return errors.Join(err, removeAll(reading))
}

// fits says whether a sandbox that was started like that can go on here.
func (d *Driver) fits(l *launch) error {
	if l == nil {
		return errors.New("the record of how it was started is missing")
	}
	if _, err := os.Stat(l.Program); err != nil {
		return errors.New("the version of sandgate that it was started with is not there any more")
	}
	if _, err := os.Stat(l.Image); l.Image != "" && err != nil {
		return errors.New("the copy of the host's /etc that it was started with is not there any more")
	}
	return nil
}

// lost returns why what ran in a sandbox is lost, and has the sandbox's notes say so
// until it is stopped.
func (d *Driver) lost(e *entry, err error) error {
	lost := &sandbox.LostError{Reason: oneLine(err)}
	d.log.Warn("paused sandbox not resumed", "sandbox", e.Spec.ID, "err", err)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.loss = lost.Reason
	return lost
}

// recall finds out, after a start of the gateway, what a sandbox is that an earlier
// one may have been about to pause or to resume.
func (d *Driver) recall(e *entry) error {
	pausing, resuming := filepath.Join(e.dir, pausingDir), filepath.Join(e.dir, resumingDir)
	there := func(dir string) bool {
		_, err := os.Stat(dir)
		return err == nil
	}
	if there(pausing) || there(resuming) {
		d.awaitCommands(e.Spec.ID)
	}
	if there(filepath.Join(e.dir, pausedDir)) {
		e.setPaused(true)
		e.hold(d.processes(e))
		return errors.Join(removeAll(pausing), d.clear(e))
	}
	e.launch = readLaunch(e.run)
	running := e.hold(d.processes(e))
	if there(resuming) && !running && e.untouched() {
		if err := os.Rename(resuming, filepath.Join(e.dir, pausedDir)); err != nil {
			return err
		}
		e.setPaused(true)
		return nil
	}
	if there(resuming) && !running {
		err := d.lost(e, errors.New("the gateway ended while it was about to go on"))
		d.log.Debug("as it is found", "sandbox", e.Spec.ID, "err", err)
	}
	if there(pausing) && running && e.launch != nil {
		if err := d.goOn(e); err != nil {
			d.log.Debug("sandbox that was to be paused", "sandbox", e.Spec.ID, "err", err) // it runs
		}
	}
	return errors.Join(removeAll(pausing), removeAll(resuming))
}

// untouched says that runsc has done nothing for the sandbox since the host is up and
// its folder was made.
func (e *entry) untouched() bool {
	files, err := os.ReadDir(e.runsc())
	return err == nil && len(files) == 0
}

// awaitCommands waits for what an earlier gateway has asked runsc to do to a sandbox.
func (d *Driver) awaitCommands(id sandbox.ID) {
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		all, err := allProcesses()
		if err != nil || !slices.ContainsFunc(all, func(p named) bool {
			return p.id == id && (p.name == runscName || p.name == stageName || p.name == pinnedName)
		}) {
			return
		}
	}
}

// clear kills whatever there is of a sandbox.
func (d *Driver) clear(e *entry) error {
	stray := func(other sandbox.ID) bool { return other == e.Spec.ID }
	return errors.Join(d.killStrays(stray), d.sweep(e))
}

// forgetMemory drops what a paused sandbox had in memory.
func (e *entry) forgetMemory() error {
	e.setPaused(false)
	// Renamed first: half of it must not be taken for a whole.
	paused, gone := filepath.Join(e.dir, pausedDir), filepath.Join(e.dir, pausingDir)
	if err := os.Rename(paused, gone); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return removeAll(gone)
}

// setPaused says whether the sandbox is paused.
func (e *entry) setPaused(paused bool) {
	var size int64
	if paused {
		size = sizeOf(filepath.Join(e.dir, pausedDir))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.paused, e.image, e.loss = paused, size, ""
}

func (e *entry) isPaused() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.paused
}

// sizeOf returns the bytes that the files in dir take on the disk.
func sizeOf(dir string) (size int64) {
	files, _ := os.ReadDir(dir)
	for _, f := range files {
		var st unix.Stat_t
		if unix.Lstat(filepath.Join(dir, f.Name()), &st) == nil {
			size += st.Blocks * 512
		}
	}
	return size
}

// syncFolder waits until the names in dir are on the disk.
func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// inUse returns the programs and images that sandboxes run with, or were paused with.
// all is false if that is not known of one that runs.
func (d *Driver) inUse() (paths map[string]bool, all bool) {
	paths, all = map[string]bool{filepath.Dir(d.program): true, d.image: true}, true
	for _, e := range d.all() {
		began := e.launch
		if e.isPaused() {
			began = readLaunch(filepath.Join(e.dir, pausedDir))
		} else if !e.running() {
			continue
		}
		if began == nil {
			all = all && !e.running()
			continue
		}
		paths[filepath.Dir(began.Program)] = true
		paths[began.Image] = true
	}
	return paths, all
}
