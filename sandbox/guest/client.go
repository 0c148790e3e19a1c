package guest

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
)

// ErrGone says that the connection to the guest has ended: the sandbox was
// stopped, or it died.
var ErrGone = errors.New("sandbox stopped")

// A RefusedError says that the guest was reached and that what it was asked to
// connect to or listen on cannot be had.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

// A Client is the gateway's side of one guest. It is dead once its control
// connection has ended; all methods may be called at the same time.
type Client struct {
	session string
	spares  chan *stream
	link    *link
	done    chan struct{}
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	log     *slog.Logger

	mu        sync.Mutex
	listeners map[string]*Listening
}

// ConnectFunc waits for the next connection that the guest opens.
type ConnectFunc func(context.Context) (io.ReadWriteCloser, error)

// Connect waits for a guest to open its control connection, at most until ctx
// ends. From then on the client takes the guest's other connections from connect,
// until it is closed or dead.
func Connect(ctx context.Context, connect ConnectFunc, log *slog.Logger) (*Client, error) {
	alive, cancel := context.WithCancel(context.Background())
	c := &Client{
		session:   token(),
		spares:    make(chan *stream, maxSpares),
		done:      make(chan struct{}),
		cancel:    cancel,
		log:       log,
		listeners: make(map[string]*Listening),
	}
	control := make(chan *yamux.Session)
	failed := make(chan error, 1)
	c.wg.Go(func() { failed <- c.admit(alive, connect, control) })
	select {
	case mux := <-control:
		c.link = newLink(mux)
		c.wg.Go(c.serve)
		return c, nil
	case err := <-failed:
		cancel()
		return nil, err
	case <-ctx.Done():
		cancel()
		c.wg.Wait()
		return nil, context.Cause(ctx)
	}
}

// maxGreeting bounds the connections that have not said who they are. Any
// process in the sandbox may open one.
const maxGreeting = 16

// admit takes connections until ctx ends.
func (c *Client) admit(ctx context.Context, connect ConnectFunc, control chan<- *yamux.Session) error {
	slots := make(chan struct{}, maxGreeting)
	var greeting sync.WaitGroup
	defer greeting.Wait()
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		conn, err := connect(ctx)
		if err != nil {
			return err
		}
		greeting.Go(func() {
			defer func() { <-slots }()
			if err := c.greet(ctx, conn, control); err != nil {
				c.log.Debug("guest connection refused", "err", err)
				conn.Close()
			}
		})
	}
}

// greet hears who is on conn and keeps it as the control connection or a spare.
func (c *Client) greet(ctx context.Context, conn io.ReadWriteCloser, control chan<- *yamux.Session) error {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	s := connStream(conn, bufio.NewReader(conn))
	var h hello
	if err := s.readLine(maxHello, helloTimeout, &h); err != nil {
		return fmt.Errorf("hello: %w", err)
	}
	if h.Sandgate != protocolVersion {
		return fmt.Errorf("guest speaks version %d of the protocol, not %d", h.Sandgate, protocolVersion)
	}
	switch h.Role {
	case roleControl:
		if err := writeLine(conn, hello{Sandgate: protocolVersion, Session: c.session}); err != nil {
			return err
		}
		mux, err := yamux.Client(struct {
			io.Reader
			io.Writer
			io.Closer
		}{&pingless{r: s}, &muxWriter{w: s}, s}, muxConfig())
		if err != nil {
			return err
		}
		select {
		case control <- mux:
			return nil
		case <-c.done:
		case <-ctx.Done():
		case <-time.After(time.Second): // there is one already
		}
		mux.Close()
		return errors.New("second control connection")
	case roleSpare:
		if _, ok := conn.(halfCloser); !ok || h.Session != c.session {
			return errors.New("spare of another session")
		}
		select {
		case c.spares <- s:
			return nil
		default:
			return errors.New("too many spares")
		}
	}
	return fmt.Errorf("unknown role %q", h.Role)
}

// serve takes the streams that the guest opens, until the link ends.
func (c *Client) serve() {
	defer close(c.done)
	defer c.cancel()
	c.link.accept(c.accepted)
	c.link.mux.Close()
	c.mu.Lock()
	c.listeners = nil
	c.mu.Unlock()
	for {
		select {
		case s := <-c.spares:
			s.Close()
		default:
			return
		}
	}
}

// accepted hands a stream that the guest opened to whom it is for.
func (c *Client) accepted(s *stream, h header) {
	c.mu.Lock()
	l := c.listeners[h.Token]
	c.mu.Unlock()
	if h.Kind != kindAccept || l == nil {
		c.log.Warn("guest opened a stream that nobody asked for", "kind", string(h.Kind))
		s.Close()
		return
	}
	in := Incoming{Stream: s}
	if h.Address != nil {
		if ip := net.ParseIP(h.Address.Host); ip != nil {
			in.PeerHost, in.PeerPort = ip.String(), h.Address.Port
		}
	}
	select {
	case l.incoming <- in:
	default:
		s.Close()
	}
}

