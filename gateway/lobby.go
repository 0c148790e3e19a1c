package gateway

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime/debug"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/alecthomas/kong"
	"mvdan.cc/sh/v3/shell"

	"sandgate/sandbox"
	"sandgate/sandbox/guest"
	"sandgate/store"
)

// Verbs is the grammar of the lobby, and of the same verbs on the local command
// line.
type Verbs struct {
	New      newVerb      `cmd:"" help:"Make a sandbox. Example: new web"`
	Ls       lsVerb       `cmd:"" help:"List your sandboxes. Example: ls --json"`
	Info     infoVerb     `cmd:"" help:"Tell all about one sandbox. Example: info web"`
	Start    startVerb    `cmd:"" aliases:"resume" help:"Start sandboxes, or make paused ones go on. Example: start web"`
	Stop     stopVerb     `cmd:"" help:"End all that runs in sandboxes and keep their disks. Example: stop web"`
	Rm       rmVerb       `cmd:"" help:"Delete sandboxes with their disks. Example: rm web"`
	Set      setVerb      `cmd:"" help:"Change what a sandbox is. Example: set web --idle stop:30m"`
	SetupLog setupLogVerb `cmd:"" help:"Print what a sandbox's setup command wrote. Example: setup-log web"`
	Config   configVerb   `cmd:"" help:"Print an ssh_config for your sandboxes. Example: config >> ~/.ssh/config"`
	JobVerbs
	PeopleVerbs
	NameVerbs
	VaultVerbs
	LedgerVerbs
	AgentVerbs
	PauseVerbs
	WhoVerbs
	CopyVerbs
	DoctorVerbs
	CompleteVerbs
}

// lobbyVerbs are all verbs of the lobby.
type lobbyVerbs struct {
	Verbs
	Completion completionVerb `cmd:"" help:"Print a script that completes verbs and names in your shell: bash, zsh or fish. Example: completion bash"`
	Help       helpVerb       `cmd:"" help:"Explain the verbs, or one of them. Example: help new"`
	Version    versionVerb    `cmd:"" help:"Print the gateway's version. Example: version"`
}

// A verbCall is one verb as it is carried out.
type verbCall struct {
	ctx     context.Context // ends with the channel, and after verbTimeout unless the verb is a lasting one
	login   *Login
	session *session // for its terminal, its input and its signals
	stdin   io.Reader
	stdout  io.Writer
	stderr  io.Writer // progress and warnings
	help    func(w io.Writer, verb []string) error

	atPrompt bool // where verbs need no ssh before them
}

// A lasting verb may take as long as it takes: it follows or carries something.
type lasting interface{ lasting() }

// An exitCode ends a verb with a code of its own and no further word.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// print writes a result: v as JSON, or the text.
func (c *verbCall) print(asJSON bool, v any, text string) error {
	if asJSON {
		return json.NewEncoder(c.stdout).Encode(v)
	}
	_, err := io.WriteString(c.stdout, text)
	return err
}

// lobby carries out a verb or, without one, those that the client types or sends.
func (s *session) lobby(command string) status {
	s.login.beginSession()
	verb, _, _ := strings.Cut(strings.TrimSpace(command)+" ", " ")
	defer s.login.does(nil, strings.TrimSpace("lobby "+verb), s.metered)()
	var code int
	var err error
	switch asks := strings.TrimSpace(command) == ""; {
	case s.terminal != nil && asks:
		code, err = newConsole(s, true).runPrompt()
	case s.terminal != nil:
		code = newConsole(s, false).verb(command)
	case asks:
		code = s.script()
	default:
		code = carryOut(command, s.verbCall(s.ch))
	}
	if errors.Is(context.Cause(s.ctx), errClientGone) {
		err = errClientGone
	}
	return status{exit: guest.Exit{Code: code}, err: err}
}

// verbTimeout bounds one verb that is not a lasting one.
const verbTimeout = 5 * time.Minute

type crlfWriter struct{ w io.Writer }

func (c crlfWriter) Write(p []byte) (int, error) {
	if _, err := io.WriteString(c.w, strings.ReplaceAll(string(p), "\n", "\r\n")); err != nil {
		return 0, err
	}
	return len(p), nil
}

