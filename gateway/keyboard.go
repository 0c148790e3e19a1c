package gateway

import (
	"bytes"
	"context"
	"io"
	"sync"
)

// A keyboard is what a client types at the lobby. It goes to the prompt, or to the
// verb that runs. While a verb runs that reads nothing, ^C interrupts it, and the
// rest waits for whoever reads next.
type keyboard struct {
	mu        sync.Mutex
	changed   sync.Cond
	typed     []byte
	err       error  // after which nothing more comes
	swallow   bool   // a line feed that comes next belongs to the return before it
	interrupt func() // of the verb that runs and has not read anything; nil: there is none
}

// maxTyped bounds what waits to be read. Clients wait that send more.
const maxTyped = 64 << 10

const ctrlC = 3

// newKeyboard returns a keyboard that reads from r until that or ctx ends.
func newKeyboard(ctx context.Context, r io.Reader) *keyboard {
	k := new(keyboard)
	k.changed.L = &k.mu
	context.AfterFunc(ctx, func() { k.end(context.Cause(ctx)) })
	go k.read(r)
	return k
}

func (k *keyboard) end(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err == nil {
		k.err = err
	}
	k.changed.Broadcast()
}

func (k *keyboard) read(r io.Reader) {
	buf := make([]byte, 4<<10)
	for {
		n, err := r.Read(buf)
		if !k.take(buf[:n]) {
			return
		}
		if err != nil {
			k.end(err)
			return
		}
	}
}

// take keeps what was typed, once there is room. It returns false if nobody will
// ever read it.
func (k *keyboard) take(b []byte) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for len(k.typed) >= maxTyped && k.err == nil {
		k.changed.Wait()
	}
	if k.err != nil {
		return false
	}
	if i := bytes.LastIndexByte(b, ctrlC); i >= 0 && k.interrupt != nil {
		k.interrupt()
		k.typed, b = nil, b[i+1:]
	}
	k.typed = append(k.typed, b...)
	k.changed.Broadcast()
	return true
}

// wait waits for something typed, until over says that nobody wants it any more. The
// caller holds mu.
func (k *keyboard) wait(over func() bool) error {
	for {
		if k.swallow && len(k.typed) > 0 {
			k.typed = bytes.TrimPrefix(k.typed, []byte("\n"))
			k.swallow = false
		}
		switch {
		case over():
			return io.EOF
		case len(k.typed) > 0:
			return nil
		case k.err != nil:
			return k.err
		}
		k.changed.Wait()
	}
}

// give moves what was typed to p, at most n bytes of it. The caller holds mu.
func (k *keyboard) give(p []byte, n int) int {
	n = copy(p, k.typed[:min(n, len(k.typed))])
	k.typed = k.typed[n:]
	k.changed.Broadcast()
	return n
}

// Read reads for the prompt, no more than up to the end of a line: what comes after
// that may be for a verb. ^C becomes the keys that empty the line and end it.
func (k *keyboard) Read(p []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.wait(func() bool { return false }); err != nil {
		return 0, err
	}
	if k.typed[0] == ctrlC {
		const toEnd, erase = "\x05", "\x15"
		k.typed = append([]byte(toEnd+erase+"\r"), k.typed[1:]...)
	}
	n := len(k.typed)
	if i := bytes.IndexAny(k.typed, "\r\n\x03"); i >= 0 {
		n = i
		if k.typed[i] != ctrlC {
			n++
		}
	}
	n = k.give(p, n)
	k.swallow = n > 0 && p[n-1] == '\r'
	return n, nil
}

// A verbInput is the keyboard as one verb reads it, until the verb has ended.
type verbInput struct {
	k     *keyboard
	ctx   context.Context // of the verb
	ended bool            // guarded by k.mu
}

// forVerb returns the input of a verb that begins to run, until ctx ends or the verb
// has ended. interrupt is called for ^C as long as the verb does not read it.
func (k *keyboard) forVerb(ctx context.Context, interrupt func()) *verbInput {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.interrupt = interrupt
	context.AfterFunc(ctx, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.changed.Broadcast()
	})
	return &verbInput{k: k, ctx: ctx}
}

func (v *verbInput) Read(p []byte) (int, error) {
	v.k.mu.Lock()
	defer v.k.mu.Unlock()
	if !v.ended {
		v.k.interrupt = nil // whoever reads, reads ^C too
	}
	if err := v.k.wait(func() bool { return v.ended || v.ctx.Err() != nil }); err != nil {
		return 0, err
	}
	return v.k.give(p, len(p)), nil
}

// end ends the verb's reading, also one that waits.
func (v *verbInput) end() {
	v.k.mu.Lock()
	defer v.k.mu.Unlock()
	v.ended = true
	v.k.interrupt = nil
	v.k.changed.Broadcast()
}
