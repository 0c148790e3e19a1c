package guest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// Run starts a recorded job and returns it, or the job that was started with the
// same id before. It returns when the job runs. A *StartError says that it could
// not be started; after any other error, but not after ErrTooLong, Job(run.ID)
// tells whether it was.
func (c *Client) Run(ctx context.Context, run Run) (JobInfo, error) {
	if !run.valid() {
		return JobInfo{}, fmt.Errorf("invalid job %q", run.ID)
	}
	h := header{Kind: kindRun, Run: &run}
	if len(appendLine(nil, h)) > maxHeader {
		return JobInfo{}, ErrTooLong
	}
	return c.askJob(ctx, h, replyTimeout)
}

// RunAttached starts a recorded job with a terminal, with a client attached to it
// from its beginning. As with Start, what fails in the guest is told on the process's
// stderr and by its exit.
func (c *Client) RunAttached(run Run) (*Process, error) {
	if !run.valid() || run.Terminal == nil {
		return nil, fmt.Errorf("invalid job %q", run.ID)
	}
	return c.process(header{Kind: kindExec, Run: &run})
}

// ErrTooLong says that a command with its environment is longer than one can be.
var ErrTooLong = errors.New("the command is too long")

// Job returns the job of an id, or the newest of a name. ErrNoJob if there is none.
func (c *Client) Job(ctx context.Context, job string) (JobInfo, error) {
	return c.askJob(ctx, header{Kind: kindLook, Job: job}, replyTimeout)
}

// WaitJob waits for a job to end, until ctx does, and returns it then.
func (c *Client) WaitJob(ctx context.Context, job string) (JobInfo, error) {
	return c.askJob(ctx, header{Kind: kindWait, Job: job}, 0)
}

// Input writes to the standard input of a recorded job that takes some, and waits
// until the job has room for it; end says that no more will come. Of a terminal, end
// is ^D.
func (c *Client) Input(ctx context.Context, job string, data []byte, end bool) error {
	for {
		piece := data[:min(len(data), maxInput)]
		data = data[len(piece):]
		err := c.tell(ctx, header{Kind: kindInput, Job: job, Data: piece, End: end && len(data) == 0}, 0)
		if err != nil || len(data) == 0 {
			return err
		}
	}
}

// Kill sends a signal, named without SIG, to a job's process group, or to the
// foreground group of its terminal. A job that has ended is none that could be sent
// one, and no error.
func (c *Client) Kill(ctx context.Context, job, signal string) error {
	if !SignalKnown(signal) {
		return fmt.Errorf("no signal %q", signal)
	}
	return c.tell(ctx, header{Kind: kindKill, Job: job, Signal: signal}, replyTimeout)
}

// End ends a job and all that descends from it, also what has left its process
// group or session: TERM, and KILL 5 seconds later for what is left. It does not wait
// for that. reason becomes the job's, if it is not empty; a job that has ended keeps
// its own, but what it left running is ended.
func (c *Client) End(ctx context.Context, job string, reason Reason) error {
	return c.tell(ctx, header{Kind: kindKill, Job: job, Reason: reason}, replyTimeout)
}

// Forget deletes an ended job's record and log.
func (c *Client) Forget(ctx context.Context, job string) error {
	return c.tell(ctx, header{Kind: kindForget, Job: job}, replyTimeout)
}

// Jobs returns the jobs of the sandbox, the oldest first: those that run, plain
// commands too, and the recorded ones that have ended within the last day.
func (c *Client) Jobs(ctx context.Context) ([]JobInfo, error) {
	s, err := c.open(header{Kind: kindJobs}, false)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	stop := context.AfterFunc(ctx, func() { s.Close() })
	defer stop()
	late := time.AfterFunc(replyTimeout, func() { s.Close() })
	defer late.Stop()
	var jobs []JobInfo
	for len(jobs) < maxListed {
		var j JobInfo
		err := readLine(s.r, maxJobLine, &j)
		// Streams end, too, with the connection that they are on.
		if errors.Is(err, io.EOF) && !c.link.mux.IsClosed() {
			s.over.Store(true)
			return jobs, nil
		}
		if err == nil {
			err = j.check()
		}
		if err != nil {
			return nil, c.lost(ctx, err)
		}
		jobs = append(jobs, j)
	}
	return jobs, nil
}

// lost words why an answer did not come.
func (c *Client) lost(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, errProtocol):
		return err
	}
	return ErrGone
}

// tell asks something whose answer is only whether it worked. No timeout: it may
// take as long as ctx lets it.
func (c *Client) tell(ctx context.Context, h header, timeout time.Duration) error {
	_, err := c.answer(ctx, h, timeout)
	return err
}

