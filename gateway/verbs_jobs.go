package gateway

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"sandgate/sandbox/guest"
)

// JobVerbs are those of work that outlives a connection.
type JobVerbs struct {
	Run      runVerb      `cmd:"" help:"Start a job that goes on without you, and print what it is called. Example: run web -- make release"`
	Exec     execVerb     `cmd:"" help:"Run a command as a job and stay with it. Example: exec --timeout 2h web -- make test"`
	Jobs     jobsVerb     `cmd:"" help:"List jobs: those that run, and those that ended within a day. Example: jobs web"`
	Logs     logsVerb     `cmd:"" help:"Print what a job has printed. Example: logs -f web/build"`
	Attach   attachVerb   `cmd:"" help:"Go on with a named session or a job, for both ways. Example: attach web+build"`
	Wait     waitVerb     `cmd:"" help:"Wait for a job to end, and end with its exit code. Example: wait web/build"`
	Kill     killVerb     `cmd:"" help:"End jobs with all that they started, or send a signal. Example: kill web/build"`
	Job      jobVerbs     `cmd:"" help:"Records of jobs. Example: job rm web/build"`
	Service  serviceVerbs `cmd:"" help:"Commands that are kept running. Example: service add --name api web -- npm start"`
	Sessions sessionsVerb `cmd:"" help:"List named sessions that run. Example: sessions"`
}

type jobVerbs struct {
	Rm jobRmVerb `cmd:"" help:"Delete the records and logs of jobs that have ended. Example: job rm web/build"`
}

// splitCommand cuts the command off a line that has one behind " -- ". It goes to the
// sandbox's shell as it is, as what stands behind a host's name does with ssh.
func splitCommand(line string) (words, command string, ok bool) {
	verb, _, _ := strings.Cut(strings.TrimLeft(line, " \t"), " ")
	if !TakesCommand(verb) {
		return line, "", false
	}
	quote := byte(0)
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '\\' && quote != '\'':
			i++
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '\'' || c == '"':
			quote = c
		case strings.HasPrefix(line[i:], " -- "):
			return line[:i], line[i+len(" -- "):], true
		}
	}
	return line, "", false
}

// TakesCommand says whether a verb is followed by a command for a shell, behind --.
func TakesCommand(verb string) bool { return verb == "run" || verb == "exec" || verb == "service" }

// jobFlags are those of verbs that start a job.
type jobFlags struct {
	Name string   `help:"Name to call the job by."`
	Env  []string `short:"e" sep:"none" placeholder:"NAME=VALUE" help:"Variable for the job; may be repeated."`
	Cwd  string   `placeholder:"DIR" help:"Folder to start in. Default: where commands start."`

	Sandbox string   `arg:"" help:"Sandbox; it is made when it is not there."`
	Command []string `arg:"" help:"Command for the sandbox's shell, behind --."`
}

// run returns what the flags ask for.
func (f *jobFlags) run(c *verbCall, timeout string, usual time.Duration) (guest.Run, error) {
	run := guest.Run{ID: guest.NewJobID(), Command: guest.Command{Text: []byte(strings.Join(f.Command, " ")), Name: f.Name, Dir: f.Cwd}}
	if f.Name != "" && !ValidName(f.Name) {
		return run, &problem{kind: usage, sentence: fmt.Sprintf("%.80q cannot be a job's name", f.Name), hint: "names are made of a-z, 0-9 and -"}
	}
	if strings.Contains(f.Cwd, "\x00") || len(f.Cwd) > 4096 {
		return run, &problem{kind: usage, sentence: "that is no folder's name"}
	}
	run.Env = c.session.environment()
	for _, kv := range f.Env {
		name, _, ok := strings.Cut(kv, "=")
		if !ok || name == "" || strings.Contains(kv, "\x00") {
			return run, &problem{kind: usage, sentence: fmt.Sprintf("%.80q is no variable", kv), hint: "such as --env CI=1"}
		}
		run.Env = append(run.Env, []byte(kv))
	}
	var err error
	run.Timeout, err = parseTimeout(timeout, usual)
	return run, err
}

// parseTimeout reads a time span, or a number of seconds; none if it is 0.
func parseTimeout(s string, usual time.Duration) (time.Duration, error) {
	if s == "" {
		return usual, nil
	}
	d, err := time.ParseDuration(s)
	if n, e := strconv.ParseUint(s, 10, 32); e == nil {
		d, err = time.Duration(n)*time.Second, nil
	}
	if err != nil || d < 0 || d > guest.MaxTimeout {
		return 0, &problem{kind: usage, sentence: fmt.Sprintf("%.40q is no time limit", s), hint: "seconds, or a time span such as 90m; at most 24h"}
	}
	return d, nil
}

type runVerb struct {
	JSON
	jobFlags
	Timeout string `placeholder:"TIME" help:"Seconds, or a time span such as 2h, after which the job is ended; at most 24h. Default: none."`
	TTY     bool   `name:"tty" help:"Give the job a terminal, for attach."`
}

