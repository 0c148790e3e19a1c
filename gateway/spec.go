package gateway

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"sandgate/sandbox"
)

// SpecFlags are what a sandbox can be asked to be: flags of the verb new, and
// under the same names keys of a template in the settings file.
type SpecFlags struct {
	CPUs         float64          `name:"cpus" toml:"cpus" placeholder:"N" help:"Processors' worth of time."`
	Memory       sandbox.Size     `toml:"memory" placeholder:"SIZE" help:"Memory, such as 2G."`
	PIDs         int64            `name:"pids" toml:"pids" placeholder:"N" help:"Processes and threads."`
	Disk         sandbox.Size     `toml:"disk" placeholder:"SIZE" help:"What it may write to its disk, such as 10G."`
	Network      sandbox.Network  `toml:"network" placeholder:"none|full" help:"What it can reach: none is its own loopback, full is what the gateway's host can, but for that host."`
	Workspace    string           `toml:"workspace" placeholder:"DIR" help:"Folder of the gateway's host to have at /workspace; the operator says which may be used."`
	Env          []string         `toml:"env" sep:"none" placeholder:"NAME=VALUE" help:"Variable of all commands; may be given again. No place for secrets."`
	User         string           `toml:"user" placeholder:"NAME" help:"User of the sandbox whose commands run: name, uid or uid:gid. Default: the image's."`
	Setup        string           `toml:"setup" placeholder:"COMMAND" help:"Command that runs once, before anything else."`
	TTL          sandbox.Duration `name:"ttl" toml:"ttl" placeholder:"DURATION" help:"Remove it, with its disk, after that long: 2h, 7d, or off."`
	Idle         sandbox.Idle     `toml:"idle" placeholder:"RULE" help:"stop:30m stops it when for so long no session, job or program has done anything; pause:30m pauses it; off."`
	ForwardAgent *bool            `toml:"forward-agent" negatable:"" help:"Let ssh -A bring your ssh-agent into the sandbox."`
	Record       *bool            `toml:"record" negatable:"" help:"Record what terminals show; see rec ls."`
	OnDisconnect string           `toml:"on-disconnect" placeholder:"hup|keep" help:"What a command without a terminal gets when its client goes away: hup ends it, keep lets it run on."`
}

// options returns what the flags ask for.
func (f SpecFlags) options() (sandbox.Options, error) {
	keep, err := keepCommands(f.OnDisconnect)
	return sandbox.Options{
		Limits:       sandbox.Limits{CPUs: f.CPUs, Memory: int64(f.Memory), PIDs: f.PIDs, Disk: int64(f.Disk)},
		Network:      f.Network,
		Workspace:    f.Workspace,
		Env:          f.Env,
		User:         f.User,
		Setup:        f.Setup,
		TTL:          f.TTL,
		Idle:         f.Idle,
		ForwardAgent: f.ForwardAgent,
		KeepCommands: keep,
		Record:       f.Record,
	}, err
}

// keepCommands returns what --on-disconnect asks for; nil: nothing.
func keepCommands(onDisconnect string) (*bool, error) {
	switch onDisconnect {
	case "":
		return nil, nil
	case "hup", "keep":
		return new(onDisconnect == "keep"), nil
	}
	return nil, &problem{kind: usage, sentence: fmt.Sprintf("on-disconnect is hup or keep, not %.40q", onDisconnect)}
}

// optionProblem is what a user reads of an *sandbox.OptionError.
func optionProblem(e *sandbox.OptionError) *problem {
	kinds := map[sandbox.OptionFault]kind{
		sandbox.OptionMalformed: usage,
		sandbox.OptionUnknown:   notFound,
		sandbox.OptionForbidden: denied,
		sandbox.OptionTooMuch:   quota,
	}
	return &problem{kind: cmp.Or(kinds[e.Fault], failed), sentence: e.Reason, hint: e.Remedy}
}

// A specView is what a sandbox was asked to be, as JSON has it.
type specView struct {
	CPUs         float64    `json:"cpus,omitempty"`
	Memory       int64      `json:"memory,omitempty"` // bytes
	PIDs         int64      `json:"pids,omitempty"`
	Disk         int64      `json:"disk,omitempty"` // bytes
	Network      string     `json:"network"`
	Workspace    string     `json:"workspace,omitempty"`
	Env          []string   `json:"env,omitempty"`
	User         string     `json:"user,omitempty"`
	Setup        string     `json:"setup,omitempty"`
	SetupState   string     `json:"setup_state,omitempty"`
	Template     string     `json:"template,omitempty"`
	TTL          string     `json:"ttl,omitempty"`
	Expires      *time.Time `json:"expires,omitempty"`
	Idle         string     `json:"idle"`
	ForwardAgent bool       `json:"forward_agent,omitempty"`
	OnDisconnect string     `json:"on_disconnect"`
	Record       bool       `json:"record,omitempty"`
}

func specViewOf(o sandbox.Options, setup sandbox.Setup) specView {
	v := specView{
		CPUs: o.CPUs, Memory: o.Memory, PIDs: o.PIDs, Disk: o.Disk,
		Network: string(cmp.Or(o.Network, sandbox.NetworkNone)), Workspace: o.Workspace,
		Env: o.Env, User: o.User, Setup: o.Setup, SetupState: string(setup.State), Template: o.Template,
		Idle: cmp.Or(o.Idle.String(), sandbox.Off.String()), ForwardAgent: o.ForwardsAgent(), OnDisconnect: "hup",
		Record: o.Records(),
	}
	if o.KeepsCommands() {
		v.OnDisconnect = "keep"
	}
	if !o.Expires.IsZero() {
		v.TTL, v.Expires = o.TTL.String(), &o.Expires
	}
	return v
}

