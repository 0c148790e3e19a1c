//go:build linux

package gvisor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"sandgate/sandbox"
)

// Watch implements sandbox.Watcher: it reports sandboxes that end by themselves,
// or that the host's kernel ends.
func (d *Driver) Watch(ctx context.Context, report func(sandbox.Event)) {
	d.mu.Lock()
	d.report = report
	d.mu.Unlock()
	<-ctx.Done()
	d.mu.Lock()
	d.report = nil
	d.mu.Unlock()
}

// ended reports the end of a sandbox's kernel that was not this driver's doing.
func (d *Driver) ended(e *entry) {
	e.mu.Lock()
	limits := e.Spec.Limits
	e.mu.Unlock()
	cause := d.host.groups.excess(e.Spec.ID, limits)
	if cause == "" {
		cause = "its first process ended"
	}
	d.mu.Lock()
	report := d.report
	d.mu.Unlock()
	if report != nil {
		report(sandbox.Event{Kind: sandbox.Ended, ID: e.Spec.ID, Cause: cause})
	}
}

// excess says which limit the sandbox has met so hard that the kernel ended it, or
// "". It has to be asked before the sandbox's groups are removed.
func (g groups) excess(id sandbox.ID, l sandbox.Limits) string {
	for _, group := range g.find(g.of(id)) {
		switch {
		case l.Memory > 0 && (groupCount(group, "memory.oom_control", "oom_kill") > 0 || groupCount(group, "memory.events", "oom_kill") > 0):
			return fmt.Sprintf("it ran out of memory: its limit is %d MiB", l.Memory>>20)
		case l.PIDs > 0 && groupCount(group, "pids.events", "max") > 0:
			return fmt.Sprintf("it had too many processes: its limit is %d", l.PIDs)
		}
	}
	return ""
}

// groupCount returns a number of a group's file of names and numbers, or 0.
func groupCount(group, file, name string) int64 {
	data, err := os.ReadFile(filepath.Join(group, file))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			return n
		}
	}
	return 0
}
