package agent

import (
	"context"
	"encoding/json"
	"iter"
	"slices"
)

// Resume returns a run as its events left it, which are to be all of its log in
// order.
func Resume(cfg Config, events iter.Seq2[Event, error]) (*Run, error) {
	r := New(cfg)
	for e, err := range events {
		if err != nil {
			return nil, err
		}
		if err := r.apply(e); err != nil {
			return nil, err
		}
	}
	r.before = r.sandbox
	return r, nil
}

// Resumed puts into the log that the run goes on after a restart, so that who
// follows it knows why pieces of a response stop short.
func (r *Run) Resumed(ctx context.Context) error {
	return r.append(ctx, TypeSystem, SubtypeRecover, map[string]any{})
}

// apply changes the state as an event says. It is the only thing that does, so that
// a run that was resumed is what it was. The caller holds r.mu, or is alone.
func (r *Run) apply(e Event) error {
	switch e.Type {
	case TypeSystem:
		switch e.Subtype {
		case SubtypeInit:
			r.begun = true
		case subtypeToolStart:
			var id string
			if err := e.field("tool_use_id", &id); err != nil {
				return err
			}
			r.started[id] = true
		case SubtypeBlind:
			r.blind++
			for i := range r.messages {
				r.messages[i] = withoutImages(r.messages[i], cannotSee)
			}
		case SubtypeCompact:
			var kept []Message
			if err := e.field("messages", &kept); err != nil {
				return err
			}
			r.messages = kept
			r.forgetGuides()
			r.turn.context = estimate(kept)
		}
	case TypeUser:
		return r.applyUser(e)
	case TypeAssistant:
		return r.applyAssistant(e)
	case TypeControlRequest:
		var q Question
		if err := e.field("request", &q); err != nil {
			return err
		}
		r.asked[q.ToolUseID] = q
	case TypeControlResponse:
		var a Answer
		if err := e.field("response", &a); err != nil {
			return err
		}
		r.answers[a.ToolUseID] = a
		if a.Allow && a.Rule != "" {
			r.always[a.Rule] = true
		}
	case TypeUsage:
		return e.field("sandbox_seconds", &r.sandbox)
	case TypeResult:
		r.turn = turn{context: r.turn.context}
	}
	return nil
}

func (r *Run) applyUser(e Event) error {
	var m Message
	if err := e.field("message", &m); err != nil {
		return err
	}
	for _, b := range m.Content {
		if b.Type == ToolResultBlock {
			r.results[b.ToolUseID] = true
		}
	}
	var detail struct {
		Job     string
		Running bool
	}
	if e.field("sandgate", &detail) == nil && detail.Job != "" {
		r.jobs = slices.DeleteFunc(r.jobs, func(j string) bool { return j == detail.Job })
		if detail.Running && len(r.jobs) < maxFiles {
			r.jobs = append(r.jobs, detail.Job)
		}
	}
	var d *denial
	if err := e.field("denial", &d); err != nil {
		return err
	}
	if d != nil {
		r.turn.denials = append(r.turn.denials, *d)
	}
	if err := e.field("guidance", &r.guides); err != nil { // adds to those that there are
		return err
	}
	if !r.turn.open {
		r.turn = turn{open: true, began: e.Time, before: r.total, context: r.turn.context}
	}
	// Results and what is said after them are one turn of the user's.
	if n := len(r.messages); n > 0 && r.messages[n-1].Role == User {
		last := &r.messages[n-1]
		last.Content = append(slices.Clip(last.Content), m.Content...)
	} else {
		r.messages = append(r.messages, m)
	}
	r.boundImages()
	return nil
}

func (r *Run) applyAssistant(e Event) error {
	var m struct {
		Message
		Model string `json:"model"`
		Usage Usage  `json:"usage"`
	}
	if err := e.field("message", &m); err != nil {
		return err
	}
	var cost *float64
	if err := e.field("cost_usd", &cost); err != nil {
		return err
	}
	r.messages = append(r.messages, m.Message)
	for _, b := range m.Content {
		if b.Type == ToolUseBlock {
			r.ids[b.ID] = true
			r.files.note(b)
		}
	}
	r.turn.steps++
	r.turn.context = m.Usage.Context()
	r.total.usage = r.total.usage.plus(m.Usage)
	byModel := make(map[string]Usage, len(r.total.byModel)+1) // turn.before keeps the old one
	for k, v := range r.total.byModel {
		byModel[k] = v
	}
	byModel[m.Model] = byModel[m.Model].plus(m.Usage)
	r.total.byModel = byModel
	if cost == nil {
		r.total.unknown = true
	} else {
		r.total.cost += *cost
	}
	return nil
}

// dangling returns the calls of the last response that have no result.
func (r *Run) dangling() []Block {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range slices.Backward(r.messages) {
		if m.Role != Assistant {
			continue
		}
		var open []Block
		for _, b := range m.Content {
			if b.Type == ToolUseBlock && !r.results[b.ID] {
				open = append(open, b)
			}
		}
		return open
	}
	return nil
}

// A fileList is what was read and changed, for a summary.
type fileList struct{ read, changed []string }

const maxFiles = 100

func (l *fileList) note(call Block) {
	var in struct{ Path string }
	if json.Unmarshal(call.Input, &in) != nil || in.Path == "" || len(in.Path) > 1000 {
		return
	}
	list := &l.read
	switch call.Name {
	case "write", "edit":
		list = &l.changed
	case "read":
	default:
		return
	}
	if !slices.Contains(*list, in.Path) && len(*list) < maxFiles {
		*list = append(*list, in.Path)
	}
}
