package gateway

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"golang.org/x/crypto/ssh"

	"sandgate/store"
)

// verbLines are the verbs as they are used on a sandbox, which %s is. Those that are
// not here are used as in "stop web".
var verbLines = map[deed]string{
	"set": "set %s --no-forward-agent", "rm": "rm --force %s", "rename": "rename %s web", "new": "new fresh",
	"share": "share %s dave", "unshare": "unshare %s dave",
	"alias add": "alias add %s other", "alias rm": "alias rm none", "alias ls": "alias ls",
	"run": "run %s -- true", "exec": "exec %s -- true",
	"attach": "attach %s/none", "kill": "kill %s/none", "job rm": "job rm %s/none", "logs": "logs %s/none", "wait": "wait %s/none",
	"service add": "service add --name x %s -- sleep 600", "service restart": "service restart %s/x",
	"service rm": "service rm %s/x", "service logs": "service logs %s/none",
	"secret set": "secret set ONE --sandbox %s", "secret rotate": "secret rotate ONE --sandbox %s", "secret rm": "secret rm ONE --sandbox %s",
	"secret give": "secret give TOKEN %s", "secret take": "secret take TOKEN %s", "secret ls": "secret ls", "secret rotate-key": "secret rotate-key",
	"agent": "agent %s hello", "cancel": "cancel run-none", "approve": "approve run-none", "answer": "answer run-none yes",
	"runs ls": "runs", "runs show": "runs show run-none", "runs attach": "runs attach run-none", "runs rm": "runs rm run-none", "export": "export run-none",
	"audit show": "audit", "audit verify": "audit verify", "rec ls": "rec ls", "rec play": "rec play none", "rec cat": "rec cat none", "rec rm": "rec rm none",
	"usage": "usage", "quota ls": "quota ls", "quota set": "quota set sandboxes 5", "quota rm": "quota rm sandboxes",
	"key ls": "key ls", "key add": "key add", "key set": "key set none --name other", "key rm": "key rm none", "key revoke": "key revoke serial=7", "invite": "invite",
	"user ls": "user ls", "user add": "user add eve", "user rm": "user rm eve", "user set-role": "user set-role eve admin",
	"ls": "ls", "config": "config", "help": "help", "version": "version", "who": "who", "doctor": "doctor", "completion": "completion bash",
	"fork": "fork %s copy", "snapshot rm": "snapshot rm none", "snapshots": "snapshots",
	"cp": "cp %s:/etc/hostname -",
}

// Every verb of the grammar, carried out by everybody whom a sandbox can have to do
// with, is refused as the policy says, and not refused otherwise.
func TestEveryVerbAsksThePolicy(t *testing.T) {
	parser, err := kong.New(new(lobbyVerbs))
	if err != nil {
		t.Fatal(err)
	}
	var verbs []deed
	for _, leaf := range parser.Model.Leaves(false) {
		if d := deedOf(leaf); d != "rm" {
			verbs = append(verbs, d)
		}
	}
	verbs = append(verbs, "rm") // after which there is nothing to try

	s := newStage(t, nil)
	ctx := context.Background()
	s.promote()
	keys := map[string]ssh.Signer{"alice": s.alice, "bob": s.bob, "expired": newSigner(t), "revoked": newSigner(t)}
	for _, name := range []string{"carol", "dave", "mallory"} {
		keys[name] = newSigner(t)
		s.must(s.alice, "user add "+name, nil)
		s.must(s.alice, "key add --user "+name, authorized(keys[name]))
	}
	s.must(s.alice, "user set-role bob admin", nil)
	s.must(s.bob, "user set-role alice user", nil) // no column is an admin's
	s.must(s.alice, "new web", nil)
	s.must(s.alice, "share web bob", nil)
	s.must(s.alice, "share web carol --read-only", nil)
	s.must(s.alice, "share web dave", nil)
	for _, name := range []string{"alice", "carol", "dave", "mallory"} {
		s.must(keys[name], "secret set TOKEN", []byte("some-value"))
	}

	// Logged in while it was allowed.
	alice, err := s.gate.db.UserByName(ctx, "alice")
	if err != nil {
		t.Fatal(err)
	}
	late := make(map[string]*ssh.Client)
	for _, name := range []string{"expired", "revoked"} {
		s.must(s.alice, "key add --name "+name, authorized(keys[name]))
		late[name] = s.login("gate", keys[name])
	}
	public := keys["expired"].PublicKey()
	fingerprint := ssh.FingerprintSHA256(public)
	if err := s.gate.db.DeleteKey(ctx, alice.ID, fingerprint); err != nil {
		t.Fatal(err)
	}
	if _, err := s.gate.db.AddKey(ctx, store.Key{
		UserID: alice.ID, Fingerprint: fingerprint, Type: public.Type(), Blob: public.Marshal(), Expires: time.Now().Add(-time.Minute),
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.gate.db.Revoke(ctx, ssh.FingerprintSHA256(keys["revoked"].PublicKey())); err != nil {
		t.Fatal(err)
	}

	for _, column := range []struct {
		name     string
		client   *ssh.Client
		sandbox  string
		relation relation
		invalid  bool
	}{
		{"expired key", late["expired"], "web", owner, true},
		{"revoked key", late["revoked"], "web", owner, true},
		{"stranger", s.login("gate", keys["mallory"]), "web.alice", stranger, false},
		{"read-only", s.login("gate", keys["carol"]), "web.alice", readOnly, false},
		{"granted", s.login("gate", keys["dave"]), "web.alice", granted, false},
		{"owner", s.login("gate", keys["alice"]), "web", owner, false},
	} {
		t.Run(column.name, func(t *testing.T) {
			for _, verb := range verbs {
				line, ok := verbLines[verb]
				if !ok {
					line = string(verb) + " %s"
				}
				r := request{deed: verb}
				if strings.Contains(line, "%s") {
					line = fmt.Sprintf(line, column.sandbox)
					r.sandbox, r.relation = column.sandbox, column.relation
				}
				if verb == "alias add" {
					r.deed = "info" // it is what the name is to them that counts
				}
				var w who
				if column.invalid {
					w.invalid = "not valid any more"
				}
				session, err := column.client.NewSession()
				if err != nil {
					t.Fatal(err)
				}
				stderr := new(syncBuffer)
				session.Stderr = stderr
				if strings.HasPrefix(line, "secret ") { // others read none, and may be done before it is sent
					session.Stdin = strings.NewReader("some-other-value")
				}
				code := 0
				if err := session.Run(line); err != nil && err != io.EOF { // which is that of the input
					exit, ok := err.(*ssh.ExitError)
					if !ok {
						t.Fatalf("%s: %v", line, err)
					}
					code = exit.ExitStatus()
				}
				session.Close()
				said := stderr.String()
				switch err := permit(w, r); {
				case err == errHidden && (code != int(notFound) || !strings.Contains(said, "no sandbox named")):
					t.Errorf("%s: exit code %d, and not that there is no such sandbox: %s", line, code, said)
				case err != nil && err != errHidden && code != int(denied):
					t.Errorf("%s: exit code %d, and not denied: %s", line, code, said)
				case err == nil && (code == int(denied) || strings.Contains(said, "no sandbox named")):
					t.Errorf("%s: refused: exit code %d, %s", line, code, said)
				case code == int(usage) && verb != "key add":
					t.Errorf("%s is not understood, so it shows nothing: verbLines has to say how %q is used: %s", line, verb, said)
				}
			}
		})
	}
}
