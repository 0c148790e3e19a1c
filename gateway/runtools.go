package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"errors"
	"iter"
	"maps"
	"strings"
	"sync"
	"time"

	"sandgate/agent"
	"sandgate/sandbox"
	"sandgate/sandbox/guest"
	"sandgate/sandbox/guest/tool"
	"sandgate/store"
)

// A runPast is what the tools of a run have to know of what was before: the events of
// the run say it, and after that their own results do.
type runPast struct {
	mu   sync.Mutex
	dir  string            // the working folder, as cd has left it
	read map[string]string // sha256 of the files that the run knows, by path
}

// maxPastFiles bounds the files that a run knows. Others are to be read again.
const maxPastFiles = 10_000

func newRunPast() *runPast { return &runPast{read: make(map[string]string)} }

// watch passes events on and takes from them what is to be known.
func (p *runPast) watch(events iter.Seq2[agent.Event, error]) iter.Seq2[agent.Event, error] {
	return func(yield func(agent.Event, error) bool) {
		for e, err := range events {
			if detail, ok := e.Fields["sandgate"].(json.RawMessage); ok {
				p.note(detail)
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

// note takes from the result of a call what is to be known.
func (p *runPast) note(detail json.RawMessage) {
	var d struct{ Cwd, Path, SHA256 string }
	if json.Unmarshal(detail, &d) != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if d.Cwd != "" {
		p.dir = d.Cwd
	}
	if _, known := p.read[d.Path]; d.Path != "" && d.SHA256 != "" && (known || len(p.read) < maxPastFiles) {
		p.read[d.Path] = d.SHA256
	}
}

func (p *runPast) workingDir() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dir
}

func (p *runPast) files() map[string]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.read)
}

// runTools are the six tools of one run, in its sandbox.
type runTools struct {
	run  store.Run
	use  func(context.Context) (*sandbox.Lease, error)
	past *runPast

	maxExec func() time.Duration // longest timeout of a command; 0: the tool's

	mu    sync.Mutex
	lease *sandbox.Lease // nil: not opened yet
	since time.Time      // when it was opened
	had   time.Duration  // how long those before it were

	guided map[string]bool // folders and paths that guidance was asked for; only the loop's
}

// guestTools is the toolbox of the six tools. The sandbox is opened by what first needs
// it.
func (g *Gateway) guestTools(run store.Run, past *runPast, use func(context.Context) (*sandbox.Lease, error)) toolset {
	t := &runTools{run: run, use: use, past: past, guided: make(map[string]bool)}
	t.maxExec = func() time.Duration { return g.terms.Load().MaxExec }
	var tools []agent.Tool
	for _, d := range tool.Definitions() {
		schema, err := json.Marshal(d.Input)
		if err != nil { // it is made from a Go type
			panic(err)
		}
		call := func(ctx context.Context, id string, input json.RawMessage, p func(agent.Progress)) (agent.Result, error) {
			return t.call(ctx, d.Name, id, input, p)
		}
		made := agent.Tool{
			Spec:     agent.Spec{Name: d.Name, Description: d.Description, Schema: schema},
			ReadOnly: d.ReadOnly, Call: call,
		}
		if d.Name == "exec" {
			made.Recover = call // calls of the same id run one command
		}
		tools = append(tools, made)
	}
	return toolset{tools: tools, guidance: t.guidance, inUse: t.inUse, done: t.done}
}

func (t *runTools) done() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.release()
}

// release ends the use of the sandbox, if there is one. The caller holds mu.
func (t *runTools) release() {
	if t.lease != nil {
		t.lease.Release()
		t.lease = nil
		t.had += time.Since(t.since)
	}
}

// inUse is for how long the sandbox was in use.
func (t *runTools) inUse() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lease == nil {
		return t.had
	}
	return t.had + time.Since(t.since)
}

// open returns the use of the sandbox, anew if the last one has ended.
func (t *runTools) open(ctx context.Context) (*sandbox.Lease, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lease != nil {
		select {
		case <-t.lease.Done():
			t.release()
		default:
			return t.lease, nil
		}
	}
	lease, err := t.use(ctx)
	if err != nil {
		return nil, err
	}
	t.lease, t.since = lease, time.Now()
	return lease, nil
}

// jobOf is the id of the job that a call of exec starts: always the same, so that a
// call whose result was lost finds it again.
func jobOf(run, call string) string {
	sum := sha256.Sum256([]byte(run + "\x00" + call))
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:15]))
}

