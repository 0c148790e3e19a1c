//go:build linux

package gvisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandgate/sandbox"
	"sandgate/sandbox/guest"
	"sandgate/sandbox/image"
)

// How long things may take.
const (
	startTimeout = 30 * time.Second // runsc, to start a sandbox
	callTimeout  = 15 * time.Second // any other call of runsc
	saveTimeout  = 2 * time.Minute  // to save a disk
	stopTimeout  = 7 * time.Second  // the guest, to end its children and itself
	killTimeout  = 10 * time.Second // the host's kernel, to end a killed process
)

// saveEvery is how often the disks of running sandboxes are saved that would
// otherwise be lost with the host.
const saveEvery = 3 * time.Minute

// Each sandbox with users of its own has this many, counted from idsBase. The
// range is far above what hosts and other container engines hand out.
const (
	idsPerSandbox = 1 << 16
	idsBase       = 2_000_000_000
	slots         = (1<<32 - 1 - idsBase) / idsPerSandbox
)

// guestDir is the folder of guest.Executable.
var guestDir = filepath.Dir(guest.Executable)

// A Driver is a sandbox.Driver. While it is open it takes over orphaned
// descendants of this process, of which it reaps only its own.
type Driver struct {
	log     *slog.Logger
	state   string
	run     string
	program string // our own, see keepProgram
	image   string // see keepImage
	images  *image.Store
	host    host
	lock    *os.File // held on the state folder

	closing context.Context
	close   context.CancelFunc
	wg      sync.WaitGroup

	mu        sync.Mutex
	entries   map[sandbox.ID]*entry
	snapshots map[sandbox.ID]record
	report    func(sandbox.Event) // nil: nobody watches
}

// New opens the driver and finds the sandboxes that are there. It says at once
// if this host cannot run any.
func New(cfg Config, log *slog.Logger) (*Driver, error) {
	return open(cfg, log, modes())
}

// open opens the driver in the first of the modes that works.
func open(cfg Config, log *slog.Logger, modes []mode) (*Driver, error) {
	d := &Driver{log: log, entries: make(map[sandbox.ID]*entry), snapshots: make(map[sandbox.ID]record)}
	d.closing, d.close = context.WithCancel(context.Background())
	if err := d.open(cfg, modes); err != nil {
		d.Close()
		return nil, fmt.Errorf("gvisor: %w", err)
	}
	return d, nil
}

func (d *Driver) open(cfg Config, modes []mode) (err error) {
	if d.state, err = filepath.Abs(cfg.State); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(d.state, "sandboxes"), 0o700); err != nil {
		return err
	}
	if d.lock, err = sandbox.LockFolder(d.state); err != nil {
		return err
	}
	if d.run, err = runFolder(cfg.Run, d.state); err != nil {
		return err
	}
	if d.program, err = keepProgram(filepath.Join(d.state, "guest"), cfg.Executable); err != nil {
		return err
	}
	image, err := hostImage()
	if err != nil {
		return err
	}
	if d.image, err = keepImage(filepath.Join(d.state, "image"), image); err != nil {
		return err
	}
	if d.host, err = d.inspect(modes); err != nil {
		return err
	}
	if err := d.openImages(cfg.MaxImage); err != nil {
		return err
	}
	// The sentry and the gofer lose their parent, runsc, as soon as they run.
	// Init may be slow to reap them or, in a container, may not do so at all.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("adopt orphans: %w", err)
	}
	if err := errors.Join(d.findSnapshots(), d.adopt()); err != nil {
		return err
	}
	if err := errors.Join(d.dropUnused(), d.dropLayers(), d.collectImages()); err != nil {
		return err
	}
	d.wg.Go(d.saveOften)
	return nil
}

// Create implements sandbox.Driver. The record is written last: a folder without
// one is what a crash left behind.
func (d *Driver) Create(ctx context.Context, spec sandbox.Spec) error {
	if err := d.create(spec); err != nil {
		return fmt.Errorf("create sandbox %s: %w", spec.ID, err)
	}
	return nil
}

