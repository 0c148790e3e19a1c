package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"sandgate/sandbox"
	"sandgate/sandbox/guest"
	"sandgate/sandbox/nat"
)

// A sandbox with the network full has two helpers, containers of our own program:
// one lays a cable in a network namespace, which the sandbox then joins, and the
// other, in that of the engine's host and as nobody, carries what comes out at the
// far end. See package nat for what that does and does not let through. So it is
// the same with every engine, near or far, and with every runtime, and there is no
// bridge on which a sandbox would meet others, or the engine's host.
//
// The helpers live as long as the sandbox runs: Stop ends them, and Watch those of
// one that has ended by itself. Each start of it is a new cable, since gVisor takes
// the near end for itself.

// cableDir is where one helper finds the other's socket: a volume of both.
const cableDir = "/run/sandgate-cable"

// helpers are the names of a sandbox's helpers: who holds the cable and who carries
// what it brings.
func (d *Driver) helpers(id sandbox.ID) (holder, carrier string) {
	return d.name(id) + "-cable", d.name(id) + "-nat"
}

// checkNetwork says why this engine's sandboxes cannot have the network full.
func (d *Driver) checkNetwork(can abilities) error {
	refuse := func(why string) error {
		return &sandbox.UnsupportedError{Reason: "the network full cannot be had from the engine at " + d.engine.host + ": " + why +
			": use --network none, or --driver gvisor"}
	}
	switch {
	case can.rootless:
		return refuse("it runs without root, where its host's own addresses cannot be kept from sandboxes")
	case can.desktop:
		return refuse("it runs in a virtual machine, where the addresses of the computer around it cannot be kept from sandboxes")
	case can.ordinary() == "":
		return refuse("it has no runtime runc or crun, which the network's own containers need")
	}
	return nil
}

// ordinary is a runtime with the kernel of the engine's host; empty: none is known.
func (a abilities) ordinary() string {
	for _, name := range []string{"runc", "crun"} {
		if slices.Contains(a.runtimes, name) {
			return name
		}
	}
	return ""
}

// joinNetwork makes a plan one for a sandbox with the network full. What a container
// that joins another says of names is the other's; but Podman asks it itself.
func (d *Driver) joinNetwork(p *plan, spec sandbox.Spec, can abilities) {
	holder, _ := d.helpers(spec.ID)
	p.network = "container:" + holder
	if !can.podman {
		p.hostname = ""
	}
	p.labels[labelNetwork] = string(sandbox.NetworkFull)
}

// makeNetwork makes the helpers of a sandbox, and sees that they can do their work:
// what an engine does not allow is found out now and not at the first start.
func (d *Driver) makeNetwork(ctx context.Context, spec sandbox.Spec, image string, can abilities, share bool) error {
	if err := d.removeNetwork(ctx, spec.ID); err != nil {
		return err
	}
	holder, carrier := d.helpers(spec.ID)
	labels := map[string]string{labelGateway: d.instance, labelHelper: string(spec.ID)}
	hold := plan{
		name: holder, labels: labels, image: image, hostname: spec.Hostname,
		runtime: can.ordinary(),
		network: "none",
		argv:    nat.HoldArgs(guest.Executable, cableDir),
		caps:    []string{"NET_ADMIN", "NET_RAW"},
		volumes: []string{cableDir},
		dns:     nat.Gateway.String(),
		limits:  helperLimits,
	}
	carry := plan{
		name: carrier, labels: labels, image: image,
		runtime:     can.ordinary(),
		network:     "host",
		hostUsers:   can.shiftsUsers,
		user:        nobody,
		argv:        nat.CarryArgs(guest.Executable, cableDir),
		volumesFrom: holder,
		limits:      helperLimits,
	}
	if !d.oldNetwork.Load() {
		hold.sysctls = map[string]string{"net.ipv6.conf.all.disable_ipv6": "0", "net.ipv6.conf.default.disable_ipv6": "0"}
	}
	if share {
		hold.binds = []bind{d.programBind()}
		carry.binds = hold.binds
	} else {
		hold.volumes = append(hold.volumes, d.programBind().target)
	}
	err := d.make(ctx, hold)
	if err == nil {
		err = d.make(ctx, carry)
	}
	if err == nil && !d.networked.Load() {
		err = d.startNetwork(ctx, spec.ID, share)
		err = errors.Join(err, d.stopNetwork(ctx, spec.ID))
	}
	if err == nil {
		d.networked.Store(true)
		return nil
	}
	err = errors.Join(err, d.removeNetwork(ctx, spec.ID))
	if strings.Contains(err.Error(), "/net/ipv6/") && d.oldNetwork.CompareAndSwap(false, true) {
		return d.makeNetwork(ctx, spec, image, can, share) // the host's kernel has no version 6
	}
	return err
}

