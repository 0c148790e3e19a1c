//go:build linux

package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
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

// starvedName is a file beside the disk of a sandbox that has ended when it ran out of
// memory, until it is started again: its guest is then told why jobs have no end.
const starvedName = "starved"

func (e *entry) starved() bool {
	_, err := os.Stat(filepath.Join(e.dir, starvedName))
	return err == nil
}

// noteStarved makes or removes that file. Without it a job's reason is lost, which must
// not keep a sandbox from being started or removed.
func (d *Driver) noteStarved(e *entry, starved bool) {
	path := filepath.Join(e.dir, starvedName)
	var err error
	if starved {
		err = os.WriteFile(path, nil, 0o600)
	} else {
		err = os.Remove(path)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // nor is it there, if the disk is not
		d.log.Warn("that the sandbox ran out of memory not noted", "sandbox", e.Spec.ID, "err", err)
	}
}

// starved says whether the kernel has ended something in the sandbox as that had no
// memory left. Like excess it has to be asked before the groups are removed.
func (g groups) starved(id sandbox.ID, l sandbox.Limits) bool {
	return l.Memory > 0 && slices.ContainsFunc(g.find(g.of(id)), func(group string) bool {
		return groupCount(group, "memory.oom_control", "oom_kill") > 0 || groupCount(group, "memory.events", "oom_kill") > 0
	})
}

// excess says which limit the sandbox has met so hard that the kernel ended it, or
// "". It has to be asked before the sandbox's groups are removed.
func (g groups) excess(id sandbox.ID, l sandbox.Limits) string {
	if g.starved(id, l) {
		return fmt.Sprintf("it ran out of memory: its limit is %d MiB", l.Memory>>20)
	}
	for _, group := range g.find(g.of(id)) {
		if l.PIDs > 0 && groupCount(group, "pids.events", "max") > 0 {
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
