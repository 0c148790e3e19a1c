package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"sandgate/sandbox"
	"sandgate/sandbox/guest"
	"sandgate/store"
)

// A jobName is what users call a job: SANDBOX/ID or SANDBOX/NAME, where the newest of
// that name is meant, or SANDBOX+NAME for a named session.
type jobName struct {
	sandbox target
	job     string // id or name
	session bool
}

// parseJob reads a jobName.
func parseJob(s string) (jobName, error) {
	i := strings.IndexAny(s, "/+")
	if i < 0 {
		return jobName{}, notJob(s)
	}
	t, err := parseTarget(s[:i])
	if err != nil {
		return jobName{}, err
	}
	j := jobName{sandbox: t, job: strings.ToLower(s[i+1:]), session: s[i] == '+'}
	if t.lobby || !ValidName(j.job) {
		return jobName{}, notJob(s)
	}
	return j, nil
}

func notJob(s string) *problem {
	return &problem{kind: usage, sentence: fmt.Sprintf("%.80q is not a job", s),
		hint: "a job is called by its sandbox and its id or name, as in web/build, a named session as in web+build; see: ssh gate@HOST jobs"}
}

// A Job is a job and the sandbox that it is in.
type Job struct {
	guest.JobInfo
	Sandbox string // as the caller calls it
}

// Name is what the caller can call the job.
func (j Job) Name() string {
	if j.Kind == guest.KindSession {
		return j.Sandbox + "+" + j.JobInfo.Name
	}
	return j.Sandbox + "/" + j.ID
}

// A JobUse is a job in a sandbox that is in use. It is to be released.
type JobUse struct {
	*sandbox.Lease
	job Job
}

// OpenJob finds a job for what verb does, and wakes its sandbox.
func (l *Login) OpenJob(ctx context.Context, verb deed, name string) (*JobUse, error) {
	n, err := parseJob(name)
	if err != nil {
		return nil, err
	}
	row, err := l.reach(ctx, n.sandbox, request{deed: verb})
	if err != nil {
		return nil, err
	}
	lease, err := l.gate.sandboxes.Wake(ctx, row)
	if err != nil {
		return nil, err
	}
	u := &JobUse{Lease: lease, job: Job{Sandbox: l.nameOf(row)}}
	if n.session {
		u.job.JobInfo, err = sessionOf(ctx, lease.Client, n.job)
	} else {
		u.job.JobInfo, err = lease.Job(ctx, n.job)
	}
	if err != nil {
		lease.Release()
		return nil, err
	}
	l.gate.touches.touch(use{sandbox: row.ID})
	return u, nil
}

// sessionOf returns the named session of that name: the one that runs, else the one
// that was the last.
func sessionOf(ctx context.Context, c *guest.Client, name string) (guest.JobInfo, error) {
	jobs, err := c.Jobs(ctx)
	if err != nil {
		return guest.JobInfo{}, err
	}
	var found guest.JobInfo
	for _, j := range jobs {
		if j.Kind == guest.KindSession && j.Name == name {
			found = j
		}
	}
	if found.ID == "" {
		return found, guest.ErrNoJob
	}
	return found, nil
}

// openForJob opens a sandbox, made and started if need be, for a job, which gets what
// the sandbox's commands get.
func (l *Login) openForJob(ctx context.Context, verb deed, sandboxName string, run *guest.Run) (*sandbox.Lease, store.Sandbox, error) {
	t, err := parseTarget(sandboxName)
	if err != nil {
		return nil, store.Sandbox{}, err
	}
	if t.lobby || t.session != "" {
		return nil, store.Sandbox{}, &problem{kind: usage, sentence: fmt.Sprintf("%.80q is not a sandbox name", sandboxName)}
	}
	lease, row, err := l.Open(ctx, t, request{deed: verb, command: string(run.Text)})
	if err != nil {
		return nil, store.Sandbox{}, err
	}
	if _, err := l.equip(ctx, row, &run.Command); err != nil {
		lease.Release()
		return nil, store.Sandbox{}, err
	}
	l.log.Info("job", keySandbox, row.ID, "job", run.ID)
	return lease, row, nil
}

// StartAttached starts a job with a terminal, with the caller at it. The lease of the
// sandbox is to be released.
func (l *Login) StartAttached(ctx context.Context, verb deed, sandboxName string, run guest.Run) (*JobUse, *guest.Process, error) {
	lease, row, err := l.openForJob(ctx, verb, sandboxName, &run)
	if err != nil {
		return nil, nil, err
	}
	proc, err := lease.RunAttached(run)
	if err != nil {
		lease.Release()
		return nil, nil, err
	}
	info := guest.JobInfo{ID: run.ID, Kind: guest.KindRun, Name: run.Name}
	return &JobUse{Lease: lease, job: Job{Sandbox: l.nameOf(row), JobInfo: info}}, proc, nil
}

// StartJob starts a job in a sandbox. The lease of the sandbox is to be released.
func (l *Login) StartJob(ctx context.Context, verb deed, sandboxName string, run guest.Run) (*JobUse, error) {
	lease, row, err := l.openForJob(ctx, verb, sandboxName, &run)
	if err != nil {
		return nil, err
	}
	info, err := lease.Run(ctx, run)
	if errors.Is(err, guest.ErrGone) {
		lease.Release()
		lease, info, err = l.startedAfterAll(ctx, row, run.ID)
	}
	if err != nil {
		if lease != nil {
			lease.Release()
		}
		return nil, err
	}
	return &JobUse{Lease: lease, job: Job{Sandbox: l.nameOf(row), JobInfo: info}}, nil
}

