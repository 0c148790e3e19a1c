// Package scripted is a model that says what it was told to, behind the wire format
// of Anthropic's API: for tests, and for showing the agent where there is no key.
package scripted

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"

	"sandgate/agent"
)

// maxRequest bounds a request.
const maxRequest = 32 << 20

// A Model is an http.Handler. What it says next goes by how many of its messages a
// request has; when the turns have ended it repeats the last one.
type Model struct {
	turns [][]agent.Block

	mu       sync.Mutex
	requests []string
}

// New returns a model that says turns: text, and calls of tools.
func New(turns ...[]agent.Block) *Model { return &Model{turns: turns} }

// Call is a block that calls a tool. input is what its JSON is made from.
func Call(id, name string, input any) agent.Block {
	b, err := json.Marshal(input)
	if err != nil {
		panic(err)
	}
	return agent.Block{Type: agent.ToolUseBlock, ID: id, Name: name, Input: b}
}

// Requests returns the bodies of the requests so far.
func (m *Model) Requests() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]string(nil), m.requests...)
}

// ServeHTTP answers a request for a streamed message.
func (m *Model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxRequest))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var req struct{ Messages []struct{ Role agent.Role } }
	if err := json.Unmarshal(body, &req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	said := 0
	for _, msg := range req.Messages {
		if msg.Role == agent.Assistant {
			said++
		}
	}
	m.mu.Lock()
	m.requests = append(m.requests, string(body))
	turn := m.turns[min(said, len(m.turns)-1)]
	m.mu.Unlock()
	w.Header().Set("Content-Type", "text/event-stream")
	s := stream{w}
	s.send("message_start", map[string]any{"message": map[string]any{
		"id": "msg", "type": "message", "role": "assistant", "model": "scripted", "content": []any{},
		"usage": map[string]any{"input_tokens": 1000, "output_tokens": 1},
	}})
	stop := agent.StopEnd
	for i, b := range turn {
		block, delta := map[string]any{"type": "text", "text": ""}, map[string]any{"type": "text_delta", "text": b.Text}
		if b.Type == agent.ToolUseBlock {
			stop = agent.StopTools
			block = map[string]any{"type": "tool_use", "id": b.ID, "name": b.Name, "input": map[string]any{}}
			delta = map[string]any{"type": "input_json_delta", "partial_json": string(b.Input)}
		}
		s.send("content_block_start", map[string]any{"index": i, "content_block": block})
		s.send("content_block_delta", map[string]any{"index": i, "delta": delta})
		s.send("content_block_stop", map[string]any{"index": i})
	}
	s.send("message_delta", map[string]any{"delta": map[string]any{"stop_reason": stop}, "usage": map[string]any{"output_tokens": 50}})
	s.send("message_stop", map[string]any{})
}

type stream struct{ http.ResponseWriter }

func (s stream) send(typ string, event map[string]any) {
	event["type"] = typ
	b, err := json.Marshal(event)
	if err != nil {
		panic(err)
	}
	fmt.Fprintf(s, "event: %s\ndata: %s\n\n", typ, b)
	http.NewResponseController(s.ResponseWriter).Flush()
}
