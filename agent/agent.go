// Package agent is a coding agent's loop: it asks a language model what to do,
// has the tools done that the model calls for, gives back what came of it, and goes
// on until the model has finished or a budget is used up.
//
// It knows neither SSH nor sandboxes: models, tools, the log of events and whoever
// answers questions are given to it. What it leaves to others is where tools run,
// who may start a run, and how events are shown.
//
// A run is the sequence of its events, and nothing else: each is in the log before
// the next step begins, and Resume makes the state of a run from them. So a run
// goes on after its process was killed, and never calls a tool a second time: a
// tool that was running is asked what became of it (Tool.Recover).
//
// The events are those of Claude Code's stream-json, with additions of our own
// under other names.
package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// A Role is whose turn a message is.
type Role string

// The roles of a conversation.
const (
	User      Role = "user"
	Assistant Role = "assistant"
)

// A Message is one turn of a conversation. In JSON it has the form of Anthropic's
// Messages API, as blocks do.
type Message struct {
	Role    Role    `json:"role"`
	Content []Block `json:"content"`
}

// A BlockType says which fields of a Block count.
type BlockType string

// The types of blocks.
const (
	TextBlock       BlockType = "text"              // Text
	ThinkingBlock   BlockType = "thinking"          // Thinking, Signature
	RedactedBlock   BlockType = "redacted_thinking" // Data
	ToolUseBlock    BlockType = "tool_use"          // ID, Name, Input
	ToolResultBlock BlockType = "tool_result"       // ToolUseID, Result, Images, IsError
)

// A Block is a piece of a message.
type Block struct {
	Type      BlockType       `json:"type"`
	Text      string          `json:"text,omitempty"`
	Thinking  string          `json:"thinking,omitempty"`
	Signature string          `json:"signature,omitempty"` // the provider's, given back as it came
	Data      string          `json:"data,omitempty"`
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name,omitempty"`
	Input     json.RawMessage `json:"input,omitempty"` // an object
	ToolUseID string          `json:"tool_use_id,omitempty"`
	Result    string          `json:"content,omitempty"`
	Images    []Image         `json:"-"` // in content, too
	IsError   bool            `json:"is_error,omitempty"`
}

// Text returns a text block.
func Text(s string) Block { return Block{Type: TextBlock, Text: s} }

// Usage counts the tokens of responses. The kinds are apart, as their prices are.
type Usage struct {
	Input        int64 `json:"input_tokens"` // neither read from nor written to a cache
	CacheRead    int64 `json:"cache_read_input_tokens"`
	CacheWrite5m int64 `json:"cache_write_5m_input_tokens"`
	CacheWrite1h int64 `json:"cache_write_1h_input_tokens"`
	Output       int64 `json:"output_tokens"`              // with Reasoning
	Reasoning    int64 `json:"reasoning_tokens,omitempty"` // as far as the provider tells
}

// Context is how many tokens the request and the response took up together.
func (u Usage) Context() int64 {
	return u.Input + u.CacheRead + u.CacheWrite5m + u.CacheWrite1h + u.Output
}

func (u Usage) plus(v Usage) Usage {
	return Usage{
		Input: u.Input + v.Input, CacheRead: u.CacheRead + v.CacheRead,
		CacheWrite5m: u.CacheWrite5m + v.CacheWrite5m, CacheWrite1h: u.CacheWrite1h + v.CacheWrite1h,
		Output: u.Output + v.Output, Reasoning: u.Reasoning + v.Reasoning,
	}
}

// A Spec describes a tool to a model.
type Spec struct {
	Name        string
	Description string
	Schema      json.RawMessage // JSON Schema of its input, an object
}

// A Request is what a model is asked.
type Request struct {
	System    string
	Tools     []Spec
	Messages  []Message
	MaxOutput int64 // tokens; 0: the model's own default
	Thinking  int64 // tokens that it may think; 0: none
}

// A StopReason is why a model ended its response.
type StopReason string

// The reasons that the loop tells apart.
const (
	StopEnd     StopReason = "end_turn"
	StopTools   StopReason = "tool_use"
	StopLength  StopReason = "max_tokens"
	StopRefusal StopReason = "refusal"
)

// A Response is a whole response of a model.
type Response struct {
	Model  string // as the provider names it
	Blocks []Block
	Usage  Usage
	Stop   StopReason
}

