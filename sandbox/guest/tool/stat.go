package tool

import (
	"io/fs"
	"syscall"
)

// statOf returns what the system says of a file beyond what Go has.
func statOf(fi fs.FileInfo) (*syscall.Stat_t, bool) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	return st, ok
}

// suffix marks what a folder's entry is, as ls does.
func suffix(m fs.FileMode) string {
	switch {
	case m&fs.ModeSymlink != 0:
		return "@"
	case m&fs.ModeNamedPipe != 0:
		return "|"
	case m&fs.ModeSocket != 0:
		return "="
	}
	return ""
}
