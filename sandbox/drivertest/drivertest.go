// Package drivertest is the suite that every sandbox.Driver passes: all that a
// user can see of a sandbox through the real guest, and all that what runs in one
// may try against its host, its gateway and its neighbours. SSH is not part of it;
// the stories are about that.
//
// # Cases
//
// A case is a few lines in one of the groups (see groups), each of which has a
// file of its own. Cases that harm nobody share a sandbox, and run at the same
// time; the others make sandboxes, or a whole Host, for themselves.
//
// # Differences
//
// What a driver does is the same everywhere, but for this table. A Host says in
// its fields which column is its own; a case of what a host cannot do is not run
// there, and counted as such.
// Podman is as Docker with runc, and runs the groups that depend on the engine.
//
//	                    gvisor, root   gvisor, user   docker, runc   docker, runsc   Local
//	kernel (uname)      gVisor's       gVisor's       the host's     gVisor's        the host's
//	walls               yes            yes            yes            yes             none at all
//	memory, CPUs, pids  control group  no: a note     engine's       engine's        no
//	out of memory ends  the sandbox    -              a process, or  the sandbox     -
//	                                                  the sandbox
//	too many processes  are refused    are refused    are refused    end the         -
//	  of root                                                          sandbox
//	disk limit          yes            yes            as the engine  as the engine   no
//	                                                  can, or refused  can, or refused
//	image host          yes            yes            refused        refused         -
//	workspace           yes            yes            refused without shared         -
//	                                                    folders, or with userns-remap
//	limits changed      at next start  at next start  at once        at once; of     -
//	                                                                   processes: refused
//	variables changed   at next start  at next start  refused        refused         -
//	no-new-privileges   no: sudo, su   no: sudo, su   engine's       engine's        no
//	^C is echoed        no             no             yes            no               yes
//	blocks of a sparse  as if full     as if full     few            as if full       few
//	  file
//	namespaces inside   may be made    may be made    refused        may be made     -
//	jobs of a sandbox   end as oom     -              end as oom     are lost        -
//	  that had no memory
//	limit of processes  user's own     user's own     one for all    one for all     -
//	/etc/hostname, hosts kept          kept           new at start   new at start   -
//	guest's socket      mounted        mounted        mounted; without shared       -
//	  and program         read-only      read-only      folders the sandbox's own
//	vsock               no             no             as the engine  no             -
//	                                                    filters it
//	/sys/fs/cgroup      none           none           read-only      gVisor's own   -
//	pause               to disk        to disk        in memory      in memory       no
//	fork                with memory    with memory    disk only      disk only       no
//	disk after a crash  kept           last save      kept           kept            -
//	after Close         runs on        runs on        runs on        runs on         removed
package drivertest

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sandgate/sandbox"
)

// patience is how long anything may take that is expected to happen at once. It
// tells slow from never, on a busy host too.
const patience = time.Minute

// A Host is a place for sandboxes, made for one test.
type Host struct {
	// Name is the host's column in the table that test.sh shows.
	Name string

	// Open opens the driver with a program that begins with Guest. It is called
	// again after Close, and then finds the sandboxes that are there.
	Open func() (sandbox.Driver, error)

	// Crash ends a running sandbox behind the driver's back.
	Crash func(sandbox.ID) error

	// Traces lists what there is of a sandbox on the host: processes, mounts,
	// control groups, files. Nothing, for one that was removed.
	Traces func(sandbox.ID) []string

	// Image is what sandboxes are made of; empty: sandbox.ImageHost. It has a
	// POSIX shell and the usual small programs, and no user but root is needed.
	Image string

	// NoWalls says that sandboxes are processes of the host (Local): only the
	// cases that are about one sandbox's guest are run.
	NoWalls bool

	// The limits that are enforced here. Of one that is not, the driver has to
	// say so in the sandbox's notes.
	Memory, PIDs, CPUs, Disk bool

	// SavedDisk says that what was written last is lost when a sandbox is killed.
	SavedDisk bool

	// Pauses says that the driver is a sandbox.Pauser, and Checkpoints that what it
	// has paused has no processes any more, and no memory.
	Pauses, Checkpoints bool

	// Except names cases, as Group/Case, that do not hold here, and why: one of the
	// differences in the table above.
	Except map[string]string

	// Only names the groups and the cases, as Group/Case, that are run here; empty: all.
	Only []string

	// NoNewPrivs says that programs cannot gain rights by set-user-ID bits.
	NoNewPrivs bool
}

