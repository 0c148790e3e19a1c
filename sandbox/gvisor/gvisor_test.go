//go:build linux

package gvisor_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandgate/sandbox"
	"sandgate/sandbox/drivertest"
	"sandgate/sandbox/guest"
	"sandgate/sandbox/gvisor"
	"sandgate/sandbox/testneed"
)

// program is what runs as runsc and as guest. It is not this test, since that
// may be linked with libc or with the race detector.
var program string

// asUser is set, to the path of program, where TestUser runs this test again.
const asUser = "SANDGATE_TEST_PROGRAM"

func TestMain(m *testing.M) {
	code := run(m)
	if zombies := zombies(); len(zombies) > 0 {
		fmt.Fprintf(os.Stderr, "children not reaped:\n%s\n", strings.Join(zombies, "\n"))
		code = 1
	}
	os.Exit(code)
}

// zombies lists the children of this process that have ended.
func zombies() (found []string) {
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		stat, _ := os.ReadFile(file)
		_, rest, _ := strings.Cut(string(stat), ") ")
		if strings.HasPrefix(rest, fmt.Sprintf("Z %d ", os.Getpid())) {
			found = append(found, string(stat))
		}
	}
	return found
}

func run(m *testing.M) int {
	if program = os.Getenv(asUser); program != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "sandgate-program-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // for TestUser
		panic(err)
	}
	program = filepath.Join(dir, "program")
	build := exec.Command("go", "build", "-o", program, "./testdata/program")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%s%v\n", out, err)
		return 1
	}
	return m.Run()
}

// TestDriver runs the suite as whoever runs the test.
func TestDriver(t *testing.T) {
	drivertest.Run(t, newHost)
}

// TestUser runs all other tests again, as an ordinary user.
func TestUser(t *testing.T) {
	if os.Getenv(asUser) != "" {
		return
	}
	if os.Geteuid() != 0 {
		testneed.Lacking(t, "root, to become another user; but the other tests were run by an ordinary user")
	}
	// The user cannot reach the folder in which this test was built.
	test := filepath.Join(filepath.Dir(program), "test")
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(test, self, 0o755); err != nil {
		t.Fatal(err)
	}
	args := []string{"-test.v=" + strconv.FormatBool(testing.Verbose())}
	if f := flag.Lookup("test.run"); f != nil {
		args = append(args, "-test.run="+strings.TrimPrefix(f.Value.String(), "TestUser/"))
	}
	cmd := exec.CommandContext(t.Context(), test, args...)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), asUser+"="+program, "HOME=/nonexistent")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 61234, Gid: 61234}}
	// What TestPauseKilled leaves behind there is init's, and not ours.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.CombinedOutput()
	t.Logf("as an ordinary user:\n%s", out)
	if err != nil {
		t.Fatal(err)
	}
}

// TestSaved runs with disks that have to be saved, in the way of root on a host that
// offers no better, those parts of the suite that depend on how a disk is kept. The
// whole suite is run with such disks by an ordinary user, and with control groups by
// root.
func TestSaved(t *testing.T) {
	if os.Geteuid() != 0 {
		return // TestDriver does that already
	}
	drivertest.Run(t, func(t *testing.T) drivertest.Host {
		host := hostWith(t, gvisor.OpenSaved)
		host.Only = []string{
			"Exec", "User", "Files", "SCP", "Lifecycle", "Pause",
			"Isolation/Neighbour", "Isolation/HostPrograms", "Isolation/HostFiles", "Isolation/Mounts",
			"Isolation/Devices", "Isolation/SharedMemory",
			"Hardening/MountDisk", "Hardening/MountOverSocket", "Hardening/DeviceDisk",
			"Limits/Notes", "Limits/Memory", "Limits/MemoryRoot", "Limits/Disk",
		}
		return host
	})
}

