package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"

	"sandgate/sandbox/guest"
)

func TestMain(m *testing.M) {
	if guest.IsGuest(os.Args) {
		os.Exit(guest.Main(os.Args))
	}
	goleak.VerifyTestMain(m)
}

// The first trap of gliderlabs/ssh: with no handlers of its own it lets everybody
// in, whatever callbacks there are.
func TestNoKeyNoSession(t *testing.T) {
	s := newStage(t, nil)
	stranger := newSigner(t)
	for name, auth := range map[string][]ssh.AuthMethod{
		"none":                  nil,
		"unknown key":           {ssh.PublicKeys(stranger)},
		"password":              {ssh.Password("x")},
		"keyboard-interactive":  {ssh.KeyboardInteractive(func(string, string, []string, []bool) ([]string, error) { return nil, nil })},
		"known key, not signed": {ssh.PublicKeys(forged{s.alice})},
	} {
		t.Run(name, func(t *testing.T) {
			if c, err := s.dial("web", auth...); err == nil {
				c.Close()
				t.Fatal("logged in")
			}
		})
	}
}

// forged is a signer that offers a key it does not have.
type forged struct{ ssh.Signer }

func (forged) Sign(rand io.Reader, data []byte) (*ssh.Signature, error) {
	return &ssh.Signature{Format: ssh.KeyAlgoED25519, Blob: make([]byte, 64)}, nil
}

// The second trap: identity is the key that signed, whichever were offered and in
// whatever order. The callbacks are called as package ssh does: one for each key
// that is offered, the other for the one that signed.
func TestAUTH02IdentityIsTheKeyThatSigned(t *testing.T) {
	s := newStage(t, nil)
	client, front := greeted(t)
	defer client.Close()
	ctx := contextWith{frontKey: front, offerKey: offer{}}
	for order := range 30 {
		cfg := s.gate.serverConfig(ctx)
		perms := make(map[ssh.Signer]*ssh.Permissions)
		offered := []ssh.Signer{s.alice, s.bob, s.alice, s.bob}
		mathrand.Shuffle(len(offered), func(i, j int) { offered[i], offered[j] = offered[j], offered[i] })
		for _, key := range offered {
			p, err := cfg.PublicKeyCallback(connMeta{front}, key.PublicKey())
			if err != nil {
				t.Fatal(err)
			}
			if loginOf(p) != nil {
				t.Fatal("a key that was merely offered is a login")
			}
			perms[key] = p
		}
		for key, name := range map[ssh.Signer]string{s.alice: "alice", s.bob: "bob"} {
			p, err := cfg.VerifiedPublicKeyCallback(connMeta{front}, key.PublicKey(), perms[key], ssh.KeyAlgoED25519)
			if err != nil || loginOf(p) == nil || loginOf(p).user.Name != name {
				t.Fatalf("order %d: %s's key logs in as %+v, %v", order, name, loginOf(p), err)
			}
		}
	}
}

// contextWith is a connection's context with values.
type contextWith map[contextKey]any

func (c contextWith) Value(key any) any { return c[key.(contextKey)] }

// connMeta is what package ssh tells of a connection.
type connMeta struct{ *frontConn }

func (connMeta) User() string          { return "web" }
func (connMeta) SessionID() []byte     { return nil }
func (connMeta) ClientVersion() []byte { return nil }
func (connMeta) ServerVersion() []byte { return nil }

// Six unknown keys are many; five and then the right one are normal.
func TestAUTH01ManyKeys(t *testing.T) {
	s := newStage(t, nil)
	var keys []ssh.Signer
	for range 5 {
		keys = append(keys, newSigner(t))
	}
	if _, err := s.dial("gate", ssh.PublicKeys(append(keys, s.alice)...)); err != nil {
		t.Errorf("five unknown keys before the right one: %v", err)
	}
}

// The third trap: a session's end ends what it runs, though its connection and
// the other sessions on it live on.
func TestSessionEndsWithItsChannel(t *testing.T) {
	s := newStage(t, nil)
	c := s.login("web", s.alice)
	dir := t.TempDir()
	lasting, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer lasting.Close()
	in, _ := lasting.StdinPipe()
	out, _ := lasting.StdoutPipe()
	if err := lasting.Start("cat"); err != nil {
		t.Fatal(err)
	}
	short, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	short.StdinPipe()
	ready, _ := short.StdoutPipe()
	if err := short.Start("echo ready; cat; touch " + dir + "/ended"); err != nil {
		t.Fatal(err)
	}
	io.ReadFull(ready, make([]byte, 6))
	short.Close()
	waitFor(t, "end of the closed session's command", func() bool {
		_, err := os.Stat(dir + "/ended")
		return err == nil
	})
	io.WriteString(in, "still here")
	got := make([]byte, 10)
	if _, err := io.ReadFull(out, got); err != nil || string(got) != "still here" {
		t.Errorf("got %q, %v", got, err)
	}
}

