package gateway

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// errLoginGrace ends a connection that nobody has logged in on in time.
var errLoginGrace = errors.New("nobody logged in within the time allowed")

// A frontConn is an accepted connection on its way to package ssh. It has read
// the client's offer ahead, keeps the time limit on the login, and is fast:
//
//   - Until the login is done ACKs are not delayed. OpenSSH's client leaves
//     Nagle's algorithm on until its session starts, so each delayed ACK would
//     hold one of its packets for 40 ms.
//   - It reads ahead by up to 256 KiB, where package ssh alone asks the kernel
//     for at most a packet at a time.
//
// As package ssh does, callers must not Read, or Write, twice at once.
type frontConn struct {
	net.Conn
	in       *inbound
	replay   []byte // read by openFront, and not yet by package ssh
	greeting string // sent by openFront, and not yet by package ssh

	id     string                // of the connection, in the log, in the audit and in what users read
	closed func()                // called by the first Close; nil: nobody wants to know
	login  atomic.Pointer[Login] // of whoever has logged in
	shut   atomic.Bool           // Close was called

	remote, local net.Addr // if not Conn's
	arrival       *arrival // nil: it has no place to give back

	began             time.Time
	received, written atomic.Int64 // bytes, as they are on the wire
	silent            atomic.Bool  // the client did not answer any more
	broke             atomic.Value // what ended reading, in words

	sending sync.Mutex
	held    []byte // written while held back
	holds   int

	passed atomic.Bool // somebody has logged in
	known  atomic.Bool // a key of a user was shown
	mu     sync.Mutex
	tried  []string    // logins and keys that came to nothing
	grace  *time.Timer // closes Conn
	late   atomic.Bool // grace is over
}

// openFront exchanges identification lines with the client and reads what it
// offers. The returned connection is for ssh.NewServerConn with version as its
// ServerVersion: it gives the client's bytes out again, unchanged, and swallows
// the version line that package ssh sends first.
//
// The connection is closed when grace is over, wherever the login then is; Read
// and Write fail with errLoginGrace. This does not depend on deadlines, since
// gliderlabs/ssh resets those on each Read and Write. If openFront fails,
// closing conn is left to the caller.
func openFront(conn net.Conn, version string, grace time.Duration) (*frontConn, offer, error) {
	c := &frontConn{Conn: conn, began: time.Now(), in: newInbound(conn), greeting: version + "\r\n"}
	c.grace = time.AfterFunc(grace, func() {
		c.late.Store(true)
		conn.Close()
	})
	o, err := c.meet()
	if err != nil {
		c.grace.Stop()
		return nil, offer{}, c.reason(err)
	}
	return c, o, nil
}

func (c *frontConn) meet() (offer, error) {
	if _, err := io.WriteString(c.Conn, c.greeting); err != nil {
		return offer{}, fmt.Errorf("send identification: %w", err)
	}
	var seen bytes.Buffer
	o, err := readOffer(bufio.NewReader(io.TeeReader(c.in, &seen)))
	c.replay = seen.Bytes()
	return o, err
}

// note records that a client tried a key in vain.
func (c *frontConn) note(login, fingerprint string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tried = append(c.tried, fmt.Sprintf("%.64s %s", login, fingerprint))
}

// vain returns what note has recorded.
func (c *frontConn) vain() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tried
}

// failure says why nobody has logged in on a connection that has ended.
func (c *frontConn) failure() error {
	switch {
	case c.late.Load():
		return errLoginGrace
	case len(c.vain()) > 0:
		return errNoKey
	case c.known.Load():
		return errUnsigned
	}
	return errNothing
}

// admit lifts the time limit: the client has logged in.
func (c *frontConn) admit() {
	c.grace.Stop()
	c.passed.Store(true)
}

// loginDone lets ACKs be delayed again: the client's session has begun. It may be
// called at the same time as Read and Write, and more than once.
func (c *frontConn) loginDone() { c.in.delayACKs() }

func (c *frontConn) Read(p []byte) (int, error) {
	if len(c.replay) > 0 {
		n := copy(p, c.replay)
		c.received.Add(int64(n))
		c.replay = c.replay[n:]
		if len(c.replay) == 0 {
			c.replay = nil
		}
		return n, nil
	}
	n, err := c.in.Read(p)
	c.received.Add(int64(n))
	if err != nil && err != io.EOF && !errors.Is(err, net.ErrClosed) {
		c.broke.Store(oneLine(err.Error()))
	}
	return n, c.reason(err)
}

func (c *frontConn) Write(p []byte) (int, error) {
	if c.greeting != "" {
		if string(p) != c.greeting {
			return 0, fmt.Errorf("%q was announced to the client, not %q", c.greeting, p)
		}
		c.greeting = ""
		c.written.Add(int64(len(p)))
		return len(p), nil
	}
	c.sending.Lock()
	defer c.sending.Unlock()
	if c.holds > 0 && len(c.held)+len(p) <= maxHeld {
		c.held = append(c.held, p...)
		return len(p), nil
	}
	if err := c.sendHeld(); err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(p)
	c.written.Add(int64(n))
	return n, c.reason(err)
}

// maxHeld bounds what is held back.
const maxHeld = 16 << 10

// hold holds back what is written until release is called, and then sends it in one
// piece: each piece wakes the client. Nothing that may wait is to be done meanwhile.
func (c *frontConn) hold() (release func()) {
	c.sending.Lock()
	defer c.sending.Unlock()
	c.holds++
	return func() {
		c.sending.Lock()
		defer c.sending.Unlock()
		if c.holds--; c.holds == 0 {
			c.sendHeld() // what fails here fails again at the next Read or Write
		}
	}
}

// sendHeld sends what was held back. The caller holds sending.
func (c *frontConn) sendHeld() error {
	if len(c.held) == 0 {
		return nil
	}
	n, err := c.Conn.Write(c.held)
	c.written.Add(int64(n))
	c.held = c.held[:0]
	return c.reason(err)
}

// reason returns why the connection failed with err, which may be nil.
func (c *frontConn) reason(err error) error {
	if err != nil && c.late.Load() {
		return errLoginGrace
	}
	return err
}

// CloseWrite tells the client that no more will be sent, and goes on reading.
func (c *frontConn) CloseWrite() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return half.CloseWrite()
}

// RemoteAddr is the client's address, also behind a proxy.
func (c *frontConn) RemoteAddr() net.Addr {
	if c.remote != nil {
		return c.remote
	}
	return c.Conn.RemoteAddr()
}

// LocalAddr is the address that the client has connected to.
func (c *frontConn) LocalAddr() net.Addr {
	if c.local != nil {
		return c.local
	}
	return c.Conn.LocalAddr()
}

func (c *frontConn) Close() error {
	c.grace.Stop()
	if !c.shut.Swap(true) && c.closed != nil {
		c.closed()
	}
	if l := c.login.Load(); l != nil {
		l.closed()
	}
	return c.Conn.Close()
}

// carry ties a login to the connection: its end is the login's.
func (c *frontConn) carry(l *Login) {
	c.login.Store(l)
	if c.shut.Load() {
		l.closed()
	}
}
