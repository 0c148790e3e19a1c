package guest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"
)

// halfCloser is a transport that can end the direction away from here alone.
type halfCloser interface{ CloseWrite() error }

// A stream is one bidirectional stream of bytes, each direction of which ends by
// itself. Reads and writes may run at the same time.
type stream struct {
	r     *bufio.Reader // holds what followed the first line
	w     io.Writer
	close func() error // of both directions, for good
	end   func() error // of the direction away from here
	over  atomic.Bool  // the peer has said its last word
}

func (s *stream) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil {
		s.over.Store(true)
	}
	return n, err
}

func (s *stream) Write(p []byte) (int, error) { return s.w.Write(p) }
func (s *stream) CloseWrite() error           { return s.end() }
func (s *stream) Close() error                { return s.close() }

// readLine reads the first line, or closes the stream if that takes too long.
func (s *stream) readLine(limit int, timeout time.Duration, v any) error {
	late := time.AfterFunc(timeout, func() { s.close() })
	err := readLine(s.r, limit, v)
	if !late.Stop() && err != nil {
		err = fmt.Errorf("no answer within %v", timeout)
	}
	return err
}

// connStream is a stream on a connection of its own. r is what reads from c. A
// transport without half-close ends both directions at once.
func connStream(c io.ReadWriteCloser, r *bufio.Reader) *stream {
	end := c.Close
	if h, ok := c.(halfCloser); ok {
		end = h.CloseWrite
	}
	return &stream{r: r, w: c, close: c.Close, end: end}
}

// maxStreams bounds the streams of one control connection. It is below yamux's
// backlog, so that opening one never waits for the peer.
const (
	maxStreams   = 1000
	maxUnknown   = 256 // that a peer has opened and not said what they are
	muxBacklog   = 1024
	streamWindow = 1 << 20 // bytes that a stream may have in flight, each way
)

func muxConfig() *yamux.Config {
	c := yamux.DefaultConfig()
	c.AcceptBacklog = muxBacklog
	c.MaxStreamWindowSize = streamWindow
	c.LogOutput = io.Discard
	// A paused sandbox answers nothing for hours and is not dead, and a
	// half-closed stream may live as long as its other half has something to
	// say: no timer may judge them.
	c.EnableKeepAlive = false
	c.ConnectionWriteTimeout = 24 * time.Hour
	c.StreamOpenTimeout = 0
	c.StreamCloseTimeout = 0
	return c
}

// A link is one control connection and the streams on it. yamux can end one
// direction of a stream but not tear down both; abort streams add that.
type link struct {
	mux *yamux.Session

	mu      sync.Mutex
	streams map[uint32]*yamux.Stream // open ones, which the peer may abort
}

func newLink(mux *yamux.Session) *link {
	return &link{mux: mux, streams: make(map[uint32]*yamux.Stream)}
}

var errTooManyStreams = errors.New("too many streams to one sandbox")

// open opens a stream that begins with h.
func (l *link) open(h header) (*stream, error) {
	if l.mux.NumStreams() >= maxStreams {
		return nil, errTooManyStreams
	}
	y, err := l.mux.OpenStream()
	if err != nil {
		return nil, err
	}
	if err := writeLine(y, h); err != nil {
		y.Close()
		return nil, err
	}
	return l.track(y), nil
}

// accept waits for the next stream that the peer opens, and its first line.
// Abort streams are dealt with here. The error ends the link.
func (l *link) accept(handle func(*stream, header)) error {
	unknown := make(chan struct{}, maxUnknown)
	for {
		y, err := l.mux.AcceptStream()
		if err != nil {
			return err
		}
		unknown <- struct{}{} // for helloTimeout at most
		go func() {
			s := l.track(y)
			var h header
			err := s.readLine(maxHeader, helloTimeout, &h)
			<-unknown
			if err != nil {
				s.Close()
				return
			}
			if h.Kind == kindAbort {
				s.over.Store(true) // or the two sides would abort each other's aborts
				s.Close()
				l.aborted(h.Stream)
				return
			}
			handle(s, h)
		}()
	}
}

func (l *link) track(y *yamux.Stream) *stream {
	id := y.StreamID()
	l.mu.Lock()
	l.streams[id] = y
	l.mu.Unlock()
	s := &stream{r: bufio.NewReader(y), w: y, end: y.Close}
	var once sync.Once
	s.close = func() error {
		once.Do(func() {
			l.mu.Lock()
			delete(l.streams, id)
			l.mu.Unlock()
			tearDown(y)
			if !s.over.Load() {
				go l.abort(id) // the peer may not read at all
			}
		})
		return nil
	}
	return s
}

// tearDown ends both directions here. yamux itself would let a reader wait on.
func tearDown(y *yamux.Stream) {
	y.Close()
	y.SetDeadline(time.Unix(1, 0)) // wakes a reader and a writer
}

// abort tells the peer to tear down a stream that may still have something to
// say. A peer that has let too many streams pile up is left altogether.
func (l *link) abort(id uint32) {
	s, err := l.mux.OpenStream()
	if err != nil {
		return
	}
	defer s.Close()
	if l.mux.NumStreams() > maxStreams {
		l.mux.Close()
		return
	}
	writeLine(s, header{Kind: kindAbort, Stream: id})
}

func (l *link) aborted(id uint32) {
	l.mu.Lock()
	y := l.streams[id]
	delete(l.streams, id)
	l.mu.Unlock()
	if y != nil {
		tearDown(y)
	}
}

// The sizes of a copyBuffer: what waits costs little, what flows is moved in
// pieces so large that system calls do not matter.
const (
	firstCopy = 16 << 10
	mostCopy  = 256 << 10
)

// A copyBuffer is for moving bytes. It grows when reads fill it.
type copyBuffer []byte

// read reads what there is from r. The bytes are valid until the next read.
func (b *copyBuffer) read(r io.Reader) ([]byte, error) {
	if *b == nil {
		*b = make([]byte, firstCopy)
	}
	n, err := r.Read(*b)
	read := (*b)[:n]
	if n == len(*b) && n < mostCopy {
		*b = make([]byte, min(4*n, mostCopy))
	}
	return read, err
}

// Copy copies until r ends or one side fails; which one is told apart.
func Copy(w io.Writer, r io.Reader) (readErr, writeErr error) {
	var buf copyBuffer
	for {
		p, err := buf.read(r)
		if len(p) > 0 {
			if _, werr := w.Write(p); werr != nil {
				return nil, werr
			}
		}
		if err == io.EOF {
			return nil, nil
		}
		if err != nil {
			return err, nil
		}
	}
}
