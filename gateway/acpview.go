package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"sandgate/agent"
)

// maxACPOutput is how much of a running command's output is shown, from its end.
const maxACPOutput = 8 << 10

// An acpView turns the events of a run into updates.
type acpView struct {
	a      *acpServer
	run    string
	replay bool  // also what the user said
	after  int64 // the last event that the client knows

	shown  strings.Builder            // the text of the response that is going on
	output map[string]string          // of commands, by call
	inputs map[string]json.RawMessage // of calls
	ctx    context.Context
	cancel context.CancelFunc
	asking sync.WaitGroup // questions that the client was asked, and that end with ctx

	unanswered map[string]agent.Question // of a replay, by call

	stop, reason, failed string
}

// view returns a view of a run that lasts as long as ctx. It is to be closed.
func (a *acpServer) view(ctx context.Context, run string) *acpView {
	v := &acpView{a: a, run: run, output: make(map[string]string), inputs: make(map[string]json.RawMessage), unanswered: make(map[string]agent.Question)}
	v.ctx, v.cancel = context.WithCancel(ctx)
	return v
}

func (v *acpView) close() {
	v.cancel()
	v.asking.Wait()
}

// ask puts a question to the client, if it is one that editors have.
func (v *acpView) ask(q agent.Question) {
	if q.Kind == agent.CanUseTool {
		v.asking.Go(func() { v.permission(q) })
	}
}

// acpKinds are the kinds of the tools.
var acpKinds = map[string]string{"exec": "execute", "read": "read", "write": "edit", "edit": "edit", "glob": "search", "grep": "search"}

func text(s string) map[string]any { return map[string]any{"type": "text", "text": s} }

func (v *acpView) show(e agent.Event, line []byte) error {
	var f struct {
		Event struct {
			Delta *agent.BlockDelta `json:"delta"`
		} `json:"event"`
		Message struct {
			Content []agent.Block `json:"content"`
		} `json:"message"`
		ToolUseID string         `json:"tool_use_id"`
		Stdout    string         `json:"stdout"`
		Stderr    string         `json:"stderr"`
		Request   agent.Question `json:"request"`
		Response  agent.Answer   `json:"response"`
		Result    string         `json:"result"`
		Stop      string         `json:"stop_reason"`
		Used      int64          `json:"context_used"`
		Size      int64          `json:"context_size"`
		Cost      *float64       `json:"cost_usd"`
		Detail    struct {
			Path string `json:"path"`
		} `json:"sandgate"`
	}
	if err := json.Unmarshal(line, &f); err != nil {
		return fmt.Errorf("event %d: %w", e.Seq, err)
	}
	update := func(kind string, fields map[string]any) error {
		if e.Seq != 0 && e.Seq <= v.after {
			return nil
		}
		meta, _ := fields["_meta"].(map[string]any)
		if e.Seq != 0 {
			if meta == nil {
				meta = make(map[string]any)
			}
			meta["seq"] = e.Seq
			fields["_meta"] = meta
		}
		fields["sessionUpdate"] = kind
		return v.a.update(v.run, fields)
	}
	switch e.Type {
	case agent.TypeStream:
		d := f.Event.Delta
		switch {
		case d == nil:
		case d.Text != "":
			v.shown.WriteString(d.Text)
			return update("agent_message_chunk", map[string]any{"content": text(d.Text)})
		case d.Thinking != "":
			return update("agent_thought_chunk", map[string]any{"content": text(d.Thinking)})
		}
	case agent.TypeAssistant:
		return v.response(f.Message.Content, update)
	case agent.TypeSystem:
		switch e.Subtype {
		case "tool_start":
			return update("tool_call_update", map[string]any{"toolCallId": f.ToolUseID, "status": "in_progress"})
		case agent.SubtypeRetry:
			return update("session_info_update", map[string]any{"_meta": map[string]any{"retry": some(e, "attempt", "max", "wait_ms", "status", "error")}})
		case agent.SubtypeCompact:
			return update("session_info_update", map[string]any{"_meta": map[string]any{"compaction": some(e, "trigger", "pre_tokens", "post_tokens")}})
		}
	case agent.TypeToolProgress:
		out := v.output[f.ToolUseID] + f.Stdout + f.Stderr
		if over := len(out) - maxACPOutput; over > 0 {
			out = strings.ToValidUTF8(out[over:], "")
		}
		v.output[f.ToolUseID] = out
		return update("tool_call_update", map[string]any{"toolCallId": f.ToolUseID, "content": []any{map[string]any{"type": "content", "content": text(out)}}})
	case agent.TypeUser:
		return v.user(f.Message.Content, v.replay && !synthetic(e), f.Detail.Path, update)
	case agent.TypeControlRequest:
		if v.replay {
			v.unanswered[f.Request.ToolUseID] = f.Request
		} else {
			v.ask(f.Request)
		}
	case agent.TypeControlResponse:
		delete(v.unanswered, f.Response.ToolUseID)
	case agent.TypeUsage:
		u := map[string]any{"used": f.Used, "size": f.Size}
		if f.Cost != nil {
			u["cost"] = map[string]any{"amount": *f.Cost, "currency": "USD"}
		}
		return update("usage_update", u)
	case agent.TypeResult:
		if v.replay {
			clear(v.unanswered)
			break
		}
		v.reason = e.Subtype
		v.stop, v.failed = acpStop(e.Subtype, f.Stop, f.Result)
	}
	return nil
}

