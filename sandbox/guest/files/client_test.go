package files

import (
	"bufio"
	"encoding/binary"
	"io"
	"os"
	"testing"

	"github.com/pkg/sftp"
)

// The codes as the wire has them.
const (
	fine        = uint32(sftp.ErrSSHFxOk)
	atEnd       = uint32(sftp.ErrSSHFxEOF)
	noSuchFile  = uint32(sftp.ErrSSHFxNoSuchFile)
	failed      = uint32(sftp.ErrSSHFxFailure)
	denied      = uint32(sftp.ErrSSHFxPermissionDenied)
	badMessage  = uint32(sftp.ErrSSHFxBadMessage)
	unsupported = uint32(sftp.ErrSSHFxOpUnsupported)
)

// A client speaks with a server packet by packet, for what no real client sends.
type client struct {
	t      testing.TB
	w      *os.File
	r      *bufio.Reader
	id     uint32
	home   string
	offers map[string]string // the extensions
}

type duplex struct {
	io.Reader
	io.Writer
}

// connect starts a server. The channel has what ServeSFTP returned.
func connect(t testing.TB, o Options) (*client, <-chan error) {
	t.Helper()
	in, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		done <- ServeSFTP(duplex{in, out}, o)
		in.Close()
		out.Close()
	}()
	t.Cleanup(func() { w.Close(); r.Close() })
	return &client{t: t, w: w, r: bufio.NewReaderSize(r, 64<<10), home: o.Home}, done
}

// dial starts a server whose home is an empty folder, and greets it.
func dial(t testing.TB) *client { return dialWith(t, Options{Home: t.TempDir()}) }

func dialWith(t testing.TB, o Options) *client {
	t.Helper()
	c, done := connect(t, o)
	t.Cleanup(func() {
		c.w.Close()
		if err := <-done; err != nil {
			t.Errorf("server: %v", err)
		}
	})
	c.sendRaw(fxpInit, be32(version))
	a := c.recv()
	if a.kind != fxpVersion || a.id != version {
		t.Fatalf("greeting: %+v", a)
	}
	c.offers = make(map[string]string)
	for len(a.rest) > 0 && a.err == nil {
		name := a.text()
		c.offers[name] = a.text()
	}
	return c
}

func (c *client) path(name string) string { return c.home + "/" + name }

func be32(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }

func (c *client) sendRaw(kind byte, body []byte) {
	c.t.Helper()
	b := append(be32(uint32(1+len(body))), kind)
	if _, err := c.w.Write(append(b, body...)); err != nil {
		c.t.Fatal(err)
	}
}

// send makes a request of strings and numbers. A []byte is put in as it is.
func (c *client) send(kind byte, fields ...any) {
	c.t.Helper()
	c.id++
	var r reply
	r.begin(kind, c.id)
	for _, f := range fields {
		switch f := f.(type) {
		case string:
			r.text(f)
		case uint32:
			r.uint32(f)
		case int:
			r.uint32(uint32(f))
		case uint64:
			r.uint64(f)
		case []byte:
			r.b = append(r.b, f...)
		default:
			c.t.Fatalf("field of type %T", f)
		}
	}
	if _, err := c.w.Write(r.packet()); err != nil {
		c.t.Fatal(err)
	}
}

// An answer is a reply whose fields can be read.
type answer struct {
	kind byte
	id   uint32
	packet
}

func (c *client) recv() *answer {
	c.t.Helper()
	return c.recvInto(nil)
}

// recvInto has the answer share buf, if that is large enough.
func (c *client) recvInto(buf []byte) *answer {
	c.t.Helper()
	var head [4]byte
	if _, err := io.ReadFull(c.r, head[:]); err != nil {
		c.t.Fatal(err)
	}
	size := int(binary.BigEndian.Uint32(head[:]))
	if size > maxPacket {
		c.t.Fatalf("packet of %d bytes", size)
	}
	if cap(buf) < size {
		buf = make([]byte, size)
	}
	b := buf[:size]
	if _, err := io.ReadFull(c.r, b); err != nil {
		c.t.Fatal(err)
	}
	a := &answer{kind: b[0], packet: packet{rest: b[1:]}}
	a.id = a.uint32()
	return a
}

func (c *client) call(kind byte, fields ...any) *answer {
	c.t.Helper()
	c.send(kind, fields...)
	a := c.recv()
	equal(c.t, "id", a.id, c.id)
	return a
}

// code is for requests that are answered by a status.
func (c *client) code(kind byte, fields ...any) uint32 {
	c.t.Helper()
	code, _ := c.status(kind, fields...)
	return code
}

func (c *client) status(kind byte, fields ...any) (uint32, string) {
	c.t.Helper()
	a := c.call(kind, fields...)
	if a.kind != fxpStatus {
		c.t.Fatalf("request %d: answer of type %d, not a status", kind, a.kind)
	}
	return a.uint32(), string(a.bytes())
}

// expect sends a request whose answer is of type want.
func (c *client) expect(want, kind byte, fields ...any) *answer {
	c.t.Helper()
	a := c.call(kind, fields...)
	if a.kind != want {
		c.t.Fatalf("request %d: answer of type %d, not %d: %q", kind, a.kind, want, a.rest)
	}
	return a
}

var noAttrs = be32(0)

func (c *client) open(name string, flags int) string {
	c.t.Helper()
	return string(c.expect(fxpHandle, fxpOpen, name, flags, noAttrs).bytes())
}

func (c *client) close(handle string) {
	c.t.Helper()
	equal(c.t, "close", c.code(fxpClose, handle), fine)
}

func (c *client) write(handle string, offset uint64, data string) {
	c.t.Helper()
	equal(c.t, "write", c.code(fxpWrite, handle, offset, data), fine)
}

func (c *client) read(handle string, offset uint64, n int) string {
	c.t.Helper()
	return string(c.expect(fxpData, fxpRead, handle, offset, n).bytes())
}

func (c *client) stat(kind byte, name string) attrs {
	c.t.Helper()
	return c.expect(fxpAttrs, kind, name).attrs()
}

// name is for requests that are answered by one name.
func (c *client) name(kind byte, fields ...any) string {
	c.t.Helper()
	a := c.expect(fxpName, kind, fields...)
	equal(c.t, "count", a.uint32(), 1)
	return a.text()
}

func modeAttrs(mode uint32) []byte { return append(be32(attrMode), be32(mode)...) }

func timeAttrs(atime, mtime uint32) []byte {
	return append(append(be32(attrTimes), be32(atime)...), be32(mtime)...)
}

func sizeAttrs(size uint64) []byte {
	return binary.BigEndian.AppendUint64(be32(attrSize), size)
}
