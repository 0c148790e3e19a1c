package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/alecthomas/kong"
	"mvdan.cc/sh/v3/shell"

	"sandgate/agent"
	"sandgate/sandbox/guest"
)

// The exit codes of the agent subsystem beyond 0.
const (
	agentFailed    = 1
	agentUsage     = 2
	agentSteps     = 3
	agentBudget    = 4
	agentPaused    = 5
	agentDenied    = 6
	agentCancelled = 130
)

// exitOfResult is the exit code for the subtype of a result.
func exitOfResult(subtype string) int {
	switch subtype {
	case agent.Success:
		return 0
	case agent.OutOfSteps, agent.Looping:
		return agentSteps
	case agent.OutOfBudget, agent.QuotaExceeded:
		return agentBudget
	case agent.Paused:
		return agentPaused
	case agent.Cancelled:
		return agentCancelled
	}
	return agentFailed
}

// runFlags are what can be said of a new run, on the wire and in the lobby.
type runFlags struct {
	Model     string        `help:"Model; with another server's API: chat/NAME." placeholder:"NAME"`
	BaseURL   string        `name:"base-url" help:"Where the model's API is; the key is then only one of your own vault." placeholder:"URL"`
	Approval  string        `enum:"auto,ask,read-only,allow-list" default:"auto" help:"What the agent may do by itself: auto, ask, read-only or allow-list."`
	Allow     []string      `help:"Rule of the allow-list: a tool, or exec: and the first words of a command." placeholder:"RULE" sep:"none"`
	MaxSteps  int           `help:"Responses of the model. Default: 50." placeholder:"N"`
	MaxTokens int64         `help:"Tokens of all kinds." placeholder:"N"`
	MaxCost   float64       `name:"max-cost" help:"US dollars." placeholder:"USD"`
	MaxTime   time.Duration `help:"Time, such as 30m." placeholder:"DURATION"`
	Thinking  int64         `help:"Tokens that the model may think." placeholder:"N"`

	Unattended time.Duration `name:"max-run-after-disconnect" help:"How long a turn goes on that nobody follows. Default: until a limit is reached." placeholder:"DURATION"`
}

// options returns the flags as they are kept with a run.
func (f *runFlags) options(attended bool) (RunOptions, error) {
	if f.MaxSteps < 0 || f.MaxTokens < 0 || f.MaxCost < 0 || f.MaxTime < 0 || f.Thinking < 0 || f.Unattended < 0 || f.MaxSteps > 10_000 {
		return RunOptions{}, &problem{kind: usage, sentence: "a limit of a run is not in its range"}
	}
	if f.BaseURL != "" && !strings.HasPrefix(f.BaseURL, "https://") && !strings.HasPrefix(f.BaseURL, "http://") {
		return RunOptions{}, &problem{kind: usage, sentence: fmt.Sprintf("%.80q is not a URL", f.BaseURL)}
	}
	return RunOptions{
		Model: f.Model, BaseURL: f.BaseURL, Approval: agent.Mode(f.Approval), Rules: f.Allow, Steps: f.MaxSteps,
		Tokens: f.MaxTokens, Cost: f.MaxCost, Time: f.MaxTime, Thinking: f.Thinking, Unattended: f.Unattended, Attended: attended,
	}, nil
}

// wireOptions are the words after the name of the agent subsystem.
type wireOptions struct {
	runFlags
	Resume             string `help:"Run to go on with." placeholder:"RUN"`
	Continue           bool   `help:"Go on with the last run."`
	After              int64  `help:"Number of the last event that was seen." placeholder:"SEQ"`
	Format             string `enum:"json,text" default:"json"`
	Partials           bool   `help:"Also send pieces of responses as they come."`
	CancelOnDisconnect bool   `help:"End the turn when this connection ends."`
}

// parseWireOptions reads the words of a subsystem request, over variables that the
// client sent: SANDGATE_AGENT_MAX_STEPS=80 is --max-steps=80. *problem if they are
// not understood.
func parseWireOptions(line string, env [][]byte) (o wireOptions, err error) {
	var words []string
	for _, kv := range env {
		name, value, _ := strings.Cut(string(kv), "=")
		if flag, ok := strings.CutPrefix(name, "SANDGATE_AGENT_"); ok {
			words = append(words, "--"+strings.ReplaceAll(strings.ToLower(flag), "_", "-")+"="+value)
		}
	}
	fields, err := shell.Fields(line, func(name string) string { return "$" + name })
	if err != nil {
		return o, &problem{kind: usage, sentence: "malformed options: " + oneLine(err.Error())}
	}
	parser, err := kong.New(&o, kong.Name("agent"), kong.NoDefaultHelp(), kong.Exit(func(int) {}))
	if err != nil {
		return o, err
	}
	if _, err := parser.Parse(append(words, fields[1:]...)); err != nil {
		return o, &problem{kind: usage, sentence: oneLine(err.Error()), hint: "options of the agent subsystem: --resume RUN, --continue, --after SEQ, --format json|text, --partials, --model, --approval, --max-steps, …"}
	}
	if o.Resume != "" && o.Continue || o.After < 0 {
		return o, &problem{kind: usage, sentence: "--resume and --continue exclude each other, and --after is a number from 0"}
	}
	return o, nil
}

