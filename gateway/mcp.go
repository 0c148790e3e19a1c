package gateway

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/crypto/ssh"

	"sandgate/sandbox/guest"
	"sandgate/sandbox/guest/tool"
)

// mcpInstructions are what a client tells its model of the tools.
const mcpInstructions = `These tools work in a sandbox: a machine of its own, reached over SSH. Its files are not those of the machine that you run on. ` +
	`Relative paths begin in its working folder, which cd in exec changes.`

// mcpVersion is the newest version of the protocol that the SDK speaks.
const mcpVersion = "2026-07-28"

// maxMCPLine bounds a message from a client: the content of a file that it writes.
const maxMCPLine = 32 << 20

// mcp serves the six tools by the Model Context Protocol on the channel, until the
// client has ended its side and has all its answers.
func (s *session) mcp() status {
	t, err := s.login.target()
	if err == nil && t.lobby {
		err = &problem{kind: usage, sentence: "the lobby has no tools", hint: "those of a sandbox: ssh -s NAME@HOST mcp"}
	}
	if err != nil {
		return status{err: err}
	}
	// The sandbox may stop and start while the client stays, so it is held for each
	// call. Whether there is one, and for the caller, is told at once.
	lease, _, _, err := s.open(request{deed: doorTools})
	if err != nil {
		return status{err: err}
	}
	lease.Release()
	b := &toolBelt{session: s, target: t, conversation: rand.Text()}
	server := mcp.NewServer(&mcp.Implementation{Name: "sandgate", Version: cmp.Or(s.login.gate.cfg.Version, "0")}, &mcp.ServerOptions{Instructions: mcpInstructions})
	for _, d := range tool.Definitions() {
		server.AddTool(&mcp.Tool{
			Name: d.Name, Description: d.Description, InputSchema: d.Input, OutputSchema: d.Output,
			Annotations: &mcp.ToolAnnotations{ReadOnlyHint: d.ReadOnly},
		}, b.call)
	}
	err = server.Run(s.ctx, &patientTransport{ch: s.ch, ctx: s.ctx})
	if s.ctx.Err() != nil {
		return status{err: context.Cause(s.ctx)}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return status{err: &problem{kind: failed, sentence: "the client and the gateway could not talk: " + oneLine(err.Error())}}
	}
	return status{}
}

// A toolBelt is the tools as one client has them.
type toolBelt struct {
	session      *session
	target       target
	conversation string

	mu  sync.Mutex
	dir string // the working folder; empty: where commands start
}

// call makes one call. What goes wrong is told to the model, as it can act on it.
func (b *toolBelt) call(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	s := b.session
	lease, row, err := s.login.Open(ctx, b.target, request{deed: doorTools})
	if err != nil {
		p := s.login.explain(err)
		code := tool.NotStarted
		if p.kind == denied || p.kind == notFound || p.kind == quota {
			code = tool.Denied
		}
		return toolFailure(tool.Errorf(code, "%s", p.sentence).With("%s", cmp.Or(p.hint, "try again in a while"))), nil
	}
	defer lease.Release()
	s.login.audit(auditTool, &row, toolSummary(req.Params.Name, req.Params.Arguments), nil)
	progress, stop := b.progress(ctx, req)
	defer stop()
	b.mu.Lock()
	dir := b.dir
	b.mu.Unlock()
	out, err := lease.Tool(ctx, guest.ToolCall{
		Name: req.Params.Name, Args: req.Params.Arguments, Session: b.conversation, Dir: dir,
		// Without SSH_CLIENT, for which bash would read ~/.bashrc before each command.
		Env:        append([][]byte{[]byte("IS_SANDBOX=1")}, s.env...),
		MaxTimeout: s.login.gate.terms.Load().MaxExec,
		// A client that cancels a call wants the command ended; one that goes away
		// may come back for it.
		EndOn: func(error) bool { return s.ctx.Err() == nil },
	}, progress)
	if err != nil {
		e, ok := errors.AsType[*tool.Error](err)
		if !ok {
			return nil, err
		}
		return toolFailure(sayWhy(e, lease)), nil
	}
	if o, ok := out.(*tool.ExecOutput); ok && o.Dir != "" {
		b.mu.Lock()
		b.dir = o.Dir
		b.mu.Unlock()
	}
	result := &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: out.Text()}}, StructuredContent: out}
	if o, ok := out.(*tool.ReadOutput); ok && o.Kind == "image" {
		result.Content = append(result.Content, &mcp.ImageContent{Data: o.Data, MIMEType: o.MIME})
		o.Data = nil // once is enough
	}
	return result, nil
}