// writeNames puts what a new container with the network full has to know of names
// into it. Docker does so itself, at every start.
func (d *Driver) writeNames(ctx context.Context, spec sandbox.Spec) error {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, f := range []struct{ name, text string }{
		{"etc/hosts", "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t" + spec.Hostname + "\n"},
		{"etc/resolv.conf", "nameserver " + nat.Gateway.String() + "\n"},
	} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: 0o644, Size: int64(len(f.text))}); err != nil {
			return err
		}
		if _, err := io.WriteString(w, f.text); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return d.engine.copyIn(ctx, d.name(spec.ID), &archive)
}

// nobody is who has no rights where the program is run.
const nobody = "65534:65534"

// helperLimits are generous for what our own program does there.
var helperLimits = sandbox.Limits{PIDs: 512}

// startNetwork starts the helpers of a sandbox that does not run. They cannot be made
// anew, since the sandbox's container knows the one it joins by an id.
func (d *Driver) startNetwork(ctx context.Context, id sandbox.ID, share bool) error {
	holder, carrier := d.helpers(id)
	if err := d.stopNetwork(ctx, id); err != nil {
		return err
	}
	removed := func(name string) error {
		return fmt.Errorf("its network is gone, as somebody has removed the container %s: a fork of it has its disk, and a new network", name)
	}
	if !share {
		if err := d.copyProgram(ctx, holder); errors.Is(err, sandbox.ErrNotFound) {
			return removed(holder)
		} else if err != nil {
			return err
		}
	}
	for _, name := range []string{holder, carrier} {
		if err := d.engine.startReady(ctx, name, nat.ReadyLine); err != nil {
			if _, gone := d.engine.inspect(ctx, name); errors.Is(gone, sandbox.ErrNotFound) {
				return removed(name)
			}
			if _, ok := errors.AsType[*sandbox.UnavailableError](err); ok {
				return err
			}
			return &sandbox.UnsupportedError{Reason: fmt.Sprintf("the engine at %s does not let the network full be made: %s: use --network none, or --driver gvisor",
				d.engine.host, strings.Join(strings.Fields(err.Error()), " "))}
		}
	}
	return nil
}

// stopNetwork ends the helpers of a sandbox.
func (d *Driver) stopNetwork(ctx context.Context, id sandbox.ID) error {
	holder, carrier := d.helpers(id)
	var errs []error
	for _, name := range []string{carrier, holder} {
		if err := d.engine.kill(ctx, name); !errors.Is(err, sandbox.ErrNotFound) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// removeNetwork removes the helpers of a sandbox, if it has any.
func (d *Driver) removeNetwork(ctx context.Context, id sandbox.ID) error {
	holder, carrier := d.helpers(id)
	// The volumes are the holder's, and stay while the other uses them.
	return errors.Join(d.engine.remove(ctx, carrier), d.engine.remove(ctx, holder))
}

// readyTimeout is how long a helper has until it is ready.
const readyTimeout = 30 * time.Second
