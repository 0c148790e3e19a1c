package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"sandgate/agent"
	"sandgate/agent/scripted"
	"sandgate/sandbox"
	"sandgate/store"
)

// newFakeModel serves a model that says turns.
func newFakeModel(t testing.TB, turns ...[]agent.Block) (*scripted.Model, string) {
	m := scripted.New(turns...)
	s := httptest.NewServer(m)
	t.Cleanup(s.Close)
	return m, s.URL
}

func toolUse(id, input string) agent.Block {
	return agent.Block{Type: agent.ToolUseBlock, ID: id, Name: "poke", Input: json.RawMessage(input)}
}

// poke is a tool that says what it was told, and waits if it is told to.
func poke(calls *sync.Map) toolbox {
	return func(store.Run, *runPast, func(context.Context) (*sandbox.Lease, error)) toolset {
		do := func(ctx context.Context, id string, input json.RawMessage, p func(agent.Progress)) (agent.Result, error) {
			n, _ := calls.LoadOrStore(id, new(int))
			*n.(*int)++
			p(agent.Progress{Stream: "stdout", Text: "poking", Bytes: 6})
			if strings.Contains(string(input), "wait") {
				<-ctx.Done()
			}
			return agent.Result{Text: "poked " + string(input)}, nil
		}
		return toolset{tools: []agent.Tool{{
			Spec: agent.Spec{Name: "poke", Description: "Poke.", Schema: json.RawMessage(`{"type":"object"}`)},
			Call: do, Recover: do,
		}}, done: func() {}}
	}
}

// agentStage is a gateway with a model.
func agentStage(t *testing.T, turns ...[]agent.Block) (*stage, *scripted.Model, *sync.Map) {
	m, url := newFakeModel(t, turns...)
	calls := new(sync.Map)
	s := newStage(t, func(c *Config) {
		c.Agent = AgentConfig{AnthropicURL: url, AnthropicKey: "operators-key"}
		c.tools = poke(calls)
	})
	return s, m, calls
}

// A wire is a subsystem as a client has it.
type wire struct {
	t      *testing.T
	ch     ssh.Channel
	out    *bufio.Reader
	stderr bytes.Buffer
	code   chan int
	read   chan struct{} // closed when stderr has ended
}

func (s *stage) agent(t *testing.T, c *ssh.Client, line string) *wire {
	t.Helper()
	ch, requests, err := c.OpenChannel("session", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ch.Close() })
	w := &wire{t: t, ch: ch, out: bufio.NewReaderSize(ch, 1<<20), code: make(chan int, 1), read: make(chan struct{})}
	go func() {
		for r := range requests {
			if r.Type == "exit-status" {
				w.code <- int(r.Payload[3])
			}
		}
		close(w.code)
	}()
	go func() {
		io.Copy(&w.stderr, ch.Stderr())
		close(w.read)
	}()
	if ok, err := ch.SendRequest("subsystem", true, ssh.Marshal(struct{ Name string }{line})); err != nil || !ok {
		t.Fatalf("subsystem %s: %v, %v", line, ok, err)
	}
	return w
}

func (w *wire) say(s string) {
	w.t.Helper()
	if _, err := io.WriteString(w.ch, s); err != nil {
		w.t.Fatal(err)
	}
}

// next returns the next event, or nil at the end.
func (w *wire) next() map[string]any {
	w.t.Helper()
	line, err := w.out.ReadBytes('\n')
	if err == io.EOF {
		return nil
	}
	var e map[string]any
	if err == nil {
		err = json.Unmarshal(line, &e)
	}
	if err != nil {
		w.t.Fatalf("%v in %q", err, line)
	}
	return e
}

// until returns the events up to the first of a type.
func (w *wire) until(typ string) []map[string]any {
	w.t.Helper()
	var all []map[string]any
	for e := w.next(); e != nil; e = w.next() {
		all = append(all, e)
		if e["type"] == typ {
			return all
		}
	}
	w.t.Fatalf("no %s in %v; stderr %q", typ, all, w.stderr.String())
	return nil
}

func (w *wire) exit() int {
	w.t.Helper()
	for w.next() != nil {
	}
	<-w.read
	code, ok := <-w.code
	if !ok {
		w.t.Error("no exit status")
	}
	return code
}

