package docker

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
)

// An execStream is a command's standard input and output on a connection to the
// engine. The engine sends both of the command's outputs in frames of one byte
// kind, three bytes nothing, four bytes length and payload.
type execStream struct {
	conn net.Conn
	r    *bufio.Reader
	out  *bufio.Reader // the payloads of standard output

	// Of one reader at a time.
	left   int // bytes of the present frame
	stderr strings.Builder

	once sync.Once
	over func() // called at Close, once
}

const (
	frameHeader = 8
	frameStdout = 1
	frameStderr = 2

	maxStderr = 1024 // bytes that are kept
)

func newExecStream(conn net.Conn, r *bufio.Reader) *execStream {
	s := &execStream{conn: conn, r: r, over: func() {}}
	s.out = bufio.NewReaderSize(payloads{s}, 64<<10)
	return s
}

// payloads reads the standard output of an execStream.
type payloads struct{ *execStream }

func (s payloads) Read(p []byte) (int, error) {
	for s.left == 0 {
		if err := s.next(); err != nil {
			return 0, err
		}
	}
	n, err := s.r.Read(p[:min(len(p), s.left)])
	s.left -= n
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// next reads on to the next frame of standard output.
func (s *execStream) next() error {
	var header [frameHeader]byte
	if _, err := io.ReadFull(s.r, header[:]); err != nil {
		return err
	}
	size := int(binary.BigEndian.Uint32(header[4:]))
	switch header[0] {
	case frameStdout:
		s.left = size
		return nil
	case frameStderr:
		kept := min(size, maxStderr-s.stderr.Len())
		if _, err := io.CopyN(&s.stderr, s.r, int64(kept)); err != nil {
			return err
		}
		_, err := io.CopyN(io.Discard, s.r, int64(size-kept))
		return err
	}
	return fmt.Errorf("engine sent a frame of unknown kind %d", header[0])
}

func (s *execStream) Read(p []byte) (int, error)  { return s.out.Read(p) }
func (s *execStream) Write(p []byte) (int, error) { return s.conn.Write(p) }

// CloseWrite ends the command's standard input.
func (s *execStream) CloseWrite() error {
	if c, ok := s.conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return s.conn.Close()
}

// Close ends the connection, and with it the command. It may be called again.
func (s *execStream) Close() error {
	err := s.conn.Close()
	s.once.Do(s.over)
	return err
}
