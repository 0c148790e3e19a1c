package guest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

// Where the driver puts things in a sandbox, and what it calls them.
const (
	// Executable is the gateway's own program, mounted read-only. It is run as
	// `Executable guest` as the first process of the sandbox.
	Executable = "/.sandgate/guest"

	// SocketDir is the folder, mounted read-only, that holds the socket
	// SocketName on which the gateway listens.
	SocketDir  = "/run/sandgate"
	SocketName = "guest.sock"
)

// A Listener is the gateway's end of one sandbox's socket folder: which socket a
// guest came in on says which sandbox it is.
type Listener struct {
	l     *net.UnixListener
	dir   string
	conns chan *net.UnixConn

	once    sync.Once
	closing chan struct{} // closed by Close
	ended   chan struct{} // closed when accepting has ended
	err     error         // of closing
}

// Listen listens on SocketName in dir, an existing folder on the host that only
// the gateway can write to. The socket's owner becomes uid and gid, and only
// that user may connect, unless uid is negative: then the owner is not changed.
// A socket that an earlier gateway left behind is replaced.
func Listen(dir string, uid, gid int) (*Listener, error) {
	// A socket's address has 107 bytes, a folder's path may have more: name the
	// folder by an open descriptor.
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("listen for guest: %w", err)
	}
	defer d.Close()
	path := filepath.Join(dir, SocketName)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("listen for guest: %w", err)
	}
	short := filepath.Join("/proc/self/fd", strconv.Itoa(int(d.Fd())), SocketName)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for guest in %s: %w", dir, err)
	}
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("listen for guest: %w", err)
	}
	if uid >= 0 {
		if err := os.Lchown(path, uid, gid); err != nil {
			l.Close()
			return nil, fmt.Errorf("listen for guest: %w", err)
		}
	}
	ln := &Listener{
		l:       l,
		dir:     dir,
		conns:   make(chan *net.UnixConn),
		closing: make(chan struct{}),
		ended:   make(chan struct{}),
	}
	go ln.accept()
	return ln, nil
}

func (l *Listener) accept() {
	defer close(l.ended)
	for {
		c, err := l.l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // such as too many open files: others must end first
			time.Sleep(100 * time.Millisecond)
			continue
		}
		c.SetWriteBuffer(1 << 20) // or as much as the host allows: fewer turns for bulk
		select {
		case l.conns <- c:
		case <-l.closing:
			c.Close()
			return
		}
	}
}

// Accept returns the next connection that the guest opens. Several calls may
// wait at once. After Close the error is net.ErrClosed.
func (l *Listener) Accept(ctx context.Context) (*net.UnixConn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-l.closing:
		return nil, fmt.Errorf("accept guest in %s: %w", l.dir, net.ErrClosed)
	}
}

// Close stops listening and removes the socket. Connections that Accept returned
// stay open. It may be called again.
func (l *Listener) Close() error {
	l.once.Do(func() {
		close(l.closing)
		l.err = l.l.Close()
		<-l.ended
		os.Remove(filepath.Join(l.dir, SocketName))
	})
	return l.err
}