// maxLine bounds a line of JSON in either direction.
const maxLine = 1 << 20

// pingEvery is how long the wire may be silent: readers can tell a stall from death.
const pingEvery = 15 * time.Second

// agentWire serves the agent subsystem on one channel.
type agentWire struct {
	s    *session
	o    wireOptions
	ctx  context.Context
	end  context.CancelCauseFunc
	in   chan wireInput
	text *agentText // nil: JSON

	run     string // id
	sandbox string
	first   string // prompt, of a new run

	mu     sync.Mutex
	duplex bool // lines of JSON came
	ended  bool // the input has
	saying int  // what was said and is not yet done

	resulted bool // the last event, but those of jobs, was a result; only event's
	held     []heldEvent

	writing sync.Mutex
	last    time.Time // of the last line
}

// A wireInput is something that the client said.
type wireInput struct {
	prompt    string
	interrupt bool
	question  string // answered
	answer    agent.Answer
	always    bool
	duplex    bool // it came as a line of JSON
	eof       bool
	err       error
}

// agentSubsystem is `ssh -s web@gate agent`.
func (s *session) agentSubsystem(line string) status {
	code, err := s.serveAgent(line)
	if err != nil {
		if errors.Is(err, errClientGone) {
			return status{err: err}
		}
		p := s.login.explain(err)
		io.WriteString(s.ch.Stderr(), p.text())
		switch p.kind {
		case usage:
			code = agentUsage
		case denied:
			code = agentDenied
		case quota:
			code = agentBudget
		default:
			code = agentFailed
		}
	}
	return status{exit: guest.Exit{Code: code}}
}

func (s *session) serveAgent(line string) (int, error) {
	o, err := parseWireOptions(line, s.env)
	if err != nil {
		return 0, err
	}
	ctx, end := context.WithCancelCause(s.ctx)
	defer end(nil)
	w := &agentWire{s: s, o: o, ctx: ctx, end: end, in: make(chan wireInput), last: time.Now()}
	if o.Format == "text" {
		w.text = newAgentText(s.ch, s.terminal != nil)
	}
	s.setProc(w)
	go w.read(s.ch)
	if err := w.begin(); err != nil {
		return 0, err
	}
	defer func() {
		if o.CancelOnDisconnect && s.ctx.Err() != nil && !errors.Is(context.Cause(s.ctx), errLeaving) {
			s.login.CancelRun(context.WithoutCancel(ctx), w.run)
		}
	}()
	return w.follow()
}

// Signal makes INT end the turn that is going on.
func (w *agentWire) Signal(name string) {
	if name != "INT" {
		return
	}
	go func() {
		select {
		case w.in <- wireInput{interrupt: true}:
		case <-w.ctx.Done():
		}
	}()
}

// Resize does nothing: lines are as long as they are.
func (w *agentWire) Resize(guest.Size) {}

// begin finds the run or starts it.
func (w *agentWire) begin() error {
	l := w.s.login
	if w.o.Resume != "" || w.o.Continue {
		run, err := l.run(w.ctx, "runs attach", w.o.Resume)
		w.run, w.sandbox = run.ID, run.Sandbox
		return err
	}
	t, err := l.target()
	if err != nil {
		return err
	}
	if t.lobby {
		return &problem{kind: usage, sentence: "the agent works in a sandbox", hint: "ssh -s SANDBOX@HOST agent"}
	}
	for {
		in, err := w.next()
		switch {
		case err != nil:
			return err
		case in.err != nil:
			return in.err
		case in.eof:
			return &problem{kind: usage, sentence: "there is no prompt", hint: `echo "what to do" | ssh -s SANDBOX@HOST agent`}
		case in.prompt == "":
			continue // there is nothing yet to be ended or answered
		}
		w.mu.Lock()
		w.duplex = in.duplex
		w.mu.Unlock()
		o, err := w.o.options(in.duplex)
		if err != nil {
			return err
		}
		run, err := l.NewRunFor(w.ctx, t, o, in.prompt)
		w.run, w.sandbox, w.first = run.ID, run.Sandbox, in.prompt
		return err
	}
}