// inOrder checks that events that are kept are numbered from first without a gap.
func inOrder(t *testing.T, events []map[string]any, first float64) {
	t.Helper()
	for _, e := range events {
		seq, kept := e["seq"].(float64)
		if !kept {
			continue
		}
		if seq != first {
			t.Errorf("event %v where %v was due", seq, first)
		}
		first = seq + 1
	}
}

func TestAgentPrompt(t *testing.T) {
	s, m, _ := agentStage(t, []agent.Block{agent.Text("I poke."), toolUse("t1", `{"at":"x"}`)}, []agent.Block{agent.Text("Done.")}, []agent.Block{agent.Text("More.")})
	w := s.agent(t, s.login("web", s.alice), "agent --partials")
	w.say("poke it")
	w.ch.CloseWrite()
	events := w.until("result")
	if events[0]["subtype"] != "init" || events[0]["sandbox"] != "web" {
		t.Errorf("first: %v", events[0])
	}
	inOrder(t, events, 1)
	ids := make(map[any]bool)
	for _, e := range events {
		if ids[e["uuid"]] = true; e["sandbox"] != "web" || e["session_id"] != events[0]["session_id"] || e["ts"] == nil {
			t.Errorf("a line without what all have: %v", e)
		}
	}
	if len(ids) != len(events) {
		t.Errorf("%d names of %d events", len(ids), len(events))
	}
	last := events[len(events)-1]
	if last["result"] != "Done." || last["subtype"] != "success" || w.exit() != 0 {
		t.Errorf("last: %v", last)
	}
	if init := events[0]; init["mcp_version"] != mcpVersion || init["acp_version"] != float64(acpVersion) || init["cwd"] != "~" || init["driver"] != "local" {
		t.Errorf("first: %v", init)
	}
	count := make(map[string]int)
	for _, e := range events {
		count[e["type"].(string)]++
		if e["type"] == "tool_progress" && (e["tool_use_id"] != "t1" || e["tool"] != "poke" || e["stdout"] != "poking" || e["elapsed_ms"] == nil || e["bytes"] != 6.0) {
			t.Errorf("progress: %v", e)
		}
		if e["type"] == "usage" && (e["sandbox_seconds"] == nil || e["context_size"] == nil) {
			t.Errorf("usage: %v", e)
		}
	}
	if count["stream_event"] == 0 || count["tool_progress"] != 1 || count["usage"] != 2 {
		t.Errorf("events: %v", count)
	}
	for _, e := range s.whole(t, "agent --continue", "more") {
		if e["type"] == "stream_event" {
			t.Errorf("a piece that nobody wanted: %v", e)
		}
	}
	if !strings.Contains(m.Requests()[1], `poked {\"at\":\"x\"}`) {
		t.Errorf("the model was told %s", m.Requests()[1])
	}
	for _, e := range events {
		if b, _ := json.Marshal(e); strings.Contains(string(b), "operators-key") {
			t.Errorf("the key is in %s", b)
		}
	}
}

// whole returns all that the agent subsystem says to a prompt.
func (s *stage) whole(t *testing.T, line, prompt string) (all []map[string]any) {
	t.Helper()
	w := s.agent(t, s.login("web", s.alice), line)
	w.say(prompt)
	w.ch.CloseWrite()
	for e := w.next(); e != nil; e = w.next() {
		all = append(all, e)
	}
	return all
}

func TestAgentBadRequests(t *testing.T) {
	s, _, _ := agentStage(t, []agent.Block{agent.Text("Done.")})
	for _, tt := range []struct {
		line, in string
		code     int
		says     string
	}{
		{"agent --nonsense", "", 2, "nonsense"},
		{"agent --max-steps=-1", "x", 2, "range"},
		{"agent --approval sometimes", "x", 2, "sometimes"},
		{"agent --allow exec: --approval allow-list", "x", 2, "not a rule"},
		{"agent --base-url file:///etc", "x", 2, "not a URL"},
		{"agent", "", 2, "there is no prompt"},
		{"agent", "{\"type\":\"nonsense\"}\n", 2, "nonsense"},
		{"agent 'unclosed", "", 2, "malformed"},
		{"agent --resume run-none", "", 1, "no run"},
	} {
		w := s.agent(t, s.login("web", s.alice), tt.line)
		io.WriteString(w.ch, tt.in) // which may be refused before it is read
		w.ch.CloseWrite()
		if code := w.exit(); code != tt.code || !strings.Contains(w.stderr.String(), tt.says) || strings.Count(w.stderr.String(), "\n") > 2 {
			t.Errorf("%s: exit %d: %s", tt.line, code, w.stderr.String())
		}
	}
}

