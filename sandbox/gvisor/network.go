//go:build linux

package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandgate/sandbox"
	"sandgate/sandbox/nat"
)

// A sandbox with the network "full" is one end of a cable in a network namespace of
// its own, which the stage lays. At the other end is a process called natName: see
// package nat. Neither needs any rights on the host.

// natName is what the process is called in the list of processes.
const natName = "runsc-net"

// natFile is where both the stage and natName have their end of a pair of sockets,
// over which the one sends the other its end of the cable.
const natFile = 3

// layCable lays the cable in the network namespace that this process is alone in,
// and sends the other end to natName.
func layCable() error {
	defer unix.Close(natFile)
	cable, err := nat.Lay()
	if err != nil {
		return err
	}
	defer unix.Close(cable)
	return nat.Send(natFile, cable)
}

// serveNetwork is natName. It returns when the sandbox's end of the cable has gone.
func serveNetwork(args []string) error {
	if len(args) != 3 {
		return errors.New("usage: " + natName + " UID SANDBOX")
	}
	if uid, err := strconv.Atoi(args[1]); err != nil {
		return err
	} else if err := becomeNobody(uid); err != nil {
		return err
	}
	cable, err := nat.Receive(natFile)
	unix.Close(natFile)
	if err != nil {
		return err
	}
	return nat.Carry(cable, func() {})
}

// becomeNobody makes this process the host's user uid, who is nobody, as all are
// that work for a sandbox; but not for 0, where it has no other user to be.
func becomeNobody(uid int) error {
	if uid > 0 {
		err := syscall.Setgroups(nil)
		if err == nil {
			err = syscall.Setresgid(uid, uid, uid)
		}
		if err == nil {
			err = syscall.Setresuid(uid, uid, uid)
		}
		if err != nil {
			return fmt.Errorf("become user %d: %w", uid, err)
		}
	}
	return nil
}

// startNetwork starts natName for a sandbox, and returns the stage's end of the pair
// of sockets; nil for a sandbox without a network.
func (d *Driver) startNetwork(e *entry) (*os.File, error) {
	if e.Spec.Network != sandbox.NetworkFull {
		return nil, nil
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("start network: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "network"), os.NewFile(uintptr(pair[1]), "network")
	defer theirs.Close()
	cmd := exec.Command(d.program)
	cmd.Args = []string{natName, strconv.Itoa(e.shift()), string(e.Spec.ID)}
	cmd.Env = []string{}
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		ours.Close()
		return nil, fmt.Errorf("start network: %w", err)
	}
	p, err := d.openProcess(cmd.Process.Pid, natName, e.Spec.ID, nil)
	if err != nil {
		ours.Close()
		cmd.Process.Kill()
		return nil, errors.Join(fmt.Errorf("start network: %w", err), cmd.Wait())
	}
	cmd.Process.Release()
	e.mu.Lock()
	e.nat = p
	e.mu.Unlock()
	return ours, nil
}

// findNetwork returns the process natName of a sandbox that an earlier gateway has
// started; nil if there is none.
func (d *Driver) findNetwork(e *entry) *process {
	if e.Spec.Network != sandbox.NetworkFull {
		return nil
	}
	all, err := allProcesses()
	if err != nil {
		return nil
	}
	for _, n := range all {
		if n.name != natName || n.id != e.Spec.ID {
			continue
		}
		if p, err := d.openProcess(n.pid, natName, e.Spec.ID, nil); err == nil {
			return p
		}
	}
	return nil
}

// tryNetworkTimeout bounds a trial.
const tryNetworkTimeout = 5 * time.Second

// tryNetwork says whether this host lets us lay a cable.
func (d *Driver) tryNetwork() error {
	ctx, cancel := context.WithTimeout(d.closing, tryNetworkTimeout)
	defer cancel()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "network"), os.NewFile(uintptr(pair[1]), "network")
	defer ours.Close()
	defer theirs.Close()
	cmd := d.command(ctx, cableName)
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWNET
	d.asUser(cmd)
	return call(ctx, cmd)
}

// cableName is what a process is called that only tries to lay a cable.
const cableName = "runsc-cable"
