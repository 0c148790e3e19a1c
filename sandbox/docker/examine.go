package docker

import (
	"context"
	"errors"
	"slices"
	"strings"

	"sandgate/sandbox"
)

// Examine says what the engine of cfg can do. works is false if it does not answer.
func Examine(ctx context.Context, cfg Config) (found []sandbox.Finding, works bool) {
	e, err := newEngine(cfg)
	if err != nil {
		return []sandbox.Finding{{Name: "docker", Says: err.Error(), Remedy: "mend DOCKER_HOST or docker-host"}}, false
	}
	defer e.close()
	can, err := e.abilities(ctx)
	if err != nil {
		f := sandbox.Finding{Name: "docker", Says: err.Error(), Remedy: "install Docker or Podman, if you want it: gvisor needs neither"}
		if u, ok := errors.AsType[*sandbox.UnavailableError](err); ok {
			f.Says = u.Reason
		}
		return []sandbox.Finding{f}, false
	}
	slices.Sort(can.runtimes)
	found = []sandbox.Finding{{Name: "docker", OK: true, Says: "an engine for " + can.os + "/" + can.arch + " answers at " + e.host +
		", with the runtimes " + strings.Join(can.runtimes, " ")}}
	for _, limit := range []struct {
		name string
		can  bool
	}{{"docker, limit on cpus", can.cpus}, {"docker, limit on memory", can.memory}, {"docker, limit on pids", can.pids}} {
		f := sandbox.Finding{Name: limit.name, OK: limit.can, Says: "the engine enforces it"}
		if !limit.can {
			f.Says, f.Remedy = "the engine does not enforce it", "give the engine's host control groups, best of version 2"
		}
		found = append(found, f)
	}
	d := &Driver{engine: e, shared: e.shares(cfg)}
	workspaces := sandbox.Finding{Name: "docker, workspaces", OK: true, Says: "the engine mounts them"}
	if err := d.checkWorkspace(can); err != nil {
		workspaces.OK, workspaces.Says = false, err.Error()
	}
	network := sandbox.Finding{Name: "docker, network full", OK: true, Says: "two containers of this program carry it"}
	if err := d.checkNetwork(can); err != nil {
		network.OK, network.Says = false, err.Error()
	}
	return append(found, examineDisk(can), workspaces, network), true
}

// examineDisk says whether the engine can limit disks, as far as it lets see.
func examineDisk(can abilities) sandbox.Finding {
	f := sandbox.Finding{Name: "docker, limit on disk", OK: true, Says: "the storage driver " + can.storage + " enforces it"}
	switch {
	case can.snapshotter:
	case can.storage == "btrfs" || can.storage == "zfs":
		return f
	case can.backing == "xfs":
		f.Says += ", if its file system is mounted with the option pquota"
		return f
	}
	f.OK, f.Says, f.Remedy = false, "the storage driver "+can.storage+" cannot: --disk is refused", diskRemedy
	return f
}
