package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"sandgate/sandbox/guest"
)

type logsVerb struct {
	JSON
	Follow bool   `short:"f" help:"Go on until the job has ended."`
	Since  int64  `placeholder:"BYTE" help:"Begin at this byte of all output, stdout and stderr together: as many as you have."`
	Tail   int    `short:"n" placeholder:"N" help:"Begin with the last N lines."`
	Job    string `arg:"" help:"Job, as in web/build."`
}

func (*logsVerb) lasting() {}

func (v *logsVerb) Run(c *verbCall) error {
	if v.Since < 0 || v.Tail < 0 || v.Since > 0 && v.Tail > 0 {
		return &problem{kind: usage, sentence: "give one of --since and --tail, and no negative number"}
	}
	u, err := c.login.OpenJob(c.ctx, "logs", v.Job)
	if err != nil {
		return noJob(err, v.Job)
	}
	defer u.Release()
	var sink outputSink = plainSink{c}
	if v.JSON.JSON {
		sink = jsonSink{c}
	}
	_, err = u.show(c.ctx, guest.Span{Offset: v.Since, Tail: v.Tail, Follow: v.Follow}, sink)
	if err != nil {
		return jobLost(c, u, err)
	}
	return nil
}

type attachVerb struct {
	JSON
	Watch bool   `short:"w" help:"Only look: nothing that you type arrives, and q or ^C ends it."`
	Job   string `arg:"" help:"Named session, as in web+build, or job, as in web/build."`
}

func (*attachVerb) lasting() {}

func (v *attachVerb) Run(c *verbCall) error {
	verb := deed("attach")
	if v.Watch {
		verb = "logs" // which shows the same
	}
	u, err := c.login.OpenJob(c.ctx, verb, v.Job)
	if err != nil {
		return noJob(err, v.Job)
	}
	defer u.Release()
	if !u.job.Running() {
		return &problem{kind: failed, sentence: fmt.Sprintf("job %s has ended", u.job.Name()), hint: "ssh gate@HOST logs " + u.job.Name()}
	}
	if u.job.Terminal {
		if v.JSON.JSON {
			return &problem{kind: usage, sentence: fmt.Sprintf("job %s has a terminal, which shows no JSON", u.job.Name()), hint: "what it prints: ssh gate@HOST logs --json -f " + v.Job}
		}
		if c.session.terminal == nil {
			return &problem{kind: usage, sentence: fmt.Sprintf("job %s has a terminal, and you have none here", u.job.Name()), hint: "ssh -t gate@HOST attach " + v.Job}
		}
		return c.attach(u, v.Watch)
	}
	if !v.Watch {
		c.session.setProc(signalled{c.ctx, u})
		if u.job.Input {
			go feed(c.ctx, u, c.stdin)
		}
	}
	var sink outputSink = plainSink{c}
	if v.JSON.JSON {
		sink = jsonSink{c}
	}
	ended, err := u.show(c.ctx, guest.Span{Offset: u.job.Output, Follow: true}, sink)
	if err != nil {
		return jobLost(c, u, err)
	}
	return c.endWith(ended, ended.Timeout)
}

// attach joins the client's terminal and the job's.
func (c *verbCall) attach(u *JobUse, watch bool) error {
	proc, err := u.Attach(u.job.ID, guest.Viewing{Size: c.session.terminal.Size, Watch: watch})
	if err != nil {
		return err
	}
	if watch {
		return c.watch(u, proc)
	}
	return c.accompany(u, proc)
}

// errSeenEnough ends watching at the watcher's word.
var errSeenEnough = errors.New("seen enough")

// plainAgain is for a terminal that has shown somebody else's screen: out of its other
// screen, with a cursor, and with keys and mouse as usual.
const plainAgain = "\x1b[?1049l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1004l\x1b[?1006l\x1b[?2004l\x1b[?1l\x1b>\x1b[r\x1b[m\x1b[?25h\r\n"

// watch shows a job's terminal until the job has ended or the client has seen enough.
func (c *verbCall) watch(u *JobUse, proc *guest.Process) error {
	c.session.setProc(proc)
	ctx, enough := context.WithCancelCause(c.ctx)
	defer enough(nil)
	go func() {
		buf := make([]byte, 1024)
		for {
			n, err := c.stdin.Read(buf)
			if err != nil || bytes.ContainsAny(buf[:n], "q\x03\x04") {
				enough(errSeenEnough)
				return
			}
		}
	}()
	_, err := proc.Wait(ctx, c.session.ch, c.session.ch.Stderr())
	proc.Close()
	io.WriteString(c.session.ch, plainAgain)
	if errors.Is(err, errSeenEnough) {
		fmt.Fprintf(crlfWriter{c.stderr}, "sandgate: %[1]s goes on; to go on with it: ssh -t gate@HOST attach %[1]s\n", u.job.Name())
		return nil
	}
	if err != nil {
		return jobLost(c, u, err)
	}
	return nil
}

// accompany stays with a job on a terminal until its end.
func (c *verbCall) accompany(u *JobUse, proc *guest.Process) error {
	end, err := c.recordedJob(u)
	if err != nil {
		return err
	}
	defer end()
	st := c.session.accompany(proc, u.Lease)
	if st.err != nil {
		return st.err
	}
	ended, err := u.WaitJob(c.ctx, u.job.ID)
	if errors.Is(err, guest.ErrNoJob) && st.exit.Code != 0 {
		return exitCode(st.exit.Code) // it could not be started, as was said
	}
	if err != nil {
		return err
	}
	return c.endWith(ended, ended.Timeout)
}
