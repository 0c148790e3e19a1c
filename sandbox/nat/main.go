//go:build linux

package nat

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// IsMain reports whether a process with these arguments is to be Main.
func IsMain(args []string) bool { return len(args) == 4 && args[1] == mainName }

// Main is one end of a cable in a container. It writes ReadyLine, or what is wrong
// on standard error, and returns the exit code when the cable has gone.
func Main(args []string) int {
	var err error
	switch socket := filepath.Join(args[3], "cable"); args[2] {
	case holdName:
		err = hold(socket)
	case carryName:
		err = carryFrom(socket)
	default:
		err = fmt.Errorf("there is no %q", args[2])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// hold is HoldArgs. Whoever connects is the other end, or that once more.
func hold(socket string) error {
	cable, err := Lay()
	if err != nil {
		return err
	}
	os.Remove(socket) // of the time before
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return err
	}
	if err := os.Chmod(socket, 0o666); err != nil { // it is nobody who connects
		return err
	}
	fmt.Println(ReadyLine)
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return err
		}
		if f, err := c.File(); err == nil {
			Send(int(f.Fd()), cable) // or they come again
			f.Close()
		}
		c.Close()
	}
}

// holdTimeout bounds the wait for the other end.
const holdTimeout = 30 * time.Second

// carryFrom is CarryArgs.
func carryFrom(socket string) error {
	cable, err := fetch(socket)
	if err != nil {
		return err
	}
	return Carry(cable, func() { fmt.Println(ReadyLine) })
}

// fetch gets the far end of the cable from hold.
func fetch(socket string) (int, error) {
	c, err := net.DialTimeout("unix", socket, holdTimeout)
	if err != nil {
		return -1, err
	}
	defer c.Close()
	f, err := c.(*net.UnixConn).File()
	if err != nil {
		return -1, err
	}
	defer f.Close()
	if err := unix.SetNonblock(int(f.Fd()), false); err != nil {
		return -1, err
	}
	return Receive(int(f.Fd()))
}

var errNoCable = errors.New("no network was handed over")
