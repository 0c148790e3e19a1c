package files

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

var errBadPacket = errors.New("sftp: bad packet")

// A responder answers a client's requests, each in its turn: what the next one asks
// for takes effect after this one. One goroutine does all of it, since each hand-over
// to another costs more than most requests do, above all in gVisor.
type responder struct {
	Options
	users, groups idNames

	in  *bufio.Reader
	out *bufio.Writer // empty whenever in waits for the client

	body    []byte // of the request being answered
	reply   reply
	greeted bool

	files   map[string]*file // open, by handle
	fileSeq int
	dirs    map[string]*dir
	dirSeq  int
}

func newResponder(rw io.ReadWriter, o Options) *responder {
	r := &responder{
		Options: o,
		users:   idNames{lookup: o.UserName},
		groups:  idNames{lookup: o.GroupName},
		// A packet that is larger than the buffer goes past it once it is empty, so
		// most of a large one is copied only by the kernel.
		out:   bufio.NewWriterSize(rw, bufferSize),
		files: make(map[string]*file),
		dirs:  make(map[string]*dir),
	}
	r.in = bufio.NewReaderSize(flushingReader{rw, r.out}, bufferSize)
	return r
}

const bufferSize = 64 << 10

// A flushingReader sends what is to be sent before it waits for more. So the answers
// to requests that have come together leave together.
type flushingReader struct {
	io.Reader
	out *bufio.Writer
}

func (f flushingReader) Read(p []byte) (int, error) {
	if err := f.out.Flush(); err != nil {
		return 0, err
	}
	return f.Reader.Read(p)
}

// serve answers requests until there are no more, which is not an error.
func (r *responder) serve() error {
	for {
		if err := r.next(); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// next answers the client's next request. io.EOF means that there is none.
func (r *responder) next() error {
	head, err := r.in.Peek(5)
	if err != nil {
		if err == io.EOF && len(head) > 0 {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	size, kind := binary.BigEndian.Uint32(head), head[4]
	if size == 0 || size > maxPacket {
		return fmt.Errorf("%w: length %d", errBadPacket, size)
	}
	if !r.greeted && kind != fxpInit {
		return fmt.Errorf("%w: type %d before the first INIT", errBadPacket, kind)
	}
	if cap(r.body) < 4+int(size) {
		r.body = make([]byte, 4+size)
	}
	body := r.body[:4+size]
	if _, err := io.ReadFull(r.in, body); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	p := packet{rest: body[5:]}
	id := p.uint32() // the client's version, in an INIT
	if p.err != nil {
		return fmt.Errorf("%w: type %d without an id", errBadPacket, kind)
	}
	r.reply.b = r.reply.b[:0]
	if err := r.answer(kind, id, &p); err != nil || len(r.reply.b) == 0 {
		r.reply.status(id, err)
	}
	_, err = r.out.Write(r.reply.packet())
	return err
}

// close closes what the client has left open.
func (r *responder) close() {
	for _, f := range r.files {
		f.Close()
	}
	for _, d := range r.dirs {
		d.f.Close()
	}
}
