package guest

import (
	"bytes"
	"io"
	"net"
	"slices"
	"testing"

	"github.com/hashicorp/yamux"
)

// writes keeps what is written, write by write.
type writes [][]byte

func (w *writes) Write(p []byte) (int, error) {
	*w = append(*w, slices.Clone(p))
	return len(p), nil
}

// frame is a header of yamux, of no stream in particular.
func frame(typ byte, flags byte, length byte) []byte {
	return []byte{0, typ, 0, flags, 0, 0, 0, 1, 0, 0, 0, length}
}

func TestMuxWriterJoins(t *testing.T) {
	const ack = 2
	twelve := bytes.Repeat([]byte{muxData}, muxHeaderLen) // as long as a header
	long := bytes.Repeat([]byte("x"), mostCopied+1)
	for _, c := range []struct {
		name   string
		frames [][]byte
		want   [][]byte
	}{
		{"header and data", [][]byte{frame(muxData, 0, 2), []byte("hi")},
			[][]byte{append(frame(muxData, 0, 2), "hi"...)}},
		{"data like a header", [][]byte{frame(muxData, 0, 12), twelve, frame(muxWindow, 0, 9)},
			[][]byte{append(frame(muxData, 0, 12), twelve...), frame(muxWindow, 0, 9)}},
		{"opening", [][]byte{frame(muxWindow, muxSYN, 0), frame(muxData, 0, 1), []byte("{")},
			[][]byte{slices.Concat(frame(muxWindow, muxSYN, 0), frame(muxData, 0, 1), []byte("{"))}},
		{"opening, something in between", [][]byte{frame(muxWindow, muxSYN, 0), frame(muxWindow, ack, 0)},
			[][]byte{slices.Concat(frame(muxWindow, muxSYN, 0), frame(muxWindow, ack, 0))}},
		{"bulk", [][]byte{frame(muxData, 0, 255), long},
			[][]byte{frame(muxData, 0, 255), long}},
		{"ping", [][]byte{frame(muxPing, muxSYN, 0)}, [][]byte{frame(muxPing, muxSYN, 0)}},
		{"no data", [][]byte{frame(muxData, 4, 0)}, [][]byte{frame(muxData, 4, 0)}},
	} {
		var got writes
		w := &muxWriter{w: &got}
		for _, f := range c.frames {
			if n, err := w.Write(f); n != len(f) || err != nil {
				t.Fatalf("%s: Write: %d, %v", c.name, n, err)
			}
		}
		if !slices.EqualFunc(got, c.want, bytes.Equal) {
			t.Errorf("%s: wrote %q, want %q", c.name, got, c.want)
		}
	}
}

// What yamux writes is as muxWriter takes it: a stream opens with one write.
func TestMuxWriterOfYamux(t *testing.T) {
	near, far := net.Pipe()
	var got writes
	client, err := yamux.Client(struct {
		io.Reader
		io.Writer
		io.Closer
	}{near, &muxWriter{w: io.MultiWriter(&got, near)}, near}, muxConfig())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := yamux.Server(far, muxConfig())
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	s, err := newLink(client).open(header{Kind: kindJobs})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if len(got) != 1 || !bytes.HasSuffix(got[0], appendLine(nil, header{Kind: kindJobs})) {
		t.Errorf("a stream opens with the writes %q", got)
	}
}
