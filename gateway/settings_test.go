package gateway

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"sandgate/sandbox"
)

func TestReadSettings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sandgate.toml")
	if _, err := ReadSettings(file); !os.IsNotExist(err) {
		t.Errorf("without a file: %v", err)
	}
	if err := os.WriteFile(file, []byte(`
listen = "127.0.0.1:22"
admin-keys = "keys"
no-create = true
workspaces = ["/srv/work/{user}"]
images = ["host", "node:*"]
max-image = "2G"

[defaults]
memory = "1G"
idle = "stop:1h"

[ceilings]
cpus = 4
memory = "8G"
ttl = "7d"
network = "none"

[templates.node]
image = "node:22"
setup = "npm ci"
pids = 300
env = ["CI=1"]
on-disconnect = "keep"
forward-agent = false
`), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := ReadSettings(file)
	if err != nil {
		t.Fatal(err)
	}
	if s.Listen != "127.0.0.1:22" || s.AdminKeys != filepath.Join(filepath.Dir(file), "keys") || !*s.NoCreate || s.Verbose != nil || s.MaxImage != 2<<30 {
		t.Errorf("got %+v", s)
	}
	got, err := s.Sandboxes(sandbox.Config{Driver: "d", Defaults: sandbox.Options{Limits: sandbox.Limits{Memory: 4 << 30, PIDs: 9}}})
	if err != nil {
		t.Fatal(err)
	}
	want := sandbox.Config{
		Driver: "d",
		Defaults: sandbox.Options{
			Limits: sandbox.Limits{Memory: 1 << 30, PIDs: 9},
			Idle:   sandbox.Idle{Stop: sandbox.Duration(time.Hour)},
		},
		Templates: map[string]sandbox.Options{"node": {
			Image: "node:22", Setup: "npm ci", Limits: sandbox.Limits{PIDs: 300}, Env: []string{"CI=1"},
			KeepCommands: new(true), ForwardAgent: new(false),
		}},
		Ceilings: sandbox.Ceilings{
			Limits:  sandbox.Limits{CPUs: 4, Memory: 8 << 30},
			TTL:     sandbox.Duration(7 * 24 * time.Hour),
			Network: sandbox.NetworkNone,
		},
		Workspaces: []string{"/srv/work/{user}"},
		Images:     []string{"host", "node:*"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// What is wrong is told with its line.
func TestSettingsErrors(t *testing.T) {
	for text, want := range map[string]string{
		"listen = 'a'\nlissten = 'b'":            `2: unknown key "lissten"; did you mean "listen"?`,
		"[defaults]\n\nmemroy = '1G'":            `3: unknown key "defaults.memroy"; did you mean "defaults.memory"?`,
		"[templates.node]\nsetp = 'x'":           `2: unknown key "templates.node.setp"; did you mean "templates.node.setup"?`,
		"[defualts]\nmemory = '1G'":              `1: unknown key "defualts"; did you mean "defaults"?`,
		"[defaults]\nfrobnicate = 1":             `2: unknown key "defaults.frobnicate"`,
		"listen = 'a'\nlisten = 'b'":             `2: `,
		"listen = ":                              `1: `,
		"[defaults]\nmemory = 'lots'":            `2: "lots" is no size such as 512M or 2G`,
		"\n[defaults]\nidle = 'nap:1h'":          `3: "nap:1h" is no rule`,
		"[ceilings]\nttl = 'soon'":               `2: "soon" is no time span such as 30m, 2h or 7d`,
		"no-create = 'yes'":                      `1: `,
		"[defaults]\nenv = ['A=1', 2]":           `2: `,
		"listen = 'a'\n[templates]\nnode = true": `3: `,
	} {
		_, err := parseSettings([]byte(text))
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v; want %s", text, err, want)
		}
	}
	if _, err := (Settings{Defaults: templateKeys{SpecFlags: SpecFlags{OnDisconnect: "die"}}}).Sandboxes(sandbox.Config{}); err == nil {
		t.Error("on-disconnect can be anything")
	}
}

// Whatever a file has in it, it is settings or an error with a line.
func FuzzSettings(f *testing.F) {
	for _, s := range []string{"listen = 'a'", "[defaults]\nmemory = '1G'", "[templates.x]\nenv = ['A=B']", "[[defaults]]", "a.b.c = 1", "templates = 1", "\"\" = 1"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if _, err := parseSettings(text); err != nil && !strings.Contains(err.Error(), ":") && err.Error()[0] != ' ' {
			t.Errorf("%q: an error without a line: %v", text, err)
		}
	})
}
