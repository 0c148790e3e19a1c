package gateway

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
)

// whoSays returns what who tells a key, as KIND USER SANDBOX WHAT, sorted. Its own
// line is left out.
func (s *stage) whoSays(t *testing.T, l *Login) []string {
	t.Helper()
	all, err := l.Who(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, p := range all {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s %s %s", p.Kind, p.User, p.Sandbox, p.What)))
	}
	slices.Sort(lines)
	return lines
}

// Everybody sees what is theirs and what others do in what is theirs; admins see all,
// but not what runs in the sandboxes of others.
func TestWho(t *testing.T) {
	s := newStage(t, nil)
	admin := newSigner(t)
	s.promote()
	s.must(s.alice, "user add carol --admin", nil)
	s.must(s.alice, "key add --user carol", authorized(admin))
	s.must(s.alice, "user set-role alice user", nil) // from here on she is none
	limited := newSigner(t)
	s.must(s.alice, "key add --name ci --sandboxes other", authorized(limited))
	s.must(s.alice, "secret set TOKEN", []byte("hunter2-hunter2"))
	s.must(s.alice, "new web --secret TOKEN", nil)
	s.must(s.alice, "share web bob", nil)

	c := s.login("web", s.alice)
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	session, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	session.StdinPipe()
	if err := session.Start("sleep 600 # hunter2-hunter2"); err != nil {
		t.Fatal(err)
	}
	forward, err := c.Dial("tcp", echo.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer forward.Close()
	s.linger(s.login("web.alice", s.bob))
	s.must(s.alice, "run --name build web -- sleep 600", nil)
	s.must(s.alice, "service add --name api web -- sleep 601", nil)

	alice, bob, ci, carol := newLoginOf(t, s, s.alice), newLoginOf(t, s, s.bob), newLoginOf(t, s, limited), newLoginOf(t, s, admin)
	both := []string{
		"job alice web job build: sleep 600",
		"job alice web service api: sleep 601",
		"session alice web forward to " + echo.Addr().String(),
		"session alice web sleep 600 # [redacted]",
		"session bob web echo ready; sleep 600",
	}
	of := func(name string) (lines []string) {
		for _, l := range both {
			lines = append(lines, strings.Replace(l, " web ", " "+name+" ", 1))
		}
		return lines
	}
	hidden := of("web.alice")
	hidden[0], hidden[1] = "job alice web.alice job build", "job alice web.alice service api"
	theirs := of("web.alice")
	theirs = []string{theirs[0], theirs[1], theirs[4]}
	for _, test := range []struct {
		name string
		l    *Login
		want []string
	}{
		{"the owner", alice, both},
		{"who it is shared with", bob, theirs},
		{"a limited key", ci, nil},
		{"an admin", carol, hidden},
	} {
		var got []string
		waitFor(t, "what "+test.name+" is told", func() bool {
			got = s.whoSays(t, test.l)
			return slices.Equal(got, test.want)
		})
	}
	if t.Failed() {
		return
	}

	out := s.must(s.alice, "who --json", nil)
	self := 0
	for line := range strings.Lines(out) {
		var v whoView
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatal(err)
		}
		if v.What == "lobby who" && v.User == "alice" && v.From != "" && v.Conn != "" && v.Heard != nil {
			self++
		}
	}
	if self != 1 {
		t.Errorf("alice herself is %d times in %s", self, out)
	}
	if out := s.must(s.bob, "who", nil); !strings.HasPrefix(out, "USER   FROM ") {
		t.Errorf("the table is %s", out)
	}
	session.Close()
	forward.Close()
	c.Close()
	waitFor(t, "the end of what alice had open", func() bool {
		return !slices.ContainsFunc(s.whoSays(t, alice), func(l string) bool { return strings.HasPrefix(l, "session alice") })
	})
}
