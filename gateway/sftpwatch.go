package gateway

import (
	"encoding/binary"
	"fmt"
	"sync"

	"golang.org/x/crypto/ssh"
)

// An sftpWatch tells file operations from the bytes of an SFTP session as they
// pass (draft-ietf-secsh-filexfer-02). It looks at the heads of packets only, and
// holds nothing up: what it does not understand it lets go by unseen.
type sftpWatch struct {
	record func(op string, outcome string)

	mu      sync.Mutex
	pending map[uint32]string // operations that have no answer yet, by request id
}

func newSFTPWatch(record func(op, outcome string)) *sftpWatch {
	return &sftpWatch{record: record, pending: make(map[uint32]string)}
}

// maxPendingOps bounds the operations that wait for an answer. Of more than that
// it is not told how they went.
const maxPendingOps = 1024

// auditUnknown is the outcome of what got no answer that was seen.
const auditUnknown = "unknown"

// Types of packets and flags of open.
const (
	sftpOpen     = 3
	sftpSetstat  = 9
	sftpOpendir  = 11
	sftpRemove   = 13
	sftpMkdir    = 14
	sftpRmdir    = 15
	sftpRename   = 18
	sftpSymlink  = 20
	sftpStatus   = 101
	sftpHandle   = 102
	sftpExtended = 200

	sftpFlagWrite = 2
)

// asked takes the head of a packet of the client's, from its type on.
func (w *sftpWatch) asked(head []byte) {
	var m struct {
		ID   uint32
		Rest []byte `ssh:"rest"`
	}
	if ssh.Unmarshal(head[1:], &m) != nil {
		return
	}
	op := ""
	switch head[0] {
	case sftpOpen:
		if path, rest, ok := sftpString(m.Rest); ok && len(rest) >= 4 {
			op = "read " + path
			if binary.BigEndian.Uint32(rest)&sftpFlagWrite != 0 {
				op = "write " + path
			}
		}
	case sftpExtended:
		if name, rest, ok := cutString(m.Rest); ok {
			switch string(name) {
			case "posix-rename@openssh.com":
				op = sftpPaths("rename", rest)
			case "hardlink@openssh.com":
				op = sftpPaths("link", rest)
			case "lsetstat@openssh.com":
				op = sftpPath("change", rest)
			}
		}
	case sftpSetstat:
		op = sftpPath("change", m.Rest)
	case sftpOpendir:
		op = sftpPath("list", m.Rest)
	case sftpRemove:
		op = sftpPath("remove", m.Rest)
	case sftpMkdir:
		op = sftpPath("mkdir", m.Rest)
	case sftpRmdir:
		op = sftpPath("rmdir", m.Rest)
	case sftpRename:
		op = sftpPaths("rename", m.Rest)
	case sftpSymlink:
		op = sftpPaths("symlink", m.Rest)
	}
	if op == "" {
		return
	}
	w.mu.Lock()
	_, again := w.pending[m.ID]
	full := len(w.pending) >= maxPendingOps
	if !full && !again {
		w.pending[m.ID] = op
	}
	w.mu.Unlock()
	if full || again {
		w.record(op, auditUnknown)
	}
}

// answered takes the head of a packet of the server's, from its type on.
func (w *sftpWatch) answered(head []byte) {
	var m struct {
		ID   uint32
		Rest []byte `ssh:"rest"`
	}
	if head[0] != sftpStatus && head[0] != sftpHandle || ssh.Unmarshal(head[1:], &m) != nil {
		return
	}
	w.mu.Lock()
	op, known := w.pending[m.ID]
	delete(w.pending, m.ID)
	w.mu.Unlock()
	if !known {
		return
	}
	outcome := auditOK
	if head[0] == sftpStatus && (len(m.Rest) < 4 || binary.BigEndian.Uint32(m.Rest) != 0) {
		outcome = auditFailed
	}
	w.record(op, outcome)
}

// end records what got no answer.
func (w *sftpWatch) end() {
	w.mu.Lock()
	pending := w.pending
	w.pending = make(map[uint32]string)
	w.mu.Unlock()
	for _, op := range pending {
		w.record(op, auditUnknown)
	}
}

