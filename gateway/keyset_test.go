package gateway

import (
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
)

// A change of a key reaches the connections that are open: what allows less ends them,
// and anything else holds for what they do next.
func TestSetKey(t *testing.T) {
	s := newStage(t, nil)
	s.promote()
	key := newSigner(t)
	s.must(s.alice, "key add --user bob --name laptop", authorized(key))
	s.must(s.bob, "new api", nil)
	c := s.login("web", key)
	l := s.linger(c)

	if out := s.must(s.bob, "key set laptop --name portable", nil); out != "portable set; limits: none\n" {
		t.Errorf("a new name: %q", out)
	}
	if out, _, _ := s.run(c, "echo hi"); out != "hi\n" {
		t.Errorf("the connection under the new name says %q", out)
	}
	s.must(s.alice, "key set --user bob portable --sandboxes web", nil)
	l.ends(t, c, "your key allows less now; log in again")

	lobby := s.login("gate", key)
	if _, stderr, code := s.run(lobby, "info api"); code != int(notFound) {
		t.Errorf("a sandbox that the key does not cover: %d, %s", code, stderr)
	}
	out := s.must(s.bob, "key set portable --sandboxes web,api --expires 1h --json", nil)
	if !strings.Contains(out, `"sandboxes":["web","api"]`) || !strings.Contains(out, `"expires":"`) {
		t.Errorf("as JSON: %s", out)
	}
	if _, stderr, code := s.run(lobby, "info api"); code != 0 {
		t.Errorf("a sandbox that it covers now: %d, %s", code, stderr)
	}
	if !s.ends(lobby) {
		t.Error("the login does not end with the key")
	}
	if _, stderr, code := s.run(lobby, "key set portable --unlimited"); code != int(denied) {
		t.Errorf("by itself, which is limited: %d, %s", code, stderr)
	}
	s.must(s.bob, "key set portable --unlimited --expires never", nil)
	if s.ends(lobby) {
		t.Error("the login ends, but its key does not")
	}

	busy := s.login("web", key)
	l = s.linger(busy)
	s.must(s.bob, "key set portable --expires 1s", nil)
	l.ends(t, busy, "your login ") // ended, or is not valid any more

	for verb, want := range map[string]kind{
		"key set none --name x": notFound, "key set portable --verbs nothing": usage, "key set portable --expires yesterday": usage,
		"key set --user alice x --read-only": denied,
	} {
		if _, stderr, code := s.verb(s.bob, verb, nil); code != int(want) {
			t.Errorf("%s: %d, %s", verb, code, stderr)
		}
	}
}

// ends says whether a client's login is to end by itself.
func (s *stage) ends(c *ssh.Client) bool {
	id := s.connectionID(c)
	for _, l := range s.gate.live.all() {
		if l.id == id {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.expiry != nil
		}
	}
	s.t.Fatal("the login has ended")
	return false
}
