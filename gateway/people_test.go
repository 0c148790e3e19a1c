package gateway

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"sandgate/store"
)

// promote makes alice an admin.
func (s *stage) promote() {
	s.t.Helper()
	ctx := s.t.Context()
	user, err := s.gate.db.UserByName(ctx, "alice")
	if err == nil {
		err = s.gate.db.SetRole(ctx, user.ID, store.RoleAdmin)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// authorized is a key's line as in authorized_keys.
func authorized(key ssh.Signer) []byte { return ssh.MarshalAuthorizedKey(key.PublicKey()) }

// verb runs a verb with input on a connection of its own.
func (s *stage) verb(key ssh.Signer, verb string, input []byte) (stdout, stderr string, code int) {
	s.t.Helper()
	c := s.login("gate", key)
	defer c.Close()
	session, err := c.NewSession()
	if err != nil {
		s.t.Fatal(err)
	}
	defer session.Close()
	var out, errs bytes.Buffer
	session.Stdin, session.Stdout, session.Stderr = bytes.NewReader(input), &out, &errs
	err = session.Run(verb)
	if exit, ok := errors.AsType[*ssh.ExitError](err); ok {
		code = exit.ExitStatus()
	} else if err != nil {
		s.t.Fatalf("%s: %v", verb, err)
	}
	return out.String(), errs.String(), code
}

// must runs a verb that has to succeed.
func (s *stage) must(key ssh.Signer, verb string, input []byte) string {
	s.t.Helper()
	out, stderr, code := s.verb(key, verb, input)
	if code != 0 {
		s.t.Fatalf("%s: %d, %s", verb, code, stderr)
	}
	return out
}

// A lingering is a session whose command does not end.
type lingering struct {
	session *ssh.Session
	stderr  *syncBuffer
}

func (s *stage) linger(c *ssh.Client) lingering {
	s.t.Helper()
	l, err := startLingering(c)
	if err != nil {
		s.t.Fatal(err)
	}
	return l
}

func startLingering(c *ssh.Client) (lingering, error) {
	session, err := c.NewSession()
	if err != nil {
		return lingering{}, err
	}
	stderr := new(syncBuffer)
	session.Stderr = stderr
	session.StdinPipe()
	out, _ := session.StdoutPipe()
	if err := session.Start("echo ready; sleep 600"); err != nil {
		return lingering{}, err
	}
	_, err = io.ReadFull(out, make([]byte, 6))
	return lingering{session, stderr}, err
}

// endsInTime has somebody log in with what lasts for a time, and begin something before
// that is over: on a slow machine the time has to be longer.
func (s *stage) endsInTime(make func(lasts time.Duration) ssh.Signer) (key ssh.Signer) {
	s.t.Helper()
	for lasts := 2 * time.Second; lasts < time.Minute; lasts *= 2 {
		key = make(lasts)
		c, err := s.dial("web", ssh.PublicKeys(key))
		if err != nil {
			continue
		}
		if l, err := startLingering(c); err == nil {
			l.ends(s.t, c, "your login ended: it was valid until")
			return key
		}
	}
	s.t.Fatal("logging in takes longer than a minute")
	return nil
}

// ends waits for the session to end with a sentence, and for its connection.
func (l lingering) ends(t testing.TB, c *ssh.Client, sentence string) {
	t.Helper()
	ended := make(chan error, 1)
	go func() {
		err := l.session.Wait()
		c.Wait()
		ended <- err
	}()
	select {
	case err := <-ended:
		exit, ok := errors.AsType[*ssh.ExitError](err)
		if !ok || exit.ExitStatus() != 255 || !strings.Contains(l.stderr.String(), "sandgate: "+sentence) {
			t.Errorf("ended with %v and %q, want %q", err, l.stderr, sentence)
		}
	case <-time.After(hang):
		t.Errorf("%q: still there", sentence)
	}
}

// Whatever takes a login away ends what it is doing, at once and with a reason,
// and leaves others alone.
func TestRevokingEndsConnections(t *testing.T) {
	s := newStage(t, nil)
	s.promote()
	bystander := s.linger(s.login("web", s.alice))
	for i, test := range []struct{ verb, sentence string }{
		{"key rm --user bob key0", "your key was removed"},
		{"key revoke %s", "what you logged in with was revoked"},
		{"user set-role bob admin", "your role was changed"},
		{"user rm --force bob", "you are not a user here any more"},
	} {
		key := newSigner(t)
		s.must(s.alice, fmt.Sprintf("key add --user bob --name key%d", i), authorized(key))
		c := s.login("web", key)
		l := s.linger(c)
		other := s.login("web", s.bob)
		if strings.Contains(test.verb, "%s") {
			test.verb = fmt.Sprintf(test.verb, ssh.FingerprintSHA256(key.PublicKey()))
		}
		s.must(s.alice, test.verb, nil)
		l.ends(t, c, test.sentence)
		_, err := s.dial("web", ssh.PublicKeys(key))
		if keeps := strings.Contains(test.verb, "set-role"); (err == nil) != keeps {
			t.Errorf("after %s, logging in again: %v", test.verb, err)
		}
		if strings.HasPrefix(test.verb, "key") {
			if out, _, _ := s.run(other, "echo hi"); out != "hi\n" {
				t.Errorf("after %s, another key's connection says %q", test.verb, out)
			}
		}
	}
	if s.gate.live.count(s.t, "alice") == 0 {
		t.Error("the admin's connections were ended too")
	}
	bystander.session.Close()
}

// count is how many connections a user has.
func (v *live) count(t testing.TB, name string) (n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for l := range v.logins {
		if l.user.Name == name {
			n++
		}
	}
	return n
}

// A revoked login can do nothing on its connection in the second that it has left.
func TestRevokedLoginDoesNothing(t *testing.T) {
	s := newStage(t, nil)
	c := s.login("gate", s.bob)
	bob, _ := s.gate.db.UserByName(t.Context(), "bob")
	if err := s.gate.db.DeleteKey(t.Context(), bob.ID, ssh.FingerprintSHA256(s.bob.PublicKey())); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"ls", "new web", "key add", "rm --all --force"} {
		if _, stderr, code := s.run(c, verb); code != int(denied) || !strings.Contains(stderr, "not valid any more") {
			t.Errorf("%s: %d, %q", verb, code, stderr)
		}
	}
}

func TestLastAdmin(t *testing.T) {
	s := newStage(t, nil)
	s.promote()
	fingerprint := ssh.FingerprintSHA256(s.alice.PublicKey())
	limited := newSigner(t)
	s.must(s.alice, "key add --name short --expires 1h", authorized(limited)) // does not count: it ends
	for _, verb := range []string{"key rm " + fingerprint, "key revoke " + fingerprint, "user rm alice", "user set-role alice user",
		"key set " + fingerprint + " --read-only", "key set " + fingerprint + " --expires 1h"} {
		if _, stderr, code := s.verb(s.alice, verb, nil); code != int(conflict) || !strings.Contains(stderr, "no admin would be left") {
			t.Errorf("%s: %d, %q", verb, code, stderr)
		}
	}
	s.must(s.alice, "user set-role bob admin", nil)
	s.must(s.bob, "user set-role alice user", nil)
	if _, stderr, code := s.verb(s.alice, "user ls", nil); code != int(denied) || !strings.Contains(stderr, "only an admin") {
		t.Errorf("no admin any more: %d, %q", code, stderr)
	}
}

func TestInvite(t *testing.T) {
	s := newStage(t, nil)
	s.promote()
	invite := func(by ssh.Signer, verb string) string {
		t.Helper()
		_, code, ok := strings.Cut(strings.TrimSpace(s.must(by, verb, nil)), "invite-")
		if !ok {
			t.Fatal("no invite")
		}
		code, _, _ = strings.Cut(code, "@")
		return code
	}
	code := invite(s.alice, "invite carol")
	carol := newSigner(t)
	c := s.login("invite-"+strings.ToUpper(code), carol)
	if out, _, rc := s.run(c, ""); rc != 0 || !strings.Contains(out, "Welcome, carol") {
		t.Errorf("%d, %q", rc, out)
	}
	if out, _, _ := s.run(s.login("web", carol), "echo hi"); out != "hi\n" {
		t.Errorf("got %q", out)
	}
	stranger := newSigner(t)
	for name, login := range map[string]string{
		"used": "invite-" + code, "wrong": "invite-" + strings.Repeat("a", len(code)), "none": "invite-", "short": "invite-abc",
	} {
		if _, err := s.dial(login, ssh.PublicKeys(stranger)); err == nil {
			t.Errorf("%s: let in", name)
		}
	}
	// A key that is registered already does not use an invite up, nor give it away.
	unused := invite(s.alice, "invite dave")
	if _, stderr, rc := s.run(s.login("invite-"+unused, carol), "true"); rc != 255 || !strings.Contains(stderr, "is registered, as carol's") {
		t.Errorf("a known key: %d, %q", rc, stderr)
	}
	if strings.Contains(s.log.String(), unused) {
		t.Error("the log has a code that is good still")
	}
	s.login("invite-"+unused, newSigner(t))
	// A user invites their own other key, nobody else, and what has expired is void.
	code = invite(s.bob, "invite")
	if out := s.must(s.bob, "key ls", nil); strings.Contains(out, code) {
		t.Error("the code is listed")
	}
	second := newSigner(t)
	s.login("invite-"+code, second)
	if out := s.must(second, "key ls --json", nil); strings.Count(out, "\n") != 2 {
		t.Errorf("bob has the keys %s", out)
	}
	if _, _, rc := s.verb(s.bob, "invite alice", nil); rc != int(denied) {
		t.Errorf("inviting another user: %d", rc)
	}
	bob, _ := s.gate.db.UserByName(t.Context(), "bob")
	late := strings.Repeat("b", len(code))
	s.gate.db.CreateInvite(t.Context(), inviteHash(late), bob.ID, time.Now().Add(-time.Second))
	if _, err := s.dial("invite-"+late, ssh.PublicKeys(stranger)); err == nil {
		t.Error("an expired invite lets in")
	}
}

// Of many who come with one invite, one is let in.
func TestInviteRace(t *testing.T) {
	s := newStage(t, nil)
	s.promote()
	out := s.must(s.alice, "invite carol", nil)
	_, code, _ := strings.Cut(out, "invite-")
	code, _, _ = strings.Cut(code, "@")
	in := make(chan bool)
	for range 8 {
		go func() {
			_, err := s.dial("invite-"+code, ssh.PublicKeys(newSigner(t)))
			in <- err == nil
		}()
	}
	n := 0
	for range 8 {
		if <-in {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d were let in", n)
	}
}

func TestKeyLimits(t *testing.T) {
	s := newStage(t, nil)
	s.must(s.bob, "new web", nil)
	s.must(s.bob, "new api", nil)
	add := func(flags string) ssh.Signer {
		t.Helper()
		key := newSigner(t)
		s.must(s.bob, "key add "+flags, authorized(key))
		return key
	}
	check := func(key ssh.Signer, login, command string, want int, says string) {
		t.Helper()
		out, stderr, code := s.run(s.login(login, key), command)
		if code != want || !strings.Contains(out+stderr, says) {
			t.Errorf("%s: %s: %d, %q", login, command, code, out+stderr)
		}
	}
	web := add("--name ci --sandboxes web")
	check(web, "web", "echo hi", 0, "hi")
	check(web, "api", "echo hi", 255, `no sandbox named "api"`)
	check(web, "other", "echo hi", 255, `no sandbox named "other"`)
	check(web, "gate", "ls", 0, "web")
	check(web, "gate", "info api", int(notFound), "you may use: web")
	check(web, "gate", "key add", int(denied), "does not allow key add")

	reader := add("--read-only")
	check(reader, "gate", "info web", 0, "web")
	check(reader, "web", "id", 255, "reading only")
	check(reader, "gate", "stop web", int(denied), "reading only")

	make := add("--command 'echo built' --command sftp")
	check(make, "web", "echo built", 0, "built")
	check(make, "web", "echo built; id", 255, "may only run")
	check(make, "gate", "ls", int(denied), "may only run")

	verbs := add("--verbs ls,info")
	check(verbs, "gate", "ls", 0, "web")
	check(verbs, "gate", "rm web", int(denied), "may only run")
	check(verbs, "web", "id", 255, "may only run")

	if out := s.must(s.bob, "key ls", nil); !strings.Contains(out, "sandboxes web") || !strings.Contains(out, `command "echo built"`) {
		t.Errorf("key ls: %s", out)
	}
	for _, wrong := range []string{"--expires yesterday", "--expires 2001-01-01", "--expires -1h", "--verbs nosuch", "--sandboxes ../x"} {
		if _, _, code := s.verb(s.bob, "key add "+wrong, authorized(newSigner(t))); code != int(usage) {
			t.Errorf("%s: %d", wrong, code)
		}
	}
	for _, wrong := range []string{"", "nonsense", "ssh-ed25519 AAAA", "command=\"x\" " + string(authorized(newSigner(t)))} {
		if _, _, code := s.verb(s.bob, "key add", []byte(wrong)); code != int(usage) {
			t.Errorf("%.30q: %d", wrong, code)
		}
	}
}

// A key that expires while somebody is logged in with it ends that too.
func TestKeyExpires(t *testing.T) {
	s := newStage(t, nil)
	key := s.endsInTime(func(lasts time.Duration) ssh.Signer {
		key := newSigner(t)
		s.must(s.bob, fmt.Sprintf("key add --expires %s", lasts), authorized(key))
		return key
	})
	var banner string
	_, err := ssh.Dial("tcp", s.addr, &ssh.ClientConfig{
		User: "web", Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
		BannerCallback: func(m string) error { banner = m; return nil },
	})
	if err == nil || !strings.HasPrefix(banner, "sandgate: your key expired at ") {
		t.Errorf("after its time: %v, told %q", err, banner)
	}
}

// certify signs a certificate for alice with what change makes of it.
func certify(t *testing.T, ca ssh.Signer, change func(*ssh.Certificate)) ssh.Signer {
	t.Helper()
	key := newSigner(t)
	cert := &ssh.Certificate{
		Key: key.PublicKey(), CertType: ssh.UserCert, KeyId: "test", Serial: 7, ValidPrincipals: []string{"alice"},
		ValidBefore: uint64(time.Now().Add(time.Hour).Unix()),
		Permissions: ssh.Permissions{Extensions: map[string]string{
			"permit-pty": "", "permit-port-forwarding": "", "permit-agent-forwarding": "",
		}, CriticalOptions: map[string]string{}},
	}
	if change != nil {
		change(cert)
	}
	if err := cert.SignCert(rand.Reader, ca); err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewCertSigner(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

func TestCertificates(t *testing.T) {
	ca := newSigner(t)
	s := newStage(t, func(c *Config) { c.UserCAs = []ssh.PublicKey{ca.PublicKey()} })
	option := func(name, value string) func(*ssh.Certificate) {
		return func(c *ssh.Certificate) { c.CriticalOptions[name] = value }
	}
	for name, test := range map[string]struct {
		ca     ssh.Signer
		change func(*ssh.Certificate)
		in     bool
	}{
		"valid":               {ca, nil, true},
		"second principal":    {ca, func(c *ssh.Certificate) { c.ValidPrincipals = []string{"ops", "alice"} }, true},
		"for ever":            {ca, func(c *ssh.Certificate) { c.ValidBefore = ssh.CertTimeInfinity }, true},
		"from here":           {ca, option(sourceAddress, "10.0.0.0/8,127.0.0.0/8"), true},
		"from elsewhere":      {ca, option(sourceAddress, "10.0.0.0/8"), false},
		"malformed address":   {ca, option(sourceAddress, "here"), false},
		"unknown authority":   {newSigner(t), nil, false},
		"other principal":     {ca, func(c *ssh.Certificate) { c.ValidPrincipals = []string{"web", "root", "*", "nobody"} }, false},
		"a host's":            {ca, func(c *ssh.Certificate) { c.CertType = ssh.HostCert }, false},
		"expired":             {ca, func(c *ssh.Certificate) { c.ValidBefore = uint64(time.Now().Add(-time.Second).Unix()) }, false},
		"not yet":             {ca, func(c *ssh.Certificate) { c.ValidAfter = uint64(time.Now().Add(time.Minute).Unix()) }, false},
		"verify-required":     {ca, option("verify-required", ""), false},
		"unknown option":      {ca, option("unheard-of", ""), false},
		"signed by a user":    {s.alice, nil, false},
		"times past all time": {ca, func(c *ssh.Certificate) { c.ValidBefore = 1 << 63 }, false},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := s.dial("web", ssh.PublicKeys(certify(t, test.ca, test.change)))
			if (err == nil) != test.in {
				t.Fatalf("logging in: %v", err)
			}
			if err == nil {
				if out, _, _ := s.run(c, "echo hi"); out != "hi\n" {
					t.Errorf("got %q", out)
				}
			}
		})
	}

	t.Run("forced command", func(t *testing.T) {
		key := certify(t, ca, option(forceCommand, `echo "asked: $SSH_ORIGINAL_COMMAND"`))
		if out, _, _ := s.run(s.login("web", key), "id"); out != "asked: id\n" {
			t.Errorf("got %q", out)
		}
		if _, _, code := s.run(s.login("gate", key), "ls"); code != int(denied) {
			t.Errorf("a verb: %d", code)
		}
	})
	t.Run("nothing permitted", func(t *testing.T) {
		c := s.login("web", certify(t, ca, func(c *ssh.Certificate) { c.Extensions = nil }))
		if _, err := c.Dial("tcp", "127.0.0.1:1"); err == nil || !strings.Contains(err.Error(), "prohibited") {
			t.Errorf("forward: %v", err)
		}
		if _, err := c.Listen("tcp", "127.0.0.1:0"); err == nil {
			t.Error("listens")
		}
		session, err := c.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		if err := session.RequestPty("xterm", 24, 80, nil); err == nil {
			t.Error("has a terminal")
		}
	})
	t.Run("revoked", func(t *testing.T) {
		s.promote()
		for i, what := range []string{"serial=%d", "id=k%d", "SHA256"} {
			key := certify(t, ca, func(c *ssh.Certificate) { c.Serial, c.KeyId = uint64(100+i), fmt.Sprintf("k%d", i) })
			c := s.login("web", key)
			l := s.linger(c)
			switch i {
			case 0:
				what = "serial=100"
			case 1:
				what = "id=k1"
			case 2:
				what = ssh.FingerprintSHA256(key.PublicKey().(*ssh.Certificate).Key)
			}
			s.must(s.alice, "key revoke "+what, nil)
			l.ends(t, c, "what you logged in with was revoked")
			if _, err := s.dial("web", ssh.PublicKeys(key)); err == nil {
				t.Errorf("%s: logged in again", what)
			}
		}
		c := s.login("web", certify(t, ca, nil)) // others are not touched
		l := s.linger(c)
		s.must(s.alice, "key revoke "+ssh.FingerprintSHA256(ca.PublicKey()), nil)
		l.ends(t, c, "what you logged in with was revoked")
		if _, err := s.dial("web", ssh.PublicKeys(certify(t, ca, nil))); err == nil {
			t.Error("a revoked authority is trusted")
		}
	})
	t.Run("ends", func(t *testing.T) {
		other := newSigner(t)
		s := newStage(t, func(c *Config) { c.UserCAs = []ssh.PublicKey{other.PublicKey()} })
		s.endsInTime(func(lasts time.Duration) ssh.Signer {
			return certify(t, other, func(c *ssh.Certificate) { c.ValidBefore = uint64(time.Now().Add(lasts + time.Second).Unix()) })
		})
	})
}

// A skSigner is a FIDO key, touched or not.
type skSigner struct {
	public  ssh.PublicKey
	private ed25519.PrivateKey
	flags   byte
}

const skApplication = "ssh:"

func newSK(t *testing.T) *skSigner {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.ParsePublicKey(ssh.Marshal(struct {
		Name        string
		Key         []byte
		Application string
	}{ssh.KeyAlgoSKED25519, public, skApplication}))
	if err != nil {
		t.Fatal(err)
	}
	return &skSigner{public: key, private: private}
}

func (k *skSigner) PublicKey() ssh.PublicKey { return k.public }

func (k *skSigner) Sign(_ io.Reader, data []byte) (*ssh.Signature, error) {
	app, message := sha256.Sum256([]byte(skApplication)), sha256.Sum256(data)
	counter := binary.BigEndian.AppendUint32([]byte{k.flags}, 1)
	signed := bytes.Join([][]byte{app[:], counter, message[:]}, nil)
	return &ssh.Signature{Format: ssh.KeyAlgoSKED25519, Blob: ed25519.Sign(k.private, signed), Rest: counter}, nil
}

// A FIDO key has to be touched, unless it was added as one that need not.
func TestFIDO(t *testing.T) {
	s := newStage(t, nil)
	for _, test := range []struct {
		flags string
		touch byte
		in    bool
	}{{"", 1, true}, {"", 0, false}, {"--no-touch", 0, true}, {"--no-touch", 1, true}} {
		key := newSK(t)
		s.must(s.bob, "key add "+test.flags, authorized(key))
		key.flags = test.touch
		if _, err := s.dial("gate", ssh.PublicKeys(key)); (err == nil) != test.in {
			t.Errorf("key add %s, flags %d: %v", test.flags, test.touch, err)
		}
	}
	_, stderr, code := s.verb(s.bob, "key add", append([]byte("verify-required "), authorized(newSK(t))...))
	if code != int(usage) || !strings.Contains(stderr, "cannot tell whether a PIN was entered") {
		t.Errorf("verify-required: exit code %d, %s", code, stderr)
	}
}

func TestUserConnsAreBounded(t *testing.T) {
	s := newStage(t, func(c *Config) { c.UserConns = 3 })
	var last *ssh.Client
	for range 3 {
		last = s.login("gate", s.bob)
	}
	if _, err := s.dial("gate", ssh.PublicKeys(s.bob)); err == nil {
		t.Error("a fourth connection")
	}
	s.login("gate", s.alice)
	last.Close()
	waitFor(t, "a place for another connection", func() bool { return s.gate.live.count(t, "bob") == 2 })
	s.login("gate", s.bob)

	terms := *s.gate.terms.Load()
	terms.UserConns = 4
	if err := s.gate.SetTerms(terms); err != nil {
		t.Fatal(err)
	}
	s.login("gate", s.bob)
	if _, err := s.dial("gate", ssh.PublicKeys(s.bob)); err == nil {
		t.Error("a fifth connection under the new terms")
	}
}

func TestParseExpiry(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for in, want := range map[string]string{
		"": "0001-01-01T00:00:00Z", "12h": "2026-12-01T00:00:00Z", "30d": "2026-12-30T12:00:00Z", "2027-01-31": "2027-01-31T00:00:00Z",
		"2026-12-01T00:00:00+01:00": "2026-11-30T23:00:00Z",
		"0h":                        "", "-1d": "", "d": "", "x": "", "2026-11-30": "", "99999999d": "",
	} {
		got, err := parseExpiry(in, now)
		if (err == nil) != (want != "") || err == nil && got.Format(time.RFC3339) != want {
			t.Errorf("parseExpiry(%q) = %v, %v", in, got, err)
		}
	}
}

// A user who is looked up is read anew, so a name can be given to somebody else.
func TestUserRemovedAndMadeAgain(t *testing.T) {
	s := newStage(t, nil)
	s.promote()
	s.must(s.bob, "new web", nil)
	if _, _, code := s.verb(s.alice, "user rm bob", nil); code != int(conflict) {
		t.Errorf("removed with sandboxes: %d", code)
	}
	s.must(s.alice, "user rm --force bob", nil)
	if all, _ := s.driver.List(context.Background()); len(all) != 0 {
		t.Errorf("sandboxes are left: %v", all)
	}
	s.must(s.alice, "user add bob", nil)
	key := newSigner(t)
	s.must(s.alice, "key add --user bob", authorized(key))
	if out := s.must(key, "ls --json", nil); out != "" {
		t.Errorf("the new bob has %s", out)
	}
}
