package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"
)

// Causes of the end of a context that a run understands.
var (
	// ErrCancelled ends the turn: what runs is cut short, and the result says so.
	ErrCancelled = errors.New("cancelled by the user")

	// ErrSuspended leaves the run as it is, without a result, to be resumed: the
	// process is about to end.
	ErrSuspended = errors.New("suspended")
)

// A Budget bounds one turn. Zero means: no bound, but Steps, which are 50 then.
type Budget struct {
	Steps  int           // responses of the model
	Tokens int64         // of all kinds together
	Cost   float64       // US dollars; only for models whose price is known
	Time   time.Duration // from its beginning, over restarts
}

const defaultSteps = 50

// Config is what a run is made of.
type Config struct {
	ID     string // of the run, in every event as session_id
	Model  Model
	Tools  []Tool
	System string
	Init   map[string]any // more fields for the init event

	Approval Approval
	Asker    Asker // nil: nobody is there to be asked
	Budget   Budget

	Window    int64 // tokens that a conversation can have; 0: 200,000
	MaxOutput int64 // tokens of one response; 0: the model's default
	Thinking  int64 // tokens; 0: none

	// Quota, if not nil, is asked before each step. Its error stops the turn and
	// is what the result says.
	Quota func(context.Context) error

	// Guidance, if not nil, is asked before each step for the guides that are for
	// the working folder and for paths that the last step has named. It may return
	// those that were there before: the model is given each text once.
	Guidance func(ctx context.Context, paths []string) []Guide

	// SandboxTime, if not nil, says for how long the tools have had their sandbox since
	// New or Resume.
	SandboxTime func() time.Duration

	// Spent, if not nil, is told what each response used up, once it is in the
	// log. cost is nil where the price is not known.
	Spent func(u Usage, cost *float64)

	Log Log
}

// The subtypes of result events: why a turn ended.
const (
	Success       = "success"
	OutOfSteps    = "error_max_turns"
	OutOfBudget   = "error_max_budget_usd"
	Failed        = "error_during_execution"
	Cancelled     = "cancelled"
	Paused        = "paused" // the provider asks to be left alone for long
	Looping       = "loop"
	QuotaExceeded = "quota"
)

// An Outcome is how a turn ended.
type Outcome struct {
	Subtype string
	Text    string // the model's last words, or what went wrong
	Stop    StopReason
	Denials int // tool calls that were not allowed
}

// A Run is one conversation of the loop. Its methods may not be called at the same
// time.
type Run struct {
	cfg   Config
	tools map[string]Tool
	now   func() time.Time
	sleep func(context.Context, time.Duration) error

	messages []Message
	begun    bool            // init is in the log
	ids      map[string]bool // tool calls so far
	total    spending        // of the whole run
	sandbox  float64         // seconds of its use, as the last usage event has them
	before   float64         // of these, those before New or Resume
	turn     turn
	always   map[string]bool // what was approved for the rest of the run
	results  map[string]bool // calls whose results are known
	started  map[string]bool // calls that were begun
	asked    map[string]Question
	answers  map[string]Answer
	files    fileList
	blind    int               // how often the model's provider refused images
	jobs     []string          // commands that went on when they were last heard of
	guides   map[string]string // marks of what was given, by path
	mu       sync.Mutex        // guards all that apply changes while tools run or time passes
}

// A spending is what has been used.
type spending struct {
	usage   Usage
	cost    float64
	unknown bool // the price of some of it is not known
	byModel map[string]Usage
}

// A turn is the state of one turn.
type turn struct {
	open    bool // it has begun and has no result
	began   time.Time
	steps   int
	api     time.Duration
	before  spending // what the run had used when it began
	denials []denial
	recent  []string // signatures of the last steps
	warned  bool
	context int64 // tokens of the last request and response
	shrunk  int   // compactions that did not help
}

type denial struct {
	Tool   string          `json:"tool_name"`
	ID     string          `json:"tool_use_id"`
	Input  json.RawMessage `json:"tool_input"`
	Reason string          `json:"reason"`
}