func TestAgentDuplex(t *testing.T) {
	s, _, calls := agentStage(t,
		[]agent.Block{toolUse("t1", `{}`)}, []agent.Block{agent.Text("One.")},
		[]agent.Block{toolUse("t2", `{"how":"wait"}`)}, []agent.Block{agent.Text("never")})
	w := s.agent(t, s.login("web", s.alice), "agent --approval ask")
	user := func(text string) string {
		b, _ := json.Marshal(map[string]any{"type": "user", "message": map[string]any{"role": "user", "content": text}})
		return string(b) + "\n"
	}
	w.say(user("first"))
	q := w.until("control_request")
	id := q[len(q)-1]["request_id"]
	w.say(fmt.Sprintf(`{"type":"control_response","response":{"subtype":"success","request_id":%q,"response":{"behavior":"allow","always":false}}}`+"\n", id))
	if e := w.until("result"); e[len(e)-1]["result"] != "One." {
		t.Errorf("got %v", e[len(e)-1])
	}
	// An answer to what was answered.
	w.say(fmt.Sprintf(`{"type":"control_response","response":{"request_id":%q,"response":{"behavior":"deny"}}}`+"\n", id))
	if e := w.next(); e["subtype"] != "error" || !strings.Contains(e["message"].(string), "already answered") {
		t.Errorf("got %v", e)
	}
	w.say(user("second"))
	q = w.until("control_request")
	w.say(fmt.Sprintf(`{"type":"control_response","response":{"request_id":%q,"response":{"behavior":"allow"}}}`+"\n", q[len(q)-1]["request_id"]))
	waitUntil(t, "the call", func() bool { _, ok := calls.Load("t2"); return ok })
	w.say(`{"type":"control_request","request_id":"1","request":{"subtype":"interrupt"}}` + "\n")
	if e := w.until("result"); e[len(e)-1]["subtype"] != "cancelled" {
		t.Errorf("got %v", e[len(e)-1])
	}
	w.ch.CloseWrite()
	if code := w.exit(); code != 130 {
		t.Errorf("exit %d", code)
	}
}

