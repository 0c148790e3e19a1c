package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sandgate/gateway"
	"sandgate/sandbox"
)

// reload reads the file of settings again, with the files that it names, and does
// what can be done about it while the gateway serves: everything, or nothing if any
// of it is wrong.
func (r *running) reload() {
	next := r.given
	settings, err := next.settle()
	if err == nil {
		err = r.change(&next, settings)
	}
	if err != nil {
		r.log.Error("settings not reloaded; all is as it was", "err", err)
		return
	}
	r.log.Info("settings reloaded")
	if names := r.restart(&next, settings); len(names) > 0 {
		r.log.Warn("needs a restart: " + strings.Join(names, ", "))
	}
}

// change does what next says.
func (r *running) change(next *Serve, settings gateway.Settings) error {
	level, err := parseLevel(next.LogLevel)
	if err != nil {
		return err
	}
	terms, config, err := r.derive(next, settings)
	if err != nil {
		return err
	}
	if err := terms.Validate(); err != nil {
		return err
	}
	if err := r.sandboxes.SetConfig(config); err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	r.log.level.Set(level)
	return r.gate.SetTerms(terms)
}

// restart names the settings that have changed and that a process keeps.
func (r *running) restart(next *Serve, settings gateway.Settings) []string {
	var names []string
	for _, s := range []struct {
		name    string
		changed bool
	}{
		{"state", next.State != r.State},
		{"listen", next.Listen != r.Listen},
		{"http", next.HTTP != r.HTTP},
		{"vault-key", next.VaultKey != r.VaultKey},
		{"driver", next.Driver != r.Driver},
		{"docker-host", next.DockerHost != r.DockerHost},
		{"docker-cert", next.DockerCert != r.DockerCert},
		{"docker-copy", *next.DockerCopy != *r.DockerCopy},
		{"max-image", settings.MaxImage != r.maxImage},
		{"log-format", next.LogFormat != r.LogFormat},
	} {
		if s.changed {
			names = append(names, s.name)
		}
	}
	return names
}

// derive returns what settings say about the gateway and about sandboxes, with what is
// in the files that they name.
func (r *running) derive(s *Serve, settings gateway.Settings) (gateway.Terms, sandbox.Config, error) {
	base := standard
	base.Driver = r.driver
	config, err := settings.Sandboxes(base)
	if err != nil {
		return gateway.Terms{}, config, fmt.Errorf("settings: %w", err)
	}
	terms, err := s.terms()
	if err != nil {
		return terms, config, err
	}
	terms.HostCerts, err = gateway.LoadHostCert(r.hostKey, filepath.Join(r.State, "host_ed25519-cert.pub"))
	terms.Agent.AnthropicKey, terms.Agent.OpenAIKey = r.process.AnthropicKey, r.process.OpenAIKey
	return terms, config, err
}

// terms are what the settings and the files that they name say about the gateway.
func (s *Serve) terms() (t gateway.Terms, err error) {
	t = gateway.Terms{
		NoCreate: *s.NoCreate,
		Domain:   s.Domain,
		Agent:    gateway.AgentConfig{Model: s.Model, AnthropicURL: s.Anthropic, OpenAIURL: s.OpenAI},
	}
	if s.UserCA != "" {
		if t.UserCAs, err = gateway.LoadUserCAs(s.UserCA); err != nil {
			return t, err
		}
	}
	if s.Banner != "" {
		text, err := os.ReadFile(s.Banner)
		if err != nil {
			return t, fmt.Errorf("banner: %w", err)
		}
		t.Banner = string(text)
	}
	if t.Proxies, err = gateway.ParsePrefixes(s.ProxyFrom); err != nil {
		return t, fmt.Errorf("proxy-from: %w", err)
	}
	if t.Admission.Exempt, err = gateway.ParsePrefixes(s.Exempt); err != nil {
		return t, fmt.Errorf("exempt: %w", err)
	}
	if t.MaxExec, err = parseMaxExec(s.MaxExec); err != nil {
		return t, err
	}
	if err := s.limits(&t); err != nil {
		return t, err
	}
	if t.Drain, err = parseDrain(s.Drain); err != nil {
		return t, err
	}
	return t, nil
}

// parseMaxExec reads how long a command of an agent's may take at most.
func parseMaxExec(s string) (time.Duration, error) {
	var d sandbox.Duration
	if err := d.UnmarshalText([]byte(s)); err != nil || time.Duration(d) < time.Second || time.Duration(d) > 24*time.Hour {
		return 0, fmt.Errorf("max-exec is a time from 1s to 24h, such as 30m, not %q", s)
	}
	return time.Duration(d), nil
}

// limits are what the settings say of how many may come in, and how slowly.
func (s *Serve) limits(t *gateway.Terms) error {
	for _, limit := range []struct {
		name  string
		value int
		to    *int
	}{
		{"places", *s.Places, &t.Admission.Places},
		{"places-each", *s.Each, &t.Admission.PlacesEach},
		{"user-connections", *s.UserConns, &t.UserConns},
	} {
		if limit.value < 1 {
			return fmt.Errorf("%s is 1 or more, not %d", limit.name, limit.value)
		}
		*limit.to = limit.value
	}
	var grace sandbox.Duration
	if err := grace.UnmarshalText([]byte(s.Grace)); err != nil || !grace.On() {
		return fmt.Errorf("login-grace is a time such as 60s, not %q", s.Grace)
	}
	t.LoginGrace = time.Duration(grace)
	return nil
}

// parseDrain reads how long a shutdown waits; 0 is not at all.
func parseDrain(s string) (time.Duration, error) {
	var d sandbox.Duration
	if s == "0" {
		return -1, nil
	}
	if err := d.UnmarshalText([]byte(s)); err != nil || !d.On() {
		return 0, fmt.Errorf("drain is a time such as 30s, or 0, not %q", s)
	}
	return time.Duration(d), nil
}
