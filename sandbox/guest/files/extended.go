package files

import (
	"github.com/pkg/sftp"
	"golang.org/x/sys/unix"
)

// extensions are announced and answered: OpenSSH's PROTOCOL, section 4, and for
// the two without an @ draft-ietf-secsh-filexfer-extensions-00.
var extensions = []struct {
	name, version string
	answer        func(*responder, uint32, *packet) error
}{
	{"posix-rename@openssh.com", "1", (*responder).posixRename},
	{"statvfs@openssh.com", "2", (*responder).statvfs},
	{"fstatvfs@openssh.com", "2", (*responder).fstatvfs},
	{"hardlink@openssh.com", "1", (*responder).hardlink},
	{"fsync@openssh.com", "1", (*responder).fsync},
	{"lsetstat@openssh.com", "1", (*responder).lsetstat},
	{"limits@openssh.com", "1", (*responder).limits},
	{"expand-path@openssh.com", "1", (*responder).expandPath},
	{"copy-data", "1", (*responder).copyData},
	{"home-directory", "1", (*responder).homeDirectory},
	{"users-groups-by-id@openssh.com", "1", (*responder).usersGroups},
}

func (r *responder) extended(id uint32, p *packet) error {
	name := p.bytes()
	if p.err != nil {
		return p.err
	}
	for _, e := range extensions {
		if e.name == string(name) {
			return e.answer(r, id, p)
		}
	}
	return failure(sftp.ErrSSHFxOpUnsupported, "Unknown extended request")
}

// fsync is fsync@openssh.com.
func (r *responder) fsync(_ uint32, p *packet) error {
	fd, err := r.openHandle(p)
	if err != nil {
		return err
	}
	return unix.Fsync(fd)
}

// limits is limits@openssh.com.
func (r *responder) limits(id uint32, _ *packet) error {
	r.reply.begin(fxpExtendedReply, id)
	r.reply.uint64(maxPacket)
	r.reply.uint64(maxData) // of a READ
	r.reply.uint64(maxData) // of a WRITE
	r.reply.uint64(maxHandles)
	return nil
}
