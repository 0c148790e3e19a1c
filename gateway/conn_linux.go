package gateway

import (
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

const readBufferSize = 256 << 10

var readBuffers = sync.Pool{New: func() any { return new([readBufferSize]byte) }}

// An inbound reads a connection through a large buffer. It takes the buffer
// when there is something to read and gives it back when that has been passed
// on, so that a connection which waits for its client has none: a hundred idle
// ones that each kept theirs would take 25 MiB.
type inbound struct {
	conn     net.Conn
	raw      syscall.RawConn // nil: conn is not a TCP socket itself, and is read as it is
	quickACK atomic.Bool

	receive func(fd uintptr) bool // tryRead, made once
	buf     *[readBufferSize]byte // nil if unread is empty
	unread  []byte                // in buf
	err     error                 // why the last receive left nothing in unread
}

func newInbound(conn net.Conn) *inbound {
	in := &inbound{conn: conn}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return in
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return in // Read will say why
	}
	in.raw = raw
	in.receive = in.tryRead
	in.quickACK.Store(true)
	raw.Control(setQuickACK)
	return in
}

func (in *inbound) delayACKs() { in.quickACK.Store(false) }

func (in *inbound) Read(p []byte) (int, error) {
	if in.raw == nil {
		return in.conn.Read(p)
	}
	if len(in.unread) == 0 {
		if err := in.raw.Read(in.receive); err != nil {
			return 0, err
		}
		if len(in.unread) == 0 {
			return 0, in.err
		}
	}
	n := copy(p, in.unread)
	in.unread = in.unread[n:]
	if len(in.unread) == 0 {
		readBuffers.Put(in.buf)
		in.buf, in.unread = nil, nil
	}
	return n, nil
}

// tryRead fills unread or sets err, or returns false if it would have to wait.
func (in *inbound) tryRead(fd uintptr) bool {
	buf := readBuffers.Get().(*[readBufferSize]byte)
	n, err := unix.Read(int(fd), buf[:])
	for err == unix.EINTR {
		n, err = unix.Read(int(fd), buf[:])
	}
	if n > 0 {
		in.buf, in.unread = buf, buf[:n]
		if in.quickACK.Load() {
			setQuickACK(fd) // the kernel forgets it after some packets
		}
		return true
	}
	readBuffers.Put(buf)
	switch err {
	case unix.EAGAIN:
		return false
	case nil:
		in.err = io.EOF
	default:
		local, remote := in.conn.LocalAddr(), in.conn.RemoteAddr()
		in.err = &net.OpError{Op: "read", Net: local.Network(), Source: local, Addr: remote, Err: os.NewSyscallError("read", err)}
	}
	return true
}

// setQuickACK makes the kernel acknowledge at once. Where it cannot, the login
// is only slower.
func setQuickACK(fd uintptr) {
	unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1)
}