func waitUntil(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for range 600 {
		if cond() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s never came", what)
}

// A client that goes does not end the run; who comes back misses nothing.
func TestAgentResume(t *testing.T) {
	var turns [][]agent.Block
	for i := range 20 {
		turns = append(turns, []agent.Block{toolUse(fmt.Sprint("t", i), fmt.Sprintf(`{"n":%d}`, i))})
	}
	turns = append(turns, []agent.Block{agent.Text("Done.")})
	s, _, calls := agentStage(t, turns...)
	w := s.agent(t, s.login("web", s.alice), "agent")
	w.say("go")
	w.ch.CloseWrite()
	first := w.until("assistant")
	id := first[0]["session_id"].(string)
	after := first[len(first)-1]["seq"].(float64)
	w.ch.Close()
	w = s.agent(t, s.login("web", s.alice), fmt.Sprintf("agent --resume %s --after %.0f", id, after))
	rest := w.until("result")
	if rest[0]["subtype"] != "init" || rest[0]["resumed_from"] != after {
		t.Errorf("first: %v", rest[0])
	}
	inOrder(t, rest, after+1)
	if code := w.exit(); code != 0 {
		t.Errorf("exit %d: %s", code, w.stderr.String())
	}
	calls.Range(func(k, n any) bool {
		if *n.(*int) != 1 {
			t.Errorf("call %v was made %d times", k, *n.(*int))
		}
		return true
	})
	// Somebody else's run is not there.
	w = s.agent(t, s.login("web", s.bob), "agent --resume "+id)
	w.ch.CloseWrite()
	if code := w.exit(); code != 1 || !strings.Contains(w.stderr.String(), "no run") {
		t.Errorf("exit %d: %s", code, w.stderr.String())
	}
}

// A gateway that stops in the middle of a call leaves the run to the next one.
func TestAgentOverRestart(t *testing.T) {
	s, m, calls := agentStage(t, []agent.Block{toolUse("t1", `{"how":"wait"}`)}, []agent.Block{agent.Text("Done.")})
	w := s.agent(t, s.login("web", s.alice), "agent")
	w.say("go")
	w.ch.CloseWrite()
	w.until("assistant")
	waitUntil(t, "the call", func() bool { _, ok := calls.Load("t1"); return ok })
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	rows, err := s.gate.db.RunsAtWork(t.Context())
	if err != nil || len(rows) != 1 {
		t.Fatalf("at work: %v, %v", rows, err)
	}
	asked := len(m.Requests())
	next := newRuns(s.gate, func(run store.Run, past *runPast, use func(context.Context) (*sandbox.Lease, error)) toolset {
		set := poke(calls)(run, past, use)
		set.tools[0].Recover = func(context.Context, string, json.RawMessage, func(agent.Progress)) (agent.Result, error) {
			return agent.Result{Text: "it had ended"}, nil
		}
		return set
	})
	defer next.stop()
	if err := next.resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "the end", func() bool {
		r, err := s.gate.db.Run(t.Context(), rows[0].ID)
		return err == nil && r.State == store.RunIdle
	})
	n, _ := calls.Load("t1")
	if told := m.Requests()[asked:]; *n.(*int) != 1 || len(told) != 1 || !strings.Contains(told[0], "it had ended") {
		t.Errorf("%d calls; the model was told %v", *n.(*int), told)
	}
}

func TestAgentVerbs(t *testing.T) {
	s, _, _ := agentStage(t, []agent.Block{agent.Text("I poke."), toolUse("t1", `{"path":"x"}`)}, []agent.Block{agent.Text("Done.")}, []agent.Block{agent.Text("And more.")})
	c := s.login("gate", s.alice)
	run := func(line string) (string, int) {
		t.Helper()
		session, err := c.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		defer session.Close()
		out, err := session.CombinedOutput(line)
		code := 0
		if e, ok := err.(*ssh.ExitError); ok {
			code = e.ExitStatus()
		}
		return string(out), code
	}
	out, code := run(`agent web "poke it"`)
	if code != 0 || !strings.Contains(out, "I poke.") || !strings.Contains(out, "● poke x") || !strings.Contains(out, "Done.") || strings.Count(out, "Done.") != 1 {
		t.Errorf("exit %d: %s", code, out)
	}
	if out, code = run("runs --json"); code != 0 || !strings.Contains(out, `"title":"poke it"`) || !strings.Contains(out, `"state":"idle"`) {
		t.Errorf("exit %d: %s", code, out)
	}
	if out, code = run(`agent --continue "and?"`); code != 0 || !strings.Contains(out, "And more.") || strings.Contains(out, "Done.") {
		t.Errorf("exit %d: %s", code, out)
	}
	if out, code = run("export"); code != 0 || !strings.Contains(out, "## User\n\npoke it") || !strings.Contains(out, "**poke**") {
		t.Errorf("exit %d: %s", code, out)
	}
	if out, code = run("runs show"); code != 0 || !strings.Contains(out, "sandbox  web") {
		t.Errorf("exit %d: %s", code, out)
	}
	if out, code = run("approve"); code != 6 || !strings.Contains(out, "already answered") {
		t.Errorf("exit %d: %s", code, out)
	}
	if out, code = run("agent web"); code != 2 || !strings.Contains(out, "there is no prompt") {
		t.Errorf("exit %d: %s", code, out)
	}
	id := strings.Fields(strings.SplitN(func() string { o, _ := run("runs"); return o }(), "\n", 2)[1])[0]
	if out, code = run("runs rm " + id); code != 0 {
		t.Errorf("exit %d: %s", code, out)
	}
	if out, code = run("runs show " + id); code != 3 {
		t.Errorf("exit %d: %s", code, out)
	}
}

