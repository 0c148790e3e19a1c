//go:build linux

package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// inUseTimeout is how long a listener waits for another one of the guest's.
const inUseTimeout = time.Second

// dialTimeout bounds a connection attempt inside the sandbox.
const dialTimeout = 30 * time.Second

// dial connects st to an address inside the sandbox.
func dial(st *stream, a *Address) {
	defer st.Close()
	if a == nil {
		return
	}
	network, address := a.network()
	conn, err := net.DialTimeout(network, address, dialTimeout)
	if err != nil {
		writeLine(st, reply{Error: netReason(err), Refused: true})
		io.Copy(io.Discard, st)
		return
	}
	defer conn.Close()
	if writeLine(st, reply{}) != nil {
		return
	}
	splice(st, conn)
}

func (a *Address) network() (network, address string) {
	if len(a.Path) > 0 {
		return "unix", string(a.Path)
	}
	return "tcp", net.JoinHostPort(a.Host, strconv.Itoa(int(a.Port)))
}

// splice joins two streams until both directions have ended. A direction's end
// is passed on alone; a failure tears down both.
func splice(st *stream, conn net.Conn) {
	inbound := make(chan struct{})
	go func() {
		defer close(inbound)
		readErr, writeErr := Copy(conn, st)
		if readErr != nil {
			conn.Close() // the client is gone
			return
		}
		conn.(halfCloser).CloseWrite()
		if writeErr != nil {
			Copy(io.Discard, st) // the server reads no more; it may still speak
		}
	}()
	_, writeErr := Copy(st, conn)
	if writeErr != nil {
		conn.Close()
		st.Close()
	} else {
		st.CloseWrite()
	}
	<-inbound
}

// netReason is the short reason of a network error: what the kernel said, as
// people know it from other programs.
func netReason(err error) string {
	var dns *net.DNSError
	var errno syscall.Errno
	var timeout net.Error
	switch {
	case errors.As(err, &dns):
		return "Name or service not known"
	case errors.As(err, &errno):
		text := errno.Error()
		return strings.ToUpper(text[:1]) + text[1:]
	case errors.As(err, &timeout) && timeout.Timeout():
		return "Connection timed out"
	}
	return err.Error()
}

// listen listens inside the sandbox for as long as st lives, and opens a stream
// to the gateway for each connection.
func (s *session) listen(st *stream, h header) {
	defer st.Close()
	l, where, cleanup, err := s.guest.openListener(h.Address, h.User)
	// If it is this guest that listens there, that may be just about to end: a
	// client that comes again at once asks for the same.
	for deadline := time.Now().Add(inUseTimeout); errors.Is(err, unix.EADDRINUSE) && s.guest.listensOn(h.Address) && time.Now().Before(deadline); {
		time.Sleep(20 * time.Millisecond)
		l, where, cleanup, err = s.guest.openListener(h.Address, h.User)
	}
	if err != nil {
		writeLine(st, reply{Error: netReason(err), Refused: true})
		io.Copy(io.Discard, st)
		return
	}
	s.guest.noteListener(h.Address, 1)
	defer s.guest.noteListener(h.Address, -1)
	defer cleanup()
	defer l.Close()
	if writeLine(st, reply{Address: where}) != nil {
		return
	}
	go func() {
		defer st.Close()
		for {
			conn, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				time.Sleep(100 * time.Millisecond) // out of descriptors
				continue
			}
			go s.accepted(conn, h.Token)
		}
	}()
	io.Copy(io.Discard, st)
}

// noteListener adds n to the listeners on an address.
func (g *guest) noteListener(a *Address, n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, address := a.network()
	if g.listeners[address] += n; g.listeners[address] == 0 {
		delete(g.listeners, address)
	}
}

func (g *guest) listensOn(a *Address) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, address := a.network()
	return g.listeners[address] > 0
}

func (s *session) accepted(conn net.Conn, token string) {
	defer conn.Close()
	h := header{Kind: kindAccept, Token: token}
	if peer, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		h.Address = &Address{Host: peer.IP.String(), Port: uint16(peer.Port)}
	}
	st, err := s.link.open(h)
	if err != nil {
		return
	}
	defer st.Close()
	splice(st, conn)
}

// openListener opens the listener that a asks for. where is its address as far as
// the gateway does not know it; cleanup removes what was made for it.
func (g *guest) openListener(a *Address, user string) (l net.Listener, where *Address, cleanup func(), err error) {
	cleanup = func() {}
	if a == nil {
		return nil, nil, nil, errors.New("no address")
	}
	if len(a.Path) == 0 && !a.Agent {
		network, address := a.network()
		if a.Host == "0.0.0.0" {
			network = "tcp4"
		}
		l, err := net.Listen(network, address)
		if err != nil {
			return nil, nil, nil, err
		}
		return l, &Address{Port: uint16(l.Addr().(*net.TCPAddr).Port)}, cleanup, nil
	}
	acct, err := g.accounts.lookup(user)
	if err != nil {
		return nil, nil, nil, err
	}
	path := string(a.Path)
	if a.Agent {
		// As OpenSSH has it: a folder that only the user can enter.
		dir, err := os.MkdirTemp("/tmp", "ssh-")
		if err != nil {
			return nil, nil, nil, err
		}
		cleanup = func() { os.RemoveAll(dir) }
		os.Lchown(dir, int(acct.uid), int(acct.gid))
		path = filepath.Join(dir, "agent."+strconv.Itoa(os.Getpid()))
	} else if !filepath.IsAbs(path) {
		path = filepath.Join(acct.home, path)
	}
	ul, err := listenPrivate(path)
	if err != nil {
		cleanup()
		return nil, nil, nil, err
	}
	os.Lchown(path, int(acct.uid), int(acct.gid))
	return ul, &Address{Path: []byte(path)}, cleanup, nil
}

// listenPrivate listens on a unix socket that only its owner may connect to, from
// the moment it exists. A socket that nothing listens on any more is replaced, as
// clients expect that use the same name again after a lost connection.
func listenPrivate(path string) (net.Listener, error) {
	if fi, err := os.Lstat(path); err == nil {
		if fi.Mode()&os.ModeSocket == 0 {
			return nil, fmt.Errorf("%w: %s", unix.EEXIST, path)
		}
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			c.Close()
			return nil, unix.EADDRINUSE
		}
		os.Remove(path)
	}
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		// The socket's file gets the mode of the socket.
		if e := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); e != nil {
			return e
		}
		return err
	}}
	l, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil { // where the kernel has it otherwise
		l.Close()
		return nil, err
	}
	return l, nil
}
