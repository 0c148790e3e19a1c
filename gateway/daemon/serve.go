// Package daemon is the gateway as a process that an operator runs: it finds the
// settings, opens what there is to open in order, serves, and closes in reverse.
// What users reach is package gateway's.
package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"

	"sandgate/gateway"
	"sandgate/sandbox"
	"sandgate/store"
)

// A Process is what there is besides flags and the file of settings.
type Process struct {
	Version string // of the program

	VaultKey    string // the key of the secrets itself, or empty
	Credentials string // systemd's folder of credentials, or empty

	// The operator's keys of the models' providers, or empty.
	AnthropicKey, OpenAIKey string
}

// Serve is the serve command.
type Serve struct {
	place
	Listen    string   `env:"SANDGATE_LISTEN" help:"Address to listen on (:2222)." placeholder:"ADDR"`
	HTTP      string   `name:"http" env:"SANDGATE_HTTP" help:"Address at which machines can ask for /healthz, /readyz and /metrics (none)." placeholder:"ADDR"`
	AdminKeys string   `env:"SANDGATE_ADMIN_KEYS" type:"path" help:"Public keys of the first admin. Default: those in ~/.ssh." placeholder:"FILE"`
	VaultKey  string   `type:"path" help:"File with the key of the secrets, made if need be. Default: $SANDGATE_VAULT_KEY, which is the key itself; else systemd's credential vault-key; else vault.key in the state folder." placeholder:"FILE"`
	Domain    string   `env:"SANDGATE_DOMAIN" help:"Cut this off the host of a jump: web.example.com is web." placeholder:"example.com"`
	UserCA    string   `name:"user-ca" env:"SANDGATE_USER_CA" type:"path" help:"Public keys of authorities whose certificates of users are trusted." placeholder:"FILE"`
	Banner    string   `env:"SANDGATE_BANNER" type:"path" help:"Text that clients are shown before they log in." placeholder:"FILE"`
	ProxyFrom []string `env:"SANDGATE_PROXY_FROM" help:"Addresses of proxies that say in a PROXY header whom they speak for." placeholder:"ADDR"`
	Exempt    []string `env:"SANDGATE_EXEMPT" help:"Addresses that failed and pending logins do not count for. Default: the host itself." placeholder:"ADDR"`
	Places    *int     `env:"SANDGATE_PLACES" help:"Connections that may be there on which nobody has logged in (100)." placeholder:"N"`
	Each      *int     `name:"places-each" env:"SANDGATE_PLACES_EACH" help:"How many of them from one address (10)." placeholder:"N"`
	Grace     string   `name:"login-grace" env:"SANDGATE_LOGIN_GRACE" help:"How long a login may take (60s)." placeholder:"TIME"`
	UserConns *int     `name:"user-connections" env:"SANDGATE_USER_CONNECTIONS" help:"Connections that a user may have at the same time (256)." placeholder:"N"`
	driverFlags
	Model     string `env:"SANDGATE_MODEL" help:"Model of the agent where nobody says another." placeholder:"NAME"`
	Anthropic string `name:"anthropic-url" env:"SANDGATE_ANTHROPIC_URL" help:"Where Anthropic's API is. Its key: $ANTHROPIC_API_KEY, for users who have none of their own." placeholder:"URL"`
	OpenAI    string `name:"openai-url" env:"SANDGATE_OPENAI_URL" help:"Where OpenAI's API is. Its key: $OPENAI_API_KEY, likewise." placeholder:"URL"`
	MaxExec   string `env:"SANDGATE_MAX_EXEC" help:"Longest timeout of a command of an agent's (24h)." placeholder:"TIME"`
	NoCreate  *bool  `env:"SANDGATE_NO_CREATE" help:"Do not make a sandbox when its name is first used."`
	Drain     string `env:"SANDGATE_DRAIN" help:"How long a shutdown waits for sessions to end by themselves (5s)." placeholder:"TIME"`
	LogFormat string `env:"SANDGATE_LOG_FORMAT" help:"text or json (text)." placeholder:"FORMAT"`
	LogLevel  string `env:"SANDGATE_LOG_LEVEL" help:"debug, info, warn or error (info)." placeholder:"LEVEL"`
	Verbose   *bool  `short:"v" env:"SANDGATE_VERBOSE" help:"The same as --log-level debug."`
}