// Done is closed when the guest is gone.
func (c *Client) Done() <-chan struct{} { return c.done }

// Close ends the connection to the guest, which keeps its jobs and looks for the
// next gateway. It waits for what the client runs to end.
func (c *Client) Close() error {
	c.link.mux.Close()
	<-c.done
	c.wg.Wait()
	return nil
}

// open opens a stream that begins with h; bulk prefers a connection of its own.
func (c *Client) open(h header, bulk bool) (*stream, error) {
	for bulk {
		select {
		case s := <-c.spares:
			if writeLine(s, h) == nil {
				return s, nil
			}
			s.Close()
			continue
		default:
		}
		break
	}
	s, err := c.link.open(h)
	if err != nil && !errors.Is(err, errTooManyStreams) {
		err = ErrGone
	}
	return s, err
}

// ask opens a stream that begins with h and reads the guest's reply.
func (c *Client) ask(ctx context.Context, h header, bulk bool) (*stream, reply, error) {
	s, err := c.open(h, bulk)
	if err != nil {
		return nil, reply{}, err
	}
	stop := context.AfterFunc(ctx, func() { s.Close() })
	defer stop()
	var r reply
	if err := s.readLine(maxReply, replyTimeout, &r); err != nil {
		s.Close()
		switch {
		case ctx.Err() != nil:
			err = context.Cause(ctx)
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			err = ErrGone
		}
		return nil, reply{}, err
	}
	if r.Error != "" {
		s.over.Store(true)
		s.Close()
		if r.Refused {
			return nil, reply{}, &RefusedError{Reason: printable(r.Error)}
		}
		return nil, reply{}, errors.New(printable(r.Error))
	}
	return s, r, nil
}

// A Stream is a stream of bytes into the sandbox. CloseWrite ends the direction
// to it, Close both.
type Stream interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// SFTP starts a file server as user in the sandbox; with readOnly it refuses
// whatever would change something.
func (c *Client) SFTP(user string, readOnly bool) (Stream, error) {
	s, err := c.open(header{Kind: kindSFTP, User: user, Reads: readOnly}, true)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Dial connects from inside the sandbox. A *RefusedError has the reason when
// nothing listens there.
func (c *Client) Dial(ctx context.Context, a Address) (Stream, error) {
	s, _, err := c.ask(ctx, header{Kind: kindDial, Address: &a}, true)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Listening is a listener inside the sandbox.
type Listening struct {
	Address  Address // where it listens; a port that was 0 has been chosen
	incoming chan Incoming
	control  *stream
	token    string
	client   *Client
	ended    chan struct{}
}

// Incoming is a connection that was accepted inside the sandbox. PeerHost is
// empty for a unix socket.
type Incoming struct {
	Stream   Stream
	PeerHost string
	PeerPort uint16
}

// Listen listens inside the sandbox as user, until the Listening is closed or
// the guest is gone.
func (c *Client) Listen(ctx context.Context, user string, a Address) (*Listening, error) {
	l := &Listening{
		incoming: make(chan Incoming, 64),
		token:    token(),
		client:   c,
		ended:    make(chan struct{}),
	}
	c.mu.Lock()
	switch {
	case c.listeners == nil:
		c.mu.Unlock()
		return nil, ErrGone
	case len(c.listeners) >= maxListeners:
		c.mu.Unlock()
		return nil, errors.New("too many listeners in one sandbox")
	}
	c.listeners[l.token] = l
	c.mu.Unlock()
	s, r, err := c.ask(ctx, header{Kind: kindListen, Token: l.token, Address: &a, User: user}, false)
	if err != nil {
		c.forget(l)
		return nil, err
	}
	l.control = s
	l.Address = a
	if r.Address != nil {
		if a.Agent {
			l.Address.Path = r.Address.Path
		}
		l.Address.Port = r.Address.Port
	}
	go func() {
		io.Copy(io.Discard, s) // the guest says no more; its end is what counts
		close(l.ended)
		c.forget(l)
	}()
	return l, nil
}

func (c *Client) forget(l *Listening) {
	c.mu.Lock()
	delete(c.listeners, l.token)
	c.mu.Unlock()
}

// Accept returns the next connection. net.ErrClosed when the listener has ended.
func (l *Listening) Accept() (Incoming, error) {
	select {
	case in := <-l.incoming:
		return in, nil
	case <-l.ended:
		return Incoming{}, net.ErrClosed
	}
}

// Close stops listening. Connections stay open.
func (l *Listening) Close() error {
	l.client.forget(l)
	l.control.Close()
	<-l.ended
	for {
		select {
		case in := <-l.incoming:
			in.Stream.Close()
		default:
			return nil
		}
	}
}

// token returns a name that nobody can guess.
func token() string { return rand.Text() }

// printable makes what a guest says fit for a terminal and a log: one short line
// without control characters.
func printable(s string) string {
	const most = 300
	if len(s) > most {
		s = s[:most]
	}
	q := strconv.Quote(s)
	return q[1 : len(q)-1]
}