// carryOut carries out a line of the lobby and returns its exit code.
func carryOut(line string, c *verbCall) int {
	l := c.login
	line, command, hasCommand := splitCommand(line)
	// Variables stay as they are written: the lobby has none.
	words, err := shell.Fields(line, func(name string) string { return "$" + name })
	if err != nil {
		return c.complain(&problem{kind: usage, sentence: "malformed command: " + oneLine(err.Error())})
	}
	if len(words) == 0 {
		words = []string{"help"}
	}
	if hasCommand {
		words = append(words, "--", command)
	}
	l.log.Info("verb", "words", words[0])
	err = c.verb(words)
	l.auditVerb(words, err)
	if err == nil {
		return 0
	}
	if code, ok := errors.AsType[exitCode](err); ok {
		return int(code)
	}
	switch cause := context.Cause(c.ctx); {
	case errors.Is(cause, errInterrupted):
		return exitInterrupted
	case errors.Is(cause, errClientGone): // or has left what goes on
		return 0
	}
	return c.complain(err)
}

// complain says what went wrong, and returns the exit code for it.
func (c *verbCall) complain(err error) int {
	text, p := c.login.tell(err)
	if c.atPrompt {
		text = strings.NewReplacer("ssh gate@HOST ", "", "ssh -t gate@HOST ", "").Replace(text)
	}
	io.WriteString(c.stderr, text)
	return int(p.kind)
}

// helpShown is what kong's exit becomes once it has printed help.
type helpShown struct{}

// verb parses and runs one verb.
func (c *verbCall) verb(words []string) (err error) {
	defer func() {
		if p := recover(); p != nil {
			if _, ok := p.(helpShown); ok {
				return
			}
			c.login.log.Error("panic in a verb", "panic", p, "stack", string(debug.Stack()))
			err = &problem{kind: failed, sentence: "the verb failed by a fault of the gateway", hint: "its log has more about this connection"}
		}
	}()
	var verbs lobbyVerbs
	parser, err := kong.New(&verbs,
		kong.Name("ssh gate@HOST"),
		kong.Description("Sandboxes over SSH. A sandbox is made when you first log in to it: ssh NAME@HOST."),
		kong.Writers(c.stdout, c.stdout),
		kong.Exit(func(int) { panic(helpShown{}) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: cmp.Or(c.session.columns(), 100)}),
	)
	if err != nil {
		return err
	}
	c.help = func(w io.Writer, verb []string) error {
		defer func() {
			if p := recover(); p != nil && p != any(helpShown{}) {
				panic(p)
			}
		}()
		parser.Stdout = w
		if _, err := parser.Parse(append(slices.Clone(verb), "--help")); err != nil {
			return &problem{kind: usage, sentence: oneLine(err.Error()), hint: "ssh gate@HOST help"}
		}
		return nil
	}
	parsed, err := parser.Parse(words)
	if err != nil {
		return misunderstood(words, err)
	}
	if err := c.login.may(c.ctx, deedOf(parsed.Selected())); err != nil {
		return err
	}
	if _, ok := parsed.Selected().Target.Addr().Interface().(lasting); !ok {
		var cancel context.CancelFunc
		c.ctx, cancel = context.WithTimeoutCause(c.ctx, verbTimeout, context.DeadlineExceeded)
		defer cancel()
	}
	return parsed.Run(c)
}

// misunderstood is the answer to words that are no verb. It does not repeat what may be
// the value of a secret.
func misunderstood(words []string, err error) *problem {
	sentence := oneLine(err.Error())
	if words[0] == "secret" && strings.HasPrefix(sentence, "unexpected argument") {
		return &problem{kind: usage, sentence: "too many arguments: the value of a secret is none, it is read from stdin", hint: "ssh gate@HOST secret set NAME <FILE"}
	}
	return &problem{kind: usage, sentence: sentence, hint: "ssh gate@HOST help"}
}

// deedOf is a verb's name with those of the verbs that it belongs to.
func deedOf(n *kong.Node) deed {
	name := n.Name
	for n = n.Parent; n.Type == kong.CommandNode; n = n.Parent {
		name = n.Name + " " + name
	}
	return deed(name)
}

// JSON is the flag that every verb has.
type JSON struct {
	JSON bool `name:"json" help:"Print JSON."`
}

