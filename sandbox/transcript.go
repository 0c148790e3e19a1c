package sandbox

import (
	"context"
	"fmt"
	"io"
	"sync"
)

// maxTranscript bounds what is kept of a transcript: the last of it, and at least
// half as much.
const maxTranscript = 512 << 10

// A transcript is output that others read while it is written, from run to run.
// The zero value is ready.
type transcript struct {
	mu      sync.Mutex
	text    []byte
	start   int64 // of text, in all that was ever written
	running bool
	changed chan struct{} // closed when there is more; nil: nobody waits
}

// begin starts a new run and forgets what the one before wrote.
func (t *transcript) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.start += int64(len(t.text))
	t.text, t.running = nil, true
}

// end ends a run. What it wrote can still be read.
func (t *transcript) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running = false
}

func (t *transcript) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if over := len(t.text) - maxTranscript; over > 0 {
		cut := max(over, maxTranscript/2)
		t.start += int64(cut)
		t.text = append([]byte(nil), t.text[cut:]...)
	}
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
	return len(p), nil
}

// snapshot returns what the last run has written so far, and whether it goes on.
func (t *transcript) snapshot() (text []byte, running bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]byte{}, t.text...), t.running
}

// show copies to w what the run that goes on has written, and all that is written
// until stop is called, which waits until w has it.
func (t *transcript) show(w io.Writer) (stop func()) {
	t.mu.Lock()
	at := t.start
	if !t.running {
		at += int64(len(t.text))
	}
	t.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for more := true; more; {
			var text []byte
			var changed <-chan struct{}
			if text, at, changed = t.since(at); len(text) > 0 {
				if _, err := w.Write(text); err != nil {
					return
				}
				continue
			}
			select {
			case <-changed:
			case <-ctx.Done():
				text, _, _ := t.since(at)
				w.Write(text)
				more = false
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// since returns what was written after at, where that ends, and a channel that is
// closed when there is more.
func (t *transcript) since(at int64) (text []byte, end int64, changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	end = t.start + int64(len(t.text))
	if at < t.start {
		text = fmt.Appendf(nil, "[%d bytes are left out]\n", t.start-at)
		at = t.start
	}
	text = append(text, t.text[at-t.start:]...)
	if t.changed == nil {
		t.changed = make(chan struct{})
	}
	return text, end, t.changed
}
