package gateway

import (
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"
	sshagent "golang.org/x/crypto/ssh/agent"

	"sandgate/agent"
	"sandgate/store"
)

// connectionID is the id that the gateway knows a client's connection by.
func (s *stage) connectionID(c *ssh.Client) string {
	s.t.Helper()
	s.gate.live.mu.Lock()
	defer s.gate.live.mu.Unlock()
	for l := range s.gate.live.logins {
		if l.remote.String() == c.LocalAddr().String() && l.outer == nil {
			return l.id
		}
	}
	s.t.Fatal("the gateway does not know the connection")
	return ""
}

// audited waits for a row of the audit.
func (s *stage) audited(what string, match func(store.AuditRow) bool) {
	s.t.Helper()
	var all []store.AuditRow
	for began := time.Now(); time.Since(began) < hang; time.Sleep(50 * time.Millisecond) {
		err := s.gate.auditor.written(s.t.Context())
		if err == nil {
			all, err = s.gate.db.Audit(s.t.Context(), store.AuditFilter{}, 10_000)
		}
		if err != nil {
			s.t.Fatal(err)
		}
		for _, r := range all {
			if match(r) {
				return
			}
		}
	}
	s.t.Errorf("%s is not in the audit:", what)
	for _, r := range all {
		s.t.Logf("%s %s %q %q %s %s %q", r.Conn, r.Remote, r.User, r.Sandbox, r.Kind, r.Outcome, r.Detail)
	}
}

