//go:build linux

package gvisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sandgate/sandbox"
)

// What the host processes of a sandbox call themselves.
const (
	sentryName = "runsc-sandbox"
	goferName  = "runsc-gofer"
)

// A process is one that outlives this one, and may be its child. It is held by
// a descriptor, so nothing here can hit a stranger that got the same number.
type process struct {
	fd   *os.File
	pid  int           // to read about it
	gone chan struct{} // closed when it has ended

	ours atomic.Bool // we ended it, or are about to
	last func()      // called when it has ended and was not ours, before gone is closed; may be nil
}

// openProcess returns the process pid if it is called name and works for the
// sandbox id, and starts to wait for its end. os.ErrNotExist if there is none.
func (d *Driver) openProcess(pid int, name string, id sandbox.ID, last func()) (*process, error) {
	if pid <= 0 {
		return nil, os.ErrNotExist
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil, os.ErrNotExist
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	p := &process{fd: os.NewFile(uintptr(fd), "pidfd"), pid: pid, gone: make(chan struct{}), last: last}
	// Only now, as the number could have been another's before.
	if n, i := identify(pid, time.Now().Add(identifyTimeout)); n != name || i != id {
		p.fd.Close()
		return nil, os.ErrNotExist
	}
	d.wg.Go(p.wait)
	return p, nil
}

// wait closes gone when the process has ended, and ends early when p is
// released. A child of ours that has ended is reaped, this one and no other.
func (p *process) wait() {
	conn, err := p.fd.SyscallConn()
	if err != nil {
		return
	}
	err = conn.Read(func(fd uintptr) bool {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(poll, 0); err != nil || n == 0 {
			return false
		}
		unix.Waitid(unix.P_PIDFD, int(fd), nil, unix.WEXITED|unix.WNOHANG, nil)
		return true
	})
	if err != nil {
		return
	}
	if p.last != nil && !p.ours.Load() {
		p.last()
	}
	close(p.gone)
}

// ended reports whether the process has ended.
func (p *process) ended() bool {
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}

// doomed reports whether the process has ended or is about to: killed, such as for
// want of memory, it may take a second until the kernel has put away what it had.
func (p *process) doomed() bool {
	if p.ended() {
		return true
	}
	status, err := os.ReadFile(procFile(p.pid, "status"))
	return err != nil || killed(status)
}

// killed reports whether a status of proc(5) is that of a process that has got
// SIGKILL and did not end yet.
func killed(status []byte) bool {
	for line := range bytes.Lines(status) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch string(name) {
		case "State":
			if bytes.HasPrefix(value, []byte("Z")) || bytes.HasPrefix(value, []byte("X")) {
				return true
			}
		case "SigPnd", "ShdPnd":
			set, err := strconv.ParseUint(string(value), 16, 64)
			if err == nil && set>>(unix.SIGKILL-1)&1 == 1 {
				return true
			}
		}
	}
	return false
}

// memory returns how many bytes a sandbox has in memory whose kernel this is, or 0 if
// that is not to be found out.
func (p *process) memory() (size int64) {
	dir := procFile(p.pid, "fd")
	files, _ := os.ReadDir(dir)
	for _, f := range files {
		path := filepath.Join(dir, f.Name())
		var st unix.Stat_t
		if to, err := os.Readlink(path); err == nil && strings.HasPrefix(to, memoryName) && unix.Stat(path, &st) == nil {
			size = max(size, st.Blocks*512) // it may be open twice
		}
	}
	return size
}

// memoryName is what the link to the file begins with that holds all memory of a sandbox.
const memoryName = "/memfd:runsc-memory"

// kill kills the process and waits for its end.
func (p *process) kill() error {
	if !p.doomed() {
		p.ours.Store(true)
	}
	conn, err := p.fd.SyscallConn()
	if err != nil {
		return err
	}
	conn.Control(func(fd uintptr) {
		err = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0)
	})
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill: %w", err)
	}
	select {
	case <-p.gone:
		return nil
	case <-time.After(killTimeout):
		return errors.New("kill: process does not end")
	}
}