func newHost(t *testing.T) drivertest.Host {
	host := hostWith(t, gvisor.New)
	host.Name = "gvisor, user"
	if os.Geteuid() == 0 {
		host.Name = "gvisor, root"
		host.SavedDisk = false
	}
	return host
}

func hostWith(t *testing.T, open func(gvisor.Config, *slog.Logger) (*gvisor.Driver, error)) drivertest.Host {
	cfg := gvisor.Config{State: t.TempDir(), Run: shortDir(t), Executable: program}
	root := os.Geteuid() == 0
	return drivertest.Host{
		Name:   "gvisor, saved",
		Memory: root, PIDs: root, CPUs: root, Disk: true, SavedDisk: true, Pauses: true, Checkpoints: true,
		Open: func() (sandbox.Driver, error) {
			return open(cfg, slog.New(slog.NewTextHandler(t.Output(), nil)))
		},
		Crash:  crash,
		Traces: func(id sandbox.ID) []string { return traces(id, cfg.State, cfg.Run) },
	}
}

// open opens a driver of the test's own.
func open(t testing.TB) *gvisor.Driver {
	t.Helper()
	cfg := gvisor.Config{State: t.TempDir(), Run: shortDir(t), Executable: program}
	d, err := gvisor.New(cfg, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func status(t testing.TB, d *gvisor.Driver, id sandbox.ID) sandbox.Status {
	t.Helper()
	list, err := d.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		if s.ID == id {
			return s
		}
	}
	t.Fatalf("sandbox %s is not listed", id)
	return sandbox.Status{}
}

func TestKernel(t *testing.T) {
	_, sh := drivertest.Start(t, open(t), sandbox.Spec{})
	if kernel := sh.Run("uname", "-r"); !strings.Contains(kernel, "gvisor") {
		t.Errorf("the kernel is %q, want gVisor's", kernel)
	}
	if out := sh.Run("cat", "/proc/net/dev"); strings.Count(out, "\n") > 2 {
		t.Errorf("there is more than the loopback device:\n%s", out)
	}
}

// Root owns the programs, and nobody on the host is that root.
func TestUsers(t *testing.T) {
	d := open(t)
	id, sh := drivertest.Start(t, d, sandbox.Spec{})
	if os.Geteuid() != 0 {
		for _, pid := range processes(id) {
			if uid := owner(t, pid); uid != os.Geteuid() {
				t.Errorf("process %d runs as %d", pid, uid)
			}
		}
		return
	}
	if notes := status(t, d, id).Notes; len(notes) > 0 {
		testneed.Lacking(t, "kernel overlays with shifted owners: "+strings.Join(notes, " "))
	}
	other, _ := drivertest.Start(t, d, sandbox.Spec{})
	owners := make(map[int]sandbox.ID)
	for _, id := range []sandbox.ID{id, other} {
		for _, pid := range processes(id) {
			uid := owner(t, pid)
			if uid < 1<<16 {
				t.Errorf("process %d runs as %d, a user of the host", pid, uid)
			}
			if before, ok := owners[uid]; ok && before != id {
				t.Errorf("two sandboxes run as the same user %d", uid)
			}
			owners[uid] = id
		}
	}
	sh.Want("0:0", "stat", "-c", "%u:%g", "/usr/bin/env")
	sh.Want("0:0", "stat", "-c", "%u:%g", "/")
	sh.Want("0:0", "stat", "-c", "%u:%g", "/etc/passwd")
	// A program that gives rights away works: gVisor heeds its bits.
	sh.Run("sh", "-ec", "cp $(command -v id) /usr/local/bin/me && chmod 4755 /usr/local/bin/me")
	testneed.Programs(t, "setpriv")
	sh.Want("0", "setpriv", "--reuid=1000", "--clear-groups", "me", "-u")
}

// owner returns the host's user id of a process.
func owner(t *testing.T, pid int) int {
	t.Helper()
	info, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	if err != nil {
		t.Fatal(err)
	}
	return int(info.Sys().(*syscall.Stat_t).Uid)
}

// The guest's folder and its socket are there, and are not the sandbox's.
func TestGuestFolders(t *testing.T) {
	_, sh := drivertest.Start(t, open(t), sandbox.Spec{})
	sh.Run("test", "-x", guest.Executable)
	sh.Want("../guest", "readlink", "/.sandgate/bin/scp")
	for _, path := range []string{guest.SocketDir + "/new", "/.sandgate/new", "/.sandgate/bin/new"} {
		if code, out, err := sh.Try("touch", path); err != nil || code == 0 {
			t.Errorf("touch %s: %s %v", path, out, err)
		}
	}
	if code, out, err := sh.Try("rm", guest.SocketDir+"/"+guest.SocketName); err != nil || code == 0 {
		t.Errorf("the socket can be removed: %s %v", out, err)
	}
}

func TestLimits(t *testing.T) {
	limits := sandbox.Limits{CPUs: 1.5, Memory: 256 << 20, PIDs: 77}
	d := open(t)
	id, sh := drivertest.Start(t, d, sandbox.Spec{Limits: limits})
	sh.Want("77", "bash", "-c", "ulimit -u")
	for _, note := range status(t, d, id).Notes {
		if !strings.Contains(note, "not enforced") {
			continue
		}
		if os.Geteuid() == 0 {
			testneed.Lacking(t, "control groups: "+note)
		}
		return // as documented for an ordinary user
	}
	var kb int64
	if _, err := fmt.Sscanf(sh.Run("cat", "/proc/meminfo"), "MemTotal: %d", &kb); err != nil || kb<<10 != limits.Memory {
		t.Errorf("the sandbox sees %d kB of memory, %v", kb, err)
	}
	slow, busy := drivertest.Start(t, d, sandbox.Spec{Limits: sandbox.Limits{CPUs: 0.3}})
	busy.Run("sh", "-c", "timeout 1 yes >/dev/null & timeout 1 yes >/dev/null & wait")
	if !throttled(slow) {
		t.Error("two busy processes were not held back to a third of a processor")
	}
	// Only too much memory ends it.
	sh.Run("sh", "-c", "head -c 50M /dev/zero | tail -c 50M >/dev/null")
	if _, _, err := sh.Try("sh", "-c", "head -c 500M /dev/zero | tail -c 500M >/dev/null"); err == nil {
		t.Error("the sandbox could use more memory than it may")
	}
	for end := time.Now().Add(time.Minute); status(t, d, id).State != sandbox.Stopped; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a sandbox that used too much memory still runs")
		}
	}
	if err := d.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	drivertest.Connect(t, d, id).Run("true")
}

