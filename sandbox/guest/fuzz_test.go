//go:build linux

package guest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/yamux"
	"golang.org/x/sys/unix"
	"mvdan.cc/sh/v3/syntax"

	"sandgate/sandbox/guest/tool"
)

// What a header line parses to is written and parsed to the same again, and no
// byte behind the line is taken.
func FuzzHeader(f *testing.F) {
	f.Add([]byte(`{"kind":"exec","token":"t","command":{"text":"bHM=","env":["QT1i"],"terminal":{"term":"x","size":{"Columns":1}}}}` + "\nrest"))
	f.Add([]byte(`{"kind":"dial","address":{"host":"::1","port":22}}` + "\n"))
	f.Add([]byte(`{"kind":"tool","user":"web","tool":{"name":"read","session":"s","dir":"/root"}}` + "\n{}\n"))
	f.Add([]byte("{}\n\n"))
	f.Add(bytes.Repeat([]byte("["), 100_000))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bufio.NewReader(bytes.NewReader(data))
		var h header
		if err := readLine(r, maxHeader, &h); err != nil {
			return
		}
		rest, _ := io.ReadAll(r)
		if line := bytes.IndexByte(data, '\n'); !bytes.Equal(rest, data[line+1:]) {
			t.Errorf("%d bytes are left of %d behind the line", len(rest), len(data)-line-1)
		}
		var again header
		if err := readLine(bufio.NewReader(bytes.NewReader(appendLine(nil, h))), maxHeader, &again); err != nil {
			t.Fatal(err)
		}
		a, _ := json.Marshal(h)
		b, _ := json.Marshal(again)
		if !bytes.Equal(a, b) {
			t.Errorf("%s became %s", a, b)
		}
	})
}

// Frames that are read and written again are the bytes that they came from.
func FuzzFrames(f *testing.F) {
	f.Add([]byte("e\x00\x00\x00\x02hix\x00\x00\x00\x0b{\"code\":3}\n"))
	f.Add([]byte("e\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		in := bytes.NewReader(data)
		var buf frameBuffer
		var out bytes.Buffer
		for {
			typ, payload, err := buf.read(in)
			if err != nil {
				break
			}
			if len(payload) > maxFrame {
				t.Fatalf("a payload of %d bytes", len(payload))
			}
			writeFrame(&out, typ, payload)
			if e, err := decodeExit(payload); err == nil && (e.Code < 0 || e.Code > 255) {
				t.Errorf("exit %+v", e)
			}
			if s, err := decodeSize(payload); err == nil && !bytes.Equal(s.encode(), payload) {
				t.Errorf("size %+v of %q", s, payload)
			}
		}
		if !bytes.HasPrefix(data, out.Bytes()) {
			t.Errorf("%q became %q", data, out.Bytes())
		}
	})
}

// A hostileGuest is a guest that says hello as it should, and then answers every
// stream with the same bytes, and opens one of its own that begins with them.
func hostileGuest(conn net.Conn, says []byte) {
	defer conn.Close()
	if writeLine(conn, hello{Sandgate: protocolVersion, Role: roleControl}) != nil {
		return
	}
	r := bufio.NewReader(conn)
	var h hello
	if readLine(r, maxHello, &h) != nil {
		return
	}
	mux, err := yamux.Server(struct {
		io.Reader
		io.Writer
		io.Closer
	}{r, conn, conn}, muxConfig())
	if err != nil {
		return
	}
	defer mux.Close()
	if s, err := mux.OpenStream(); err == nil {
		go func() {
			s.Write(says)
			s.Close()
		}()
	}
	for {
		s, err := mux.AcceptStream()
		if err != nil {
			return
		}
		go func() {
			s.Write(says)
			s.Close()
			io.Copy(io.Discard, s)
		}()
	}
}

