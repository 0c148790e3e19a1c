package guest

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"
)

// handoverName is the socket, beside the guest's, by which the `guest connect` of
// a lost connection learns that there is another.
const handoverName = "connect.sock"

// connectOnStdio is `guest connect`: it is to the guest, in a folder of the
// sandbox's own, what the gateway's Listener is elsewhere, and carries the first
// connection over in and out. It returns its exit code.
//
// The guest's spare connections are left waiting: the one stream there is belongs
// to the control connection, and whoever waits does not dial again and again.
func connectOnStdio(dir string, in io.Reader, out io.Writer, errs io.Writer) int {
	l, err := takeOver(dir)
	if err != nil {
		fmt.Fprintf(errs, "connect to guest: %v\n", err)
		return 1
	}
	defer l.Close()
	// The other end may go while no guest is there to be told.
	gone := make(chan struct{})
	fromGateway, toGuest := io.Pipe()
	go func() {
		defer close(gone)
		_, err := io.Copy(toGuest, in)
		toGuest.CloseWithError(err)
	}()
	go func() {
		<-gone
		l.Close()
	}()
	l.SetDeadline(time.Now().Add(connectWait))
	conn, err := l.AcceptUnix()
	if err != nil {
		fmt.Fprintf(errs, "wait for guest: %v\n", err)
		return 1
	}
	defer conn.Close()
	if _, err := fmt.Fprintln(out, connected); err != nil {
		return 1
	}
	go func() {
		Copy(conn, fromGateway)
		conn.CloseWrite()
	}()
	Copy(out, conn)
	return 0
}

// takeOver listens where the guest connects, in the place of an earlier process
// that does so, which it ends.
func takeOver(dir string) (*net.UnixListener, error) {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, err
	}
	handover := filepath.Join(dir, handoverName)
	if c, err := net.DialTimeout("unix", handover, time.Second); err == nil {
		c.SetDeadline(time.Now().Add(5 * time.Second))
		io.Copy(io.Discard, c) // until it has ended
		c.Close()
	}
	os.Remove(handover)
	next, err := listenPrivate(handover)
	if err != nil {
		return nil, err
	}
	go func() {
		if _, err := next.Accept(); err == nil {
			os.Exit(0)
		}
	}()
	path := filepath.Join(dir, SocketName)
	os.Remove(path)
	l, err := listenPrivate(path)
	if err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil
}
