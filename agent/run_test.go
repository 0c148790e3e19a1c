package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A script is a model that says what it is told to, by how many responses are in
// the conversation.
type script struct {
	mu    sync.Mutex
	turns []any // []Block, or error; an error is given once
	asked []Request
}

func (s *script) Name() string { return "claude-sonnet-4-5" }

func (s *script) Respond(ctx context.Context, req Request, show func(Delta)) (Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, req)
	if err := ctx.Err(); err != nil {
		return Response{}, context.Cause(ctx)
	}
	n := 0
	for _, m := range req.Messages {
		if m.Role == Assistant {
			n++
		}
	}
	for i := 0; ; i++ {
		if i == len(s.turns) {
			return Response{}, errors.New("the script has ended")
		}
		err, failed := s.turns[i].(error)
		switch {
		case failed && n == 0:
			s.turns = slices.Delete(s.turns, i, i+1)
			return Response{}, err
		case failed:
		case n == 0:
			blocks := slices.Clone(s.turns[i].([]Block))
			if show != nil {
				for k, b := range blocks {
					show(Delta{Type: "content_block_start", Index: k, Block: &b})
				}
			}
			stop := StopEnd
			if slices.ContainsFunc(blocks, isToolUse) {
				stop = StopTools
			}
			return Response{Model: "claude-sonnet-4-5-20250929", Blocks: blocks, Stop: stop, Usage: Usage{Input: 1000, CacheRead: 400, Output: 100}}, nil
		default:
			n--
		}
	}
}

func use(id, name, input string) Block {
	return Block{Type: ToolUseBlock, ID: id, Name: name, Input: json.RawMessage(input)}
}

// A memory is a log.
type memory struct {
	mu     sync.Mutex
	events []Event
	shown  []Event
	onto   func(Event) // called after each append; may be nil
}

func (m *memory) Append(_ context.Context, e Event) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e.Seq = int64(len(m.events)) + 1
	b, err := json.Marshal(e)
	if err != nil {
		return 0, err
	}
	var back Event
	if err := json.Unmarshal(b, &back); err != nil {
		return 0, err
	}
	m.events = append(m.events, back)
	if m.onto != nil {
		m.onto(back)
	}
	return e.Seq, nil
}

func (m *memory) Show(e Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.shown = append(m.shown, e)
}

func (m *memory) all() iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for _, e := range m.events {
			if !yield(e, nil) {
				return
			}
		}
	}
}

// kinds returns the types of the events in order.
func (m *memory) kinds() string {
	var k []string
	for _, e := range m.events {
		s := e.Type
		if e.Subtype != "" {
			s += "/" + e.Subtype
		}
		k = append(k, s)
	}
	return strings.Join(k, " ")
}

// counter is a tool that counts its calls by id.
type counter struct {
	mu    sync.Mutex
	calls map[string]int
}

func (c *counter) tool(name string, readOnly bool) Tool {
	t := Tool{
		Spec:     Spec{Name: name, Description: name, Schema: json.RawMessage(`{"type":"object"}`)},
		ReadOnly: readOnly,
		Call: func(_ context.Context, id string, input json.RawMessage, progress func(Progress)) (Result, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.calls[id]++
			progress(Progress{Stream: "stdout", Text: "working"})
			return Result{Text: name + " " + string(input), Detail: json.RawMessage(`{"ok":true}`)}, nil
		},
	}
	if name == "exec" {
		t.Recover = func(_ context.Context, id string, input json.RawMessage, _ func(Progress)) (Result, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.calls[id] == 0 {
				return Result{}, ErrNotBegun
			}
			return Result{Text: name + " " + string(input)}, nil
		}
	}
	return t
}

func newCounter() *counter { return &counter{calls: make(map[string]int)} }

func sixSteps() []any {
	return []any{
		[]Block{Text("I look."), use("a", "read", `{"path":"x"}`), use("b", "read", `{"path":"y"}`), use("c", "exec", `{"command":"ls"}`)},
		[]Block{use("d", "write", `{"path":"z"}`)},
		[]Block{Text("Done.")},
	}
}

func config(m Model, l Log, c *counter) Config {
	return Config{ID: "run1", Model: m, Log: l, Tools: []Tool{c.tool("exec", false), c.tool("read", true), c.tool("write", false)}}
}

