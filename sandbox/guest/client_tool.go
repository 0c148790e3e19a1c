package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"time"

	"sandgate/sandbox/guest/tool"
)

// The bounds of a tool stream. Arguments have a file's content in them, in which a
// byte may have become six; a reply has an image.
const (
	maxToolArgs  = 64 << 20
	maxToolReply = 16 << 20

	toolTimeout = 90 * time.Second // for a reply, which the tool itself bounds
	cancelGrace = 5 * time.Second  // for a reply once the call was cancelled
)

// useTool is in the header of a tool stream.
type useTool struct {
	Name    string `json:"name"`
	Session string `json:"session"`       // which conversation
	Dir     string `json:"dir,omitempty"` // where relative paths begin; empty: where commands start
}

// toolReply answers it.
type toolReply struct {
	Output json.RawMessage `json:"output,omitempty"`
	Error  json.RawMessage `json:"error,omitempty"`
}

// A ToolCall is a call of one of the six tools.
type ToolCall struct {
	Name string          // one of tool.Names, or tool.Guidance or tool.Recall
	Args json.RawMessage // as the model or its client sent them

	// Session names the conversation: a file that was read in it may be edited in
	// it. Any string of at most 64 bytes.
	Session string

	User string // as in Command
	Dir  string // the working folder; empty: where commands start. exec returns the next one

	// Of exec: further variables, and files, of the command; and the id of its job,
	// from NewJobID. Calls with the same id run one command, however often they are
	// made, so a call whose result was lost is made again to get it.
	Env   [][]byte
	Files []File
	Job   string

	// MaxTimeout is the longest timeout that a command gets, whatever the arguments
	// say; zero: the tool's own limit.
	MaxTimeout time.Duration

	// EndOn says, when ctx has ended during exec, whether the command is to be
	// ended too, going by the cause. Nil: it is. Otherwise it goes on as a job.
	EndOn func(cause error) bool
}

// ToolProgress is a piece of output of a command that runs.
type ToolProgress struct {
	Job    string
	Stderr bool
	Text   string
	Bytes  int64 // of all output so far
}

// Tool calls a tool. The error is always a *tool.Error; it is for whoever asked, and
// what the sandbox sent is in it and in the output, bounded but not to be trusted.
// progress may be nil; it is called by one at a time and must not block. When ctx
// ends there is a result all the same, with what there is, marked as cancelled.
func (c *Client) Tool(ctx context.Context, call ToolCall, progress func(ToolProgress)) (tool.Output, error) {
	if call.Name == "exec" {
		return c.exec(ctx, call, progress)
	}
	return c.fileTool(ctx, call)
}

// fileTool calls a tool that the guest has.
func (c *Client) fileTool(ctx context.Context, call ToolCall) (tool.Output, error) {
	args := call.Args
	if len(bytes.TrimSpace(args)) == 0 {
		args = json.RawMessage("{}")
	}
	var line bytes.Buffer
	if err := json.Compact(&line, args); err != nil {
		return nil, tool.Errorf(tool.BadArgs, "the arguments are not JSON: %v", err)
	}
	if line.Len() >= maxToolArgs {
		return nil, tool.Errorf(tool.TooLarge, "the arguments have %d bytes", line.Len())
	}
	line.WriteByte('\n')
	s, err := c.open(header{Kind: kindTool, User: call.User, Tool: &useTool{Name: call.Name, Session: call.Session, Dir: call.Dir}}, false)
	if err != nil {
		return nil, notStarted(err)
	}
	defer s.Close()
	stop := context.AfterFunc(ctx, func() {
		s.CloseWrite()
		time.AfterFunc(cancelGrace, func() { s.Close() })
	})
	defer stop()
	var r toolReply
	if _, err = s.Write(line.Bytes()); err == nil {
		err = s.readLine(maxToolReply, toolTimeout, &r)
	}
	if err != nil {
		return nil, c.unanswered(ctx, call, err)
	}
	s.over.Store(true)
	if r.Error != nil {
		e, err := tool.DecodeError(r.Error)
		if err != nil {
			return nil, c.unanswered(ctx, call, err)
		}
		return nil, e
	}
	out, err := tool.DecodeOutput(call.Name, r.Output)
	if err != nil {
		return nil, c.unanswered(ctx, call, err)
	}
	return out, nil
}