func (d *Driver) create(spec sandbox.Spec) error {
	if _, err := sandbox.ParseID(string(spec.ID)); err != nil {
		return err
	}
	if spec.From != "" {
		return d.createFrom(spec)
	}
	digest := ""
	if spec.Image != sandbox.ImageHost {
		img, release, err := d.images.Find(spec.Image)
		if err != nil {
			return err
		}
		defer release()
		digest = img.Digest
	}
	r := record{Digest: digest, Saved: d.saves(spec), Shared: !d.host.overlay}
	return d.establish(spec, r, func(e *entry) error {
		b, err := d.base(e.record)
		if err != nil {
			return err
		}
		return e.makeDisk(b)
	})
}

// saves says whether the disk of a sandbox has to be saved.
func (d *Driver) saves(spec sandbox.Spec) bool { return !d.host.overlay || spec.Limits.Disk > 0 }

// establish makes a sandbox with what fill puts into its folder. It is none before its
// record is there, which comes last.
func (d *Driver) establish(spec sandbox.Spec, r record, fill func(*entry) error) error {
	e, err := d.reserve(spec, r)
	if e == nil || err != nil {
		return err
	}
	if err = removeAll(e.dir); err == nil {
		err = fill(e)
	}
	if err == nil {
		err = e.writeRecord()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		delete(d.entries, spec.ID)
		return errors.Join(err, removeAll(e.dir))
	}
	e.made = true
	return nil
}

// Update implements sandbox.Updater.
func (d *Driver) Update(ctx context.Context, spec sandbox.Spec) error {
	return d.do("update", spec.ID, func(e *entry) error {
		if slices.Equal(e.Spec.Env, spec.Env) && e.Spec.Limits == spec.Limits {
			return nil
		}
		e.mu.Lock()
		e.Spec.Env, e.Spec.Limits = spec.Env, spec.Limits
		e.mu.Unlock()
		return e.writeRecord()
	})
}

// reserve enters a new sandbox into the driver's books, with users of its own.
// It returns nil if the sandbox is there already.
func (d *Driver) reserve(spec sandbox.Spec, r record) (*entry, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e := d.entries[spec.ID]; e != nil {
		return nil, nil
	}
	r.Spec = spec
	if d.host.overlay {
		used := make(map[int]bool)
		for _, e := range d.entries {
			used[e.Slot] = true
		}
		for used[r.Slot] {
			r.Slot++
		}
		if r.Slot >= slots {
			return nil, errors.New("no user ids are left")
		}
	}
	e := d.newEntry(r)
	d.entries[spec.ID] = e
	return e, nil
}

// Start implements sandbox.Driver.
func (d *Driver) Start(ctx context.Context, id sandbox.ID) error {
	return d.do("start", id, func(e *entry) error {
		switch {
		case e.running():
			return nil
		case e.isPaused():
			return d.resume(ctx, e)
		}
		if err := d.start(ctx, e, nil); err != nil {
			return errors.Join(err, d.clear(e))
		}
		return nil
	})
}

// start runs a sandbox, or makes it go on with what is in its resumingDir, if began
// says how that was started.
func (d *Driver) start(ctx context.Context, e *entry, began *launch) error {
	if err := errors.Join(d.sweep(e), d.settle(e)); err != nil {
		return err
	}
	if err := e.socket.Open(); err != nil {
		return err
	}
	if err := os.Mkdir(e.runsc(), 0o700); err != nil {
		return err
	}
	b, err := d.base(e.record)
	if err != nil {
		return err
	}
	cable, err := d.startNetwork(e)
	if err != nil {
		return err
	}
	if cable != nil {
		defer cable.Close()
	}
	p := d.plan(e, b)
	if began != nil {
		p = d.planResume(e, b, began)
	}
	if err := d.runStage(ctx, e, p, cable); err != nil {
		return err
	}
	if !e.hold(d.processes(e)) {
		return errors.New("it ended at once")
	}
	d.noteStarved(e, false)
	if e.nat != nil {
		return d.host.groups.join(e.Spec.ID, e.nat.pid)
	}
	return nil
}

// Stop implements sandbox.Driver. If ctx ends early, what still runs then is
// killed instead of waited for. If the disk has to be saved and cannot be, the
// sandbox goes on running.
func (d *Driver) Stop(ctx context.Context, id sandbox.ID) error {
	return d.do("stop", id, func(e *entry) error {
		if e.isPaused() {
			return e.forgetMemory()
		}
		return d.stop(ctx, e)
	})
}

