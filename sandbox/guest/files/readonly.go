package files

import (
	"slices"

	"github.com/pkg/sftp"
)

// errReadOnly is the answer to whoever may only read.
var errReadOnly = failure(sftp.ErrSSHFxPermissionDenied, "Files are served for reading only")

// reads says whether a request changes nothing. What is not known to read is taken
// to change something.
func reads(kind byte, p packet) bool {
	switch kind {
	case fxpInit, fxpClose, fxpRead, fxpLstat, fxpFstat, fxpOpendir, fxpReaddir, fxpRealpath, fxpStat, fxpReadlink:
		return true
	case fxpOpen:
		p.bytes() // name
		return p.uint32() == openRead && p.err == nil
	case fxpExtended:
		return slices.Contains([]string{
			"statvfs@openssh.com", "fstatvfs@openssh.com", "limits@openssh.com", "expand-path@openssh.com",
			"home-directory", "users-groups-by-id@openssh.com",
		}, string(p.bytes()))
	}
	return false
}
