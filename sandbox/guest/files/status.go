package files

import (
	"errors"
	"io"
	"strings"

	"github.com/pkg/sftp"
	"golang.org/x/sys/unix"
)

// A status is the code and text of an SSH_FXP_STATUS. The code is one of
// pkg/sftp's errors.
type status struct {
	code error
	text string
}

func failure(code error, text string) error { return status{code, text} }

func (s status) Error() string { return s.text }
func (s status) Unwrap() error { return s.code }

// number returns the code as draft-ietf-secsh-filexfer-02, section 7 counts.
func (s status) number() uint32 {
	switch s.code {
	case sftp.ErrSSHFxOk:
		return uint32(sftp.ErrSSHFxOk)
	case sftp.ErrSSHFxEOF:
		return uint32(sftp.ErrSSHFxEOF)
	case sftp.ErrSSHFxNoSuchFile:
		return uint32(sftp.ErrSSHFxNoSuchFile)
	case sftp.ErrSSHFxPermissionDenied:
		return uint32(sftp.ErrSSHFxPermissionDenied)
	case sftp.ErrSSHFxBadMessage:
		return uint32(sftp.ErrSSHFxBadMessage)
	case sftp.ErrSSHFxOpUnsupported:
		return uint32(sftp.ErrSSHFxOpUnsupported)
	}
	return uint32(sftp.ErrSSHFxFailure)
}

// statusOf gives err, which may be nil, the code that OpenSSH's
// errno_to_portable gives it, and a text without the path: the client knows that.
func statusOf(err error) status {
	if s, ok := errors.AsType[status](err); ok {
		return s
	}
	switch {
	case err == nil:
		return status{sftp.ErrSSHFxOk, "Success"}
	case errors.Is(err, io.EOF):
		return status{sftp.ErrSSHFxEOF, "End of file"}
	}
	errno, ok := errors.AsType[unix.Errno](err)
	if !ok {
		return status{sftp.ErrSSHFxFailure, err.Error()}
	}
	s := status{sftp.ErrSSHFxFailure, errnoText(errno)}
	switch errno {
	case unix.ENOENT, unix.ENOTDIR, unix.EBADF, unix.ELOOP:
		s.code = sftp.ErrSSHFxNoSuchFile
	case unix.EPERM, unix.EACCES, unix.EFAULT:
		s.code = sftp.ErrSSHFxPermissionDenied
	case unix.ENAMETOOLONG, unix.EINVAL:
		s.code = sftp.ErrSSHFxBadMessage
	case unix.ENOSYS, unix.EOPNOTSUPP:
		s.code = sftp.ErrSSHFxOpUnsupported
	}
	return s
}

// errnoText returns the kernel's reason as people know it from other programs.
func errnoText(errno unix.Errno) string {
	text := errno.Error()
	return strings.ToUpper(text[:1]) + text[1:]
}
