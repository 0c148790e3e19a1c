//go:build linux

package guest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pkg/sftp"

	"sandgate/sandbox/testneed"
)

func TestCommands(t *testing.T) {
	c := newWorld(t).connect()
	zeros := strings.Repeat("\x00", 3_000_000)
	for _, tt := range []struct {
		name  string
		cmd   Command
		input string
		want  outcome
	}{
		{"output and code", command("echo out; echo err >&2; exit 3"), "", outcome{"out\n", "err\n", Exit{Code: 3}}},
		{"no output", command("true"), "", outcome{}},
		{"killed", command("kill -9 $$"), "", outcome{exit: Exit{Signal: "KILL"}}},
		{"terminated", command("kill -TERM $$"), "", outcome{exit: Exit{Signal: "TERM"}}},
		{"137 is not a signal", command("exit 137"), "", outcome{exit: Exit{Code: 137}}},
		{"input", command("cat; echo end"), "in", outcome{stdout: "inend\n"}},
		{"much input", command("wc -c"), zeros, outcome{stdout: "3000000\n"}},
		{"input that nobody reads", command("exit 4"), zeros, outcome{exit: Exit{Code: 4}}},
		{"input closed by the program", command("exec <&-; sleep 0.2; echo late; exit 2"), zeros, outcome{stdout: "late\n", exit: Exit{Code: 2}}},
		{"output closed by the program", command("exec >&- 2>&-; test $(wc -c) = 3000000"), zeros, outcome{}},
		{"both outputs at once", command("head -c 3000000 /dev/zero >&2 & head -c 3000000 /dev/zero; wait"), "", outcome{zeros, zeros, Exit{}}},
		{"environment", Command{Text: []byte(`printf '%s|%s|%s' "$FOO" "$HOME" "$BAR"`), Env: [][]byte{[]byte("FOO=a=b\nc"), []byte("BAR=\xff\xfe"), []byte("=x"), []byte("none")}}, "", outcome{stdout: "a=b\nc|" + os.Getenv("HOME") + "|\xff\xfe"}},
		{"not UTF-8", command("printf '\xff'"), "", outcome{stdout: "\xff"}},
		{"NUL", command("echo \x00"), "", outcome{"", "sandgate: command contains a NUL byte\n", Exit{Code: 126}}},
		{"a user by number", Command{Text: []byte("id -u; id -g"), User: "4321:8765"}, "", outcome{stdout: "4321\n8765\n"}},
		{"unknown user", Command{Text: []byte("true"), User: "nosuchuser"}, "", outcome{"", "sandgate: the sandbox has no user \"nosuchuser\"\n", Exit{Code: 126}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if os.Getuid() != 0 && tt.want.exit.Code == 0 && tt.cmd.User != "" {
				testneed.Lacking(t, "root, to be another user")
			}
			got := run(t, c, tt.cmd, strings.NewReader(tt.input))
			if got != tt.want {
				t.Errorf("got %.300q, want %.300q", fmt.Sprint(got), fmt.Sprint(tt.want))
			}
		})
	}
}

// Files are served as the user that is asked for.
func TestFiles(t *testing.T) {
	c := newWorld(t).connect()
	dir := t.TempDir()
	os.Chmod(filepath.Dir(dir), 0o755)
	os.Chmod(dir, 0o777)
	for _, user := range []string{"", "4321:8765"} {
		t.Run("user "+user, func(t *testing.T) {
			if user != "" && os.Getuid() != 0 {
				testneed.Lacking(t, "root, to be another user")
			}
			stream, err := c.SFTP(user, false)
			if err != nil {
				t.Fatal(err)
			}
			client, err := sftp.NewClientPipe(stream, stream)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			name := filepath.Join(dir, "as-"+user)
			f, err := client.Create(name)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.Write(make([]byte, 3_000_000)); err != nil {
				t.Error(err)
			}
			f.Close()
			fi, err := os.Stat(name)
			if err != nil || fi.Size() != 3_000_000 {
				t.Fatalf("%v, %v", fi, err)
			}
			if owner := fi.Sys().(*syscall.Stat_t); user != "" && (owner.Uid != 4321 || owner.Gid != 8765) {
				t.Errorf("the file belongs to %d:%d", owner.Uid, owner.Gid)
			}
		})
	}
}

// A program's last words must arrive however soon it ends.
func TestOutputOfTheQuick(t *testing.T) {
	c := newWorld(t).connect()
	for range 100 {
		if got := run(t, c, command("head -c 300000 /dev/zero"), nil); len(got.stdout) != 300000 {
			t.Fatalf("got %d bytes, which end in %q, and %+v", len(got.stdout), got.stdout[max(0, len(got.stdout)-20):], got.exit)
		}
	}
}

// The leader's end is not the end of the output while others hold it.
func TestBackgroundHoldsOutput(t *testing.T) {
	c := newWorld(t).connect()
	got := run(t, c, command("(sleep 0.5; echo late) & echo hi; exit 6"), nil)
	if got.stdout != "hi\nlate\n" || got.exit.Code != 6 {
		t.Errorf("got %+v", got)
	}
	began := time.Now()
	got = run(t, c, command("sleep 60 >/dev/null 2>&1 </dev/null & echo hi; exit 6"), nil)
	if got.stdout != "hi\n" || got.exit.Code != 6 || time.Since(began) > 20*time.Second {
		t.Errorf("got %+v after %v", got, time.Since(began))
	}
}

func TestManyAtOnce(t *testing.T) {
	c := newWorld(t).connect()
	errs := make(chan error)
	for i := range 100 {
		go func() {
			p, err := c.Start(command("echo "+strconv.Itoa(i)), false)
			if err != nil {
				errs <- err
				return
			}
			defer p.Close()
			var out bytes.Buffer
			_, err = p.Wait(t.Context(), &out, io.Discard)
			if err == nil && out.String() != strconv.Itoa(i)+"\n" {
				err = fmt.Errorf("job %d printed %q", i, out.String())
			}
			errs <- err
		}()
	}
	for range 100 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("broken") }

// Signals and sizes reach a command whose input and output are stalled.
func TestStalledCommandIsSignalled(t *testing.T) {
	c := newWorld(t).connect()
	p, err := c.Start(command("yes & exec sleep 600"), false)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	go p.Write(make([]byte, 50_000_000))
	release := make(chan struct{})
	go func() {
		time.Sleep(500 * time.Millisecond)
		p.Signal("KILL")
		time.Sleep(200 * time.Millisecond)
		close(release)
	}()
	exit, err := p.Wait(t.Context(), stalledWriter{release}, io.Discard)
	if err != nil || exit.Signal != "KILL" {
		t.Errorf("exit %+v, %v", exit, err)
	}
}

func TestNoZombies(t *testing.T) {
	w := newWorld(t)
	c := w.connect()
	for range 50 {
		run(t, c, command("(sleep 0.1 &) ; true"), nil)
	}
	waitFor(t, "reaping", func() bool {
		out, _ := exec.Command("ps", "-o", "stat=", "--ppid", strconv.Itoa(w.proc.Pid)).Output()
		return !strings.Contains(string(out), "Z")
	})
}
