package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// A Process is a job in the sandbox as one client of it sees it. Write and
// CloseWrite are its standard input.
type Process struct {
	control, data *stream

	mu      sync.Mutex
	size    *Size    // to be sent; only the last one matters
	signals []string // to be sent
	wake    chan struct{}
	ended   chan struct{}
	end     func() // closes ended, once
	id      string // of the job, once it has started
}

// Start starts a job: cmd.Text by the user's shell, or a login shell when login
// is true. It returns before the guest has answered; what fails in the guest is
// told on the process's stderr and by its exit.
func (c *Client) Start(cmd Command, login bool) (*Process, error) {
	k := kindExec
	if login {
		k = kindShell
	}
	return c.process(header{Kind: k, Command: &cmd})
}

// Attach attaches to a running job by its id: to one with a terminal, or to a plain
// command. What a recorded job's terminal shows is painted first. Several clients may
// be attached; the terminal has the size of the one that typed last. Its exit is code
// 255 if there is no such job.
func (c *Client) Attach(job string, as Viewing) (*Process, error) {
	return c.process(header{Kind: kindAttach, Job: job, Viewing: &as})
}

func (c *Client) process(h header) (*Process, error) {
	h.Token = token()
	if n := len(appendLine(nil, h)); n > maxHeader {
		return nil, fmt.Errorf("command of %d bytes is too long", n)
	}
	control, err := c.open(h, false)
	if err != nil {
		return nil, err
	}
	data, err := c.open(header{Kind: kindData, Token: h.Token}, true)
	if err != nil {
		control.Close()
		return nil, err
	}
	ended := make(chan struct{})
	p := &Process{
		control: control,
		data:    data,
		wake:    make(chan struct{}, 1),
		ended:   ended,
		end:     sync.OnceFunc(func() { close(ended) }),
	}
	go p.send()
	return p, nil
}

func (p *Process) Write(b []byte) (int, error) { return p.data.Write(b) }

// CloseWrite ends the standard input.
func (p *Process) CloseWrite() error { return p.data.CloseWrite() }

// Resize tells the size of the terminal. It never waits.
func (p *Process) Resize(s Size) {
	p.mu.Lock()
	p.size = &s
	p.mu.Unlock()
	p.poke()
}

// maxSignals bounds the signals that the guest has not taken yet.
const maxSignals = 64

// Signal sends a signal to the process group, name without SIG. It never waits;
// a flood of signals is cut.
func (p *Process) Signal(name string) {
	p.mu.Lock()
	if len(p.signals) < maxSignals {
		p.signals = append(p.signals, name)
	}
	p.mu.Unlock()
	p.poke()
}

func (p *Process) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// send writes resizes and signals, apart from those who ask for them: they read
// a client's requests, which must not wait for a guest.
func (p *Process) send() {
	for {
		select {
		case <-p.wake:
		case <-p.ended:
			return
		}
		p.mu.Lock()
		size, signals := p.size, p.signals
		p.size, p.signals = nil, nil
		p.mu.Unlock()
		if size != nil && writeFrame(p.control, frameResize, size.encode()) != nil {
			return
		}
		for _, s := range signals {
			if writeFrame(p.control, frameSignal, []byte(s)) != nil {
				return
			}
		}
	}
}

// errOutput marks an error of the writers given to Wait.
type errOutput struct{ error }

func (e errOutput) Unwrap() error { return e.error }

// OutputFailed says whether an error of Wait came from the writers it was given
// and not from the guest.
func OutputFailed(err error) bool {
	var e errOutput
	return errors.As(err, &e)
}

// Wait copies what the job prints to stdout and stderr, which may be used at the
// same time, until both have ended, and returns how the job ended. ErrGone if the
// sandbox went away first. When ctx ends or a writer fails it returns at once, in
// the former case ctx's cause. In any case the process is to be closed or hung up
// afterwards, which also ends what still uses the writers.
func (p *Process) Wait(ctx context.Context, stdout, stderr io.Writer) (Exit, error) {
	defer p.end()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	output := make(chan error, 1)
	go func() {
		readErr, writeErr := Copy(stdout, p.data)
		if writeErr != nil {
			fail(errOutput{writeErr})
			return
		}
		output <- readErr
	}()
	type end struct {
		exit Exit
		err  error
	}
	told := make(chan end, 1)
	go func() {
		exit, err := p.frames(stderr)
		told <- end{exit, err}
	}()
	var last end
	select {
	case last = <-told:
	case <-ctx.Done():
		return Exit{}, context.Cause(ctx)
	}
	if last.err != nil {
		p.data.Close()
	}
	select {
	case err := <-output:
		if err != nil && last.err == nil {
			return Exit{}, ErrGone
		}
	case <-ctx.Done():
		return Exit{}, context.Cause(ctx)
	}
	return last.exit, last.err
}

// frames reads the control stream until the exit.
func (p *Process) frames(stderr io.Writer) (Exit, error) {
	var buf frameBuffer
	for {
		typ, payload, err := buf.read(p.control)
		if errors.Is(err, errProtocol) {
			return Exit{}, err
		}
		if err != nil {
			return Exit{}, ErrGone
		}
		switch typ {
		case frameStarted:
			var s started
			if err := json.Unmarshal(payload, &s); err != nil || len(s.Job) > 64 {
				return Exit{}, fmt.Errorf("%w: malformed start", errProtocol)
			}
			p.mu.Lock()
			p.id = s.Job
			p.mu.Unlock()
		case frameStderr:
			if _, err := stderr.Write(payload); err != nil {
				return Exit{}, errOutput{err}
			}
		case frameExit:
			p.control.over.Store(true)
			return decodeExit(payload)
		default:
			return Exit{}, fmt.Errorf("%w: unknown frame %q", errProtocol, typ)
		}
	}
}

// started is the payload of the first frame from the guest.
type started struct {
	Job string `json:"job"`
}

// Job returns the job's id, empty until the guest has told it.
func (p *Process) Job() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.id
}

// Hangup says that the client has gone for good, and closes the process. What
// the job then gets is the guest's matter: its pipes close, and HUP.
func (p *Process) Hangup() {
	p.end()
	p.data.Close()
	// The guest closes its side when it has heard.
	time.AfterFunc(hangupTimeout, func() { p.control.Close() })
	writeFrame(p.control, frameHangup, nil)
	p.control.CloseWrite()
}

// hangupTimeout bounds the time for a guest to hear that a client has gone.
const hangupTimeout = 10 * time.Second

// Close lets go of the job, which goes on without this client.
func (p *Process) Close() error {
	p.end()
	p.control.Close()
	p.data.Close()
	return nil
}
