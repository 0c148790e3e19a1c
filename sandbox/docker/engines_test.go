package docker_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sandgate/sandbox"
	"sandgate/sandbox/docker"
	"sandgate/sandbox/drivertest"
	"sandgate/sandbox/guest"
	"sandgate/sandbox/testneed"
)

// An engine whose storage driver can limit a disk does so.
func TestDiskOnBtrfs(t *testing.T) {
	d := newDaemon(t)
	data, disk := filepath.Join(d.dir, "data"), filepath.Join(d.dir, "disk")
	testneed.Programs(t, "mkfs.btrfs")
	script := "mkdir " + data + "; truncate -s 3G " + disk + "; mkfs.btrfs -q " + disk + "; mount -o loop " + disk + " " + data
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		testneed.Lacking(t, fmt.Sprintf("btrfs on a loop device: %v %s", err, out))
	}
	d.start()
	image := d.importProgram(t)
	const most = 64 << 20
	_, sh := drivertest.Start(t, open(t, docker.Config{Host: d.host}), sandbox.Spec{Image: image, Limits: sandbox.Limits{Disk: most}})
	// It holds as soon as btrfs has counted what was there before.
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		code, out, err := sh.Try(guest.Executable, "probe", "fill", "/fill", strconv.Itoa(4*most))
		if err != nil {
			t.Fatal(err)
		}
		if code == 1 && strings.Contains(out, "quota") {
			return
		}
		if code != 0 || time.Now().After(end) {
			t.Fatalf("filling the disk of %d bytes: code %d, %q", most, code, out)
		}
	}
}

// On an engine that shifts users a sandbox is what it is elsewhere, but for a
// workspace, which nobody in it would own.
func TestUsernsRemap(t *testing.T) {
	d := newDaemon(t)
	for _, kind := range []string{"subuid", "subgid"} {
		file := filepath.Join(d.dir, kind)
		if err := os.WriteFile(file, []byte("nobody:1000000:65536\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat("/etc/" + kind); err != nil {
			testneed.Lacking(t, "/etc/"+kind+", to put another one over")
		}
		d.before += "mount --bind " + file + " /etc/" + kind + "; "
	}
	if err := os.Chmod(d.dir, 0o711); err != nil { // its root passes through
		t.Fatal(err)
	}
	d.start("--userns-remap=nobody:nogroup")
	image := d.importProgram(t)

	driver := open(t, docker.Config{Host: d.host})
	err := driver.Create(t.Context(), sandbox.Spec{ID: sandbox.NewID(), Image: image, Workspace: t.TempDir()})
	if _, ok := errors.AsType[*sandbox.UnsupportedError](err); !ok || !strings.Contains(err.Error(), "--userns-remap") {
		t.Errorf("with a workspace: %v", err)
	}
	found, _ := docker.Examine(t.Context(), docker.Config{Host: d.host})
	if i := slices.IndexFunc(found, func(f sandbox.Finding) bool { return f.Name == "docker, workspaces" }); i < 0 || found[i].OK || !strings.Contains(found[i].Says, "--userns-remap") {
		t.Errorf("check says %+v", found)
	}

	id, sh := drivertest.Start(t, driver, sandbox.Spec{Image: image, Network: sandbox.NetworkFull})
	sh.Run("/program", "runsc", "--version")
	box, err := d.container(id)
	if err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile("/proc/" + d.docker(t, "inspect", "--format", "{{.State.Pid}}", box) + "/status")
	if err != nil || !strings.Contains(string(status), "\nUid:\t1000000\t") {
		t.Errorf("root in the sandbox is on the host: %s, %v", status, err)
	}
}
