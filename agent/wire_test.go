package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// sse writes a stream in pieces of a few bytes, so that no event comes whole.
func sse(w http.ResponseWriter, stream string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for len(stream) > 0 {
		n := min(len(stream), 7)
		io.WriteString(w, stream[:n])
		w.(http.Flusher).Flush()
		stream = stream[n:]
	}
}

const anthropicStream = `event: message_start
data: {"type":"message_start","message":{"id":"m","type":"message","role":"assistant","model":"claude-sonnet-4-5-20250929","content":[],"stop_reason":null,"usage":{"input_tokens":10,"cache_read_input_tokens":4,"cache_creation_input_tokens":5,"cache_creation":{"ephemeral_5m_input_tokens":2,"ephemeral_1h_input_tokens":3},"output_tokens":1}}}

event: ping
data: {"type":"ping"}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Hm."}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"sig"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"Grüße, "}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"日本"}}

event: content_block_stop
data: {"type":"content_block_stop","index":1}

event: content_block_start
data: {"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"toolu_1","name":"exec","input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"comm"}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"and\":\"ls\"}"}}

event: content_block_stop
data: {"type":"content_block_stop","index":2}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":77}}

event: message_stop
data: {"type":"message_stop"}

`

const responsesStream = `event: response.created
data: {"type":"response.created","sequence_number":0,"response":{"id":"r","object":"response","status":"in_progress","model":"gpt-5","output":[]}}

event: response.output_item.added
data: {"type":"response.output_item.added","output_index":0,"item":{"type":"message","id":"i0","role":"assistant","status":"in_progress","content":[]}}

event: response.output_text.delta
data: {"type":"response.output_text.delta","output_index":0,"item_id":"i0","content_index":0,"delta":"Grüße, 日本"}

event: response.output_item.done
data: {"type":"response.output_item.done","output_index":0,"item":{"type":"message","id":"i0","role":"assistant","status":"completed","content":[{"type":"output_text","text":"Grüße, 日本","annotations":[]}]}}

event: response.output_item.added
data: {"type":"response.output_item.added","output_index":1,"item":{"type":"function_call","id":"i1","call_id":"toolu_1","name":"exec","arguments":"","status":"in_progress"}}

event: response.function_call_arguments.delta
data: {"type":"response.function_call_arguments.delta","output_index":1,"item_id":"i1","delta":"{\"command\":\"ls\"}"}

event: response.completed
data: {"type":"response.completed","response":{"id":"r","object":"response","status":"completed","model":"gpt-5","output":[{"type":"reasoning","id":"rs","summary":[{"type":"summary_text","text":"Hm."}],"encrypted_content":"sig"},{"type":"message","id":"i0","role":"assistant","status":"completed","content":[{"type":"output_text","text":"Grüße, 日本","annotations":[]}]},{"type":"function_call","id":"i1","call_id":"toolu_1","name":"exec","arguments":"{\"command\":\"ls\"}","status":"completed"}],"usage":{"input_tokens":14,"input_tokens_details":{"cached_tokens":4},"output_tokens":77,"output_tokens_details":{"reasoning_tokens":5},"total_tokens":91}}}

`

const chatStream = `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m1","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}

data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m1","choices":[{"index":0,"delta":{"content":"Grüße, 日本"},"finish_reason":null}]}

data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m1","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"toolu_1","type":"function","function":{"name":"exec","arguments":"{\"comm"}}]},"finish_reason":null}]}

data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m1","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"and\":\"ls\"}"}}]},"finish_reason":null}]}

data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m1","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}

data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m1","choices":[],"usage":{"prompt_tokens":14,"completion_tokens":77,"total_tokens":91,"prompt_tokens_details":{"cached_tokens":4}}}

data: [DONE]

`

// conversation has every kind of block.
var conversation = Request{
	System: "Be good.",
	Tools:  []Spec{{Name: "exec", Description: "Run.", Schema: json.RawMessage(`{"type":"object","properties":{"command":{"type":"string"}},"required":["command"],"additionalProperties":false}`)}},
	Messages: []Message{
		{User, []Block{Text("Do it.")}},
		{Assistant, []Block{{Type: ThinkingBlock, Thinking: "Hm.", Signature: "s"}, {Type: RedactedBlock, ID: "rs", Name: fromOpenAI, Data: "enc"}, Text("I run."), use("t0", "exec", `{"command":"ls"}`)}},
		{User, []Block{{Type: ToolResultBlock, ToolUseID: "t0", Result: "no such file", IsError: true}, Text("And?")}},
	},
}