// connectTo returns a client of the guest that runs at the other end of a pipe.
func connectTo(t testing.TB, guest func(net.Conn)) *Client {
	t.Helper()
	ours, theirs := net.Pipe()
	var wg sync.WaitGroup
	wg.Go(func() { guest(theirs) })
	once := make(chan net.Conn, 1)
	once <- ours
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := Connect(ctx, func(ctx context.Context) (io.ReadWriteCloser, error) {
		select {
		case conn := <-once:
			return conn, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		wg.Wait()
	})
	return c
}

// Whatever a guest answers, the gateway's calls come back, with what a guest may
// say or an error.
func FuzzHostileGuest(f *testing.F) {
	f.Add([]byte("x\x00\x00\x00\x0b{\"code\":3}\n"))
	f.Add([]byte("x\x00\x00\x00\x0d{\"code\":300}\n"))
	f.Add([]byte("e\x00\x00\x00\x02hi"))
	f.Add([]byte("j\x00\x00\x00\x02{}x\x00\x00\x00\x13{\"signal\":\"\\u001b[\"}\n"))
	f.Add([]byte(`{"error":"` + strings.Repeat("\x1b[31m", 100) + `","refused":true}` + "\n"))
	f.Add([]byte(`{"kind":"accept","token":"x"}` + "\n"))
	f.Add([]byte(`{"kind":"exec","command":{"text":"bHM="}}` + "\n"))
	f.Add([]byte(`{"kind":"abort","stream":1}` + "\n"))
	f.Add([]byte(`{"id":"x","started":"nonsense"}` + "\n"))
	f.Add([]byte(`{"job":{"id":"abcdefgh","kind":"run","started":"2026-01-01T00:00:00Z"}}` + "\n"))
	f.Add([]byte("{}\no\x00\x00\x00\x02hig\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\xffe\x00\x00\x00\x01xf\x00\x00\x00\x02{}"))
	f.Add([]byte("{\"offset\":5}\ng\x00\x00\x00\x08\x80\x00\x00\x00\x00\x00\x00\xff"))
	f.Add([]byte(`{"output":{"content":"\u0000\ud800","total_lines":-1,"notes":null}}` + "\n"))
	f.Add([]byte(`{"error":{"code":"stale","message":"x"}}` + "\n"))
	f.Add([]byte(`{"error":{"code":"no such code"}}` + "\n"))
	f.Fuzz(func(t *testing.T, says []byte) {
		c := connectTo(t, func(conn net.Conn) { hostileGuest(conn, says) })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if p, err := c.Start(command("x"), false); err == nil {
			exit, err := p.Wait(ctx, io.Discard, io.Discard)
			if err == nil && (exit.Code < 0 || exit.Code > 255 || exit.Signal != "" && strings.Trim(exit.Signal, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") != "") {
				t.Errorf("exit %+v", exit)
			}
			if OutputFailed(err) {
				t.Errorf("%v", err)
			}
			p.Close()
		}
		check := func(err error) {
			if err != nil && strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' }) {
				t.Errorf("error with control characters: %q", err)
			}
		}
		s, err := c.Dial(ctx, Address{Host: "x", Port: 1})
		if err == nil {
			s.Close()
		}
		check(err)
		l, err := c.Listen(ctx, "", Address{Port: 1})
		if err == nil {
			l.Close()
		}
		check(err)
		_, err = c.Jobs(ctx)
		check(err)
		_, err = c.Run(ctx, Run{ID: "abcdefgh"})
		check(err)
		_, err = c.WaitJob(ctx, "abcdefgh")
		check(err)
		check(c.Input(ctx, "abcdefgh", []byte("x"), true))
		check(c.Kill(ctx, "abcdefgh", "TERM"))
		if o, err := c.Output(ctx, "abcdefgh", Span{Follow: true}); err == nil {
			at := o.Offset()
			for {
				p, err := o.Next()
				check(err)
				if err != nil {
					break
				}
				if p.Offset < at || p.Dropped != p.Offset-at {
					t.Errorf("a piece at %d, %d dropped, after %d", p.Offset, p.Dropped, at)
				}
				at = p.Offset + int64(len(p.Data))
			}
			o.Close()
		} else {
			check(err)
		}
		for _, name := range []string{"read", "edit", "exec"} {
			out, err := c.Tool(ctx, ToolCall{Name: name, Args: json.RawMessage(`{"path":"x","command":"x","old":"a","new":"b","wait_s":1}`)}, nil)
			if e, ok := errors.AsType[*tool.Error](err); err != nil && (!ok || e.Remedy == "") {
				t.Errorf("%s: error without a remedy: %v", name, err)
			}
			if (out == nil) == (err == nil) {
				t.Errorf("%s: %v and %v", name, out, err)
			}
		}
		if ctx.Err() != nil {
			t.Error("a call did not come back")
		}
	})
}

// Whatever comes first on a connection, waiting for a guest ends when it should.
func FuzzGreeting(f *testing.F) {
	f.Add([]byte(`{"sandgate":1,"role":"control"}` + "\n\x00\x01\x02"))
	f.Add([]byte(`{"sandgate":1,"role":"spare","session":"x"}` + "\n"))
	f.Add([]byte(`{"sandgate":2,"role":"control"}` + "\n"))
	f.Add(bytes.Repeat([]byte("x"), 2*maxHello))
	f.Fuzz(func(t *testing.T, says []byte) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		go func() {
			theirs.Write(says)
			io.Copy(io.Discard, theirs)
		}()
		once := make(chan net.Conn, 1)
		once <- ours
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		c, err := Connect(ctx, func(ctx context.Context) (io.ReadWriteCloser, error) {
			select {
			case conn := <-once:
				return conn, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}, slog.New(slog.DiscardHandler))
		if err == nil {
			c.Close()
		}
	})
}

// Whatever frames come in, the guest's side of a job takes them.
func FuzzGuestControl(f *testing.F) {
	f.Add([]byte("r\x00\x00\x00\x10" + strings.Repeat("\x00", 16) + "s\x00\x00\x00\x04TERMh\x00\x00\x00\x00"))
	f.Add([]byte("s\x00\x00\x00\x04-1 0q\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		const nobody = 1 << 30 // no process has that number
		j := &job{pid: nobody, keep: true, ended: make(chan struct{})}
		closed := func() error { return nil }
		v := newViewer(&stream{r: bufio.NewReader(bytes.NewReader(data)), w: io.Discard, close: closed, end: closed}, nil)
		j.viewers = []*viewer{v}
		j.control(v)
		if len(j.viewers) != 0 {
			t.Error("the viewer is still there")
		}
	})
}

// What is split without a shell are words that quote back to the same words.
func FuzzSplitPlain(f *testing.F) {
	for _, s := range []string{"ls -l", `a 'b c' "d"`, "echo $HOME", "a; b", "a | b", "a > b", "x=1 y", "a\\ b", "*", "`id`", "a & b", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		argv, err := splitPlain(text)
		if err != nil {
			if _, ok := errors.AsType[*startError](err); !ok {
				t.Errorf("%v is no startError", err)
			}
			return
		}
		var quoted []string
		for _, w := range argv {
			q, err := syntax.Quote(w, syntax.LangBash)
			if err != nil {
				return // such as a NUL
			}
			quoted = append(quoted, q)
		}
		again, err := splitPlain(strings.Join(quoted, " "))
		if err != nil || !reflect.DeepEqual(argv, again) {
			t.Errorf("%q is %q, and quoted %q, %v", text, argv, again, err)
		}
	})
}

