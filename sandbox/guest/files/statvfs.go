package files

import "golang.org/x/sys/unix"

// statvfs is statvfs@openssh.com.
func (r *responder) statvfs(id uint32, p *packet) error {
	name := r.path(p)
	if p.err != nil {
		return p.err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(name, &st); err != nil {
		return err
	}
	r.sendStatvfs(id, &st)
	return nil
}

// fstatvfs is fstatvfs@openssh.com.
func (r *responder) fstatvfs(id uint32, p *packet) error {
	fd, err := r.openHandle(p)
	if err != nil {
		return err
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return err
	}
	r.sendStatvfs(id, &st)
	return nil
}

func (r *responder) sendStatvfs(id uint32, st *unix.Statfs_t) {
	fragment := st.Frsize
	if fragment == 0 {
		fragment = st.Bsize
	}
	r.reply.begin(fxpExtendedReply, id)
	for _, v := range []uint64{
		uint64(st.Bsize), uint64(fragment),
		st.Blocks, st.Bfree, st.Bavail,
		st.Files, st.Ffree, st.Ffree,
		uint64(uint32(st.Fsid.Val[0])) | uint64(uint32(st.Fsid.Val[1]))<<32,
		uint64(st.Flags) & (unix.ST_RDONLY | unix.ST_NOSUID), // the protocol's two, with the same bits
		uint64(st.Namelen),
	} {
		r.reply.uint64(v)
	}
}
