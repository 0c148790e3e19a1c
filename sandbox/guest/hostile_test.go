//go:build linux

package guest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/yamux"
)

// connectHostile returns a client of a guest that has said hello, and then does
// what it wants with the connection.
func connectHostile(t *testing.T, then func(*bufio.Reader, net.Conn)) *Client {
	return connectTo(t, func(conn net.Conn) {
		defer conn.Close()
		if writeLine(conn, hello{Sandgate: protocolVersion, Role: roleControl}) != nil {
			return
		}
		r := bufio.NewReader(conn)
		if readLine(r, maxHello, new(hello)) == nil {
			then(r, conn)
		}
	})
}

// connectAnswering returns a client of a guest that answers each stream.
func connectAnswering(t *testing.T, answer func(*yamux.Stream)) *Client {
	return connectHostile(t, func(r *bufio.Reader, conn net.Conn) {
		mux, err := yamux.Server(struct {
			io.Reader
			io.Writer
			io.Closer
		}{r, conn, conn}, muxConfig())
		if err != nil {
			return
		}
		defer mux.Close()
		for {
			s, err := mux.AcceptStream()
			if err != nil {
				return
			}
			go answer(s)
		}
	})
}

// muxFrame is one header of yamux's.
func muxFrame(typ byte, flags uint16, stream, length uint32) []byte {
	b := []byte{0, typ}
	b = binary.BigEndian.AppendUint16(b, flags)
	b = binary.BigEndian.AppendUint32(b, stream)
	return binary.BigEndian.AppendUint32(b, length)
}

// memory returns the bytes in use.
func memory() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

// A guest that pings and does not read is cut off, at once.
func TestFloodOfPings(t *testing.T) {
	before := memory()
	c := connectHostile(t, func(_ *bufio.Reader, conn net.Conn) {
		pings := bytes.Repeat(muxFrame(muxPing, 1, 0, 7), 1000)
		for range 1000 {
			if _, err := conn.Write(pings); err != nil {
				return
			}
		}
		t.Error("a million pings were taken")
	})
	select {
	case <-c.Done():
	case <-time.After(time.Minute):
		t.Fatal("the guest is still connected")
	}
	if after := memory(); after > before+8<<20 {
		t.Errorf("%d bytes are in use, before it was %d", after, before)
	}
}

// Streams that are opened and never say what they are have bounds.
func TestFloodOfSilentStreams(t *testing.T) {
	before := memory()
	opened := make(chan struct{})
	c := connectHostile(t, func(_ *bufio.Reader, conn net.Conn) {
		go io.Copy(io.Discard, conn)
		for i := range uint32(200_000) {
			if _, err := conn.Write(muxFrame(1, 1, 2*(i+1), 0)); err != nil {
				break
			}
		}
		close(opened)
		io.Copy(io.Discard, conn)
	})
	<-opened
	if n := runtime.NumGoroutine(); n > 2*(maxUnknown+100) {
		t.Errorf("%d goroutines", n)
	}
	if after := memory(); after > before+16<<20 {
		t.Errorf("%d bytes are in use, before it was %d", after, before)
	}
	c.link.mux.Close()
}