// lines tells line what there is to say.
func (v specView) lines(line func(name, format string, args ...any)) {
	if v.CPUs > 0 {
		line("cpus", "%g", v.CPUs)
	}
	if v.Memory > 0 {
		line("memory", "%s", sandbox.Size(v.Memory))
	}
	if v.PIDs > 0 {
		line("pids", "%d", v.PIDs)
	}
	if v.Disk > 0 {
		line("disk", "%s", sandbox.Size(v.Disk))
	}
	line("network", "%s", v.Network)
	if v.Workspace != "" {
		line("workspace", "%s", v.Workspace)
	}
	for _, kv := range v.Env {
		line("env", "%s", oneLine(kv))
	}
	if v.User != "" {
		line("user", "%s", v.User)
	}
	if v.Setup != "" {
		line("setup", "%s", oneLine(v.Setup))
		line("setup state", "%s; its output: ssh gate@HOST setup-log", v.SetupState)
	}
	if v.Template != "" {
		line("template", "%s", v.Template)
	}
	line("idle", "%s", v.Idle)
	if v.Expires != nil {
		line("expires", "%s", v.Expires.Format(time.RFC3339))
	}
	line("forwards ssh-agent", "%t", v.ForwardAgent)
	line("on disconnect", "%s", v.OnDisconnect)
	if v.Record {
		line("recorded", "%t", v.Record)
	}
}

type setVerb struct {
	JSON
	Name         string           `arg:"" help:"Sandbox."`
	TTL          sandbox.Duration `name:"ttl" placeholder:"DURATION" help:"Remove it that long from now: 2h, 7d, or off."`
	Idle         sandbox.Idle     `placeholder:"RULE" help:"stop:30m stops it when for so long nothing has gone on in it; pause:30m pauses it; off."`
	ForwardAgent *bool            `negatable:"" help:"Let ssh -A bring your ssh-agent into the sandbox."`
	Record       *bool            `negatable:"" help:"Record what terminals show from now on; see rec ls."`
	OnDisconnect string           `placeholder:"hup|keep" help:"What a command without a terminal gets when its client goes away."`
	Env          []string         `sep:"none" placeholder:"NAME=VALUE" help:"Set a variable; may be given again. Needs a restart."`
	Unset        []string         `sep:"none" placeholder:"NAME" help:"Take a variable away; may be given again. Needs a restart."`
	CPUs         float64          `name:"cpus" placeholder:"N" help:"Processors' worth of time. Needs a restart."`
	Memory       sandbox.Size     `placeholder:"SIZE" help:"Memory, such as 2G. Needs a restart."`
	PIDs         int64            `name:"pids" placeholder:"N" help:"Processes and threads. Needs a restart."`
}

func (v *setVerb) Run(c *verbCall) error {
	keep, err := keepCommands(v.OnDisconnect)
	if err != nil {
		return err
	}
	restart, err := c.login.Set(c.ctx, v.Name, sandbox.Change{
		TTL: v.TTL, Idle: v.Idle, ForwardAgent: v.ForwardAgent, KeepCommands: keep, Record: v.Record, Env: v.Env, Unset: v.Unset,
		Limits: sandbox.Limits{CPUs: v.CPUs, Memory: int64(v.Memory), PIDs: v.PIDs},
	})
	if err != nil {
		return err
	}
	if len(restart) > 0 {
		fmt.Fprintf(c.stderr, "sandgate: %s: from the next start on\nsandgate: hint: ssh gate@HOST stop %s\n", strings.Join(restart, ", "), v.Name)
	}
	l, err := c.login.Info(c.ctx, v.Name)
	if err != nil {
		return err
	}
	return c.print(v.JSON.JSON, viewOf(l), l.Row.Name+" set\n")
}

type setupLogVerb struct {
	JSON
	Name string `arg:"" help:"Sandbox."`
}

// A setupView is a sandbox's setup as JSON has it.
type setupView struct {
	State string     `json:"state"`
	How   string     `json:"how,omitempty"` // it failed
	Ended *time.Time `json:"ended,omitempty"`
	Log   string     `json:"log"`
}

func (v *setupLogVerb) Run(c *verbCall) error {
	s, err := c.login.Setup(c.ctx, v.Name)
	if err != nil {
		return err
	}
	view := setupView{State: string(s.State), How: s.How, Log: string(s.Log)}
	if !s.Ended.IsZero() {
		view.Ended = &s.Ended
	}
	return c.print(v.JSON.JSON, view, view.Log)
}

// setupProblem is what a user reads of a setup command that failed.
func setupProblem(e *sandbox.SetupError) *problem {
	return &problem{
		kind:     failed,
		sentence: fmt.Sprintf("setup of sandbox %q failed: %s", e.Sandbox, e.How),
		hint:     fmt.Sprintf("its output: ssh gate@HOST setup-log %s; the next start runs it again", e.Sandbox),
	}
}

// expiryNear is how long before a sandbox is removed its users are warned.
const expiryNear = 15 * time.Minute

// expiryNotice is what a user reads at a login to a sandbox that is about to be
// removed; empty: it is not.
func expiryNotice(name string, o sandbox.Options, now time.Time) string {
	left := o.Expires.Sub(now)
	if o.Expires.IsZero() || left > expiryNear {
		return ""
	}
	return fmt.Sprintf("sandgate: sandbox %q will be removed in %s, with its disk\nsandgate: hint: to keep it longer: ssh gate@HOST set %s --ttl 2h\n",
		name, max(left, 0).Round(time.Second), name)
}