// askJob asks something that is answered with a job.
func (c *Client) askJob(ctx context.Context, h header, timeout time.Duration) (JobInfo, error) {
	r, err := c.answer(ctx, h, timeout)
	if err != nil {
		return JobInfo{}, err
	}
	if r.Job == nil {
		return JobInfo{}, fmt.Errorf("%w: no job in the answer", errProtocol)
	}
	return *r.Job, r.Job.check()
}

// answer opens a stream that begins with h, and returns the line that comes back.
func (c *Client) answer(ctx context.Context, h header, timeout time.Duration) (reply, error) {
	s, err := c.open(h, false)
	if err != nil {
		return reply{}, err
	}
	defer s.Close()
	stop := context.AfterFunc(ctx, func() { s.Close() })
	defer stop()
	if timeout > 0 {
		late := time.AfterFunc(timeout, func() { s.Close() })
		defer late.Stop()
	}
	var r reply
	if err := readLine(s.r, maxReply, &r); err != nil {
		return reply{}, c.lost(ctx, err)
	}
	s.over.Store(true)
	switch {
	case r.Error == "":
		return r, nil
	case ctx.Err() != nil: // which is what the guest answers to
		return reply{}, context.Cause(ctx)
	case r.Missing:
		return reply{}, ErrNoJob
	case r.Code > 0 && r.Code <= 255:
		return reply{}, &StartError{Code: r.Code, Reason: printable(r.Error)}
	}
	return reply{}, errors.New(printable(r.Error))
}

// Output is a job's log as it is read. It is to be closed.
type Output struct {
	s      *stream
	stop   func() bool
	ctx    context.Context
	client *Client
	buf    frameBuffer
	offset int64 // of what comes next; negative: not known yet
	gap    int64
	job    JobInfo
}

// Output reads a part of a job's log. ctx ends the reading.
func (c *Client) Output(ctx context.Context, job string, span Span) (*Output, error) {
	s, err := c.open(header{Kind: kindLog, Job: job, Span: &span}, false)
	if err != nil {
		return nil, err
	}
	o := &Output{s: s, ctx: ctx, client: c}
	o.stop = context.AfterFunc(ctx, func() { s.Close() })
	var r reply
	err = s.readLine(maxReply, replyTimeout, &r)
	switch {
	case err != nil:
		err = c.lost(ctx, err)
	case r.Missing:
		err = ErrNoJob
	case r.Error != "":
		err = errors.New(printable(r.Error))
	case r.Offset < 0:
		err = fmt.Errorf("%w: a log that begins at %d", errProtocol, r.Offset)
	}
	if err != nil {
		o.Close()
		return nil, err
	}
	o.offset = r.Offset
	return o, nil
}

// Next returns the next piece of output. At the end of what was asked for the error
// is io.EOF, and ErrGone if the sandbox went away first; Offset then says where to go
// on.
func (o *Output) Next() (Piece, error) {
	for {
		typ, payload, err := o.buf.read(o.s)
		if err != nil {
			return Piece{}, o.client.lost(o.ctx, err)
		}
		switch typ {
		case frameOutput, frameStderr:
			p := Piece{Offset: o.offset, Dropped: o.gap, Stderr: typ == frameStderr, Data: payload}
			o.offset += int64(len(payload))
			o.gap = 0
			return p, nil
		case frameGap:
			if len(payload) != 8 {
				return Piece{}, fmt.Errorf("%w: gap of %d bytes", errProtocol, len(payload))
			}
			to := int64(binary.BigEndian.Uint64(payload))
			if to <= o.offset || to > 1<<62 {
				return Piece{}, fmt.Errorf("%w: gap from %d to %d", errProtocol, o.offset, to)
			}
			o.gap += to - o.offset
			o.offset = to
		case frameEnd:
			o.s.over.Store(true)
			if o.job, err = decodeJob(payload); err != nil {
				return Piece{}, err
			}
			return Piece{}, io.EOF
		default:
			return Piece{}, fmt.Errorf("%w: unknown frame %q", errProtocol, typ)
		}
	}
}

// Offset returns the offset of the byte that comes next.
func (o *Output) Offset() int64 { return o.offset }

// Job returns the job as it was at the end, once Next has returned io.EOF: ended, if
// the output was followed.
func (o *Output) Job() JobInfo { return o.job }

// Close ends the reading. It may be called again.
func (o *Output) Close() error {
	o.stop()
	return o.s.Close()
}
