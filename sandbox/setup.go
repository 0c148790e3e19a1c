package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sandgate/sandbox/guest"
	"sandgate/store"
)

// setupTimeout bounds one run of a setup command.
const setupTimeout = time.Hour

// A SetupError says that a sandbox's setup command has failed. The sandbox was
// stopped, and the next start runs the command again.
type SetupError struct {
	Sandbox string // its name
	How     string // the command ended
}

func (e *SetupError) Error() string { return fmt.Sprintf("setup of sandbox %q: %s", e.Sandbox, e.How) }

var (
	errStopped = errors.New("interrupted, as the sandbox was stopped")
	errClosing = errors.New("interrupted, as the gateway is stopping")
	errTooLong = fmt.Errorf("not done within %v", setupTimeout)
)

// needsSetup reports whether the sandbox's setup command is still to be run.
func (m *Manager) needsSetup(ctx context.Context, row store.Sandbox) (bool, error) {
	o, err := OptionsOf(row)
	if err != nil || o.Setup == "" {
		return false, err
	}
	s, err := m.db.Setup(ctx, row.ID)
	if errors.Is(err, store.ErrNotFound) {
		return true, nil
	}
	return !s.Done, err
}

// setUp runs the setup command of a sandbox that has just been started. The caller
// has its turn. If the command fails the sandbox is stopped again.
func (m *Manager) setUp(l *life, row store.Sandbox, client *guest.Client) error {
	m.mu.Lock()
	if m.closing.Err() != nil {
		m.mu.Unlock()
		client.Close()
		return errClosing
	}
	m.setups.Add(1)
	m.mu.Unlock()
	defer m.setups.Done()
	ctx, cancel := context.WithTimeoutCause(m.closing, setupTimeout, errTooLong)
	defer cancel()
	ctx, interrupt := context.WithCancelCause(ctx)
	defer interrupt(nil)
	l.mu.Lock()
	l.interrupt = interrupt
	l.mu.Unlock()
	l.setup.begin()
	m.log.Info("setup begins", keySandbox, row.ID)
	began := time.Now()
	how, err := runSetup(ctx, row, client, &l.setup)
	log, _ := l.setup.snapshot()
	l.setup.end()
	l.mu.Lock()
	l.interrupt = nil
	l.mu.Unlock()
	m.log.Info("setup ends", keySandbox, row.ID, "how", how, keyErr, err, keyTook, time.Since(began).Round(time.Millisecond))

	// Also when it was interrupted by whoever had asked for it.
	ctx, cancel = context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err == nil {
		err = m.db.PutSetup(ctx, row.ID, store.Setup{Done: how == "", How: how, Ended: time.Now(), Log: log})
	}
	if err == nil && how != "" {
		err = &SetupError{Sandbox: row.Name, How: how}
	}
	if err == nil {
		return nil
	}
	l.mu.Lock()
	l.failures++
	l.failure = err
	l.mu.Unlock()
	client.Close()
	if m.closing.Err() != nil {
		return err // the next gateway stops it, and runs the command again
	}
	return errors.Join(err, m.db.SetDesired(ctx, row.ID, store.DesiredStopped), m.halt(ctx, row))
}

// runSetup runs the setup command and says how it failed; "" if it did not. The
// error says why that cannot be known.
func runSetup(ctx context.Context, row store.Sandbox, client *guest.Client, out *transcript) (how string, err error) {
	o, err := OptionsOf(row)
	if err != nil {
		return "", err
	}
	text := "exec 2>&1\n" // as two streams would lose their order
	if o.Workspace != "" {
		text += "cd /workspace || exit\n"
	}
	text += o.Setup
	p, err := client.Start(guest.Command{Text: []byte(text), Env: [][]byte{[]byte("IS_SANDBOX=1")}}, false)
	if err != nil {
		return "", fmt.Errorf("setup of sandbox %q: %w", row.Name, err)
	}
	defer p.Close()
	p.CloseWrite()
	exit, err := p.Wait(ctx, out, out)
	switch {
	case ctx.Err() != nil:
		p.Hangup()
		return context.Cause(ctx).Error(), nil
	case errors.Is(err, guest.ErrGone):
		return "the sandbox ended while it ran", nil
	case err != nil:
		return "", fmt.Errorf("setup of sandbox %q: %w", row.Name, err)
	case exit.Signal != "":
		return "ended by signal " + exit.Signal, nil
	case exit.Code != 0:
		return fmt.Sprintf("exit code %d", exit.Code), nil
	}
	return "", nil
}

// setupsFailed returns how often the setup command has failed, and how last.
func (l *life) setupsFailed() (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failures, l.failure
}

// interruptSetup ends the setup command of a sandbox that is about to be stopped,
// if it runs.
func (l *life) interruptSetup() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.interrupt != nil {
		l.interrupt(errStopped)
	}
}

// A SetupState is how far a sandbox's setup has come.
type SetupState string

// The states of a setup.
const (
	SetupPending SetupState = "pending" // the first start runs it
	SetupRunning SetupState = "running"
	SetupDone    SetupState = "done"
	SetupFailed  SetupState = "failed" // the next start runs it again
)

// A Setup is what is known of a sandbox's setup.
type Setup struct {
	State SetupState
	How   string    // it failed
	Ended time.Time // the last run
	Log   []byte    // what that, or the one under way, has written: the last of it
}

// Setup returns what is known of a sandbox's setup. ErrNotFound if it has no setup
// command.
func (m *Manager) Setup(ctx context.Context, row store.Sandbox) (Setup, error) {
	if o, err := OptionsOf(row); err != nil {
		return Setup{}, err
	} else if o.Setup == "" {
		return Setup{}, fmt.Errorf("setup of sandbox %s: %w", row.ID, ErrNotFound)
	}
	if l := m.known(ID(row.ID)); l != nil {
		if log, running := l.setup.snapshot(); running {
			return Setup{State: SetupRunning, Log: log}, nil
		}
	}
	s, err := m.db.Setup(ctx, row.ID)
	if errors.Is(err, store.ErrNotFound) {
		return Setup{State: SetupPending, Log: []byte{}}, nil
	}
	state := SetupFailed
	if s.Done {
		state = SetupDone
	}
	return Setup{State: state, How: s.How, Ended: s.Ended, Log: s.Log}, err
}