// However soon a session ends, the client has been told before that it has begun.
func TestReplyComesBeforeTheEnd(t *testing.T) {
	s := newStage(t, nil)
	c := s.login("gate", s.alice)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 100 {
				session, err := c.NewSession()
				if err != nil {
					t.Error(err)
					return
				}
				if err := session.Run("version"); err != nil {
					t.Errorf("version: %v", err)
				}
				session.Close()
			}
		})
	}
	all.Wait()
}

// recorder is a channel that notes what is sent on it.
type recorder struct {
	ssh.Channel
	sent []string
}

func (r *recorder) SendRequest(name string, _ bool, _ []byte) (bool, error) {
	r.sent = append(r.sent, name)
	return false, nil
}

func (r *recorder) CloseWrite() error {
	r.sent = append(r.sent, "eof")
	return nil
}

func (r *recorder) Close() error {
	r.sent = append(r.sent, "close")
	return nil
}

// After the end of output a client may close the channel at once, and the status
// would be lost.
func TestStatusComesBeforeTheEndOfOutput(t *testing.T) {
	for name, exit := range map[string]guest.Exit{"exit-status": {Code: 7}, "exit-signal": {Signal: "KILL"}} {
		r := new(recorder)
		(&session{ch: r, login: &Login{front: new(frontConn)}}).finish(status{exit: exit})
		if got := strings.Join(r.sent, " "); got != name+" eof close" {
			t.Errorf("sent %s", got)
		}
	}
}

// What a client sends before it closes a channel arrives, whether or not the
// other direction has ended, and however slowly it is read.
func TestForwardDeliversWhatWasSentBeforeTheClose(t *testing.T) {
	s := newStage(t, nil)
	client := s.login("web", s.alice)
	for name, answerEnds := range map[string]bool{"answer ended": true, "answer open": false} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		received := make(chan int64, 1)
		go func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			if answerEnds {
				conn.(*net.TCPConn).CloseWrite()
			}
			time.Sleep(300 * time.Millisecond)
			n, _ := io.Copy(io.Discard, conn)
			received <- n
		}()
		conn, err := client.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if answerEnds {
			io.Copy(io.Discard, conn)
		}
		const size = 2 << 20 // what fits into the channel's window
		if _, err := conn.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		conn.Close()
		if n := <-received; n != size {
			t.Errorf("%s: %d bytes arrived of %d", name, n, size)
		}
	}
}

func waitFor(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(hang); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if cond() {
			return
		}
	}
	t.Fatalf("waited in vain: %s", what)
}

// The fourth trap: requests that nobody reads hold up the connection. They are
// read before a command runs, while it runs, and where it does not care.
func TestManyResizesBlockNothing(t *testing.T) {
	s := newStage(t, nil)
	c := s.login("web", s.alice)
	flood := func(session *ssh.Session) {
		for i := range 2000 {
			if err := session.WindowChange(20+i%50, 80); err != nil {
				t.Fatal(err)
			}
		}
	}
	idle, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	flood(idle)
	busy, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	busy.StdinPipe()
	if err := busy.RequestPty("xterm", 24, 80, nil); err != nil {
		t.Fatal(err)
	}
	flood(busy)
	if err := busy.Start("sleep 600"); err != nil {
		t.Fatal(err)
	}
	flood(busy)
	if out, _, code := s.run(c, "echo hi"); out != "hi\n" || code != 0 {
		t.Errorf("got %q, %d", out, code)
	}
}

