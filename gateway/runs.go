package gateway

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"sandgate/agent"
	"sandgate/gateway/redact"
	"sandgate/sandbox"
	"sandgate/store"
)

// AgentConfig is what the operator says of the agent.
type AgentConfig struct {
	Model string // where nobody says another; empty: DefaultModel

	// Where the providers' APIs are; empty: the providers' own.
	AnthropicURL, OpenAIURL string

	// Keys for users who have none of their own in the vault; may be empty.
	AnthropicKey, OpenAIKey string
}

// DefaultModel is the model where nobody says another.
const DefaultModel = "claude-sonnet-4-5"

// The bounds of runs.
const (
	maxRunsAtWork = 16        // of one user
	maxPrompt     = 512 << 10 // bytes
)

// RunOptions are what a run was started with. They are kept with it.
type RunOptions struct {
	Model      string        `json:"model,omitempty"` // NAME, or anthropic/NAME, openai/NAME or chat/NAME
	BaseURL    string        `json:"base_url,omitempty"`
	Approval   agent.Mode    `json:"approval,omitempty"`
	Rules      []string      `json:"rules,omitempty"`
	Steps      int           `json:"max_steps,omitempty"`
	Tokens     int64         `json:"max_tokens,omitempty"`
	Cost       float64       `json:"max_cost,omitempty"` // US dollars
	Time       time.Duration `json:"max_time,omitempty"`
	Thinking   int64         `json:"thinking,omitempty"`                 // tokens
	Unattended time.Duration `json:"max_run_after_disconnect,omitempty"` // how long a turn goes on that nobody follows; 0: as long as it may anyway

	Attended bool `json:"attended,omitempty"` // somebody may be asked; else what needs an answer is denied

	ClientDir string `json:"client_dir,omitempty"` // where an editor was, on its own machine

	NoQuestions bool `json:"no_questions,omitempty"` // those who attend can approve, and not answer
}

const keyRun = "run"

// NewRun makes a run in which nothing was said. Its title is the beginning of about,
// which may be empty.
func (l *Login) NewRun(ctx context.Context, t target, o RunOptions, about string) (store.Run, error) {
	row, err := l.reachOrCreate(ctx, t, request{deed: "agent"})
	if err != nil {
		return store.Run{}, err
	}
	if err := (agent.Approval{Mode: o.Approval, Rules: o.Rules}).Validate(); err != nil {
		return store.Run{}, &problem{kind: usage, sentence: err.Error()}
	}
	options, err := json.Marshal(o)
	if err != nil {
		return store.Run{}, err
	}
	_, values, _, err := l.gate.runs.model(ctx, l.user.ID, o)
	if err != nil {
		return store.Run{}, err
	}
	run := store.Run{ID: newRunID(), UserID: l.user.ID, SandboxID: row.ID, Title: title(redact.New(values).String(about)), Options: options, Created: time.Now()}
	if err := l.gate.db.CreateRun(ctx, run); err != nil {
		return store.Run{}, err
	}
	run.User, run.Sandbox = l.user.Name, row.Name
	l.log.Info("run made", keyRun, run.ID, keySandbox, row.ID)
	return run, nil
}

func newRunID() string { return "run-" + strings.ToLower(rand.Text()[:12]) }

// title is the beginning of a prompt, in one line.
func title(prompt string) string {
	s := oneLine(strings.Join(strings.Fields(prompt), " "))
	if r := []rune(s); len(r) > 80 {
		s = string(r[:79]) + "…"
	}
	return s
}

// NewRunFor makes a run of the agent in a sandbox for a prompt, which ContinueRun is to
// say then.
func (l *Login) NewRunFor(ctx context.Context, t target, o RunOptions, prompt string) (store.Run, error) {
	if err := l.checkPrompt(ctx, prompt); err != nil {
		return store.Run{}, err
	}
	return l.NewRun(ctx, t, o, prompt)
}

// ContinueRun says something in a run.
func (l *Login) ContinueRun(ctx context.Context, id, prompt string) (store.Run, error) {
	run, err := l.run(ctx, "agent", id)
	if err != nil {
		return run, err
	}
	if err := l.checkPrompt(ctx, prompt); err != nil {
		return run, err
	}
	return run, l.say(ctx, run, prompt)
}

func (l *Login) checkPrompt(ctx context.Context, prompt string) error {
	switch {
	case strings.TrimSpace(prompt) == "":
		return &problem{kind: usage, sentence: "there is no prompt", hint: `ssh gate@HOST agent SANDBOX "what to do"`}
	case len(prompt) > maxPrompt:
		return &problem{kind: usage, sentence: fmt.Sprintf("the prompt has more than %d KiB", maxPrompt>>10), hint: "put it into a file in the sandbox, and say which"}
	}
	busy := 0
	all, err := l.gate.db.RunsAtWork(ctx)
	if err != nil {
		return err
	}
	for _, r := range all {
		if r.UserID == l.user.ID {
			busy++
		}
	}
	if busy >= maxRunsAtWork {
		return &problem{kind: conflict, sentence: fmt.Sprintf("%d of your runs are at work, which is the most", busy), hint: "ssh gate@HOST runs"}
	}
	return l.gate.sandboxes.Refused(ctx, l.user.ID, sandbox.QuotaTokens, sandbox.QuotaMoney)
}

