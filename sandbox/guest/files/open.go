package files

import (
	"io"
	"strconv"

	"github.com/pkg/sftp"
	"golang.org/x/sys/unix"
)

// Flags of OPEN: draft-ietf-secsh-filexfer-02, section 6.3.
const (
	openRead   = 0x01
	openWrite  = 0x02
	openAppend = 0x04
	openCreate = 0x08
	openTrunc  = 0x10
	openExcl   = 0x20
)

var errTooManyHandles = failure(sftp.ErrSSHFxFailure, "Too many open files")

// A file is an open one. It is a bare descriptor: an os.File would ask the kernel
// twice more with each, for what no file has.
type file struct {
	fd      int
	appends bool
}

// openFile opens name as OPEN's flags and attributes say.
func openFile(name string, flags uint32, a attrs) (*file, error) {
	// Without O_NONBLOCK a FIFO without a peer would hold up the session.
	mode := unix.O_CLOEXEC | unix.O_NOCTTY | unix.O_NONBLOCK
	switch flags & (openRead | openWrite) {
	case openRead | openWrite:
		mode |= unix.O_RDWR
	case openWrite:
		mode |= unix.O_WRONLY
	}
	for _, f := range []struct {
		flag uint32
		bit  int
	}{
		{openAppend, unix.O_APPEND}, {openCreate, unix.O_CREAT}, {openTrunc, unix.O_TRUNC}, {openExcl, unix.O_EXCL},
	} {
		if flags&f.flag != 0 {
			mode |= f.bit
		}
	}
	perm := uint32(0o666)
	if a.flags&attrMode != 0 {
		perm = a.mode & 0o7777
	}
	fd, err := openAgain(name, mode, perm)
	if err != nil {
		return nil, err
	}
	if err := seekable(fd); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &file{fd, flags&openAppend != 0}, nil
}

// openAgain is open(2), again if a signal came first, as it may on file systems
// that have a server.
func openAgain(name string, mode int, perm uint32) (int, error) {
	for {
		fd, err := unix.Open(name, mode, perm)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// seekable is nil for what READ and WRITE make sense on, since both name an
// offset: regular files, and devices such as /dev/null. Sockets, FIFOs and
// terminals could also block, and hold up more than themselves.
func seekable(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return nil
	case unix.S_IFDIR:
		return unix.EISDIR
	}
	if _, err := unix.Seek(fd, 0, io.SeekCurrent); err != nil {
		return failure(sftp.ErrSSHFxFailure, "Not a regular file")
	}
	return nil
}

// ReadAt is io.ReaderAt.
func (f *file) ReadAt(p []byte, offset int64) (int, error) {
	for n := 0; ; {
		m, err := f.pread(p[n:], offset+int64(n))
		n += m
		if err != nil || n == len(p) {
			return n, err
		}
	}
}

// pread reads what one call of the kernel gives. io.EOF if there is no more.
func (f *file) pread(p []byte, offset int64) (int, error) {
	for {
		n, err := unix.Pread(f.fd, p, offset)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return 0, err
		case n == 0 && len(p) > 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

// WriteAt is io.WriterAt, but that what is open for appending is appended to.
func (f *file) WriteAt(p []byte, offset int64) (int, error) {
	for n := 0; n < len(p); {
		var m int
		var err error
		if f.appends { // which wins over the offset
			m, err = unix.Write(f.fd, p[n:])
		} else {
			m, err = unix.Pwrite(f.fd, p[n:], offset+int64(n))
		}
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return n, err
		}
		n += m
	}
	return len(p), nil
}

// Close may be the first to tell of a full disk.
func (f *file) Close() error { return unix.Close(f.fd) }

// open opens a file.
func (r *responder) open(id uint32, p *packet) error {
	name, flags, a := r.path(p), p.uint32(), p.attrs()
	if p.err != nil {
		return p.err
	}
	if r.full() {
		return errTooManyHandles
	}
	f, err := openFile(name, flags, a)
	if err != nil {
		return err
	}
	r.fileSeq++
	handle := strconv.Itoa(r.fileSeq)
	r.files[handle] = f
	r.reply.begin(fxpHandle, id)
	r.reply.text(handle)
	return nil
}

// closeHandle closes a file or directory.
func (r *responder) closeHandle(p *packet) error {
	handle := p.bytes()
	if p.err != nil {
		return p.err
	}
	if d, ok := r.dirs[string(handle)]; ok {
		delete(r.dirs, string(handle))
		return d.f.Close()
	}
	f, ok := r.files[string(handle)]
	if !ok {
		return errNoHandle
	}
	delete(r.files, string(handle))
	return f.Close()
}

// read answers READ with what there is, which may be less than was asked for.
func (r *responder) read(id uint32, p *packet) error {
	handle, offset, length := p.bytes(), p.uint64(), p.uint32()
	if p.err != nil {
		return p.err
	}
	f := r.files[string(handle)]
	if f == nil {
		return errNoHandle
	}
	r.reply.begin(fxpData, id)
	data := r.reply.room(int(min(length, maxData)))
	n, err := f.pread(data, int64(offset))
	if err != nil {
		return err
	}
	r.reply.filled(n)
	return nil
}

func (r *responder) write(p *packet) error {
	handle, offset := p.bytes(), p.uint64()
	data := p.bytes()
	if p.err != nil {
		return p.err
	}
	f := r.files[string(handle)]
	if f == nil {
		return errNoHandle
	}
	_, err := f.WriteAt(data, int64(offset))
	return err
}

// full is whether there may be no further handle.
func (r *responder) full() bool { return len(r.files)+len(r.dirs) >= maxHandles }

// openHandle reads a handle and returns the descriptor of what is open under it.
func (r *responder) openHandle(p *packet) (int, error) {
	handle := p.bytes()
	if p.err != nil {
		return -1, p.err
	}
	if f, ok := r.files[string(handle)]; ok {
		return f.fd, nil
	}
	if d, ok := r.dirs[string(handle)]; ok {
		return int(d.f.Fd()), nil
	}
	return -1, errNoHandle
}
