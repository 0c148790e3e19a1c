package docker

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sandgate/sandbox"
	"sandgate/sandbox/guest"
)

// stopGrace is how long the guest has to end its children and itself.
const stopGrace = 7 * time.Second

// Labels of a container.
const (
	labelGateway = "sandgate.gateway" // whose it is: Driver.instance
	labelSandbox = "sandgate.sandbox" // its ID
	labelNotes   = "sandgate.notes"   // its Status.Notes, one a line
	labelInit    = "sandgate.init"    // its Status.Init
	labelNetwork = "sandgate.network" // NetworkFull, if it has that
	labelEnv     = "sandgate.env"     // envMark of its variables
	labelHelper  = "sandgate.helper"  // in the place of labelSandbox: for whose network it is
)

// A Driver is a sandbox.Driver, a sandbox.Puller and a sandbox.Watcher.
type Driver struct {
	cfg    Config
	log    *slog.Logger
	engine *engine
	shared bool // folders of this host can be mounted
	lock   *os.File

	closing context.Context
	close   context.CancelFunc

	networked  atomic.Bool // this engine was seen to give the network full
	oldNetwork atomic.Bool // but not version 6 of it

	prepare sync.Mutex // held while the state folder is made ready for use
	used    chan struct{}

	mu       sync.Mutex // guards the fields below
	instance string     // names this gateway on its engine; empty: nothing was made yet
	ready    bool       // the program is where sandboxes find it
	entries  map[sandbox.ID]*entry
}

// An entry is one sandbox in the driver's books.
type entry struct {
	id     sandbox.ID
	dir    string // in the state folder
	share  bool   // the guest dials out through a mounted folder
	socket *guest.Socket
	line   chan struct{} // holds one element while a connection is carried
	gone   chan struct{} // closed when the sandbox was removed

	op sync.Mutex // held while it is started, stopped or removed

	mu      sync.Mutex  // guards the fields below
	carried *execStream // the last one
	wanted  bool        // it was started, and not stopped since
	ours    bool        // what happens to it is our doing
	started time.Time   // by the engine's clock: what was before is over
	oom     bool        // since it was started, something in it had to be killed
}

// New opens the driver. It does not ask for the engine yet.
func New(cfg Config, log *slog.Logger) (*Driver, error) {
	d := &Driver{cfg: cfg, log: log, used: make(chan struct{}), entries: make(map[sandbox.ID]*entry)}
	d.closing, d.close = context.WithCancel(context.Background())
	if err := d.open(); err != nil {
		d.Close()
		return nil, fmt.Errorf("docker: %w", err)
	}
	return d, nil
}

func (d *Driver) open() (err error) {
	if d.cfg.State, err = filepath.Abs(d.cfg.State); err != nil {
		return err
	}
	if d.engine, err = newEngine(d.cfg); err != nil {
		return err
	}
	d.shared = d.engine.shares(d.cfg)
	if err := os.MkdirAll(d.boxes(), 0o700); err != nil {
		return err
	}
	if d.lock, err = sandbox.LockFolder(d.cfg.State); err != nil {
		return err
	}
	dirs, err := os.ReadDir(d.boxes())
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if id, err := sandbox.ParseID(dir.Name()); err == nil {
			e := d.newEntry(id)
			_, err := os.Stat(e.socket.Dir())
			e.share = err == nil
			d.entries[id] = e
		}
	}
	instance, err := os.ReadFile(d.instanceFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	d.use(strings.TrimSpace(string(instance)))
	return nil
}

func (d *Driver) boxes() string        { return filepath.Join(d.cfg.State, "sandboxes") }
func (d *Driver) instanceFile() string { return filepath.Join(d.cfg.State, "instance") }

// programs is the folder that sandboxes see as that of guest.Executable. It stays
// the same for ever, since what is mounted in a container cannot be changed.
func (d *Driver) programs() string { return filepath.Join(d.cfg.State, "guest") }

func (d *Driver) newEntry(id sandbox.ID) *entry {
	dir := filepath.Join(d.boxes(), string(id))
	return &entry{
		id:     id,
		dir:    dir,
		socket: guest.NewSocket(filepath.Join(dir, "socket"), -1, -1),
		line:   make(chan struct{}, 1),
		gone:   make(chan struct{}),
	}
}

// use says by what name this gateway is known to its engine.
func (d *Driver) use(instance string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.instance == "" {
		d.instance = instance
		close(d.used)
	}
}

