package gateway

import (
	"fmt"
	"strings"
	"time"

	"sandgate/sandbox/guest"
	"sandgate/store"
)

type serviceVerbs struct {
	Add     serviceAddVerb     `cmd:"" help:"Keep a command running in a sandbox, from now on and whenever it is started. Example: service add --name api web -- npm start"`
	Ls      serviceLsVerb      `cmd:"" help:"List the services of a sandbox. Example: service ls web"`
	Logs    serviceLogsVerb    `cmd:"" help:"Print what a service has printed since it was last started. Example: service logs -f web/api"`
	Restart serviceRestartVerb `cmd:"" help:"End services, which then start anew. Example: service restart web/api"`
	Rm      serviceRmVerb      `cmd:"" help:"End services for good. Example: service rm web/api"`
}

// maxServiceCommand bounds a service's command: those of a sandbox travel together.
const maxServiceCommand = 4 << 10

type serviceAddVerb struct {
	JSON
	jobFlags
	Health         string `placeholder:"COMMAND" help:"Command that exits with 0 if the service is well. Services that are added later wait for that, and one that is not well any more is started again."`
	HealthInterval string `placeholder:"TIME" help:"Time between two looks. Default: 30s; every second while it starts."`
	HealthTimeout  string `placeholder:"TIME" help:"Time that a look may take. Default: 10s."`
	HealthFailures int    `placeholder:"N" help:"Looks that fail, one after the other, before it is started again. Default: 3."`
	HealthGrace    string `placeholder:"TIME" help:"Time that it has to start, in which it need not be well. Default: 1m."`
}

// health returns what the flags say about the service's health; nil: nothing.
func (v *serviceAddVerb) health() (*guest.Health, error) {
	given := v.HealthInterval != "" || v.HealthTimeout != "" || v.HealthFailures != 0 || v.HealthGrace != ""
	if v.Health == "" {
		if given {
			return nil, &problem{kind: usage, sentence: "how to look is said, and not what at", hint: `such as --health '"curl -fs localhost:8080"'; ssh takes one pair of quotes`}
		}
		return nil, nil
	}
	if len(v.Health) > maxServiceCommand {
		return nil, tooLong("the health command")
	}
	h := &guest.Health{Text: []byte(v.Health), Interval: 30 * time.Second, Timeout: 10 * time.Second, Grace: time.Minute, Failures: 3}
	for _, f := range []struct {
		flag, value string
		to          *time.Duration
		least       time.Duration
	}{
		{"interval", v.HealthInterval, &h.Interval, time.Second},
		{"timeout", v.HealthTimeout, &h.Timeout, time.Second},
		{"grace", v.HealthGrace, &h.Grace, 0},
	} {
		d, err := parseTimeout(f.value, *f.to)
		if err != nil || d < f.least || d > guest.MaxHealthTime {
			return nil, &problem{kind: usage, sentence: fmt.Sprintf("%.40q is no --health-%s", f.value, f.flag),
				hint: fmt.Sprintf("seconds, or a time span such as 90s; from %v to %v", f.least, guest.MaxHealthTime)}
		}
		*f.to = d
	}
	if v.HealthFailures != 0 {
		h.Failures = v.HealthFailures
	}
	if h.Failures < 1 || h.Failures > guest.MaxHealthFailures {
		return nil, &problem{kind: usage, sentence: fmt.Sprintf("%d is no --health-failures", v.HealthFailures), hint: fmt.Sprintf("from 1 to %d", guest.MaxHealthFailures)}
	}
	return h, nil
}

func tooLong(what string) *problem {
	return &problem{kind: usage, sentence: what + " is longer than 4 KiB", hint: "put it into a file of the sandbox: scp FILE web@HOST:"}
}

func (v *serviceAddVerb) Run(c *verbCall) error {
	if v.Name == "" {
		return &problem{kind: usage, sentence: "a service needs a name", hint: "ssh gate@HOST service add --name api SANDBOX -- COMMAND"}
	}
	if _, err := v.run(c, "", 0); err != nil {
		return err
	}
	command := strings.Join(v.Command, " ")
	if len(command) > maxServiceCommand {
		return tooLong("the command")
	}
	health, err := v.health()
	if err != nil {
		return err
	}
	s, err := c.login.AddService(c.ctx, v.Sandbox, store.Service{Name: v.Name, Command: command, Dir: v.Cwd, Env: v.Env}, health)
	if err != nil {
		return err
	}
	return c.print(v.JSON.JSON, serviceViewOf(s), s.Called()+"\n")
}

type serviceLsVerb struct {
	JSON
	Sandbox string `arg:"" help:"Sandbox."`
}

// A serviceView is a service as JSON has it.
type serviceView struct {
	Service    string   `json:"service"`
	Command    string   `json:"command"`
	Dir        string   `json:"dir,omitempty"`
	State      string   `json:"state"`
	Health     string   `json:"health,omitempty"`      // starting, healthy or unhealthy
	HealthSays string   `json:"health_says,omitempty"` // why it is not healthy
	Job        *jobView `json:"job,omitempty"`         // its run that goes on, or was the last
}

func serviceViewOf(s Service) serviceView {
	v := serviceView{Service: s.Called(), Command: s.Command, Dir: s.Dir, State: s.State()}
	if s.Job != nil {
		v.Job = ptr(jobViewOf(*s.Job))
		v.Health, v.HealthSays = string(s.Job.Health), s.Job.HealthSays
	}
	return v
}

func (v *serviceLsVerb) Run(c *verbCall) error {
	all, err := c.login.Services(c.ctx, v.Sandbox)
	if err != nil {
		return err
	}
	if v.JSON.JSON { // one to a line
		for _, s := range all {
			if err := c.print(true, serviceViewOf(s), ""); err != nil {
				return err
			}
		}
		return nil
	}
	t := c.table()
	fmt.Fprintln(t, "SERVICE\tSTATE\tSINCE\tCOMMAND")
	for _, s := range all {
		since := ""
		if s.Job != nil {
			since = ago(s.Job.Started)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", s.Called(), s.State(), since, shorten(s.Command, 400))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, s := range all {
		if s.Job != nil && s.Job.HealthSays != "" {
			fmt.Fprintf(c.stderr, "sandgate: %s is not well: %s\n", s.Called(), s.Job.HealthSays)
		}
	}
	return nil
}

type serviceLogsVerb struct{ logsVerb }

func (v *serviceLogsVerb) Run(c *verbCall) error { return v.logsVerb.Run(c) }

type serviceRestartVerb struct {
	JSON
	Services []string `arg:"" name:"service" help:"Services, as in web/api."`
}

func (v *serviceRestartVerb) Run(c *verbCall) error {
	return c.each(v.Services, v.JSON.JSON, "restarted", func(name string) error { return c.login.RestartService(c.ctx, name) })
}

type serviceRmVerb struct {
	JSON
	Services []string `arg:"" name:"service" help:"Services, as in web/api."`
}

func (v *serviceRmVerb) Run(c *verbCall) error {
	return c.each(v.Services, v.JSON.JSON, "removed", func(name string) error { return c.login.RemoveService(c.ctx, name) })
}
