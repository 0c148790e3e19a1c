//go:build linux

package guest

import (
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// An ending is how a process ended and what it used.
type ending struct {
	status unix.WaitStatus
	usage  unix.Rusage
}

// A reaper waits for all children of this process: those started through it, and
// orphans, whose parent the guest becomes as the first process of the sandbox.
type reaper struct {
	// mu is held while forking and while a child is taken, so that none is taken
	// before it is known, and none while its number may be given to another.
	mu      sync.Mutex
	started sync.Cond // of mu: there is a child again
	jobs    map[int]chan<- ending
}

// newReaper starts reaping. It is never stopped: the guest needs it to its end.
func newReaper() *reaper {
	r := &reaper{jobs: make(map[int]chan<- ending)}
	r.started.L = &r.mu
	unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) // where we are not PID 1
	go func() {
		for {
			r.reap()
		}
	}()
	return r
}

// reap waits until a child has ended and takes one. Waiting for a signal and then
// asking until there is nobody left would cost more calls of the kernel.
func (r *reaper) reap() {
	waitErr := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT, nil)
	r.mu.Lock()
	defer r.mu.Unlock()
	if waitErr == unix.ECHILD {
		// One without children has no descendants whom it could inherit.
		for len(r.jobs) == 0 {
			r.started.Wait()
		}
		return
	}
	var e ending
	pid, err := unix.Wait4(-1, &e.status, unix.WNOHANG, &e.usage)
	if err != nil || pid <= 0 {
		return
	}
	if done, ok := r.jobs[pid]; ok {
		delete(r.jobs, pid)
		done <- e
	}
}

// start starts a process with a mark, which becomes noMark where it cannot be set.
// Its ending is sent on the channel once.
func (r *reaper) start(path string, argv []string, attr *syscall.ProcAttr, mark *uint64) (int, <-chan ending, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if *mark != noMark {
		if setMark(*mark) != nil {
			*mark = noMark
		}
		defer setMark(noMark)
	}
	pid, err := syscall.ForkExec(path, argv, attr)
	if err != nil {
		return 0, nil, err
	}
	done := make(chan ending, 1)
	r.jobs[pid] = done
	r.started.Signal()
	return pid, done, nil
}

// terminate ends every process in the sandbox but this one, politely at first.
// It is only for PID 1.
func (r *reaper) terminate(wait func() bool) {
	unix.Kill(-1, unix.SIGTERM)
	unix.Kill(-1, unix.SIGCONT)
	if !wait() {
		unix.Kill(-1, unix.SIGKILL)
	}
}
