package daemon

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sandgate/gateway"
)

func TestLogger(t *testing.T) {
	var out bytes.Buffer
	l, err := newLogger(&out, "json", "warn")
	if err != nil {
		t.Fatal(err)
	}
	l.Info("not yet")
	l.level.Set(slog.LevelInfo)
	l.With("conn", "A").Info("now")
	if s := out.String(); strings.Contains(s, "not yet") || !strings.Contains(s, `"msg":"now","conn":"A"`) {
		t.Errorf("logged %q", s)
	}
	if _, err := newLogger(&out, "xml", "info"); err == nil || !strings.Contains(err.Error(), `not "xml"`) {
		t.Errorf("format xml: %v", err)
	}
	if _, err := newLogger(&out, "text", "loud"); err == nil || !strings.Contains(err.Error(), `not "loud"`) {
		t.Errorf("level loud: %v", err)
	}
}

// TestSettle shows which of flag and file holds, and that a reload forgets nothing
// that a flag says.
func TestSettle(t *testing.T) {
	dir := t.TempDir()
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(dir, "sandgate.toml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	given := Serve{place: place{State: dir}, Listen: ":1"}
	write("listen = ':2'\nlog-level = 'warn'\n")
	s := given
	if _, err := s.settle(); err != nil || s.Listen != ":1" || s.LogLevel != "warn" || s.Drain != "5s" {
		t.Errorf("%+v, %v", s, err)
	}
	write("verbose = true\nmax-image = '1G'\ndriver = 'docker'\n")
	next := given
	settings, err := next.settle()
	if err != nil || next.LogLevel != "debug" {
		t.Errorf("%+v, %v", next, err)
	}
	if got := (&running{Serve: &s}).restart(&next, settings); !slices.Equal(got, []string{"driver", "max-image"}) {
		t.Errorf("restart for %q", got)
	}
}

// TestLimits shows how the limits of the door get from the settings to the gateway, and
// that one that lets nobody in is an error.
func TestLimits(t *testing.T) {
	dir := t.TempDir()
	terms := func(text string) (gateway.Terms, error) {
		if err := os.WriteFile(filepath.Join(dir, "sandgate.toml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s := Serve{place: place{State: dir}, Each: new(3)}
		if _, err := s.settle(); err != nil {
			t.Fatal(err)
		}
		return s.terms()
	}
	got, err := terms("places = 50\nplaces-each = 7\nlogin-grace = '20s'\nuser-connections = 9\n")
	if err != nil || got.Admission.Places != 50 || got.Admission.PlacesEach != 3 || got.LoginGrace != 20*time.Second || got.UserConns != 9 {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := terms(""); err != nil || got.Admission.Places != 100 || got.LoginGrace != time.Minute || got.UserConns != 256 {
		t.Errorf("without any: %+v, %v", got, err)
	}
	for _, wrong := range []string{"places = 0", "user-connections = -1", "login-grace = 'off'", "login-grace = 'soon'"} {
		if _, err := terms(wrong); err == nil || !strings.Contains(err.Error(), strings.Fields(wrong)[0]) {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}

func TestParseDrain(t *testing.T) {
	for s, ok := range map[string]bool{"0": true, "30s": true, "1h": true, "off": false, "-1s": false, "soon": false, "": false} {
		if _, err := parseDrain(s); (err == nil) != ok {
			t.Errorf("%q: %v", s, err)
		}
	}
}

func TestParseMaxExec(t *testing.T) {
	for s, want := range map[string]time.Duration{"1s": time.Second, "90m": 90 * time.Minute, "24h": 24 * time.Hour} {
		if d, err := parseMaxExec(s); err != nil || d != want {
			t.Errorf("%q: %v, %v", s, d, err)
		}
	}
	for _, s := range []string{"", "0", "1", "500ms", "-1h", "25h", "soon"} {
		if d, err := parseMaxExec(s); err == nil {
			t.Errorf("%q is %v", s, d)
		}
	}
}
