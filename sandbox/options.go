package sandbox

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"sandgate/store"
)

// Options say how a sandbox differs from the default. They are kept with the
// sandbox. A field that is zero was not asked for.
type Options struct {
	Driver  string `json:"-"`                 // is kept in the sandbox's row; empty: the gateway's default
	Runtime string `json:"runtime,omitempty"` // the driver's name for what runs it; empty: its default
	Image   string `json:"image"`             // ImageHost, or NAME[:TAG|@DIGEST]
	Limits
	Network   Network  `json:"network,omitempty"`
	Workspace string   `json:"workspace,omitempty"` // host folder for /workspace; kept without symbolic links
	Env       []string `json:"env,omitempty"`       // NAME=VALUE, over the image's own
	User      string   `json:"user,omitempty"`      // name, uid or uid:gid; empty: the image's
	Setup     string   `json:"setup,omitempty"`     // command that runs once, before anything else
	TTL       Duration `json:"ttl,omitempty"`
	Idle      Idle     `json:"idle,omitzero"`
	Template  string   `json:"template,omitempty"` // where the rest came from

	ForwardAgent *bool `json:"forward_agent,omitempty"` // clients may forward their ssh-agent
	KeepCommands *bool `json:"keep_commands,omitempty"` // those of clients that go away run on
	Record       *bool `json:"record,omitempty"`        // what is shown on terminals is recorded

	From ID `json:"from,omitempty"` // the snapshot that its disk began with

	// Expires is when the sandbox is removed. It follows from TTL.
	Expires time.Time `json:"expires,omitzero"`
}

// OptionsOf returns the options that a sandbox was made with.
func OptionsOf(row store.Sandbox) (Options, error) {
	var o Options
	if err := json.Unmarshal(row.Spec, &o); err != nil {
		return o, fmt.Errorf("options of sandbox %s: %w", row.ID, err)
	}
	return o, nil
}

// ForwardsAgent reports whether clients may forward their ssh-agent.
func (o Options) ForwardsAgent() bool { return o.ForwardAgent != nil && *o.ForwardAgent }

// KeepsCommands reports whether commands of clients that go away run on.
func (o Options) KeepsCommands() bool { return o.KeepCommands != nil && *o.KeepCommands }

// Records reports whether what is shown on terminals is recorded.
func (o Options) Records() bool { return o.Record != nil && *o.Record }

// Or returns o with what it does not ask for taken from other. The variables of
// both are set, those of o last.
func (o Options) Or(other Options) Options {
	return Options{
		Driver:       cmp.Or(o.Driver, other.Driver),
		Runtime:      cmp.Or(o.Runtime, other.Runtime),
		Image:        cmp.Or(o.Image, other.Image),
		Limits:       o.Limits.or(other.Limits),
		Network:      cmp.Or(o.Network, other.Network),
		Workspace:    cmp.Or(o.Workspace, other.Workspace),
		Env:          mergeEnv(other.Env, o.Env),
		User:         cmp.Or(o.User, other.User),
		Setup:        cmp.Or(o.Setup, other.Setup),
		TTL:          cmp.Or(o.TTL, other.TTL),
		Idle:         cmp.Or(o.Idle, other.Idle),
		Template:     cmp.Or(o.Template, other.Template),
		ForwardAgent: cmp.Or(o.ForwardAgent, other.ForwardAgent),
		KeepCommands: cmp.Or(o.KeepCommands, other.KeepCommands),
		Record:       cmp.Or(o.Record, other.Record),
		From:         o.From,
		Expires:      o.Expires,
	}
}

// mergeEnv returns base with the variables of over set in it.
func mergeEnv(base, over []string) []string {
	env := slices.Clone(base)
	for _, kv := range over {
		env = append(withoutEnv(env, envName(kv)), kv)
	}
	return env
}

// withoutEnv returns env without a variable.
func withoutEnv(env []string, name string) []string {
	return slices.DeleteFunc(env, func(kv string) bool { return envName(kv) == name })
}

func envName(kv string) string {
	name, _, _ := strings.Cut(kv, "=")
	return name
}

// An OptionFault is the kind of thing that is wrong with what a sandbox was asked
// to be.
type OptionFault int

// The faults of options.
const (
	OptionMalformed OptionFault = iota + 1
	OptionUnknown               // there is nothing of that name
	OptionForbidden             // the operator does not allow it
	OptionTooMuch               // above what the operator allows
)

// An OptionError says what is wrong with what a sandbox was asked to be.
type OptionError struct {
	Fault  OptionFault
	Reason string // a sentence
	Remedy string // what to do about it; may be empty
}

func (e *OptionError) Error() string { return e.Reason }

func malformed(remedy, format string, args ...any) error {
	return &OptionError{Fault: OptionMalformed, Reason: fmt.Sprintf(format, args...), Remedy: remedy}
}

// Bounds on what options hold.
const (
	maxVariables = 256
	maxEnvSize   = 32 << 10
	maxSetup     = 32 << 10
)

var (
	isEnvName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	isUser    = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_.-]{0,31}|[0-9]{1,9})(:[0-9]{1,9})?$`)
)

// check says what is malformed in o.
func (o Options) check() error {
	switch {
	case o.CPUs < 0 || o.Memory < 0 || o.PIDs < 0 || o.Disk < 0:
		return malformed("", "a limit cannot be negative")
	case o.User != "" && !isUser.MatchString(o.User):
		return malformed("a name, a uid or uid:gid", "%.80q cannot be a user of a sandbox", o.User)
	case len(o.Setup) > maxSetup || strings.Contains(o.Setup, "\x00"):
		return malformed("put it into a file of the workspace or the image", "a setup command has at most %d bytes, none of them zero", maxSetup)
	}
	for _, d := range []Duration{o.TTL, o.Idle.Stop, o.Idle.Pause} {
		if d != 0 && d != Off && time.Duration(d) < time.Second { // as of a number without a unit
			return malformed("such as 30m, 2h or 7d", "a time span is at least a second")
		}
	}
	switch o.Network {
	case "", NetworkNone, NetworkFull:
	default:
		return malformed("one of: none full", "there is no network %.40q", string(o.Network))
	}
	size := 0
	for _, kv := range o.Env {
		name, value, ok := strings.Cut(kv, "=")
		if !ok || !isEnvName.MatchString(name) || strings.Contains(value, "\x00") {
			return malformed("NAME=VALUE", "%.80q sets no variable", kv)
		}
		size += len(kv)
	}
	if len(o.Env) > maxVariables || size > maxEnvSize {
		return malformed("put them into a file", "a sandbox has at most %d variables of %d bytes in all", maxVariables, maxEnvSize)
	}
	return nil
}
