package files

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// An scpEntry is a line that announces a file or a directory:
// "C0644 12 name" or "D0755 0 name".
type scpEntry struct {
	dir  bool
	mode uint32 // of the bits 07777
	size int64
	name string // one component, neither "." nor ".."
}

func (e scpEntry) String() string {
	kind := 'C'
	if e.dir {
		kind = 'D'
	}
	return fmt.Sprintf("%c%04o %d %s", kind, e.mode, e.size, e.name)
}

var errScpLine = errors.New("protocol error: bad line")

// parseScpEntry is the reverse of String. The name comes from a stranger, and
// would otherwise choose where it lands.
func parseScpEntry(line string) (scpEntry, error) {
	var e scpEntry
	if len(line) < 6 || line[0] != 'C' && line[0] != 'D' || line[5] != ' ' {
		return e, errScpLine
	}
	e.dir = line[0] == 'D'
	mode, err := strconv.ParseUint(line[1:5], 8, 12)
	if err != nil {
		return e, errors.New("protocol error: bad mode")
	}
	e.mode = uint32(mode)
	digits, name, ok := strings.Cut(line[6:], " ")
	size, err := strconv.ParseUint(digits, 10, 63)
	if !ok || err != nil {
		return e, errors.New("protocol error: bad size")
	}
	e.size = int64(size)
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00\n") {
		return e, errors.New("protocol error: unexpected file name")
	}
	e.name = name
	return e, nil
}

// scpTimes is a line that says when the next entry was modified and read:
// "T1700000000 0 1700000000 0", each in seconds and microseconds.
type scpTimes [2]unix.Timespec // access first, as the kernel has it

func (t scpTimes) String() string {
	return fmt.Sprintf("T%d %d %d %d", t[1].Sec, t[1].Nsec/1000, t[0].Sec, t[0].Nsec/1000)
}

// parseScpTimes is the reverse of String.
func parseScpTimes(line string) (scpTimes, error) {
	var t scpTimes
	rest, ok := strings.CutPrefix(line, "T")
	fields := strings.Split(rest, " ")
	if !ok || len(fields) != 4 {
		return t, errScpLine
	}
	for i, at := range []*unix.Timespec{&t[1], &t[0]} {
		sec, err := strconv.ParseInt(fields[2*i], 10, 64)
		usec, err2 := strconv.ParseUint(fields[2*i+1], 10, 32)
		if err != nil || err2 != nil || usec > 999999 {
			return t, errors.New("protocol error: bad time")
		}
		*at = unix.Timespec{Sec: sec, Nsec: int64(usec) * 1000}
	}
	return t, nil
}
