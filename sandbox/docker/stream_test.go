package docker

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"
)

// frame returns what an engine sends for some bytes of a command's output.
func frame(kind byte, payload []byte) []byte {
	f := make([]byte, frameHeader, frameHeader+len(payload))
	f[0] = kind
	binary.BigEndian.PutUint32(f[4:], uint32(len(payload)))
	return append(f, payload...)
}

// readStream reads what an engine that sends data is understood to say.
func readStream(data []byte) (stdout []byte, stderr string, err error) {
	conn, peer := net.Pipe()
	peer.Close()
	s := newExecStream(conn, bufio.NewReader(bytes.NewReader(data)))
	defer s.Close()
	stdout, err = io.ReadAll(s)
	return stdout, s.stderr.String(), err
}

func TestStream(t *testing.T) {
	long := bytes.Repeat([]byte("e"), 3*maxStderr)
	var data []byte
	for _, f := range [][]byte{
		frame(frameStdout, []byte("one ")), frame(frameStderr, []byte("oh")), frame(frameStdout, nil),
		frame(frameStderr, long), frame(frameStdout, []byte("two")),
	} {
		data = append(data, f...)
	}
	stdout, stderr, err := readStream(data)
	if err != nil || string(stdout) != "one two" {
		t.Errorf("%q, %v", stdout, err)
	}
	if len(stderr) != maxStderr || stderr[:2] != "oh" {
		t.Errorf("%d bytes of stderr were kept", len(stderr))
	}
	for name, bad := range map[string][]byte{
		"cut in a header":  data[:3],
		"cut in a payload": frame(frameStdout, []byte("half"))[:10],
		"unknown kind":     frame(7, []byte("x")),
	} {
		if _, _, err := readStream(bad); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// A stream is given up once, however often it is closed.
func TestStreamClose(t *testing.T) {
	conn, peer := net.Pipe()
	defer peer.Close()
	s := newExecStream(conn, bufio.NewReader(conn))
	over := 0
	s.over = func() { over++ }
	s.Close()
	s.Close()
	if over != 1 {
		t.Errorf("given up %d times", over)
	}
}

// Whatever an engine sends, the stream ends, and no more comes out than went in.
func FuzzStream(f *testing.F) {
	f.Add(frame(frameStdout, []byte("hello")))
	f.Add(append(frame(frameStderr, []byte("oh")), frame(frameStdout, nil)...))
	f.Add([]byte{frameStdout, 0, 0, 0, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		late := time.AfterFunc(10*time.Second, func() { panic("the stream does not end") })
		defer late.Stop()
		stdout, stderr, _ := readStream(data)
		if len(stdout)+len(stderr) > len(data) {
			t.Errorf("%d bytes came of %d", len(stdout)+len(stderr), len(data))
		}
		if got, _, err := readStream(frame(frameStdout, data)); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%q came back as %q, %v", data, got, err)
		}
	})
}