func TestSplitPlain(t *testing.T) {
	for text, want := range map[string][]string{
		"ls -l /":          {"ls", "-l", "/"},
		` a 'b  c' "d e" `: {"a", "b  c", "d e"},
		`a\ b`:             {"a b"},
		"a ''":             {"a", ""},
		`a "[b]*" '?' \*`:  {"a", "[b]*", "?", "*"},
		"a b~":             {"a", "b~"},
		"":                 nil, "''": nil, "a; b": nil, "a && b": nil, "a | b": nil, "a >f": nil, "x=1 a": nil, "$x": nil,
		"`a`": nil, "$(a)": nil, "a *": nil, "~/a": nil, "a &": nil, "(a)": nil, "! a": nil, "'": nil, "a\nb": nil,
	} {
		if got, _ := splitPlain(text); !reflect.DeepEqual(got, want) {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}

func FuzzModes(f *testing.F) {
	f.Add([]byte{53, 0, 0, 0, 0, 1, 0, 0, 0, 255, 0})
	f.Fuzz(func(t *testing.T, modes []byte) { applyModes(new(unix.Termios), modes) })
}

func FuzzAccounts(f *testing.F) {
	f.Add([]byte("root:x:0:0:root:/root:/bin/sh\nweb:x:7:8::/home/web:\n"), "web")
	f.Add([]byte("a:b\n::::::\n"), "")
	f.Fuzz(func(t *testing.T, data []byte, name string) {
		file := filepath.Join(t.TempDir(), "passwd")
		os.WriteFile(file, data, 0o600)
		c := colonFile{path: file}
		if a, err := c.account(name); err == nil && a.name != name && fmt.Sprint(a.uid) != name {
			var n uint64
			if _, err := fmt.Sscan(name, &n); err != nil || uint64(a.uid) != n {
				t.Errorf("%q is %+v", name, a)
			}
		}
		c.idsOf(name)
		c.nameOf(name)
	})
}

// A guest that opens streams which nobody asked for has them closed, and its
// sandbox stays of use.
func TestFloodOfStreams(t *testing.T) {
	w := newWorld(t)
	c := w.connect()
	if got := run(t, c, command("echo before"), nil); got.stdout != "before\n" {
		t.Fatalf("got %+v", got)
	}
	flooded := make(chan error, 1)
	hostile := connectTo(t, func(conn net.Conn) {
		defer conn.Close()
		writeLine(conn, hello{Sandgate: protocolVersion, Role: roleControl})
		r := bufio.NewReader(conn)
		readLine(r, maxHello, new(hello))
		mux, err := yamux.Server(struct {
			io.Reader
			io.Writer
			io.Closer
		}{r, conn, conn}, muxConfig())
		if err != nil {
			flooded <- err
			return
		}
		defer mux.Close()
		for range 3000 {
			s, err := mux.OpenStream()
			if err != nil {
				break // being cut off is as good as being ignored
			}
			writeLine(s, header{Kind: kindAccept, Token: "guessed"})
			go func() {
				io.Copy(io.Discard, s) // closed by the gateway
				s.Close()
			}()
		}
		flooded <- nil
		<-mux.CloseChan()
	})
	if err := <-flooded; err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the streams' end", func() bool {
		select {
		case <-hostile.Done():
			return true
		default:
			return hostile.link.mux.NumStreams() == 0
		}
	})
	if got := run(t, c, command("echo after"), nil); got.stdout != "after\n" {
		t.Errorf("got %+v", got)
	}
}