// Whatever is done on a connection leaves a row with the connection's id.
func TestAuditHasARowForEach(t *testing.T) {
	ca := newSigner(t)
	_, model := newFakeModel(t, []agent.Block{toolUse("t1", `{"at":"x"}`)}, []agent.Block{agent.Text("Done.")})
	s := newStage(t, func(c *Config) {
		c.UserCAs = []ssh.PublicKey{ca.PublicKey()}
		c.Agent, c.tools = AgentConfig{AnthropicURL: model}, poke(new(sync.Map))
	})
	s.must(s.bob, "new web --forward-agent", nil)
	s.must(s.alice, "new hers", nil)
	s.must(s.bob, "secret set TOKEN --sandbox web", []byte("a-value-of-a-secret"))
	s.must(s.bob, "secret set ANTHROPIC_API_KEY", []byte("a-key-of-the-model"))
	target, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	dir := t.TempDir()
	exec := func(command string) func(*testing.T, *ssh.Client) {
		return func(_ *testing.T, c *ssh.Client) { s.run(c, command) }
	}
	type row struct{ kind, outcome, detail string }
	for name, test := range map[string]struct {
		login string
		do    func(*testing.T, *ssh.Client)
		rows  []row
	}{
		"connection": {"web", func(*testing.T, *ssh.Client) {}, []row{{auditConnection, auditOK, ""}, {auditLogin, auditOK, "as web with SHA256:"}}},
		"end of one": {"web", func(_ *testing.T, c *ssh.Client) { c.Close() }, []row{{auditConnection, auditOK, " bytes out: by the client"}}},
		"channel": {"web", func(t *testing.T, c *ssh.Client) {
			session, err := c.NewSession()
			if err != nil {
				t.Fatal(err)
			}
			session.Close()
		}, []row{{auditChannel, auditOK, "session"}}},
		"too many channels": {"web", func(t *testing.T, c *ssh.Client) {
			for range maxChannels + 1 {
				if _, requests, err := c.OpenChannel("session", nil); err == nil {
					go ssh.DiscardRequests(requests)
				}
			}
		}, []row{{auditChannel, auditDenied, "too many channels"}}},
		"exec": {"web", exec("echo a-value-of-a-secret"), []row{{auditExec, auditOK, "echo [redacted]"}, {auditSecret, auditOK, "TOKEN"}}},
		"shell": {"web", func(t *testing.T, c *ssh.Client) {
			s.hold(c, "shell", shellOnTerminal(), "echo rea''dy\n", "ready")
		}, []row{{auditShell, auditOK, ""}}},
		"files": {"web", func(t *testing.T, c *ssh.Client) {
			client, err := sftp.NewClient(c)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			f, err := client.Create(filepath.Join(dir, "made"))
			if err != nil {
				t.Fatal(err)
			}
			f.Close()
			client.Mkdir("/proc/nosuch")
			client.Remove(filepath.Join(dir, "made"))
		}, []row{
			{auditFile, auditOK, fmt.Sprintf("write %q", filepath.Join(dir, "made"))}, {auditFile, auditOK, "remove "},
			{auditFile, auditFailed, "mkdir \"/proc/nosuch\""},
		}},
		"forward": {"web", func(t *testing.T, c *ssh.Client) {
			if conn, err := c.Dial("tcp", target.Addr().String()); err == nil {
				conn.Close()
			}
			c.Dial("tcp", "127.0.0.1:1")
		}, []row{{auditForward, auditOK, "to " + target.Addr().String()}, {auditForward, auditFailed, "to 127.0.0.1:1: "}}},
		"forward of nothing": {"gate", func(t *testing.T, c *ssh.Client) {
			c.Dial("tcp", target.Addr().String())
			c.Listen("tcp", "127.0.0.1:0")
		}, []row{{auditForward, auditDenied, "to " + target.Addr().String()}, {auditForward, auditDenied, "from 127.0.0.1:0"}}},
		"remote forward": {"web", func(t *testing.T, c *ssh.Client) {
			l, err := c.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			conn, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if in, err := l.Accept(); err == nil {
				in.Close()
			}
		}, []row{{auditForward, auditOK, "from 127.0.0.1:0"}, {auditChannel, auditOK, "forwarded from 127.0.0.1:"}}},
		"ssh-agent": {"web", func(t *testing.T, c *ssh.Client) {
			if err := sshagent.ForwardToAgent(c, sshagent.NewKeyring()); err != nil {
				t.Fatal(err)
			}
			session, err := c.NewSession()
			if err == nil {
				err = sshagent.RequestAgentForwarding(session)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer session.Close()
			session.Run("true")
		}, []row{{auditForward, auditOK, "ssh-agent"}}},
		"jump": {"gate", func(t *testing.T, c *ssh.Client) {
			conn, err := c.Dial("tcp", "web:22")
			if err != nil {
				t.Fatal(err)
			}
			conn.Close()
		}, []row{{auditChannel, auditOK, "jump to web"}}},
		"tool over MCP": {"web", func(t *testing.T, c *ssh.Client) {
			_, err := s.talk(c, nil).CallTool(t.Context(), &mcp.CallToolParams{Name: "exec", Arguments: map[string]any{"command": "echo hi"}})
			if err != nil {
				t.Error(err)
			}
		}, []row{{auditTool, auditOK, "exec echo hi"}}},
		"approval": {"web", func(t *testing.T, c *ssh.Client) {
			w := s.agent(t, c, "agent --approval ask")
			w.say(said("poke it"))
			q := w.until("control_request")
			answer, _ := json.Marshal(map[string]any{"type": "control_response", "response": map[string]any{
				"request_id": q[len(q)-1]["request_id"], "response": map[string]any{"behavior": "allow"},
			}})
			w.say(string(answer) + "\n")
			w.until("result")
			run := q[0]["session_id"]
			for kind, detail := range map[string]string{auditSecret: "ANTHROPIC_API_KEY for the model", auditTool: "poke"} {
				s.audited("what the run did", func(r store.AuditRow) bool {
					return r.Conn == run && r.Kind == kind && strings.HasPrefix(r.Detail, detail) && r.User == "bob" && r.Sandbox == "web.bob"
				})
			}
		}, []row{{auditApproval, auditOK, " allowed"}}},
		"service": {"gate", exec("service add web --name api -- sleep 600"), []row{
			{auditVerb, auditOK, "service add web"}, {auditSecret, auditOK, "TOKEN for service api"},
		}},
		"verb":                       {"gate", exec("ls"), []row{{auditVerb, auditOK, "ls"}}},
		"refusal of a verb":          {"gate", exec("user add eve"), []row{{auditVerb, auditDenied, "user add eve: only an admin"}}},
		"refusal of a sandbox":       {"hers.alice", exec("id"), []row{{auditExec, auditDenied, "hers.alice id: no sandbox"}}},
		"refusal of a sandbox's job": {"gate", exec("run hers.alice -- id"), []row{{auditVerb, auditDenied, "no sandbox"}}},
		"refusal of files": {"hers.alice", func(t *testing.T, c *ssh.Client) {
			if client, err := sftp.NewClient(c); err == nil {
				client.Close()
			}
		}, []row{{auditFile, auditDenied, "no sandbox"}}},
		"refusal of tools": {"hers.alice", func(t *testing.T, c *ssh.Client) {
			_, exit := s.subsystem(c, "mcp")
			exit()
		}, []row{{auditTool, auditDenied, "no sandbox"}}},
		"refusal of a forward": {"hers.alice", func(t *testing.T, c *ssh.Client) {
			c.Dial("tcp", target.Addr().String())
		}, []row{{auditForward, auditDenied, "no sandbox"}}},
	} {
		t.Run(name, func(t *testing.T) {
			c := s.login(test.login, s.bob)
			id := s.connectionID(c)
			test.do(t, c)
			for _, want := range test.rows {
				s.audited(name, func(r store.AuditRow) bool {
					known := r.User == "bob" || want.kind == auditConnection && want.detail == "" // before the login
					where := r.Sandbox == "web.bob"
					switch want.kind {
					case auditConnection, auditLogin, auditChannel, auditVerb: // of none, or of whichever
						where = true
					default:
						where = where || want.outcome == auditDenied
					}
					return r.Conn == id && r.Remote != "" && known && where &&
						r.Kind == want.kind && r.Outcome == want.outcome && strings.Contains(r.Detail, want.detail)
				})
			}
		})
	}
	t.Run("login that fails", func(t *testing.T) {
		conn, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		key := newSigner(t)
		if _, _, _, err := ssh.NewClientConn(conn, "", &ssh.ClientConfig{
			User: "web", Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
		}); err == nil {
			t.Fatal("let in")
		}
		id := ""
		s.audited("the key", func(r store.AuditRow) bool {
			found := r.Remote == conn.LocalAddr().String() && r.Kind == auditLogin && r.Outcome == auditDenied && strings.Contains(r.Detail, ssh.FingerprintSHA256(key.PublicKey()))
			if found {
				id = r.Conn
			}
			return found
		})
		s.audited("the end of the connection", func(r store.AuditRow) bool {
			return r.Conn == id && r.Kind == auditConnection && r.Outcome == auditDenied && strings.HasSuffix(r.Detail, ": "+errNoKey.Error())
		})
	})
	t.Run("terminal that is not permitted", func(t *testing.T) {
		c := s.login("web", certify(t, ca, func(c *ssh.Certificate) { c.Extensions, c.ValidPrincipals = nil, []string{"bob"} }))
		id := s.connectionID(c)
		session, err := c.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		if session.RequestPty("xterm", 24, 80, nil) == nil {
			t.Error("has a terminal")
		}
		s.audited("the refusal", func(r store.AuditRow) bool {
			return r.Conn == id && r.Kind == auditChannel && r.Outcome == auditDenied && strings.HasPrefix(r.Detail, "terminal: ")
		})
	})
	t.Run("service of a sandbox that is woken", func(t *testing.T) {
		s.must(s.bob, "stop web", nil)
		s.must(s.bob, "start web", nil)
		s.audited("the secret", func(r store.AuditRow) bool {
			return r.Conn == "" && r.User == "bob" && r.Sandbox == "web.bob" && r.Kind == auditSecret && r.Detail == "TOKEN for service api"
		})
	})
	t.Run("connection that is ended", func(t *testing.T) {
		c := s.login("web", s.bob)
		id := s.connectionID(c)
		s.must(s.bob, "key rm "+ssh.FingerprintSHA256(s.bob.PublicKey()), nil)
		closes(t, "the connection", c)
		s.audited("the end", func(r store.AuditRow) bool {
			return r.Conn == id && r.Kind == auditConnection && r.Outcome == auditDenied && strings.HasSuffix(r.Detail, ": your key was removed")
		})
	})
	if _, _, err := s.gate.db.VerifyAudit(t.Context()); err != nil {
		t.Error(err)
	}
}