// notStarted is the error of a call that did not get to the guest.
func notStarted(err error) *tool.Error {
	if errors.Is(err, errTooManyStreams) {
		return tool.Errorf(tool.Busy, "%v", err)
	}
	return tool.Errorf(tool.NotStarted, "%v", err)
}

// unanswered is the error of a call to which no answer came.
func (c *Client) unanswered(ctx context.Context, call ToolCall, err error) *tool.Error {
	gone := false
	select {
	case <-c.done:
		gone = true
	default:
	}
	changes := call.Name == "write" || call.Name == "edit"
	var e *tool.Error
	switch {
	case gone && changes:
		e = tool.Errorf(tool.OutcomeUnknown, "the sandbox stopped during %s", call.Name)
	case gone:
		e = tool.Errorf(tool.SandboxGone, "the sandbox stopped during %s", call.Name)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), ctx.Err() != nil:
		e = tool.Errorf(tool.Killed, "%s was ended before it had answered", call.Name)
	case errors.Is(err, errProtocol):
		e = tool.Errorf(tool.Killed, "%s answered with something else than an answer: %s", call.Name, printable(err.Error()))
	default:
		e = tool.Errorf(tool.Timeout, "%s: %s", call.Name, printable(err.Error()))
	}
	e.Cancelled = ctx.Err() != nil
	return e
}

// exec makes the tool of that name of a recorded job.
func (c *Client) exec(ctx context.Context, call ToolCall, progress func(ToolProgress)) (tool.Output, error) {
	a, notes, err := tool.ParseExec(call.Args)
	if err != nil {
		return nil, err
	}
	x := &execution{client: c, call: call, args: a, id: a.Job, progress: progress}
	x.out.Notes = notes
	x.args.Cap(&x.out, call.MaxTimeout)
	if x.id == "" {
		if err := x.start(ctx); err != nil {
			return nil, err
		}
		if x.over {
			return &x.out, nil
		}
	} else if err := x.attend(ctx); err != nil {
		return nil, err
	}
	return x.follow(ctx)
}

// An execution is one call of exec.
type execution struct {
	client   *Client
	call     ToolCall
	args     tool.ExecArgs
	id       string
	progress func(ToolProgress)

	job    JobInfo
	out    tool.ExecOutput
	over   bool // nothing was started, and out says why
	ending bool // the caller has it ended

	cleaned bool // the caller has what it left running ended
}

// startLimit bounds the start of a job and what is asked of it.
const startLimit = 30 * time.Second

// start starts the command.
func (x *execution) start(ctx context.Context) error {
	x.id = x.call.Job
	if x.id == "" {
		x.id = NewJobID()
	}
	run := Run{
		ID: x.id,
		Command: Command{
			Text: []byte(x.args.Command), Env: append(x.call.Env, x.args.Environ()...), Files: x.call.Files,
			User: x.call.User, Dir: x.dir(), Script: true,
		},
		Timeout: time.Duration(x.args.Timeout) * time.Second,
		Input:   x.args.Stdin != nil,
		Owner:   x.call.Session,
	}
	again := false // the job may be there, and have its input
	if x.call.Job != "" && run.Input {
		_, err := x.client.Job(ctx, x.id)
		again = err == nil
	}
	if x.args.TTY {
		run.Terminal = &Terminal{Term: "xterm-256color", Size: Size{Columns: 80, Rows: 24}}
	}
	select {
	case <-x.client.done:
		return tool.Errorf(tool.NotStarted, "%v", ErrGone)
	default:
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startLimit)
	defer cancel()
	job, err := x.client.Run(ctx, run)
	if start, ok := errors.AsType[*StartError](err); ok {
		return x.notRun(start)
	}
	if errors.Is(err, ErrTooLong) {
		return tool.Errorf(tool.TooLarge, "the command is too long").With("write it into a file with write, and run that")
	}
	if err != nil {
		e := tool.Errorf(tool.OutcomeUnknown, "no answer to whether the command was started: %s", printable(err.Error()))
		e.Job = x.id
		return e
	}
	x.job = job
	if x.args.Stdin != nil {
		input, more := []byte(*x.args.Stdin), x.args.Background || x.args.TTY
		if again {
			input = nil
		}
		// It ends when the job has taken it or has ended, if nobody waits for that.
		go x.client.Input(context.WithoutCancel(ctx), x.id, input, !more)
	}
	return nil
}