type provider struct {
	name   string
	model  func(string, Endpoint) Model
	path   string
	stream string
	usage  Usage
	sent   []string // pieces of the request's JSON
	not    []string
}

var providers = []provider{
	{"anthropic", Anthropic, "/v1/messages", anthropicStream, Usage{Input: 10, CacheRead: 4, CacheWrite5m: 2, CacheWrite1h: 3, Output: 77},
		[]string{`"cache_control":{"ttl":"1h","type":"ephemeral"}`, `"is_error":true`, `"signature":"s"`, `"additionalProperties":false`}, []string{"enc"}},
	{"openai", OpenAI, "/responses", responsesStream, Usage{Input: 10, CacheRead: 4, Output: 77, Reasoning: 5},
		[]string{`"store":false`, `"call_id":"t0"`, `"encrypted_content":"enc"`, `"Error: no such file"`, `"instructions":"Be good."`}, []string{"Hm."}},
	{"chat", Chat, "/chat/completions", chatStream, Usage{Input: 10, CacheRead: 4, Output: 77},
		[]string{`"tool_call_id":"t0"`, `"role":"system"`, `"include_usage":true`, `"Error: no such file"`}, []string{"enc", "Hm."}},
}

func TestProviders(t *testing.T) {
	for _, p := range providers {
		t.Run(p.name, func(t *testing.T) {
			var body, auth string
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				b, _ := io.ReadAll(r.Body)
				body, auth = string(b), r.Header.Get("Authorization")+r.Header.Get("X-Api-Key")
				if r.URL.Path != p.path {
					t.Errorf("path %s", r.URL.Path)
				}
				sse(w, p.stream)
			}))
			defer s.Close()
			var deltas strings.Builder
			resp, err := p.model("m1", Endpoint{BaseURL: s.URL, Key: "the-key"}).Respond(t.Context(), conversation, func(d Delta) {
				if d.Delta != nil {
					deltas.WriteString(d.Delta.Text + d.Delta.PartialJSON)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			if got := textOf(resp.Blocks); got != "Grüße, 日本" {
				t.Errorf("text %q", got)
			}
			call := resp.Blocks[len(resp.Blocks)-1]
			if call.ID != "toolu_1" || call.Name != "exec" || string(call.Input) != `{"command":"ls"}` || resp.Stop != StopTools {
				t.Errorf("call %+v, %s", call, resp.Stop)
			}
			if resp.Usage != p.usage {
				t.Errorf("usage %+v", resp.Usage)
			}
			if got := deltas.String(); got != `Grüße, 日本{"command":"ls"}` {
				t.Errorf("deltas %q", got)
			}
			if !json.Valid([]byte(body)) || !strings.Contains(auth, "the-key") {
				t.Errorf("request %s", body)
			}
			for _, want := range p.sent {
				if !strings.Contains(body, want) {
					t.Errorf("the request lacks %s: %s", want, body)
				}
			}
			for _, not := range p.not {
				if strings.Contains(body, not) {
					t.Errorf("the request has %s: %s", not, body)
				}
			}
		})
	}
}

func TestProviderErrors(t *testing.T) {
	for _, p := range providers {
		half := p.stream[:len(p.stream)*2/3]
		half = half[:strings.LastIndex(half, "\n\n")+2]
		tests := []struct {
			name  string
			serve func(http.ResponseWriter)
			check func(*ProviderError) bool
		}{
			{"busy", func(w http.ResponseWriter) {
				w.Header().Set("Retry-After", "7")
				w.WriteHeader(429)
				io.WriteString(w, `{"type":"error","error":{"type":"rate_limit_error","message":"slow down"}}`)
			}, func(e *ProviderError) bool {
				return e.Status == 429 && e.RetryAfter == 7*time.Second && e.temporary() && strings.Contains(e.Error(), "slow down")
			}},
			{"overloaded", func(w http.ResponseWriter) { w.WriteHeader(529) }, (*ProviderError).temporary},
			{"html", func(w http.ResponseWriter) { w.WriteHeader(502); io.WriteString(w, "<html>") }, (*ProviderError).temporary},
			{"wrong key", func(w http.ResponseWriter) {
				w.WriteHeader(401)
				io.WriteString(w, `{"type":"error","error":{"type":"authentication_error","message":"invalid key"}}`)
			}, func(e *ProviderError) bool { return !e.temporary() && strings.Contains(e.Error(), "invalid key") }},
			{"too long", func(w http.ResponseWriter) {
				w.WriteHeader(400)
				io.WriteString(w, `{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 210000 tokens > 200000 maximum"}}`)
			}, func(e *ProviderError) bool { return e.Overflow && !e.temporary() }},
			{"cut", func(w http.ResponseWriter) { sse(w, half) }, (*ProviderError).temporary},
			{"reset", func(w http.ResponseWriter) {
				sse(w, half)
				panic(http.ErrAbortHandler)
			}, (*ProviderError).temporary},
			{"redirect", func(w http.ResponseWriter) {
				w.Header().Set("Location", "http://127.0.0.1:1/")
				w.WriteHeader(307)
			}, func(e *ProviderError) bool { return !e.temporary() }},
		}
		if p.name == "anthropic" {
			tests = append(tests, struct {
				name  string
				serve func(http.ResponseWriter)
				check func(*ProviderError) bool
			}{"error in the stream", func(w http.ResponseWriter) {
				sse(w, half+"event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n")
			}, func(e *ProviderError) bool { return e.temporary() && e.Kind == "overloaded_error" }})
		}
		for _, tt := range tests {
			t.Run(p.name+"/"+tt.name, func(t *testing.T) {
				s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { tt.serve(w) }))
				defer s.Close()
				_, err := p.model("m1", Endpoint{BaseURL: s.URL, Key: "the-key"}).Respond(t.Context(), conversation, nil)
				e, ok := errors.AsType[*ProviderError](err)
				if !ok || !tt.check(e) {
					t.Errorf("got %#v: %v", err, err)
				}
				if err != nil && strings.Contains(err.Error(), "the-key") {
					t.Error("the error has the key in it")
				}
			})
		}
	}
}