func TestTurn(t *testing.T) {
	log, c, m := &memory{}, newCounter(), &script{turns: sixSteps()}
	r := New(config(m, log, c))
	out, err := r.Turn(t.Context(), "do it")
	if err != nil || out.Subtype != Success || out.Text != "Done." {
		t.Fatalf("got %+v, %v", out, err)
	}
	want := "system/init user assistant usage system/tool_start system/tool_start user user system/tool_start user assistant usage system/tool_start user assistant usage result/success"
	got := log.kinds()
	// The two reads go side by side.
	if got != want && got != strings.Replace(want, "system/tool_start system/tool_start user user", "system/tool_start user system/tool_start user", 1) {
		t.Errorf("events: %s", got)
	}
	last := m.asked[len(m.asked)-1].Messages
	if len(last) != 5 || len(last[2].Content) != 3 || last[4].Content[0].Result != `write {"path":"z"}` {
		b, _ := json.MarshalIndent(last, "", " ")
		t.Errorf("the model was told %s", b)
	}
	var cost *float64
	log.events[len(log.events)-1].field("total_cost_usd", &cost)
	if cost == nil || *cost < 0.0138 || *cost > 0.0139 { // 3 x (1000*3 + 400*0.3 + 100*15) / 1e6
		t.Errorf("cost %v", cost)
	}
	// A second turn goes on in the same conversation.
	m.turns = append(m.turns, []Block{Text("Again.")})
	if out, err := r.Turn(t.Context(), "and?"); err != nil || out.Text != "Again." {
		t.Errorf("got %+v, %v", out, err)
	}
}

// A run that is cut off after any event and resumed ends as if nothing had been, and
// makes no call twice.
func TestResumeAnywhere(t *testing.T) {
	whole := &memory{}
	if _, err := New(config(&script{turns: sixSteps()}, whole, newCounter())).Turn(t.Context(), "do it"); err != nil {
		t.Fatal(err)
	}
	for cut := 2; cut < len(whole.events); cut++ {
		for _, during := range []bool{false, true} { // before the log's next event, or while a call is made
			log, c := &memory{}, newCounter()
			ctx, cancel := context.WithCancelCause(t.Context())
			log.onto = func(e Event) {
				if int(e.Seq) == cut {
					cancel(ErrSuspended)
				}
			}
			cfg := config(&script{turns: sixSteps()}, log, c)
			if during {
				for i := range cfg.Tools {
					call := cfg.Tools[i].Call
					cfg.Tools[i].Call = func(ctx context.Context, id string, in json.RawMessage, p func(Progress)) (Result, error) {
						res, err := call(ctx, id, in, p)
						if ctx.Err() != nil {
							res.Text = "a result that nobody may see"
						}
						return res, err
					}
				}
			}
			_, err := New(cfg).Turn(ctx, "do it")
			if err != nil && !errors.Is(err, ErrSuspended) {
				t.Fatal(err)
			}
			log.events = log.events[:min(cut, len(log.events))]
			log.onto = nil
			r, err := Resume(config(&script{turns: sixSteps()}, log, c), log.all())
			if err != nil {
				t.Fatal(err)
			}
			if !r.Unfinished() {
				t.Fatalf("cut at %d: nothing to go on with", cut)
			}
			out, err := r.Continue(t.Context())
			if err != nil || out.Subtype != Success || out.Text != "Done." {
				t.Errorf("cut at %d: %+v, %v: %s", cut, out, err, log.kinds())
			}
			if n := strings.Count(log.kinds(), "result/"); n != 1 {
				t.Errorf("cut at %d: %d results", cut, n)
			}
			for id, n := range c.calls {
				if n > 1 && id != "a" && id != "b" { // reads may be repeated
					t.Errorf("cut at %d: call %s was made %d times: %s", cut, id, n, log.kinds())
				}
			}
			for i, e := range log.events {
				if e.Seq != int64(i)+1 {
					t.Errorf("cut at %d: event %d has the number %d", cut, i, e.Seq)
				}
			}
		}
	}
}

