package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"sandgate/agent"
	"sandgate/gateway/redact"
	"sandgate/store"
)

// runs are the agent's runs that are at work. No connection owns one: it goes on
// until its turn ends or the gateway does, which resumes it when it is back.
type runs struct {
	gate  *Gateway
	tools toolbox

	ctx context.Context // ends, with agent.ErrSuspended, when the gateway does
	end context.CancelCauseFunc
	wg  sync.WaitGroup

	mu   sync.Mutex
	live map[string]*liveRun // also those that are only followed
}

func newRuns(g *Gateway, tools toolbox) *runs {
	r := &runs{gate: g, tools: tools, live: make(map[string]*liveRun)}
	r.ctx, r.end = context.WithCancelCause(context.Background())
	return r
}

// stop suspends what is at work and waits for it.
func (r *runs) stop() {
	r.end(agent.ErrSuspended)
	r.wg.Wait()
}

// resume goes on with the runs that were at work when the last gateway ended.
func (r *runs) resume(ctx context.Context) error {
	rows, err := r.gate.db.RunsAtWork(ctx)
	if err != nil {
		return err
	}
	for _, row := range rows {
		l := r.open(row)
		if err := l.begin(nil); err != nil {
			r.gate.log.Error("run not resumed", keyRun, row.ID, keyErr, err)
		}
		r.release(l)
	}
	return r.watchJobs(ctx, "")
}

// A liveRun is a run that is at work or that somebody follows.
type liveRun struct {
	runs *runs
	row  store.Run

	mu      sync.Mutex
	holders int
	working bool
	cancel  context.CancelCauseFunc
	seq     int64         // of the last event in the store
	changed chan struct{} // closed at the next event
	viewers map[*viewer]bool
	asks    map[string]*openQuestion
	alone   *time.Timer   // runs while a turn goes on that nobody follows; may be nil
	bearing time.Duration // how long it may go on so; 0: until its budget is used up

	redact atomic.Pointer[redact.Redactor]
}

// open returns a run, which is to be released.
func (r *runs) open(row store.Run) *liveRun {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.live[row.ID]
	if l == nil {
		l = &liveRun{runs: r, row: row, changed: make(chan struct{}), viewers: make(map[*viewer]bool), asks: make(map[string]*openQuestion)}
		r.live[row.ID] = l
	}
	l.holders++
	return l
}

func (r *runs) release(l *liveRun) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.holders--; l.holders == 0 {
		delete(r.live, l.row.ID)
	}
}

// errAlone ends the turn of a run that is not to go on alone for so long.
var errAlone = errors.New("nobody has followed the run for as long as it may go on so (--max-run-after-disconnect)")

// unattended is how long a run may go on with nobody there; 0: as long as it likes.
func unattended(row store.Run) (time.Duration, error) {
	var o RunOptions
	err := json.Unmarshal(row.Options, &o)
	return o.Unattended, err
}

// attended looks at whether somebody follows the turn that goes on. The caller holds mu.
func (l *liveRun) attended() {
	if l.alone != nil {
		l.alone.Stop()
		l.alone = nil
	}
	if !l.working || len(l.viewers) > 0 || l.bearing == 0 {
		return
	}
	l.alone = time.AfterFunc(l.bearing, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.cancel != nil && len(l.viewers) == 0 {
			l.cancel(errAlone)
		}
	})
}

// errBusy is the answer to who wants to say something in the middle of a turn.
var errBusy = &problem{kind: conflict, sentence: "the agent is at work on this run", hint: "wait for its end: ssh gate@HOST attach RUN; or end it: ssh gate@HOST cancel RUN"}

// begin starts a turn with a prompt, in which the model is shown no secret, or with nil
// goes on with one that was cut off. *problem errBusy if one is going on.
func (l *liveRun) begin(prompt *string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.working {
		return errBusy
	}
	if l.runs.ctx.Err() != nil {
		return errLeaving
	}
	past := newRunPast()
	cfg, done, err := l.config(past)
	if err != nil {
		return err
	}
	if l.bearing, err = unattended(l.row); err != nil {
		done()
		return err
	}
	if prompt != nil {
		said := l.redact.Load().String(*prompt)
		prompt = &said
	}
	run, err := agent.Resume(cfg, past.watch(l.stored(l.runs.ctx)))
	if err != nil {
		done()
		return fmt.Errorf("resume run %s: %w", l.row.ID, err)
	}
	if prompt == nil && !run.Unfinished() || prompt != nil && run.Unfinished() {
		done()
		if prompt != nil { // it was cut off, and could not be resumed
			return errBusy
		}
		return nil
	}
	ctx, cancel := context.WithCancelCause(l.runs.ctx)
	l.working, l.cancel = true, cancel
	l.attended()
	l.runs.mu.Lock()
	l.holders++
	l.runs.mu.Unlock()
	l.runs.wg.Go(func() {
		defer l.runs.release(l)
		defer cancel(nil)
		defer done()
		l.work(ctx, run, prompt)
	})
	return nil
}