func TestCancelledRequest(t *testing.T) {
	for _, p := range providers {
		release := make(chan struct{})
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			sse(w, p.stream[:100])
			<-release
		}))
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(50*time.Millisecond, func() { cancel(ErrCancelled) })
		_, err := p.model("m1", Endpoint{BaseURL: s.URL}).Respond(ctx, conversation, nil)
		if !errors.Is(err, ErrCancelled) {
			t.Errorf("%s: %v", p.name, err)
		}
		close(release)
		s.Close()
	}
}

func TestImpatience(t *testing.T) {
	release := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/late" {
			<-release
		}
		io.WriteString(w, "data")
		w.(http.Flusher).Flush()
		<-release
	}))
	defer s.Close()
	defer close(release)
	c := http.Client{Transport: &impatient{base: http.DefaultTransport, first: 100 * time.Millisecond, idle: 100 * time.Millisecond}}
	if _, err := c.Get(s.URL + "/late"); !errors.Is(err, errFirstByte) {
		t.Errorf("late: %v", err)
	}
	resp, err := c.Get(s.URL + "/silent")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadAll(resp.Body); !errors.Is(err, errIdle) {
		t.Errorf("silent: %v", err)
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, tt := range []struct {
		name, value string
		want        time.Duration
	}{
		{"Retry-After", "3", 3 * time.Second},
		{"Retry-After", "Fri, 02 Jan 2026 03:05:05 GMT", time.Minute},
		{"Retry-After-Ms", "1500", 1500 * time.Millisecond},
		{"Retry-After", "-3", 0},
		{"Retry-After", "soon", 0},
		{"Retry-After", "1e300", 0},
	} {
		h := http.Header{}
		h.Set(tt.name, tt.value)
		if got := retryAfter(h, now); got != tt.want {
			t.Errorf("%s: %s: %v", tt.name, tt.value, got)
		}
	}
}

// The whole loop against a server that fails in all the usual ways first.
func TestLoopOverTheWire(t *testing.T) {
	for _, p := range providers {
		t.Run(p.name, func(t *testing.T) {
			n := 0
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				n++
				switch n {
				case 1:
					w.Header().Set("Retry-After-Ms", "10")
					w.WriteHeader(429)
				case 2:
					w.WriteHeader(529)
				case 3:
					sse(w, p.stream[:len(p.stream)/2])
				default:
					sse(w, p.stream)
				}
			}))
			defer s.Close()
			log, c := &memory{}, newCounter()
			cfg := config(p.model("m1", Endpoint{BaseURL: s.URL}), log, c)
			cfg.Budget.Steps = 1
			r := New(cfg)
			r.sleep = func(context.Context, time.Duration) error { return nil }
			out, err := r.Turn(t.Context(), "go")
			if err != nil || out.Subtype != OutOfSteps || c.calls["toolu_1"] != 1 {
				t.Errorf("got %+v, %v, %v", out, err, c.calls)
			}
			if got := strings.Count(log.kinds(), SubtypeRetry); got != 3 {
				t.Errorf("%d retries: %s", got, log.kinds())
			}
		})
	}
}