func (d *Driver) stop(ctx context.Context, e *entry) error {
	if sentry := e.sentry(); sentry != nil {
		// Saved first, since once the guest has ended there is nothing to save.
		if err := d.save(context.WithoutCancel(ctx), e); err != nil && !sentry.ended() {
			return err
		}
		if !sentry.doomed() {
			sentry.ours.Store(true)
		}
		if err := d.runsc(ctx, e, callTimeout, "kill", string(e.Spec.ID), "TERM"); err == nil {
			sentry.await(ctx, stopTimeout)
		} else if !sentry.ended() {
			d.log.Warn("guest not asked to stop", "sandbox", e.Spec.ID, "err", err)
		}
	}
	return d.sweep(e)
}

// Remove implements sandbox.Driver.
func (d *Driver) Remove(ctx context.Context, id sandbox.ID) error {
	err := d.do("remove", id, d.remove)
	if errors.Is(err, sandbox.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := errors.Join(d.dropLayers(), d.collectImages()); err != nil {
		d.log.Warn("unused images and layers not removed", "err", err) // the next one tries again
	}
	return nil
}

func (d *Driver) remove(e *entry) error {
	if err := d.sweep(e); err != nil {
		return err
	}
	e.socket.Close(sandbox.ErrNotFound)
	// The record goes first, so that half a disk is never taken for a whole one.
	if err := os.Remove(filepath.Join(e.dir, recordName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := errors.Join(removeAll(e.dir), removeAll(e.run)); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.entries, e.Spec.ID)
	return nil
}

// List implements sandbox.Driver. It only looks at what the driver knows.
func (d *Driver) List(context.Context) ([]sandbox.Status, error) {
	var list []sandbox.Status
	for _, e := range d.all() {
		state := sandbox.Stopped
		r := e.remembered()
		notes := d.notes(r)
		e.mu.Lock()
		paused, size, loss := e.paused, e.image, e.loss
		e.mu.Unlock()
		switch {
		case paused:
			state = sandbox.Paused
		case e.running():
			state = sandbox.Running
		}
		if loss != "" {
			notes = append(notes, "What ran in it when it was paused could not be brought back: "+loss+".")
		}
		list = append(list, sandbox.Status{ID: e.Spec.ID, State: state, Notes: notes, Init: d.initOf(r), Image: size})
	}
	return list, nil
}

// Connect implements sandbox.Driver. The stream is a *net.UnixConn.
func (d *Driver) Connect(ctx context.Context, id sandbox.ID) (io.ReadWriteCloser, error) {
	e := d.find(id)
	if e == nil {
		return nil, sandbox.ErrNotFound
	}
	conn, err := e.socket.Accept(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to sandbox %s: %w", id, err)
	}
	return conn, nil
}

// Close implements sandbox.Driver. No other call may be under way but Connect,
// which then fails.
func (d *Driver) Close() error {
	d.close()
	d.mu.Lock()
	for _, e := range d.entries {
		e.socket.Close(net.ErrClosed)
		e.release()
	}
	d.mu.Unlock()
	d.wg.Wait()
	d.host.groups.close()
	if d.images != nil {
		d.images.Close()
	}
	os.Remove(d.run) // fails, as it should, while sandboxes are running
	if d.lock != nil {
		d.lock.Close()
	}
	return nil
}

// find returns the sandbox with that id, or nil if there is none.
func (d *Driver) find(id sandbox.ID) *entry {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e := d.entries[id]; e != nil && e.made {
		return e
	}
	return nil
}

// do does one thing to a sandbox, while nothing else is done to it. ErrNotFound if
// there is none.
func (d *Driver) do(verb string, id sandbox.ID, what func(*entry) error) error {
	e := d.find(id)
	if e == nil {
		return sandbox.ErrNotFound
	}
	e.op.Lock()
	defer e.op.Unlock()
	if d.find(id) != e { // removed meanwhile
		return sandbox.ErrNotFound
	}
	if err := what(e); err != nil {
		return fmt.Errorf("%s sandbox %s: %w", verb, id, err)
	}
	return nil
}

// all returns the sandboxes that there are.
func (d *Driver) all() []*entry {
	d.mu.Lock()
	defer d.mu.Unlock()
	var list []*entry
	for _, e := range d.entries {
		if e.made {
			list = append(list, e)
		}
	}
	return list
}

// adopt reads the state folder, takes hold of the sandboxes that run, and clears
// away what a crash has left.
func (d *Driver) adopt() error {
	folder := filepath.Join(d.state, "sandboxes")
	dirs, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		id, err := sandbox.ParseID(dir.Name())
		if err != nil {
			continue
		}
		r, err := readRecord(filepath.Join(folder, dir.Name()))
		if errors.Is(err, os.ErrNotExist) {
			// Cut short: never made, or partly removed.
			if err := removeAll(filepath.Join(folder, dir.Name())); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("sandbox %s: %w", id, err)
		}
		e := d.newEntry(r)
		e.made = true
		if err := d.recall(e); err != nil {
			return fmt.Errorf("sandbox %s: %w", id, err)
		}
		if err := d.settle(e); err != nil {
			d.log.Error("disk not in order, to be tried again by its start", "sandbox", id, "err", err)
		}
		e.nat = d.findNetwork(e)
		d.entries[id] = e
	}
	if err := d.forget(); err != nil {
		return err
	}
	return d.killStrays(func(id sandbox.ID) bool {
		e := d.entries[id]
		return e != nil && !e.running()
	})
}

// forget ends what runs of sandboxes that are not in the state folder any more.
func (d *Driver) forget() error {
	dirs, err := os.ReadDir(d.run)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		id, err := sandbox.ParseID(dir.Name())
		if err != nil || d.entries[id] != nil {
			continue
		}
		e := d.newEntry(record{Spec: sandbox.Spec{ID: id}})
		e.hold(d.processes(e))
		if err := errors.Join(d.sweep(e), removeAll(e.run)); err != nil {
			return err
		}
	}
	return nil
}

