package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/crypto/ssh"
)

// subsystem opens a channel with a subsystem. exit waits for the channel's end and
// returns the exit code, -1 if there was none.
func (s *stage) subsystem(c *ssh.Client, name string) (ch ssh.Channel, exit func() int) {
	s.t.Helper()
	ch, requests, err := c.OpenChannel("session", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { ch.Close() })
	code := make(chan int, 1)
	go func() {
		last := -1
		for req := range requests {
			var m struct{ Code uint32 }
			if req.Type == "exit-status" && ssh.Unmarshal(req.Payload, &m) == nil {
				last = int(m.Code)
			}
		}
		code <- last
	}()
	if ok, err := ch.SendRequest("subsystem", true, ssh.Marshal(struct{ Name string }{name})); err != nil || !ok {
		s.t.Fatalf("subsystem %s: %v, %v", name, ok, err)
	}
	return ch, func() int {
		select {
		case n := <-code:
			return n
		case <-time.After(hang):
			return -1
		}
	}
}

// talk connects an MCP client by the subsystem.
func (s *stage) talk(c *ssh.Client, o *mcp.ClientOptions) *mcp.ClientSession {
	s.t.Helper()
	ch, _ := s.subsystem(c, "mcp")
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, o)
	session, err := client.Connect(s.t.Context(), &mcp.IOTransport{Reader: ch, Writer: ch}, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { session.Close() })
	return session
}

func textOf(r *mcp.CallToolResult) string {
	var b strings.Builder
	for _, c := range r.Content {
		if t, ok := c.(*mcp.TextContent); ok {
			b.WriteString(t.Text)
		}
	}
	return b.String()
}

// A client lists the six tools and calls each; what it gets is as the schemas say.
func TestMCP(t *testing.T) {
	s := newStage(t, nil)
	c := s.talk(s.login("web", s.alice), nil)
	if v := c.InitializeResult().ProtocolVersion; v != mcpVersion {
		t.Errorf("the SDK speaks version %s by now", v)
	}
	list, err := c.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	schemas := make(map[string]*jsonschema.Resolved)
	var names []string
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
		raw, _ := json.Marshal(tool.OutputSchema)
		var schema jsonschema.Schema
		if err := json.Unmarshal(raw, &schema); err != nil {
			t.Fatal(err)
		}
		if schemas[tool.Name], err = schema.Resolve(nil); err != nil {
			t.Fatal(err)
		}
	}
	if fmt.Sprint(names) != "[edit exec glob grep read write]" {
		t.Errorf("the tools are %s", names)
	}
	dir := t.TempDir()
	for _, step := range []struct {
		tool string
		args map[string]any
		want string
		fail bool
	}{
		{"exec", map[string]any{"command": "cd " + dir + "; echo from exec; pwd >&2; exit 3"}, "from exec\n[stderr]\n", false},
		{"write", map[string]any{"path": "f.txt", "content": "one\ntwo\n"}, "created", false},
		{"read", map[string]any{"path": "f.txt"}, "     2\ttwo\n", false},
		{"edit", map[string]any{"path": "f.txt", "old": "two", "new": "three"}, "+three\n", false},
		{"glob", map[string]any{"pattern": "*.txt"}, "f.txt", false},
		{"grep", map[string]any{"pattern": "th.ee"}, "2:three", false},
		{"exec", map[string]any{"command": "pwd; sleep 600", "wait_s": "1"}, "running for ", false},
		{"read", map[string]any{"path": "g.txt"}, "Similar names there: f.txt", true},
		{"exec", map[string]any{"command": "kill -9 $$"}, "ended by signal KILL", false},
		{"exec", map[string]any{}, "Remedy: ", true},
	} {
		r, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: step.tool, Arguments: step.args})
		if err != nil {
			t.Fatalf("%s %v: %v", step.tool, step.args, err)
		}
		if !strings.Contains(textOf(r), step.want) || r.IsError != step.fail {
			t.Errorf("%s %v returned %q, want %q", step.tool, step.args, textOf(r), step.want)
		}
		if step.fail {
			continue
		}
		if err := schemas[step.tool].Validate(r.StructuredContent); err != nil {
			t.Errorf("%s %v returned %v: %v", step.tool, step.args, r.StructuredContent, err)
		}
		if m, ok := r.StructuredContent.(map[string]any); ok && m["running"] == true {
			c.CallTool(t.Context(), &mcp.CallToolParams{Name: "exec", Arguments: map[string]any{"job": m["job"], "signal": "KILL"}})
		}
	}
	if _, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "sudo"}); err == nil {
		t.Error("there is a tool sudo")
	}
	png := "\x89PNG\r\n\x1a\n\x00"
	c.CallTool(t.Context(), &mcp.CallToolParams{Name: "exec", Arguments: map[string]any{"command": `printf '\x89PNG\r\n\x1a\n\0' >p.png`}})
	r, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "read", Arguments: map[string]any{"path": filepath.Join(dir, "p.png")}})
	if err != nil || len(r.Content) != 2 {
		t.Fatalf("got %+v, %v", r, err)
	}
	if image, ok := r.Content[1].(*mcp.ImageContent); !ok || image.MIMEType != "image/png" || string(image.Data) != png {
		t.Errorf("got %+v", r.Content[1])
	}
}