func TestOutcomeUnknown(t *testing.T) {
	log, c := &memory{}, newCounter()
	ctx, cancel := context.WithCancelCause(t.Context())
	log.onto = func(e Event) {
		if e.Subtype == subtypeToolStart {
			cancel(ErrSuspended)
		}
	}
	turns := []any{[]Block{use("d", "write", `{}`)}, []Block{Text("I see.")}}
	if _, err := New(config(&script{turns: turns}, log, c)).Turn(ctx, "x"); !errors.Is(err, ErrSuspended) {
		t.Fatal(err)
	}
	log.onto = nil
	m := &script{turns: turns}
	r, err := Resume(config(m, log, c), log.all())
	if err != nil {
		t.Fatal(err)
	}
	out, err := r.Continue(t.Context())
	if err != nil || out.Text != "I see." || c.calls["d"] != 1 {
		t.Errorf("got %+v, %v after %d calls", out, err, c.calls["d"])
	}
	last := m.asked[0].Messages
	if got := last[len(last)-1].Content[0].Result; !strings.Contains(got, "outcome_unknown") {
		t.Errorf("the model was told %q", got)
	}
}

func TestStops(t *testing.T) {
	same := make([]any, 100)
	for i := range same {
		same[i] = []Block{use(fmt.Sprint("id", i), "read", `{"path":"x"}`)}
	}
	other := make([]any, 100)
	for i := range other {
		other[i] = []Block{use(fmt.Sprint("id", i), "read", fmt.Sprintf(`{"path":"x%d"}`, i))}
	}
	tests := []struct {
		name  string
		turns []any
		set   func(*Config)
		want  string
		steps int
	}{
		{"steps", other, func(*Config) {}, OutOfSteps, 50},
		{"few steps", other, func(c *Config) { c.Budget.Steps = 3 }, OutOfSteps, 3},
		{"tokens", other, func(c *Config) { c.Budget.Tokens = 4000 }, OutOfBudget, 3},
		{"cost", other, func(c *Config) { c.Budget.Cost = 0.01 }, OutOfBudget, 3},
		{"loop", same, func(*Config) {}, Looping, 7},
		{"quota", other, func(c *Config) {
			n := 0
			c.Quota = func(context.Context) error {
				if n++; n > 2 {
					return errors.New("tokens: 10 of 10")
				}
				return nil
			}
		}, QuotaExceeded, 2},
		{"refused", []any{&ProviderError{Status: 401, Message: "no"}}, func(*Config) {}, Failed, 0},
		{"busy for long", []any{&ProviderError{Status: 429, RetryAfter: time.Hour}}, func(*Config) {}, Paused, 0},
		{"never", slices.Repeat([]any{&ProviderError{Status: 529}}, 8), func(*Config) {}, Paused, 0},
		{"often, then well", append(slices.Repeat([]any{&ProviderError{Status: 529}}, 7), []Block{Text("ok")}), func(*Config) {}, Success, 1},
		{"not a provider's", []any{errors.New("odd")}, func(*Config) {}, Failed, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			log := &memory{}
			cfg := config(&script{turns: slices.Clone(tt.turns)}, log, newCounter())
			tt.set(&cfg)
			r := New(cfg)
			r.sleep = func(context.Context, time.Duration) error { return nil }
			out, err := r.Turn(t.Context(), "go")
			var steps int
			log.events[len(log.events)-1].field("num_turns", &steps)
			if err != nil || out.Subtype != tt.want || steps != tt.steps {
				t.Errorf("got %+v, %v after %d steps", out, err, steps)
			}
			if strings.Count(log.kinds(), "result/") != 1 || log.events[len(log.events)-1].Type != TypeResult {
				t.Errorf("events: %s", log.kinds())
			}
		})
	}
}

func TestCancel(t *testing.T) {
	log, c := &memory{}, newCounter()
	cfg := config(&script{turns: []any{[]Block{use("a", "exec", `{}`), use("b", "exec", `{}`)}, []Block{Text("ok")}}}, log, c)
	ctx, cancel := context.WithCancelCause(t.Context())
	call := cfg.Tools[0].Call
	cfg.Tools[0].Call = func(ctx context.Context, id string, in json.RawMessage, p func(Progress)) (Result, error) {
		cancel(ErrCancelled)
		return call(ctx, id, in, p)
	}
	r := New(cfg)
	out, err := r.Turn(ctx, "go")
	if err != nil || out.Subtype != Cancelled || c.calls["a"] != 1 || c.calls["b"] != 0 {
		t.Fatalf("got %+v, %v, %v", out, err, c.calls)
	}
	if d := r.dangling(); len(d) != 0 {
		t.Errorf("calls without a result: %v", d)
	}
	if out, err := r.Turn(t.Context(), "go on"); err != nil || out.Text != "ok" {
		t.Errorf("got %+v, %v", out, err)
	}
}

