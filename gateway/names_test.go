package gateway

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/pkg/sftp"

	"sandgate/store"
)

// The table of type target. Each name is looked up by alice in a world where, from
// one row to the next, one thing is added that goes before the ones above it; what
// is made keeps its sandbox.
func TestNamePrecedence(t *testing.T) {
	s := newStage(t, nil)
	ctx := t.Context()
	db := s.gate.db
	users := make(map[string]store.User)
	for _, name := range []string{"alice", "bob", "carol"} {
		u, err := db.UserByName(ctx, name)
		if errors.Is(err, store.ErrNotFound) {
			u, err = db.CreateUser(ctx, name, store.RoleUser)
		}
		if err != nil {
			t.Fatal(err)
		}
		users[name] = u
	}
	ids := make(map[string]string)
	create := func(owner, name string) func() error {
		return func() error {
			row, err := db.CreateSandbox(ctx, store.Sandbox{
				ID: owner + "/" + name, UserID: users[owner].ID, Name: name, Driver: "local", Spec: []byte("{}"), Desired: store.DesiredStopped,
			})
			ids[row.ID] = row.ID
			return err
		}
	}
	share := func(id string, reads bool) func() error {
		return func() error { return db.Share(ctx, id, users["alice"].ID, reads) }
	}
	alias := func(name, id string) func() error {
		return func() error { return db.AddAlias(ctx, users["alice"].ID, name, id) }
	}
	unalias := func(name string) func() error {
		return func() error { return db.DeleteAlias(ctx, users["alice"].ID, name) }
	}
	l := &Login{gate: s.gate, user: users["alice"], log: slog.New(slog.DiscardHandler)}
	const none, several = "none", "several"
	for i, test := range []struct {
		add   func() error
		asked string
		want  string
		rel   relation
	}{
		{nil, "web", none, stranger},
		{nil, "web.bob", none, stranger},
		{nil, "web.nobody", none, stranger},
		{nil, "alice", none, stranger},
		{create("bob", "web"), "web", none, stranger}, // nothing of it is to be seen
		{nil, "web.bob", "bob/web", stranger},         // and permit hides it
		{share("bob/web", true), "web", "bob/web", readOnly},
		{nil, "web.bob", "bob/web", readOnly},
		{share("bob/web", false), "web.bob", "bob/web", granted},
		{create("carol", "web"), "web", "bob/web", granted},
		{share("carol/web", false), "web", several, stranger},
		{nil, "web.carol", "carol/web", granted},
		{create("alice", "api"), "web", several, stranger},
		{alias("web", "alice/api"), "web", "alice/api", owner},
		{nil, "web.alice", none, stranger}, // an alias is nobody else's name, nor so written
		{nil, "web.bob", "bob/web", granted},
		{unalias("web"), "web", several, stranger},
		{create("alice", "web"), "web", "alice/web", owner},
		{nil, "WEB", "alice/web", owner},
		{nil, "web.alice", "alice/web", owner},
		{nil, "web+build", "alice/web", owner},
		{create("alice", "default"), "alice", "alice/default", owner},
		{nil, "ALICE", "alice/default", owner},
		{alias("alice", "bob/web"), "alice", "bob/web", granted},
		{unalias("alice"), "alice", "alice/default", owner},
		{create("alice", "alice"), "alice", "alice/alice", owner},
		{alias("10.0.0.1", "bob/web"), "web", "alice/web", owner},
		{func() error { l.bound = "bob/web"; return nil }, "web", "bob/web", granted},
		{nil, "anything.at-all+build", "bob/web", granted},
		{nil, "John_Doe", "bob/web", granted},
		{nil, "gate", "the lobby", stranger},
	} {
		if test.add != nil {
			if err := test.add(); err != nil {
				t.Fatalf("row %d: %v", i, err)
			}
		}
		l.asked = test.asked
		got, rel := none, stranger
		target, err := l.target()
		if err == nil && target.lobby {
			got = "the lobby"
		} else if err == nil {
			var row store.Sandbox
			row, rel, err = l.lookUp(ctx, target)
			if err == nil {
				got = row.ID
			} else if p, ok := errors.AsType[*problem](err); ok && strings.HasPrefix(p.sentence, "several") {
				got = several
			} else if !errors.Is(err, store.ErrNotFound) {
				t.Errorf("row %d: %v", i, err)
			}
		}
		if got != test.want || rel != test.rel {
			t.Errorf("row %d: %q is %s, %d; want %s, %d", i, test.asked, got, rel, test.want, test.rel)
		}
	}
	// Names are taken in both directions.
	for name, err := range map[string]error{
		"alias of a sandbox's name": alias("web", "bob/web")(),
		"renamed to an alias": errors.Join(alias("www", "alice/web")(),
			db.RenameSandbox(ctx, store.Sandbox{ID: "alice/web", UserID: users["alice"].ID}, "www")),
		"sandbox of an alias's name": create("alice", "www")(),
	} {
		if !errors.Is(err, store.ErrExists) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// verbsOnSandboxes are the verbs that take a sandbox, which %s stands for.
var verbsOnSandboxes = map[deed]string{
	"info": "info %s", "start": "start %s", "stop": "stop %s", "pause": "pause %s", "fork": "fork %s other", "snapshot take": "snapshot %s", "rm": "rm --force %s", "set": "set %s --idle off",
	"setup-log": "setup-log %s", "run": "run %s -- true", "exec": "exec %s -- true", "jobs": "jobs %s", "sessions": "sessions %s",
	"logs": "logs %s/job", "attach": "attach %s/job", "wait": "wait %s/job", "kill": "kill %s/job", "job rm": "job rm %s/job",
	"service add": "service add %s --name api -- true", "service ls": "service ls %s", "service logs": "service logs %s/api",
	"service restart": "service restart %s/api", "service rm": "service rm %s/api",
	"agent": "agent %s hello", "cp": "cp %s:/etc/hostname -",
	"rename": "rename %s other", "share": "share %s alice", "unshare": "unshare %s alice", "alias add": "alias add %s mine",
	"secret set": "secret set TOKEN --sandbox %s", "secret rm": "secret rm TOKEN --sandbox %s",
	"secret rotate": "secret rotate TOKEN --sandbox %s", "secret give": "secret give GIVEN %s", "secret take": "secret take GIVEN %s",
}

// verbsOnRuns are the verbs that take an agent's run, which %s stands for.
var verbsOnRuns = map[deed]string{
	"runs show": "runs show %s", "runs attach": "runs attach %s", "runs rm": "runs rm %s", "cancel": "cancel %s",
	"approve": "approve %s", "answer": "answer %s yes", "export": "export %s",
}

// verbsOnNone are the verbs that take none.
var verbsOnNone = map[deed]bool{
	"new": true, "ls": true, "who": true, "completion": true, "complete": true, "doctor": true, "config": true, "help": true, "version": true, "invite": true,
	"user add": true, "user ls": true, "user rm": true, "user set-role": true,
	"key add": true, "key set": true, "key ls": true, "key rm": true, "key revoke": true, "alias ls": true, "alias rm": true,
	"rec ls": true, "rec play": true, "rec cat": true, "rec rm": true, "audit show": true, "audit verify": true,
	"secret ls": true, "secret rotate-key": true, "usage": true, "quota ls": true, "quota set": true, "quota rm": true,
	"runs ls": true, "snapshots": true, "snapshot rm": true,
}

// Nobody gets at another user's sandbox, by any verb, and the answer is that for
// one that is not there.
func TestOthersSandboxes(t *testing.T) {
	s := newStage(t, func(c *Config) { c.NoCreate = true })
	parser, err := kong.New(new(lobbyVerbs))
	if err != nil {
		t.Fatal(err)
	}
	for _, leaf := range parser.Model.Leaves(false) {
		if d := deedOf(leaf); verbsOnSandboxes[d] == "" && verbsOnRuns[d] == "" && !verbsOnNone[d] {
			t.Errorf("%q is not tried on another user's sandbox", d)
		}
	}
	s.must(s.bob, "new secret", nil)
	s.must(s.alice, "secret set GIVEN", []byte("the value"))
	for d, line := range verbsOnSandboxes {
		for _, name := range []string{"secret", "secret.bob", "nosuch.bob", "nosuch.nobody", "nosuch"} {
			_, stderr, code := s.verb(s.alice, fmt.Sprintf(line, name), []byte("a value"))
			want := fmt.Sprintf("sandgate: no sandbox named %q\nsandgate: hint: you have none yet", name)
			if code != int(notFound) || !strings.HasPrefix(stderr, want) {
				t.Errorf("%s %s: %d, %q", d, name, code, stderr)
			}
		}
	}
	row, err := s.gate.db.Sandboxes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.gate.db.CreateRun(t.Context(), store.Run{ID: "bobs", UserID: row[0].UserID, SandboxID: row[0].ID, Options: []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	for d, line := range verbsOnRuns {
		for _, run := range []string{"bobs", "nosuch"} {
			_, stderr, code := s.verb(s.alice, fmt.Sprintf(line, run), nil)
			if want := fmt.Sprintf("sandgate: no run %q\n", run); code != int(notFound) || !strings.HasPrefix(stderr, want) {
				t.Errorf("%s %s: %d, %q", d, run, code, stderr)
			}
		}
	}
	stdout, stderr, code := s.run(s.login("secret.bob", s.alice), "true")
	if code != 255 || stdout != "" || !strings.HasPrefix(stderr, "sandgate: no sandbox named \"secret.bob\"\n") {
		t.Errorf("%d, %q, %q", code, stdout, stderr)
	}
	if out := s.must(s.bob, "ls --json", nil); !strings.Contains(out, `"name":"secret"`) {
		t.Errorf("bob has %q", out)
	}
}

// Who may use a sandbox may not take it over, and who may read it changes nothing.
func TestSharing(t *testing.T) {
	s := newStage(t, nil)
	s.must(s.alice, "new web", nil)
	s.must(s.alice, "secret set GIVEN", []byte("the value"))
	s.must(s.bob, "secret set GIVEN", []byte("the value"))
	dir := t.TempDir()
	os.WriteFile(dir+"/f", []byte("text"), 0o600)

	s.must(s.alice, "share web bob", nil)
	c := s.login("web.alice", s.bob)
	if out, _, _ := s.run(c, "echo hi"); out != "hi\n" {
		t.Errorf("got %q", out)
	}
	for d, line := range verbsOnSandboxes {
		want := needs[d] == needOwner || needs[d] == needFull && d != "alias add"
		if _, stderr, code := s.verb(s.bob, fmt.Sprintf(line, "web.alice"), []byte("a value")); (code == int(denied)) != want {
			t.Errorf("granted, %s: %d, %q; denied should be %t", d, code, stderr, want)
		}
	}

	s.must(s.alice, "share web bob --read-only", nil) // which ends what bob had open
	c.Wait()
	for d, line := range verbsOnSandboxes {
		want := needs[d] != needSee && needs[d] != needRead && d != "alias add"
		if d == "alias add" {
			line = "alias add %s reading"
		}
		if _, stderr, code := s.verb(s.bob, fmt.Sprintf(line, "web.alice"), []byte("a value")); (code == int(denied)) != want {
			t.Errorf("read-only, %s: %d, %q; denied should be %t", d, code, stderr, want)
		}
	}
	c = s.login("web", s.bob) // by its plain name, as bob has none
	if _, stderr, code := s.run(c, "echo hi"); code != 255 || !strings.Contains(stderr, "reading only") {
		t.Errorf("exec: %d, %q", code, stderr)
	}
	if _, err := c.Dial("tcp", "127.0.0.1:1"); err == nil || !strings.Contains(err.Error(), "prohibited") {
		t.Errorf("forward: %v", err)
	}
	files, err := sftp.NewClient(c)
	if err != nil {
		t.Fatal(err)
	}
	f, err := files.Open(dir + "/f")
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(f); err != nil || string(text) != "text" {
		t.Errorf("read %q, %v", text, err)
	}
	if _, err := files.Create(dir + "/g"); err == nil {
		t.Error("made a file")
	}
	if err := files.Remove(dir + "/f"); err == nil {
		t.Error("removed a file")
	}

	// Taking it back ends what uses it, and no other connection.
	s.must(s.bob, "new own", nil)
	own := s.login("own", s.bob)
	s.must(s.alice, "unshare web bob", nil)
	c.Wait()
	if out, _, _ := s.run(own, "echo hi"); out != "hi\n" {
		t.Errorf("own: %q", out)
	}
	if _, stderr, code := s.run(s.login("web.alice", s.bob), "true"); code != 255 || !strings.HasPrefix(stderr, `sandgate: no sandbox named "web.alice"`) {
		t.Errorf("after unshare: %d, %q", code, stderr)
	}
	if _, stderr, _ := s.run(s.login("mine", s.bob), "true"); !strings.HasPrefix(stderr, `sandgate: no sandbox named "mine"`) {
		t.Errorf("by an alias: %q", stderr)
	}
}

// A grant that is taken away ends a session with a sentence.
func TestUnshareEndsSessions(t *testing.T) {
	s := newStage(t, nil)
	s.must(s.alice, "new web", nil)
	s.must(s.alice, "share web bob", nil)
	c := s.login("web.alice", s.bob)
	l := s.linger(c)
	s.must(s.alice, "unshare web bob", nil)
	l.ends(t, c, `sandbox "web.alice" is not shared with you any more`)
}
