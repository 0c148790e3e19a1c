//go:build !linux

package gvisor

import (
	"context"
	"errors"
	"log/slog"

	"sandgate/sandbox"
)

// IsRunsc reports false: runsc needs Linux.
func IsRunsc([]string) bool { return false }

// Main is never reached, see IsRunsc.
func Main([]string) {}

// A Driver cannot exist here.
type Driver struct{ sandbox.Driver }

// New returns an error: gVisor needs Linux.
func New(Config, *slog.Logger) (*Driver, error) {
	return nil, errors.New("gvisor: sandboxes of this kind need Linux")
}

// Examine says that gVisor needs Linux.
func Examine(context.Context, Config, *slog.Logger) ([]sandbox.Finding, bool) {
	return []sandbox.Finding{{Name: "gvisor", Says: "it needs Linux", Remedy: "run the gateway on Linux"}}, false
}