// cutString takes a string off the front of b.
func cutString(b []byte) (s, rest []byte, ok bool) {
	if len(b) < 4 {
		return nil, nil, false
	}
	n := binary.BigEndian.Uint32(b)
	if uint64(n) > uint64(len(b)-4) {
		return nil, nil, false
	}
	return b[4 : 4+n], b[4+n:], true
}

func sftpString(b []byte) (path string, rest []byte, ok bool) {
	s, rest, ok := cutString(b)
	return fmt.Sprintf("%.400q", s), rest, ok
}

func sftpPath(verb string, b []byte) string {
	path, _, ok := sftpString(b)
	if !ok {
		return ""
	}
	return verb + " " + path
}

func sftpPaths(verb string, b []byte) string {
	one, rest, ok := sftpString(b)
	if !ok {
		return ""
	}
	other, _, ok := sftpString(rest)
	if !ok {
		return ""
	}
	return verb + " " + one + " " + other
}

// maxSFTPHead is how much of a packet is looked at: two paths as long as Linux has
// them, and what stands around them.
const maxSFTPHead = 2*4096 + 256

// maxSFTPPacket is a length that no packet has. What claims more is not SFTP.
const maxSFTPPacket = 256 << 20

// A packetCutter finds the packets in a stream of bytes and hands on their heads,
// from the type on. wanted says of which types.
type packetCutter struct {
	wanted func(typ byte) bool
	head   func([]byte)

	buf  []byte // the length, and the beginning of the packet
	skip int    // bytes of a packet that nobody wants
	lost bool   // this is not SFTP
}

// pass looks at the next bytes.
func (c *packetCutter) pass(p []byte) {
	for len(p) > 0 && !c.lost {
		if c.skip > 0 {
			n := min(c.skip, len(p))
			c.skip -= n
			p = p[n:]
			continue
		}
		n := min(c.missing(), len(p))
		c.buf = append(c.buf, p[:n]...)
		p = p[n:]
		c.cut()
	}
}

// missing is how many bytes there are to be until more is known of the packet.
func (c *packetCutter) missing() int {
	if len(c.buf) < 5 {
		return 5 - len(c.buf)
	}
	return c.look() - len(c.buf)
}

// look is how much of the packet is to be in buf.
func (c *packetCutter) look() int {
	if !c.wanted(c.buf[4]) {
		return 5
	}
	return 4 + min(int(binary.BigEndian.Uint32(c.buf)), maxSFTPHead)
}

func (c *packetCutter) cut() {
	if len(c.buf) < 5 {
		return
	}
	length := binary.BigEndian.Uint32(c.buf)
	if length == 0 || length > maxSFTPPacket {
		c.lost = true
		return
	}
	if len(c.buf) < c.look() {
		return
	}
	if c.wanted(c.buf[4]) {
		c.head(c.buf[4:])
	}
	c.skip = 4 + int(length) - len(c.buf)
	c.buf = c.buf[:0]
}

// A watchedChannel is a channel with SFTP on it that is watched.
type watchedChannel struct {
	ssh.Channel
	up, down packetCutter
}

func watchSFTP(ch ssh.Channel, w *sftpWatch) *watchedChannel {
	return &watchedChannel{
		Channel: ch,
		up: packetCutter{head: w.asked, wanted: func(typ byte) bool {
			switch typ {
			case sftpOpen, sftpSetstat, sftpOpendir, sftpRemove, sftpMkdir, sftpRmdir, sftpRename, sftpSymlink, sftpExtended:
				return true
			}
			return false
		}},
		down: packetCutter{head: w.answered, wanted: func(typ byte) bool { return typ == sftpStatus || typ == sftpHandle }},
	}
}

func (c *watchedChannel) Read(p []byte) (int, error) {
	n, err := c.Channel.Read(p)
	c.up.pass(p[:n])
	return n, err
}

func (c *watchedChannel) Write(p []byte) (int, error) {
	n, err := c.Channel.Write(p)
	c.down.pass(p[:n])
	return n, err
}
