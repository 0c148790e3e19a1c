package drivertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"

	"sandgate/sandbox"
	"sandgate/sandbox/guest"
)

// Local is a driver without a sandbox: each guest is a process of this host, run
// by the test binary, and isolates nothing. It is there to test what stands on
// top of drivers, everywhere and quickly. It has no memory of an earlier process.
type Local struct {
	dir  string
	argv []string

	// Home is the home folder of commands that are started from now on; empty: the
	// account's, whose shells then read what it has for them.
	Home string

	mu    sync.Mutex
	boxes map[sandbox.ID]*localBox
}

type localBox struct {
	spec     sandbox.Spec
	dir      string
	listener *guest.Listener
	cmd      *exec.Cmd     // nil: not started
	ended    chan struct{} // closed when cmd has ended
}

// NewLocal returns a driver that keeps its sandboxes in dir and runs argv, with
// the socket's folder as one more argument, as the guest.
func NewLocal(dir string, argv ...string) *Local {
	return &Local{dir: dir, argv: argv, boxes: make(map[sandbox.ID]*localBox)}
}

// Create implements sandbox.Driver.
func (l *Local) Create(_ context.Context, spec sandbox.Spec) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.boxes[spec.ID] != nil {
		return nil
	}
	b := &localBox{spec: spec, dir: filepath.Join(l.dir, string(spec.ID))}
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		return err
	}
	var err error
	if b.listener, err = guest.Listen(b.dir, -1, -1); err != nil {
		return err
	}
	l.boxes[spec.ID] = b
	return nil
}

// Update implements sandbox.Updater.
func (l *Local) Update(_ context.Context, spec sandbox.Spec) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, err := l.box(spec.ID)
	if err == nil {
		b.spec = spec
	}
	return err
}

func (l *Local) box(id sandbox.ID) (*localBox, error) {
	b := l.boxes[id]
	if b == nil {
		return nil, fmt.Errorf("local %s: %w", id, sandbox.ErrNotFound)
	}
	return b, nil
}

// Start implements sandbox.Driver.
func (l *Local) Start(_ context.Context, id sandbox.ID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, err := l.box(id)
	if err != nil || b.running() {
		return err
	}
	cmd := exec.Command(l.argv[0], append(l.argv[1:], b.dir)...)
	env := b.spec.Env
	if l.Home != "" {
		env = append([]string{"HOME=" + l.Home}, env...)
	}
	cmd.Env = append(os.Environ(), guest.Settings{Env: env, User: b.spec.User}.Environ())
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	b.cmd, b.ended = cmd, make(chan struct{})
	go func(ended chan struct{}) {
		cmd.Wait()
		close(ended)
	}(b.ended)
	return nil
}

func (b *localBox) running() bool {
	if b.cmd == nil {
		return false
	}
	select {
	case <-b.ended:
		return false
	default:
		return true
	}
}

// Stop implements sandbox.Driver.
func (l *Local) Stop(_ context.Context, id sandbox.ID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, err := l.box(id)
	if err != nil || !b.running() {
		return err
	}
	b.cmd.Process.Signal(syscall.SIGTERM)
	<-b.ended
	return nil
}

// Remove implements sandbox.Driver.
func (l *Local) Remove(ctx context.Context, id sandbox.ID) error {
	if err := l.Stop(ctx, id); errors.Is(err, sandbox.ErrNotFound) {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if b := l.boxes[id]; b != nil {
		b.listener.Close()
		delete(l.boxes, id)
		return os.RemoveAll(b.dir)
	}
	return nil
}

// List implements sandbox.Driver.
func (l *Local) List(context.Context) ([]sandbox.Status, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []sandbox.Status
	for id, b := range l.boxes {
		state := sandbox.Stopped
		if b.running() {
			state = sandbox.Running
		}
		all = append(all, sandbox.Status{ID: id, State: state})
	}
	return all, nil
}

// Connect implements sandbox.Driver.
func (l *Local) Connect(ctx context.Context, id sandbox.ID) (io.ReadWriteCloser, error) {
	l.mu.Lock()
	b, err := l.box(id)
	l.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return b.listener.Accept(ctx)
}

// Close implements sandbox.Driver. Unlike others it ends its sandboxes, which are
// children of the test.
func (l *Local) Close() error {
	l.mu.Lock()
	ids := make([]sandbox.ID, 0, len(l.boxes))
	for id := range l.boxes {
		ids = append(ids, id)
	}
	l.mu.Unlock()
	for _, id := range ids {
		l.Remove(context.Background(), id)
	}
	return nil
}