// A Delta is a piece of a response as it comes, in the form of the events of
// Anthropic's streaming API, whatever the provider.
type Delta struct {
	Type  string      `json:"type"` // content_block_start, content_block_delta, content_block_stop
	Index int         `json:"index"`
	Block *Block      `json:"content_block,omitempty"`
	Delta *BlockDelta `json:"delta,omitempty"`
}

// A BlockDelta is what is added to a block.
type BlockDelta struct {
	Type        string `json:"type"` // text_delta, thinking_delta, input_json_delta
	Text        string `json:"text,omitempty"`
	Thinking    string `json:"thinking,omitempty"`
	PartialJSON string `json:"partial_json,omitempty"`
}

// A Model is a language model behind some provider's API. It may be used by many
// runs at once.
type Model interface {
	// Name is what the provider calls the model.
	Name() string

	// Respond asks once, without retries. It calls show, which may be nil, for
	// each piece as it comes, and returns when the response is whole. A response
	// that breaks off is an error and its pieces count for nothing. Errors of
	// the provider are *ProviderError.
	Respond(ctx context.Context, req Request, show func(Delta)) (Response, error)
}

// A ProviderError is an answer of a model's provider that is not a response, or a
// response that broke off.
type ProviderError struct {
	Status     int    // of HTTP; 0: the connection failed or broke off
	Kind       string // the provider's word, such as overloaded_error; may be empty
	Message    string // the provider's, shortened
	RetryAfter time.Duration
	Overflow   bool // the conversation is too long for the model
	Err        error
}

func (e *ProviderError) Error() string {
	s := "model provider"
	if e.Status != 0 {
		s += fmt.Sprintf(": HTTP status %d", e.Status)
	}
	if e.Kind != "" {
		s += ": " + e.Kind
	}
	switch {
	case e.Message != "":
		s += ": " + e.Message
	case e.Err != nil:
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *ProviderError) Unwrap() error { return e.Err }

// temporary says whether the same request may succeed later.
func (e *ProviderError) temporary() bool {
	switch e.Status {
	case 0, 408, 409, 429, 529:
		return !e.Overflow
	case 200: // an error event in the middle of a stream
		switch e.Kind {
		case "invalid_request_error", "authentication_error", "permission_error", "not_found_error", "request_too_large":
			return false
		}
		return !e.Overflow
	}
	return e.Status >= 500
}

// A Result is what came of a tool call.
type Result struct {
	Text    string          // what the model reads: valid UTF-8 without NUL
	Images  []Image         // what it sees besides
	IsError bool            // the tool could not do it; the run goes on
	Detail  json.RawMessage // for programs, an object; may be nil
}

// Progress is what a tool that runs has put out so far.
type Progress struct {
	Job     string // may be empty
	Stream  string // stdout or stderr
	Text    string // what has come since the last time
	Bytes   int64  // in all
	Elapsed time.Duration
}

// fields are a piece of progress as an event has it.
func (p Progress) fields(call Block) map[string]any {
	f := map[string]any{
		"tool_use_id": call.ID, "tool": call.Name, p.Stream: p.Text, "bytes": p.Bytes, "elapsed_ms": p.Elapsed.Milliseconds(),
	}
	if p.Job != "" {
		f["job"] = p.Job
	}
	return f
}

// A Tool is something that the model can have done.
type Tool struct {
	Spec

	// ReadOnly tools change nothing: calls of them in one response run side by
	// side, and no approval is needed for them.
	ReadOnly bool

	// Call does it. id names the call for ever and is unique within the run. The
	// error is for a tool that could not even be tried or whose outcome is not
	// known: the model is told so, and the run goes on. A cancelled ctx is to
	// yield a result with what there is so far. progress may be called at any
	// time until Call returns.
	Call func(ctx context.Context, id string, input json.RawMessage, progress func(Progress)) (Result, error)

	// Recover finds out, after a restart, what became of a call that was begun
	// and whose result is not known. Nil, or ErrNotBegun: it had not begun or does
	// no harm when it is done again (ReadOnly tools); any other error: the
	// outcome cannot be found out.
	Recover func(ctx context.Context, id string, input json.RawMessage, progress func(Progress)) (Result, error)
}

// ErrNotBegun says that a call left no trace: it may be made.
var ErrNotBegun = errors.New("the call had not begun")
