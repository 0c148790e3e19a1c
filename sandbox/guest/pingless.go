package guest

import (
	"encoding/binary"
	"fmt"
	"io"
)

// A pingless reads yamux from a guest, and fails at its first ping. Neither side
// sends any (see muxConfig), and yamux answers each in a goroutine of its own: a
// guest that sends them and does not read the answers would have the gateway's
// memory.
type pingless struct {
	r io.Reader

	header [muxHeaderLen]byte // of the frame that is under way
	have   int                // bytes of it
	body   uint32             // bytes of the frame's data that are still to come
}

// yamux's frames: version, type, two bytes of flags, four each of the stream's
// number and the length.
const (
	muxHeaderLen = 12
	muxData      = 0
	muxWindow    = 1
	muxPing      = 2
	muxSYN       = 1 // flag: the first frame of a stream
)

func (p *pingless) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	if p.hasPing(b[:n]) {
		return 0, fmt.Errorf("%w: ping", errProtocol)
	}
	return n, err
}

// hasPing follows the frames through the next bytes of the stream.
func (p *pingless) hasPing(b []byte) bool {
	for len(b) > 0 {
		if p.body > 0 {
			n := min(uint32(len(b)), p.body)
			p.body -= n
			b = b[n:]
			continue
		}
		n := copy(p.header[p.have:], b)
		p.have += n
		b = b[n:]
		if p.have < muxHeaderLen {
			return false
		}
		p.have = 0
		switch p.header[1] {
		case muxPing:
			return true
		case muxData:
			p.body = binary.BigEndian.Uint32(p.header[8:])
		}
	}
	return false
}
