package sandbox_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"sandgate/sandbox"
)

// withConfig gives w a manager with other settings.
func (w *world) withConfig(c sandbox.Config) {
	w.t.Helper()
	c.Driver = "local"
	w.Manager.Close()
	var err error
	w.Manager, err = sandbox.NewManager(c, w.db, map[string]sandbox.Driver{"local": w.driver}, slog.New(slog.DiscardHandler))
	if err != nil {
		w.t.Fatal(err)
	}
}

// fault is what an error says is wrong with options; 0 for none.
func fault(err error) sandbox.OptionFault {
	if e, ok := errors.AsType[*sandbox.OptionError](err); ok {
		return e.Fault
	}
	return 0
}

// What was asked for goes over the template, and that over the defaults.
func TestTemplate(t *testing.T) {
	w := newWorld(t)
	w.withConfig(sandbox.Config{
		Defaults: sandbox.Options{
			Limits: sandbox.Limits{CPUs: 1, Memory: 1 << 30, PIDs: 100},
			Env:    []string{"A=default", "B=default"},
			Idle:   sandbox.Idle{Stop: sandbox.Duration(time.Hour)},
		},
		Templates: map[string]sandbox.Options{"node": {
			Limits:       sandbox.Limits{Memory: 2 << 30, PIDs: 200},
			Env:          []string{"B=node", "C=node"},
			Setup:        "npm ci",
			User:         "node",
			ForwardAgent: new(true),
		}},
	})
	row, err := w.Create(t.Context(), w.user, "web", sandbox.Options{
		Template:     "node",
		Limits:       sandbox.Limits{PIDs: 300},
		Env:          []string{"C=mine"},
		Idle:         sandbox.Idle{Stop: sandbox.Off},
		ForwardAgent: new(false),
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := sandbox.OptionsOf(row)
	want := sandbox.Options{
		Image: sandbox.ImageHost, Network: sandbox.NetworkNone, Template: "node",
		Limits:       sandbox.Limits{CPUs: 1, Memory: 2 << 30, PIDs: 300},
		Env:          []string{"A=default", "B=node", "C=mine"},
		Setup:        "npm ci",
		User:         "node",
		Idle:         sandbox.Idle{Stop: sandbox.Off},
		ForwardAgent: new(false),
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
	if _, err := w.Create(t.Context(), w.user, "other", sandbox.Options{Template: "nodes"}); fault(err) != sandbox.OptionUnknown {
		t.Errorf("an unknown template: %v", err)
	}
}

func TestCeilings(t *testing.T) {
	w := newWorld(t)
	w.withConfig(sandbox.Config{Ceilings: sandbox.Ceilings{
		Limits:  sandbox.Limits{CPUs: 2, Memory: 1 << 30, PIDs: 100, Disk: 1 << 30},
		TTL:     sandbox.Duration(time.Hour),
		Network: sandbox.NetworkNone,
	}})
	for name, test := range map[string]struct {
		ask  sandbox.Options
		says string
	}{
		"cpus":    {sandbox.Options{Limits: sandbox.Limits{CPUs: 2.5}}, "cpus 2.5 is above what this gateway allows: 2"},
		"memory":  {sandbox.Options{Limits: sandbox.Limits{Memory: 2 << 30}}, "memory 2G is above what this gateway allows: 1G"},
		"pids":    {sandbox.Options{Limits: sandbox.Limits{PIDs: 101}}, "pids 101 is above what this gateway allows: 100"},
		"disk":    {sandbox.Options{Limits: sandbox.Limits{Disk: 1<<30 + 1}}, "disk 1073741825 is above what this gateway allows: 1G"},
		"ttl":     {sandbox.Options{TTL: sandbox.Duration(2 * time.Hour)}, "ttl 2h is above what this gateway allows: 1h"},
		"no ttl":  {sandbox.Options{TTL: sandbox.Off}, "ttl off is above what this gateway allows: 1h"},
		"network": {sandbox.Options{Network: sandbox.NetworkFull}, "network full is above what this gateway allows: none"},
	} {
		_, err := w.Create(t.Context(), w.user, "web", test.ask)
		if fault(err) != sandbox.OptionTooMuch || err.Error() != test.says {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Who asks for nothing gets no more than the ceilings.
	row, err := w.Create(t.Context(), w.user, "web", sandbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	o, err := sandbox.OptionsOf(row)
	if err != nil || o.Limits != (sandbox.Limits{CPUs: 2, Memory: 1 << 30, PIDs: 100, Disk: 1 << 30}) || o.Expires.IsZero() {
		t.Errorf("got %+v, %v", o, err)
	}
	if _, err := w.Set(t.Context(), row, sandbox.Change{TTL: sandbox.Off}); fault(err) != sandbox.OptionTooMuch {
		t.Errorf("ttl set above the ceiling: %v", err)
	}
	if _, err := w.Set(t.Context(), row, sandbox.Change{Limits: sandbox.Limits{CPUs: 3}}); fault(err) != sandbox.OptionTooMuch {
		t.Errorf("cpus set above the ceiling: %v", err)
	}
}

func TestMalformedOptions(t *testing.T) {
	w := newWorld(t)
	for name, o := range map[string]sandbox.Options{
		"limit":       {Limits: sandbox.Limits{CPUs: -1}},
		"network":     {Network: "internet"},
		"user":        {User: "a b"},
		"user option": {User: "-x"},
		"variable":    {Env: []string{"A"}},
		"name":        {Env: []string{"A B=C"}},
		"zero":        {Env: []string{"A=\x00"}},
		"many":        {Env: strings.Split(strings.Repeat("A=B ", 300)+"A=B", " ")},
		"long":        {Env: []string{"A=" + strings.Repeat("x", 40<<10)}},
		"setup":       {Setup: "a\x00b"},
		"ttl":         {TTL: 5},
		"idle":        {Idle: sandbox.Idle{Stop: -2}},
	} {
		if _, err := w.Create(t.Context(), w.user, "web", o); fault(err) != sandbox.OptionMalformed {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Only folders below those that the operator names can be workspaces, whatever
// links lead where.
func TestWorkspace(t *testing.T) {
	dir := t.TempDir()
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	for _, d := range []string{"work/one/deep", "work/alice/mine", "work/bob", "worker", "secret"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{"work/inside": "one/deep", "work/out": "../secret", "link": "work"} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "work/file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	const forbidden, unknown, wrong = sandbox.OptionForbidden, sandbox.OptionUnknown, sandbox.OptionMalformed
	for _, test := range []struct {
		root, ask, real string
		fault           sandbox.OptionFault
	}{
		{"work", "work", "work", 0},
		{"work", "work/one", "work/one", 0},
		{"work", "work/one/../one/deep/", "work/one/deep", 0},
		{"work", "work/inside", "work/one/deep", 0},
		{"link", "link/one", "work/one", 0},
		{"link", "work/one", "work/one", 0},
		{"work/{user}", "work/alice/mine", "work/alice/mine", 0},
		{"work/{user}", "work/bob", "", forbidden},
		{"work", "work/out", "", forbidden},
		{"work", "worker", "", forbidden},
		{"work", "secret", "", forbidden},
		{"work", "nothing", "", forbidden},
		{"work", "work/..", "", forbidden},
		{"work", "work/../secret", "", forbidden},
		{"work", "work/nothing", "", unknown},
		{"work", "work/file", "", wrong},
		{"", "work", "", forbidden},
	} {
		var c sandbox.Config
		if test.root != "" {
			c.Workspaces = []string{filepath.Join(dir, test.root)}
		}
		w.withConfig(c)
		row, err := w.Create(t.Context(), w.user, "web", sandbox.Options{Workspace: dir + "/" + test.ask})
		if fault(err) != test.fault {
			t.Errorf("%s below %q: %v", test.ask, test.root, err)
		}
		if err != nil {
			continue
		}
		if o, _ := sandbox.OptionsOf(row); o.Workspace != filepath.Join(dir, test.real) {
			t.Errorf("%s below %q is %s", test.ask, test.root, o.Workspace)
		}
		if err := w.Remove(t.Context(), row); err != nil {
			t.Fatal(err)
		}
	}
	w.withConfig(sandbox.Config{Workspaces: []string{dir}})
	if _, err := w.Create(t.Context(), w.user, "web", sandbox.Options{Workspace: "work"}); fault(err) != wrong {
		t.Errorf("a relative path: %v", err)
	}
}

// A workspace is looked at again at each start.
func TestWorkspaceSwapped(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ask := filepath.Join(dir, "work", "one")
	if err := os.MkdirAll(ask, 0o755); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	w.withConfig(sandbox.Config{Workspaces: []string{filepath.Join(dir, "work")}})
	row, err := w.Create(t.Context(), w.user, "web", sandbox.Options{Workspace: ask})
	if err != nil {
		t.Fatal(err)
	}
	w.mustRun(row)
	if err := w.Stop(t.Context(), row); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(ask); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Wake(t.Context(), row); fault(err) != sandbox.OptionUnknown {
		t.Errorf("a workspace that is gone: %v", err)
	}
	for _, target := range []string{"/etc", filepath.Join(dir, "work")} {
		if err := os.Symlink(target, ask); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Wake(t.Context(), row); fault(err) != sandbox.OptionForbidden {
			t.Errorf("a workspace that leads to %s: %v", target, err)
		}
		if err := os.Remove(ask); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(ask, 0o755); err != nil {
		t.Fatal(err)
	}
	w.mustRun(row)
	w.withConfig(sandbox.Config{})
	if _, err := w.Wake(t.Context(), row); fault(err) != sandbox.OptionForbidden {
		t.Errorf("a workspace that is not allowed any more: %v", err)
	}
}

func TestAllowedImages(t *testing.T) {
	w := newWorld(t)
	w.withConfig(sandbox.Config{Images: []string{"host", "node", "debian:12", "ghcr.io/acme/*", "localhost:5000/a@sha256:*"}})
	for image, allowed := range map[string]bool{
		"":                               true,
		"host":                           true,
		"node":                           true,
		"node:22":                        true,
		"docker.io/library/node:22":      true,
		"index.docker.io/node@sha256:00": true,
		"debian:12":                      true,
		"debian":                         false,
		"debian:11":                      false,
		"ghcr.io/acme/a/b:c":             true,
		"ghcr.io/acme2/a":                false,
		"evil.io/node":                   false,
		"evil.io/ghcr.io/acme/a":         false,
		"acme/node":                      false,
		"localhost:5000/a@sha256:00":     true,
		"localhost:5000/a":               false,
	} {
		_, err := w.Create(t.Context(), w.user, "web", sandbox.Options{Image: image})
		if got := fault(err) != sandbox.OptionForbidden; got != allowed {
			t.Errorf("%q allowed: %t, %v", image, got, err)
		}
	}
}

func TestSet(t *testing.T) {
	w := newWorld(t)
	row, err := w.Create(t.Context(), w.user, "web", sandbox.Options{Env: []string{"A=1", "B=2"}})
	if err != nil {
		t.Fatal(err)
	}
	options := func() sandbox.Options {
		t.Helper()
		row, err := w.db.Sandbox(t.Context(), row.ID)
		if err != nil {
			t.Fatal(err)
		}
		o, err := sandbox.OptionsOf(row)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	set := func(c sandbox.Change, restart ...string) {
		t.Helper()
		got, err := w.Set(t.Context(), row, c)
		if err != nil || strings.Join(got, " ") != strings.Join(restart, " ") {
			t.Errorf("set %+v: needs a restart for %q, %v; want %q", c, got, err, restart)
		}
	}
	w.mustRun(row)
	set(sandbox.Change{})
	set(sandbox.Change{TTL: sandbox.Duration(time.Hour), Idle: sandbox.Idle{Stop: sandbox.Duration(time.Minute)}, KeepCommands: new(true)})
	o := options()
	if left := time.Until(o.Expires); left < 59*time.Minute || left > time.Hour || o.Idle.String() != "stop:1m" || !o.KeepsCommands() {
		t.Errorf("after set: %+v", o)
	}
	set(sandbox.Change{TTL: sandbox.Off})
	if o := options(); !o.Expires.IsZero() {
		t.Errorf("expires without a time to live: %+v", o)
	}
	set(sandbox.Change{Env: []string{"B=3", "C=4"}, Unset: []string{"A"}, Limits: sandbox.Limits{PIDs: 9}}, "env", "pids")
	if o := options(); strings.Join(o.Env, " ") != "B=3 C=4" || o.PIDs != 9 {
		t.Errorf("after set: %+v", o)
	}
	if err := w.Stop(t.Context(), row); err != nil {
		t.Fatal(err)
	}
	set(sandbox.Change{Limits: sandbox.Limits{PIDs: 10}})
	if _, err := w.Set(t.Context(), row, sandbox.Change{Env: []string{"no"}}); fault(err) != sandbox.OptionMalformed {
		t.Errorf("malformed: %v", err)
	}
}
