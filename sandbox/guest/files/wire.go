package files

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/pkg/sftp"
)

// Packet types: draft-ietf-secsh-filexfer-02, section 3.
const (
	fxpInit          = 1
	fxpVersion       = 2
	fxpOpen          = 3
	fxpClose         = 4
	fxpRead          = 5
	fxpWrite         = 6
	fxpLstat         = 7
	fxpFstat         = 8
	fxpSetstat       = 9
	fxpFsetstat      = 10
	fxpOpendir       = 11
	fxpReaddir       = 12
	fxpRemove        = 13
	fxpMkdir         = 14
	fxpRmdir         = 15
	fxpRealpath      = 16
	fxpStat          = 17
	fxpRename        = 18
	fxpReadlink      = 19
	fxpSymlink       = 20
	fxpStatus        = 101
	fxpHandle        = 102
	fxpData          = 103
	fxpName          = 104
	fxpAttrs         = 105
	fxpExtended      = 200
	fxpExtendedReply = 201
)

// The bounds that limits@openssh.com announces. They are OpenSSH's own: a packet
// has at most 256 KiB behind its length, and its data leaves 1 KiB for the rest.
const (
	version    = 3
	maxPacket  = 256 << 10
	maxData    = maxPacket - 1024
	maxHandles = 1000
)

// A packet is what is left to read of a request. The first field that is missing
// or not allowed sets err, and all that is read after it is empty.
type packet struct {
	rest []byte
	err  error
}

func (p *packet) take(n uint32) []byte {
	if p.err == nil && uint64(n) > uint64(len(p.rest)) {
		p.err = failure(sftp.ErrSSHFxBadMessage, "Packet too short")
	}
	if p.err != nil {
		return nil
	}
	b := p.rest[:n:n]
	p.rest = p.rest[n:]
	return b
}

func (p *packet) uint32() uint32 {
	b := p.take(4)
	if b == nil {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

func (p *packet) uint64() uint64 {
	b := p.take(8)
	if b == nil {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

// bytes reads a string that is only valid as long as the packet.
func (p *packet) bytes() []byte { return p.take(p.uint32()) }

// text reads a string that goes to the kernel, so it must not have a NUL.
func (p *packet) text() string {
	b := p.bytes()
	if bytes.IndexByte(b, 0) >= 0 {
		p.err = failure(sftp.ErrSSHFxFailure, "A name cannot contain a NUL")
		return ""
	}
	return string(b)
}

// A reply is a packet in the making, its length field included.
type reply struct{ b []byte }

// begin drops what was there and starts a reply to request id.
func (r *reply) begin(kind byte, id uint32) {
	r.b = append(r.b[:0], 0, 0, 0, 0, kind)
	r.uint32(id)
}

func (r *reply) uint32(v uint32) { r.b = binary.BigEndian.AppendUint32(r.b, v) }
func (r *reply) uint64(v uint64) { r.b = binary.BigEndian.AppendUint64(r.b, v) }

func (r *reply) text(s string) {
	r.uint32(uint32(len(s)))
	r.b = append(r.b, s...)
}

// room returns where n bytes of data can be put behind what is there.
func (r *reply) room(n int) []byte {
	r.b = slices.Grow(r.b, 4+n)
	return r.b[len(r.b)+4 : len(r.b)+4+n]
}

// filled appends the first n bytes that are in room.
func (r *reply) filled(n int) {
	r.uint32(uint32(n))
	r.b = r.b[:len(r.b)+n]
}

// putUint32 fills in what could not be known when it was appended at offset at.
func (r *reply) putUint32(at int, v uint32) { binary.BigEndian.PutUint32(r.b[at:], v) }

// name makes the reply to REALPATH and READLINK: one name without attributes.
func (r *reply) name(id uint32, name string) {
	r.begin(fxpName, id)
	r.uint32(1)
	r.text(name)
	r.text(name)
	r.uint32(0)
}

// status makes the reply that says how a request ended.
func (r *reply) status(id uint32, err error) {
	s := statusOf(err)
	r.begin(fxpStatus, id)
	r.uint32(s.number())
	r.text(s.text)
	r.text("") // language tag
}

// packet returns the whole, with its length filled in. It is valid until begin.
func (r *reply) packet() []byte {
	r.putUint32(0, uint32(len(r.b)-4))
	return r.b
}
