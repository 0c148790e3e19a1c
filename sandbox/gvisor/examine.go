//go:build linux

package gvisor

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sandgate/sandbox"
)

// examineTimeout bounds the trial of a sandbox.
const examineTimeout = time.Minute

// Examine says what this host can do, by running a sandbox in a folder of its own
// beside what is in cfg.State, which may be in use and need not be there. works is
// false if it could not.
func Examine(ctx context.Context, cfg Config, log *slog.Logger) (found []sandbox.Finding, works bool) {
	ctx, cancel := context.WithTimeout(ctx, examineTimeout)
	defer cancel()
	dir, err := os.MkdirTemp(nearest(cfg.State), ".sandgate-check-")
	if err != nil {
		// Whoever asks may not be who is going to serve.
		if dir, err = os.MkdirTemp("", "sandgate-check-"); err != nil {
			return []sandbox.Finding{{Name: "gvisor", Says: err.Error()}}, false
		}
	}
	defer removeAll(dir)
	cfg.State, cfg.Run = dir, ""
	d, err := New(cfg, log)
	if err == nil {
		defer d.Close()
		err = d.trySandbox(ctx)
	}
	if err != nil {
		return []sandbox.Finding{{Name: "gvisor", Says: oneLine(err), Remedy: namespaceRemedy()}}, false
	}
	return d.findings(dir), true
}

// trySandbox makes a sandbox, waits for its guest, and removes it.
func (d *Driver) trySandbox(ctx context.Context) error {
	spec := sandbox.Spec{ID: sandbox.NewID(), Hostname: "check", Image: sandbox.ImageHost}
	if err := d.Create(ctx, spec); err != nil {
		return err
	}
	defer d.Remove(context.WithoutCancel(ctx), spec.ID)
	if err := d.Start(ctx, spec.ID); err != nil {
		return err
	}
	conn, err := d.Connect(ctx, spec.ID)
	if err != nil {
		return err
	}
	return conn.Close()
}

// findings are what is known of the host once a sandbox has run.
func (d *Driver) findings(dir string) []sandbox.Finding {
	how := "as root, each sandbox with users of its own"
	switch {
	case d.host.user:
		how = "as an ordinary user, without root"
	case !d.host.overlay:
		how = "as root, but without users of the sandboxes' own"
	}
	found := []sandbox.Finding{{Name: "gvisor", OK: true, Says: "a sandbox ran, " + how}}
	add := func(name string, ok bool, says, remedy string) {
		if ok {
			remedy = ""
		}
		found = append(found, sandbox.Finding{Name: name, OK: ok, Says: says, Remedy: remedy})
	}
	if d.host.overlay {
		add("own users, durable disks", true, "kernel overlays with shifted owners", "")
	} else if os.Geteuid() == 0 {
		add("own users, durable disks", false, d.host.why, "put the state folder on ext4, xfs or btrfs, and run outside of a container or in a privileged one")
	} else {
		add("own users, durable disks", false, "only root can have them; disks are saved every few minutes", "run the gateway as root")
	}
	version := "version 1"
	if _, err := os.Stat(filepath.Join(groupRoot, "cgroup.controllers")); err == nil {
		version = "version 2"
	}
	for _, limit := range []struct{ name, controller string }{
		{"limit on cpus", cpuGroup}, {"limit on memory", memoryGroup}, {"limit on pids", pidsGroup},
	} {
		remedy := "run the gateway as root"
		if os.Geteuid() == 0 {
			remedy = fmt.Sprintf("mount control groups with the controller %s, writable, at %s", limit.controller, groupRoot)
		}
		if err := d.host.groups.missing[limit.controller]; err != nil {
			add(limit.name, false, err.Error(), remedy)
		} else {
			add(limit.name, true, "control groups, "+version, "")
		}
	}
	add("limit on disk", true, "gVisor's own overlay", "")
	folder := filepath.Join(dir, "workspace")
	err := os.Mkdir(folder, 0o700)
	if err == nil {
		err = d.Check(sandbox.Spec{Image: sandbox.ImageHost, Workspace: folder})
	}
	if err != nil {
		add("workspaces", false, oneLine(err), "put them on a file system with idmapped mounts, such as ext4, xfs or btrfs")
	} else if d.host.user {
		add("workspaces", true, "folders of the gateway's user", "")
	} else {
		add("workspaces", true, "idmapped mounts", "")
	}
	if err := d.Check(sandbox.Spec{Image: sandbox.ImageHost, Network: sandbox.NetworkFull}); err != nil {
		add("network full", false, oneLine(err), "")
	} else {
		add("network full", true, "a network stack of the gateway's own", "")
	}
	return found
}

// namespaceRemedy says what keeps an ordinary user from having namespaces, as far
// as the host's settings tell.
func namespaceRemedy() string {
	if os.Geteuid() == 0 {
		return "run it outside of a container, or in a privileged one"
	}
	for _, s := range []struct{ file, bad, remedy string }{
		{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"},
		{"/proc/sys/kernel/unprivileged_userns_clone", "0", "sudo sysctl kernel.unprivileged_userns_clone=1"},
		{"/proc/sys/user/max_user_namespaces", "0", "sudo sysctl user.max_user_namespaces=10000"},
	} {
		if text, err := os.ReadFile(s.file); err == nil && strings.TrimSpace(string(text)) == s.bad {
			return s.remedy
		}
	}
	return "allow user namespaces to ordinary users, or run the gateway as root"
}

// nearest returns dir, or the closest of the folders that it would be in.
func nearest(dir string) string {
	for ; dir != "/" && dir != "."; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			break
		}
	}
	return dir
}

// oneLine is an error as one line.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
