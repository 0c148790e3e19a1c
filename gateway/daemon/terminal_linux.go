package daemon

import (
	"os"

	"golang.org/x/sys/unix"
)

// isTerminal says whether a file is a terminal, and not one that was closed.
func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
