package gateway

import (
	"context"
	"sync"
	"time"

	glider "github.com/gliderlabs/ssh"
	"golang.org/x/crypto/ssh"
)

// earlier counts the global requests of a connection that are being carried out.
// OpenSSH's server does all that a client asks in the order of asking, and clients
// count on it: the command after -R finds the forward there, and a refused one ends
// ExitOnForwardFailure's client before the command's status does. The library gives
// requests and channels to goroutines of their own, so what a channel runs waits
// here for the requests before it.
type earlier struct {
	mu   sync.Mutex
	n    int
	none chan struct{} // closed when n is 0 again
}

// requestGap is how long after a request the next one, which had arrived before,
// counts as not yet begun. Its answer is sent in that time too.
const requestGap = 2 * time.Millisecond

func (e *earlier) begin() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.n == 0 {
		e.none = make(chan struct{})
	}
	e.n++
}

func (e *earlier) end() {
	time.AfterFunc(requestGap, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.n--; e.n == 0 {
			close(e.none)
		}
	})
}

// wait waits until no request is being carried out, or ctx ends.
func (e *earlier) wait(ctx context.Context) {
	e.mu.Lock()
	n, none := e.n, e.none
	e.mu.Unlock()
	if n == 0 {
		return
	}
	select {
	case <-none:
	case <-ctx.Done():
	}
}

// ordered makes the connection's sessions wait for a global request.
func ordered(serve glider.RequestHandler) glider.RequestHandler {
	return func(ctx glider.Context, s *glider.Server, req *ssh.Request) (bool, []byte) {
		if conn, ok := ctx.Value(glider.ContextKeyConn).(*ssh.ServerConn); ok {
			if l := loginOf(conn.Permissions); l != nil {
				l.earlier.begin()
				defer l.earlier.end()
			}
		}
		return serve(ctx, s, req)
	}
}