// getReady makes the state folder ready for sandboxes. The instance is drawn and
// not derived from the folder's path: on an engine that several hosts use, all
// gateways may have the same.
func (d *Driver) getReady() error {
	d.prepare.Lock()
	defer d.prepare.Unlock()
	d.mu.Lock()
	ready, instance := d.ready, d.instance
	d.mu.Unlock()
	if ready {
		return nil
	}
	path := cmp.Or(d.cfg.Executable, "/proc/self/exe")
	program, err := os.Open(path)
	if err != nil {
		return err
	}
	defer program.Close()
	if err := guest.CheckProgram(program); err != nil {
		return fmt.Errorf("%s %w", path, err)
	}
	if err := guest.FillProgram(d.programs(), program); err != nil {
		return fmt.Errorf("copy %s: %w", path, err)
	}
	if instance == "" {
		var b [8]byte
		rand.Read(b[:])
		instance = hex.EncodeToString(b[:])
		fresh := d.instanceFile() + ".new"
		if err := os.WriteFile(fresh, []byte(instance+"\n"), 0o600); err != nil {
			return err
		}
		if err := os.Rename(fresh, d.instanceFile()); err != nil {
			return err
		}
		d.use(instance)
	}
	d.mu.Lock()
	d.ready = true
	d.mu.Unlock()
	return nil
}

// name is the name of a sandbox's container. It is derived, so that a Create that
// was cut short is found again.
func (d *Driver) name(id sandbox.ID) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return "sandgate-" + d.instance + "-" + string(id)
}

func (d *Driver) find(id sandbox.ID) *entry {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.entries[id]
}

// enter makes a sandbox's folder and remembers it, if it is not known. That there
// is a folder for the socket says that the sandbox shares it.
func (d *Driver) enter(id sandbox.ID, share bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.entries[id] != nil {
		return nil
	}
	e := d.newEntry(id)
	e.share = share
	dir := e.dir
	if share {
		dir = e.socket.Dir()
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	d.entries[id] = e
	return nil
}

// leave forgets a sandbox that has no container, and wakes who waits for it.
func (d *Driver) leave(id sandbox.ID) error {
	d.mu.Lock()
	e := d.entries[id]
	delete(d.entries, id)
	d.mu.Unlock()
	if e == nil {
		return nil
	}
	e.socket.Close(sandbox.ErrNotFound)
	e.hangUp()
	close(e.gone)
	return os.RemoveAll(e.dir)
}

// do does one thing to a sandbox, while nothing else is done to it. ErrNotFound if
// there is none, or somebody has removed its container: then nothing of it is left.
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
	err := what(e)
	if errors.Is(err, sandbox.ErrNotFound) {
		return errors.Join(sandbox.ErrNotFound, d.leave(id))
	}
	if err != nil {
		return fmt.Errorf("%s sandbox %s: %w", verb, id, err)
	}
	return nil
}

// Start implements sandbox.Driver. A sandbox that somebody has paused goes on.
func (d *Driver) Start(ctx context.Context, id sandbox.ID) error {
	return d.do("start", id, func(e *entry) error { return d.start(ctx, e) })
}

func (d *Driver) start(ctx context.Context, e *entry) error {
	name := d.name(e.id)
	b, err := d.engine.inspect(ctx, name)
	if err != nil {
		return err
	}
	if b.paused {
		return d.engine.unpause(ctx, name)
	}
	if b.running {
		e.want(true)
		return nil
	}
	if err := d.getReady(); err != nil {
		return err
	}
	e.hangUp()
	if b.labels[labelNetwork] != "" {
		if err := d.startNetwork(ctx, e.id, e.share); err != nil {
			return err
		}
	}
	if e.share {
		err = e.socket.Open()
	} else {
		err = d.copyProgram(ctx, name)
	}
	if err != nil {
		return err
	}
	if err := d.engine.start(ctx, name); err != nil {
		if b.labels[labelNetwork] != "" {
			err = errors.Join(err, d.stopNetwork(context.WithoutCancel(ctx), e.id))
		}
		return err
	}
	b, err = d.engine.inspect(ctx, name)
	if err != nil {
		return err
	}
	e.mu.Lock()
	e.wanted, e.started, e.oom = true, b.started, false
	e.mu.Unlock()
	return nil
}

// Stop implements sandbox.Driver. If ctx ends early, what still runs then is
// killed instead of waited for.
func (d *Driver) Stop(ctx context.Context, id sandbox.ID) error {
	return d.do("stop", id, func(e *entry) error {
		defer e.claim()()
		e.want(false)
		return d.stop(ctx, id)
	})
}

func (d *Driver) stop(ctx context.Context, id sandbox.ID) error {
	name := d.name(id)
	b, err := d.engine.inspect(context.WithoutCancel(ctx), name)
	if err != nil {
		return err
	}
	if b.running {
		err = d.stopRunning(ctx, name, b.paused)
	}
	if b.labels[labelNetwork] != "" {
		err = errors.Join(err, d.stopNetwork(context.WithoutCancel(ctx), id))
	}
	return err
}

