//go:build linux

package guest

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// What is kept of jobs that have ended.
const (
	keepEnded   = 24 * time.Hour
	maxEnded    = 1000
	maxKept     = 1 << 30 // bytes of all their logs
	sweepEvery  = 10 * time.Minute
	recordName  = "job.json"
	maxRecord   = 16 << 10
	maxRecorded = 512 // that run at once
)

// A record is a job as it is kept: what it is, how it ended, what it printed.
type record struct {
	dir  string
	log  *jobLog
	done chan struct{} // closed when the job has ended

	input sync.Mutex // held while input is written

	mu    sync.Mutex
	info  JobInfo
	job   *job   // until its end
	last  *job   // the same, and after its end: for what it left running
	cause Reason // for which it is being ended

	ending bool // its processes are being ended
}

// A shelf has the records of a sandbox.
type shelf struct {
	dir string

	mu      sync.Mutex
	records map[string]*record
}

// openShelf reads the records that are there. Jobs that an earlier guest has left
// without an end have ended with it, killed for lack of memory if it was starved.
func openShelf(dir string, starved bool) *shelf {
	s := &shelf{dir: dir, records: make(map[string]*record)}
	s.load(starved)
	go func() {
		for {
			s.sweep(time.Now())
			time.Sleep(sweepEvery)
		}
	}()
	return s
}

func (s *shelf) load(starved bool) {
	entries, _ := os.ReadDir(s.dir)
	for _, e := range entries {
		path := filepath.Join(s.dir, e.Name())
		info, err := readRecord(path)
		if err != nil || info.ID != e.Name() {
			os.RemoveAll(path) // cut short by the end of the sandbox
			continue
		}
		r := &record{dir: path, info: info, done: make(chan struct{})}
		close(r.done)
		if info.Running() {
			r.log = openLog(path, -1)
			r.info.Reason, r.info.Ended = ReasonLost, lastWrite(path)
			if starved {
				r.info.Reason, r.info.Exit = ReasonMemory, &Exit{Signal: "KILL"}
			}
		} else {
			r.log = openLog(path, info.Output)
		}
		r.log.end()
		r.measure()
		if info.Running() {
			r.write()
		}
		s.records[info.ID] = r
	}
}

func readRecord(dir string) (JobInfo, error) {
	f, err := os.OpenFile(filepath.Join(dir, recordName), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return JobInfo{}, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxRecord))
	if err != nil {
		return JobInfo{}, err
	}
	return decodeJob(b)
}

// lastWrite returns when a job was last heard of.
func lastWrite(dir string) time.Time {
	var last time.Time
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if fi, err := e.Info(); err == nil && fi.ModTime().After(last) {
			last = fi.ModTime()
		}
	}
	return last
}

// create makes a record for a job that is about to start.
func (s *shelf) create(info JobInfo) (*record, error) {
	r := &record{dir: filepath.Join(s.dir, info.ID), info: info, done: make(chan struct{})}
	err := os.MkdirAll(s.dir, 0o755)
	if err == nil {
		err = os.Mkdir(r.dir, 0o755)
	}
	if err == nil {
		err = r.write()
	}
	if err != nil {
		os.RemoveAll(r.dir)
		return nil, fmt.Errorf("the sandbox has no room to record a job: %w", err)
	}
	r.log = openLog(r.dir, 0)
	s.mu.Lock()
	s.records[info.ID] = r
	s.mu.Unlock()
	return r, nil
}

// refuse records a job that could not be started, with the reason as its output.
func (s *shelf) refuse(info JobInfo, why *startError) (*record, error) {
	r, err := s.create(info)
	if err != nil {
		return nil, err
	}
	r.log.append(true, []byte("sandgate: "+why.reason+"\n"))
	r.log.end()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.measure()
	r.info.Reason, r.info.Exit, r.info.Ended = ReasonExit, &Exit{Code: why.code}, time.Now()
	close(r.done)
	return r, r.write()
}

// drop deletes a record.
func (s *shelf) drop(r *record) {
	s.mu.Lock()
	delete(s.records, filepath.Base(r.dir))
	s.mu.Unlock()
	os.RemoveAll(r.dir)
}

// find returns the record of an id, or the newest of a name, or nil.
func (s *shelf) find(job string) *record {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.records[job]; r != nil || job == "" {
		return r
	}
	var found *record
	var started time.Time
	for _, r := range s.records {
		if i := r.look(); i.Name == job && (found == nil || i.Started.After(started)) {
			found, started = r, i.Started
		}
	}
	return found
}

