//go:build linux

package gvisor

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strconv"
	"time"

	"sandgate/sandbox"
)

// clockTick is the unit of times in /proc, on all of Linux that Go knows.
const clockTick = 10 * time.Millisecond

// Busy implements sandbox.Gauge. Where there are no control groups that count, the
// host's processes of the sandbox do: the sentry, the gofer, the network's, and the
// sentry's descendants, which run the sandbox's programs.
func (d *Driver) Busy(_ context.Context, id sandbox.ID) (time.Duration, error) {
	if r := d.host.groups.read(id); r.CPU != nil {
		return *r.CPU, nil
	}
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	parents, busy := make(map[int]int), make(map[int]time.Duration)
	ours := make(map[int]bool)
	limit := time.Now().Add(identifyTimeout)
	for _, dir := range dirs {
		pid, err := strconv.Atoi(dir.Name())
		if err != nil {
			continue
		}
		var ok bool
		if parents[pid], busy[pid], ok = processTimes(pid); !ok {
			continue // it has ended
		}
		if name, i := identify(pid, limit); i == id && (name == sentryName || name == goferName || name == natName) {
			ours[pid] = true
		}
	}
	if len(ours) == 0 {
		return 0, errors.New("no process of the sandbox is to be found")
	}
	var sum time.Duration
	for pid, took := range busy {
		for p, steps := pid, 0; p > 1 && steps < maxAncestors; p, steps = parents[p], steps+1 {
			if ours[p] {
				sum += took
				break
			}
		}
	}
	return sum, nil
}

// maxAncestors bounds the way from a process to the first one. What was read while
// processes came and went need not be a tree.
const maxAncestors = 64

// processTimes returns the parent of a process and the processor time that it and
// those of its children took that have ended.
func processTimes(pid int) (parent int, busy time.Duration, ok bool) {
	stat, err := os.ReadFile(procFile(pid, "stat"))
	if err != nil {
		return 0, 0, false
	}
	// The name before may have anything in it, but not this after it.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 15 {
		return 0, 0, false
	}
	parent, err = strconv.Atoi(string(fields[1]))
	for _, f := range fields[11:15] { // of itself and of its children, in user mode and in the kernel
		n, _ := strconv.ParseInt(string(f), 10, 64)
		busy += time.Duration(n) * clockTick
	}
	return parent, busy, err == nil
}
