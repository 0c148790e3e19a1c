package daemon

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"

	"sandgate/gateway"
	"sandgate/sandbox"
	"sandgate/sandbox/docker"
	"sandgate/sandbox/gvisor"
)

// Check is the check command.
type Check struct {
	place
	driverFlags
	JSON bool `name:"json" help:"Print JSON, one object to a line."`
}

// Run runs a sandbox, tells what it finds, and fails where none can be run.
func (c *Check) Run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	settings, err := c.checkSettings()
	found, works := gvisor.Examine(ctx, gvisor.Config{State: c.State}, slog.New(slog.DiscardHandler))
	engine, answers := docker.Examine(ctx, docker.Config{Host: c.DockerHost, Certificates: c.DockerCert})
	found = slices.Concat([]sandbox.Finding{settings}, found, engine)
	if err := sandbox.WriteFindings(os.Stdout, found, c.JSON); err != nil {
		return err
	}
	if !works && !answers {
		err = errors.Join(err, errors.New("sandboxes cannot run on this machine"))
	}
	return err
}

// validate says what is wrong with settings, short of using them.
func (s *Serve) validate(settings gateway.Settings) error {
	if _, err := newLogger(io.Discard, s.LogFormat, s.LogLevel); err != nil {
		return err
	}
	terms, err := s.terms()
	if err != nil {
		return err
	}
	if err := terms.Validate(); err != nil {
		return err
	}
	config, err := settings.Sandboxes(standard)
	if err != nil {
		return err
	}
	return config.Validate()
}

// checkSettings says whether serve would take the file of settings.
func (c *Check) checkSettings() (sandbox.Finding, error) {
	serve := Serve{place: c.place, driverFlags: c.driverFlags}
	settings, err := serve.settle()
	c.place = serve.place
	if err == nil {
		err = serve.validate(settings)
	}
	if err != nil {
		return sandbox.Finding{Name: "settings", Says: err.Error(), Remedy: "mend the file of settings"}, errors.New("the file of settings is wrong")
	}
	file := cmp.Or(c.Config, filepath.Join(c.State, gateway.SettingsFile))
	if _, err := os.Stat(file); err != nil {
		return sandbox.Finding{Name: "settings", OK: true, Says: "defaults, as there is no " + file}, nil
	}
	return sandbox.Finding{Name: "settings", OK: true, Says: file}, nil
}