func TestBrokenTool(t *testing.T) {
	log, c := &memory{}, newCounter()
	m := &script{turns: []any{[]Block{use("a", "exec", `{}`), use("", "nonsense", `{}`)}, []Block{Text("ok")}}}
	cfg := config(m, log, c)
	cfg.Tools[0].Call = func(context.Context, string, json.RawMessage, func(Progress)) (Result, error) { panic("oh") }
	out, err := New(cfg).Turn(t.Context(), "go")
	if err != nil || out.Text != "ok" {
		t.Fatalf("got %+v, %v", out, err)
	}
	results := m.asked[1].Messages[2].Content
	if !results[0].IsError || !strings.Contains(results[1].Result, "there is no tool") {
		t.Errorf("results: %+v", results)
	}
}

func TestHostileResult(t *testing.T) {
	log, c := &memory{}, newCounter()
	m := &script{turns: []any{[]Block{use("a", "exec", `{}`)}, []Block{Text("ok")}}}
	cfg := config(m, log, c)
	cfg.Tools[0].Call = func(context.Context, string, json.RawMessage, func(Progress)) (Result, error) {
		return Result{Text: "a\x00b\xff\xfec" + strings.Repeat("x", 1<<20)}, nil
	}
	if out, err := New(cfg).Turn(t.Context(), "go"); err != nil || out.Text != "ok" {
		t.Fatalf("got %+v, %v", out, err)
	}
	got := m.asked[1].Messages[2].Content[0].Result
	if !strings.HasPrefix(got, "a\uFFFDb\uFFFDc") || len(got) > maxResult+10 {
		t.Errorf("%d bytes: %.20q", len(got), got)
	}
}

func TestCompact(t *testing.T) {
	log, c := &memory{}, newCounter()
	m := &compacting{}
	cfg := config(m, log, c)
	cfg.Window = 60_000
	cfg.Tools[1].Call = func(_ context.Context, id string, _ json.RawMessage, _ func(Progress)) (Result, error) {
		return Result{Text: id + strings.Repeat(" text", 4000)}, nil
	}
	out, err := New(cfg).Turn(t.Context(), "read all of it")
	if err != nil || out.Subtype != Success {
		t.Fatalf("got %+v, %v: %s", out, err, log.kinds())
	}
	if !strings.Contains(log.kinds(), "compact_boundary") {
		t.Error("nothing was compacted")
	}
	if m.most > 60_000 {
		t.Errorf("a request had %d tokens", m.most)
	}
	r, err := Resume(cfg, log.all())
	if err != nil || estimate(r.messages) > 60_000 {
		t.Errorf("resumed with %d tokens, %v", estimate(r.messages), err)
	}
}

// compacting is a model that reads 40 files, and checks that calls and results in
// what it is told belong together.
type compacting struct {
	n    int
	most int64
}

func (m *compacting) Name() string { return "x" }

func (m *compacting) Respond(_ context.Context, req Request, _ func(Delta)) (Response, error) {
	tokens := estimate(req.Messages)
	m.most = max(m.most, tokens)
	open := map[string]bool{}
	for i, msg := range req.Messages {
		if i > 0 && msg.Role == req.Messages[i-1].Role {
			return Response{}, errors.New("two messages of one role")
		}
		for _, b := range msg.Content {
			switch b.Type {
			case ToolUseBlock:
				open[b.ID] = true
			case ToolResultBlock:
				if !open[b.ToolUseID] {
					return Response{}, errors.New("a result without a call")
				}
				delete(open, b.ToolUseID)
			}
		}
	}
	if len(open) > 0 {
		return Response{}, errors.New("a call without a result")
	}
	last := req.Messages[len(req.Messages)-1].Content
	if last[len(last)-1].Text == sumUp {
		return Response{Blocks: []Block{Text("I read some files.")}, Usage: Usage{Input: tokens}}, nil
	}
	m.n++
	if m.n > 40 {
		return Response{Blocks: []Block{Text("done")}, Usage: Usage{Input: tokens}}, nil
	}
	return Response{Blocks: []Block{use(fmt.Sprint("id", m.n), "read", fmt.Sprintf(`{"path":"f%d"}`, m.n))}, Usage: Usage{Input: tokens}, Stop: StopTools}, nil
}

