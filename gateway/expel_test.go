package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"sandgate/agent"
	"sandgate/store"
)

// A held session is one that does not end by itself. Nobody reads its output on.
type held struct {
	what   string
	stderr *syncBuffer
	code   chan int // its exit code; closed without one
}

// hold begins a session with requests, the last of which says what to run, sends it
// input, and waits until its output has a text.
func (s *stage) hold(c *ssh.Client, what string, requests []channelRequest, input, ready string) held {
	s.t.Helper()
	ch, in, err := c.OpenChannel("session", nil)
	if err != nil {
		s.t.Fatalf("%s: %v", what, err)
	}
	h := held{what: what, stderr: new(syncBuffer), code: make(chan int, 1)}
	drained := make(chan struct{})
	go func() {
		io.Copy(h.stderr, ch.Stderr())
		close(drained)
	}()
	go func() {
		code := -1
		for r := range in {
			if r.Type == "exit-status" {
				code = int(r.Payload[3])
			}
		}
		<-drained
		if code >= 0 {
			h.code <- code
		}
		close(h.code)
	}()
	for _, r := range requests {
		if ok, err := ch.SendRequest(r.name, true, r.payload); !ok || err != nil {
			s.t.Fatalf("%s: %s: %t, %v", what, r.name, ok, err)
		}
	}
	io.WriteString(ch, input)
	var out bytes.Buffer
	piece := make([]byte, 4096)
	for !strings.Contains(out.String(), ready) {
		n, err := ch.Read(piece)
		out.Write(piece[:n])
		if err != nil {
			s.t.Fatalf("%s: %q, then %v; %s", what, &out, err, h.stderr)
		}
	}
	go io.Copy(io.Discard, ch)
	return h
}

// ends waits for the session to end with one of the gateway's codes and a sentence.
func (h held) ends(t *testing.T, sentence string) {
	t.Helper()
	select {
	case code, ok := <-h.code:
		known := code == exitGateway || code == int(denied) || code == agentDenied
		if !ok || !known || !strings.Contains(h.stderr.String(), "sandgate: "+sentence+"\n") {
			t.Errorf("%s: exit code %d (told: %t) and %q", h.what, code, ok, h.stderr)
		}
	case <-time.After(hang):
		t.Errorf("%s: goes on", h.what)
	}
}

// hang is when something does not come any more, on the slowest of machines.
const hang = 50 * time.Second

// A channelRequest is one that wants an answer.
type channelRequest struct {
	name    string
	payload []byte
}

func wireString(s string) []byte { return ssh.Marshal(struct{ S string }{s}) }

func execOf(command string) []channelRequest { return []channelRequest{{"exec", wireString(command)}} }

func subsystemOf(line string) []channelRequest {
	return []channelRequest{{"subsystem", wireString(line)}}
}

func shellOnTerminal() []channelRequest {
	return []channelRequest{{"pty-req", ssh.Marshal(struct {
		Term                string
		Columns, Rows, W, H uint32
		Modes               string
	}{"xterm", 80, 24, 0, 0, "\x00"})}, {"shell", nil}}
}

// closes waits for the end of a client's connection.
func closes(t *testing.T, what string, c *ssh.Client) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		c.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(hang):
		t.Errorf("%s: the connection lives on", what)
	}
}

