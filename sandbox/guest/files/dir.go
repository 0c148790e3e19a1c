package files

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// dirBatch is how many names a READDIR looks at, as in OpenSSH. A name takes at
// most 600 bytes in the reply, which is thus far below maxPacket, and a directory
// of a million names is never held at once.
const dirBatch = 100

// A dir is an open directory.
type dir struct {
	f *os.File
	// names are those read and not yet sent. The first are the two that os leaves
	// out, and OpenSSH does not.
	names []string
}

func (r *responder) opendir(id uint32, p *packet) error {
	name := r.path(p)
	if p.err != nil {
		return p.err
	}
	if r.full() {
		return errTooManyHandles
	}
	fd, err := openAgain(name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	r.dirSeq++
	handle := "d" + strconv.Itoa(r.dirSeq)
	r.dirs[handle] = &dir{f: os.NewFile(uintptr(fd), name), names: []string{".", ".."}}
	r.reply.begin(fxpHandle, id)
	r.reply.text(handle)
	return nil
}

func (r *responder) readdir(id uint32, p *packet) error {
	handle := p.bytes()
	if p.err != nil {
		return p.err
	}
	d, ok := r.dirs[string(handle)]
	if !ok {
		return errNoHandle
	}
	for {
		names, err := d.next()
		if err != nil {
			return err
		}
		if r.list(id, d.f, names) > 0 {
			return nil
		}
	}
}

// next returns some names, or io.EOF.
func (d *dir) next() ([]string, error) {
	if names := d.names; names != nil {
		d.names = nil
		return names, nil
	}
	return d.f.Readdirnames(dirBatch)
}

// list makes the reply for names, and returns how many there still are: one
// deleted in the meantime is left out.
func (r *responder) list(id uint32, d *os.File, names []string) int {
	r.reply.begin(fxpName, id)
	count := len(r.reply.b)
	r.reply.uint32(0)
	n := uint32(0)
	for _, name := range names {
		var st unix.Stat_t
		if err := unix.Fstatat(int(d.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			continue
		}
		r.reply.text(name)
		r.reply.text(r.longName(name, &st))
		r.reply.attrs(&st)
		n++
	}
	r.reply.putUint32(count, n)
	return int(n)
}