// New returns a run in which nothing has happened.
func New(cfg Config) *Run {
	cfg.Window = cmp.Or(cfg.Window, 200_000)
	cfg.Budget.Steps = cmp.Or(cfg.Budget.Steps, defaultSteps)
	r := &Run{
		cfg: cfg, now: time.Now, sleep: sleep,
		tools: make(map[string]Tool), ids: make(map[string]bool), always: make(map[string]bool),
		results: make(map[string]bool), started: make(map[string]bool),
		asked: make(map[string]Question), answers: make(map[string]Answer), guides: make(map[string]string),
	}
	for _, t := range cfg.Tools {
		r.tools[t.Name] = t
	}
	r.total.byModel = make(map[string]Usage)
	return r
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Unfinished says whether a turn has begun and has no result: Continue ends it.
func (r *Run) Unfinished() bool { return r.turn.open }

// Turn says something to the model and lets it work until it has finished or
// something stops it. The error is of the log, or ErrSuspended: there is no result
// then, and the run is to be resumed from its log. Every other end is an Outcome,
// and the last event is its result.
func (r *Run) Turn(ctx context.Context, prompt string) (Outcome, error) {
	if r.turn.open {
		return Outcome{}, errors.New("the last turn has not ended")
	}
	if !r.begun {
		if err := r.init(ctx); err != nil {
			return Outcome{}, err
		}
	}
	if err := r.append(ctx, TypeUser, "", map[string]any{
		"message": Message{Role: User, Content: []Block{Text(prompt)}},
	}); err != nil {
		return Outcome{}, err
	}
	return r.Continue(ctx)
}

func (r *Run) init(ctx context.Context) error {
	f := maps.Clone(r.cfg.Init)
	if f == nil {
		f = make(map[string]any)
	}
	var names []string
	for _, t := range r.cfg.Tools {
		names = append(names, t.Name)
	}
	f["model"] = r.cfg.Model.Name()
	f["tools"] = names
	b := r.cfg.Budget
	f["limits"] = map[string]any{"max_steps": b.Steps, "max_tokens": b.Tokens, "max_cost_usd": b.Cost, "max_seconds": b.Time.Seconds()}
	f["prices_as_of"] = pricesAsOf
	f["permissionMode"] = r.cfg.Approval.Mode
	return r.append(ctx, TypeSystem, SubtypeInit, f)
}

// Continue goes on with a turn that has begun.
func (r *Run) Continue(ctx context.Context) (out Outcome, err error) {
	if !r.turn.open {
		return Outcome{}, errors.New("there is no turn to go on with")
	}
	defer func() {
		if p := recover(); p != nil {
			out = Outcome{Subtype: Failed, Text: fmt.Sprintf("the agent's loop broke: %v\n%s", p, debug.Stack())}
			err = r.finish(ctx, out)
		}
	}()
	out, err = r.work(ctx)
	if errors.Is(context.Cause(ctx), ErrSuspended) {
		return Outcome{}, ErrSuspended
	}
	if err != nil {
		return Outcome{}, err
	}
	out.Denials = len(r.turn.denials)
	return out, r.finish(ctx, out)
}

// usageEvery is how often a turn says what was used, besides after each response.
const usageEvery = time.Minute

// reportUsage says what was used now and then, until stop is called.
func (r *Run) reportUsage() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for sleep(ctx, usageEvery) == nil {
			r.show(TypeUsage, r.usage())
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// usage is what a usage event says.
func (r *Run) usage() map[string]any {
	r.mu.Lock()
	defer r.mu.Unlock()
	seconds := r.before
	if r.cfg.SandboxTime != nil {
		seconds += r.cfg.SandboxTime().Round(time.Millisecond).Seconds()
	}
	return map[string]any{
		"usage": r.total.usage, "cost_usd": r.total.costOrNil(),
		"context_used": r.turn.context, "context_size": r.cfg.Window, "sandbox_seconds": seconds,
	}
}

// work takes step after step. The error is of the log.
func (r *Run) work(ctx context.Context) (Outcome, error) {
	defer r.reportUsage()()
	if b := r.cfg.Budget.Time; b > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, r.turn.began.Add(b), errOutOfTime)
		defer cancel()
	}
	// A turn that was cut off after its last response needs no further one.
	if n := len(r.messages); n > 0 && r.messages[n-1].Role == Assistant && !slices.ContainsFunc(r.messages[n-1].Content, isToolUse) {
		return Outcome{Subtype: Success, Text: textOf(r.messages[n-1].Content), Stop: StopEnd}, nil
	}
	for {
		if err := r.callTools(ctx); err != nil {
			return Outcome{}, err
		}
		if out, stop := r.stop(ctx); stop {
			return out, nil
		}
		if r.stuck() {
			if r.turn.warned {
				return Outcome{Subtype: Looping, Text: "the model repeats the same call with the same result"}, nil
			}
			r.turn.warned = true
			if err := r.append(ctx, TypeUser, "", map[string]any{
				"message": Message{Role: User, Content: []Block{Text(stuckWarning)}}, "synthetic": true,
			}); err != nil {
				return Outcome{}, err
			}
		}
		if err := r.guide(ctx); err != nil {
			return Outcome{}, err
		}
		resp, out, err := r.respond(ctx)
		if err != nil || out.Subtype != "" {
			return out, err
		}
		if !slices.ContainsFunc(resp.Blocks, isToolUse) {
			return Outcome{Subtype: Success, Text: textOf(resp.Blocks), Stop: resp.Stop}, nil
		}
	}
}