// A client that asked for it hears how a command goes on, and one that cancels it
// has it ended.
func TestMCPProgressAndCancel(t *testing.T) {
	s := newStage(t, nil)
	heard := make(chan string, 100)
	c := s.talk(s.login("web", s.alice), &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			select {
			case heard <- r.Params.Message:
			default:
			}
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		p := &mcp.CallToolParams{Name: "exec", Arguments: map[string]any{"command": "echo begun; sleep 600"}}
		p.SetProgressToken("token")
		_, err := c.CallTool(ctx, p)
		ended <- err
	}()
	select {
	case text := <-heard:
		if text != "begun\n" {
			t.Errorf("heard %q", text)
		}
	case <-time.After(hang):
		t.Fatal("heard nothing")
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("a cancelled call has a result")
	}
	s.awaitJob(s.login("gate", s.alice), func(j listedJob) bool { return j.State == "ended" })
}

// A listedJob is one of what the lobby lists.
type listedJob struct {
	ID    string `json:"id"`
	State string `json:"state"`
}

// awaitJob waits until the only job of web is as it should be.
func (s *stage) awaitJob(gate *ssh.Client, is func(listedJob) bool) listedJob {
	s.t.Helper()
	for deadline := time.Now().Add(hang); ; time.Sleep(50 * time.Millisecond) {
		out, _, _ := s.run(gate, "jobs web --json")
		var job listedJob
		if json.Unmarshal([]byte(out), &job) == nil && is(job) {
			return job
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("waited in vain for a job, there is %s", out)
		}
	}
}

// Questions in a pipe are answered although the pipe has ended, and then the channel
// ends with 0.
func TestMCPPipe(t *testing.T) {
	s := newStage(t, nil)
	ch, exit := s.subsystem(s.login("web", s.alice), "mcp")
	io.WriteString(ch, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{"roots":{}},"clientInfo":{"name":"pipe","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"exec","arguments":{"command":"sleep 0.5; echo answered"}}}
`)
	ch.CloseWrite()
	answers, err := io.ReadAll(ch)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Count(answers, []byte("\n")) != 2 || !bytes.Contains(answers, []byte(`answered\n`)) {
		t.Errorf("got %s", answers)
	}
	if code := exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// The tools are for those who may use the sandbox, and not in the lobby.
func TestMCPDenied(t *testing.T) {
	s := newStage(t, nil)
	s.run(s.login("gate", s.alice), "new web")
	for login, key := range map[string]ssh.Signer{"web.alice": s.bob, "gate": s.alice} {
		ch, exit := s.subsystem(s.login(login, key), "mcp")
		said, _ := io.ReadAll(ch.Stderr())
		if code := exit(); code != 255 || !strings.HasPrefix(string(said), "sandgate: ") {
			t.Errorf("%s: said %q, exit code %d", login, said, code)
		}
	}
}

// A client that goes away leaves its command running: it can come back for it.
func TestMCPGone(t *testing.T) {
	s := newStage(t, nil)
	connection := s.login("web", s.alice)
	c := s.talk(connection, nil)
	go c.CallTool(t.Context(), &mcp.CallToolParams{Name: "exec", Arguments: map[string]any{"command": "sleep 600"}})
	gate := s.login("gate", s.alice)
	running := func(j listedJob) bool { return j.State == "running" }
	job := s.awaitJob(gate, running)
	connection.Close()
	time.Sleep(300 * time.Millisecond) // it would be ended at once
	s.awaitJob(gate, running)
	s.run(gate, "kill web "+job.ID)
}

// A command gets no longer than the operator allows, and is told so.
func TestMCPMaxExec(t *testing.T) {
	s := newStage(t, func(c *Config) { c.MaxExec = time.Second })
	c := s.talk(s.login("web", s.alice), nil)
	for args, want := range map[string]string{
		`{"command":"sleep 1000.25","timeout_s":50}`: "(timeout_s is at most 1 here)",
		`{"command":"sleep 1000.25"}`:                "(it was ended with all its processes as timeout_s=1 had passed; do it in smaller steps, as more cannot be had here)",
	} {
		r, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "exec", Arguments: json.RawMessage(args)})
		if err != nil || !strings.Contains(textOf(r), want) || !strings.Contains(textOf(r), "ended by timeout") {
			t.Errorf("%s: %v, %s", args, err, textOf(r))
		}
	}
}