// acpStop is why a turn ended, in the protocol's words, or what went wrong.
func acpStop(subtype, stop, result string) (reason, failed string) {
	switch subtype {
	case agent.Success:
		switch agent.StopReason(stop) {
		case agent.StopLength:
			return "max_tokens", ""
		case agent.StopRefusal:
			return "refusal", ""
		}
		return "end_turn", ""
	case agent.Cancelled:
		return "cancelled", ""
	case agent.OutOfSteps, agent.OutOfBudget, agent.Looping:
		return "max_turn_requests", ""
	}
	return "", subtype + ": " + oneLine(result)
}

// response shows a whole response: of its text what was not shown in pieces.
func (v *acpView) response(blocks []agent.Block, update func(string, map[string]any) error) error {
	shown := v.shown.String()
	v.shown.Reset()
	for _, b := range blocks {
		switch b.Type {
		case agent.TextBlock:
			if plan := planIn(b.Text); plan != nil {
				if err := update("plan", map[string]any{"entries": plan}); err != nil {
					return err
				}
			}
			rest, whole := strings.CutPrefix(shown, b.Text)
			if whole {
				shown = rest
				continue
			}
			missing, _ := strings.CutPrefix(b.Text, shown)
			shown = ""
			if missing == "" {
				continue
			}
			if err := update("agent_message_chunk", map[string]any{"content": text(missing)}); err != nil {
				return err
			}
		case agent.ThinkingBlock:
			if v.replay && b.Thinking != "" {
				if err := update("agent_thought_chunk", map[string]any{"content": text(b.Thinking)}); err != nil {
					return err
				}
			}
		case agent.ToolUseBlock:
			v.inputs[b.ID] = b.Input
			kind := acpKinds[b.Name]
			if kind == "" {
				kind = "other"
			}
			call := map[string]any{"toolCallId": b.ID, "title": describeCall(b.Name, b.Input), "kind": kind, "status": "pending", "rawInput": b.Input}
			if path := pathOf(b.Input); path != "" {
				call["locations"] = []any{map[string]any{"path": path}}
			}
			if err := update("tool_call", call); err != nil {
				return err
			}
		}
	}
	return nil
}

// some returns those fields of an event.
func some(e agent.Event, names ...string) map[string]any {
	m := make(map[string]any, len(names))
	for _, n := range names {
		if f, ok := e.Fields[n]; ok {
			m[n] = f
		}
	}
	return m
}