func (w *agentWire) next() (wireInput, error) {
	select {
	case in := <-w.in:
		return in, nil
	case <-w.ctx.Done():
		return wireInput{}, context.Cause(w.ctx)
	}
}

// follow shows the run and does what the client says, until the input has ended and
// the run is idle. The code is that of the last result.
func (w *agentWire) follow() (code int, err error) {
	l := w.s.login
	resumed := w.o.Resume != "" || w.o.Continue
	if resumed {
		if err := w.greet(); err != nil {
			return 0, err
		}
	}
	watched := false // a turn that was going on when this connection came
	err = l.Follow(w.ctx, "runs attach", w.run, following{
		after:    w.o.After,
		partials: true,
		deltas:   w.o.Partials || w.text != nil,
		begin: func() error {
			if !resumed {
				if _, err := l.ContinueRun(w.ctx, w.run, w.first); err != nil {
					return err
				}
			}
			go w.listen()
			go w.ping()
			return nil
		},
		until: func(working func() bool) bool {
			w.mu.Lock()
			quiet, ended, duplex := w.saying == 0, w.ended, w.duplex
			w.mu.Unlock()
			now := working() // asked last: what was said may have begun a turn
			watched = watched || now
			return !now && quiet && (ended || watched && !duplex)
		},
		replayed: func() error {
			if !resumed {
				return nil
			}
			return w.tell(agent.SubtypeReplayed, map[string]any{})
		},
		yield: func(e agent.Event, line []byte) error {
			if e.Type == agent.TypeResult {
				code = exitOfResult(e.Subtype)
			}
			return w.event(e, line)
		},
	})
	return code, err
}

// listen does what the client says.
func (w *agentWire) listen() {
	l := w.s.login
	for {
		in, err := w.next()
		if err != nil {
			return
		}
		w.mu.Lock()
		w.duplex = w.duplex || in.duplex
		w.saying++
		w.mu.Unlock()
		switch {
		case in.err != nil:
			w.end(in.err)
		case in.eof:
		case in.interrupt:
			_, err = l.CancelRun(w.ctx, w.run)
		case in.question != "":
			_, err = l.Answer(w.ctx, "approve", w.run, in.question, in.answer, in.always)
		default:
			_, err = l.ContinueRun(w.ctx, w.run, in.prompt)
		}
		if err != nil && !in.duplex {
			w.end(err)
		} else if err != nil {
			p := l.explain(err)
			w.tell("error", map[string]any{"message": p.sentence, "remedy": p.hint})
		}
		w.mu.Lock()
		w.saying--
		w.ended = w.ended || in.eof
		w.mu.Unlock()
		l.gate.runs.wake(w.run)
		if in.eof || in.err != nil {
			return
		}
	}
}

// greet writes what a follower has to know first: init, as it was.
func (w *agentWire) greet() error {
	rows, err := w.s.login.gate.db.RunEvents(w.ctx, w.run, 0, 1)
	if err != nil || len(rows) == 0 || w.o.After == 0 {
		return err // else it comes by itself
	}
	var e agent.Event
	if err := json.Unmarshal(rows[0].Event, &e); err != nil {
		return err
	}
	e.Seq = 0
	e.Fields["resumed_from"] = w.o.After
	return w.write(e, nil)
}

func (w *agentWire) ping() {
	due := time.NewTimer(pingEvery)
	defer due.Stop()
	for {
		select {
		case <-due.C:
			w.writing.Lock()
			silent := time.Since(w.last)
			w.writing.Unlock()
			if silent >= pingEvery && w.text == nil {
				w.tell("ping", map[string]any{})
				silent = 0
			}
			due.Reset(max(pingEvery-silent, time.Second))
		case <-w.ctx.Done():
			return
		}
	}
}

// tell writes an event of this connection's own.
func (w *agentWire) tell(subtype string, fields map[string]any) error {
	fields["session_id"] = w.run
	e := agent.Event{Time: time.Now(), Type: agent.TypeSystem, Subtype: subtype, Fields: fields}
	mark(&e, w.sandbox)
	return w.write(e, nil)
}

// event writes an event of the run. What a job does after a turn waits for what comes
// next, if nothing more is to be said here: the result of a turn is the last that a
// client hears of it.
func (w *agentWire) event(e agent.Event, line []byte) error {
	w.mu.Lock()
	duplex := w.duplex && !w.ended
	w.mu.Unlock()
	if isJob(e) && w.resulted && !duplex {
		w.held = append(w.held, heldEvent{e, line})
		return nil
	}
	if e.Seq != 0 && !isJob(e) {
		w.resulted = e.Type == agent.TypeResult
	}
	for _, h := range w.held {
		if err := w.write(h.event, h.line); err != nil {
			return err
		}
	}
	w.held = nil
	return w.write(e, line)
}

