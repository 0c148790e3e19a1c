//go:build linux

package guest

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// A blockingConn is a connection to the gateway whose reads and writes are plain
// blocking system calls. Go's poller would need two more of them for each message,
// and each is dear in gVisor: without it a request over SFTP takes a sixth less.
// Each waiting read holds a thread, so it is for connections that are few.
type blockingConn struct {
	*os.File
	fd   int
	once sync.Once
	err  error // of Close
}

func dialBlocking(path string) (*blockingConn, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &blockingConn{File: os.NewFile(uintptr(fd), path), fd: fd}, nil
}

// CloseWrite ends the direction to the gateway.
func (c *blockingConn) CloseWrite() error { return unix.Shutdown(c.fd, unix.SHUT_WR) }

// Close closes the connection, also under a Read or Write, which then fail. It may
// be called again.
func (c *blockingConn) Close() error {
	c.once.Do(func() {
		unix.Shutdown(c.fd, unix.SHUT_RDWR) // wakes them; close alone would not
		c.err = c.File.Close()
	})
	return c.err
}