// work carries out one turn.
func (l *liveRun) work(ctx context.Context, run *agent.Run, prompt *string) {
	log := l.runs.gate.log.With(keyRun, l.row.ID, keySandbox, l.row.SandboxID)
	began := time.Now()
	var out agent.Outcome
	var err error
	if prompt != nil {
		out, err = run.Turn(ctx, *prompt)
	} else if err = run.Resumed(ctx); err == nil {
		out, err = run.Continue(ctx)
	}
	l.mu.Lock()
	l.working, l.cancel = false, nil
	l.attended()
	l.mu.Unlock()
	switch {
	case errors.Is(err, agent.ErrSuspended):
		log.Info("run suspended")
	case errors.Is(err, store.ErrNotFound):
		log.Info("run removed")
	case err != nil:
		log.Error("run ended", keyErr, err)
	default:
		log.Info("turn ended", "how", out.Subtype, keyTook, time.Since(began).Round(time.Millisecond))
	}
	l.wake()
}

// cancel ends the turns of those runs that match, whose users may not go on with them,
// and waits for their ends.
func (r *runs) cancel(ctx context.Context, match func(store.Run) bool) {
	r.mu.Lock()
	var found []*liveRun
	for _, l := range r.live {
		if match(l.row) {
			l.holders++
			found = append(found, l)
		}
	}
	r.mu.Unlock()
	for _, l := range found {
		l.mu.Lock()
		if l.cancel != nil {
			l.cancel(agent.ErrCancelled)
		}
		l.mu.Unlock()
	}
	for _, l := range found {
		l.idle(ctx)
		r.release(l)
	}
}

// idle waits until no turn is going on.
func (l *liveRun) idle(ctx context.Context) {
	for {
		l.mu.Lock()
		working, changed := l.working, l.changed
		l.mu.Unlock()
		if !working {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// spent charges what a response used up.
func (l *liveRun) spent(u agent.Usage, cost *float64) {
	use := store.Usage{
		TokensIn: u.Input, TokensCacheRead: u.CacheRead, TokensCacheWrite: u.CacheWrite5m + u.CacheWrite1h, TokensOut: u.Output,
	}
	if cost != nil {
		use.CostMicros = int64(*cost * 1e6)
	}
	l.runs.gate.counters.spent(use)
	ctx, cancel := context.WithTimeout(context.Background(), touchTimeout)
	defer cancel()
	if err := l.runs.gate.db.AddUsage(ctx, l.row.SandboxID, time.Now(), use); err != nil {
		l.runs.gate.log.Error("tokens not recorded", keyRun, l.row.ID, keyErr, err)
	}
}

type openQuestion struct {
	agent.Question
	answer chan agent.Answer // one
}

// Ask implements agent.Asker.
func (l *liveRun) Ask(ctx context.Context, q agent.Question, announce func() error) (agent.Answer, error) {
	open := &openQuestion{Question: q, answer: make(chan agent.Answer, 1)}
	l.mu.Lock()
	l.asks[q.ID] = open
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.asks, q.ID)
	}()
	if err := announce(); err != nil {
		return agent.Answer{}, err
	}
	l.wake()
	select {
	case a := <-open.answer:
		return a, nil
	case <-ctx.Done():
		return agent.Answer{}, context.Cause(ctx)
	}
}

// answer answers an open question; an empty id means the only one.
func (l *liveRun) answer(id string, a agent.Answer, always bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if id == "" && len(l.asks) == 1 {
		for id = range l.asks {
		}
	}
	q := l.asks[id]
	switch {
	case q == nil && id == "" && len(l.asks) > 1:
		return &problem{kind: usage, sentence: "several questions are open", hint: "name one: ssh gate@HOST runs show RUN"}
	case q == nil:
		return &problem{kind: conflict, sentence: "no such question is open: it was already answered, or its turn has ended"}
	}
	secret := l.redact.Load()
	a.Text, a.Reason = secret.String(a.Text), secret.String(a.Reason)
	for k, v := range a.Values {
		a.Values[k] = secret.String(v)
	}
	if always && q.Kind == agent.CanUseTool {
		a.Rule = q.Rule
	}
	select {
	case q.answer <- a:
		return nil
	default:
		return &problem{kind: conflict, sentence: "the question was already answered"}
	}
}