func TestEventJSON(t *testing.T) {
	e := Event{Seq: 7, Time: time.UnixMilli(1700000000123), Type: TypeSystem, Subtype: SubtypeInit, Fields: map[string]any{"cwd": "/w"}}
	b, err := json.Marshal(e)
	if err != nil || string(b) != `{"cwd":"/w","seq":7,"subtype":"init","ts":"2023-11-14T22:13:20.123Z","type":"system"}` {
		t.Fatalf("%s %v", b, err)
	}
	var back Event
	if err := json.Unmarshal(b, &back); err != nil || back.Seq != 7 || !back.Time.Equal(e.Time) {
		t.Errorf("%+v %v", back, err)
	}
}

// A run of 500 steps stays under 50 MB, its results of 20 kB and all.
func TestLongRunMemory(t *testing.T) {
	var turns []any
	for i := range 500 {
		turns = append(turns, []Block{use(fmt.Sprint("id", i), "read", fmt.Sprintf(`{"path":"x%d"}`, i))})
	}
	turns = append(turns, []Block{Text("Done.")})
	c := newCounter()
	cfg := config(&quiet{turns: turns}, discard{}, c)
	cfg.Budget.Steps = 1000
	long := strings.Repeat("0123456789", 2000)
	call := cfg.Tools[1].Call
	cfg.Tools[1].Call = func(ctx context.Context, id string, in json.RawMessage, p func(Progress)) (Result, error) {
		res, err := call(ctx, id, in, p)
		res.Text += long
		return res, err
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	r := New(cfg)
	if out, err := r.Turn(t.Context(), "go"); err != nil || out.Subtype != Success {
		t.Fatal(out, err)
	}
	if after := heap(); after > before+50<<20 {
		t.Errorf("%d MB", (after-before)>>20)
	} else {
		t.Logf("%.1f MB", (float64(after)-float64(before))/1e6)
	}
	runtime.KeepAlive(r)
}

// A quiet model is a script that does not remember what it was asked; discard is a log
// that keeps nothing.
type quiet struct{ turns []any }

func (q *quiet) Name() string { return "claude-sonnet-4-5" }

func (q *quiet) Respond(ctx context.Context, req Request, show func(Delta)) (Response, error) {
	s := script{turns: q.turns}
	return s.Respond(ctx, req, show)
}

type discard struct{}

func (discard) Append(context.Context, Event) (int64, error) { return 1, nil }
func (discard) Show(Event)                                   {}

func BenchmarkStep(b *testing.B) {
	var turns []any
	for i := range 500 {
		turns = append(turns, []Block{use(fmt.Sprint("id", i), "read", fmt.Sprintf(`{"path":"x%d"}`, i))})
	}
	for b.Loop() {
		cfg := config(&script{turns: turns}, &memory{}, newCounter())
		cfg.Budget.Steps = 400
		if out, err := New(cfg).Turn(b.Context(), "go"); err != nil || out.Subtype != OutOfSteps {
			b.Fatal(out, err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/400, "µs/step")
}

// A turn says every minute what was used, also while the model thinks or a tool runs,
// and after its result no more.
func TestUsageEveryMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &memory{}
		began := time.Now()
		cfg := Config{ID: "r", Log: log, SandboxTime: func() time.Duration { return time.Since(began) }}
		cfg.Model = &script{turns: []any{[]Block{use("t1", "nap", "{}")}, []Block{Text("Done.")}}}
		cfg.Tools = []Tool{{Spec: Spec{Name: "nap"}, Call: func(ctx context.Context, _ string, _ json.RawMessage, _ func(Progress)) (Result, error) {
			time.Sleep(150 * time.Second)
			return Result{Text: "slept"}, nil
		}}}
		if _, err := New(cfg).Turn(t.Context(), "rest"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		var seconds []float64
		for _, e := range log.shown {
			if e.Type == TypeUsage {
				seconds = append(seconds, e.Fields["sandbox_seconds"].(float64))
			}
		}
		if fmt.Sprint(seconds) != "[60 120]" {
			t.Errorf("usage after %v", seconds)
		}
		// Another process goes on counting.
		again, err := Resume(cfg, log.all())
		if err != nil {
			t.Fatal(err)
		}
		if began = time.Now(); again.usage()["sandbox_seconds"] != 150.0 {
			t.Errorf("after a restart: %v", again.usage())
		}
	})
}
