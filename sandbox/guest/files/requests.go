package files

import (
	"github.com/pkg/sftp"
)

// answer carries out one request. It makes r.reply if the answer is more than a
// status, and returns what the status says otherwise.
func (r *responder) answer(kind byte, id uint32, p *packet) error {
	if r.ReadOnly && !reads(kind, *p) {
		return errReadOnly
	}
	switch kind {
	case fxpInit:
		return r.greet()
	case fxpOpen:
		return r.open(id, p)
	case fxpClose:
		return r.closeHandle(p)
	case fxpRead:
		return r.read(id, p)
	case fxpWrite:
		return r.write(p)
	case fxpLstat:
		return r.lstat(id, p)
	case fxpFstat:
		return r.fstat(id, p)
	case fxpSetstat:
		return r.setstat(p)
	case fxpFsetstat:
		return r.fsetstat(p)
	case fxpOpendir:
		return r.opendir(id, p)
	case fxpReaddir:
		return r.readdir(id, p)
	case fxpRemove:
		return r.remove(p)
	case fxpMkdir:
		return r.mkdir(p)
	case fxpRmdir:
		return r.rmdir(p)
	case fxpRealpath:
		return r.realpath(id, p)
	case fxpStat:
		return r.stat(id, p)
	case fxpRename:
		return r.rename(p)
	case fxpReadlink:
		return r.readlink(id, p)
	case fxpSymlink:
		return r.symlink(p)
	case fxpExtended:
		return r.extended(id, p)
	}
	return failure(sftp.ErrSSHFxOpUnsupported, "Operation unsupported")
}

// greet answers INIT. What it announces is what works. Whatever version the
// client has, this one is the lower.
func (r *responder) greet() error {
	r.greeted = true
	r.reply.begin(fxpVersion, version)
	for _, e := range extensions {
		r.reply.text(e.name)
		r.reply.text(e.version)
	}
	return nil
}

var errNoHandle = failure(sftp.ErrSSHFxFailure, "No such handle")