// on begins SSH on a connection that is there already.
func (s *stage) on(conn net.Conn, user string, key ssh.Signer) *ssh.Client {
	s.t.Helper()
	c, channels, requests, err := ssh.NewClientConn(conn, "", &ssh.ClientConfig{
		User: user, Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	client := ssh.NewClient(c, channels, requests)
	s.t.Cleanup(func() { client.Close() })
	return client
}

// said is what a client of the agent subsystem says.
func said(words string) string {
	line, err := json.Marshal(map[string]any{"type": "user", "message": map[string]any{"role": "user", "content": words}})
	if err != nil {
		panic(err)
	}
	return string(line) + "\n"
}

const sftpInit = "\x00\x00\x00\x05\x01\x00\x00\x00\x03"

// Who loses their login is told so by whatever they have open, on each of their
// connections, and all of it ends by itself. What they left running goes on while
// they are a user, and no longer.
func TestExpelledFromEverything(t *testing.T) {
	s, _, calls := agentStage(t,
		[]agent.Block{toolUse("t1", `{"how":"wait"}`)}, []agent.Block{toolUse("t2", `{}`)}, []agent.Block{agent.Text("never")})
	s.promote()
	key := newSigner(t)
	s.must(s.alice, "key add --user bob --name laptop", authorized(key))
	s.must(key, "run --name sleeper web -- echo ready; sleep 600", nil)
	target, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()

	web, named, lobby, outer := s.login("web", key), s.login("web+build", key), s.login("gate", key), s.login("gate", key)
	tunnel, err := outer.Dial("tcp", "web:22")
	if err != nil {
		t.Fatal(err)
	}
	inner := s.on(tunnel, "", key)
	echo := "echo rea''dy\n"
	open := []held{
		s.hold(web, "command", execOf("echo ready; sleep 600"), "", "ready"),
		s.hold(web, "terminal", shellOnTerminal(), echo, "ready"),
		s.hold(web, "sftp", subsystemOf("sftp"), sftpInit, "posix-rename"),
		s.hold(web, "mcp", subsystemOf("mcp"), `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`+"\n", "protocolVersion"),
		s.hold(web, "acp", subsystemOf("acp"), `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}`+"\n", "protocolVersion"),
		s.hold(web, "agent", subsystemOf("agent"), said("poke it"), `"t1"`),
		s.hold(web, "agent's viewer", subsystemOf("agent --continue"), "", `"t1"`),
		s.hold(named, "named session", shellOnTerminal(), echo, "ready"),
		s.hold(lobby, "logs -f", execOf("logs -f web/sleeper"), "", "ready"),
		s.hold(lobby, "runs attach", execOf("runs attach --json"), "", `"t1"`),
		s.hold(inner, "command behind a jump", execOf("echo ready; sleep 600"), "", "ready"),
	}
	waitFor(t, "the agent's call", func() bool { _, ok := calls.Load("t1"); return ok })
	forward, err := web.Dial("tcp", target.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	remote, err := web.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	s.must(s.alice, "key rm --user bob laptop", nil)
	for _, h := range open {
		h.ends(t, "your key was removed")
	}
	for what, c := range map[string]*ssh.Client{"sandbox": web, "named session": named, "lobby": lobby, "jump": outer, "behind a jump": inner} {
		closes(t, what, c)
	}
	if n, err := forward.Read(make([]byte, 1)); err == nil {
		t.Errorf("the forward goes on, with %d bytes", n)
	}
	waitFor(t, "the end of the remote forward", func() bool {
		c, err := net.Dial("tcp", remote.Addr().String())
		if err == nil {
			c.Close()
		}
		return err != nil
	})

	if jobs := s.must(s.bob, "jobs web", nil); !strings.Contains(jobs, "sleeper") || !strings.Contains(jobs, "running") {
		t.Errorf("jobs of a user who lost a key: %s", jobs)
	}
	asking := s.login("web", s.bob)
	h := s.hold(asking, "question", subsystemOf("agent --approval ask"), said("poke again"), `"control_request"`)
	if at, err := s.gate.db.RunsAtWork(t.Context()); err != nil || len(at) != 2 {
		t.Errorf("%d runs are at work, %v", len(at), err)
	}
	s.must(s.alice, "user rm --force bob", nil)
	h.ends(t, "you are not a user here any more")
	closes(t, "question", asking)
	waitFor(t, "the end of the runs", func() bool {
		s.gate.runs.mu.Lock()
		defer s.gate.runs.mu.Unlock()
		return len(s.gate.runs.live) == 0
	})
	if _, asked := calls.Load("t2"); asked {
		t.Error("a call that nobody approved was made")
	}
	if left, err := s.driver.List(context.Background()); err != nil || len(left) > 0 {
		t.Errorf("sandboxes are left: %v, %v", left, err)
	}
}

// What is taken back of a sandbox ends what is done there with it, and nothing else.
func TestUnsharedEndsRuns(t *testing.T) {
	for _, verb := range []string{"unshare web bob", "share web bob --read-only"} {
		s, _, calls := agentStage(t, []agent.Block{toolUse("t1", `{"how":"wait"}`)}, []agent.Block{agent.Text("never")})
		s.must(s.alice, "new web", nil)
		s.must(s.alice, "share web bob", nil)
		shared, own := s.login("web.alice", s.bob), s.login("mine", s.bob)
		h := s.hold(shared, "agent", subsystemOf("agent"), said("poke it"), `"t1"`)
		f := s.hold(shared, "sftp", subsystemOf("sftp"), sftpInit, "posix-rename")
		waitFor(t, "the agent's call", func() bool { _, ok := calls.Load("t1"); return ok })
		s.must(s.alice, verb, nil)
		sentence := `sandbox "web.alice" is not shared with you any more`
		if strings.HasPrefix(verb, "share") {
			sentence = `sandbox "web.alice" is shared with you for reading only now`
		}
		h.ends(t, sentence)
		f.ends(t, sentence)
		closes(t, verb, shared)
		bob, err := s.gate.db.UserByName(t.Context(), "bob")
		if err != nil {
			t.Fatal(err)
		}
		runs, err := s.gate.db.RunsOf(t.Context(), bob.ID, 10)
		if err != nil || len(runs) != 1 || runs[0].State != store.RunIdle {
			t.Errorf("%s: runs %+v, %v", verb, runs, err)
		}
		if out, _, code := s.run(own, "echo hi"); out != "hi\n" || code != 0 {
			t.Errorf("%s: bob's own sandbox says %q, %d", verb, out, code)
		}
	}
}

// Who does not listen is cut off all the same.
func TestExpelledAndDeaf(t *testing.T) {
	s := newStage(t, func(c *Config) { c.farewell = 0 })
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	deaf := &deafConn{Conn: conn}
	c := s.on(deaf, "web", s.bob)
	s.hold(c, "flood", execOf("echo ready; exec cat /dev/zero"), "", "ready")
	deaf.deaf.Store(true)
	s.must(s.bob, fmt.Sprintf("key rm %s", ssh.FingerprintSHA256(s.bob.PublicKey())), nil)
	waitFor(t, "the end of the connection", func() bool { return s.gate.live.count(t, "bob") == 0 })
}
