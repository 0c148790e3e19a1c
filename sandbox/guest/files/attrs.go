package files

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Which fields an ATTRS has: draft-ietf-secsh-filexfer-02, section 5.
const (
	attrSize     = 0x00000001
	attrOwner    = 0x00000002
	attrMode     = 0x00000004
	attrTimes    = 0x00000008
	attrExtended = 0x80000000
)

// attrs are a file's attributes. Only those that flags names are there.
type attrs struct {
	flags        uint32
	size         uint64
	uid, gid     uint32
	mode         uint32
	atime, mtime uint32 // seconds since 1970, to 2106
}

func (p *packet) attrs() attrs {
	a := attrs{flags: p.uint32()}
	if a.flags&attrSize != 0 {
		a.size = p.uint64()
	}
	if a.flags&attrOwner != 0 {
		a.uid, a.gid = p.uint32(), p.uint32()
	}
	if a.flags&attrMode != 0 {
		a.mode = p.uint32()
	}
	if a.flags&attrTimes != 0 {
		a.atime, a.mtime = p.uint32(), p.uint32()
	}
	if a.flags&attrExtended != 0 {
		for n := p.uint32(); n > 0 && p.err == nil; n-- {
			p.bytes() // name
			p.bytes() // value
		}
	}
	return a
}

// attrs appends what st says.
func (r *reply) attrs(st *unix.Stat_t) {
	r.uint32(attrSize | attrOwner | attrMode | attrTimes)
	r.uint64(uint64(st.Size))
	r.uint32(st.Uid)
	r.uint32(st.Gid)
	r.uint32(st.Mode)
	r.uint32(uint32(st.Atim.Sec))
	r.uint32(uint32(st.Mtim.Sec))
}

// A target is something that has attributes.
type target interface {
	truncate(size int64) error
	chown(uid, gid int) error
	chmod(mode uint32) error
	chtimes(times [2]unix.Timespec) error
	stat(*unix.Stat_t) error
}

// apply sets the attributes that are there, and goes on with the others if one
// cannot be set, as clients send several at once. The error is the first. The
// mode comes after the owner, since a new owner clears the set-id bits, and the
// times after the size.
func (a attrs) apply(t target) error {
	var first error
	note := func(err error) {
		if first == nil {
			first = err
		}
	}
	if a.flags&attrSize != 0 {
		note(t.truncate(int64(a.size)))
	}
	if a.flags&attrOwner != 0 {
		note(t.chown(int(int32(a.uid)), int(int32(a.gid))))
	}
	if a.flags&attrMode != 0 {
		note(t.chmod(a.mode & 0o7777))
	}
	if a.flags&attrTimes != 0 {
		note(t.chtimes([2]unix.Timespec{{Sec: int64(a.atime)}, {Sec: int64(a.mtime)}}))
	}
	return first
}

// byName is the target of SETSTAT. Links are followed.
type byName string

func (n byName) truncate(size int64) error  { return unix.Truncate(string(n), size) }
func (n byName) chown(uid, gid int) error   { return unix.Chown(string(n), uid, gid) }
func (n byName) chmod(mode uint32) error    { return unix.Chmod(string(n), mode) }
func (n byName) stat(st *unix.Stat_t) error { return unix.Stat(string(n), st) }
func (n byName) chtimes(times [2]unix.Timespec) error {
	return unix.UtimesNanoAt(unix.AT_FDCWD, string(n), times[:], 0)
}

// byLink is the target of lsetstat@openssh.com. Links are not followed, and have
// neither a size nor a mode of their own.
type byLink string

func (n byLink) truncate(int64) error       { return unix.EINVAL }
func (n byLink) chown(uid, gid int) error   { return unix.Lchown(string(n), uid, gid) }
func (n byLink) stat(st *unix.Stat_t) error { return unix.Lstat(string(n), st) }
func (n byLink) chtimes(times [2]unix.Timespec) error {
	return unix.UtimesNanoAt(unix.AT_FDCWD, string(n), times[:], unix.AT_SYMLINK_NOFOLLOW)
}

// chmod looks first, because only newer kernels have fchmodat2.
func (n byLink) chmod(mode uint32) error {
	var st unix.Stat_t
	if err := unix.Lstat(string(n), &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return unix.EOPNOTSUPP
	}
	return unix.Chmod(string(n), mode)
}

// byHandle is the target of FSETSTAT: the open file, wherever its name is now.
type byHandle int

func (h byHandle) truncate(size int64) error            { return unix.Ftruncate(int(h), size) }
func (h byHandle) chown(uid, gid int) error             { return unix.Fchown(int(h), uid, gid) }
func (h byHandle) chmod(mode uint32) error              { return unix.Fchmod(int(h), mode) }
func (h byHandle) stat(st *unix.Stat_t) error           { return unix.Fstat(int(h), st) }
func (h byHandle) chtimes(times [2]unix.Timespec) error { return futimens(int(h), &times) }

// futimens is not in x/sys/unix: utimensat(2) with no path means the descriptor
// itself, and unlike Futimes works without /proc.
func futimens(fd int, times *[2]unix.Timespec) error {
	_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(times)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func (r *responder) stat(id uint32, p *packet) error  { return r.sendAttrs(id, p, byName(r.path(p))) }
func (r *responder) lstat(id uint32, p *packet) error { return r.sendAttrs(id, p, byLink(r.path(p))) }

func (r *responder) fstat(id uint32, p *packet) error {
	fd, err := r.openHandle(p)
	if err != nil {
		return err
	}
	return r.sendAttrs(id, p, byHandle(fd))
}

func (r *responder) sendAttrs(id uint32, p *packet, t target) error {
	var st unix.Stat_t
	if p.err != nil {
		return p.err
	}
	if err := t.stat(&st); err != nil {
		return err
	}
	r.reply.begin(fxpAttrs, id)
	r.reply.attrs(&st)
	return nil
}

func (r *responder) setstat(p *packet) error            { return p.apply(byName(r.path(p))) }
func (r *responder) lsetstat(_ uint32, p *packet) error { return p.apply(byLink(r.path(p))) }

func (r *responder) fsetstat(p *packet) error {
	fd, err := r.openHandle(p)
	if err != nil {
		return err
	}
	return p.apply(byHandle(fd))
}

// apply reads attributes and sets them on t.
func (p *packet) apply(t target) error {
	a := p.attrs()
	if p.err != nil {
		return p.err
	}
	return a.apply(t)
}