// toolFailure is the result of a call that failed. It has no structured content, as
// that would have to be what the tool returns.
func toolFailure(e *tool.Error) *mcp.CallToolResult {
	return &mcp.CallToolResult{
		Meta:    mcp.Meta{"sandgate/error": e},
		Content: []mcp.Content{&mcp.TextContent{Text: e.Text()}},
		IsError: true,
	}
}

// toolSummary says for the audit what a call is about.
func toolSummary(name string, raw json.RawMessage) string {
	var about struct{ Command, Job, Path, Pattern string }
	json.Unmarshal(raw, &about) // what is malformed has no such thing
	return name + " " + oneLine(cmp.Or(about.Command, about.Job, about.Path, about.Pattern))
}

// progressEvery is how often a client hears of a command at most, and progressQuiet
// how often when there is nothing new: clients give up on what they hear nothing of.
const (
	progressEvery = 100 * time.Millisecond
	progressQuiet = 15 * time.Second
)

// maxProgress bounds the text of a notification.
const maxProgress = 1 << 10

// progress returns what tells a client how a command goes on, if it asked for that,
// and what ends it.
func (b *toolBelt) progress(ctx context.Context, req *mcp.CallToolRequest) (tell func(guest.ToolProgress), stop func()) {
	token := req.Params.GetProgressToken()
	if token == nil {
		return nil, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	pieces := make(chan string, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		begun := time.Now()
		for {
			var text string
			select {
			case text = <-pieces:
			case <-time.After(progressQuiet):
			case <-ctx.Done():
				return
			}
			req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
				ProgressToken: token, Message: text, Progress: time.Since(begun).Seconds(),
			})
			select {
			case <-time.After(progressEvery):
			case <-ctx.Done():
				return
			}
		}
	})
	tell = func(p guest.ToolProgress) {
		text := p.Text
		if len(text) > maxProgress {
			text = strings.ToValidUTF8(text[len(text)-maxProgress:], "")
		}
		select {
		case <-pieces: // the newest is what counts
		default:
		}
		pieces <- text
	}
	return tell, func() {
		cancel()
		wg.Wait()
	}
}

// A patientTransport is a channel as the SDK wants it. The end of the client's side
// reaches the SDK, which then ends at once, only when all that was asked is answered:
// clients in pipes send their questions and close.
type patientTransport struct {
	ch  ssh.Channel
	ctx context.Context
}

// Connect implements mcp.Transport.
func (t *patientTransport) Connect(ctx context.Context) (mcp.Connection, error) {
	c, err := (&mcp.IOTransport{Reader: io.NopCloser(t.ch), Writer: writeCloser{t.ch}, MaxLineLength: maxMCPLine}).Connect(ctx)
	return &patientConnection{Connection: c, ctx: t.ctx, open: make(map[any]bool), changed: make(chan struct{})}, err
}

// writeCloser leaves the closing of the channel to the session.
type writeCloser struct{ io.Writer }

func (writeCloser) Close() error { return nil }

type patientConnection struct {
	mcp.Connection
	ctx context.Context // of the session

	mu      sync.Mutex
	open    map[any]bool  // ids of requests that are not answered
	changed chan struct{} // closed, and replaced, when one is
}

// Read implements mcp.Connection.
func (c *patientConnection) Read(ctx context.Context) (jsonrpc.Message, error) {
	m, err := c.Connection.Read(ctx)
	if r, ok := m.(*jsonrpc.Request); ok && err == nil {
		switch {
		case r.ID.IsValid():
			c.mu.Lock()
			c.open[r.ID.Raw()] = true
			c.mu.Unlock()
		case r.Method == "notifications/cancelled": // which need not be answered any more
			var p struct{ RequestID any }
			if json.Unmarshal(r.Params, &p) == nil {
				if id, err := jsonrpc.MakeID(p.RequestID); err == nil {
					c.answered(id)
				}
			}
		}
	}
	if err != nil && errors.Is(err, io.EOF) {
		c.drain(ctx)
	}
	return m, err
}

// drain waits until all requests are answered, or nobody is there to hear it.
func (c *patientConnection) drain(ctx context.Context) {
	for {
		c.mu.Lock()
		n, changed := len(c.open), c.changed
		c.mu.Unlock()
		if n == 0 {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		case <-c.ctx.Done():
			return
		}
	}
}

// Write implements mcp.Connection.
func (c *patientConnection) Write(ctx context.Context, m jsonrpc.Message) error {
	err := c.Connection.Write(ctx, m)
	if r, ok := m.(*jsonrpc.Response); ok {
		c.answered(r.ID)
	}
	return err
}

func (c *patientConnection) answered(id jsonrpc.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, id.Raw())
	close(c.changed)
	c.changed = make(chan struct{})
}