// A panic in one channel is that channel's end and nobody else's.
func TestPanicEndsOneChannel(t *testing.T) {
	var log syncBuffer
	g := &Gateway{log: slog.New(slog.NewTextHandler(&log, nil))}
	serve := g.guarded(func(context.Context, *Login, *ssh.ServerConn, ssh.NewChannel) { panic("on purpose") })
	login := &Login{gate: g, ctx: t.Context(), channels: make(chan struct{}, 1)}
	login.begun.Do(func() {})
	conn := &ssh.ServerConn{Conn: quietConn{}, Permissions: &ssh.Permissions{ExtraData: map[any]any{loginKey: login}}}
	ch := new(rejected)
	serve(nil, conn, ch, nil)
	if ch.reason != ssh.ResourceShortage || !strings.Contains(log.String(), "on purpose") {
		t.Errorf("rejected for %v, log %s", ch.reason, &log)
	}
}

// quietConn is a connection of a client without a name.
type quietConn struct{ ssh.Conn }

func (quietConn) ClientVersion() []byte { return nil }

// rejected is a channel that remembers why it was refused.
type rejected struct {
	ssh.NewChannel
	reason ssh.RejectionReason
}

func (*rejected) ChannelType() string { return "session" }

func (r *rejected) Reject(reason ssh.RejectionReason, message string) error {
	r.reason = reason
	return nil
}

// A gateway that stops waits for those who are about to end, tells the others why,
// and leaves their commands running.
func TestShutdown(t *testing.T) {
	s := newStage(t, func(c *Config) { c.Drain = time.Second })
	c := s.login("web", s.alice)
	session, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	var stderr syncBuffer
	session.Stderr = &stderr
	session.StdinPipe()
	dir := t.TempDir()
	if err := session.Start("touch " + dir + "/started; while ! test -e " + dir + "/go; do sleep 0.05; done; touch " + dir + "/done"); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "start", func() bool { _, err := os.Stat(dir + "/started"); return err == nil })
	ended := make(chan error, 1)
	go func() { ended <- session.Wait() }()
	// One that has not logged in must not hold up the end.
	idle, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	err = <-ended
	exit, ok := errors.AsType[*ssh.ExitError](err)
	if !ok || exit.ExitStatus() != 255 || !strings.HasPrefix(stderr.String(), "sandgate: the gateway is going down for an update") {
		t.Errorf("session ended with %v and %q", err, stderr.String())
	}
	os.WriteFile(dir+"/go", nil, 0o600)
	waitFor(t, "the command's own end", func() bool { _, err := os.Stat(dir + "/done"); return err == nil })
}

// Many first connections at once make one sandbox.
func TestFirstConnectionsMakeOneSandbox(t *testing.T) {
	s := newStage(t, nil)
	for round := range 4 {
		name := fmt.Sprintf("box%d", round)
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() {
				c, err := s.dial(name, ssh.PublicKeys(s.alice))
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				if out, _, _ := s.run(c, "echo hi"); out != "hi\n" {
					t.Errorf("got %q", out)
				}
			})
		}
		wg.Wait()
		if all, _ := s.driver.List(t.Context()); len(all) != round+1 {
			t.Fatalf("%d sandboxes after %d names", len(all), round+1)
		}
	}
}

func TestNoCreate(t *testing.T) {
	s := newStage(t, func(c *Config) { c.NoCreate = true })
	_, stderr, code := s.run(s.login("typo", s.alice), "true")
	if code != 255 || !strings.HasPrefix(stderr, "sandgate: no sandbox named \"typo\"\n") {
		t.Errorf("%d, %q", code, stderr)
	}
	s.run(s.login("gate", s.alice), "new web")
	if out, _, _ := s.run(s.login("web", s.alice), "echo hi"); out != "hi\n" {
		t.Errorf("got %q", out)
	}
}

// A sandbox that dies under its sessions ends them with a sentence, and the next
// use starts it again.
func TestSandboxDies(t *testing.T) {
	s := newStage(t, nil)
	c := s.login("web", s.alice)
	session, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	var stderr syncBuffer
	session.Stderr = &stderr
	out, _ := session.StdoutPipe()
	session.StdinPipe()
	if err := session.Start("echo ready; sleep 600"); err != nil {
		t.Fatal(err)
	}
	io.ReadFull(out, make([]byte, 6))
	all, _ := s.driver.List(t.Context())
	if err := s.driver.Stop(t.Context(), all[0].ID); err != nil {
		t.Fatal(err)
	}
	err = session.Wait()
	exit, ok := errors.AsType[*ssh.ExitError](err)
	if !ok || exit.ExitStatus() != 255 && exit.ExitStatus() != 137 {
		t.Errorf("ended with %v and %q", err, stderr.String())
	}
	if out, _, _ := s.run(c, "echo hi"); out != "hi\n" {
		t.Errorf("got %q", out)
	}
}