// dropUnused removes programs and images of before, unless one may be in use: the
// kernel does not allow for changes below an overlay, and what is paused goes on only
// with the same.
func (d *Driver) dropUnused() error {
	used, all := d.inUse()
	if !all {
		return nil
	}
	return errors.Join(dropOthers(filepath.Dir(d.image), used), dropOthers(filepath.Dir(filepath.Dir(d.program)), used))
}

// sweep kills what is left of a running sandbox and clears away its traces, all
// but the socket of its guest.
func (d *Driver) sweep(e *entry) error {
	starved := e.endedAlone() && d.host.groups.starved(e.Spec.ID, e.Spec.Limits)
	if err := e.kill(); err != nil {
		return err
	}
	if starved {
		d.noteStarved(e, true)
	}
	return errors.Join(removeAll(e.runsc()), d.host.groups.remove(e.Spec.ID))
}

// A record is what the driver remembers of a sandbox.
type record struct {
	Spec sandbox.Spec

	// Digest is of the image that Spec.Image meant when the sandbox was made;
	// empty: ImageHost.
	Digest string

	// Slot says which user ids are the sandbox's own, unless they are Shared with
	// the gateway's user.
	Slot   int
	Shared bool

	// Saved says that the disk is gVisor's own overlay, which has to be saved;
	// else it is a kernel overlay.
	Saved bool

	// Layers are what the disk, if it is not Saved, begins with, the topmost first;
	// Freezing is the one that is just being made, see settle.
	Layers   []layer    `json:",omitempty"`
	Freezing sandbox.ID `json:",omitempty"`
}

const recordName = "sandbox.json"

// readRecord returns the record in dir, or os.ErrNotExist if there is none.
func readRecord(dir string) (record, error) {
	var r record
	data, err := os.ReadFile(filepath.Join(dir, recordName))
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(data, &r)
}

// shift returns the host's user id of the sandbox's root, or 0 if that is the
// user who runs the gateway.
func (r record) shift() int {
	if r.Shared {
		return 0
	}
	return idsBase + r.Slot*idsPerSandbox
}

// shortHash names a folder in few characters.
func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:4])
}
