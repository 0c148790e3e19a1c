package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"sandgate/sandbox"
	"sandgate/sandbox/guest"
)

// Check implements sandbox.Checker, without asking the engine.
func (d *Driver) Check(spec sandbox.Spec) error {
	if spec.Image == sandbox.ImageHost {
		return &sandbox.UnsupportedError{Reason: fmt.Sprintf("the docker driver has no image %q: name another one, for example with: new NAME --driver docker --image debian:stable", spec.Image)}
	}
	if spec.Workspace != "" && !d.shared {
		return d.checkWorkspace(abilities{})
	}
	return nil
}

// checkWorkspace says why this engine's sandboxes cannot have a folder of the
// gateway's host.
func (d *Driver) checkWorkspace(can abilities) error {
	switch {
	case !d.shared:
		return &sandbox.UnsupportedError{Reason: fmt.Sprintf("a workspace needs an engine that shares folders with the gateway, and the one at %s does not", d.engine.host)}
	case can.shiftsUsers:
		return &sandbox.UnsupportedError{Reason: fmt.Sprintf("a workspace needs an engine whose users own files of its host, and the one at %s was started with --userns-remap: "+
			"leave --workspace out, or use --driver gvisor", d.engine.host)}
	}
	return nil
}

// Create implements sandbox.Driver.
func (d *Driver) Create(ctx context.Context, spec sandbox.Spec) error {
	if err := d.create(ctx, spec); err != nil {
		return fmt.Errorf("create sandbox %s: %w", spec.ID, err)
	}
	return nil
}

func (d *Driver) create(ctx context.Context, spec sandbox.Spec) error {
	if _, err := sandbox.ParseID(string(spec.ID)); err != nil {
		return err
	}
	if err := d.Check(spec); err != nil {
		return err
	}
	if err := d.getReady(); err != nil {
		return err
	}
	can, err := d.engine.abilities(ctx)
	if err != nil {
		return err
	}
	// Another root than the host's may not connect to our socket.
	share := d.shared && !can.shiftsUsers
	if _, err := d.engine.inspect(ctx, d.name(spec.ID)); err == nil {
		return d.enter(spec.ID, share)
	} else if !errors.Is(err, sandbox.ErrNotFound) {
		return err
	}
	if err := d.check(spec, can, share); err != nil {
		return err
	}
	ref, image, err := d.image(ctx, spec)
	if err != nil {
		return err
	}
	if err := d.enter(spec.ID, share); err != nil {
		return err
	}
	if spec.Network == sandbox.NetworkFull {
		err = d.makeNetwork(ctx, spec, ref, can, share)
	}
	if err == nil {
		p := d.plan(spec, can, image, share)
		p.image = ref
		err = d.make(ctx, p)
	}
	if err == nil && spec.Network == sandbox.NetworkFull && can.podman {
		if err = d.writeNames(ctx, spec); err != nil {
			err = errors.Join(err, d.engine.remove(context.WithoutCancel(ctx), d.name(spec.ID)))
		}
	}
	if err != nil {
		// The folder may be that of another Create of the same that came first.
		return errors.Join(err, d.removeNetwork(context.WithoutCancel(ctx), spec.ID), d.leave(spec.ID), d.removeOwnImage(context.WithoutCancel(ctx), spec))
	}
	return nil
}

