package gateway

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"sandgate/sandbox"
)

// findings are what doctor tells a user, by name.
func (s *stage) findings(t *testing.T, l *Login) map[string]sandbox.Finding {
	t.Helper()
	all, err := l.Examine(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]sandbox.Finding)
	for _, f := range all {
		found[f.Name] = f
	}
	return found
}

func TestDoctor(t *testing.T) {
	s := newStage(t, func(c *Config) {
		c.Examine = func(context.Context) []sandbox.Finding {
			return []sandbox.Finding{{Name: "disk", Says: "full", Remedy: "empty it"}}
		}
	})
	s.must(s.alice, "new web", nil)
	s.must(s.alice, "alias add web default", nil)
	s.must(s.alice, "secret set TOKEN", []byte("hunter2-hunter2"))
	alice := newLoginOf(t, s, s.alice)
	want := func(when, name string, ok bool, says string) {
		t.Helper()
		f := s.findings(t, alice)[name]
		if f.OK != ok || !strings.Contains(f.Says, says) || !ok && f.Remedy == "" {
			t.Errorf("%s: %s is %+v", when, name, f)
		}
	}
	want("at first", "login", true, "you are alice, user, with the key SHA256:")
	want("at first", "sandboxes", true, "you may use 1; logging in as alice leads to web")
	want("at first", "secrets", true, "all can be unsealed")
	if _, ok := s.findings(t, alice)["disk"]; ok {
		t.Error("who is no admin is told of the gateway")
	}

	s.verb(s.alice, "new broken --setup 'echo why; exit 3'", nil)
	want("after a setup that failed", "sandbox broken", false, "its setup command failed: ")
	s.promote()
	s.must(s.alice, "quota set sandboxes 2 --user alice", nil)
	want("at the quota", "quota sandboxes", false, "2 of 2")
	want("for an admin", "disk", false, "full")
	want("for an admin", "database", true, "whole")
	want("for an admin", "vault key", true, "next start")
	want("for an admin", "failed logins", true, "0 keys refused")
	want("for an admin", "secrets of all", true, "all can be unsealed")

	soon := newSigner(t)
	s.must(s.alice, "key add --name soon --expires 2h", authorized(soon))
	if f := s.findings(t, newLoginOf(t, s, soon))["login"]; f.OK || !strings.Contains(f.Says, "valid until") {
		t.Errorf("a key that ends: %+v", f)
	}
	limited := newSigner(t)
	s.must(s.alice, "key add --name ci --read-only --sandboxes web", authorized(limited))
	found := s.findings(t, newLoginOf(t, s, limited))
	if _, ok := found["disk"]; ok || !strings.Contains(found["login"].Says, "limited to sandboxes web; read-only") {
		t.Errorf("a limited key is told %+v", found)
	}
	if _, ok := found["sandbox broken"]; ok {
		t.Error("a limited key is told of other sandboxes")
	}

	out, _, code := s.verb(s.alice, "doctor --json", nil)
	if code != int(failed) {
		t.Errorf("code %d", code)
	}
	for line := range strings.Lines(out) {
		var f sandbox.Finding
		if err := json.Unmarshal([]byte(line), &f); err != nil || f.Name == "" {
			t.Errorf("%q: %v", line, err)
		}
	}
}