// startedAfterAll finds out what became of a job when the answer was lost.
func (l *Login) startedAfterAll(ctx context.Context, row store.Sandbox, id string) (*sandbox.Lease, guest.JobInfo, error) {
	unknown := &problem{
		kind:     failed,
		sentence: "outcome unknown: the connection to the sandbox was lost while the job was being started",
		hint:     fmt.Sprintf("see whether it runs: ssh gate@HOST logs %s/%s", l.nameOf(row), id),
	}
	lease, err := l.gate.sandboxes.Wake(ctx, row)
	if err != nil {
		return nil, guest.JobInfo{}, unknown
	}
	info, err := lease.Job(ctx, id)
	switch {
	case errors.Is(err, guest.ErrNoJob):
		return lease, info, &problem{kind: failed, sentence: "the job was not started: the sandbox was stopped meanwhile"}
	case err != nil:
		return lease, info, unknown
	}
	return lease, info, nil
}

// jobsTimeout bounds the wait for one sandbox of several that are asked.
const jobsTimeout = 5 * time.Second

// Jobs returns the jobs of one sandbox, which is started for that, or of all that run.
func (l *Login) Jobs(ctx context.Context, verb deed, sandboxName string) ([]Job, error) {
	if sandboxName != "" {
		row, err := l.named(ctx, verb, sandboxName)
		if err != nil {
			return nil, err
		}
		return l.jobsOf(ctx, row)
	}
	sandboxes, err := l.visible(ctx)
	if err == nil {
		err = l.describe(ctx, sandboxes)
	}
	if err != nil {
		return nil, err
	}
	var all []Job
	for _, s := range sandboxes {
		if s.Info.State != sandbox.Running {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, jobsTimeout)
		jobs, err := l.jobsOf(ctx, s.Row)
		cancel()
		if err != nil {
			l.log.Warn("jobs not listed", keySandbox, s.Row.ID, keyErr, err)
			continue
		}
		all = append(all, jobs...)
	}
	return all, nil
}

func (l *Login) jobsOf(ctx context.Context, row store.Sandbox) ([]Job, error) {
	lease, err := l.gate.sandboxes.Wake(ctx, row)
	if err != nil {
		return nil, err
	}
	defer lease.Release()
	infos, err := lease.Jobs(ctx)
	if err != nil {
		return nil, err
	}
	var jobs []Job
	for _, i := range infos {
		if i.Kind != guest.KindExec {
			jobs = append(jobs, Job{Sandbox: l.nameOf(row), JobInfo: i})
		}
	}
	return jobs, nil
}

// noJob is the answer to the name of a job that does not exist.
func noJob(err error, name string) error {
	if errors.Is(err, guest.ErrNoJob) {
		return &problem{kind: notFound, sentence: fmt.Sprintf("no job %.80q", name), hint: "ssh gate@HOST jobs; those that ended more than a day ago are forgotten"}
	}
	return err
}

// An outputSink takes a job's output as it is read.
type outputSink interface {
	piece(guest.Piece) error
	end(next int64, j Job) error
}

// show moves a part of a job's log to a sink.
func (u *JobUse) show(ctx context.Context, span guest.Span, sink outputSink) (guest.JobInfo, error) {
	o, err := u.Output(ctx, u.job.ID, span)
	if err != nil {
		return guest.JobInfo{}, err
	}
	defer o.Close()
	for {
		p, err := o.Next()
		if err == io.EOF {
			return o.Job(), sink.end(o.Offset(), Job{JobInfo: o.Job(), Sandbox: u.job.Sandbox})
		}
		if err != nil {
			return guest.JobInfo{}, err
		}
		if err := sink.piece(p); err != nil {
			return guest.JobInfo{}, errClientGone
		}
	}
}

// codeOf is a job's exit as a shell has it. A job about which nobody knows has 255.
func codeOf(j guest.JobInfo) int {
	switch {
	case j.Exit == nil:
		return exitGateway
	case j.Exit.Signal != "":
		return 128 + guest.SignalNumber(j.Exit.Signal)
	}
	return j.Exit.Code
}

// tellTimeout bounds what a login waits to be told what runs.
const tellTimeout = 2 * time.Second

// tellRunning says in one line on the client's terminal what goes on in the sandbox
// that earlier logins have left. The session that the client is about to enter is not
// news.
func (s *session) tellRunning(c *guest.Client, entered string) {
	ctx, cancel := context.WithTimeout(s.ctx, tellTimeout)
	defer cancel()
	jobs, err := c.Jobs(ctx)
	if err != nil {
		s.login.log.Debug("what runs is not known", keyErr, err)
		return
	}
	var names []string
	kept := 0
	for _, i := range jobs {
		j := Job{JobInfo: i, Sandbox: s.login.nameOf(s.row)}
		switch {
		case !j.Running() || j.Kind == guest.KindSession && i.Name == entered:
		case j.Kind != guest.KindExec:
			names = append(names, j.called())
		case j.Attached == 0: // its client has gone, and it was told to go on
			kept++
		}
	}
	const most = 5
	if more := len(names) - most; more > 0 {
		names = append(names[:most], plural(more, "other job"))
	}
	where := "ssh gate@HOST jobs"
	if len(names) == 0 { // jobs does not list plain commands
		where = "ssh " + s.login.nameOf(s.row) + "@HOST ps -ef"
	}
	if kept > 0 {
		names = append(names, plural(kept, "command")+" without a client")
	}
	if len(names) > 0 {
		fmt.Fprintf(crlfWriter{s.ch.Stderr()}, "sandgate: still running: %s; see: %s\n", strings.Join(names, ", "), where)
	}
}

// called is the job's name as people would use it.
func (j Job) called() string {
	if j.Kind == guest.KindRun && j.JobInfo.Name != "" {
		return j.Sandbox + "/" + j.JobInfo.Name
	}
	return j.Name()
}