// user shows results of calls, and with words what the user said. path is the file that a
// call was about, as the sandbox knows it; it may be empty.
func (v *acpView) user(blocks []agent.Block, words bool, path string, update func(string, map[string]any) error) error {
	for _, b := range blocks {
		switch b.Type {
		case agent.TextBlock:
			if words {
				if err := update("user_message_chunk", map[string]any{"content": text(b.Text)}); err != nil {
					return err
				}
			}
		case agent.ToolResultBlock:
			status := "completed"
			if b.IsError {
				status = "failed"
			}
			content := []any{map[string]any{"type": "content", "content": text(b.Result)}}
			for _, i := range b.Images {
				content = append(content, map[string]any{"type": "content", "content": map[string]any{"type": "image", "mimeType": i.MIME, "data": i.Data}})
			}
			if diffs := diffsOf(v.inputs[b.ToolUseID], path); len(diffs) > 0 && !b.IsError {
				content = diffs
			}
			delete(v.output, b.ToolUseID)
			end := map[string]any{
				"toolCallId": b.ToolUseID, "status": status, "content": content, "rawOutput": map[string]any{"text": b.Result, "is_error": b.IsError},
			}
			if path != "" {
				end["locations"] = []any{map[string]any{"path": path}}
			}
			if err := update("tool_call_update", end); err != nil {
				return err
			}
		}
	}
	return nil
}

// pathOf is the file or folder that a call names; empty if it names none.
func pathOf(input json.RawMessage) string {
	var in struct{ Path string }
	json.Unmarshal(input, &in)
	return in.Path
}

// diffsOf are the changes of a file that a call asks for. path is its name where that is
// known better than by the call.
func diffsOf(input json.RawMessage, path string) (diffs []any) {
	type change struct{ Old, New *string }
	var in struct {
		Path string
		change
		Content *string
		Edits   []change
	}
	if json.Unmarshal(input, &in) != nil || in.Path == "" {
		return nil
	}
	add := func(from, to *string) {
		diffs = append(diffs, map[string]any{"type": "diff", "path": cmp.Or(path, in.Path), "oldText": from, "newText": *to})
	}
	if in.Content != nil {
		add(nil, in.Content)
	}
	for _, c := range append([]change{in.change}, in.Edits...) {
		if c.New != nil {
			add(c.Old, c.New)
		}
	}
	return diffs
}

// permission puts a question to the client, and its answer to the run. Others may
// answer before.
func (v *acpView) permission(q agent.Question) {
	result, err := v.a.ask(v.ctx, "session/request_permission", map[string]any{
		"sessionId": v.run,
		"toolCall":  map[string]any{"toolCallId": q.ToolUseID, "title": describeCall(q.Tool, q.Input), "kind": acpKinds[q.Tool], "rawInput": q.Input},
		"options": []map[string]string{
			{"optionId": "allow", "name": "Allow", "kind": "allow_once"},
			{"optionId": "always", "name": "Always allow this in this session", "kind": "allow_always"},
			{"optionId": "reject", "name": "Reject", "kind": "reject_once"},
		},
	})
	if err != nil {
		return // the client has gone, and the question stays open; or others have answered, and the turn has ended
	}
	var r struct {
		Outcome struct{ Outcome, OptionID string }
	}
	json.Unmarshal(result, &r)
	allow := r.Outcome.Outcome == "selected" && (r.Outcome.OptionID == "allow" || r.Outcome.OptionID == "always")
	answer := agent.Answer{Allow: allow}
	if !allow {
		answer.Reason = "the user rejected it"
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(v.a.ctx), touchTimeout)
	defer cancel()
	_, err = v.a.s.login.Answer(ctx, "approve", v.run, q.ID, answer, r.Outcome.OptionID == "always")
	if err != nil {
		v.a.s.login.log.Debug("answer not taken", keyRun, v.run, keyErr, err)
	}
}
