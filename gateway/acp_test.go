package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"sandgate/agent"
	"sandgate/agent/scripted"
)

// request sends a request; reply returns the updates before its response, and that.
func (w *wire) request(id int, method string, params any) {
	w.t.Helper()
	b, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "method": method, "params": params})
	if err != nil {
		w.t.Fatal(err)
	}
	w.say(string(b) + "\n")
}

func (w *wire) reply(id int) (updates []map[string]any, response map[string]any) {
	w.t.Helper()
	for m := w.next(); m != nil; m = w.next() {
		if m["method"] == nil && m["id"] == float64(id) {
			return updates, m
		}
		updates = append(updates, m)
	}
	w.t.Fatalf("no response to %d; updates %v; stderr %q", id, updates, w.stderr.String())
	return nil, nil
}

func kindsOf(updates []map[string]any) string {
	var kinds []string
	for _, u := range updates {
		p, _ := u["params"].(map[string]any)
		up, _ := p["update"].(map[string]any)
		k := fmt.Sprint(up["sessionUpdate"])
		if up == nil {
			k = fmt.Sprint(u["method"])
		}
		if s, ok := up["status"].(string); ok {
			k += "/" + s
		}
		if len(kinds) == 0 || kinds[len(kinds)-1] != k {
			kinds = append(kinds, k)
		}
	}
	return strings.Join(kinds, " ")
}