// make makes a container.
func (d *Driver) make(ctx context.Context, p plan) error {
	// The engine may go on with what a caller has given up: see it to its end.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
	defer cancel()
	for {
		err := d.engine.create(ctx, p)
		switch {
		case errors.Is(err, errNoQuota):
			return d.noDiskLimit(p.storage)
		case errors.Is(err, errNoImage): // deleted just now
			return sandbox.ErrNoImage
		case !errors.Is(err, errExists):
			return err
		}
		// The name is taken before the container is there, and may be free again.
		if _, err := d.engine.inspect(ctx, p.name); !errors.Is(err, sandbox.ErrNotFound) {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (d *Driver) noDiskLimit(storage string) error {
	return &sandbox.UnsupportedError{Reason: fmt.Sprintf("the engine at %s cannot limit a disk with its storage driver %s: leave --disk out, or %s",
		d.engine.host, storage, diskRemedy)}
}

// diskRemedy is what an engine needs to limit disks.
const diskRemedy = "have the engine's data on xfs with the mount option pquota, on btrfs or on zfs"

// check says what a sandbox was asked to be that this engine cannot make it.
func (d *Driver) check(spec sandbox.Spec, can abilities, share bool) error {
	unsupported := func(format string, args ...any) error {
		return &sandbox.UnsupportedError{Reason: fmt.Sprintf(format, args...)}
	}
	if can.os != "linux" {
		return unsupported("the engine at %s runs containers of %s, and sandboxes need Linux", d.engine.host, can.os)
	}
	if spec.Runtime != "" && len(can.runtimes) > 0 && !slices.Contains(can.runtimes, spec.Runtime) {
		slices.Sort(can.runtimes)
		return unsupported("the engine has no runtime %q; it has: %s", spec.Runtime, strings.Join(can.runtimes, " "))
	}
	if !share && can.arch != "" && !slices.Contains(archNames[runtime.GOARCH], can.arch) {
		return unsupported("the engine at %s is a machine of kind %s, and this gateway's program is for %s", d.engine.host, can.arch, runtime.GOARCH)
	}
	if spec.Workspace != "" {
		if err := d.checkWorkspace(can); err != nil {
			return err
		}
	}
	if spec.Limits.Disk > 0 && can.snapshotter {
		return d.noDiskLimit(can.storage + " of containerd")
	}
	if spec.Network == sandbox.NetworkFull {
		return d.checkNetwork(can)
	}
	return nil
}

// programBind is the mount of our program.
func (d *Driver) programBind() bind {
	return bind{d.programs(), filepath.Dir(guest.Executable), true}
}

func (d *Driver) plan(spec sandbox.Spec, can abilities, image imageConfig, share bool) plan {
	settings := guest.Settings{
		Env:  slices.Concat(image.env, spec.Env),
		User: cmp.Or(spec.User, image.user),
		Dir:  image.dir,
	}
	p := plan{
		name:     d.name(spec.ID),
		labels:   map[string]string{labelGateway: d.instance, labelSandbox: string(spec.ID), labelEnv: envMark(spec.Env)},
		image:    spec.Image,
		hostname: spec.Hostname,
		runtime:  spec.Runtime,
		network:  "none",
		argv:     []string{guest.Executable, "guest"},
		env:      []string{settings.Environ()},
		caps:     capabilities,
		limits:   spec.Limits,
		storage:  can.storage,
	}
	if init := sandbox.InitOf(image.command); init != "" {
		p.labels[labelInit] = init
	}
	if spec.From != "" { // whose labels it would have otherwise
		p.labels[labelNotes], p.labels[labelNetwork] = "", ""
	}
	if spec.Network == sandbox.NetworkFull {
		d.joinNetwork(&p, spec, can)
	}
	if share {
		p.binds = []bind{
			d.programBind(),
			{filepath.Join(d.boxes(), string(spec.ID), "socket"), guest.SocketDir, true},
		}
	}
	if spec.Workspace != "" {
		p.binds = append(p.binds, bind{spec.Workspace, "/workspace", false})
	}
	for limit, missing := range map[string]bool{
		"processors": p.limits.CPUs > 0 && !can.cpus,
		"memory":     p.limits.Memory > 0 && !can.memory,
		"processes":  p.limits.PIDs > 0 && !can.pids,
	} {
		if missing {
			addNote(p.labels, "the limit of "+limit+" is not enforced: the engine's host lacks the control group for it")
		}
	}
	return p
}

func addNote(labels map[string]string, note string) {
	notes := strings.Split(labels[labelNotes], "\n")
	if notes[0] == "" {
		notes = nil
	}
	notes = append(notes, note)
	slices.Sort(notes)
	labels[labelNotes] = strings.Join(notes, "\n")
}