// A heldEvent is one that is not due yet.
type heldEvent struct {
	event agent.Event
	line  []byte
}

// write writes an event as one line, or shows it as text. line may be nil.
func (w *agentWire) write(e agent.Event, line []byte) error {
	w.writing.Lock()
	defer w.writing.Unlock()
	w.last = time.Now()
	if w.text != nil {
		return gone(w.text.show(e))
	}
	line, err := wireLine(e, line)
	if err != nil {
		return err
	}
	_, err = w.s.ch.Write(line)
	return gone(err)
}

func gone(err error) error {
	if err != nil {
		return errClientGone
	}
	return nil
}

// read reads what the client sends: lines of JSON when the first line is one with a
// type, else a prompt that ends with the input.
func (w *agentWire) read(r io.Reader) {
	send := func(in wireInput) bool {
		select {
		case w.in <- in:
			return true
		case <-w.ctx.Done():
			return false
		}
	}
	br := bufio.NewReaderSize(io.LimitReader(r, 1<<40), 64<<10)
	first, err := readLine(br, maxLine)
	if err != nil && err != io.EOF {
		send(wireInput{err: err})
		return
	}
	if !typed(first) {
		rest, err := io.ReadAll(io.LimitReader(br, maxPrompt+1))
		if err != nil {
			send(wireInput{err: errClientGone})
			return
		}
		prompt := strings.TrimSpace(string(first) + string(rest))
		if prompt == "" || send(wireInput{prompt: prompt}) {
			send(wireInput{eof: true})
		}
		return
	}
	for line := first; ; line, err = readLine(br, maxLine) {
		if len(bytes.TrimSpace(line)) > 0 {
			in := parseWireInput(line)
			in.duplex = true
			if !send(in) {
				return
			}
		}
		if err == io.EOF {
			send(wireInput{eof: true})
			return
		}
		if err != nil {
			send(wireInput{err: err})
			return
		}
	}
}

// readLine reads a line of at most most bytes, with its end.
func readLine(r *bufio.Reader, most int) ([]byte, error) {
	var line []byte
	for {
		piece, err := r.ReadSlice('\n')
		line = append(line, piece...)
		if len(line) > most {
			return nil, &problem{kind: usage, sentence: fmt.Sprintf("a line has more than %d KiB", most>>10)}
		}
		if err != bufio.ErrBufferFull {
			return line, err
		}
	}
}

// typed says whether a line is a JSON object with a type.
func typed(line []byte) bool {
	var m struct{ Type string }
	return len(line) > 0 && json.Unmarshal(line, &m) == nil && m.Type != ""
}

// parseWireInput reads a line of stream-json.
func parseWireInput(line []byte) wireInput {
	var m struct {
		Type    string
		Message struct{ Content json.RawMessage }
		Request struct{ Subtype string }
		// of control_response
		Response struct {
			RequestID string `json:"request_id"`
			Response  struct {
				Behavior string
				Message  string
				Always   bool
				Answer   string
				Values   map[string]string
			}
		}
	}
	malformed := func(what string) wireInput {
		return wireInput{err: &problem{kind: usage, sentence: "malformed input: " + what}}
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return malformed(oneLine(err.Error()))
	}
	switch m.Type {
	case agent.TypeUser:
		text, ok := userText(m.Message.Content)
		if !ok {
			return malformed("a user message has no text")
		}
		return wireInput{prompt: text}
	case agent.TypeControlRequest:
		if m.Request.Subtype != "interrupt" {
			return malformed(fmt.Sprintf("a control_request %.40q is not known", m.Request.Subtype))
		}
		return wireInput{interrupt: true}
	case agent.TypeControlResponse:
		r := m.Response.Response
		if m.Response.RequestID == "" {
			return malformed("a control_response has no request_id")
		}
		return wireInput{question: m.Response.RequestID, always: r.Always, answer: agent.Answer{
			Allow: r.Behavior == "allow", Reason: r.Message, Text: r.Answer, Values: r.Values,
		}}
	}
	return malformed(fmt.Sprintf("a type %.40q is not known", m.Type))
}

// userText is the text of a message's content: a string, or blocks of text.
func userText(content json.RawMessage) (string, bool) {
	var s string
	if json.Unmarshal(content, &s) == nil {
		return s, strings.TrimSpace(s) != ""
	}
	var blocks []agent.Block
	if json.Unmarshal(content, &blocks) != nil {
		return "", false
	}
	var parts []string
	for _, b := range blocks {
		if b.Type == agent.TextBlock {
			parts = append(parts, b.Text)
		}
	}
	s = strings.Join(parts, "\n")
	return s, strings.TrimSpace(s) != ""
}