func TestACP(t *testing.T) {
	s, m, calls := agentStage(t,
		[]agent.Block{agent.Text("I poke."), toolUse("t1", `{"path":"x","old":"a","new":"b"}`)}, []agent.Block{agent.Text("Done.")},
		[]agent.Block{toolUse("t2", `{"n":2}`)}, []agent.Block{agent.Text("Well.")},
		[]agent.Block{toolUse("t3", `{"how":"wait"}`)}, []agent.Block{agent.Text("never")})
	w := s.agent(t, s.login("web", s.alice), "acp")
	w.request(0, "initialize", map[string]any{"protocolVersion": 1, "clientCapabilities": map[string]any{}})
	if _, r := w.reply(0); r["result"].(map[string]any)["protocolVersion"] != 1.0 {
		t.Fatalf("initialize: %v", r)
	}
	w.request(1, "session/new", map[string]any{"cwd": "/no/such/folder", "mcpServers": []any{}})
	_, r := w.reply(1)
	id, _ := r["result"].(map[string]any)["sessionId"].(string)
	if id == "" {
		t.Fatalf("session/new: %v", r)
	}
	say := func(n int, words string) {
		w.request(n, "session/prompt", map[string]any{"sessionId": id, "prompt": []any{
			map[string]any{"type": "text", "text": words},
			map[string]any{"type": "resource", "resource": map[string]any{"uri": "file:///a.txt", "text": "in the editor"}},
		}})
	}
	allow := func(option string) []map[string]any {
		var before []map[string]any
		for u := w.next(); u != nil; u = w.next() {
			before = append(before, u)
			if u["method"] == "session/request_permission" {
				outcome := map[string]any{"outcome": "selected", "optionId": option}
				if option == "" {
					outcome = map[string]any{"outcome": "cancelled"}
				}
				b, _ := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": u["id"], "result": map[string]any{"outcome": outcome}})
				w.say(string(b) + "\n")
				return before
			}
		}
		t.Fatalf("no request for permission in %s", kindsOf(before))
		return nil
	}
	say(2, "poke it")
	updates := allow("allow")
	rest, r := w.reply(2)
	updates = append(updates, rest...)
	if got := r["result"].(map[string]any)["stopReason"]; got != "end_turn" {
		t.Errorf("prompt: %v", r)
	}
	want := "session_info_update agent_message_chunk tool_call/pending usage_update session/request_permission tool_call_update/in_progress tool_call_update/completed agent_message_chunk usage_update"
	// Pieces of output are shown while they are news.
	got := strings.Replace(kindsOf(updates), "in_progress tool_call_update ", "in_progress ", 1)
	if got != want && got != strings.Replace(want, "usage_update session/request_permission", "session/request_permission usage_update", 1) {
		t.Errorf("updates: %s", got)
	}
	if !strings.Contains(m.Requests()[0], "in the editor") {
		t.Errorf("the model was told %s", m.Requests()[0])
	}

	say(3, "and again")
	allow("")
	if _, r := w.reply(3); r["result"].(map[string]any)["stopReason"] != "end_turn" {
		t.Errorf("prompt: %v", r)
	}
	if _, made := calls.Load("t2"); made {
		t.Error("a call was made that was rejected")
	}

	w.request(4, "session/set_mode", map[string]any{"sessionId": id, "modeId": "auto"})
	w.reply(4)
	say(5, "wait")
	waitUntil(t, "the call", func() bool { _, ok := calls.Load("t3"); return ok })
	say(6, "in between")
	if _, r := w.reply(6); r["error"] == nil || !strings.Contains(fmt.Sprint(r["error"]), "at work") {
		t.Errorf("a prompt during another: %v", r)
	}
	w.say(fmt.Sprintf(`{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":%q}}`+"\n", id))
	if _, r := w.reply(5); r["result"].(map[string]any)["stopReason"] != "cancelled" {
		t.Errorf("cancelled: %v", r)
	}

	for _, tt := range []struct {
		method string
		params any
		code   float64
	}{
		{"no/such", nil, rpcNoMethod},
		{"session/prompt", map[string]any{"sessionId": "run-none", "prompt": []any{}}, rpcNotFound},
		{"session/prompt", map[string]any{"sessionId": id, "prompt": []any{}}, rpcBadParams},
		{"session/prompt", "x", rpcBadParams},
		{"session/set_mode", map[string]any{"sessionId": id, "modeId": "x"}, rpcBadParams},
	} {
		w.request(9, tt.method, tt.params)
		_, r := w.reply(9)
		if e, _ := r["error"].(map[string]any); e == nil || e["code"] != tt.code {
			t.Errorf("%s %v: %v", tt.method, tt.params, r)
		}
	}
	w.say("nonsense\n")
	if e := w.next(); e["error"] == nil {
		t.Errorf("nonsense: %v", e)
	}

	// Another client takes the session up.
	other := s.agent(t, s.login("web", s.alice), "acp")
	other.request(1, "session/load", map[string]any{"sessionId": id, "cwd": "/", "mcpServers": []any{}})
	updates, r = other.reply(1)
	if r["error"] != nil || !strings.HasPrefix(kindsOf(updates), "user_message_chunk agent_message_chunk tool_call/pending") {
		t.Errorf("load: %v: %s", r, kindsOf(updates))
	}
	for _, c := range []*wire{w, other} {
		c.ch.CloseWrite()
		if code := c.exit(); code != 0 {
			t.Errorf("exit %d: %s", code, c.stderr.String())
		}
	}
}