// The six tools, in a sandbox, as a model uses them.
func TestAgentTools(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f.txt")
	use := func(name string, input map[string]any) []agent.Block {
		return []agent.Block{scripted.Call("call-"+name+input["n"].(string), name, input)}
	}
	_, url := newFakeModel(t,
		use("write", map[string]any{"n": "1", "path": file, "content": "one\ntwo\n"}),
		use("read", map[string]any{"n": "1", "path": file}),
		use("edit", map[string]any{"n": "1", "path": file, "old": "two", "new": "TWO"}),
		use("grep", map[string]any{"n": "1", "path": filepath.Dir(file), "pattern": "TWO"}),
		use("glob", map[string]any{"n": "1", "path": filepath.Dir(file), "pattern": "*.txt"}),
		use("exec", map[string]any{"n": "1", "command": "cd " + filepath.Dir(file) + " && cat f.txt && exit 3"}),
		use("exec", map[string]any{"n": "2", "command": "pwd"}),
		[]agent.Block{agent.Text("Done.")})
	s := newStage(t, func(c *Config) { c.Agent = AgentConfig{AnthropicURL: url, AnthropicKey: "k"} })
	w := s.agent(t, s.login("web", s.alice), "agent")
	w.say("use all six")
	w.ch.CloseWrite()
	var results []string
	for _, e := range w.until("result") {
		if e["sandgate"] != nil {
			b, _ := json.Marshal(e)
			results = append(results, string(b))
		}
	}
	if code := w.exit(); code != 0 || len(results) != 7 {
		t.Fatalf("exit %d after %d results: %s", code, len(results), w.stderr.String())
	}
	for i, want := range []string{"created", "one", "TWO", "f.txt", "f.txt", `"exit_code":3`, filepath.Dir(file)} {
		if !strings.Contains(results[i], want) && !strings.Contains(results[i], strings.ReplaceAll(want, `\`, `\`)) || strings.Contains(results[i], `"is_error":true`) {
			t.Errorf("result %d lacks %q: %s", i, want, results[i])
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "one\nTWO\n" {
		t.Errorf("the file has %q, %v", b, err)
	}
}

// The guidance of a project is given to the model before it is first asked, that of a
// folder when it is worked on; people are told, and it is not taken for the user's words.
func TestAgentGuidance(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"AGENTS.md": "Use tabs.", "sub/CLAUDE.md": "Say please.", "sub/f": "x\n"} {
		os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	m, url := newFakeModel(t,
		[]agent.Block{scripted.Call("c1", "exec", map[string]any{"command": "cd " + dir})},
		[]agent.Block{scripted.Call("c2", "read", map[string]any{"path": "sub/f"})},
		[]agent.Block{agent.Text("Done.")}, []agent.Block{agent.Text("Again.")})
	s := newStage(t, func(c *Config) { c.Agent = AgentConfig{AnthropicURL: url, AnthropicKey: "k"} })
	w := s.agent(t, s.login("web", s.alice), "agent --format text")
	w.say("do it")
	w.ch.CloseWrite()
	said, _ := io.ReadAll(w.out)
	if !strings.Contains(string(said), "guidance of the project: "+filepath.Join(dir, "AGENTS.md")) {
		t.Errorf("said %s", said)
	}
	w = s.agent(t, s.login("web", s.alice), "agent --continue")
	w.say("and?")
	w.ch.CloseWrite()
	w.exit()
	asked := m.Requests()
	for i, want := range []string{"00", "10", "11", "11"} {
		for k, words := range []string{"Use tabs.", "Say please."} {
			if got := strings.Count(asked[i], words); fmt.Sprint(got) != want[k:k+1] {
				t.Errorf("request %d has %q %d times", i, words, got)
			}
		}
	}
	out, _, _ := s.run(s.login("gate", s.alice), "export")
	if strings.Contains(out, "Use tabs") || !strings.Contains(out, "do it") {
		t.Errorf("export: %s", out)
	}
}

// A picture that is read is shown to the model. Lines for programs have it unless they
// would be too long.
func TestAgentImage(t *testing.T) {
	var small bytes.Buffer
	if err := png.Encode(&small, image.NewGray(image.Rect(0, 0, 2, 2))); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, b := range map[string][]byte{"small.png": small.Bytes(), "large.png": append(small.Bytes(), make([]byte, 1<<20)...), "none.png": small.Bytes()[:12]} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	see := func(name string) []agent.Block {
		return []agent.Block{scripted.Call(name, "read", map[string]any{"path": filepath.Join(dir, name)})}
	}
	m, url := newFakeModel(t, see("small.png"), see("large.png"), see("none.png"), []agent.Block{agent.Text("Pretty.")})
	s := newStage(t, func(c *Config) { c.Agent = AgentConfig{AnthropicURL: url, AnthropicKey: "k"} })
	w := s.agent(t, s.login("web", s.alice), "agent")
	w.say("look")
	w.ch.CloseWrite()
	var results []string
	for _, e := range w.until("result") {
		if e["tool"] == "read" && e["type"] == "user" {
			b, _ := json.Marshal(e)
			results = append(results, string(b))
		}
	}
	data := base64.StdEncoding.EncodeToString(small.Bytes())
	for i, want := range []string{data, "an image was here, image/png of ", "the image cannot be shown: unexpected EOF"} {
		if len(results) != 3 || len(results[i]) > 1<<20 || !strings.Contains(results[i], want) || !strings.Contains(results[i], `"mime":"image/png"`) {
			t.Fatalf("result %d of %d lacks %q: %.2000s", i, len(results), want, results[i])
		}
	}
	if asked := m.Requests(); strings.Count(asked[1], data) != 1 || strings.Count(asked[3], `"media_type":"image/png"`) != 2 {
		t.Errorf("the model was shown %.2000s", asked[3])
	}
}

// What was read may be edited after the sandbox's processes are others, if it has not
// changed since.
func TestAgentRemembersFiles(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	edit := func(id, name string) []agent.Block {
		return []agent.Block{scripted.Call(id, "edit", map[string]any{"path": at(name), "old": "one", "new": "two"})}
	}
	m, url := newFakeModel(t,
		[]agent.Block{scripted.Call("r1", "read", map[string]any{"path": at("same")}), scripted.Call("r2", "read", map[string]any{"path": at("changed")})},
		[]agent.Block{agent.Text("Seen.")},
		edit("e1", "same"), edit("e2", "changed"), edit("e3", "unread"), []agent.Block{agent.Text("Done.")})
	for _, name := range []string{"same", "changed", "unread"} {
		if err := os.WriteFile(at(name), []byte("one\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s := newStage(t, func(c *Config) { c.Agent = AgentConfig{AnthropicURL: url, AnthropicKey: "k"} })
	w := s.agent(t, s.login("web", s.alice), "agent")
	w.say("look")
	w.ch.CloseWrite()
	w.until("result")
	s.run(s.login("gate", s.alice), "stop web")
	if err := os.WriteFile(at("changed"), []byte("one, but another's\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	w = s.agent(t, s.login("web", s.alice), "agent --continue")
	w.say("change them")
	w.ch.CloseWrite()
	w.exit()
	for name, want := range map[string]string{"same": "two\n", "changed": "one, but another's\n", "unread": "one\n"} {
		if b, err := os.ReadFile(at(name)); err != nil || string(b) != want {
			t.Errorf("%s has %q, %v", name, b, err)
		}
	}
	if last := m.Requests()[5]; !strings.Contains(last, "error stale") || !strings.Contains(last, "error not_read") {
		t.Errorf("the model was told %s", last)
	}
}

// A secret of the vault, and the key of the model, are in no prompt, event, row, log,
// line, export or transcript, although the user says it, files have it, and commands
// print it in pieces and in base64.
func TestAgentCanary(t *testing.T) {
	const canary, key = "canary-7f3k9q2m5x8w", "sk-canary-key-4h6j2n"
	dir := t.TempDir()
	encoded := base64.StdEncoding.EncodeToString([]byte(canary))
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("it is "+canary+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "AGENTS.md"), []byte("Use "+canary+" for all.\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	m, url := newFakeModel(t,
		[]agent.Block{scripted.Call("c1", "exec", map[string]any{"command": "cd " + dir + "; echo \"[$TOKEN]\"; env | grep -c CANARY_; cat f; base64 f"})},
		[]agent.Block{scripted.Call("c2", "exec", map[string]any{"command": "head -c 12 f; sleep 0.3; tail -c +13 f"})},
		[]agent.Block{scripted.Call("c3", "read", map[string]any{"path": "f"}), scripted.Call("c4", "grep", map[string]any{"pattern": "it is"})},
		[]agent.Block{scripted.Call("c5", agent.AskUserTool().Name, map[string]any{"question": "Which?"})},
		[]agent.Block{agent.Text("Done.")})
	s := newStage(t, func(c *Config) { c.Agent = AgentConfig{AnthropicURL: url} })
	s.must(s.alice, "new web", nil)
	s.must(s.alice, "secret set ANTHROPIC_API_KEY", []byte(key))
	s.must(s.alice, "secret set TOKEN --sandbox web", []byte(canary))
	if out, _, _ := s.run(s.login("web", s.alice), "echo $TOKEN"); out != canary+"\n" {
		t.Fatalf("a command of the user's has %q", out)
	}
	w := s.agent(t, s.login("web", s.alice), "agent --partials")
	said, _ := json.Marshal(map[string]any{"type": "user", "message": map[string]any{"role": "user", "content": "My token is " + canary}})
	w.say(string(said) + "\n")
	var wire strings.Builder
	note := func(events []map[string]any) map[string]any {
		for _, e := range events {
			b, _ := json.Marshal(e)
			wire.Write(b)
		}
		return events[len(events)-1]
	}
	q := note(w.until("control_request"))
	w.say(fmt.Sprintf(`{"type":"control_response","response":{"request_id":%q,"response":{"behavior":"allow","answer":"the one of %s"}}}`+"\n", q["request_id"], canary))
	if last := note(w.until("result")); last["subtype"] != "success" {
		t.Errorf("it ended with %v", last)
	}
	w.ch.CloseWrite()
	w.exit()
	id := q["session_id"].(string)
	acp := s.agent(t, s.login("web", s.alice), "acp")
	acp.request(1, "session/load", map[string]any{"sessionId": id})
	updates, _ := acp.reply(1)
	note(updates)
	asked := strings.Join(m.Requests(), "\n")
	if !strings.Contains(asked, "[redacted]") || !strings.Contains(asked, `[]\n0\n`) {
		t.Errorf("the model was asked %s", asked)
	}
	places := map[string]string{
		"the prompts": asked, "the wire": wire.String(), "the log": s.log.String(),
		"the run as Markdown": s.must(s.alice, "export "+id, nil), "the run as JSON": s.must(s.alice, "export --json "+id, nil),
		"the list of runs": s.must(s.alice, "runs --json", nil), "a run that is shown": s.must(s.alice, "runs show "+id, nil),
		"the followed run": s.must(s.alice, "runs attach "+id, nil), "the audit": s.must(s.alice, "audit --json", nil),
	}
	for _, name := range []string{"db", "db-wal"} {
		b, err := os.ReadFile(filepath.Join(s.dir, name))
		if err != nil && name == "db" {
			t.Fatal(err)
		}
		places["the file "+name] = string(b)
	}
	for place, text := range places {
		for _, word := range []string{canary, key, encoded[:20], base64.StdEncoding.EncodeToString([]byte("it is " + canary))[8:28]} {
			if i := strings.Index(text, word); i >= 0 {
				t.Errorf("%q is in %s: %s", word, place, text[max(0, i-200):min(len(text), i+100)])
			}
		}
	}
}

func FuzzWireInput(f *testing.F) {
	f.Add(`{"type":"user","message":{"role":"user","content":"x"}}`)
	f.Add(`{"type":"control_response","response":{"request_id":"1","response":{"behavior":"allow","values":{"a":"b"}}}}`)
	f.Fuzz(func(t *testing.T, line string) {
		in := parseWireInput([]byte(line))
		n := 0
		for _, said := range []bool{in.prompt != "", in.interrupt, in.question != "", in.err != nil} {
			if said {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%q says %d things: %+v", line, n, in)
		}
	})
}
