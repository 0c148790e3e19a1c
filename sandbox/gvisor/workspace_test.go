//go:build linux

package gvisor_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sandgate/sandbox"
	"sandgate/sandbox/drivertest"
	"sandgate/sandbox/testneed"
)

// folder makes a folder of the host with a file in it, and gives both to an
// ordinary user if the test can.
func folder(t *testing.T) (dir string, owner int) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	owner = os.Geteuid()
	if owner == 0 {
		owner = 61235
	}
	dir = filepath.Join(dir, "folder")
	err = errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "from-host"), []byte("hello\n"), 0o600))
	if err := errors.Join(err, os.Chown(dir, owner, owner), os.Chown(filepath.Join(dir, "from-host"), owner, owner)); err != nil {
		t.Fatal(err)
	}
	return dir, owner
}

func wantOwner(t *testing.T, path string, want int) {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); int(st.Uid) != want || int(st.Gid) != want {
		t.Errorf("%s belongs to %d:%d, want %d", path, st.Uid, st.Gid, want)
	}
}

// What either side writes the other sees, and on each side it belongs to whom one
// would think.
func TestWorkspace(t *testing.T) {
	d := open(t)
	for name, spec := range map[string]sandbox.Spec{
		"kernel overlay": {},
		"gVisor's own":   {Limits: sandbox.Limits{Disk: 1 << 30}},
		"user by number": {User: "1000:1001"},
		"user by name":   {User: "daemon"},
		"nobody we know": {User: "not-there-yet"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, owner := folder(t)
			spec.Workspace = dir
			ids := map[string]string{"1000:1001": "1000:1001", "daemon": "1:1"}[spec.User]
			if ids == "" {
				ids = "0:0"
			}
			if os.Geteuid() != 0 && spec.User != "" && spec.User != "0" {
				spec.ID, spec.Image = sandbox.NewID(), sandbox.ImageHost
				if err := d.Check(spec); err == nil || !strings.Contains(err.Error(), "only root can be the user") {
					t.Errorf("not refused: %v", err)
				}
				return
			}
			id, sh := drivertest.Start(t, d, spec)
			as := []string{"sh", "-ec"}
			if spec.User == "not-there-yet" {
				if code, out, err := sh.Try("true"); err != nil || code != 126 || !strings.Contains(out, "no user") {
					t.Errorf("a command of nobody: code %d, %q, %v", code, out, err)
				}
				return
			}
			sh.Want(ids, "stat", "-c", "%u:%g", "/workspace")
			sh.Want(ids, "stat", "-c", "%u:%g", "/workspace/from-host")
			sh.Want("hello", append(as, "cat /workspace/from-host")...)
			sh.Run(append(as, "mkdir /workspace/sub; echo there >/workspace/sub/from-inside; mv /workspace/sub /workspace/moved; chmod 640 /workspace/moved/from-inside; ln -s /etc/passwd /workspace/link")...)
			made := filepath.Join(dir, "moved", "from-inside")
			if text, err := os.ReadFile(made); err != nil || string(text) != "there\n" {
				t.Errorf("the host reads %q, %v", text, err)
			}
			wantOwner(t, made, owner)
			wantOwner(t, filepath.Join(dir, "moved"), owner)
			wantOwner(t, filepath.Join(dir, "link"), owner)
			// Changes of the host are seen at once.
			if err := os.WriteFile(made, []byte("changed\n"), 0); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "later"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			sh.Want("changed", append(as, "cat /workspace/moved/from-inside")...)
			sh.Run("test", "-e", "/workspace/later")
			// It is there after a stop, and after the sandbox's end.
			if err := d.Stop(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			if err := d.Start(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			drivertest.Connect(t, d, id).Run("test", "-e", "/workspace/moved/from-inside")
			if err := d.Remove(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(made); err != nil {
				t.Error(err)
			}
		})
	}
}

// A sandbox's root has no power over files of the host's other users, and none of
// its users becomes one of the host's.
func TestWorkspaceOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		return // as an ordinary user there is only one user to be
	}
	d := open(t)
	dir, _ := folder(t)
	secret := filepath.Join(dir, "roots")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil { // root's
		t.Fatal(err)
	}
	id, sh := drivertest.Start(t, d, sandbox.Spec{Workspace: dir})
	if notes := status(t, d, id).Notes; len(notes) > 0 {
		testneed.Lacking(t, "kernel overlays with shifted owners: "+strings.Join(notes, " "))
	}
	// gVisor says yes to these, and does nothing.
	sh.Try("sh", "-c", "chown 0 /workspace/roots; chmod 4777 /workspace/roots")
	for _, command := range []string{"cat /workspace/roots", "echo x >/workspace/roots", "echo x >>/workspace/roots", "truncate -s 0 /workspace/roots"} {
		if code, out, err := sh.Try("sh", "-c", command); err != nil || code == 0 {
			t.Errorf("%s: %s %v", command, out, err)
		}
	}
	if info, err := os.Lstat(secret); err != nil || info.Mode() != 0o600 || info.Size() != 6 {
		t.Errorf("the file of the host's root is now %v, %v", info, err)
	}
	wantOwner(t, secret, 0)
	sh.Run("sh", "-ec", "touch /workspace/other && chown 1234:1234 /workspace/other")
	sh.Want("1234:1234", "stat", "-c", "%u:%g", "/workspace/other")
	info, err := os.Lstat(filepath.Join(dir, "other"))
	if err != nil {
		t.Fatal(err)
	}
	if uid := info.Sys().(*syscall.Stat_t).Uid; uid < 1<<16 {
		t.Errorf("a file of the sandbox's user 1234 belongs to the host's user %d", uid)
	}
}

