// Sandgate is an SSH gateway to sandboxes: everyone gets as many as they want,
// reached with the ssh, scp and sftp they already have.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/alecthomas/kong"

	"sandgate/gateway"
	"sandgate/gateway/daemon"
	"sandgate/gateway/demo"
	"sandgate/sandbox/guest"
	"sandgate/sandbox/gvisor"
	"sandgate/sandbox/nat"
)

func main() {
	// The other lives of this program come first: they run in every sandbox, and
	// gVisor keeps its flags where this program's would be.
	switch {
	case gvisor.IsRunsc(os.Args):
		gvisor.Main(os.Args)
	case nat.IsMain(os.Args):
		os.Exit(nat.Main(os.Args))
	case guest.IsGuest(os.Args):
		os.Exit(guest.Main(os.Args))
	}
	os.Exit(run(os.Args[1:]))
}

// commands are those of the command line. The verbs of the lobby are carried out
// by the gateway that SANDGATE_HOST names.
type commands struct {
	Serve   daemon.Serve   `cmd:"" help:"Run the gateway."`
	Check   daemon.Check   `cmd:"" help:"Say what this machine can do for sandboxes, and whether the file of settings is right. Example: check --json"`
	Backup  daemon.Backup  `cmd:"" help:"Back up the database, the host key, the settings and the key of the secrets, also while the gateway serves. Example: backup /backup/sandgate"`
	Restore daemon.Restore `cmd:"" help:"Restore a backup. Example: restore /backup/sandgate --state /var/lib/sandgate"`
	Unit    daemon.Unit    `cmd:"" help:"Print a unit of systemd that runs this program. Example: unit >/etc/systemd/system/sandgate.service"`
	Demo    demonstration  `cmd:"" help:"Show what sandgate does, in a gateway that is gone afterwards."`
	Version version        `cmd:"" help:"Print the version of this program."`

	Completion completion `cmd:"" help:"Print a script that completes this program's words in your shell: bash, zsh or fish. Example: completion bash"`

	gateway.Verbs
}

func run(args []string) int {
	var c commands
	parser := kong.Must(&c, kong.Name("sandgate"),
		kong.Description("An SSH gateway to sandboxes. The verbs after completion are carried out by the gateway that SANDGATE_HOST names."),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
		kong.Vars{"state": daemon.DefaultState()})
	if len(args) == 0 {
		args = []string{"--help"}
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintf(os.Stderr, "sandgate: %v\nsandgate: hint: sandgate --help\n", err)
		return 2
	}
	var code int
	switch name := parsed.Selected().Name; name {
	case "complete":
		err = gateway.CompleteHere(os.Stdout, parser.Model.Node, c.Complete.Words, os.Getenv("SANDGATE_HOST"))
	case "serve", "check", "backup", "restore", "unit", "demo", "version", "completion":
		if name == "serve" || name == "check" || name == "demo" {
			err = gvisor.WithoutC(args)
		}
		if err == nil {
			err = parsed.Run(process())
		}
		if err != nil {
			code = 1
		}
	default:
		code, err = gateway.Remote(os.Getenv("SANDGATE_HOST"), args)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "sandgate: %v\n", err)
	}
	return code
}

// process is what the environment says to this program besides the flags.
func process() daemon.Process {
	return daemon.Process{
		Version:      programVersion(),
		VaultKey:     takeEnv("SANDGATE_VAULT_KEY"),
		Credentials:  os.Getenv("CREDENTIALS_DIRECTORY"),
		AnthropicKey: takeEnv("ANTHROPIC_API_KEY"),
		OpenAIKey:    takeEnv("OPENAI_API_KEY"),
	}
}

// takeEnv returns a variable and takes it out of the environment, as other programs
// are to be started that must not see it.
func takeEnv(name string) string {
	v := os.Getenv(name)
	os.Unsetenv(name)
	return v
}

type completion struct{ gateway.Shell }

func (c completion) Run() error {
	_, err := os.Stdout.WriteString(c.Script())
	return err
}

type version struct{}

func (version) Run() error {
	fmt.Println("sandgate", programVersion())
	return nil
}

// programVersion is the module's version, or the commit it was built from.
func programVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && (v == "" || v == "(devel)") {
			v = s.Value[:min(12, len(s.Value))]
		}
	}
	return fmt.Sprintf("%s %s/%s", v, runtime.GOOS, runtime.GOARCH)
}

// demonstration is the demo command.
type demonstration struct{}

// Run shows the demo. Whatever ends it early, a reader of its output that has
// gone or a closed terminal too, it cleans up first.
func (demonstration) Run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	return demo.Run(ctx, os.Stdout)
}
