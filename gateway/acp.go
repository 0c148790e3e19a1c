package gateway

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"sandgate/agent"
	"sandgate/sandbox/guest"
)

// The Agent Client Protocol, version 1 (agentclientprotocol.com): JSON-RPC 2.0, one
// message to a line, in both directions.
const acpVersion = 1

// maxACP bounds a message of a client: prompts have files in them.
const maxACP = 8 << 20

// maxACPCalls bounds the prompts and loads that one client has going.
const maxACPCalls = 32

// An acpMessage is a request (id and method), a notification (method alone) or a
// response (id alone).
type acpMessage struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  any             `json:"result,omitempty"`
	Error   *acpError       `json:"error,omitempty"`
}

// An acpError is JSON-RPC's.
type acpError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    any    `json:"data,omitempty"`
}

// JSON-RPC 2.0 section 5.1.
const (
	rpcParse     = -32700
	rpcInvalid   = -32600
	rpcNoMethod  = -32601
	rpcBadParams = -32602
	rpcFailed    = -32603
	rpcNotFound  = -32002 // the protocol's own
)

// An acpServer serves the protocol on one channel.
type acpServer struct {
	s     *session
	ctx   context.Context
	end   context.CancelCauseFunc
	calls sync.WaitGroup // that take long
	slots chan struct{}
	open  context.Context // ends with the client's side: who only looks on is gone then

	writing sync.Mutex

	mu    sync.Mutex
	asked map[string]chan json.RawMessage // our requests, by id; the result, nil for an error
	next  int
}

