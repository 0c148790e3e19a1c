package gateway

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"sandgate/agent"
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
	want := "agent_message_chunk tool_call/pending usage_update session/request_permission tool_call_update/in_progress tool_call_update/completed agent_message_chunk usage_update"
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
		{"session/prompt", map[string]any{"sessionId": "run-none", "prompt": []any{}}, rpcFailed},
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
		} else { // what was asked before is not shown, and others answer
			until(func(m map[string]any) bool { return m["id"] == 1.0 })
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
		if d := diffOf(json.RawMessage(input)); d != nil && d["path"] == "" {
			t.Errorf("%q: a change of no file", input)
		}
	})
}