var errOutOfTime = errors.New("the time for this turn is used up")

// stop says whether the turn is to end before the next step, and how.
func (r *Run) stop(ctx context.Context) (Outcome, bool) {
	spent := r.total.usage.minus(r.turn.before.usage)
	tokens := spent.Context() // of all kinds
	b := r.cfg.Budget
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errOutOfTime):
		return Outcome{Subtype: OutOfBudget, Text: errOutOfTime.Error()}, true
	case cause != nil:
		return Outcome{Subtype: Cancelled, Text: cause.Error()}, true
	case r.turn.steps >= b.Steps:
		return Outcome{Subtype: OutOfSteps, Text: fmt.Sprintf("the %d steps of this turn are used up", b.Steps)}, true
	case b.Tokens > 0 && tokens >= b.Tokens:
		return Outcome{Subtype: OutOfBudget, Text: fmt.Sprintf("the %d tokens of this turn are used up", b.Tokens)}, true
	case b.Cost > 0 && r.total.cost-r.turn.before.cost >= b.Cost:
		return Outcome{Subtype: OutOfBudget, Text: fmt.Sprintf("the %.2f dollars of this turn are used up", b.Cost)}, true
	}
	if r.cfg.Quota != nil {
		if err := r.cfg.Quota(ctx); err != nil {
			return Outcome{Subtype: QuotaExceeded, Text: err.Error()}, true
		}
	}
	return Outcome{}, false
}

func (u Usage) minus(v Usage) Usage {
	return Usage{
		Input: u.Input - v.Input, CacheRead: u.CacheRead - v.CacheRead,
		CacheWrite5m: u.CacheWrite5m - v.CacheWrite5m, CacheWrite1h: u.CacheWrite1h - v.CacheWrite1h,
		Output: u.Output - v.Output, Reasoning: u.Reasoning - v.Reasoning,
	}
}

// The patience with a provider.
const (
	maxTries     = 8
	firstBackoff = 2 * time.Second
	maxBackoff   = 60 * time.Second
)

// respond has one response of the model, with retries, and puts it into the log. An
// outcome with a subtype ends the turn.
func (r *Run) respond(ctx context.Context) (Response, Outcome, error) {
	compacted := false
	if out, err := r.compactIfNeeded(ctx); err != nil || out.Subtype != "" {
		return Response{}, out, err
	}
	for try := 1; ; try++ {
		began := r.now()
		resp, err := r.cfg.Model.Respond(ctx, r.request(), func(d Delta) {
			r.show(TypeStream, map[string]any{"event": d})
		})
		r.turn.api += r.now().Sub(began)
		if err == nil {
			return resp, Outcome{}, r.record(ctx, resp)
		}
		if out, stop := r.stop(ctx); stop && ctx.Err() != nil {
			return Response{}, out, nil
		}
		failure, ok := errors.AsType[*ProviderError](err)
		if !ok {
			return Response{}, Outcome{Subtype: Failed, Text: err.Error()}, nil
		}
		if n, _ := countImages(r.messages); n > 0 && failure.becauseOfImages() {
			if err := r.append(ctx, TypeSystem, SubtypeBlind, map[string]any{"images": n, "error": failure.Error()}); err != nil {
				return Response{}, Outcome{}, err
			}
			continue
		}
		if failure.Overflow && !compacted {
			compacted = true
			if out, err := r.compact(ctx, "overflow"); err != nil || out.Subtype != "" {
				return Response{}, out, err
			}
			continue
		}
		if !failure.temporary() {
			return Response{}, Outcome{Subtype: Failed, Text: failure.Error()}, nil
		}
		wait := failure.RetryAfter
		if wait == 0 {
			wait = min(firstBackoff<<(try-1), maxBackoff)
			wait = wait/2 + rand.N(wait/2+1)
		}
		if try == maxTries || wait > maxBackoff {
			return Response{}, Outcome{Subtype: Paused, Text: fmt.Sprintf("%v; go on later", failure)}, nil
		}
		if err := r.append(ctx, TypeSystem, SubtypeRetry, map[string]any{
			"attempt": try, "max": maxTries, "wait_ms": wait.Milliseconds(), "status": failure.Status, "error": failure.Error(),
		}); err != nil {
			return Response{}, Outcome{}, err
		}
		if err := r.sleep(ctx, wait); err != nil {
			out, _ := r.stop(ctx)
			return Response{}, out, nil
		}
	}
}