// A client that takes up a session in the middle of a turn is shown what was, asked what
// is open, shown what comes, and told of the end.
func TestACPAttach(t *testing.T) {
	for _, method := range []string{"session/load", "session/resume"} {
		s, _, calls := agentStage(t, []agent.Block{toolUse("t1", `{"path":"x"}`)}, []agent.Block{agent.Text("Done.")})
		w := s.agent(t, s.login("web", s.alice), "agent --approval ask")
		w.say(`{"type":"user","message":{"role":"user","content":"poke it"}}` + "\n")
		q := w.until("control_request")
		id := q[len(q)-1]["session_id"]
		w.ch.Close() // and the question stays open
		c := s.agent(t, s.login("web", s.alice), "acp")
		c.request(1, method, map[string]any{"sessionId": id, "cwd": "/", "mcpServers": []any{}})
		var seen []map[string]any
		until := func(is func(m map[string]any) bool) map[string]any {
			t.Helper()
			for m := c.next(); m != nil; m = c.next() {
				if seen = append(seen, m); is(m) {
					return m
				}
			}
			t.Fatalf("%s: it ended after %s", method, kindsOf(seen))
			return nil
		}
		if method == "session/load" {
			ask := until(func(m map[string]any) bool { return m["method"] == "session/request_permission" })
			if !strings.Contains(kindsOf(seen), "user_message_chunk tool_call/pending") {
				t.Errorf("shown %s", kindsOf(seen))
			}
			b, _ := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": ask["id"], "result": map[string]any{"outcome": map[string]any{"outcome": "selected", "optionId": "allow"}}})
			c.say(string(b) + "\n")
		} else { // what was before is not shown; others may answer
			until(func(m map[string]any) bool { return m["id"] == 1.0 && m["method"] == nil })
			s.must(s.alice, "approve "+id.(string), nil)
		}
		end := until(func(m map[string]any) bool { return strings.Contains(fmt.Sprint(m), "session_info_update") })
		if got := kindsOf(seen); !strings.Contains(got, "tool_call_update/completed agent_message_chunk") || !strings.Contains(fmt.Sprint(end), "stopReason:end_turn") {
			t.Errorf("%s: shown %s, last %v", method, got, end)
		}
		if _, made := calls.Load("t1"); !made {
			t.Error("the call was not made")
		}
		c.ch.CloseWrite()
		if code := c.exit(); code != 0 {
			t.Errorf("exit %d: %s", code, c.stderr.String())
		}
	}
}