// settle reads the file of settings and fills in what no flag says.
func (s *Serve) settle() (gateway.Settings, error) {
	settings, err := s.read()
	if err != nil {
		return settings, err
	}
	s.Listen = cmp.Or(s.Listen, settings.Listen, ":2222")
	s.HTTP = cmp.Or(s.HTTP, settings.HTTP)
	s.AdminKeys = cmp.Or(s.AdminKeys, settings.AdminKeys)
	s.VaultKey = cmp.Or(s.VaultKey, settings.VaultKey)
	s.Domain = cmp.Or(s.Domain, settings.Domain)
	s.UserCA = cmp.Or(s.UserCA, settings.UserCA)
	s.Banner = cmp.Or(s.Banner, settings.Banner)
	if s.ProxyFrom == nil {
		s.ProxyFrom = settings.ProxyFrom
	}
	if s.Exempt == nil {
		s.Exempt = settings.Exempt
	}
	s.Places = cmp.Or(s.Places, settings.Places, new(100))
	s.Each = cmp.Or(s.Each, settings.Each, new(10))
	s.Grace = cmp.Or(s.Grace, settings.Grace, "60s")
	s.UserConns = cmp.Or(s.UserConns, settings.UserConns, new(256))
	s.Model = cmp.Or(s.Model, settings.Model)
	s.Anthropic = cmp.Or(s.Anthropic, settings.Anthropic)
	s.OpenAI = cmp.Or(s.OpenAI, settings.OpenAI)
	s.MaxExec = cmp.Or(s.MaxExec, settings.MaxExec, "24h")
	s.NoCreate = cmp.Or(s.NoCreate, settings.NoCreate, new(false))
	s.Drain = cmp.Or(s.Drain, settings.Drain, "5s")
	s.LogFormat = cmp.Or(s.LogFormat, settings.LogFormat, "text")
	s.Verbose = cmp.Or(s.Verbose, settings.Verbose, new(false))
	if *s.Verbose {
		s.LogLevel = cmp.Or(s.LogLevel, "debug")
	}
	s.LogLevel = cmp.Or(s.LogLevel, settings.LogLevel, "info")
	return settings, s.driverFlags.settle(settings)
}

// Run serves until the process is told to stop: once waits for what is going on
// to end, twice does not.
func (s *Serve) Run(p Process) error {
	given := *s
	settings, err := s.settle()
	if err != nil {
		return err
	}
	if err := s.validate(settings); err != nil {
		return err // before anything is made
	}
	log, err := newLogger(os.Stderr, s.LogFormat, s.LogLevel)
	if err != nil {
		return err
	}
	// The gateway moves bytes: a lazier collector is worth a fifth of its speed.
	debug.SetGCPercent(400)
	debug.SetMemoryLimit(2 << 30)

	sig := watchSignals()
	defer sig.stop()
	r := &running{Serve: s, given: given, process: p, log: log}
	if err := r.serve(sig, settings); err != nil && sig.Err() == nil {
		return err
	}
	return nil
}

// standard is what sandboxes are unless the settings or their users say otherwise.
var standard = sandbox.Config{
	Defaults: sandbox.Options{Limits: sandbox.Limits{Memory: 4 << 30, PIDs: 4096}},
}

// A running is the command serve while it runs, under the settings that it was
// started with.
type running struct {
	*Serve
	given   Serve // flags and variables alone
	process Process
	log     *logger

	maxImage  sandbox.Size
	driver    string // for new sandboxes
	hostKey   ssh.Signer
	sandboxes *sandbox.Manager
	gate      *gateway.Gateway
}