func (l *Login) say(ctx context.Context, run store.Run, prompt string) error {
	live := l.gate.runs.open(run)
	defer l.gate.runs.release(live)
	prompt = strings.ReplaceAll(strings.ToValidUTF8(prompt, "\uFFFD"), "\x00", "\uFFFD")
	if err := live.begin(&prompt); err != nil || run.Title != "" {
		return err
	}
	return l.gate.db.SetRunTitle(ctx, run.ID, title(live.redact.Load().String(prompt)))
}

// SetRunMode changes what a run may do by itself, from its next turn on.
func (l *Login) SetRunMode(ctx context.Context, id string, mode agent.Mode) error {
	run, err := l.run(ctx, "agent", id)
	if err != nil {
		return err
	}
	var o RunOptions
	if err := json.Unmarshal(run.Options, &o); err != nil {
		return fmt.Errorf("options of run %s: %w", run.ID, err)
	}
	o.Approval = mode
	options, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return l.gate.db.SetRunOptions(ctx, run.ID, options)
}

// run returns a run of the caller's, if they may do d to its sandbox. An empty id is
// the last one.
func (l *Login) run(ctx context.Context, d deed, id string) (store.Run, error) {
	var run store.Run
	var err error
	if id == "" {
		var all []store.Run
		if all, err = l.gate.db.RunsOf(ctx, l.user.ID, 1); err == nil && len(all) == 0 {
			err = store.ErrNotFound
		} else if err == nil {
			run = all[0]
		}
	} else {
		run, err = l.gate.db.Run(ctx, id)
	}
	if err == nil && run.UserID != l.user.ID {
		err = store.ErrNotFound
	}
	if errors.Is(err, store.ErrNotFound) {
		what := "you have no runs"
		if id != "" {
			what = fmt.Sprintf("no run %.60q", id)
		}
		return store.Run{}, &problem{kind: notFound, sentence: what, hint: "ssh gate@HOST runs"}
	}
	if err != nil {
		return store.Run{}, err
	}
	row, err := l.gate.db.Sandbox(ctx, run.SandboxID)
	if err != nil {
		return store.Run{}, err
	}
	t := target{name: row.Name}
	if row.UserID != l.user.ID {
		t.owner = row.Owner
	}
	_, err = l.reach(ctx, t, request{deed: d})
	return run, err
}

// Runs returns the caller's runs, the last changed first.
func (l *Login) Runs(ctx context.Context) ([]store.Run, error) {
	if err := l.may(ctx, "runs ls"); err != nil {
		return nil, err
	}
	return l.gate.db.RunsOf(ctx, l.user.ID, 1000)
}

// Follow shows a run's events for d; see liveRun.follow.
func (l *Login) Follow(ctx context.Context, d deed, id string, f following) error {
	run, err := l.run(ctx, d, id)
	if err != nil {
		return err
	}
	live := l.gate.runs.open(run)
	defer l.gate.runs.release(live)
	return live.follow(ctx, f)
}

// CancelRun ends the turn that is going on in a run. If none is, nothing happens.
func (l *Login) CancelRun(ctx context.Context, id string) (store.Run, error) {
	run, err := l.run(ctx, "cancel", id)
	if err != nil {
		return run, err
	}
	live := l.gate.runs.open(run)
	defer l.gate.runs.release(live)
	live.mu.Lock()
	defer live.mu.Unlock()
	if live.cancel != nil {
		live.cancel(agent.ErrCancelled)
	}
	return run, nil
}

// Answer answers a question of a run. An empty question is the only open one.
func (l *Login) Answer(ctx context.Context, d deed, id, question string, a agent.Answer, always bool) (store.Run, error) {
	run, err := l.run(ctx, d, id)
	if err != nil {
		return run, err
	}
	live := l.gate.runs.open(run)
	defer l.gate.runs.release(live)
	a.By = l.user.Name
	err = live.answer(question, a, always)
	l.auditAnswer(ctx, run, question, a, err)
	return run, err
}

// Questions returns the open questions of a run.
func (l *Login) Questions(ctx context.Context, id string) (store.Run, []agent.Question, error) {
	run, err := l.run(ctx, "runs show", id)
	if err != nil {
		return run, nil, err
	}
	live := l.gate.runs.open(run)
	defer l.gate.runs.release(live)
	live.mu.Lock()
	defer live.mu.Unlock()
	var all []agent.Question
	for _, q := range live.asks {
		all = append(all, q.Question)
	}
	slices.SortFunc(all, func(a, b agent.Question) int { return strings.Compare(a.ID, b.ID) })
	return run, all, nil
}

// RemoveRun deletes a run that is idle.
func (l *Login) RemoveRun(ctx context.Context, id string) (store.Run, error) {
	run, err := l.run(ctx, "runs rm", id)
	if err != nil {
		return run, err
	}
	live := l.gate.runs.open(run)
	defer l.gate.runs.release(live)
	live.mu.Lock()
	defer live.mu.Unlock()
	if live.working {
		return run, errBusy
	}
	return run, l.gate.db.DeleteRun(ctx, run.ID)
}
