//go:build linux

package guest

import (
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// cgroupDir is where a container sees its own control group. gVisor's has none: there
// the sandbox as a whole runs out of memory, and its driver tells.
const cgroupDir = "/sys/fs/cgroup"

// memoryKills returns how many processes of this sandbox the kernel has killed for lack
// of memory, and the limit in bytes, zero if there is none, as far as dir tells.
func memoryKills(dir string) (kills, limit int64) {
	events, most := cgroupFile(dir, "memory.events"), cgroupFile(dir, "memory.max")
	if events == "" { // version 1
		events, most = cgroupFile(dir, "memory/memory.oom_control"), cgroupFile(dir, "memory/memory.limit_in_bytes")
	}
	for line := range strings.Lines(events) {
		if n, ok := strings.CutPrefix(line, "oom_kill "); ok {
			kills, _ = strconv.ParseInt(strings.TrimSpace(n), 10, 64)
		}
	}
	n, err := strconv.ParseInt(strings.TrimSpace(most), 10, 64)
	if err == nil && n > 0 && n < math.MaxInt64>>10 { // version 1 says a very large number for none
		limit = n
	}
	return max(0, kills), limit
}

func cgroupFile(dir, name string) string {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, 16<<10))
	return string(b)
}

// starved says whether a job that has ended so was killed by the kernel for lack of
// memory, and what the limit was. A shell gives 137 for the last program that was.
func (j *job) starved(exit Exit) (limit int64, ok bool) {
	if exit.Signal != "KILL" && exit.Code != 128+9 {
		return 0, false
	}
	kills, limit := memoryKills(cgroupDir)
	return limit, kills > j.memoryKills
}
