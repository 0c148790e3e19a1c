package demo

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A process is one on this host. Its number may be another's later, with another
// start.
type process struct {
	pid   int
	start string
}

// family returns a process and all that descend from it. Sandboxes do so as long
// as their gateway runs: it takes over what their starter leaves behind.
func family(root int) []process {
	children := make(map[int][]process)
	var found []process
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		p, parent, ok := readStat(path)
		if !ok {
			continue
		}
		children[parent] = append(children[parent], p)
		if p.pid == root {
			found = append(found, p)
		}
	}
	for i := 0; i < len(found); i++ {
		found = append(found, children[found[i].pid]...)
	}
	return found
}

// readStat reads a /proc/PID/stat. It is not ok if the process has ended.
func readStat(path string) (p process, parent int, ok bool) {
	data, err := os.ReadFile(path)
	if err != nil {
		return p, 0, false
	}
	return parseStat(string(data))
}

// parseStat reads the fields of proc_pid_stat(5). The name, in brackets, may
// have brackets and spaces in it.
func parseStat(stat string) (p process, parent int, ok bool) {
	number, rest, _ := strings.Cut(stat, " ")
	fields := strings.Fields(rest[strings.LastIndexByte(rest, ')')+1:])
	if len(fields) < 20 {
		return p, 0, false
	}
	pid, errPid := strconv.Atoi(number)
	parent, errParent := strconv.Atoi(fields[1])
	dead := fields[0] == "Z" || fields[0] == "X"
	return process{pid, fields[19]}, parent, errPid == nil && errParent == nil && !dead
}

func (p process) lives() bool {
	now, _, ok := readStat(fmt.Sprintf("/proc/%d/stat", p.pid))
	return ok && now == p
}

// kill ends what is left of processes that should have ended by themselves.
func kill(processes map[process]bool) {
	for p := range processes {
		if p.lives() {
			syscall.Kill(p.pid, syscall.SIGKILL)
		}
	}
}

// nothingLeft returns an error that says what is left of the demo: one of its
// processes, or one or a mount that has to do with its folder.
func nothingLeft(used map[process]bool, dir string) error {
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		err := errors.Join(left(used, dir)...)
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

func left(used map[process]bool, dir string) (errs []error) {
	for p := range used {
		if p.lives() {
			errs = append(errs, fmt.Errorf("process %d is left", p.pid))
		}
	}
	if _, err := os.Lstat(dir); err == nil {
		errs = append(errs, fmt.Errorf("folder %s is left", dir))
	}
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, proc := range all {
		if mounts, err := os.ReadFile(filepath.Join(proc, "mountinfo")); err == nil && bytes.Contains(mounts, []byte(dir)) {
			errs = append(errs, fmt.Errorf("a mount of %s is left, seen in %s/mountinfo", dir, proc))
		}
		said, _ := os.ReadFile(filepath.Join(proc, "cmdline"))
		for _, link := range []string{"exe", "cwd", "root"} {
			path, _ := os.Readlink(filepath.Join(proc, link))
			said = append(said, path...)
		}
		if bytes.Contains(said, []byte(dir)) {
			errs = append(errs, fmt.Errorf("a process that uses %s is left: %s", dir, proc))
		}
	}
	return errs
}