func (v *runVerb) Run(c *verbCall) error {
	run, err := v.run(c, v.Timeout, 0)
	if err != nil {
		return err
	}
	if v.TTY {
		run.Terminal = c.session.anyTerminal()
	}
	u, err := c.login.StartJob(c.ctx, "run", v.Sandbox, run)
	if err != nil {
		return startProblem(err)
	}
	defer u.Release()
	return c.print(v.JSON.JSON, jobViewOf(u.job), u.job.Name()+"\n")
}

// anyTerminal returns the terminal of the client, or one like many.
func (s *session) anyTerminal() *guest.Terminal {
	if s.terminal != nil {
		return s.terminal
	}
	return &guest.Terminal{Term: "xterm-256color", Size: guest.Size{Columns: 80, Rows: 24}}
}

// startProblem words why a job could not be started.
func startProblem(err error) error {
	if e, ok := errors.AsType[*guest.StartError](err); ok {
		return &problem{kind: failed, sentence: "the job could not be started: " + e.Reason}
	}
	if errors.Is(err, guest.ErrTooLong) {
		return &problem{kind: usage, sentence: "the command with its variables is too long", hint: "put it into a file of the sandbox: scp FILE web@HOST:"}
	}
	return err
}

type jobsVerb struct {
	JSON
	Sandbox string `arg:"" optional:"" help:"Sandbox, which is started if need be. Default: all that run."`
}

func (v *jobsVerb) Run(c *verbCall) error {
	jobs, err := c.login.Jobs(c.ctx, "jobs", v.Sandbox)
	if err != nil {
		return err
	}
	return c.listJobs(v.JSON.JSON, jobs)
}

type sessionsVerb struct {
	JSON
	Sandbox string `arg:"" optional:"" help:"Sandbox, which is started if need be. Default: all that run."`
}

func (v *sessionsVerb) Run(c *verbCall) error {
	jobs, err := c.login.Jobs(c.ctx, "sessions", v.Sandbox)
	if err != nil {
		return err
	}
	var sessions []Job
	for _, j := range jobs {
		if j.Kind == guest.KindSession && j.Running() {
			sessions = append(sessions, j)
		}
	}
	return c.listJobs(v.JSON.JSON, sessions)
}

type waitVerb struct {
	JSON
	Job string `arg:"" help:"Job, as in web/build."`
}

func (*waitVerb) lasting() {}

func (v *waitVerb) Run(c *verbCall) error {
	u, err := c.login.OpenJob(c.ctx, "wait", v.Job)
	if err != nil {
		return noJob(err, v.Job)
	}
	defer u.Release()
	ended, err := u.WaitJob(c.ctx, u.job.ID)
	if err != nil {
		return jobLost(c, u, err)
	}
	if v.JSON.JSON {
		if err := c.print(true, jobViewOf(Job{JobInfo: ended, Sandbox: u.job.Sandbox}), ""); err != nil {
			return err
		}
	}
	return c.endWith(ended, ended.Timeout)
}

type killVerb struct {
	JSON
	Signal string   `short:"s" help:"Signal to send to the job's process group instead, such as INT or HUP."`
	Jobs   []string `arg:"" name:"job" help:"Jobs, as in web/build, and named sessions, as in web+build."`
}

func (v *killVerb) Run(c *verbCall) error {
	signal, done := strings.TrimPrefix(strings.ToUpper(v.Signal), "SIG"), "ended"
	if v.Signal != "" {
		if done = "signalled"; !guest.SignalKnown(signal) {
			return &problem{kind: usage, sentence: fmt.Sprintf("%.40q is no signal", v.Signal), hint: "such as INT, HUP or TERM"}
		}
	}
	return c.each(v.Jobs, v.JSON.JSON, done, func(name string) error {
		u, err := c.login.OpenJob(c.ctx, "kill", name)
		if err != nil {
			return noJob(err, name)
		}
		defer u.Release()
		if signal != "" {
			return u.Kill(c.ctx, u.job.ID, signal)
		}
		if err := u.End(c.ctx, u.job.ID, ""); err != nil {
			return err
		}
		_, err = u.WaitJob(c.ctx, u.job.ID)
		return err
	})
}

type jobRmVerb struct {
	JSON
	Jobs []string `arg:"" name:"job" help:"Jobs that have ended, as in web/build."`
}

func (v *jobRmVerb) Run(c *verbCall) error {
	return c.each(v.Jobs, v.JSON.JSON, "removed", func(name string) error {
		u, err := c.login.OpenJob(c.ctx, "job rm", name)
		if err != nil {
			return noJob(err, name)
		}
		defer u.Release()
		if u.job.Running() {
			return &problem{kind: conflict, sentence: fmt.Sprintf("job %s runs", u.job.Name()), hint: "end it first: ssh gate@HOST kill " + name}
		}
		return u.Forget(c.ctx, u.job.ID)
	})
}
