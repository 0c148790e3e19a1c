//go:build linux

package gvisor_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandgate/sandbox"
	"sandgate/sandbox/drivertest"
	"sandgate/sandbox/gvisor"
	"sandgate/sandbox/testneed"
)

// A remembering is a sandbox with something on its disk and something in its memory.
type remembering struct {
	t   *testing.T
	cfg gvisor.Config
	d   *gvisor.Driver
	id  sandbox.ID
}

func newRemembering(t *testing.T, program string) *remembering {
	return rememberingIn(t, t.TempDir(), program)
}

func rememberingIn(t *testing.T, state, program string) *remembering {
	r := &remembering{t: t, cfg: gvisor.Config{State: state, Run: shortDir(t), Executable: program}}
	r.open()
	t.Cleanup(func() {
		if err := r.d.Remove(context.Background(), r.id); err != nil {
			t.Error(err)
		}
		r.d.Close()
	})
	var sh *drivertest.Shell
	r.id, sh = r.start()
	sh.Run("sh", "-c", "echo kept >/root/kept; echo known >/dev/shm/known")
	sh.Close()
	return r
}

func (r *remembering) start() (sandbox.ID, *drivertest.Shell) {
	spec := sandbox.Spec{ID: sandbox.NewID(), Hostname: "test", Image: sandbox.ImageHost}
	err := r.d.Create(r.t.Context(), spec)
	if err == nil {
		err = r.d.Start(r.t.Context(), spec.ID)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return spec.ID, drivertest.Connect(r.t, r.d, spec.ID)
}

func (r *remembering) open() {
	r.t.Helper()
	d, err := gvisor.New(r.cfg, slog.New(slog.NewTextHandler(r.t.Output(), nil)))
	if err != nil {
		r.t.Fatal(err)
	}
	r.d = d
}

// reopen does what a new version of the gateway does.
func (r *remembering) reopen(program string) {
	r.t.Helper()
	r.d.Close()
	r.cfg.Executable = program
	r.open()
}

func (r *remembering) pause() {
	r.t.Helper()
	if err := r.d.Pause(r.t.Context(), r.id); err != nil {
		r.t.Fatal(err)
	}
}

// wake starts the sandbox and says whether it has lost what was in its memory, as it
// has if it is stopped.
func (r *remembering) wake() (lost bool) {
	r.t.Helper()
	stopped := status(r.t, r.d, r.id).State == sandbox.Stopped
	err := r.d.Start(r.t.Context(), r.id)
	if _, lost = errors.AsType[*sandbox.LostError](err); lost {
		if s := status(r.t, r.d, r.id); s.State != sandbox.Stopped {
			r.t.Errorf("after %q it is %q", err, s.State)
		}
		err = r.d.Start(r.t.Context(), r.id)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	sh := drivertest.Connect(r.t, r.d, r.id)
	defer sh.Close()
	sh.Want("kept", "cat", "/root/kept")
	lost = lost || stopped
	code, out, err := sh.Try("cat", "/dev/shm/known")
	if err != nil || code != 0 && !lost {
		r.t.Errorf("of its memory there is %q, %d, %v", out, code, err)
	}
	return lost
}

// otherVersion returns a program that does the same as the tests' and is another.
func otherVersion(t *testing.T) string {
	text, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(path, append(text, "other"...), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// What was paused by one version of the gateway goes on under the next, with the
// program that it was started with. Without that it is started anew.
func TestPauseUpgrade(t *testing.T) {
	other := otherVersion(t)
	r := newRemembering(t, program)
	r.pause()
	r.reopen(other)
	if r.wake() {
		t.Error("after an upgrade its memory is lost")
	}
	r.pause() // by a gateway that did not start it
	r.reopen(other)
	if r.wake() {
		t.Error("when paused after an upgrade its memory is lost")
	}
	r.pause()
	r.d.Close()
	programs, err := os.ReadDir(filepath.Join(r.cfg.State, "guest"))
	if err != nil || len(programs) != 2 {
		t.Fatalf("there are the programs %v, %v", programs, err)
	}
	if err := os.RemoveAll(filepath.Join(r.cfg.State, "guest")); err != nil {
		t.Fatal(err)
	}
	r.open()
	if !r.wake() {
		t.Error("without its program it went on")
	}
	notes := strings.Join(status(t, r.d, r.id).Notes, " ")
	if !strings.Contains(notes, "could not be brought back: the version of sandgate that it was started with is not there any more.") {
		t.Errorf("the notes are %q", notes)
	}
	r.reopen(other)
	if programs, err := os.ReadDir(filepath.Join(r.cfg.State, "guest")); err != nil || len(programs) != 1 {
		t.Errorf("there are the programs %v, %v", programs, err)
	}
}

// A checkpoint that is damaged costs the memory and nothing else.
func TestPauseDamaged(t *testing.T) {
	r := newRemembering(t, program)
	r.pause()
	files, err := filepath.Glob(filepath.Join(r.cfg.State, "sandboxes", string(r.id), "paused", "*.img"))
	if err != nil || len(files) == 0 {
		t.Fatalf("there is no checkpoint: %v", err)
	}
	for _, f := range files {
		if err := os.Truncate(f, 100); err != nil {
			t.Fatal(err)
		}
	}
	if !r.wake() {
		t.Error("it went on with half of its memory")
	}
}

// A disk that is full leaves the sandbox running, and says so.
func TestPauseFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		return // only root can make a small disk
	}
	state := t.TempDir()
	if err := unix.Mount("small", state, "tmpfs", 0, "size=300m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(state, 0); err != nil {
			t.Error(err)
		}
	})
	r := rememberingIn(t, state, program)
	sh := drivertest.Connect(t, r.d, r.id)
	before := r.d.Memory(r.id)
	sh.Run("sh", "-c", "head -c 20M /dev/zero | tr '\\0' x >/dev/shm/much")
	if more := r.d.Memory(r.id) - before; before <= 0 || more < 10<<20 { // some may be given back meanwhile
		t.Errorf("it has %d bytes in memory, and %d more with a file of 20 MiB", before, more)
	}
	ballast := filepath.Join(state, "ballast")
	var free unix.Statfs_t
	if err := unix.Statfs(state, &free); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(ballast, make([]byte, int64(free.Bavail)*free.Bsize-256<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	err := r.d.Pause(t.Context(), r.id)
	if e, ok := errors.AsType[*sandbox.UnsupportedError](err); !ok || e.Reason != "the sandbox runs on: the gateway's disk has no room for what it has in memory" {
		t.Errorf("with a full disk: %v", err)
	}
	if s := status(t, r.d, r.id); s.State != sandbox.Running {
		t.Errorf("it is %q", s.State)
	}
	if left, _ := filepath.Glob(filepath.Join(state, "sandboxes", string(r.id), "pau*")); len(left) > 0 {
		t.Errorf("left is %v", left)
	}
	sh.Run("true") // nothing was tried, so no connection was lost
	sh.Close()
	if r.wake() {
		t.Error("its memory is lost")
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	r.pause()
	if r.wake() {
		t.Error("its memory is lost")
	}
}

// pauserID is the variable that makes TestPauser do its work; its value names the
// sandbox, state and run folder.
const pauserID = "SANDGATE_TEST_PAUSER"

// TestPauser is no test but a gateway that pauses a sandbox and has it go on, again
// and again, until it is killed; see TestPauseKilled.
func TestPauser(t *testing.T) {
	args := strings.Fields(os.Getenv(pauserID))
	if len(args) != 3 {
		return
	}
	d, err := gvisor.New(gvisor.Config{State: args[1], Run: args[2], Executable: program}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("open")
	for {
		if err := d.Pause(t.Context(), sandbox.ID(args[0])); err != nil {
			t.Fatal(err)
		}
		if err := d.Start(t.Context(), sandbox.ID(args[0])); err != nil {
			t.Fatal(err)
		}
	}
}

// However a gateway dies that pauses a sandbox or has it go on, the next one finds it
// running, paused or stopped: never two of it, and never without its disk.
func TestPauseKilled(t *testing.T) {
	times := 5
	if n, err := strconv.Atoi(os.Getenv("SANDGATE_TEST_KILLS")); err == nil {
		times = n
	}
	r := newRemembering(t, program)
	found := make(map[sandbox.State]int)
	for range times {
		r.d.Close()
		// What the gateway leaves behind is init's, as it would be.
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0); err != nil {
			t.Fatal(err)
		}
		r.killPauser(rand.N(600 * time.Millisecond))
		r.open()
		state := status(t, r.d, r.id).State
		found[state]++
		kernels := 0
		for _, pid := range processes(r.id) {
			if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); strings.HasPrefix(string(line), "runsc-sandbox\x00") {
				kernels++
			}
		}
		if want := map[sandbox.State]int{sandbox.Running: 1}[state]; kernels != want {
			t.Errorf("it is %q, with %d kernels", state, kernels)
		}
		lost := r.wake()
		if lost && state == sandbox.Running {
			t.Error("it ran, and its memory is lost")
		}
		if lost {
			sh := drivertest.Connect(t, r.d, r.id)
			sh.Run("sh", "-c", "echo known >/dev/shm/known")
			sh.Close()
		}
	}
	t.Logf("found %v", found)
}

// killPauser runs TestPauser for a while.
func (r *remembering) killPauser(after time.Duration) {
	r.t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestPauser$")
	cmd.Env = append(os.Environ(), asUser+"="+program, pauserID+"="+strings.Join([]string{string(r.id), r.cfg.State, r.cfg.Run}, " "))
	out, err := cmd.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	if said, err := bufio.NewReader(out).ReadString('\n'); err != nil || said != "open\n" {
		r.t.Fatalf("the other gateway says %q, %v", said, err)
	}
	time.Sleep(after)
}

// Sandboxes of all kinds go on, and so do copies of them.
func TestPauseKinds(t *testing.T) {
	r := newRemembering(t, program)
	work := t.TempDir()
	if err := os.WriteFile(filepath.Join(work, "shared"), []byte("shared\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, spec := range map[string]sandbox.Spec{
		"limits":    {Limits: sandbox.Limits{CPUs: 1, Memory: 512 << 20, PIDs: 200}},
		"disk":      {Limits: sandbox.Limits{Disk: 64 << 20}},
		"network":   {Network: sandbox.NetworkFull},
		"workspace": {Workspace: work},
	} {
		t.Run(name, func(t *testing.T) {
			spec.ID, spec.Hostname, spec.Image = sandbox.NewID(), name, sandbox.ImageHost
			if err := r.d.Check(spec); err != nil {
				testneed.Lacking(t, err.Error())
			}
			copied := spec
			copied.ID, copied.Hostname = sandbox.NewID(), "copy"
			t.Cleanup(func() {
				for _, id := range []sandbox.ID{spec.ID, copied.ID} {
					if err := r.d.Remove(context.Background(), id); err != nil {
						t.Error(err)
					}
				}
			})
			err := r.d.Create(t.Context(), spec)
			if err == nil {
				err = r.d.Start(t.Context(), spec.ID)
			}
			if err != nil {
				t.Fatal(err)
			}
			sh := drivertest.Connect(t, r.d, spec.ID)
			sh.Run("sh", "-c", "echo known >/dev/shm/known; echo kept >/root/kept")
			net := sh.Run("sh", "-c", "cat /proc/net/dev | grep -c :")
			sh.Close()
			if err := r.d.Pause(t.Context(), spec.ID); err != nil {
				t.Fatal(err)
			}
			if err := r.d.Start(t.Context(), spec.ID); err != nil {
				t.Fatal(err)
			}
			if memory, err := r.d.Fork(t.Context(), spec.ID, copied); err != nil || !memory {
				t.Fatalf("forked with memory: %t, %v", memory, err)
			}
			if err := r.d.Start(t.Context(), copied.ID); err != nil {
				t.Fatal(err)
			}
			for _, id := range []sandbox.ID{spec.ID, copied.ID} {
				sh := drivertest.Connect(t, r.d, id)
				sh.Want("known", "cat", "/dev/shm/known")
				sh.Want("kept", "cat", "/root/kept")
				sh.Want(strings.TrimSpace(net), "sh", "-c", "cat /proc/net/dev | grep -c :")
				if spec.Workspace != "" {
					sh.Want("shared", "cat", "/workspace/shared")
				}
				sh.Close()
			}
		})
	}
}