// dir returns the folder to start in.
func (x *execution) dir() string {
	switch d := x.args.Dir; {
	case d == "":
		return x.call.Dir
	case strings.HasPrefix(d, "/"), strings.HasPrefix(d, "~"), x.call.Dir == "":
		return d
	default:
		return x.call.Dir + "/" + d
	}
}

// notRun is what there is to say of a command that could not be started.
func (x *execution) notRun(start *StartError) error {
	if strings.Contains(start.Reason, "too many") {
		return tool.Errorf(tool.Quota, "%s", printable(start.Reason)).With("end jobs that are not needed: exec with job and signal=TERM")
	}
	x.out.ExitCode, x.out.Stderr, x.out.Dir, x.over = &start.Code, start.Reason+"\n", x.call.Dir, true
	x.out.StderrBytes = int64(len(x.out.Stderr))
	x.out.Explain(x.args, 0, 0)
	return nil
}

// attend does to a job what is asked for.
func (x *execution) attend(ctx context.Context) error {
	job, err := x.client.Job(ctx, x.id)
	if err == nil && x.args.Signal != "" {
		err = x.signal(ctx, job.Running())
	}
	if err == nil && job.Running() && x.args.Stdin != nil {
		err = x.client.Input(ctx, x.id, []byte(*x.args.Stdin), false)
		if err != nil && ctx.Err() == nil {
			return tool.Errorf(tool.BadArgs, "job %s: %s", x.id, printable(err.Error())).
				With("start it with stdin and background=true, or with tty=true, to send it more later")
		}
	}
	x.job = job
	if err != nil {
		return x.failed(ctx, err)
	}
	return nil
}

// signal sends a signal to the job. Those that are to end it reach all that it has
// started, wherever that has gone.
func (x *execution) signal(ctx context.Context, running bool) error {
	switch name := x.args.Signal; {
	case name == "TERM" || name == "KILL":
		x.ending, x.cleaned = running, !running
		return x.client.End(ctx, x.id, "")
	case !SignalKnown(name):
		return tool.Errorf(tool.BadArgs, "there is no signal %.20q", name).With("use INT, TERM, KILL, HUP, QUIT, USR1 or USR2")
	default:
		return x.client.Kill(ctx, x.id, name)
	}
}

// failed is the error for what the client said of the job.
func (x *execution) failed(ctx context.Context, err error) error {
	if e, ok := errors.AsType[*tool.Error](err); ok {
		return e
	}
	if errors.Is(err, ErrNoJob) {
		return tool.Errorf(tool.NotFound, "there is no job %.40q", x.id).With("jobs are kept for a day; run the command again, or look at the files that it was to make")
	}
	e := tool.Errorf(tool.OutcomeUnknown, "the command was started, and what became of it is not known: %s", printable(err.Error()))
	e = e.With("ask again with exec: job=%q", x.id)
	e.Job, e.Cancelled = x.id, ctx.Err() != nil
	return e
}

// A command in the background has shortWait to fail at once; endWait is for one that
// is being ended, and lookLimit for asking what has become of it.
const (
	shortWait = 200 * time.Millisecond
	endWait   = jobGrace + time.Second
	lookLimit = 10 * time.Second
)