// What was closed stays closed: no streams come and go once all is quiet.
func TestQuietWhenIdle(t *testing.T) {
	w := newWorld(t)
	c := w.connect()
	for range 5 {
		run(t, c, command("true"), nil)
		p, err := c.Start(command("cat"), false)
		if err != nil {
			t.Fatal(err)
		}
		p.Hangup()
		if _, err := c.Jobs(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	last := func() uint32 { // the number that a new stream gets
		s, err := c.link.mux.OpenStream()
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		return s.StreamID()
	}
	waitFor(t, "the streams' end", func() bool { return c.link.mux.NumStreams() == 0 })
	before := last()
	time.Sleep(200 * time.Millisecond)
	if after := last(); after != before+2 {
		t.Errorf("%d streams were opened by an idle gateway", (after-before-2)/2)
	}
}

// A guest that takes a command and never says a word is left when the client is.
func TestSilentGuest(t *testing.T) {
	c := connectTo(t, func(conn net.Conn) {
		defer conn.Close()
		writeLine(conn, hello{Sandgate: protocolVersion, Role: roleControl})
		io.Copy(io.Discard, conn)
	})
	p, err := c.Start(command("x"), false)
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 { // nobody waits for a guest that does not take them
		p.Resize(Size{Columns: 1, Rows: 1})
		p.Signal("INT")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	time.AfterFunc(100*time.Millisecond, func() { cancel(gone) })
	if _, err := p.Wait(ctx, io.Discard, io.Discard); err != gone {
		t.Errorf("got %v", err)
	}
	if _, err := c.Dial(ctx, Address{Host: "x", Port: 1}); err != gone {
		t.Errorf("got %v", err)
	}
}