// call carries one call out. Commands of a model get no secrets of the vault: what a
// model can print, it can send away. What the tool says is a result, also when it is an
// error; without an answer that is known to be one, the loop is told.
func (t *runTools) call(ctx context.Context, name, id string, input json.RawMessage, p func(agent.Progress)) (agent.Result, error) {
	lease, err := t.open(ctx)
	if err != nil {
		if errors.Is(context.Cause(ctx), agent.ErrSuspended) {
			return agent.Result{}, err
		}
		return toolFailed(tool.Errorf(tool.NotStarted, "the sandbox could not be opened: %v", err)), nil
	}
	call := guest.ToolCall{
		Name: name, Args: input, Session: t.run.ID, Dir: t.past.workingDir(), Job: jobOf(t.run.ID, id), MaxTimeout: t.maxExec(),
		EndOn: func(cause error) bool { return !errors.Is(cause, agent.ErrSuspended) },
	}
	show := func(g guest.ToolProgress) {
		stream := "stdout"
		if g.Stderr {
			stream = "stderr"
		}
		p(agent.Progress{Job: g.Job, Stream: stream, Text: g.Text, Bytes: g.Bytes})
	}
	out, err := lease.Tool(ctx, call, show)
	if e, ok := errors.AsType[*tool.Error](err); ok && e.Code == tool.NotRead && t.remind(ctx, lease) {
		out, err = lease.Tool(ctx, call, show) // nothing was changed, so it can be made again
	}
	if err != nil {
		e, ok := errors.AsType[*tool.Error](err)
		if !ok {
			return agent.Result{}, err
		}
		return toolFailed(sayWhy(e, lease)), nil
	}
	detail, err := json.Marshal(withoutData(out))
	if err != nil {
		return agent.Result{}, err
	}
	t.past.note(detail)
	res := agent.Result{Text: out.Text(), Detail: detail}
	if o, ok := out.(*tool.ReadOutput); ok && o.MIME != "" && len(o.Data) > 0 {
		if image, err := agent.NewImage(o.MIME, o.Data); err != nil {
			res.Text += "\n(" + err.Error() + ")"
		} else {
			res.Images = []agent.Image{image}
		}
	}
	return res, nil
}

// remind tells the sandbox's tools what the run has read: their process may be another
// than the one that read it.
func (t *runTools) remind(ctx context.Context, lease *sandbox.Lease) bool {
	files := t.past.files()
	args, err := json.Marshal(tool.RecallArgs{Files: files})
	if err != nil || len(files) == 0 {
		return false
	}
	_, err = lease.Tool(ctx, guest.ToolCall{Name: tool.Recall, Args: args, Session: t.run.ID}, nil)
	return err == nil
}

// guidanceLimit bounds the wait for guidance, and for the sandbox if that is to be
// opened first. Work goes on without what does not come: if there is a reason, the
// first call says it.
const guidanceLimit = 30 * time.Second

// guidance returns what the workspace says to agents, if there is something that was
// not asked for in this turn.
func (t *runTools) guidance(ctx context.Context, paths []string) []agent.Guide {
	dir, news := t.past.workingDir(), false
	for _, p := range append([]string{""}, paths...) {
		key := dir + "\x00" + p
		news = news || !t.guided[key]
		t.guided[key] = true
	}
	if !news {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, guidanceLimit)
	defer cancel()
	lease, err := t.open(ctx)
	if err != nil {
		return nil
	}
	args, err := json.Marshal(tool.GuidanceArgs{Paths: paths})
	if err != nil {
		return nil
	}
	out, err := lease.Tool(ctx, guest.ToolCall{Name: tool.Guidance, Args: args, Session: t.run.ID, Dir: dir}, nil)
	found, ok := out.(*tool.GuidanceOutput)
	if err != nil || !ok {
		return nil
	}
	var guides []agent.Guide
	for _, f := range found.Files {
		guides = append(guides, agent.Guide{Path: f.Path, Text: f.Content, Cut: f.Cut})
	}
	return guides
}

// withoutData is an output without bytes that only a program with eyes can use.
func withoutData(out tool.Output) tool.Output {
	if r, ok := out.(*tool.ReadOutput); ok && len(r.Data) > 0 && r.MIME != "" {
		short := *r
		short.Data = nil
		return &short
	}
	return out
}

// sayWhy puts into the error of a call why its sandbox has gone, if that is why it
// failed and is known: out of memory, say.
func sayWhy(e *tool.Error, lease *sandbox.Lease) *tool.Error {
	if e.Code != tool.SandboxGone && e.Code != tool.OutcomeUnknown {
		return e
	}
	select {
	case <-lease.Done():
	default:
		return e
	}
	if why := lease.Gone(); !errors.Is(why, guest.ErrGone) {
		e.Message += ": " + oneLine(why.Error())
	}
	return e
}

func toolFailed(e *tool.Error) agent.Result {
	detail, err := json.Marshal(e)
	if err != nil { // it is made of plain fields
		panic(err)
	}
	return agent.Result{Text: e.Text(), IsError: true, Detail: detail}
}