// follow waits for the end of the job, for as long as the caller wants to, and
// returns what there is by then.
func (x *execution) follow(ctx context.Context) (tool.Output, error) {
	wait := time.Duration(x.args.Wait) * time.Second
	if x.args.Background {
		wait = min(wait, shortWait)
	}
	var seen tool.Transcript
	x.out.Cursor = x.args.Cursor
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	err := x.read(waiting, &seen, true)
	if ctx.Err() != nil {
		x.out.Cancelled = true
		if x.call.EndOn == nil || x.call.EndOn(context.Cause(ctx)) {
			x.ending = true
			err = x.end(ctx, &seen)
		}
	}
	if err != nil && waiting.Err() != nil {
		// What there is at this moment.
		look, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookLimit)
		defer cancel()
		err = x.read(look, &seen, false)
	}
	if err != nil {
		return nil, x.failed(ctx, err)
	}
	x.describe()
	seen.Show(&x.out, recordsDir+"/"+x.job.ID+"/output")
	x.out.Explain(x.args, x.job.Memory, x.job.MemoryLimit)
	return &x.out, nil
}

// end has the job ended, and reads what it still says.
func (x *execution) end(ctx context.Context, seen *tool.Transcript) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWait)
	defer cancel()
	if err := x.client.End(ctx, x.id, ""); err != nil {
		return err
	}
	return x.read(ctx, seen, true)
}

// read reads output to the end of what there is, or with follow to the end of the
// job. It has read the job, too, if the error is nil.
func (x *execution) read(ctx context.Context, seen *tool.Transcript, follow bool) error {
	o, err := x.client.Output(ctx, x.id, Span{Offset: x.out.Cursor, Follow: follow})
	if err != nil {
		return err
	}
	defer o.Close()
	for {
		p, err := o.Next()
		if err == io.EOF {
			x.job = o.Job()
			return nil
		}
		if err != nil {
			return err
		}
		if p.Dropped > 0 {
			seen.Skip(p.Dropped)
		}
		seen.Add(p.Stderr, p.Data)
		x.out.Cursor = o.Offset()
		if x.progress != nil {
			x.progress(ToolProgress{Job: x.id, Stderr: p.Stderr, Text: tool.Plain(p.Data), Bytes: x.out.Cursor})
		}
	}
}

// describe puts what is known of the job into the output.
func (x *execution) describe() {
	j, o := x.job, &x.out
	o.Job, o.Running, o.Left, o.LeftPIDs = j.ID, j.Running(), j.Left, j.LeftPIDs
	o.Dir = x.call.Dir
	if x.cleaned {
		o.Left, o.LeftPIDs = 0, nil
		o.Note("what it had left running is being ended")
	}
	if o.Running {
		o.Duration = max(0, time.Since(j.Started).Milliseconds())
		return
	}
	o.Duration = max(0, j.Ended.Sub(j.Started).Milliseconds())
	if j.Dir != "" && x.args.Job == "" && !x.args.Background {
		o.Dir = j.Dir
	}
	if j.Exit != nil {
		if o.Signal = j.Exit.Signal; o.Signal == "" {
			o.ExitCode = &j.Exit.Code
		}
	}
	switch {
	case j.Reason == ReasonTimeout:
		o.KilledBy = "timeout"
	case j.Reason == ReasonQuota:
		o.KilledBy = "quota"
	case j.Reason == ReasonMemory:
		o.KilledBy = "oom"
	case j.Reason == ReasonStopped:
		o.KilledBy = "sandbox_stop"
	case j.Reason == ReasonLost:
		o.Note("how it ended is not known: the sandbox went down with it")
	case x.ending:
		o.KilledBy = "user"
	}
	if j.LogError != "" {
		o.Note("not all of the output was kept: %s", printable(j.LogError))
	}
}