type newVerb struct {
	JSON
	Name     string   `arg:"" optional:"" help:"Name: a-z, 0-9 and -. Without one it gets a name of its own."`
	Image    string   `help:"Image: NAME[:TAG|@DIGEST], which is pulled if it is not here; 'host' is the gateway's own programs."`
	Driver   string   `placeholder:"NAME" help:"What runs it: gvisor, docker. Default: the gateway's."`
	Runtime  string   `placeholder:"NAME" help:"What the Docker engine runs it with: runc, runsc, or any other that is registered there."`
	Template string   `placeholder:"NAME" help:"Template of the operator's to begin with."`
	Secret   []string `help:"A secret of your vault to have; may be repeated."`
	From     string   `placeholder:"SNAPSHOT" help:"Begin with the disk of a snapshot, and be what its sandbox was; see snapshots."`
	imageFlags
	SpecFlags
}

// lasting: a large image takes as long as it takes.
func (*newVerb) lasting() {}

func (v *newVerb) Run(c *verbCall) error {
	o, err := v.options()
	if err != nil {
		return err
	}
	o.Image, o.Template, o.Driver, o.Runtime = v.Image, v.Template, v.Driver, v.Runtime
	if err := v.check(v.From); err != nil {
		return err
	}
	if v.From != "" {
		if o, err = c.login.fromSnapshot(c.ctx, v.From, o); err != nil {
			return err
		}
	}
	if v.Name == "" {
		v.Name = "s-" + strings.ToLower(rand.Text()[:6])
	}
	secrets, err := c.login.vaultSecrets(c.ctx, v.Secret)
	if err != nil {
		return err
	}
	row, err := c.login.Create(c.ctx, v.Name, o)
	if err != nil {
		return err
	}
	if err := c.login.GiveSecrets(c.ctx, row, secrets); err != nil {
		return err
	}
	if o, err = sandbox.OptionsOf(row); err != nil {
		return err
	}
	if o.Image != sandbox.ImageHost && v.From == "" {
		if err := c.pull(row, v.Pull); err != nil {
			return err
		}
	}
	entrypoint := ""
	if v.Entrypoint {
		if entrypoint, err = c.login.entrypoint(c.ctx, row, o.Image); err != nil {
			return err
		}
	}
	if o.Setup != "" {
		if err := c.login.Start(c.ctx, row.Name, sandbox.Show{Setup: c.stderr}); err != nil {
			return err
		}
	}
	if entrypoint != "" {
		if _, err := c.login.AddService(c.ctx, row.Name, store.Service{Name: entrypointService, Command: entrypoint}, nil); err != nil {
			return err
		}
	}
	listed, err := c.login.Info(c.ctx, row.Name)
	if err != nil {
		return err
	}
	if listed.Info.Init != "" {
		fmt.Fprintf(c.stderr, "sandgate: %s\nsandgate: hint: ssh gate@HOST service add --name NAME %s -- COMMAND\n", initNote(listed.Info.Init), row.Name)
	}
	return c.print(v.JSON.JSON, viewOf(listed), row.Name+"\n")
}

// A view is a sandbox as JSON has it.
type view struct {
	Name   string `json:"name"`
	Owner  string `json:"owner"`
	State  string `json:"state"`
	Driver string `json:"driver"`
	Image  string `json:"image"`
	specView
	ReadOnly bool      `json:"read_only,omitempty"`   // to the caller
	Shared   []string  `json:"shared_with,omitempty"` // users
	Sessions int       `json:"sessions"`
	Created  time.Time `json:"created"`
	LastUsed time.Time `json:"last_used"`
	OnDisk   int64     `json:"memory_on_disk,omitempty"` // bytes, of a paused sandbox
	Notes    []string  `json:"notes,omitempty"`

	Services []serviceView `json:"services,omitempty"` // by info
	Unserved string        `json:"unserved,omitempty"` // why its services do not run
}

// initNote says what becomes of an image's init.
func initNote(init string) string {
	return fmt.Sprintf("the image's init, %.80q, is not started, and neither are units of systemd: the first process of a sandbox is the gateway's own", init)
}

