package agent

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// subtypeToolStart marks, in the log, that a call is about to be made. A call
// without it was never made; one with it and without a result may have been.
const subtypeToolStart = "tool_start"

// callTools makes the calls of the last response that have no result: read-only ones
// that stand beside each other at the same time, others by themselves, in order.
// The error is of the log.
func (r *Run) callTools(ctx context.Context) error {
	calls := r.dangling()
	if len(calls) == 0 {
		return nil
	}
	for len(calls) > 0 && ctx.Err() == nil {
		n := 1
		if r.readOnly(calls[0]) {
			for n < len(calls) && n < maxParallel && r.readOnly(calls[n]) {
				n++
			}
		}
		errs := make([]error, n)
		var wg sync.WaitGroup
		for i, call := range calls[:n] {
			wg.Go(func() { errs[i] = r.callTool(ctx, call) })
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		calls = calls[n:]
	}
	r.sign()
	return nil
}

const maxParallel = 8

func (r *Run) readOnly(call Block) bool { return r.tools[call.Name].ReadOnly }

// callTool makes one call, once it is approved, and puts its result into the log.
func (r *Run) callTool(ctx context.Context, call Block) error {
	tool, ok := r.tools[call.Name]
	switch {
	case call.Name == askUserTool:
		return r.askUser(ctx, call)
	case !ok:
		return r.result(ctx, call, failure("bad_args", fmt.Sprintf("there is no tool %.60q", call.Name), "the tools are "+strings.Join(r.names(), ", ")))
	}
	if !r.hasStarted(call.ID) {
		d, err := r.approve(ctx, tool, call)
		if err != nil {
			return err
		}
		if d != nil {
			return r.resultWith(ctx, call, failure("denied", d.Reason, "do it another way, or say what you need and why"), d)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err := r.append(ctx, TypeSystem, subtypeToolStart, map[string]any{"tool_use_id": call.ID, "tool": call.Name}); err != nil {
			return err
		}
		return r.outcome(ctx, call, func(p func(Progress)) (Result, error) { return tool.Call(ctx, call.ID, call.Input, p) })
	}
	switch {
	case tool.Recover != nil:
		return r.outcome(ctx, call, func(p func(Progress)) (Result, error) {
			res, err := tool.Recover(ctx, call.ID, call.Input, p)
			if errors.Is(err, ErrNotBegun) {
				return tool.Call(ctx, call.ID, call.Input, p)
			}
			return res, err
		})
	case tool.ReadOnly:
		return r.outcome(ctx, call, func(p func(Progress)) (Result, error) { return tool.Call(ctx, call.ID, call.Input, p) })
	}
	return r.result(ctx, call, failure("outcome_unknown",
		"the gateway was restarted while this call was made, and it is not known whether it was carried out",
		"look at what is there before you do it again"))
}

func (r *Run) hasStarted(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.started[id]
}

// outcome carries a call out and puts what came of it into the log. When the run is
// suspended, nothing is: the call is recovered when the run is resumed.
func (r *Run) outcome(ctx context.Context, call Block, do func(func(Progress)) (Result, error)) (err error) {
	var res Result
	var failed error
	func() {
		defer func() {
			if p := recover(); p != nil {
				failed = fmt.Errorf("the tool broke: %v", p)
			}
		}()
		res, failed = do(func(p Progress) { r.show(TypeToolProgress, p.fields(call)) })
	}()
	if errors.Is(context.Cause(ctx), ErrSuspended) {
		return nil
	}
	if failed != nil {
		res = failure("outcome_unknown", shorten(failed.Error(), 1000), "look at what is there before you do it again")
	}
	return r.result(ctx, call, res)
}

// failure is the result of a call that came to nothing.
func failure(code, message, remedy string) Result {
	b, _ := json.Marshal(map[string]string{"code": code, "message": message, "remedy": remedy})
	return Result{Text: string(b), IsError: true, Detail: b}
}

func (r *Run) result(ctx context.Context, call Block, res Result) error {
	return r.resultWith(ctx, call, res, nil)
}

func (r *Run) resultWith(ctx context.Context, call Block, res Result, d *denial) error {
	fields := map[string]any{
		"message": Message{Role: User, Content: []Block{{
			Type: ToolResultBlock, ToolUseID: call.ID, Result: clean(res.Text), Images: res.Images, IsError: res.IsError,
		}}},
		"tool": call.Name,
	}
	if len(res.Detail) > 0 {
		fields["sandgate"] = res.Detail
	}
	if d != nil {
		fields["denial"] = d
	}
	return r.append(ctx, TypeUser, "", fields)
}

// maxResult bounds what a tool can put into a conversation, whatever it returns.
const maxResult = 256 << 10

// clean makes text fit for JSON that any provider reads: valid UTF-8, no NUL.
func clean(s string) string {
	if len(s) > maxResult {
		s = s[:maxResult]
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

func (r *Run) names() []string {
	var names []string
	for _, t := range r.cfg.Tools {
		names = append(names, t.Name)
	}
	return names
}

// How much sameness is too much.
const (
	recentSteps = 10
	mostSame    = 5
)

const stuckWarning = "You have made the same call with the same result several times. Do something else, or say what keeps you from going on."

// sign remembers what the last step did and what came of it.
func (r *Run) sign() {
	n := len(r.messages)
	if n < 2 {
		return
	}
	h := sha256.New()
	for _, b := range r.messages[n-2].Content {
		if b.Type == ToolUseBlock {
			fmt.Fprintf(h, "%s %s\n", b.Name, b.Input)
		}
	}
	for _, b := range r.messages[n-1].Content {
		if b.Type == ToolResultBlock {
			fmt.Fprintf(h, "%s\n", b.Result)
		}
	}
	r.turn.recent = append(r.turn.recent, string(h.Sum(nil)))
	if over := len(r.turn.recent) - recentSteps; over > 0 {
		r.turn.recent = slices.Delete(r.turn.recent, 0, over)
	}
}

// stuck says whether the last step was done too often of late.
func (r *Run) stuck() bool {
	n := len(r.turn.recent)
	if n == 0 {
		return false
	}
	same := 0
	for _, s := range r.turn.recent {
		if s == r.turn.recent[n-1] {
			same++
		}
	}
	return same > mostSame
}