// throttled reports whether the kernel has held back a sandbox's use of processors.
func throttled(id sandbox.ID) bool {
	for _, pattern := range []string{"/sys/fs/cgroup/*/*/", "/sys/fs/cgroup/*/*/*/"} { // versions 2 and 1
		files, _ := filepath.Glob(pattern + string(id) + "/cpu.stat")
		for _, file := range files {
			stat, _ := os.ReadFile(file)
			_, times, ok := strings.Cut(string(stat), "nr_throttled ")
			if ok && !strings.HasPrefix(times, "0\n") {
				return true
			}
		}
	}
	return false
}

// A sandbox that stands still loses nothing, and can be stopped.
func TestBACK02Frozen(t *testing.T) {
	d := open(t)
	id, sh := drivertest.Start(t, d, sandbox.Spec{})
	p, err := sh.Start(guest.Command{Text: []byte("for i in 1 2 3 4 5; do echo $i; sleep 0.1; done")}, false)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	freeze := func(sig syscall.Signal) {
		for _, pid := range processes(id) {
			syscall.Kill(pid, sig)
		}
	}
	freeze(syscall.SIGSTOP)
	time.AfterFunc(500*time.Millisecond, func() { freeze(syscall.SIGCONT) })
	var out strings.Builder
	exit, err := p.Wait(t.Context(), &out, io.Discard)
	if err != nil || exit != (guest.Exit{}) || out.String() != "1\n2\n3\n4\n5\n" {
		t.Errorf("ended with %+v, %v, and wrote %q", exit, err, out.String())
	}

	if os.Geteuid() != 0 {
		return // a disk that cannot be saved keeps its sandbox from being stopped
	}
	freeze(syscall.SIGSTOP)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := d.Stop(ctx, id); err != nil {
		if err := d.Stop(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	drivertest.Connect(t, d, id).Run("true")
}

// A disk that has to be saved is saved while the sandbox runs, too.
func TestSave(t *testing.T) {
	cfg := gvisor.Config{State: t.TempDir(), Run: shortDir(t), Executable: program}
	d, err := gvisor.OpenSaved(cfg, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	id, sh := drivertest.Start(t, d, sandbox.Spec{})
	for _, word := range []string{"one", "two"} {
		sh.Run("sh", "-c", "echo "+word+" >/root/word")
		if err := d.Save(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		sh.Run("sh", "-c", "echo lost >/root/word")
	}
	if err := crash(id); err != nil {
		t.Fatal(err)
	}
	if err := d.Stop(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	drivertest.Connect(t, d, id).Want("two", "cat", "/root/word")
}

// A sandbox whose disk was deleted by hand is ended.
func TestForget(t *testing.T) {
	host := newHost(t)
	d, err := host.Open()
	if err != nil {
		t.Fatal(err)
	}
	id := sandbox.NewID()
	if err := d.Create(t.Context(), sandbox.Spec{ID: id, Image: sandbox.ImageHost}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { crash(id) })
	if err := d.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	d.Close()
	for _, trace := range host.Traces(id) {
		if filepath.Base(filepath.Dir(trace)) == "sandboxes" {
			os.RemoveAll(trace)
		}
	}
	if d, err = host.Open(); err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if traces := host.Traces(id); len(traces) > 0 {
		t.Errorf("left:\n%s", strings.Join(traces, "\n"))
	}
}

// What is wrong with a configuration is said at once.
func TestNew(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	cfg := gvisor.Config{State: t.TempDir(), Run: shortDir(t), Executable: program}
	d, err := gvisor.New(cfg, log)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	long := cfg
	long.State, long.Run = t.TempDir(), filepath.Join(shortDir(t), strings.Repeat("x", 100))
	script := cfg
	script.State, script.Executable = t.TempDir(), filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script.Executable, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for want, cfg := range map[string]gvisor.Config{
		"in use by another gateway": cfg,
		"too long":                  long,
		"is no program":             script,
	} {
		d, err := gvisor.New(cfg, log)
		if err == nil {
			d.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}

// crash kills the host processes of a sandbox.
func crash(id sandbox.ID) error {
	for _, pid := range processes(id) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	return nil
}

// shortDir is t.TempDir for the addresses of sockets.
func shortDir(t testing.TB) string {
	dir, err := os.MkdirTemp("", "sg-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// processes returns the host processes that work for a sandbox.
func processes(id sandbox.ID) (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err != nil || !strings.HasPrefix(string(line), "runsc") || !strings.Contains(string(line), string(id)) {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		pids = append(pids, pid)
	}
	return pids
}

func traces(id sandbox.ID, dirs ...string) (found []string) {
	for _, pid := range processes(id) {
		found = append(found, fmt.Sprintf("process %d", pid))
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		for _, dir := range append(dirs, string(id)) {
			if strings.Contains(line, dir) {
				found = append(found, "mount "+line)
			}
		}
	}
	for _, dir := range append(dirs, "/sys/fs/cgroup") {
		filepath.WalkDir(dir, func(path string, _ os.DirEntry, _ error) error {
			if strings.Contains(path, string(id)) {
				found = append(found, path)
			}
			return nil
		})
	}
	return found
}