func viewOf(l Listed) view {
	var shared []string
	for _, g := range l.Grants {
		shared = append(shared, g.User)
	}
	var services []serviceView
	for _, s := range l.Services {
		services = append(services, serviceViewOf(s))
	}
	notes := l.Info.Notes
	if l.Info.Init != "" {
		notes = append(notes[:len(notes):len(notes)], initNote(l.Info.Init))
	}
	return view{
		Services: services, Unserved: l.Unserved,
		ReadOnly: l.relation == readOnly, Shared: shared,
		Name: l.Row.Name, Owner: l.Row.Owner, State: string(l.Info.State), Driver: l.Row.Driver,
		Image: l.Options.Image, specView: specViewOf(l.Options, l.Setup), Sessions: l.Info.Users,
		Created: l.Row.Created, LastUsed: l.Row.LastUsed, OnDisk: l.Info.Image, Notes: notes,
	}
}

type lsVerb struct{ JSON }

func (v *lsVerb) Run(c *verbCall) error {
	all, err := c.login.List(c.ctx)
	if err != nil {
		return err
	}
	if v.JSON.JSON { // one to a line
		for _, l := range all {
			if err := c.print(true, viewOf(l), ""); err != nil {
				return err
			}
		}
		return nil
	}
	t := c.table()
	fmt.Fprintln(t, "NAME\tSTATE\tIMAGE\tSESSIONS\tLAST USED")
	for _, l := range all {
		state := string(l.Info.State)
		if l.Unserved != "" {
			state += ", services failed"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\n", l.Name, state, l.Options.Image, l.Info.Users, ago(l.Row.LastUsed))
	}
	return t.Flush()
}

func ago(t time.Time) string {
	switch d := time.Since(t); {
	case d < time.Minute:
		return "just now"
	case d < time.Hour:
		return plural(int(d.Minutes()), "minute") + " ago"
	case d < 48*time.Hour:
		return plural(int(d.Hours()), "hour") + " ago"
	}
	return t.Format(time.DateOnly)
}

type infoVerb struct {
	JSON
	Name string `arg:"" help:"Sandbox."`
}

func (v *infoVerb) Run(c *verbCall) error {
	l, err := c.login.Info(c.ctx, v.Name)
	if err != nil {
		return err
	}
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(t, "%s\t"+format+"\n", append([]any{name}, args...)...)
	}
	w := viewOf(l)
	line("name", "%s", w.Name)
	line("owner", "%s", w.Owner)
	line("state", "%s", w.State)
	if w.OnDisk > 0 {
		line("memory on disk", "%.1f MiB", float64(w.OnDisk)/(1<<20))
	}
	line("driver", "%s", w.Driver)
	line("image", "%s", w.Image)
	w.lines(line)
	if w.ReadOnly {
		line("shared with you", "for reading only")
	}
	if len(w.Shared) > 0 {
		line("shared with", "%s", strings.Join(w.Shared, ", "))
	}
	line("sessions", "%d", w.Sessions)
	line("created", "%s", w.Created.Format(time.RFC3339))
	line("last used", "%s", w.LastUsed.Format(time.RFC3339))
	for _, s := range w.Services {
		line("service", "%s %s", s.Service, s.State)
	}
	if w.Unserved != "" {
		line("services failed", "%s", w.Unserved)
	}
	for _, n := range w.Notes {
		line("note", "%s", n)
	}
	t.Flush()
	return c.print(v.JSON.JSON, w, b.String())
}

// each carries out do for all names, and goes on after a failure.
func (c *verbCall) each(names []string, asJSON bool, done string, do func(string) error) error {
	var first error
	for _, name := range names {
		err := do(name)
		if err == nil {
			err = c.print(asJSON, map[string]string{"name": name, "result": done}, name+" "+done+"\n")
		}
		if err != nil && first == nil {
			first = err
		}
	}
	return first
}

type startVerb struct {
	JSON
	Names []string `arg:"" name:"name" help:"Sandboxes."`
}

// lasting: a setup command takes as long as it takes.
func (*startVerb) lasting() {}

func (v *startVerb) Run(c *verbCall) error {
	return c.each(v.Names, v.JSON.JSON, "started", func(n string) error {
		return c.login.Start(c.ctx, n, sandbox.Show{Setup: c.stderr, Tell: tellOn(c.stderr)})
	})
}

type stopVerb struct {
	JSON
	Names []string `arg:"" name:"name" help:"Sandboxes."`
}

func (v *stopVerb) Run(c *verbCall) error {
	return c.each(v.Names, v.JSON.JSON, "stopped", func(n string) error { return c.login.Stop(c.ctx, n) })
}