// What a client does with sessions, and what it is told of a turn besides its text.
func TestACPSessions(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	m := scripted.New(
		[]agent.Block{agent.Text("- [x] look\n- [ ] write\n"), scripted.Call("c1", "write", map[string]any{"path": file, "content": "one\ntwo\n"})},
		[]agent.Block{scripted.Call("c2", "edit", map[string]any{"path": file, "edits": []any{
			map[string]any{"old": "one", "new": "1"}, map[string]any{"old": "two", "new": "2"}}})},
		[]agent.Block{agent.Text("Done.")})
	var refused atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refused.CompareAndSwap(false, true) {
			w.Header().Set("Retry-After-Ms", "1")
			w.WriteHeader(529)
			return
		}
		m.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	s := newStage(t, func(c *Config) { c.Agent = AgentConfig{AnthropicURL: server.URL, AnthropicKey: "k"} })
	c := s.agent(t, s.login("web", s.alice), "acp")
	ask := func(method string, params map[string]any) (updates []map[string]any, result map[string]any) {
		t.Helper()
		c.request(1, method, params)
		updates, r := c.reply(1)
		if result, _ = r["result"].(map[string]any); result == nil {
			t.Fatalf("%s: %v", method, r)
		}
		return updates, result
	}
	_, made := ask("session/new", map[string]any{"cwd": "/home/me/project", "mcpServers": []any{}})
	id := made["sessionId"]
	ask("session/set_mode", map[string]any{"sessionId": id, "modeId": "auto"})
	updates, _ := ask("session/prompt", map[string]any{"sessionId": id, "prompt": []any{map[string]any{"type": "text", "text": "Write it"}}})
	var seq float64
	found := make(map[string]map[string]any)
	for _, u := range updates {
		up := u["params"].(map[string]any)["update"].(map[string]any)
		meta, _ := up["_meta"].(map[string]any)
		if n, ok := meta["seq"].(float64); ok && n < seq {
			t.Errorf("%v after %v", n, seq)
		} else if ok {
			seq = n
		}
		key := fmt.Sprintf("%v %v %v", up["sessionUpdate"], up["toolCallId"], up["status"])
		for _, name := range []string{"retry", "compaction"} {
			if meta[name] != nil {
				key = name
			}
		}
		found[key] = up
	}
	if e := fmt.Sprint(found["plan <nil> <nil>"]["entries"]); e != "[map[content:look priority:medium status:completed] map[content:write priority:medium status:pending]]" {
		t.Errorf("plan: %s in %s", e, kindsOf(updates))
	}
	if retry := fmt.Sprint(found["retry"]); !strings.Contains(retry, "attempt:1") || !strings.Contains(retry, "status:529") {
		t.Errorf("retry: %s in %s", retry, kindsOf(updates))
	}
	if e := found["tool_call_update c2 completed"]; fmt.Sprint(e["locations"]) != "[map[path:"+file+"]]" || strings.Count(fmt.Sprint(e["content"]), "type:diff") != 2 {
		t.Errorf("edit: %v", e)
	}
	if e := found["session_info_update <nil> <nil>"]; e["title"] != "Write it" {
		t.Errorf("title: %v", e)
	}

	for cwd, want := range map[string]int{"": 1, "/home/me/project": 1, "/elsewhere": 0} {
		_, list := ask("session/list", map[string]any{"cwd": cwd})
		all := list["sessions"].([]any)
		if len(all) != want {
			t.Errorf("%d sessions in %q: %v", len(all), cwd, all)
		}
		for _, one := range all {
			if one := one.(map[string]any); one["sessionId"] != id || one["title"] != "Write it" || one["cwd"] != "/home/me/project" {
				t.Errorf("in %q: %v", cwd, one)
			}
		}
	}
	updates, _ = ask("session/load", map[string]any{"sessionId": id, "cwd": "/", "mcpServers": []any{}, "_meta": map[string]any{"after": seq - 1}})
	for _, u := range updates {
		if n := u["params"].(map[string]any)["update"].(map[string]any)["_meta"].(map[string]any)["seq"]; n != seq {
			t.Errorf("after %v it is shown %v", seq-1, n)
		}
	}
	if len(updates) == 0 {
		t.Error("nothing is shown")
	}
	if updates, _ := ask("session/resume", map[string]any{"sessionId": id, "cwd": "/"}); len(updates) != 0 {
		t.Errorf("shown again: %s", kindsOf(updates))
	}
	ask("session/close", map[string]any{"sessionId": id})
	ask("session/delete", map[string]any{"sessionId": id})
	if _, list := ask("session/list", nil); len(list["sessions"].([]any)) != 0 {
		t.Errorf("after it was deleted: %v", list)
	}
	c.ch.CloseWrite()
	if code := c.exit(); code != 0 {
		t.Errorf("exit %d: %s", code, c.stderr.String())
	}
}

// A client whose input ends at once still gets its answers.
func TestACPHalfClose(t *testing.T) {
	s, _, _ := agentStage(t, []agent.Block{agent.Text("Done.")})
	w := s.agent(t, s.login("web", s.alice), "acp")
	w.request(0, "session/new", map[string]any{})
	_, r := w.reply(0)
	w.request(1, "session/prompt", map[string]any{"sessionId": r["result"].(map[string]any)["sessionId"], "prompt": []any{map[string]any{"type": "text", "text": "x"}}})
	w.ch.CloseWrite()
	if _, r := w.reply(1); r["result"] == nil {
		t.Errorf("got %v", r)
	}
	if code := w.exit(); code != 0 {
		t.Errorf("exit %d", code)
	}
}

func FuzzACPContent(f *testing.F) {
	f.Add(`[{"type":"resource","resource":{"uri":"x","text":"y"}}]`, `{"path":"x","old":"a","new":"b"}`)
	f.Fuzz(func(t *testing.T, prompt, input string) {
		var blocks []acpContent
		if json.Unmarshal([]byte(prompt), &blocks) == nil {
			promptText(blocks)
		}
		for _, d := range diffsOf(json.RawMessage(input), "") {
			if d.(map[string]any)["path"] == "" {
				t.Errorf("%q: a change of no file", input)
			}
		}
		for _, e := range planIn(input) {
			if e.Content == "" || e.Status == "" {
				t.Errorf("%q: %+v", input, e)
			}
		}
	})
}
