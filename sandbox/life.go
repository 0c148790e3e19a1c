package sandbox

import (
	"context"
	"sync"

	"sandgate/sandbox/guest"
)

// A life is what the manager knows of one sandbox beyond its row.
type life struct {
	// turn is held while the sandbox is started, stopped or removed.
	turn chan struct{}

	mu      sync.Mutex
	driver  string        // of its row
	client  *guest.Client // nil or dead: not connected
	end     *end          // of client's time
	paused  bool          // client answers nothing before the next Start
	users   int           // what Wake has handed out and is not released
	removed bool

	activity activity

	interrupt context.CancelCauseFunc // of the setup command while it runs, else nil
	failures  int                     // of setup commands
	failure   error                   // the last of them

	setup transcript
}

// lease returns the use of the sandbox if it is connected.
func (l *life) lease() (*Lease, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.connected() || l.paused {
		return nil, false
	}
	l.users++
	return &Lease{Client: l.client, life: l, end: l.end}, true
}

// connected says whether there is a client and it is alive. The caller holds mu.
func (l *life) connected() bool {
	if l.client == nil {
		return false
	}
	select {
	case <-l.client.Done():
		return false
	default:
		return true
	}
}

// announceStop tells those who use the sandbox that it is about to be stopped, and
// why if nobody asked for it.
func (l *life) announceStop(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.client != nil {
		l.end.announce(why)
	}
}

func (l *life) gone() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.removed
}

// disconnect closes the client of a sandbox that does not run any more.
func (l *life) disconnect() {
	l.mu.Lock()
	client := l.client
	l.client = nil
	l.mu.Unlock()
	if client != nil {
		client.Close()
	}
}

func (l *life) take(ctx context.Context) error {
	select {
	case l.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (l *life) give() { <-l.turn }
