//go:build linux

package guest

import (
	"io"
	"os"
	"strings"
	"syscall"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// openDir gives a script the file in which it tells the folder that it ends in. It
// is in memory and has no name, so that nobody else can write to it. Without it the
// folder is not known, which is all.
func (j *job) openDir(attr *syscall.ProcAttr) {
	fd, err := unix.MemfdCreate("folder", unix.MFD_CLOEXEC)
	if err != nil {
		return
	}
	unix.Fchmod(fd, 0o666) // the user opens it anew
	theirs, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		unix.Close(fd)
		return
	}
	j.dir = os.NewFile(uintptr(fd), "folder")
	const none = ^uintptr(0)
	for len(attr.Files) < dirDescriptor {
		attr.Files = append(attr.Files, none)
	}
	attr.Files = append(attr.Files, uintptr(theirs))
}

// lastDir returns the folder that the script has told. It may be asked for once.
func (j *job) lastDir() string {
	if j == nil || j.dir == nil {
		return ""
	}
	defer j.dir.Close()
	b, err := io.ReadAll(io.NewSectionReader(j.dir, 0, maxDir+1))
	dir := strings.TrimSuffix(string(b), "\n")
	if err != nil || len(dir) > maxDir || !strings.HasPrefix(dir, "/") || !utf8.ValidString(dir) || strings.Contains(dir, "\x00") {
		return ""
	}
	return dir
}
