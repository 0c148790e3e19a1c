package guest

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// The bounds of jobs that are recorded.
const (
	maxListed   = 4096                // jobs that a guest lists
	maxJobLine  = 16 << 10            // bytes of a job's line in that list
	maxJobText  = 1 << 10             // bytes of a command that are kept
	maxInput    = 256 << 10           // bytes of one piece of input
	maxDir      = 1024                // bytes of a folder's path
	maxOwner    = 64                  // bytes of an owner
	maxLeftPIDs = 16                  // that are told of the processes that a job left running
	MaxTimeout  = 86400 * time.Second // that a job may be given
	jobGrace    = 5 * time.Second     // between TERM and KILL
	timeoutCode = 124                 // as timeout(1) has it
)

// recordsDir is where a sandbox keeps its recorded jobs: a folder for each. All may
// read it, as all may see each other's processes.
const recordsDir = "/var/lib/sandgate/jobs"

// NewJobID returns an id for a job to be. It is drawn before the job is started, so
// that whoever asked can ask again, or look whether the job is there, when the
// answer was lost.
func NewJobID() string { return strings.ToLower(rand.Text()[:12]) }

var jobID = regexp.MustCompile(`^[a-z0-9]{8,32}$`)

// jobName is the form of a job's name. It keeps control characters out of lists.
var jobName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// A Run says what is run as a recorded job: one that outlives its client, with a
// log of its output.
type Run struct {
	ID string `json:"id"` // from NewJobID; of several runs of one ID the first starts a job

	// Keep has no meaning here. Name need not be unique: the newest job answers to
	// it.
	Command

	Timeout time.Duration `json:"timeout,omitempty"` // after which the job is ended; zero: never; at most MaxTimeout
	Input   bool          `json:"input,omitempty"`   // its standard input comes by Client.Input; otherwise there is none

	// Owner, if not empty, is on whose behalf the job runs: of one owner's, MaxOwned
	// run at once. At most 64 bytes.
	Owner string `json:"owner,omitempty"`
}

// MaxOwned bounds the jobs of one owner that run at once.
const MaxOwned = 64

func (r *Run) valid() bool {
	return jobID.MatchString(r.ID) && (r.Name == "" || jobName.MatchString(r.Name)) &&
		r.Timeout >= 0 && r.Timeout <= MaxTimeout && len(r.Owner) <= maxOwner && printable(r.Owner) == r.Owner
}

// A JobKind says what a job is to its owner.
type JobKind string

// The kinds of jobs. Those but KindExec are recorded.
const (
	KindExec    JobKind = "exec"    // a plain command, which ends with its client
	KindRun     JobKind = "run"     // started by Run
	KindSession JobKind = "session" // a named shell
	KindService JobKind = "service" // a run of a service, see Serve
)

// A Reason is why a job ended.
type Reason string

// The reasons. After ReasonLost nobody knows how the job ended: its guest has gone
// without a word.
const (
	ReasonExit    Reason = "exit"
	ReasonSignal  Reason = "signal"
	ReasonTimeout Reason = "timeout"
	ReasonQuota   Reason = "quota"
	ReasonMemory  Reason = "oom"     // the kernel killed it, or its last program, for lack of memory
	ReasonStopped Reason = "stopped" // the sandbox was
	ReasonLost    Reason = "lost"

	ReasonUnhealthy Reason = "unhealthy" // of a service, see Health
)

func (r Reason) known() bool {
	switch r {
	case ReasonExit, ReasonSignal, ReasonTimeout, ReasonQuota, ReasonMemory, ReasonStopped, ReasonLost, ReasonUnhealthy:
		return true
	}
	return false
}

