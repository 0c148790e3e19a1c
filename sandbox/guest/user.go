//go:build linux

package guest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// An account is a user of the sandbox, from its own /etc/passwd.
type account struct {
	name        string
	uid, gid    uint32
	groups      []uint32 // supplementary
	home, shell string
}

// accounts are the users and groups of the sandbox.
type accounts struct {
	usual          string // who is meant when nobody is named; empty: the guest's own user
	passwd, groups colonFile
}

func newAccounts(usual string) *accounts {
	return &accounts{
		usual:  usual,
		passwd: colonFile{path: "/etc/passwd"},
		groups: colonFile{path: "/etc/group"},
	}
}

// lookup finds a user by name, or by number, which need not be in /etc/passwd. After
// a colon there may be a group, likewise.
func (as *accounts) lookup(user string) (account, error) {
	if user == "" {
		user = as.usual
	}
	if user == "" {
		user = strconv.Itoa(os.Getuid())
	}
	name, group, _ := strings.Cut(user, ":")
	a, err := as.passwd.account(name)
	if errors.Is(err, errNoEntry) {
		uid, numErr := strconv.ParseUint(name, 10, 32)
		if numErr != nil {
			return account{}, fmt.Errorf("the sandbox has no user %q", name)
		}
		a = account{name: name, uid: uint32(uid), home: "/"}
		if uid == 0 {
			a.name, a.home = "root", "/root"
		}
	} else if err != nil {
		return account{}, err
	}
	if group != "" {
		gid, ok := as.groups.idOf(group)
		if !ok {
			return account{}, fmt.Errorf("the sandbox has no group %q", group)
		}
		a.gid = gid
	}
	if a.home == "" {
		a.home = "/"
	}
	a.groups = as.groups.idsOf(a.name)
	return a, nil
}

var errNoEntry = errors.New("no such entry")

// account finds a name or uid in a passwd(5) file. A file that is missing has no
// entries.
func (c *colonFile) account(key string) (account, error) {
	for _, f := range c.lines(7) {
		if f[0] != key && f[2] != key {
			continue
		}
		uid, err1 := strconv.ParseUint(f[2], 10, 32)
		gid, err2 := strconv.ParseUint(f[3], 10, 32)
		if err1 != nil || err2 != nil {
			continue
		}
		return account{name: f[0], uid: uint32(uid), gid: uint32(gid), home: f[5], shell: f[6]}, nil
	}
	return account{}, errNoEntry
}

// idsOf returns the groups that list the user in a group(5) file.
func (c *colonFile) idsOf(name string) []uint32 {
	var ids []uint32
	for _, f := range c.lines(4) {
		for member := range strings.SplitSeq(f[3], ",") {
			if gid, err := strconv.ParseUint(f[2], 10, 32); err == nil && member == name {
				ids = append(ids, uint32(gid))
				break
			}
		}
	}
	return ids
}

// idOf returns the group that a name or number means. A number need not be in the
// group(5) file.
func (c *colonFile) idOf(group string) (uint32, bool) {
	for _, f := range c.lines(3) {
		if f[0] == group {
			group = f[2]
			break
		}
	}
	gid, err := strconv.ParseUint(group, 10, 32)
	return uint32(gid), err == nil
}

// nameOf returns the name of a numeric id in a passwd(5) or group(5) file, or id
// itself.
func (c *colonFile) nameOf(id string) string {
	for _, f := range c.lines(3) {
		if f[2] == id {
			return f[0]
		}
	}
	return id
}

// maxAccountFile bounds what is read of a colonFile.
const maxAccountFile = 1 << 20

// A colonFile is a file like passwd(5). It is asked for with every command, and
// read again only when it has changed.
type colonFile struct {
	path string

	mu     sync.Mutex
	stamp  fileStamp // of what was read
	fields [][]string
}

// A fileStamp differs when a file has been changed or replaced.
type fileStamp struct {
	dev, ino     uint64
	size         int64
	mtime, ctime unix.Timespec
}

func stampOf(st *unix.Stat_t) fileStamp {
	return fileStamp{uint64(st.Dev), st.Ino, st.Size, st.Mtim, st.Ctim}
}

// lines returns the lines that have at least n fields.
func (c *colonFile) lines(n int) [][]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var st unix.Stat_t
	if err := unix.Stat(c.path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}
	if c.fields == nil || stampOf(&st) != c.stamp {
		c.read()
	}
	var lines [][]string
	for _, f := range c.fields {
		if len(f) >= n {
			lines = append(lines, f)
		}
	}
	return lines
}

// read reads the file. The stamp is the one from before, so that a change in the
// meantime is seen the next time.
func (c *colonFile) read() {
	c.fields = [][]string{}
	f, err := os.Open(c.path)
	if err != nil {
		return
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return
	}
	c.stamp = stampOf(&st)
	lines := bufio.NewScanner(io.LimitReader(f, maxAccountFile))
	for lines.Scan() {
		c.fields = append(c.fields, strings.Split(lines.Text(), ":"))
	}
}