// all returns the records, the oldest first.
func (s *shelf) all() []*record {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*record, 0, len(s.records))
	for _, r := range s.records {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *record) int {
		return cmp.Or(a.info.Started.Compare(b.info.Started), cmp.Compare(a.info.ID, b.info.ID))
	})
	return all
}

// running returns the records of jobs that run.
func (s *shelf) running() []*record {
	return slices.DeleteFunc(s.all(), func(r *record) bool { return r.runs() == nil })
}

// owned returns how many jobs of an owner run.
func (s *shelf) owned(owner string) (n int) {
	for _, r := range s.running() {
		if r.look().Owner == owner {
			n++
		}
	}
	return n
}

// sweep deletes what ended too long ago, or is too much.
func (s *shelf) sweep(now time.Time) {
	all := s.all()
	slices.Reverse(all)
	ended, bytes := 0, int64(0)
	for _, r := range all {
		i := r.look()
		if i.Running() {
			continue
		}
		ended++
		bytes += i.Output - (i.DroppedTo - i.DroppedFrom)
		if now.Sub(i.Ended) > keepEnded || ended > maxEnded || bytes > maxKept {
			s.drop(r)
		}
	}
}

// write writes the record to the disk, whole or not at all.
func (r *record) write() error {
	path := filepath.Join(r.dir, recordName)
	if err := os.WriteFile(path+".new", appendLine(nil, r.info), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// measure puts into info what the log has had. The caller holds mu, or is the only
// one to know of r.
func (r *record) measure() {
	var failed error
	r.info.Output, r.info.DroppedFrom, r.info.DroppedTo, failed = r.log.extent()
	if failed != nil {
		r.info.LogError = printable(logReason(failed))
	}
}

func logReason(err error) string {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return err.Error()
}

// look returns the job as it is.
func (r *record) look() JobInfo {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.job != nil {
		r.measure()
		r.info.Attached = r.job.attached()
	}
	return r.info
}

// runs returns the job, or nil once it has ended.
func (r *record) runs() *job {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.job
}

// end begins to end the job and what it left running. If the job runs, cause becomes
// its reason, unless there is one.
func (r *record) end(cause Reason) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cause = cmp.Or(r.cause, cause)
	if r.last != nil && !r.ending {
		r.ending = true
		go func() {
			r.last.endAll(jobGrace)
			r.mu.Lock()
			defer r.mu.Unlock()
			r.ending = false
		}()
	}
}

// clear ends what the job has left running, and waits for that.
func (r *record) clear() {
	r.mu.Lock()
	last := r.last
	r.mu.Unlock()
	if last != nil {
		last.endAll(jobGrace)
	}
}

// stopping writes down that the job ends with the sandbox, in case there is no time
// for more.
func (r *record) stopping() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.job == nil {
		return
	}
	r.cause = cmp.Or(r.cause, ReasonStopped)
	r.measure()
	before := r.info
	r.info.Attached, r.info.Ended, r.info.Reason = 0, time.Now(), r.cause
	r.write()
	r.info.Attached, r.info.Ended, r.info.Reason = before.Attached, before.Ended, before.Reason
}

// ended writes down how the job ended, and returns that. All that it printed is in
// the log by then.
func (r *record) ended(e ending, left []int) Exit {
	r.log.end()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.measure()
	exit := exitOf(e.status)
	reason := ReasonExit
	if exit.Signal != "" {
		reason = ReasonSignal
	}
	if r.cause == "" {
		if limit, ok := r.last.starved(exit); ok {
			reason, r.info.MemoryLimit = ReasonMemory, limit
		}
	}
	reason = cmp.Or(r.cause, reason)
	if reason == ReasonTimeout {
		exit = Exit{Code: timeoutCode}
	}
	r.info.Reason, r.info.Exit, r.info.Ended = reason, &exit, time.Now()
	r.info.Attached = 0
	r.info.CPU = time.Duration(e.usage.Utime.Nano() + e.usage.Stime.Nano())
	r.info.Memory = max(r.info.Memory, peakOf(e.usage))
	r.info.Left, r.info.LeftPIDs = len(left), left[:min(len(left), maxLeftPIDs)]
	r.info.Dir = r.last.lastDir()
	r.write()
	r.job = nil
	close(r.done)
	return exit
}
