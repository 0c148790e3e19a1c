package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"sandgate/gateway"
)

// place is where the settings come from: for each a flag, else its variable, else
// the file of settings, else a default.
type place struct {
	State  string `env:"SANDGATE_STATE" type:"path" help:"Folder for all that lasts (${state})." placeholder:"DIR"`
	Config string `env:"SANDGATE_CONFIG" type:"path" help:"File of settings (sandgate.toml in the state folder, if there is one)." placeholder:"FILE"`
}

// read returns what is in the file of settings, and settles which folder the state
// is in.
func (p *place) read() (gateway.Settings, error) {
	file := p.Config
	if file == "" {
		p.State = cmp.Or(p.State, DefaultState())
		file = filepath.Join(p.State, gateway.SettingsFile)
	}
	settings, err := gateway.ReadSettings(file)
	if errors.Is(err, os.ErrNotExist) && p.Config == "" {
		return gateway.Settings{}, nil
	}
	p.State = cmp.Or(p.State, settings.State, DefaultState())
	if err != nil {
		return settings, fmt.Errorf("settings: %w", err)
	}
	if p.Config == "" && settings.State != "" && settings.State != p.State {
		return settings, fmt.Errorf("settings: %s: state is %s, and the file is not in it", file, settings.State)
	}
	return settings, nil
}

// DefaultState is where the state is kept unless someone says otherwise.
func DefaultState() string {
	if os.Getuid() == 0 {
		return "/var/lib/sandgate"
	}
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "sandgate")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "sandgate"
	}
	return filepath.Join(home, ".local", "state", "sandgate")
}