// release gives up the descriptor. The process goes on.
func (p *process) release() { p.fd.Close() }

// identify says what process pid calls itself and which sandbox it works for: two
// empty strings if it has ended, or is one of the kernel's own. It waits until a
// process that is just becoming another program, and has no arguments for a moment
// though its parent has been told of its success, has them; but not beyond limit,
// since there may be some that have taken theirs away.
func identify(pid int, limit time.Time) (name string, id sandbox.ID) {
	for {
		line, err := os.ReadFile(procFile(pid, "cmdline"))
		if err != nil {
			return "", ""
		}
		if len(line) > 0 {
			args := bytes.Split(bytes.TrimSuffix(line, []byte{0}), []byte{0})
			return string(args[0]), sandbox.ID(args[len(args)-1])
		}
		if _, err := os.Readlink(procFile(pid, "exe")); err != nil || time.Now().After(limit) {
			return "", ""
		}
		time.Sleep(time.Millisecond)
	}
}

// identifyTimeout is how long one call, or one look at all processes, waits for
// those that have no arguments.
const identifyTimeout = 200 * time.Millisecond

func procFile(pid int, name string) string {
	return filepath.Join("/proc", strconv.Itoa(pid), name)
}

// processes returns the processes that runsc says a sandbox has, those of them
// that are alive. sentry is nil when the sandbox is not running.
func (d *Driver) processes(e *entry) (sentry, gofer *process) {
	state, err := os.ReadFile(filepath.Join(e.runsc(), fmt.Sprintf("%s_sandbox:%[1]s.state", e.Spec.ID)))
	if err != nil {
		return nil, nil
	}
	var pids struct {
		Status  string `json:"status"`
		Gofer   int    `json:"goferPid"`
		Sandbox struct {
			PID int `json:"pid"`
		} `json:"sandbox"`
	}
	if json.Unmarshal(state, &pids) != nil {
		return nil, nil
	}
	if pids.Status == "running" || pids.Status == "paused" {
		sentry, _ = d.openProcess(pids.Sandbox.PID, sentryName, e.Spec.ID, func() { d.ended(e) })
	}
	gofer, _ = d.openProcess(pids.Gofer, goferName, e.Spec.ID, nil)
	return sentry, gofer
}

// A named is a process of the host as identify knows it.
type named struct {
	pid  int
	name string
	id   sandbox.ID
}

// allProcesses returns the processes of the host that can be seen.
func allProcesses() ([]named, error) {
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var all []named
	limit := time.Now().Add(identifyTimeout)
	for _, dir := range dirs {
		if pid, err := strconv.Atoi(dir.Name()); err == nil {
			name, id := identify(pid, limit)
			all = append(all, named{pid, name, id})
		}
	}
	return all, nil
}

// killStrays kills the host processes of all sandboxes that stray approves, by
// looking at every process there is. It is for when runsc was interrupted and
// could not leave a note of what it had started.
func (d *Driver) killStrays(stray func(sandbox.ID) bool) error {
	all, err := allProcesses()
	errs := []error{err}
	for _, n := range all {
		if n.name == "" {
			reapStray(n.pid)
		}
		switch n.name {
		case sentryName, goferName, stageName, pinnedName, natName:
		default:
			continue
		}
		if !stray(n.id) {
			continue
		}
		p, err := d.openProcess(n.pid, n.name, n.id, nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			err = p.kill()
			p.release()
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// reapStray reaps pid if it is a child of ours, has ended, and was a sentry or a
// gofer: one whose parent, runsc, failed. Its arguments are gone by then, hence
// the name that Main gave it.
func reapStray(pid int) {
	name, err := os.ReadFile(procFile(pid, "comm"))
	if err != nil {
		return
	}
	if n := string(bytes.TrimSpace(name)); n == sentryName || n == goferName {
		unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOHANG, nil)
	}
}

// await waits until the process has ended, ctx has, or time is up.
func (p *process) await(ctx context.Context, limit time.Duration) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.gone:
	case <-ctx.Done():
	case <-timer.C:
	}
}
