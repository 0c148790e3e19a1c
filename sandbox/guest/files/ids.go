package files

import (
	"encoding/binary"
	"strconv"

	"github.com/pkg/sftp"
	"golang.org/x/sys/unix"
)

// idNames looks names up. It remembers the last, which most files of a
// directory share.
type idNames struct {
	lookup func(id string) string // may be nil
	id     uint32
	name   string
	known  bool
}

// get returns the name of id, or "".
func (n *idNames) get(id uint32) string {
	if n.lookup == nil {
		return ""
	}
	if !n.known || n.id != id {
		n.id, n.name, n.known = id, n.lookup(strconv.FormatUint(uint64(id), 10)), true
	}
	return n.name
}

func (n *idNames) orNumber(id uint32) string {
	if name := n.get(id); name != "" {
		return name
	}
	return strconv.FormatUint(uint64(id), 10)
}

// usersGroups is users-groups-by-id@openssh.com: two strings of numbers in, two
// strings of names out. An id without a name has the empty one.
func (r *responder) usersGroups(id uint32, p *packet) error {
	uids, gids := p.bytes(), p.bytes()
	if p.err != nil {
		return p.err
	}
	if len(uids)%4 != 0 || len(gids)%4 != 0 {
		return unix.EINVAL
	}
	r.reply.begin(fxpExtendedReply, id)
	r.names(&r.users, uids)
	r.names(&r.groups, gids)
	if len(r.reply.b) > maxPacket {
		return failure(sftp.ErrSSHFxFailure, "Too many names for one packet")
	}
	return nil
}

func (r *responder) names(names *idNames, ids []byte) {
	start := len(r.reply.b)
	r.reply.uint32(0)
	for ; len(ids) > 0 && len(r.reply.b) <= maxPacket; ids = ids[4:] {
		r.reply.text(names.get(binary.BigEndian.Uint32(ids)))
	}
	r.reply.putUint32(start, uint32(len(r.reply.b)-start-4))
}