func (d *Driver) stopRunning(ctx context.Context, name string, paused bool) error {
	if paused {
		if err := d.engine.unpause(context.WithoutCancel(ctx), name); err != nil {
			return err
		}
	}
	stopped := make(chan error, 1)
	go func() { stopped <- d.engine.stop(context.WithoutCancel(ctx), name, stopGrace) }()
	select {
	case err := <-stopped:
		return err
	case <-ctx.Done():
	}
	err := d.engine.kill(context.WithoutCancel(ctx), name)
	return errors.Join(err, <-stopped)
}

// Remove implements sandbox.Driver.
func (d *Driver) Remove(ctx context.Context, id sandbox.ID) error {
	if e := d.find(id); e != nil {
		e.op.Lock()
		defer e.op.Unlock()
		defer e.claim()()
	}
	select {
	case <-d.used:
	default:
		return nil // nothing was ever made
	}
	if err := errors.Join(d.engine.remove(ctx, d.name(id)), d.removeNetwork(ctx, id), d.engine.removeImage(ctx, d.snapshotImage(id))); err != nil {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	return d.leave(id)
}

// claim says that what happens to a sandbox is our doing, until it is called off.
func (e *entry) claim() (off func()) {
	set := func(ours bool) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.ours = ours
	}
	set(true)
	return func() { set(false) }
}

// List implements sandbox.Driver.
func (d *Driver) List(ctx context.Context) ([]sandbox.Status, error) {
	select {
	case <-d.used:
	default:
		return nil, nil // nothing was ever made
	}
	boxes, err := d.engine.list(ctx, labelGateway, d.instance)
	if err != nil {
		return nil, err
	}
	var list []sandbox.Status
	listed, helped := make(map[sandbox.ID]bool), make(map[sandbox.ID]bool)
	for _, b := range boxes {
		id, err := sandbox.ParseID(b.labels[labelSandbox])
		if err != nil {
			if id, err := sandbox.ParseID(b.labels[labelHelper]); err == nil {
				helped[id] = true
			}
			continue
		}
		listed[id] = true
		s := sandbox.Status{ID: id, State: sandbox.Stopped, Init: b.labels[labelInit]}
		switch {
		case b.paused:
			s.State = sandbox.Paused
		case b.running:
			s.State = sandbox.Running
		}
		if notes := b.labels[labelNotes]; notes != "" {
			s.Notes = strings.Split(notes, "\n")
		}
		list = append(list, s)
	}
	for id := range helped { // of a Create that was cut short
		if !listed[id] {
			list = append(list, sandbox.Status{ID: id, State: sandbox.Stopped})
		}
	}
	return list, nil
}

// Connect implements sandbox.Driver. The stream is a *net.UnixConn where a folder
// is shared.
func (d *Driver) Connect(ctx context.Context, id sandbox.ID) (io.ReadWriteCloser, error) {
	e := d.find(id)
	if e == nil {
		return nil, sandbox.ErrNotFound
	}
	conn, err := d.connect(ctx, e)
	if err == nil {
		return conn, nil
	}
	if _, ended := errors.AsType[*sandbox.EndedError](err); ended {
		e.op.Lock() // what we are doing to it ourselves is to be done first
		defer e.op.Unlock()
		select {
		case <-e.gone:
			return nil, sandbox.ErrNotFound
		default:
		}
	}
	return nil, fmt.Errorf("connect to sandbox %s: %w", id, err)
}

func (d *Driver) connect(ctx context.Context, e *entry) (io.ReadWriteCloser, error) {
	if !e.share {
		return d.carry(ctx, e)
	}
	// What was said to run, and is about to end, never connects.
	for wait := firstLook; wait <= lastLook; wait *= 2 {
		soon, cancel := context.WithTimeout(ctx, wait)
		conn, err := e.socket.Accept(soon)
		late := soon.Err() != nil
		cancel()
		if err == nil {
			return conn, nil
		}
		if !late || ctx.Err() != nil {
			return nil, err
		}
		if err := d.look(ctx, e); err != nil {
			return nil, err
		}
	}
	conn, err := e.socket.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// How long a guest may be waited for before somebody looks whether its sandbox runs.
const (
	firstLook = time.Second
	lastLook  = 8 * time.Second
)

// look returns a *sandbox.EndedError if a sandbox was started and does not run.
func (d *Driver) look(ctx context.Context, e *entry) error {
	b, err := d.engine.inspect(ctx, d.name(e.id))
	if err != nil || b.running || !e.isWanted() {
		return nil
	}
	return &sandbox.EndedError{Cause: e.cause(b)}
}

func (e *entry) want(wanted bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.wanted = wanted
}

func (e *entry) isWanted() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.wanted
}

// Close implements sandbox.Driver.
func (d *Driver) Close() error {
	d.close()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range d.entries {
		e.socket.Close(net.ErrClosed)
	}
	if d.engine != nil {
		d.engine.close()
	}
	if d.lock != nil {
		d.lock.Close()
	}
	return nil
}
