//go:build linux

package guest

import (
	"time"

	"golang.org/x/sys/unix"
)

// How often it is looked how much memory recorded jobs have: soon after one has
// started, then twice as late each time.
const (
	firstGauge = 50 * time.Millisecond
	lastGauge  = 5 * time.Second
)

// gauge notes how much memory the recorded jobs have at their peak, as far as it is
// seen. started tells it that there is another one.
func (g *guest) gauge(started <-chan struct{}) {
	for pause := firstGauge; ; {
		running := g.shelf.running()
		if len(running) == 0 {
			<-started
			pause = firstGauge
			continue
		}
		select {
		case <-started:
			pause = firstGauge
			continue
		case <-time.After(pause):
			pause = min(2*pause, lastGauge)
		}
		all := processes()
		resident := make(map[int]int64, len(all))
		for _, p := range all {
			resident[p.pid] = p.resident
		}
		for _, r := range running {
			r.weigh(all, resident)
		}
	}
}

// weigh notes what a job's processes have now, if it is more than ever before.
func (r *record) weigh(all []process, resident map[int]int64) {
	j := r.runs()
	if j == nil {
		return
	}
	sum := int64(0)
	for _, pid := range members(all, j.mark, j.pid) {
		sum += resident[pid]
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.info.Memory = max(r.info.Memory, sum)
}

// peakOf returns what an ended process tells of its largest process's memory; 0 if
// that is not to be known: a process begins as a copy of this one, and with its peak.
func peakOf(usage unix.Rusage) int64 {
	var ours unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &ours) != nil || usage.Maxrss <= ours.Maxrss {
		return 0
	}
	return usage.Maxrss << 10
}
