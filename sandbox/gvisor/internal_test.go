//go:build linux

package gvisor

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestIsRunsc(t *testing.T) {
	for args, want := range map[string]bool{
		"/usr/bin/sandgate":                 false,
		"/usr/bin/sandgate serve":           false,
		"/usr/bin/sandgate serve runsc":     false,
		"/.sandgate/guest guest":            false,
		"/tmp/go-build1/b001/exe/main -v":   false,
		"/tmp/exe":                          false,
		"":                                  false,
		"/usr/bin/sandgate runsc list":      true,
		"runsc-stage 0123456789abcdef":      true,
		"runsc-gofer --root=/runsc gofer":   true,
		"/proc/self/exe umount --sync-fd=3": true,
	} {
		if got := IsRunsc(strings.Fields(args)); got != want {
			t.Errorf("IsRunsc(%q) = %v, want %v", args, got, want)
		}
	}
}

// What not everybody may read is not copied, by whatever way it is reached.
func TestCopier(t *testing.T) {
	top := t.TempDir()
	for path, mode := range map[string]fs.FileMode{
		"open/file":        0o644,
		"open/program":     0o755,
		"open/setuid":      0o755 | fs.ModeSetuid,
		"open/private":     0o640,
		"closed/file":      0o644,
		"open/closed/file": 0o644,
		"open/large":       0o644,
		"elsewhere/file":   0o644,
		"half/wanted/deep": 0o644,
		"half/unwanted":    0o644,
	} {
		path = filepath.Join(top, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("text"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"closed", "open/closed"} {
		if err := os.Chmod(filepath.Join(top, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{
		"open/link": "private",
		"way":       "elsewhere",
	} {
		if err := os.Symlink(target, filepath.Join(top, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Truncate(filepath.Join(top, "open/large"), maxCopyFile+1); err != nil {
		t.Fatal(err)
	}

	c := copier{top: top, left: maxCopyTotal}
	for _, pattern := range []string{"op*", "closed/file", "way/file", "half/wanted", "missing", "missing/*"} {
		if err := c.add(filepath.Join(top, pattern)); err != nil {
			t.Fatal(err)
		}
	}
	got := make(map[string]node)
	for _, n := range c.nodes {
		got[strings.TrimPrefix(n.path, top+"/")] = node{mode: n.mode, text: n.text}
	}
	want := map[string]node{
		"open":             {mode: fs.ModeDir | 0o755},
		"open/file":        {mode: 0o644, text: "text"},
		"open/program":     {mode: 0o755, text: "text"},
		"open/setuid":      {mode: 0o755, text: "text"},
		"open/link":        {mode: fs.ModeSymlink, text: "private"},
		"half":             {mode: fs.ModeDir | 0o755},
		"half/wanted":      {mode: fs.ModeDir | 0o755},
		"half/wanted/deep": {mode: 0o644, text: "text"},
	}
	if !maps.Equal(got, want) {
		t.Errorf("copied %v\nwant %v", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}

	// No more than there is room for.
	c = copier{top: top, left: 9}
	if err := c.add(filepath.Join(top, "open")); err != nil {
		t.Fatal(err)
	}
	size := 0
	for _, n := range c.nodes {
		if n.mode.IsRegular() {
			size += len(n.text)
		}
	}
	if size != 8 {
		t.Errorf("copied %d bytes, want 8 of at most 9", size)
	}
}

func TestCall(t *testing.T) {
	// As New does: or orphans would go to whoever did so above this process.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	run := func(limit time.Duration, script string) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		cmd := exec.CommandContext(ctx, "sh", "-c", script)
		cmd.WaitDelay = 10 * time.Millisecond
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		return call(ctx, cmd)
	}
	if err := run(time.Minute, "echo noise >&2"); err != nil {
		t.Error(err)
	}
	for script, want := range map[string]string{
		`exit 3`:                             "exit status 3",
		`echo one >&2; echo two >&2; exit 3`: "one two (exit status 3)",
		`printf '{"msg":"a","time":1}{"msg":"b c"}' >&2; exit 128`: "a b c (exit status 128)",
		`printf '{"msg":"a"}panic:\n\tfoo' >&2; exit 2`:            "a panic: foo (exit status 2)",
		`printf '{"msg":""}' >&2; exit 1`:                          `{"msg":""} (exit status 1)`,
	} {
		if err := run(time.Minute, script); err == nil || err.Error() != want {
			t.Errorf("%s: error %v, want %s", script, err, want)
		}
	}
	if err := run(time.Minute, "head -c 1000000 /dev/zero | tr '\\0' x >&2; exit 1"); len(err.Error()) > 2*tailSize {
		t.Errorf("an error of %d bytes", len(err.Error()))
	}
	// A program that hangs, and one that leaves another that does.
	for _, script := range []string{"exec sleep 1000", "sleep 1000 & wait"} {
		if err := run(20*time.Millisecond, script); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: error %v, want a timeout", script, err)
		}
	}
}

func TestKilled(t *testing.T) {
	for status, want := range map[string]bool{
		"": false,
		"Name:\tx\nState:\tS (sleeping)\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\n": false,
		"State:\tZ (zombie)\n":          true,
		"State:\tX (dead)\n":            true,
		"SigPnd:\t0000000000000100\n":   true,
		"ShdPnd:\t0000000000004100\n":   true,
		"ShdPnd:\t0000000000004000\n":   false, // TERM
		"SigPnd:\tnonsense\n":           false,
		"Name:\tState:\tZ\nState:\tR\n": false,
	} {
		if got := killed([]byte(status)); got != want {
			t.Errorf("%q: %v, want %v", status, got, want)
		}
	}
}

func TestGroupCount(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "memory.events"), []byte("low 0\noom 7\noom_kill 3\noom_kill_group 9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int64{"oom": 7, "oom_kill": 3, "oom_group": 0, "ow": 0} {
		if got := groupCount(dir, "memory.events", name); got != want {
			t.Errorf("%s is %d, want %d", name, got, want)
		}
	}
	if got := groupCount(dir, "missing", "oom"); got != 0 {
		t.Errorf("of no file: %d", got)
	}
}

// A program is recognized from the moment its parent knows that it was started, when
// the kernel does not have its arguments in place yet.
func TestIdentifyAtOnce(t *testing.T) {
	var busy sync.WaitGroup
	var stop atomic.Bool
	for range 2 * runtime.NumCPU() { // makes the moment longer
		busy.Go(func() {
			for !stop.Load() {
			}
		})
	}
	defer busy.Wait()
	defer stop.Store(true)
	for range 200 {
		cmd := exec.Command("sleep", "1000")
		cmd.Args = []string{natName, "1000"}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		name, id := identify(cmd.Process.Pid, time.Now().Add(time.Minute))
		cmd.Process.Kill()
		cmd.Wait()
		if name != natName || id != "1000" {
			t.Fatalf("identify: %q, %q", name, id)
		}
	}
	// One that has ended and was not waited for has none, and will have none.
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if name, id := identify(cmd.Process.Pid, time.Now().Add(time.Hour)); name != "" || id != "" {
		t.Errorf("identify an ended process: %q, %q", name, id)
	}
	cmd.Wait()
}
