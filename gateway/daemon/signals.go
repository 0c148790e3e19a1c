package daemon

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// signals are what the process is told by signals. Its context ends with the first
// that tells it to stop, hurry is closed by the second, and a third ends the process.
type signals struct {
	context.Context
	cancel context.CancelFunc
	hurry  chan struct{}

	got      chan os.Signal
	done     sync.WaitGroup
	terminal bool // stdin is one

	mu     sync.Mutex
	reload func() // nil: nothing can be reloaded yet
	wanted bool   // somebody asked for it before
}

func watchSignals() *signals {
	s := &signals{hurry: make(chan struct{}), got: make(chan os.Signal, 8), terminal: isTerminal(os.Stdin)}
	s.Context, s.cancel = context.WithCancel(context.Background())
	signal.Notify(s.got, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	s.done.Go(s.watch)
	go endWithGoRun(s, s.cancel)
	return s
}

func (s *signals) watch() {
	for sig := range s.got {
		switch {
		case sig == syscall.SIGHUP && !(s.terminal && !isTerminal(os.Stdin)):
			s.reloadNow()
		case s.Err() == nil: // a terminal that was closed is one, too
			s.cancel()
		default:
			close(s.hurry)
			signal.Reset()
			return
		}
	}
}

func (s *signals) reloadNow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reload == nil {
		s.wanted = true
	} else if s.Err() == nil {
		s.reload()
	}
}

// onReload has f called, once at a time, for each signal to reload, from now until
// the function that it returns is called.
func (s *signals) onReload(f func()) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reload = f
	if s.wanted {
		f()
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.reload = nil
	}
}

// stop gives signals back their usual meaning.
func (s *signals) stop() {
	signal.Stop(s.got)
	close(s.got)
	s.done.Wait()
	s.cancel()
}

// endWithGoRun calls stop when the `go run` that started us ends. That one passes
// no signals on: whoever ends it means the gateway, which would run on unseen.
func endWithGoRun(ctx context.Context, stop func()) {
	parent := os.Getppid()
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", parent))
	for string(name) == "go\n" && ctx.Err() == nil {
		if os.Getppid() != parent {
			stop()
		}
		time.Sleep(time.Second / 4)
	}
}
