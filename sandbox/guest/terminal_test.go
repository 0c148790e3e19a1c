//go:build linux

package guest

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestTerminal(t *testing.T) {
	c := newWorld(t).connect()
	term := func(text string, modes ...byte) Command {
		return Command{Text: []byte(text), Terminal: &Terminal{Term: "xterm", Size: Size{Columns: 132, Rows: 43}, Modes: modes}}
	}
	for _, tt := range []struct {
		name string
		cmd  Command
		want string
	}{
		{"size", term("stty size"), "43 132\r\n"},
		{"no size", Command{Text: []byte("stty size"), Terminal: &Terminal{}}, "24 80\r\n"},
		{"modes", term("stty -a | tr ' ' '\\n' | grep -x -e -onlcr -e -echo", 53, 0, 0, 0, 0, 72, 0, 0, 0, 0, 0), "-onlcr\n-echo\n"},
		{"name", term(`test "$SSH_TTY" = "$(tty)" && echo $TERM`), "xterm\r\n"},
		{"controlling", term("echo hi >/dev/tty"), "hi\r\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := run(t, c, tt.cmd, nil); got.stdout != tt.want || got.exit != (Exit{}) {
				t.Errorf("got %+v, want %q", got, tt.want)
			}
		})
	}
	for range 100 {
		if got := run(t, c, term("seq 1 20000"), nil); len(got.stdout) != 128894 || !strings.HasSuffix(got.stdout, "\n20000\r\n") {
			t.Fatalf("got %d bytes, which end in %q, and %+v", len(got.stdout), got.stdout[max(0, len(got.stdout)-20):], got.exit)
		}
	}
}

func TestResizeAndSignal(t *testing.T) {
	c := newWorld(t).connect()
	p, err := c.Start(Command{
		Text:     []byte(`trap 'stty size' WINCH; trap 'echo usr; exit 9' USR1; echo ready; while :; do sleep 0.05; done`),
		Terminal: &Terminal{Size: Size{Columns: 10, Rows: 5}},
	}, false)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	out, in := io.Pipe()
	lines := make(chan string, 100)
	go func() {
		var b [1000]byte
		for {
			n, err := out.Read(b[:])
			for l := range strings.SplitSeq(string(b[:n]), "\r\n") {
				if l != "" {
					lines <- l
				}
			}
			if err != nil {
				close(lines)
				return
			}
		}
	}()
	var exit Exit
	ended := make(chan error, 1)
	go func() {
		var err error
		exit, err = p.Wait(t.Context(), in, io.Discard)
		in.Close()
		ended <- err
	}()
	if l := <-lines; l != "ready" {
		t.Fatalf("got %q", l)
	}
	for i := range 100 {
		p.Resize(Size{Columns: uint32(20 + i), Rows: 7})
	}
	p.Resize(Size{Columns: 77, Rows: 33})
	for l := range lines {
		if l == "33 77" {
			break
		}
	}
	p.Signal("USR1")
	if err := <-ended; err != nil || exit.Code != 9 {
		t.Errorf("exit %+v, %v", exit, err)
	}
}

// What is in a terminal when its leader has ended is read, also by a reader that
// always comes too late.
func TestTerminalIsDrained(t *testing.T) {
	master, fd, name, err := openTerminal(&Terminal{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	slave := os.NewFile(uintptr(fd), name)
	defer slave.Close() // held, as by a process in the background
	want := strings.Repeat("x", 3000)
	io.WriteString(slave, want)
	conn, err := master.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "what was written", func() bool { // a kernel passes it on in its own time
		there := 0
		conn.Control(func(fd uintptr) { there, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
		return there == len(want)
	})
	r := &drainer{file: master, quiet: -time.Second, draining: true}
	var got []byte
	for buf := make([]byte, 100); err == nil; {
		var n int
		n, err = r.Read(buf)
		got = append(got, buf[:n]...)
	}
	if string(got) != want {
		t.Errorf("read %d bytes of %d", len(got), len(want))
	}
}

func TestHangupOfTerminal(t *testing.T) {
	c := newWorld(t).connect()
	dir := t.TempDir()
	p, err := c.Start(Command{
		Text:     []byte("cd " + dir + "; trap 'touch hup' HUP; touch ready; while :; do sleep 0.1; done"),
		Terminal: &Terminal{},
	}, false)
	if err != nil {
		t.Fatal(err)
	}
	go p.Wait(t.Context(), io.Discard, io.Discard)
	waitFor(t, "start", func() bool { return exists(dir + "/ready") })
	jobs, err := c.Jobs(t.Context())
	if err != nil || len(jobs) != 1 || !jobs[0].Terminal {
		t.Fatalf("jobs %+v, %v", jobs, err)
	}
	p.Hangup()
	waitFor(t, "HUP", func() bool { return exists(dir + "/hup") })
	waitFor(t, "its end", func() bool {
		jobs, err := c.Jobs(t.Context())
		return err == nil && len(jobs) == 0
	})
}

// A named session outlives its client, and the next one of that name continues it.
func TestNamedSession(t *testing.T) {
	c := newWorld(t).connect()
	cmd := Command{Name: "build", Terminal: &Terminal{Term: "dumb"}, Env: plainShell(t)}
	p, err := c.Start(cmd, true)
	if err != nil {
		t.Fatal(err)
	}
	go p.Wait(t.Context(), io.Discard, io.Discard)
	typed := filepath.Join(t.TempDir(), "typed")
	io.WriteString(p, "x=remembered; touch "+typed+"\n")
	waitFor(t, "the shell", func() bool { return exists(typed) })
	p.Hangup()
	p, err = c.Start(cmd, true)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	io.WriteString(p, "echo [$x]; exit 7\n")
	var out bytes.Buffer
	exit, err := p.Wait(t.Context(), &out, io.Discard)
	if err != nil || exit.Code != 7 || !strings.Contains(out.String(), "[remembered]") {
		t.Errorf("exit %+v, %v, output %q", exit, err, out.String())
	}
}
