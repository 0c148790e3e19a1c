package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"
)

// The types of events; see TypeSystem's subtypes for what the loop tells besides.
const (
	TypeSystem          = "system"
	TypeStream          = "stream_event" // a Delta; never in the log
	TypeAssistant       = "assistant"
	TypeToolProgress    = "tool_progress" // never in the log
	TypeUser            = "user"
	TypeControlRequest  = "control_request"
	TypeControlResponse = "control_response"
	TypeUsage           = "usage" // after each response; in between it is not in the log
	TypeResult          = "result"
)

// The subtypes of system events.
const (
	SubtypeInit     = "init"
	SubtypeRetry    = "api_retry"
	SubtypeCompact  = "compact_boundary"
	SubtypeBlind    = "images_dropped"  // the model does not take those that there are
	SubtypeRecover  = "resumed"         // the loop goes on after a restart
	SubtypeJob      = "job"             // of a command that goes on when its call has returned
	SubtypeReplayed = "replay_complete" // made for a viewer; never in the log
)

// An Event is one thing that happened in a run.
type Event struct {
	Seq     int64     // from 1 without gaps; 0: it is not in the log
	Time    time.Time // set by the loop
	Type    string
	Subtype string // may be empty

	// Fields are the rest of the event as JSON has it, by name. The names type,
	// subtype, seq and ts are taken.
	Fields map[string]any
}

// MarshalJSON returns one flat object.
func (e Event) MarshalJSON() ([]byte, error) {
	m := make(map[string]any, len(e.Fields)+4)
	maps.Copy(m, e.Fields)
	m["type"] = e.Type
	if e.Subtype != "" {
		m["subtype"] = e.Subtype
	}
	if e.Seq != 0 {
		m["seq"] = e.Seq
	}
	m["ts"] = e.Time.UTC().Format("2006-01-02T15:04:05.000Z")
	return json.Marshal(m)
}

// UnmarshalJSON is the inverse of MarshalJSON. Fields are json.RawMessage then.
func (e *Event) UnmarshalJSON(b []byte) error {
	var m map[string]json.RawMessage
	if err := json.Unmarshal(b, &m); err != nil {
		return err
	}
	take := func(name string, v any) error {
		raw, ok := m[name]
		if !ok {
			return nil
		}
		delete(m, name)
		if err := json.Unmarshal(raw, v); err != nil {
			return fmt.Errorf("event's %s: %w", name, err)
		}
		return nil
	}
	*e = Event{}
	for name, v := range map[string]any{"type": &e.Type, "subtype": &e.Subtype, "seq": &e.Seq, "ts": &e.Time} {
		if err := take(name, v); err != nil {
			return err
		}
	}
	e.Fields = make(map[string]any, len(m))
	for k, v := range m {
		e.Fields[k] = v
	}
	return nil
}

// field decodes a field of an event that came from a log, or from the loop itself.
// A field that is missing leaves v as it is.
func (e Event) field(name string, v any) error {
	f, ok := e.Fields[name]
	if !ok {
		return nil
	}
	raw, ok := f.(json.RawMessage)
	if !ok {
		var err error
		if raw, err = json.Marshal(f); err != nil {
			return err
		}
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return fmt.Errorf("%s event %d: %s: %w", e.Type, e.Seq, name, err)
	}
	return nil
}

// A Log keeps the events of one run.
type Log interface {
	// Append numbers the event, keeps it so that it is there after a crash, and
	// shows it to whoever follows the run.
	Append(ctx context.Context, e Event) (seq int64, err error)

	// Show shows an event that is not kept to whoever follows the run. It never
	// waits for them.
	Show(e Event)
}
