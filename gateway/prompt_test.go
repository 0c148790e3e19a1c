package gateway

import (
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

// A typist is a client at the prompt.
type typist struct {
	t       *testing.T
	session *ssh.Session
	keys    io.WriteCloser
	screen  *syncBuffer
	seen    int // bytes of screen
}

// sits opens the prompt, with variables for the gateway.
func (s *stage) sits(t *testing.T, key ssh.Signer, width int, env ...string) *typist {
	t.Helper()
	session, err := s.login("gate", key).NewSession()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	y := &typist{t: t, session: session, screen: new(syncBuffer)}
	session.Stdout, session.Stderr = y.screen, y.screen
	y.keys, _ = session.StdinPipe()
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		if err := session.Setenv(name, value); err != nil {
			t.Fatal(err)
		}
	}
	if err := session.RequestPty("xterm", 24, width, nil); err != nil {
		t.Fatal(err)
	}
	if err := session.Shell(); err != nil {
		t.Fatal(err)
	}
	y.sees("gate> ")
	return y
}

func (y *typist) types(s string) { io.WriteString(y.keys, s) }

// sees waits for text that was not seen before, and returns what came up to its end.
func (y *typist) sees(text string) string {
	y.t.Helper()
	var came string
	y.t.Cleanup(func() {
		if came == "" {
			y.t.Logf("the screen shows %q", y.screen)
		}
	})
	waitFor(y.t, fmt.Sprintf("%q on the screen", text), func() bool {
		all := y.screen.String()[y.seen:]
		i := strings.Index(all, text)
		if i < 0 {
			return false
		}
		came = all[:i+len(text)]
		y.seen += len(came)
		return true
	})
	return came
}

// leaves waits for the end of the session and returns its code.
func (y *typist) leaves() int {
	y.t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- y.session.Wait() }()
	select {
	case err := <-ended:
		if exit, ok := err.(*ssh.ExitError); ok {
			return exit.ExitStatus()
		} else if err != nil {
			y.t.Error(err)
		}
	case <-time.After(hang):
		y.t.Errorf("the prompt does not end; the screen shows %q", y.screen)
	}
	return 0
}

// Verbs are typed one after the other, whatever becomes of each, and the last one's
// code is the prompt's.
func TestPrompt(t *testing.T) {
	s := newStage(t, nil)
	s.must(s.alice, "new web", nil)
	y := s.sits(t, s.alice, 80)
	y.types("ls\r")
	y.sees("web   stopped")
	y.sees("gate> ")
	y.types("info nosuch\r")
	y.sees(`sandgate: no sandbox named "nosuch"`)
	y.sees("gate> ")
	y.types("info 'a\r")
	y.sees("sandgate: malformed command")
	if came := y.sees("gate> "); strings.Contains(came, "ssh gate@HOST") {
		t.Errorf("at the prompt verbs need no ssh: %q", came)
	}
	y.types("bogus\x03") // which empties the line
	y.sees("gate> ")
	y.types("\r\r")
	y.sees("gate> ")
	y.types("version\r\n")
	y.sees("sandgate test\r\n")
	y.types("stop nosuch\n")
	y.sees("you may use: web")
	y.sees("gate> ")
	y.types("\x04")
	if code := y.leaves(); code != int(notFound) {
		t.Errorf("code %d", code)
	}
	for _, word := range []string{"exit\r", " quit \r"} {
		y := s.sits(t, s.alice, 80)
		y.types(word)
		if code := y.leaves(); code != 0 {
			t.Errorf("%q: code %d", word, code)
		}
	}
}

// ^C ends a verb that reads nothing, and is for one that reads.
func TestPromptInterrupt(t *testing.T) {
	s := newStage(t, nil)
	y := s.sits(t, s.alice, 80)
	y.types("audit --follow\r")
	y.sees("login")
	y.types("forgotten\x03")
	y.sees("^C\r\n")
	y.sees("gate> ")
	y.types("secret set TOKEN\r")
	y.sees("is not shown): ")
	y.types("\x03") // which it may not read yet
	y.sees("gate> ")
	// All at once, as when it is pasted: the value is the verb's, and is not shown.
	y.types("secret set TOKEN\rhunter2-hunter2\rsecret ls\r")
	y.sees("TOKEN set\r\n")
	y.sees("TOKEN")
	y.types("exit\r")
	y.leaves()
	if strings.Contains(y.screen.String(), "hunter2") || strings.Contains(y.screen.String(), "forgotten") {
		t.Errorf("the screen shows %q", y.screen)
	}
}