// A workspace that became a link, or lies behind one, is not opened.
func TestWorkspaceSwapped(t *testing.T) {
	d := open(t)
	dir, _ := folder(t)
	id, _ := drivertest.Start(t, d, sandbox.Spec{Workspace: dir})
	if err := d.Stop(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(t.Context(), id); err == nil || !strings.Contains(err.Error(), "open workspace") {
		t.Errorf("a link: %v", err)
	}
	if err := errors.Join(os.Remove(dir), os.WriteFile(dir, nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(t.Context(), id); err == nil {
		t.Error("a file was mounted")
	}
	if err := errors.Join(os.Remove(dir), os.Rename(dir+".away", dir)); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(t.Context(), id); err != nil {
		t.Error(err)
	}
}

// A disk that is full is an error to who writes, and survives as it is.
func TestDiskLimit(t *testing.T) {
	d := open(t)
	id, sh := drivertest.Start(t, d, sandbox.Spec{Limits: sandbox.Limits{Disk: 64 << 20}})
	sh.Run("sh", "-c", "head -c 20M /dev/zero >/root/fits")
	if code, out, err := sh.Try("sh", "-c", "head -c 100M /dev/zero >/var/big"); err != nil || code == 0 || !strings.Contains(out, "No space left") {
		t.Errorf("exit code %d, %s, %v", code, out, err)
	}
	sh.Run("rm", "/var/big")
	sh.Run("sh", "-c", "head -c 5M /dev/zero >/usr/local/fits")
	if err := d.Stop(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	sh = drivertest.Connect(t, d, id)
	sh.Want("20971520", "stat", "-c", "%s", "/root/fits")
	if code, _, err := sh.Try("sh", "-c", "head -c 100M /dev/zero >/var/big"); err != nil || code == 0 {
		t.Errorf("after a restart there is no limit: %v", err)
	}
	if os.Geteuid() != 0 {
		return
	}
	// It still has users of its own.
	for _, pid := range processes(id) {
		if uid := owner(t, pid); uid < 1<<16 {
			t.Errorf("process %d runs as %d, a user of the host", pid, uid)
		}
	}
	sh.Want("0:0", "stat", "-c", "%u:%g", "/usr/bin/env")
}
