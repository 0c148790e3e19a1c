package gateway

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"sandgate/sandbox/guest"
)

func (c *verbCall) listJobs(asJSON bool, jobs []Job) error {
	if asJSON { // one to a line
		for _, j := range jobs {
			if err := c.print(true, jobViewOf(j), ""); err != nil {
				return err
			}
		}
		return nil
	}
	t := c.table()
	fmt.Fprintln(t, "JOB\tNAME\tSTATE\tSTARTED\tTOOK\tCOMMAND")
	for _, j := range jobs {
		v := jobViewOf(j)
		end := j.Ended
		if j.Running() {
			end = time.Now()
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%v\t%s\n", v.Job, v.Name, stateOf(j), ago(j.Started), end.Sub(j.Started).Round(time.Second), shorten(v.Command, 400))
	}
	return t.Flush()
}

// stateOf is a job's state in a word or two.
func stateOf(j Job) string {
	switch {
	case j.Running() && j.Health != "":
		return "running, " + string(j.Health)
	case j.Running() && j.Attached > 0:
		return fmt.Sprintf("running, %d attached", j.Attached)
	case j.Running():
		return "running"
	case j.Reason == guest.ReasonExit && j.Exit != nil:
		return fmt.Sprintf("exit %d", j.Exit.Code)
	case j.Reason == guest.ReasonSignal && j.Exit != nil:
		return "signal " + j.Exit.Signal
	}
	return string(j.Reason)
}

// shorten makes one line of a command for a table.
func shorten(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}

// A jobView is a job as JSON has it.
type jobView struct {
	Job      string     `json:"job"`
	Sandbox  string     `json:"sandbox"`
	ID       string     `json:"id"`
	Kind     string     `json:"kind"`
	Name     string     `json:"name,omitempty"`
	Command  string     `json:"command,omitempty"` // its beginning
	State    string     `json:"state"`
	Terminal bool       `json:"terminal,omitempty"`
	Attached int        `json:"attached,omitempty"`
	Started  time.Time  `json:"started"`
	Timeout  float64    `json:"timeout,omitempty"` // seconds
	Output   int64      `json:"output"`            // bytes that it has printed
	LogError string     `json:"log_error,omitempty"`
	Ended    *time.Time `json:"ended,omitempty"`
	Reason   string     `json:"reason,omitempty"`
	Code     *int       `json:"code,omitempty"`   // absent: it runs, was ended by a signal, or nobody knows
	Signal   string     `json:"signal,omitempty"` // without SIG
	CPU      float64    `json:"cpu_seconds"`
	Memory   int64      `json:"peak_memory,omitempty"` // bytes
	Left     int        `json:"left_running,omitempty"`
}

func ptr[T any](v T) *T { return &v }

func jobViewOf(j Job) jobView {
	v := jobView{
		Job: j.Name(), Sandbox: j.Sandbox, ID: j.ID, Kind: string(j.Kind), Name: j.JobInfo.Name,
		Command: strings.ToValidUTF8(string(j.Text), "\uFFFD"), State: "running", Terminal: j.Terminal,
		Attached: j.Attached, Started: j.Started, Timeout: j.Timeout.Seconds(), Output: j.Output, LogError: j.LogError,
		Reason: string(j.Reason), CPU: j.CPU.Seconds(), Memory: j.Memory, Left: j.Left,
	}
	if !j.Running() {
		v.State, v.Ended = "ended", &j.Ended
	}
	if j.Exit != nil {
		if v.Signal = j.Exit.Signal; v.Signal == "" {
			v.Code = &j.Exit.Code
		}
	}
	return v
}

// A jobLine is one line of a job's output as JSON has it.
type jobLine struct {
	Type    string   `json:"type"`             // started, stdout, stderr, dropped, end
	Offset  int64    `json:"offset"`           // of the first byte; of dropped and end: where to go on
	Text    string   `json:"text,omitempty"`   // if it is valid UTF-8,
	Base64  []byte   `json:"base64,omitempty"` // otherwise
	Dropped int64    `json:"dropped,omitempty"`
	Job     *jobView `json:"job,omitempty"` // of started and end
}

// jsonSink writes output as JSON, one line for each piece.
type jsonSink struct{ c *verbCall }

func (s jsonSink) piece(p guest.Piece) error {
	e := json.NewEncoder(s.c.stdout)
	if p.Dropped > 0 {
		if err := e.Encode(jobLine{Type: "dropped", Offset: p.Offset, Dropped: p.Dropped}); err != nil {
			return err
		}
	}
	line := jobLine{Type: "stdout", Offset: p.Offset}
	if p.Stderr {
		line.Type = "stderr"
	}
	if utf8.Valid(p.Data) {
		line.Text = string(p.Data)
	} else {
		line.Base64 = p.Data
	}
	return e.Encode(line)
}

func (s jsonSink) end(next int64, j Job) error {
	line := jobLine{Type: "end", Offset: next, Job: ptr(jobViewOf(j))}
	return json.NewEncoder(s.c.stdout).Encode(line)
}

// plainSink writes output as it is, what was stderr to stderr.
type plainSink struct{ c *verbCall }

func (s plainSink) piece(p guest.Piece) error {
	if p.Dropped > 0 {
		fmt.Fprintf(s.c.stderr, "sandgate: %d bytes are missing here: the log keeps its first 16 and its last 40 MiB\n", p.Dropped)
	}
	w := s.c.stdout
	if p.Stderr {
		w = s.c.stderr
	}
	_, err := w.Write(p.Data)
	return err
}

func (s plainSink) end(_ int64, j Job) error {
	if j.LogError != "" {
		fmt.Fprintf(s.c.stderr, "sandgate: the log ends here, before the output did: %s\n", j.LogError)
	}
	return nil
}