// serve opens things in order, serves, and closes in reverse.
func (r *running) serve(sig *signals, settings gateway.Settings) error {
	if err := os.MkdirAll(r.State, 0o700); err != nil {
		return fmt.Errorf("state folder: %w", err)
	}
	if err := os.Chmod(r.State, 0o700); err != nil {
		return fmt.Errorf("state folder: %w", err)
	}
	systemd := notifier{log: r.log.Logger}
	defer context.AfterFunc(sig, systemd.stopping)()
	monitor := gateway.NewMonitor(r.process.Version, r.log.Logger)
	if r.HTTP != "" {
		listener, err := net.Listen("tcp", r.HTTP)
		if err != nil {
			return fmt.Errorf("http: %w", err)
		}
		ctx, cancel := context.WithCancel(context.Background()) // longer than the gateway
		var serving sync.WaitGroup
		serving.Go(func() {
			if err := monitor.Serve(ctx, listener); err != nil {
				r.log.Error("nobody can ask how the gateway does", "err", err)
			}
		})
		defer serving.Wait()
		defer cancel()
		r.log.Info("answers HTTP", "address", listener.Addr().String())
	}
	db, err := store.Open(sig, filepath.Join(r.State, "sandgate.db"))
	if err != nil {
		return err
	}
	defer db.Close()
	vault, err := r.openVault(sig, r.process, db)
	if err != nil {
		return err
	}
	first, err := r.firstAdmin(sig, db)
	if err != nil {
		return err
	}
	var made bool
	if r.hostKey, made, err = gateway.LoadHostKey(filepath.Join(r.State, "host_ed25519")); err != nil {
		return err
	}
	r.maxImage = settings.MaxImage
	drivers, err := r.openDrivers(r.State, settings.MaxImage, &r.driver, r.log.Logger)
	if err != nil {
		return err
	}
	terms, config, err := r.derive(r.Serve, settings)
	if err != nil {
		return err
	}
	if r.sandboxes, err = sandbox.NewManager(config, db, drivers, r.log.Logger); err != nil {
		return err
	}
	defer r.sandboxes.Close()
	if err := r.sandboxes.Adopt(sig); err != nil {
		return err
	}
	r.gate, err = gateway.New(gateway.Config{
		Fixed: gateway.Fixed{
			HostKeys:   []ssh.Signer{r.hostKey},
			Version:    r.process.Version,
			Vault:      vault,
			Recordings: filepath.Join(r.State, "recordings"),
			Hurry:      sig.hurry,
			Examine:    r.examine,
		},
		Terms: terms,
	}, db, r.sandboxes, r.log.Logger)
	if err != nil {
		return err
	}
	monitor.Watch(r.gate)
	listener, err := net.Listen("tcp", r.Listen)
	if err != nil {
		return err
	}
	r.greet(r.process.Version, listener.Addr(), first, r.hostKey, made)
	defer sig.onReload(func() {
		systemd.reloading()
		r.reload()
		systemd.ready()
	})()
	alive, dead := context.WithCancel(context.Background()) // also while it drains
	var watchdog sync.WaitGroup
	watchdog.Go(func() {
		systemd.watchdog(alive, func(ctx context.Context) error {
			_, err := db.CountUsers(ctx)
			return err
		})
	})
	defer watchdog.Wait()
	defer dead()
	systemd.ready()
	return r.gate.Serve(sig, listener)
}

// openVault opens the vault with its key, wherever that is.
func (s *Serve) openVault(ctx context.Context, p Process, db *store.DB) (*store.Vault, error) {
	key := []byte(p.VaultKey)
	if dir := p.Credentials; dir != "" && len(key) == 0 {
		var err error
		if key, err = os.ReadFile(filepath.Join(dir, "vault-key")); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("key of the vault: %w", err)
		}
	}
	if s.VaultKey != "" || len(key) == 0 {
		return store.OpenVault(ctx, db, cmp.Or(s.VaultKey, filepath.Join(s.State, "vault.key")))
	}
	keys, err := store.ParseSealKeys(key)
	if err != nil {
		return nil, err
	}
	return store.OpenVaultWith(ctx, db, keys)
}

// firstAdmin makes the first admin of a new gateway, and returns what to say about
// that; nothing if there are users already.
func (s *Serve) firstAdmin(ctx context.Context, db *store.DB) (string, error) {
	name, home := "admin", ""
	if u, err := user.Current(); err == nil {
		name, home = u.Username, u.HomeDir
	}
	if h, err := os.UserHomeDir(); err == nil {
		home = h // where HOME says, as ssh-keygen and people do
	}
	admin, keys, made, err := gateway.FirstAdmin(ctx, db, name, s.AdminKeys, filepath.Join(home, ".ssh"))
	if none, ok := errors.AsType[*gateway.NoKeysError](err); ok {
		return "", fmt.Errorf("%w\nsandgate: hint: make a key with: ssh-keygen -t ed25519\nsandgate: hint: or name a file of public keys: sandgate serve --admin-keys FILE", none)
	}
	if err != nil || !made {
		return "", err
	}
	var b strings.Builder
	for _, k := range keys {
		fmt.Fprintf(&b, "  admin       %s, with the key %s %s\n", admin.Name, k.Fingerprint, k.Name)
	}
	return b.String(), nil
}

// greet says on the terminal what there is and how to reach it.
func (s *Serve) greet(version string, addr net.Addr, first string, hostKey ssh.Signer, made bool) {
	host, port, _ := net.SplitHostPort(addr.String())
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	at := "web@" + host
	lobby := "gate@" + host
	if port != "22" {
		at, lobby = "-p "+port+" "+at, "-p "+port+" "+lobby
	}
	fresh := ""
	if made {
		fresh = " (made just now)"
	}
	fmt.Printf("sandgate %s\n\n", version)
	fmt.Printf("  state       %s\n  host key    %s%s\n%s", s.State, ssh.FingerprintSHA256(hostKey.PublicKey()), fresh, first)
	fmt.Printf("  listens on  %s\n\n", addr)
	fmt.Printf("A shell in a new sandbox called web:   ssh %s\nEverything else:                       ssh %s help\n\n", at, lobby)
}
