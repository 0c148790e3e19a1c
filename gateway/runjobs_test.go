package gateway

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandgate/agent"
	"sandgate/agent/scripted"
	"sandgate/store"
)

// jobsIn returns what events say of jobs, in order.
func jobsIn(t *testing.T, events []map[string]any) (all []jobEvent) {
	t.Helper()
	for _, e := range events {
		if e["type"] != "system" || e["subtype"] != "job" {
			continue
		}
		var j jobEvent
		b, err := json.Marshal(e)
		if err == nil {
			err = json.Unmarshal(b, &j)
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, j)
	}
	return all
}

// untilJob returns the events up to the end of a job.
func (w *wire) untilJob() []map[string]any {
	w.t.Helper()
	var all []map[string]any
	for e := w.next(); e != nil; e = w.next() {
		if all = append(all, e); e["subtype"] == "job" && e["state"] != jobStarted {
			return all
		}
	}
	w.t.Fatalf("no job ended in %v; stderr %q", all, w.stderr.String())
	return nil
}

// What a command does that outlives its call is in the log of the run, also after the
// turn; a client that is not there for more hears of its turn's result last.
func TestAgentJobs(t *testing.T) {
	gate := filepath.Join(t.TempDir(), "gate")
	background := func(id, command string) []agent.Block {
		return []agent.Block{scripted.Call(id, "exec", map[string]any{"command": command, "background": true})}
	}
	_, url := newFakeModel(t,
		background("c1", "until [ -e "+gate+" ]; do sleep 0.05; done; echo x; exit 5"), []agent.Block{agent.Text("Begun.")},
		background("c2", "sleep 1000.75"), []agent.Block{agent.Text("Begun, too.")})
	s := newStage(t, func(c *Config) { c.Agent = AgentConfig{AnthropicURL: url, AnthropicKey: "k"} })
	w := s.agent(t, s.login("web", s.alice), "agent")
	w.say(`{"type":"user","message":{"role":"user","content":"begin it"}}` + "\n")
	events := w.until("result")
	id, _ := events[0]["session_id"].(string)
	begun := jobsIn(t, events)
	if len(begun) != 1 || begun[0].State != jobStarted || begun[0].Job != jobOf(id, "c1") || begun[0].ExitCode != nil {
		t.Fatalf("jobs in the turn: %+v", begun)
	}
	if err := os.WriteFile(gate, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	more := w.untilJob()
	ended := jobsIn(t, more)
	if len(ended) != 1 || ended[0].Job != begun[0].Job || ended[0].State != jobExited || ended[0].ExitCode == nil || *ended[0].ExitCode != 5 || ended[0].Bytes != 2 {
		t.Errorf("jobs after the turn: %+v", ended)
	}
	inOrder(t, append(events, more...), 1)

	w.say(`{"type":"user","message":{"role":"user","content":"and another"}}` + "\n")
	w.until("result")
	s.must(s.alice, "stop web", nil)
	if ended := jobsIn(t, w.untilJob()); ended[len(ended)-1].State != jobKilled || ended[len(ended)-1].KilledBy != killedByStop {
		t.Errorf("jobs of a sandbox that was stopped: %+v", ended)
	}
	w.ch.CloseWrite()
	w.exit()

	w = s.agent(t, s.login("web", s.alice), "agent --resume "+id)
	w.ch.CloseWrite()
	var kinds []string
	for e := w.next(); e != nil; e = w.next() {
		if k := fmt.Sprint(e["type"], "/", e["subtype"]); strings.HasPrefix(k, "result") || k == "system/job" {
			kinds = append(kinds, k)
		}
	}
	if got := strings.Join(kinds, " "); got != "system/job result/success system/job system/job result/success" {
		t.Errorf("told later: %s", got)
	}
}

// The end of a job is in the log also if it was begun in the life of another gateway.
func TestAgentJobsOverRestart(t *testing.T) {
	gate := filepath.Join(t.TempDir(), "gate")
	_, url := newFakeModel(t,
		[]agent.Block{scripted.Call("c1", "exec", map[string]any{"command": "until [ -e " + gate + " ]; do sleep 0.05; done", "background": true})},
		[]agent.Block{agent.Text("Begun.")})
	s := newStage(t, func(c *Config) { c.Agent = AgentConfig{AnthropicURL: url, AnthropicKey: "k"} })
	w := s.agent(t, s.login("web", s.alice), "agent")
	w.say("begin it")
	w.ch.CloseWrite()
	id, _ := w.until("result")[0]["session_id"].(string)
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	next := newRuns(s.gate, s.gate.guestTools)
	defer next.stop()
	if err := next.resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(gate, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	var last map[string]any
	waitUntil(t, "the job's end in the log", func() bool {
		rows, err := s.gate.db.RunEvents(t.Context(), id, 0, 1000)
		if err != nil || json.Unmarshal(rows[len(rows)-1].Event, &last) != nil {
			t.Fatalf("%d events, %v", len(rows), err)
		}
		return last["subtype"] == "job"
	})
	if last["state"] != jobExited || last["exit_code"] != 0.0 {
		t.Errorf("it says %v", last)
	}
}

// A turn that nobody follows ends when it has gone on so for as long as was said.
func TestAgentUnattended(t *testing.T) {
	s, _, calls := agentStage(t, []agent.Block{toolUse("t1", `{"how":"wait"}`)}, []agent.Block{agent.Text("never")})
	w := s.agent(t, s.login("web", s.alice), "agent --max-run-after-disconnect 50ms")
	w.say("go")
	w.ch.CloseWrite()
	id, _ := w.until("assistant")[0]["session_id"].(string)
	waitUntil(t, "the call", func() bool { _, ok := calls.Load("t1"); return ok })
	w.ch.Close()
	waitUntil(t, "the end", func() bool {
		r, err := s.gate.db.Run(t.Context(), id)
		return err == nil && r.State == store.RunIdle
	})
	w = s.agent(t, s.login("web", s.alice), "agent --resume "+id)
	w.ch.CloseWrite()
	events := w.until("result")
	if last := events[len(events)-1]; last["subtype"] != agent.Cancelled || !strings.Contains(last["result"].(string), "nobody has followed") {
		t.Errorf("it ended with %v", last)
	}
}
