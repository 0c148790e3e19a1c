package files

import (
	"io"
	"math"

	"github.com/pkg/sftp"
	"golang.org/x/sys/unix"
)

// copyData is copy-data of draft-ietf-secsh-filexfer-extensions-00, section 7:
// from one open file to another without the client in between. No length means
// to the end of the file.
func (r *responder) copyData(_ uint32, p *packet) error {
	from, fromAt, length := r.files[string(p.bytes())], p.uint64(), p.uint64()
	to, toAt := r.files[string(p.bytes())], p.uint64()
	switch {
	case p.err != nil:
		return p.err
	case from == nil || to == nil:
		return errNoHandle
	case fromAt > math.MaxInt64 || toAt > math.MaxInt64 || length > math.MaxInt64-max(fromAt, toAt):
		return unix.EINVAL
	}
	if length == 0 {
		length = math.MaxInt64 - max(fromAt, toAt)
	}
	if err := disjoint(from, to, int64(fromAt), int64(toAt), int64(length)); err != nil {
		return err
	}
	return copyRange(from, to, int64(fromAt), int64(toAt), int64(length))
}

// disjoint refuses what would never end: a device that has no end, and a file
// that grows by what is read from it.
func disjoint(from, to *file, fromAt, toAt, length int64) error {
	var src, dst unix.Stat_t
	if err := unix.Fstat(from.fd, &src); err != nil {
		return err
	}
	if err := unix.Fstat(to.fd, &dst); err != nil {
		return err
	}
	if src.Mode&unix.S_IFMT != unix.S_IFREG {
		return failure(sftp.ErrSSHFxFailure, "Not a regular file")
	}
	same := src.Dev == dst.Dev && src.Ino == dst.Ino
	if same && (to.appends || fromAt < toAt+length && toAt < fromAt+length) {
		return failure(sftp.ErrSSHFxFailure, "The ranges overlap")
	}
	return nil
}

// copyRange has the kernel copy, which on some file systems only shares the
// blocks. Where it cannot, and where it says that there is nothing, as for files
// of /proc, the rest is read and written.
func copyRange(from, to *file, fromAt, toAt, length int64) error {
	for !to.appends && length > 0 {
		n, err := unix.CopyFileRange(from.fd, &fromAt, to.fd, &toAt, int(min(length, 1<<30)), 0)
		if err != nil || n == 0 {
			break
		}
		length -= int64(n)
	}
	_, err := io.CopyBuffer(io.NewOffsetWriter(to, toAt),
		io.NewSectionReader(from, fromAt, length), make([]byte, maxPacket))
	return err
}
