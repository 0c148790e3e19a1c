package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"sandgate/sandbox/guest"
)

type execVerb struct {
	JSON
	jobFlags
	Timeout string `placeholder:"TIME" help:"Seconds, or a time span such as 2h, after which the command is ended with code 124; at most 24h. Default: 10m."`
}

// execTimeout is how long exec lets a command run unless it is told otherwise.
const execTimeout = 600 * time.Second

func (*execVerb) lasting() {}

// Run starts the job and shows its output. Losing the client ends only the showing.
func (v *execVerb) Run(c *verbCall) error {
	run, err := v.run(c, v.Timeout, execTimeout)
	if err != nil {
		return err
	}
	if run.Timeout == 0 {
		return &problem{kind: usage, sentence: "exec needs a time limit", hint: "at most 24h; without one: ssh gate@HOST run SANDBOX -- COMMAND"}
	}
	run.Input = true
	if c.session.terminal != nil && !v.JSON.JSON {
		run.Terminal = c.session.terminal
		u, proc, err := c.login.StartAttached(c.ctx, "exec", v.Sandbox, run)
		if err != nil {
			return startProblem(err)
		}
		defer u.Release()
		return c.accompany(u, proc)
	}
	u, err := c.login.StartJob(c.ctx, "exec", v.Sandbox, run)
	if err != nil {
		return startProblem(err)
	}
	defer u.Release()
	var sink outputSink = plainSink{c}
	if v.JSON.JSON {
		sink = jsonSink{c}
		if err := c.print(true, jobLine{Type: "started", Job: ptr(jobViewOf(u.job))}, ""); err != nil {
			return err
		}
	}
	c.session.setProc(signalled{c.ctx, u})
	go feed(c.ctx, u, c.stdin)
	ended, err := u.show(c.ctx, guest.Span{Follow: true}, sink)
	if err != nil {
		return jobLost(c, u, err)
	}
	return c.endWith(ended, run.Timeout)
}

// feed moves a client's input to a job, and its end.
func feed(ctx context.Context, u *JobUse, r io.Reader) {
	buf := make([]byte, 128<<10)
	for {
		n, err := r.Read(buf)
		if ctx.Err() != nil {
			return // a client that has gone is no end of input
		}
		if n > 0 && u.Input(ctx, u.job.ID, buf[:n], false) != nil {
			break
		}
		if err != nil {
			if err == io.EOF {
				u.Input(ctx, u.job.ID, nil, true)
			}
			return
		}
	}
	io.Copy(io.Discard, r) // the job reads no more; the client must not wait for that
}

// signalled is a job without a terminal as its client sees it.
type signalled struct {
	ctx context.Context
	u   *JobUse
}

func (s signalled) Resize(guest.Size) {}

func (s signalled) Signal(name string) { go s.u.Kill(s.ctx, s.u.job.ID, name) }

// jobLost words why the following of a job has ended before the job.
func jobLost(c *verbCall, u *JobUse, err error) error {
	if errors.Is(err, guest.ErrGone) && !u.Stopping() {
		return &problem{kind: failed, sentence: fmt.Sprintf("the connection to the sandbox was lost; job %s may go on", u.job.Name()),
			hint: "ssh gate@HOST logs -f " + u.job.Name()}
	}
	return err
}

// endWith ends a verb as a job has ended.
func (c *verbCall) endWith(j guest.JobInfo, timeout time.Duration) error {
	say := func(format string, args ...any) { fmt.Fprintf(c.stderr, "sandgate: "+format+"\n", args...) }
	switch j.Reason {
	case guest.ReasonTimeout:
		say("the command was ended after %v, its time limit", timeout)
	case guest.ReasonQuota:
		say("the job was ended: a quota is used up")
	case guest.ReasonMemory:
		say("the command was killed: memory ran out")
	case guest.ReasonUnhealthy:
		say("the service was not well any more; it is started again")
	case guest.ReasonStopped:
		if p := c.login.expelled(); p != nil {
			return p
		}
		say("the job ended as the sandbox was stopped")
	case guest.ReasonLost:
		say("outcome unknown: the sandbox ended without a word")
	}
	if code := codeOf(j); code != 0 {
		return exitCode(code)
	}
	return nil
}
