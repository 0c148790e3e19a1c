//go:build linux

package gvisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandgate/sandbox"
)

const groupRoot = "/sys/fs/cgroup"

// The controllers that limits need.
const (
	cpuGroup    = "cpu"
	memoryGroup = "memory"
	pidsGroup   = "pids"
)

// groups says which control groups the host lets us have.
type groups struct {
	parent  string           // of our groups, in each hierarchy
	missing map[string]error // the controllers that cannot be used, and why
}

// findGroups makes parent wherever that is possible.
func findGroups(parent string) groups {
	g := groups{parent: parent, missing: make(map[string]error)}
	for _, controller := range []string{cpuGroup, memoryGroup, pidsGroup} {
		if err := g.enable(controller); err != nil {
			g.missing[controller] = err
		}
	}
	return g
}

// enable makes it possible to limit something below the parent.
func (g groups) enable(controller string) error {
	has, err := os.ReadFile(filepath.Join(groupRoot, "cgroup.controllers"))
	if err != nil { // version 1: one hierarchy for each controller
		hierarchy := filepath.Join(groupRoot, controller)
		if _, err := os.Stat(hierarchy); err != nil {
			return err
		}
		return os.MkdirAll(filepath.Join(hierarchy, g.parent), 0o755)
	}
	if !slices.Contains(strings.Fields(string(has)), controller) {
		return errors.New("the host does not offer it")
	}
	// In a container this fails if the root group has processes of its own.
	control := filepath.Join(groupRoot, "cgroup.subtree_control")
	if err := os.WriteFile(control, []byte("+"+controller), 0); err != nil {
		return err
	}
	return os.MkdirAll(filepath.Join(groupRoot, g.parent), 0o755)
}

// of returns the path of a sandbox's group, in each hierarchy.
func (g groups) of(id sandbox.ID) string { return filepath.Join(g.parent, string(id)) }

// enforced returns those of the limits that groups can enforce.
func (g groups) enforced(l sandbox.Limits) sandbox.Limits {
	l.Disk = 0
	if g.missing[cpuGroup] != nil {
		l.CPUs = 0
	}
	if g.missing[memoryGroup] != nil {
		l.Memory = 0
	}
	if g.missing[pidsGroup] != nil {
		l.PIDs = 0
	}
	return l
}

// notes says which limits cannot be enforced.
func (g groups) notes(l sandbox.Limits) []string {
	var notes []string
	note := func(what, controller string) {
		if err := g.missing[controller]; err != nil {
			notes = append(notes, fmt.Sprintf("The limit on %s is not enforced: %v.", what, err))
		}
	}
	if l.CPUs > 0 {
		note("processors", cpuGroup)
	}
	if l.Memory > 0 {
		note("memory", memoryGroup)
	}
	if l.PIDs > 0 {
		note("processes", pidsGroup)
		notes = append(notes, fmt.Sprintf("The limit of %d processes holds for each user of the sandbox by itself. "+
			"A sandbox whose root exceeds it may end, and one that exceeds twice that and %d does.", l.PIDs, spareThreads))
	}
	return notes
}

// join puts a process into the groups of a sandbox that runs, where it has any.
func (g groups) join(id sandbox.ID, pid int) error {
	var errs []error
	for _, group := range g.find(g.of(id)) {
		errs = append(errs, os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0))
	}
	return errors.Join(errs...)
}

// remove removes the groups of a sandbox without processes.
func (g groups) remove(id sandbox.ID) error {
	var errs []error
	for _, group := range g.find(g.of(id)) {
		errs = append(errs, removeGroup(group))
	}
	return errors.Join(errs...)
}

// close removes the parent where it is empty.
func (g groups) close() {
	if g.parent == "" {
		return
	}
	for _, path := range []string{g.parent, filepath.Dir(g.parent)} {
		for _, group := range g.find(path) {
			os.Remove(group) // fails, as it should, for one that is in use
		}
	}
}

// find returns the folders of the group path, in whatever hierarchy they are.
func (g groups) find(path string) []string {
	found, _ := filepath.Glob(filepath.Join(groupRoot, "*", path))
	if _, err := os.Stat(filepath.Join(groupRoot, path)); err == nil {
		found = append(found, filepath.Join(groupRoot, path))
	}
	return found
}

// removeGroup removes a group whose last process has just ended, of which the
// kernel may need a moment to become aware.
func removeGroup(path string) error {
	for end := time.Now().Add(killTimeout); ; time.Sleep(5 * time.Millisecond) {
		err := os.Remove(path)
		if err == nil || errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return err
		}
	}
}