type rmVerb struct {
	JSON
	Names []string `arg:"" optional:"" name:"name" help:"Sandboxes."`
	All   bool     `help:"All of yours; with --force."`
	Force bool     `short:"f" help:"Also those that are in use."`
}

func (v *rmVerb) Run(c *verbCall) error {
	switch {
	case v.All && len(v.Names) > 0:
		return &problem{kind: usage, sentence: "name sandboxes, or --all, not both"}
	case v.All && !v.Force:
		return &problem{kind: usage, sentence: "rm --all deletes all your sandboxes and needs --force"}
	case !v.All && len(v.Names) == 0:
		return &problem{kind: usage, sentence: "no sandbox named", hint: "ssh gate@HOST rm NAME"}
	case v.All:
		all, err := c.login.List(c.ctx)
		if err != nil {
			return err
		}
		for _, l := range all {
			if l.relation == owner {
				v.Names = append(v.Names, l.Name)
			}
		}
	}
	return c.each(v.Names, v.JSON.JSON, "removed", func(n string) error { return c.login.Remove(c.ctx, n, v.Force) })
}

type helpVerb struct {
	JSON
	Verb []string `arg:"" optional:"" help:"Verb to explain."`
}

func (v *helpVerb) Run(c *verbCall) error {
	if !v.JSON.JSON {
		return c.help(c.stdout, v.Verb)
	}
	var text strings.Builder
	if err := c.help(&text, v.Verb); err != nil {
		return err
	}
	return c.print(true, map[string]string{"verb": strings.Join(v.Verb, " "), "help": text.String()}, "")
}

type versionVerb struct{ JSON }

func (v *versionVerb) Run(c *verbCall) error {
	version := c.login.gate.cfg.Version
	return c.print(v.JSON.JSON, map[string]string{"version": version}, "sandgate "+version+"\n")
}

type configVerb struct {
	JSON
	Host string `help:"The gateway's name as you reach it. Default: the address of this connection."`
}

// A hostBlock is one Host of an ssh_config.
type hostBlock struct {
	Host         string `json:"host"`
	HostName     string `json:"hostname,omitempty"`
	Port         int    `json:"port,omitempty"`
	User         string `json:"user"`
	HostKeyAlias string `json:"hostkeyalias"`
	ProxyJump    string `json:"proxyjump,omitempty"`
}

// Run prints a Host for the lobby and each sandbox, and a pattern for those to
// come, which goes through the gateway by the sandbox's name.
func (v *configVerb) Run(c *verbCall) error {
	local, ok := c.login.local.(*net.TCPAddr)
	if !ok {
		return &problem{kind: failed, sentence: "this connection has no address to put into a configuration"}
	}
	name := local.IP.String()
	if v.Host != "" {
		if strings.ContainsAny(v.Host, " \t\r\n\"'#") || strings.HasPrefix(v.Host, "-") {
			return &problem{kind: usage, sentence: fmt.Sprintf("%.80q is not a host name", v.Host)}
		}
		name = v.Host
	}
	// All are one server with one host key, whatever name it is reached by.
	alias := name
	if local.Port != sshPort {
		alias = fmt.Sprintf("[%s]:%d", name, local.Port)
	}
	names, err := c.login.names(c.ctx)
	if err != nil {
		return err
	}
	var blocks []hostBlock
	for _, n := range append([]string{lobbyName}, names...) {
		blocks = append(blocks, hostBlock{Host: n, HostName: name, Port: local.Port, User: n, HostKeyAlias: alias})
	}
	blocks = append(blocks, hostBlock{Host: "*" + strings.Join(c.login.gate.jumpSuffixes(), " *"), User: lobbyName, HostKeyAlias: alias, ProxyJump: lobbyName})
	var b strings.Builder
	for _, h := range blocks {
		fmt.Fprintf(&b, "Host %s\n", h.Host)
		if h.HostName != "" {
			fmt.Fprintf(&b, "  HostName %s\n  Port %d\n", h.HostName, h.Port)
		}
		fmt.Fprintf(&b, "  User %s\n  HostKeyAlias %s\n", h.User, h.HostKeyAlias)
		if h.ProxyJump != "" {
			fmt.Fprintf(&b, "  ProxyJump %s\n", h.ProxyJump)
		}
		b.WriteString("\n")
	}
	return c.print(v.JSON.JSON, blocks, b.String())
}