// A frame that says it is longer than any may be ends the connection, and is not
// waited for.
func TestLyingLengths(t *testing.T) {
	for name, says := range map[string][]byte{
		"data":    append(muxFrame(muxData, 1, 2, 1<<32-1), make([]byte, 1<<20)...),
		"window":  bytes.Repeat(muxFrame(1, 0, 1, 1<<32-1), 100),
		"version": {9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9},
		"type":    muxFrame(77, 0, 0, 0),
	} {
		t.Run(name, func(t *testing.T) {
			before := memory()
			c := connectHostile(t, func(r *bufio.Reader, conn net.Conn) {
				conn.Write(says)
				io.Copy(io.Discard, r)
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := c.Jobs(ctx); err == nil {
				t.Error("an answer was made of nonsense")
			}
			if after := memory(); after > before+8<<20 {
				t.Errorf("%d bytes are in use, before it was %d", after, before)
			}
		})
	}
}

// What a guest answers without an end is cut.
func TestEndlessReply(t *testing.T) {
	before := memory()
	c := connectAnswering(t, func(s *yamux.Stream) {
		defer s.Close()
		list := []byte(`{"jobs":[` + strings.Repeat(`{"id":"x"},`, 1000))
		for {
			if _, err := s.Write(list); err != nil {
				return
			}
		}
	})
	if _, err := c.Jobs(t.Context()); !errors.Is(err, errProtocol) {
		t.Errorf("got %v", err)
	}
	if after := memory(); after > before+8<<20 {
		t.Errorf("%d bytes are in use, before it was %d", after, before)
	}
}

// Nor is a list of jobs longer than one may be, however well each is formed.
func TestEndlessJobs(t *testing.T) {
	before := memory()
	c := connectAnswering(t, func(s *yamux.Stream) {
		defer s.Close()
		lines := bytes.Repeat(appendLine(nil, JobInfo{ID: "x", Started: time.Unix(1, 0)}), 100)
		for {
			if _, err := s.Write(lines); err != nil {
				return
			}
		}
	})
	if jobs, err := c.Jobs(t.Context()); len(jobs) > maxListed {
		t.Errorf("%d jobs, %v", len(jobs), err)
	}
	o, err := c.Output(t.Context(), "x", Span{})
	if err == nil {
		for range 1000 {
			if _, err = o.Next(); err != nil {
				break
			}
		}
		o.Close()
	}
	if !errors.Is(err, errProtocol) {
		t.Errorf("a log of job lines: %v", err)
	}
	if after := memory(); after > before+16<<20 {
		t.Errorf("%d bytes are in use, before it was %d", after, before)
	}
}

// A guest that answers a byte at a time is waited for no longer than its caller
// waits.
func TestSlowReply(t *testing.T) {
	c := connectAnswering(t, func(s *yamux.Stream) {
		defer s.Close()
		for {
			if _, err := s.Write([]byte(" ")); err != nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := c.Jobs(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if _, err := c.Dial(ctx, Address{Host: "x", Port: 1}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// Output without end, or of frames that lie, costs no memory.
func TestEndlessOutput(t *testing.T) {
	for name, frame := range map[string][]byte{
		"lies":   {frameStderr, 0xff, 0xff, 0xff, 0xff},
		"starts": append([]byte{frameStarted, 0, 0, 0xff, 0xff}, bytes.Repeat([]byte("["), 0xffff)...),
		"empty":  {frameStderr, 0, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			before := memory()
			c := connectAnswering(t, func(s *yamux.Stream) {
				defer s.Close()
				for {
					if _, err := s.Write(frame); err != nil {
						return
					}
				}
			})
			p, err := c.Start(command("x"), false)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			if exit, err := p.Wait(ctx, io.Discard, io.Discard); err == nil {
				t.Errorf("it ended with %+v", exit)
			}
			if after := memory(); after > before+8<<20 {
				t.Errorf("%d bytes are in use, before it was %d", after, before)
			}
		})
	}
}

// Connections that say nothing keep the gateway from its guest no longer than they
// may say nothing, and are few at a time.
func TestFloodOfGreetings(t *testing.T) {
	w := newWorld(t)
	c := w.connect()
	before := runtime.NumGoroutine()
	var silent []net.Conn
	defer func() {
		for _, conn := range silent {
			conn.Close()
		}
	}()
	for range 200 {
		conn, err := net.DialTimeout("unix", filepath.Join(w.listener.dir, SocketName), time.Second)
		if err != nil {
			break // the backlog is full
		}
		silent = append(silent, conn)
	}
	if got := run(t, c, command("echo fine"), nil); got.stdout != "fine\n" {
		t.Errorf("got %+v", got)
	}
	if n := runtime.NumGoroutine() - before; n > 4*maxGreeting {
		t.Errorf("%d goroutines more", n)
	}
}

// Whatever lies in the place of the socket is taken away, and never followed.
func TestListenFollowsNothing(t *testing.T) {
	precious := filepath.Join(t.TempDir(), "precious")
	for name, target := range map[string]string{"file": precious, "dangling": precious + ".none", "folder": filepath.Dir(precious), "self": SocketName} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(precious, []byte("kept"), 0o640); err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			path := filepath.Join(dir, SocketName)
			if err := os.Symlink(target, path); err != nil {
				t.Fatal(err)
			}
			l, err := Listen(dir, -1, -1)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			if fi, err := os.Lstat(path); err != nil || fi.Mode().Type() != os.ModeSocket {
				t.Errorf("there is %v, %v", fi, err)
			}
			data, err := os.ReadFile(precious)
			fi, statErr := os.Stat(precious)
			if err != nil || string(data) != "kept" || statErr != nil || fi.Mode().Perm() != 0o640 {
				t.Errorf("the target is %q with mode %v, %v", data, fi.Mode(), err)
			}
			if _, err := os.Lstat(precious + ".none"); err == nil {
				t.Error("the target was made")
			}
		})
	}
}

// The frames are followed, however they are cut.
func FuzzPingless(f *testing.F) {
	f.Add(append(muxFrame(muxData, 1, 2, 5), "hello"...), uint8(3))
	f.Add(append(append(muxFrame(muxData, 1, 2, 12), muxFrame(muxPing, 1, 0, 0)...), muxFrame(muxPing, 1, 0, 0)...), uint8(1))
	f.Fuzz(func(t *testing.T, data []byte, step uint8) {
		whole := new(pingless).hasPing(data)
		var cut pingless
		found := false
		for rest := data; len(rest) > 0 && !found; {
			n := min(len(rest), int(step)+1)
			found = cut.hasPing(rest[:n])
			rest = rest[n:]
		}
		if whole != found {
			t.Errorf("a ping in the whole: %v, in its parts: %v", whole, found)
		}
		// The same by the plain way.
		want := false
		for rest := data; len(rest) >= muxHeaderLen; {
			if rest[1] == muxPing {
				want = true
				break
			}
			skip := uint64(muxHeaderLen)
			if rest[1] == muxData {
				skip += uint64(binary.BigEndian.Uint32(rest[8:]))
			}
			if skip > uint64(len(rest)) {
				break
			}
			rest = rest[skip:]
		}
		if whole != want {
			t.Errorf("a ping was found: %v, is there: %v", whole, want)
		}
	})
}