// JobInfo describes a job. Ended jobs are kept for a day.
type JobInfo struct {
	ID       string    `json:"id"`
	Kind     JobKind   `json:"kind"`
	Name     string    `json:"name,omitempty"`
	Text     []byte    `json:"text,omitempty"` // at most 1 KiB of it
	Terminal bool      `json:"terminal,omitempty"`
	Input    bool      `json:"input,omitempty"` // it takes Client.Input
	Started  time.Time `json:"started"`
	Attached int       `json:"attached,omitempty"` // clients

	Timeout time.Duration `json:"timeout,omitempty"`
	Owner   string        `json:"owner,omitempty"` // as in Run

	// Of recorded jobs: what the log has had, and which bytes of that, from one
	// offset up to another, were dropped as it grew too long.
	Output      int64  `json:"output,omitempty"`
	DroppedFrom int64  `json:"dropped_from,omitempty"`
	DroppedTo   int64  `json:"dropped_to,omitempty"`
	LogError    string `json:"log_error,omitempty"` // why the log ends before the output did, such as a full disk

	// Memory is how many bytes all its processes had together at their peak, as far as
	// that was seen; zero: it ended before anybody had looked.
	Memory int64 `json:"memory,omitempty"`

	// Of services.
	Health     HealthState `json:"health,omitempty"`
	HealthSays string      `json:"health_says,omitempty"` // why it was not well when it was last looked at

	// Of jobs that have ended.
	Ended  time.Time     `json:"ended,omitzero"`
	Reason Reason        `json:"reason,omitempty"` // empty: the job runs
	Exit   *Exit         `json:"exit,omitempty"`   // nil: unknown; 124 after a timeout
	CPU    time.Duration `json:"cpu,omitempty"`
	Left   int           `json:"left,omitempty"` // processes that it left running

	LeftPIDs    []int `json:"left_pids,omitempty"`    // of the first of these
	MemoryLimit int64 `json:"memory_limit,omitempty"` // bytes; only after ReasonMemory, zero: unknown

	Dir string `json:"dir,omitempty"` // the folder that a script ended in; empty: unknown
}

// Running says whether the job has not ended.
func (j *JobInfo) Running() bool { return j.Reason == "" }

// decodeJob checks what a guest says about a job.
func decodeJob(b []byte) (JobInfo, error) {
	var j JobInfo
	if err := json.Unmarshal(b, &j); err != nil {
		return JobInfo{}, fmt.Errorf("%w: malformed job: %v", errProtocol, err)
	}
	if err := j.check(); err != nil {
		return JobInfo{}, err
	}
	return j, nil
}

func (j *JobInfo) check() error {
	plain := j.Kind == KindExec && len(j.ID) <= 64 && printable(j.ID) == j.ID
	recorded := (j.Kind == KindRun || j.Kind == KindSession || j.Kind == KindService) && jobID.MatchString(j.ID)
	ok := (plain || recorded) && (j.Name == "" || jobName.MatchString(j.Name)) &&
		len(j.Text) <= maxJobText && len(j.LogError) <= 300 && printable(j.LogError) == j.LogError &&
		len(j.Dir) <= maxDir && !strings.Contains(j.Dir, "\x00") && (j.Dir == "" || j.Dir[0] == '/') &&
		len(j.Owner) <= maxOwner && printable(j.Owner) == j.Owner &&
		j.Timeout >= 0 && j.Timeout <= MaxTimeout && j.Attached >= 0 && j.CPU >= 0 && j.Memory >= 0 && j.MemoryLimit >= 0 && j.Left >= 0 && len(j.LeftPIDs) <= maxLeftPIDs &&
		0 <= j.DroppedFrom && j.DroppedFrom <= j.DroppedTo && j.DroppedTo <= j.Output &&
		(j.Reason == "" || j.Reason.known()) && (j.Health == "" || j.Health.known()) &&
		len(j.HealthSays) <= maxSays && j.HealthSays == oneLine(j.HealthSays) &&
		(j.Reason == "") == j.Ended.IsZero() && (j.Exit == nil || j.Reason != "")
	if !ok {
		return fmt.Errorf("%w: impossible job", errProtocol)
	}
	if j.Exit != nil {
		return j.Exit.check()
	}
	return nil
}

// ErrNoJob says that the sandbox has no job of that id or name.
var ErrNoJob = errors.New("no such job")

// A StartError says why a job could not be started, and the exit code that a shell
// would give: 127 not found, 126 not executable.
type StartError struct {
	Code   int
	Reason string
}

func (e *StartError) Error() string { return e.Reason }

// A Span says which part of a job's log is wanted.
type Span struct {
	Offset int64 `json:"offset,omitempty"` // of the first byte, from the beginning of all output
	Tail   int   `json:"tail,omitempty"`   // if positive: the last lines, as many, instead of Offset
	Follow bool  `json:"follow,omitempty"` // also what is still to come, until the job ends
}

// A Piece is a part of a job's output.
type Piece struct {
	Offset  int64 // of Data, in all output
	Dropped int64 // bytes before Offset that the log does not have any more
	Stderr  bool
	Data    []byte // valid until the next piece is read
}
