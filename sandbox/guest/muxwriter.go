package guest

import (
	"encoding/binary"
	"io"
)

// A muxWriter takes what yamux writes, a frame's header and its data one after the
// other, and writes both at once: each write wakes the other side, which costs more
// than the bytes. The frame that opens a stream waits for the next one too, as
// whoever opens a stream writes its first line right away.
//
// yamux writes in one goroutine.
type muxWriter struct {
	w    io.Writer
	held []byte
	data bool // is next, and not a header
}

// mostCopied bounds the data that is copied to be written with its header.
const mostCopied = 4 << 10

func (m *muxWriter) Write(p []byte) (int, error) {
	next := false // there is more, right away
	if m.data {
		m.data = false
	} else if len(p) == muxHeaderLen {
		m.data = p[1] == muxData && binary.BigEndian.Uint32(p[8:]) > 0
		next = m.data || p[1] == muxWindow && binary.BigEndian.Uint16(p[2:])&muxSYN != 0
	}
	if next || len(m.held) > 0 && len(p) <= mostCopied {
		m.held = append(m.held, p...)
		if next {
			return len(p), nil
		}
		return len(p), m.flush()
	}
	if err := m.flush(); err != nil {
		return 0, err
	}
	return m.w.Write(p)
}

// flush writes what was held.
func (m *muxWriter) flush() error {
	if len(m.held) == 0 {
		return nil
	}
	_, err := m.w.Write(m.held)
	m.held = m.held[:0]
	return err
}