// What was typed is there at the next prompt, but for mistakes and secrets. It is
// nobody else's, and not for a limited key.
func TestPromptHistory(t *testing.T) {
	s := newStage(t, nil)
	s.must(s.alice, "secret set TOKEN", []byte("hunter2-hunter2"))
	y := s.sits(t, s.alice, 80)
	for _, line := range []string{"version", "secret rm TOKEN hunter2-hunter2", "secret set OTHER other-value", " ls", "alias ls"} {
		y.types(line + "\r")
		y.sees("\r\n")
		y.sees("gate> ")
	}
	y.types("\x1b[A\x1b[A") // which in this prompt is the mistake, to be mended
	y.sees("secret set OTHER other-value")
	y.types("\x03exit\r")
	y.leaves()

	lines := func(key ssh.Signer) []string {
		l := newLoginOf(t, s, key)
		return l.loadHistory(t.Context()).lines
	}
	if got := lines(s.alice); !slices.Equal(got, []string{"version", "alias ls"}) {
		t.Errorf("kept: %q", got)
	}
	if got := lines(s.bob); len(got) > 0 {
		t.Errorf("bob's: %q", got)
	}
	limited := newSigner(t)
	s.must(s.alice, "key add --name ci --read-only", authorized(limited))
	if got := lines(limited); len(got) > 0 {
		t.Errorf("a limited key's: %q", got)
	}
	y = s.sits(t, s.alice, 80)
	y.types("\x1b[A")
	y.sees("alias ls")
}

// newLoginOf is a login without a connection.
func newLoginOf(t *testing.T, s *stage, key ssh.Signer) *Login {
	t.Helper()
	c, err := s.gate.candidate(t.Context(), ssh.FingerprintSHA256(key.PublicKey()), nil)
	if err != nil {
		t.Fatal(err)
	}
	return &Login{ctx: t.Context(), gate: s.gate, user: c.user, as: c, log: s.gate.log, remote: &net.TCPAddr{}, foreign: make(map[string]bool)}
}

// Who is no user any more is told so at the prompt, whether or not a verb runs.
func TestPromptExpelled(t *testing.T) {
	s := newStage(t, nil)
	s.promote()
	for i, typed := range []string{"", "audit --follow\r"} {
		key := newSigner(t)
		s.must(s.alice, fmt.Sprintf("key add --user bob --name key%d", i), authorized(key))
		y := s.sits(t, key, 80)
		if typed != "" {
			y.types(typed)
			y.sees("login")
		}
		s.must(s.alice, fmt.Sprintf("key rm --user bob key%d", i), nil)
		y.sees("sandgate: your key was removed")
		if code := y.leaves(); typed == "" && code != exitGateway {
			t.Errorf("%q: code %d", typed, code)
		}
	}
}

// Colours are for terminals that have them, and for those who do not mind.
func TestPromptColours(t *testing.T) {
	s := newStage(t, nil)
	if y := s.sits(t, s.alice, 80); !strings.Contains(y.screen.String(), "\x1b[1mgate> \x1b[0m") {
		t.Errorf("no colour in %q", y.screen)
	}
	if y := s.sits(t, s.alice, 80, "NO_COLOR=1"); strings.Contains(y.screen.String(), "\x1b[1m") {
		t.Errorf("colour in %q", y.screen)
	}
}

// Lists fit the terminal, whatever becomes of its width.
func TestPromptResize(t *testing.T) {
	s := newStage(t, nil)
	s.must(s.alice, "new a-sandbox-with-a-long-name", nil)
	y := s.sits(t, s.alice, 40)
	y.types("ls\r")
	y.sees("a-san…  stopped")
	y.sees("gate> ")
	if err := y.session.WindowChange(24, 120); err != nil {
		t.Fatal(err)
	}
	// A request that wants a reply comes after that.
	y.session.SendRequest("env", true, ssh.Marshal(struct{ Name, Value string }{"LANG", "C"}))
	y.types("ls\r")
	y.sees("a-sandbox-with-a-long-name  stopped")
}

// A verb that panics ends alone, with a sentence.
func TestVerbPanics(t *testing.T) {
	s := newStage(t, nil)
	c := &verbCall{ctx: t.Context(), login: newLoginOf(t, s, s.alice), stdout: panicking{}, stderr: new(syncBuffer)}
	if code := carryOut("version", c); code != int(failed) || !strings.HasPrefix(fmt.Sprint(c.stderr), "sandgate: the verb failed by a fault of the gateway\n") {
		t.Errorf("%d, %q", code, c.stderr)
	}
}

type panicking struct{}

func (panicking) Write([]byte) (int, error) { panic("written to") }

// Without a terminal, lines are verbs, up to the first that fails.
func TestScript(t *testing.T) {
	s := newStage(t, nil)
	for _, test := range []struct {
		script         string
		stdout, stderr string
		code           int
	}{
		{"# two\n\nnew web\n  new api  ", "web\napi\n", "", 0},
		{"version\ninfo nosuch\nversion\n", "sandgate test\n", "sandgate: stopped at line 2\n", int(notFound)},
		{"version\nexit\ninfo nosuch\n", "sandgate test\n", "", 0},
		{"secret set TOKEN\nversion\n", "", "sandgate: the value is empty\n", int(usage)},
		{"exec web -- cat; exit 7\nversion\n", "", "sandgate: stopped at line 1\n", 7},
		{"version " + strings.Repeat("x", maxScriptLine), "", "sandgate: a line has more than 64 KiB\n", int(usage)},
	} {
		stdout, stderr, code := s.verb(s.alice, "", []byte(test.script))
		if stdout != test.stdout || !strings.Contains(stderr, test.stderr) || code != test.code {
			t.Errorf("%.40q: %d, %q, %q", test.script, code, stdout, stderr)
		}
	}
	if stdout, _, code := s.verb(s.alice, "", nil); code != 0 || !strings.Contains(stdout, "List your sandboxes") {
		t.Errorf("nothing: %d, %q", code, stdout)
	}
}