// Silent and slow clients are let go when the time for a login is over.
func TestLoginGrace(t *testing.T) {
	s := newStage(t, func(c *Config) { c.LoginGrace = 500 * time.Millisecond })
	for _, first := range []string{"", "SSH-2.0-x\r\n", "S"} {
		conn, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		io.WriteString(conn, first)
		conn.SetReadDeadline(time.Now().Add(hang))
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a client that says %q is kept", first)
		}
	}
}

// Whatever a client sends as its requests' payloads, the session stays well.
func FuzzRequests(f *testing.F) {
	f.Add("env", []byte{0, 0, 0, 1, 'A', 0, 0, 0, 0})
	f.Add("pty-req", ssh.Marshal(struct {
		Term       string
		C, R, W, H uint32
		Modes      string
	}{"xterm", 80, 24, 0, 0, "\x00"}))
	f.Add("window-change", make([]byte, 16))
	f.Add("signal", []byte{0, 0, 0, 4, 'T', 'E', 'R', 'M'})
	f.Fuzz(func(t *testing.T, typ string, payload []byte) {
		s := &session{login: &Login{}, ctx: context.Background()}
		switch typ {
		case "env":
			if s.setenv(payload) && (len(s.env) != 1 || bytes.Contains(s.env[0], []byte{0})) {
				t.Errorf("took %q", s.env)
			}
		case "pty-req":
			if s.requestTerminal(payload) && strings.Contains(s.terminal.Term, "\x00") {
				t.Errorf("took %q", s.terminal.Term)
			}
		case "window-change":
			s.resize(payload)
		case "signal":
			if s.signal(payload) {
				t.Error("signalled nothing")
			}
		}
	})
}

func TestEnvAllowed(t *testing.T) {
	for name, want := range map[string]bool{
		"LANG": true, "LC_ALL": true, "TERM": true, "COLORTERM": true, "NO_COLOR": true, "TZ": true,
		"GIT_AUTHOR_NAME": true, "GIT_COMMITTER_EMAIL": true, "SANDGATE_FOO": true, "SANDGATE_a1": true,
		"": false, "LC_": false, "lang": false, "PATH": false, "HOME": false, "LD_PRELOAD": false, "BASH_ENV": false,
		"ENV": false, "IFS": false, "DOCKER_HOST": false, "SSH_AUTH_SOCK": false, "--split-string": false, "-u": false,
		"A=B": false, "SANDGATE_A=B": false, "SANDGATE_\n": false, "LC_ALL=x": false, "GIT_SSH_COMMAND": false,
	} {
		if got := envAllowed(name); got != want {
			t.Errorf("envAllowed(%q) = %t", name, got)
		}
	}
}

func TestParseTarget(t *testing.T) {
	for in, want := range map[string]string{
		"web": "web", "WEB": "web", "gate": "gate", "Gate": "gate", "web.alice": "web.alice", "web+build": "web+build",
		"web.alice+b1": "web.alice+b1", "a": "a", "1": "1", "a-b": "a-b", strings.Repeat("a", 63): strings.Repeat("a", 63),
		"": "", "root": "", "admin": "", "all": "", "help": "", "gate+x": "", "gate.alice": "", "-a": "", "a-": "", "a_b": "",
		"a b": "", "a%2Bb": "", "a:b": "", "a@b": "", "a#b": "", "+box": "", "alice+": "", "alice++box": "", "alice+box+x": "",
		".alice": "", "web.": "", "web.a.b": "", "../x": "", "a/b": "", "wéb": "", "a\x00": "", strings.Repeat("a", 64): "", "$(id)": "",
	} {
		got, err := parseTarget(in)
		if (err == nil) != (want != "") || err == nil && got.String() != want {
			t.Errorf("parseTarget(%q) = %q, %v; want %q", in, got.String(), err, want)
		}
	}
}

// What parses prints back the same, folded, and has only valid names.
func FuzzParseTarget(f *testing.F) {
	for _, s := range []string{"web", "web.alice+x", "gate", "a++b", "K"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := parseTarget(s)
		if err != nil {
			return
		}
		if again, err := parseTarget(got.String()); err != nil || again != got {
			t.Errorf("%q: %q parses to %q, %v", s, got.String(), again.String(), err)
		}
		if got.String() != strings.ToLower(s) {
			t.Errorf("%q prints back as %q", s, got.String())
		}
	})
}