// spec returns what a sandbox of that name is made of.
func (h Host) spec(id sandbox.ID, hostname string) sandbox.Spec {
	image := h.Image
	if image == "" {
		image = sandbox.ImageHost
	}
	return sandbox.Spec{ID: id, Hostname: hostname, Image: image}
}

// pick returns the names of those cases of a group that are for this host.
func (h Host) pick(g group) []string {
	if h.NoWalls && !g.local {
		return nil
	}
	names := slices.Sorted(maps.Keys(g.cases))
	if len(h.Only) == 0 || slices.Contains(h.Only, g.name) {
		return names
	}
	return slices.DeleteFunc(names, func(name string) bool { return !slices.Contains(h.Only, g.name+"/"+name) })
}

// A group is the cases about one thing.
type group struct {
	name  string
	local bool // runs without walls, too
	cases cases
}

// has reports whether the group, or a case of it as Group/Case, has that name.
func (g group) has(name string) bool {
	of, name, one := strings.Cut(name, "/")
	return of == g.name && (!one || g.cases[name] != nil)
}

// cases are by name.
type cases map[string]testCase

// A testCase is one line of the suite.
type testCase interface{ run(*seat) }

// check is a testCase of its own.
type check func(*seat)

func (c check) run(s *seat) { c(s) }

// alone is a testCase that needs sandboxes of its own.
type alone func(*testing.T, *bench)

func (c alone) run(s *seat) { c(s.T, s.bench.lend(s.T)) }

// onHost is a testCase that needs a driver of its own, such as to close it.
type onHost func(*testing.T, *bench)

func (c onHost) run(s *seat) { c(s.T, newBench(s.T, s.newHost(s.T))) }

// where is a testCase for hosts that can do something.
type where struct {
	can func(Host) bool
	testCase
}

func walls(h Host) bool  { return !h.NoWalls }
func memory(h Host) bool { return h.Memory }
func pids(h Host) bool   { return h.PIDs }
func disk(h Host) bool   { return h.Disk }
func noDisk(h Host) bool { return !h.Disk }

// Run tests the driver that newHost's hosts open. It logs a line for each group.
func Run(t *testing.T, newHost func(*testing.T) Host) {
	host := newHost(t)
	for _, name := range host.Only {
		if !slices.ContainsFunc(groups, func(g group) bool { return g.has(name) }) {
			t.Fatalf("there is no group and no case %q", name)
		}
	}
	shared := newBench(t, host)
	_, shell := shared.start("shared")
	var table []*tally
	for _, g := range groups {
		names := host.pick(g)
		if len(names) == 0 {
			continue
		}
		sum := &tally{group: g.name}
		table = append(table, sum)
		t.Run(g.name, func(t *testing.T) {
			for _, name := range names {
				c := g.cases[name]
				w, limited := c.(where)
				if _, excepted := host.Except[g.name+"/"+name]; excepted || limited && !w.can(host) {
					sum.add(&sum.not)
					continue
				}
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					defer sum.end(t)
					c.run(&seat{T: t, client: shell.Client, bench: shared, newHost: newHost})
				})
			}
		})
	}
	report(t, host.Name, table)
}

// tableFile names a file, if there is one, to which lines of the table are added.
const tableFile = "SANDGATE_TEST_TABLE"

// report logs the groups of which cases were run.
func report(t *testing.T, host string, table []*tally) {
	var lines strings.Builder
	for _, s := range table {
		if s.passed+s.failed == 0 {
			continue
		}
		t.Logf("%-12s %3d passed %3d failed %3d not on this host", s.group, s.passed, s.failed, s.not)
		fmt.Fprintf(&lines, "%s\t%s\t%d\t%d\t%d\n", host, s.group, s.passed, s.failed, s.not)
	}
	name := os.Getenv(tableFile)
	if name == "" {
		return
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Error(err)
		return
	}
	defer f.Close()
	if _, err := f.WriteString(lines.String()); err != nil {
		t.Error(err)
	}
}

// A tally is the line that Run logs of a group.
type tally struct {
	group string

	mu                  sync.Mutex
	passed, failed, not int
}

func (s *tally) add(n *int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*n++
}

func (s *tally) end(t *testing.T) {
	switch {
	case t.Skipped():
		s.add(&s.not)
	case t.Failed():
		s.add(&s.failed)
	default:
		s.add(&s.passed)
	}
}