func (r *Run) request() Request {
	req := Request{System: r.cfg.System, Messages: r.messages, MaxOutput: r.cfg.MaxOutput, Thinking: r.cfg.Thinking}
	for _, t := range r.cfg.Tools {
		req.Tools = append(req.Tools, t.Spec)
	}
	return req
}

// record puts a response into the log. Ids of calls that are missing, or that came
// before, are replaced: a call's id must be its own within the run.
func (r *Run) record(ctx context.Context, resp Response) error {
	for i := range resp.Blocks {
		b := &resp.Blocks[i]
		if b.Type == ToolUseBlock && (b.ID == "" || r.ids[b.ID] || len(b.ID) > 128) {
			b.ID = fmt.Sprintf("call_%d_%d", len(r.ids), i)
		}
	}
	if len(resp.Blocks) == 0 {
		resp.Blocks = []Block{Text("")}
	}
	cost := cost(resp.Model, r.cfg.Model.Name(), resp.Usage)
	if err := r.append(ctx, TypeAssistant, "", map[string]any{
		"message": struct {
			Message
			Model string     `json:"model"`
			Stop  StopReason `json:"stop_reason"`
			Usage Usage      `json:"usage"`
		}{Message{Assistant, resp.Blocks}, resp.Model, resp.Stop, resp.Usage},
		"cost_usd": cost,
	}); err != nil {
		return err
	}
	if r.cfg.Spent != nil {
		r.cfg.Spent(resp.Usage, cost)
	}
	return r.append(ctx, TypeUsage, "", r.usage())
}

func (s spending) costOrNil() *float64 {
	if s.unknown {
		return nil
	}
	return &s.cost
}

// finish writes the result of a turn, whatever happened to the context.
func (r *Run) finish(ctx context.Context, out Outcome) error {
	ctx = context.WithoutCancel(ctx)
	// A conversation that ends in the middle of a call could not go on.
	for _, b := range r.dangling() {
		if err := r.result(ctx, b, Result{Text: `{"code":"cancelled","message":"the turn ended before this call was made"}`, IsError: true}); err != nil {
			return err
		}
	}
	byModel := make(map[string]any)
	for name, u := range r.total.byModel {
		byModel[name] = u
	}
	return r.append(ctx, TypeResult, out.Subtype, map[string]any{
		"is_error":           out.Subtype != Success,
		"num_turns":          r.turn.steps,
		"duration_ms":        r.now().Sub(r.turn.began).Milliseconds(),
		"duration_api_ms":    r.turn.api.Milliseconds(),
		"total_cost_usd":     r.total.costOrNil(),
		"usage":              r.total.usage,
		"modelUsage":         byModel,
		"permission_denials": slices.Clone(r.turn.denials),
		"result":             out.Text,
		"stop_reason":        out.Stop,
		"resumable":          true,
	})
}

// append gives an event its time, puts it into the log and applies it to the run's
// state.
func (r *Run) append(ctx context.Context, typ, subtype string, fields map[string]any) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	fields["session_id"] = r.cfg.ID
	e := Event{Time: r.now(), Type: typ, Subtype: subtype, Fields: fields}
	seq, err := r.cfg.Log.Append(context.WithoutCancel(ctx), e)
	if err != nil {
		return fmt.Errorf("event log: %w", err)
	}
	e.Seq = seq
	return r.apply(e)
}

// show shows an event that is not kept.
func (r *Run) show(typ string, fields map[string]any) {
	fields["session_id"] = r.cfg.ID
	r.cfg.Log.Show(Event{Time: r.now(), Type: typ, Fields: fields})
}

func isToolUse(b Block) bool { return b.Type == ToolUseBlock }

func textOf(blocks []Block) string {
	var parts []string
	for _, b := range blocks {
		if b.Type == TextBlock && b.Text != "" {
			parts = append(parts, b.Text)
		}
	}
	return strings.Join(parts, "\n")
}