// acpSubsystem is `ssh -s web@gate acp`.
func (s *session) acpSubsystem() status {
	ctx, end := context.WithCancelCause(s.ctx)
	defer end(nil)
	open, shut := context.WithCancel(ctx)
	defer shut()
	a := &acpServer{s: s, ctx: ctx, end: end, open: open, asked: make(map[string]chan json.RawMessage), slots: make(chan struct{}, maxACPCalls)}
	served := make(chan error, 1)
	go func() { served <- a.serve(shut) }()
	var err error
	select {
	case err = <-served:
	case <-ctx.Done(): // also while the client says nothing
	}
	if errors.Is(err, errClientGone) || errors.Is(context.Cause(s.ctx), errClientGone) {
		return status{err: errClientGone}
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return status{err: err, exit: guest.Exit{}}
}

// serve reads until the input ends, which shut tells, and then lets what was asked for
// come to its end.
func (a *acpServer) serve(shut func()) error {
	defer a.calls.Wait()
	defer shut()
	r := bufio.NewReaderSize(a.s.ch, 64<<10)
	for {
		line, err := readLine(r, maxACP)
		if len(strings.TrimSpace(string(line))) > 0 {
			if err := a.message(line); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (a *acpServer) message(line []byte) error {
	var m struct {
		acpMessage
		Result json.RawMessage `json:"result"`
		Error  json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return a.send(acpMessage{ID: json.RawMessage("null"), Error: &acpError{Code: rpcParse, Message: "malformed message: " + oneLine(err.Error())}})
	}
	switch {
	case m.Method == "" && len(m.ID) > 0:
		a.answered(string(m.ID), m.Result)
		return nil
	case m.Method == "":
		return a.send(acpMessage{ID: json.RawMessage("null"), Error: &acpError{Code: rpcInvalid, Message: "neither a method nor an id"}})
	case len(m.ID) == 0:
		if m.Method == "session/cancel" {
			var p struct {
				SessionID string `json:"sessionId"`
			}
			if json.Unmarshal(m.Params, &p) == nil {
				a.s.login.CancelRun(a.ctx, p.SessionID)
			}
		}
		return nil // others are for those who know them
	}
	switch m.Method {
	case "session/prompt", "session/load", "session/resume": // these take as long as they take
		select {
		case a.slots <- struct{}{}:
		default:
			return a.reply(m.ID, nil, &acpError{Code: rpcFailed, Message: "too many calls at the same time"})
		}
		a.calls.Go(func() {
			defer func() { <-a.slots }()
			result, err := a.call(m.Method, m.Params)
			if a.reply(m.ID, result, err) != nil {
				a.end(errClientGone)
			}
		})
		return nil
	}
	result, err := a.call(m.Method, m.Params)
	return a.reply(m.ID, result, err)
}

func (a *acpServer) reply(id json.RawMessage, result any, err error) error {
	if err == nil {
		if result == nil {
			result = struct{}{}
		}
		return a.send(acpMessage{ID: id, Result: result})
	}
	e, ok := errors.AsType[*acpError](err)
	if !ok {
		p := a.s.login.explain(err)
		e = &acpError{Code: rpcFailed, Message: p.sentence, Data: map[string]any{"remedy": p.hint}}
		switch p.kind {
		case usage:
			e.Code = rpcBadParams
		case notFound:
			e.Code = rpcNotFound
		}
	}
	return a.send(acpMessage{ID: id, Error: e})
}

func (e *acpError) Error() string { return e.Message }

func (a *acpServer) send(m acpMessage) error {
	m.Version = "2.0"
	line, err := json.Marshal(m)
	if err != nil {
		return err
	}
	a.writing.Lock()
	defer a.writing.Unlock()
	_, err = a.s.ch.Write(append(line, '\n'))
	return gone(err)
}

// update sends a session/update.
func (a *acpServer) update(run string, fields map[string]any) error {
	params, err := json.Marshal(map[string]any{"sessionId": run, "update": fields})
	if err != nil {
		return err
	}
	return a.send(acpMessage{Method: "session/update", Params: params})
}

// ask sends a request and waits for its result.
func (a *acpServer) ask(ctx context.Context, method string, params any) (json.RawMessage, error) {
	p, err := json.Marshal(params)
	if err != nil {
		return nil, err
	}
	answer := make(chan json.RawMessage, 1)
	a.mu.Lock()
	a.next++
	id := fmt.Sprint(a.next)
	a.asked[id] = answer
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.asked, id)
	}()
	if err := a.send(acpMessage{ID: json.RawMessage(id), Method: method, Params: p}); err != nil {
		return nil, err
	}
	select {
	case r := <-answer:
		return r, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (a *acpServer) answered(id string, result json.RawMessage) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if answer := a.asked[id]; answer != nil {
		answer <- result
		delete(a.asked, id)
	}
}

// call carries out one request.
func (a *acpServer) call(method string, params json.RawMessage) (any, error) {
	var p struct {
		SessionID  string            `json:"sessionId"`
		MCPServers []json.RawMessage `json:"mcpServers"`
		Prompt     []acpContent      `json:"prompt"`
		ModeID     string            `json:"modeId"`
		Cwd        string            `json:"cwd"`
		Meta       struct {
			After int64 `json:"after"`
		} `json:"_meta"`
	}
	if len(params) > 0 {
		if err := json.Unmarshal(params, &p); err != nil {
			return nil, &acpError{Code: rpcBadParams, Message: "malformed parameters: " + oneLine(err.Error())}
		}
	}
	none := struct{}{}
	switch method {
	case "initialize":
		return map[string]any{
			"protocolVersion": acpVersion,
			"agentCapabilities": map[string]any{
				"loadSession":         true,
				"sessionCapabilities": map[string]any{"resume": none, "list": none, "close": none, "delete": none},
				"promptCapabilities":  map[string]bool{"image": false, "audio": false, "embeddedContext": true},
				"mcpCapabilities":     map[string]bool{"http": false, "sse": false},
			},
			"agentInfo":   map[string]string{"name": "sandgate", "title": "sandgate", "version": a.s.login.gate.cfg.Version},
			"authMethods": []any{},
		}, nil
	case "authenticate":
		return nil, nil // SSH has seen to it
	case "session/new":
		return a.begin(len(p.MCPServers), p.Cwd)
	case "session/load":
		return a.attach(p.SessionID, max(0, p.Meta.After))
	case "session/resume":
		return a.attach(p.SessionID, 1<<62)
	case "session/list":
		return a.list(p.Cwd)
	case "session/close": // others may go on with it
		_, err := a.s.login.CancelRun(a.ctx, p.SessionID)
		return nil, err
	case "session/delete":
		_, err := a.s.login.RemoveRun(a.ctx, p.SessionID)
		return nil, err
	case "session/prompt":
		return a.prompt(p.SessionID, p.Prompt)
	case "session/set_mode":
		return nil, a.setMode(p.SessionID, p.ModeID)
	}
	return nil, &acpError{Code: rpcNoMethod, Message: fmt.Sprintf("no method %.60q", method)}
}

// acpModes are the modes of approval as editors show them.
var acpModes = []map[string]string{
	{"id": string(agent.Ask), "name": "Ask", "description": "Asks before it changes or runs something"},
	{"id": string(agent.Auto), "name": "Auto", "description": "Works by itself in the sandbox"},
	{"id": string(agent.ReadOnly), "name": "Read only", "description": "Reads and searches only"},
}

func modesOf(o RunOptions) map[string]any {
	mode := o.Approval
	if mode == "" {
		mode = agent.Auto
	}
	return map[string]any{"currentModeId": mode, "availableModes": acpModes}
}

// begin makes a run in which nothing was said. The client's own folder means nothing
// here, and programs that it names are not run on the gateway.
func (a *acpServer) begin(servers int, cwd string) (any, error) {
	l := a.s.login
	t, err := l.target()
	if err != nil {
		return nil, err
	}
	if t.lobby {
		return nil, &problem{kind: usage, sentence: "the agent works in a sandbox", hint: "ssh -s SANDBOX@HOST acp"}
	}
	o := RunOptions{Approval: agent.Ask, Attended: true, NoQuestions: true, ClientDir: cwd}
	run, err := l.NewRun(a.ctx, t, o, "")
	if err != nil {
		return nil, err
	}
	meta := map[string]any{"sandbox": run.Sandbox, "clientCwd": cwd, "cwd": "~"}
	if servers > 0 {
		meta["mcpServers"] = "none of them is used: the agent has the sandbox's tools"
	}
	return map[string]any{"sessionId": run.ID, "modes": modesOf(o), "_meta": meta}, nil
}

// list returns the runs in the sandbox, those that an editor began in another folder than
// cwd left out. Without a folder of an editor's, a run's is the root.
func (a *acpServer) list(cwd string) (any, error) {
	t, err := a.s.login.target()
	if err != nil {
		return nil, err
	}
	row, err := a.s.login.reach(a.ctx, t, request{deed: "runs ls"})
	if err != nil {
		return nil, err
	}
	all, err := a.s.login.Runs(a.ctx)
	if err != nil {
		return nil, err
	}
	sessions := []any{}
	for _, run := range all {
		var o RunOptions
		json.Unmarshal(run.Options, &o)
		if run.SandboxID != row.ID || cwd != "" && o.ClientDir != "" && cwd != o.ClientDir {
			continue
		}
		sessions = append(sessions, map[string]any{
			"sessionId": run.ID, "cwd": cmp.Or(o.ClientDir, "/"), "title": run.Title, "updatedAt": run.Changed.UTC().Format(time.RFC3339),
		})
	}
	return map[string]any{"sessions": sessions}, nil
}

// attach takes a run up: what was in it after an event is shown. If a turn is going on, it
// is shown from here on, what it asks is asked here too, and its end is an update.
func (a *acpServer) attach(id string, after int64) (any, error) {
	l := a.s.login
	run, err := l.run(a.ctx, "runs attach", id)
	if err != nil {
		return nil, err
	}
	last, err := l.gate.db.LastRunEvent(a.ctx, run.ID)
	if err != nil {
		return nil, err
	}
	v := a.view(a.open, run.ID)
	v.replay, v.after = true, min(after, last)
	replayed := make(chan error, 1)
	a.calls.Go(func() {
		defer v.close()
		err := l.Follow(v.ctx, "runs attach", run.ID, following{
			partials: true, deltas: true, until: untilIdle, yield: v.show,
			replayed: func() error {
				v.replay = false
				for _, q := range v.unanswered {
					v.ask(q)
				}
				replayed <- nil
				return nil
			},
		})
		if v.reason != "" { // a turn has ended since
			a.update(run.ID, map[string]any{"sessionUpdate": "session_info_update", "_meta": map[string]any{"stopReason": v.stop, "reason": v.reason, "error": v.failed}})
		}
		select {
		case replayed <- err:
		default:
		}
	})
	if err := <-replayed; err != nil {
		return nil, err
	}
	var o RunOptions
	json.Unmarshal(run.Options, &o)
	return map[string]any{"modes": modesOf(o)}, nil
}

func (a *acpServer) setMode(id, mode string) error {
	for _, m := range acpModes {
		if m["id"] == mode {
			return a.s.login.SetRunMode(a.ctx, id, agent.Mode(mode))
		}
	}
	return &acpError{Code: rpcBadParams, Message: fmt.Sprintf("no mode %.40q", mode)}
}

// An acpContent is a block of a prompt.
type acpContent struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	URI      string `json:"uri"`
	Name     string `json:"name"`
	Resource struct {
		URI  string `json:"uri"`
		Text string `json:"text"`
	} `json:"resource"`
}

// promptText is a prompt as a model reads it.
func promptText(blocks []acpContent) string {
	var parts []string
	for _, b := range blocks {
		switch b.Type {
		case "text":
			parts = append(parts, b.Text)
		case "resource_link":
			parts = append(parts, fmt.Sprintf("[%s](%s)", b.Name, b.URI))
		case "resource":
			parts = append(parts, b.Resource.URI+"\n"+fenced("", b.Resource.Text))
		}
	}
	return strings.Join(parts, "\n")
}

// tellTitle tells the client what a run is called by now.
func (a *acpServer) tellTitle(id string) error {
	run, err := a.s.login.gate.db.Run(a.ctx, id)
	if err != nil {
		return err
	}
	return a.update(id, map[string]any{"sessionUpdate": "session_info_update", "title": run.Title, "updatedAt": run.Changed.UTC().Format(time.RFC3339)})
}

// prompt says something in a run and shows what comes of it.
func (a *acpServer) prompt(id string, blocks []acpContent) (any, error) {
	l := a.s.login
	run, err := l.run(a.ctx, "agent", id)
	if err != nil {
		return nil, err
	}
	after, err := l.gate.db.LastRunEvent(a.ctx, run.ID)
	if err != nil {
		return nil, err
	}
	v := a.view(a.ctx, run.ID)
	defer v.close()
	words := promptText(blocks)
	if err := l.Follow(a.ctx, "agent", run.ID, following{
		after:    after,
		partials: true,
		deltas:   true,
		begin: func() error {
			run, err := l.ContinueRun(a.ctx, run.ID, words)
			if err != nil || run.Title != "" {
				return err
			}
			return a.tellTitle(run.ID)
		},
		until: untilIdle,
		yield: v.show,
	}); err != nil {
		return nil, err
	}
	if v.failed != "" {
		return nil, &acpError{Code: rpcFailed, Message: v.failed, Data: map[string]any{
			"code": v.reason, "resumable": true, "remedy": "say something more to have it go on",
		}}
	}
	return map[string]any{"stopReason": v.stop, "_meta": map[string]any{"reason": v.reason}}, nil
}
