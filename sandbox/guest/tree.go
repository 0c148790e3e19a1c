//go:build linux

package guest

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// A job's processes may leave its group and session, lose their parents, clear their
// environment and overwrite what is shown of it, as daemons do. What they keep, over
// fork and exec, are resource limits, and there is one that no kernel has enforced
// since 2.4 and no program sets: that of the resident set. So each recorded job has a
// value of its own for it, a mark, which is far above all memory there is. The file
// /proc/PID/stat shows it to everybody, together with the parent.
//
// A control group or a namespace for each job would hold even who wants to get out,
// but not every sandbox can make them.

// noMark is the mark of processes that belong to no recorded job.
const noMark = uint64(unix.RLIM_INFINITY)

// newMark draws a mark.
func newMark() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return 1<<61 | binary.BigEndian.Uint64(b[:])>>4
}

// setMark sets the mark of this process, which its children inherit. Where it cannot
// be set, jobs are known by their sessions and parents alone.
func setMark(mark uint64) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_RSS, &limit); err != nil {
		return err
	}
	limit.Cur = min(mark, limit.Max)
	if limit.Cur != mark && mark != noMark {
		return unix.EPERM
	}
	return unix.Setrlimit(unix.RLIMIT_RSS, &limit)
}

// A process is what is to be known of one.
type process struct {
	pid, parent, group, session int
	mark                        uint64
	resident                    int64 // bytes of memory
}

// parseStat reads /proc/PID/stat. Processes that have ended are none.
func parseStat(b []byte) (process, bool) {
	// The second field is a name in parentheses, with whatever is in it.
	pid, rest, ok := bytes.Cut(b, []byte(" ("))
	end := bytes.LastIndexByte(rest, ')')
	if !ok || end < 0 {
		return process{}, false
	}
	f := bytes.Fields(rest[end+1:])
	const state, parent, group, session, resident, limit = 0, 1, 2, 3, 21, 22 // of proc(5), less three
	if len(f) <= limit || bytes.ContainsAny(f[state], "ZXx") {
		return process{}, false
	}
	var p process
	var err error
	number := func(b []byte) int {
		n, e := strconv.Atoi(string(b))
		if e != nil {
			err = e
		}
		return n
	}
	p.pid, p.parent, p.group, p.session = number(pid), number(f[parent]), number(f[group]), number(f[session])
	p.resident = int64(number(f[resident])) * int64(os.Getpagesize())
	if err != nil {
		return process{}, false
	}
	p.mark, err = strconv.ParseUint(string(f[limit]), 10, 64)
	return p, err == nil
}

// processes returns those that run, but this one.
func processes() []process {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(-1)
	self := os.Getpid()
	var all []process
	for _, name := range names {
		if name[0] < '1' || name[0] > '9' {
			continue
		}
		b, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue
		}
		if p, ok := parseStat(b); ok && p.pid != self {
			all = append(all, p)
		}
	}
	return all
}

// members returns those of all that belong to a job: they carry its mark, are in its
// session, or descend from one that does. No session is 0.
func members(all []process, mark uint64, session int) []int {
	children := make(map[int][]int)
	var found, look []int
	in := make(map[int]bool)
	add := func(pid int) {
		if !in[pid] {
			in[pid] = true
			found = append(found, pid)
			look = append(look, pid)
		}
	}
	for _, p := range all {
		children[p.parent] = append(children[p.parent], p.pid)
		if mark != noMark && p.mark == mark || session != 0 && p.session == session {
			add(p.pid)
		}
	}
	for len(look) > 0 {
		pid := look[0]
		look = look[1:]
		for _, child := range children[pid] {
			add(child)
		}
	}
	return found
}

// members returns the processes of a recorded job. The session's number is only its
// own for sure while its leader runs.
func (j *job) members() []int {
	session := j.pid
	if j.over() {
		session = 0
	}
	return members(processes(), j.mark, session)
}

// endAll ends what there is of the job: politely, and what is left after grace for
// good. It returns when nothing is left, or when what is left cannot be killed.
func (j *job) endAll(grace time.Duration) {
	signal := func(pids []int, sig unix.Signal) {
		for _, pid := range pids {
			unix.Kill(pid, sig)
		}
	}
	pids := j.members()
	if j.terminal != nil {
		signal(pids, unix.SIGHUP) // interactive shells do not mind TERM
	}
	signal(pids, unix.SIGTERM)
	signal(pids, unix.SIGCONT) // one that is stopped could not take it
	wait := 10 * time.Millisecond
	for deadline := time.Now().Add(grace); len(pids) > 0 && time.Now().Before(deadline); pids = j.members() {
		time.Sleep(wait)
		wait = min(2*wait, 250*time.Millisecond)
	}
	// What forks all the time may be missed by one look, but each finds the less.
	for range 500 {
		if len(pids) == 0 {
			return
		}
		signal(pids, unix.SIGSTOP)
		signal(pids, unix.SIGKILL)
		time.Sleep(10 * time.Millisecond)
		pids = j.members()
	}
}
