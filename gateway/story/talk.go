package story

import (
	"bytes"
	"context"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// talk is the story's command talk. Whoever types at a terminal waits for what is
// there to be answered, and so do the stories: a time to sleep instead is too short
// on some host.
func talk(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: talk LINES ARGS...")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute) // then it hangs
	defer cancel()
	ssh := exec.CommandContext(ctx, filepath.Join(storyOf(ts).bin, "ssh"), args[1:]...)
	ssh.Dir, ssh.WaitDelay = ts.MkAbs("."), time.Second
	screen := &screen{more: make(chan struct{}, 1)}
	ssh.Stdout, ssh.Stderr = screen, screen
	keys, err := ssh.StdinPipe()
	ts.Check(err)
	ts.Check(ssh.Start())
	ended := make(chan error, 1)
	go func() {
		ended <- ssh.Wait()
		cancel()
	}()
	defer func() { io.WriteString(ts.Stdout(), screen.String()) }()
	for line := range strings.Lines(ts.ReadFile(args[0])) {
		line = strings.TrimSuffix(line, "\n")
		if text, ok := strings.CutPrefix(line, "> "); ok {
			io.WriteString(keys, text+"\n")
		} else if text, ok := strings.CutPrefix(line, "< "); ok {
			if !screen.await(ctx, text) {
				cancel()
				ts.Fatalf("it ended, with %v, or nothing came of %q:\n%s", <-ended, text, screen)
			}
		} else if line == "kill" {
			ssh.Process.Kill()
			<-ended
			return
		} else {
			ts.Fatalf("%q is neither > TEXT, < TEXT nor kill", line)
		}
	}
	if err := <-ended; err != nil {
		ts.Fatalf("it ended with %v:\n%s", err, screen)
	}
}

// A screen is what a client has written so far.
type screen struct {
	more chan struct{} // has one if something may have come since the last look

	mu   sync.Mutex
	text bytes.Buffer
	seen int // up to here it was awaited
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text.Write(p)
	select {
	case s.more <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// await waits until text has come, after what was awaited before.
func (s *screen) await(ctx context.Context, text string) bool {
	for {
		if s.find(text) {
			return true
		}
		select {
		case <-s.more:
		case <-ctx.Done():
			return s.find(text)
		}
	}
}

func (s *screen) find(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := bytes.Index(s.text.Bytes()[s.seen:], []byte(text))
	if at < 0 {
		return false
	}
	s.seen += at + len(text)
	return true
}
