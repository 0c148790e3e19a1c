package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	glider "github.com/gliderlabs/ssh"
	"golang.org/x/crypto/ssh"

	"sandgate/sandbox/guest"
	"sandgate/store"
)

// join moves bytes between a channel and a stream into the sandbox, each direction
// until it ends by itself, and both until ctx ends; what the client sent before it
// closed the channel still reaches the sandbox then. It returns when the sandbox's
// direction has ended; inbound is closed when the client's has. The error is that
// of ctx, or guest.ErrGone when the sandbox's side broke.
func join(ctx context.Context, ch ssh.Channel, stream guest.Stream) (inbound <-chan struct{}, err error) {
	in := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		linger(ctx, in)
		stream.Close()
	})
	defer stop()
	go func() {
		defer close(in)
		if readErr, writeErr := guest.Copy(stream, ch); readErr == nil && writeErr == nil {
			stream.CloseWrite()
		}
	}()
	readErr, writeErr := guest.Copy(ch, stream)
	switch {
	case ctx.Err() != nil:
		linger(ctx, in)
		return in, context.Cause(ctx)
	case writeErr != nil:
		linger(ctx, in)
		return in, errClientGone
	case readErr != nil:
		return in, guest.ErrGone
	}
	return in, nil
}

// linger waits, after the end of ctx, for what the client had already sent. If the
// client has closed its channel that ends by itself, unless nobody reads it.
func linger(ctx context.Context, inbound <-chan struct{}) {
	cause := context.Cause(ctx)
	if _, ok := errors.AsType[notice](cause); ok || errors.Is(cause, errLeaving) {
		return
	}
	select {
	case <-inbound:
	case <-time.After(lingerTime):
	}
}

const (
	dialTimeout   = 60 * time.Second // for a connection inside a sandbox, with its start
	listenTimeout = 30 * time.Second // for a listener: the connection's requests wait for it
	lingerTime    = 10 * time.Second // for what a client sent before it went away
)

// serveDirectTCP serves -L, -D and -W (RFC 4254 section 7.2), and jumps.
func (g *Gateway) serveDirectTCP(ctx context.Context, login *Login, _ *ssh.ServerConn, newChannel ssh.NewChannel) {
	var m struct {
		Host       string
		Port       uint32
		OriginHost string
		OriginPort uint32
	}
	if err := ssh.Unmarshal(newChannel.ExtraData(), &m); err != nil || m.Port == 0 || m.Port > 65535 {
		newChannel.Reject(ssh.ConnectionFailed, "malformed address")
		return
	}
	if login.jumps(ctx, m.Host, m.Port) {
		if err := login.may(ctx, doorForward); err != nil {
			login.audit(auditForward, nil, "jump to "+m.Host, err)
			newChannel.Reject(ssh.Prohibited, login.reason(err))
			return
		}
		g.serveJump(login, newChannel, m.Host)
		return
	}
	g.serveDirect(ctx, login, newChannel, guest.Address{Host: m.Host, Port: uint16(m.Port)})
}

// serveDirectUnix serves -L to a unix socket (OpenSSH's PROTOCOL, section 2.4).
func (g *Gateway) serveDirectUnix(ctx context.Context, login *Login, _ *ssh.ServerConn, newChannel ssh.NewChannel) {
	var m struct {
		Path     string
		Reserved string
		Unused   uint32
	}
	if err := ssh.Unmarshal(newChannel.ExtraData(), &m); err != nil || m.Path == "" {
		newChannel.Reject(ssh.ConnectionFailed, "malformed path")
		return
	}
	g.serveDirect(ctx, login, newChannel, guest.Address{Path: []byte(m.Path)})
}

// serveDirect joins a channel to an address inside the connection's sandbox.
func (g *Gateway) serveDirect(ctx context.Context, login *Login, newChannel ssh.NewChannel, a guest.Address) {
	t, err := login.target()
	if err != nil || t.lobby {
		login.auditAs(auditForward, nil, "to "+addressText(a)+": not from here", auditDenied)
		newChannel.Reject(ssh.Prohibited, "only connections to a sandbox can forward")
		return
	}
	opening, opened := context.WithTimeout(ctx, dialTimeout)
	defer opened()
	lease, row, err := login.Open(opening, t, request{deed: doorForward})
	if err != nil {
		reason := ssh.ConnectionFailed
		if p, ok := errors.AsType[*problem](err); ok && (p.kind == notFound || p.kind == denied) {
			reason = ssh.Prohibited
		}
		newChannel.Reject(reason, login.reason(err))
		return
	}
	defer lease.Release()
	stream, err := lease.Dial(opening, a)
	login.audit(auditForward, &row, "to "+addressText(a), err)
	if err != nil {
		sentence := ""
		if refused, ok := errors.AsType[*guest.RefusedError](err); ok {
			sentence = refused.Reason
		} else {
			sentence = login.reason(err)
		}
		newChannel.Reject(ssh.ConnectionFailed, sentence)
		return
	}
	defer stream.Close()
	ch, requests, err := newChannel.Accept()
	if err != nil {
		return
	}
	login.beginSession()
	metered := &meteredChannel{Channel: ch, counts: login.gate.meter.of(row.ID)}
	defer login.does(&row, "forward to "+addressText(a), metered)()
	serveForward(ctx, metered, requests, stream)
}

// addressText is an address as the audit has it.
func addressText(a guest.Address) string {
	if len(a.Path) > 0 {
		return fmt.Sprintf("%.400q", a.Path)
	}
	return net.JoinHostPort(a.Host, strconv.Itoa(int(a.Port)))
}

// serveForward serves an open forwarding channel until it ends.
func serveForward(ctx context.Context, ch ssh.Channel, requests <-chan *ssh.Request, stream guest.Stream) {
	defer ch.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		ssh.DiscardRequests(requests)
		cancel(errClientGone)
	}()
	inbound, err := join(ctx, ch, stream)
	if err != nil {
		return
	}
	ch.CloseWrite()
	select {
	case <-inbound:
	case <-ctx.Done():
		linger(ctx, inbound)
	}
}

// A listenRequest is a global request to listen, as its answer and its channels
// name it (RFC 4254 section 7.1; OpenSSH's PROTOCOL, section 2.4).
type listenRequest struct {
	key  string // what cancel names
	at   guest.Address
	open func(conn *ssh.ServerConn, in guest.Incoming, bound guest.Address) (ssh.Channel, <-chan *ssh.Request, error)
}

// listenTCP serves -R.
func (g *Gateway) listenTCP(ctx glider.Context, _ *glider.Server, req *ssh.Request) (bool, []byte) {
	var m struct {
		Host string
		Port uint32
	}
	if ssh.Unmarshal(req.Payload, &m) != nil || m.Port > 65535 {
		return false, nil
	}
	bound, err := g.listen(ctx, listenRequest{
		key: tcpKey(m.Host, m.Port),
		// Whatever address is asked for, it is the sandbox's own loopback, as
		// with OpenSSH's GatewayPorts=no.
		at: guest.Address{Host: loopback(m.Host), Port: uint16(m.Port)},
		open: func(conn *ssh.ServerConn, in guest.Incoming, bound guest.Address) (ssh.Channel, <-chan *ssh.Request, error) {
			return conn.OpenChannel("forwarded-tcpip", ssh.Marshal(struct {
				Host       string
				Port       uint32
				OriginHost string
				OriginPort uint32
			}{m.Host, uint32(bound.Port), in.PeerHost, uint32(in.PeerPort)}))
		},
	})
	if err != nil {
		return false, nil
	}
	if m.Port == 0 {
		return true, ssh.Marshal(struct{ Port uint32 }{uint32(bound.Port)})
	}
	return true, nil
}

func loopback(host string) string {
	if ip := net.ParseIP(host); ip != nil && ip.To4() == nil && !ip.IsUnspecified() {
		return "::1"
	}
	return "127.0.0.1"
}

func tcpKey(host string, port uint32) string {
	return "tcp " + host + " " + strconv.FormatUint(uint64(port), 10)
}

func (g *Gateway) cancelTCP(ctx glider.Context, _ *glider.Server, req *ssh.Request) (bool, []byte) {
	var m struct {
		Host string
		Port uint32
	}
	return ssh.Unmarshal(req.Payload, &m) == nil && cancelListen(ctx, tcpKey(m.Host, m.Port)), nil
}

// listenUnix serves -R of a unix socket.
func (g *Gateway) listenUnix(ctx glider.Context, _ *glider.Server, req *ssh.Request) (bool, []byte) {
	var m struct{ Path string }
	if ssh.Unmarshal(req.Payload, &m) != nil || m.Path == "" {
		return false, nil
	}
	_, err := g.listen(ctx, listenRequest{
		key: "unix " + m.Path,
		at:  guest.Address{Path: []byte(m.Path)},
		open: func(conn *ssh.ServerConn, _ guest.Incoming, _ guest.Address) (ssh.Channel, <-chan *ssh.Request, error) {
			return conn.OpenChannel("forwarded-streamlocal@openssh.com", ssh.Marshal(struct{ Path, Reserved string }{m.Path, ""}))
		},
	})
	return err == nil, nil
}

func (g *Gateway) cancelUnix(ctx glider.Context, _ *glider.Server, req *ssh.Request) (bool, []byte) {
	var m struct{ Path string }
	return ssh.Unmarshal(req.Payload, &m) == nil && cancelListen(ctx, "unix "+m.Path), nil
}

var errNoForward = errors.New("not on this connection")

// listen listens in the connection's sandbox until the connection ends or the
// request is cancelled. Only one request of a connection is served at a time.
func (g *Gateway) listen(ctx glider.Context, r listenRequest) (guest.Address, error) {
	conn, ok := ctx.Value(glider.ContextKeyConn).(*ssh.ServerConn)
	if !ok {
		return guest.Address{}, errNoForward
	}
	login := loginOf(conn.Permissions)
	if login == nil {
		return guest.Address{}, errNoForward
	}
	t, err := login.target()
	if err != nil || t.lobby || !login.mayForward() {
		login.auditAs(auditForward, nil, "from "+addressText(r.at)+": not from here, or too many", auditDenied)
		return guest.Address{}, errNoForward
	}
	opening, cancel := context.WithTimeout(login.ctx, listenTimeout)
	defer cancel()
	lease, row, err := login.Open(opening, t, request{deed: doorForward})
	if err != nil {
		login.explain(err)
		return guest.Address{}, err
	}
	l, err := lease.Listen(opening, "", r.at)
	login.audit(auditForward, &row, "from "+addressText(r.at), err)
	if err != nil {
		lease.Release()
		login.log.Info("remote forward refused", keyErr, err)
		return guest.Address{}, err
	}
	key := r.key
	if r.at.Port == 0 && len(r.at.Path) == 0 {
		// The port that was chosen is what cancel names.
		key = key[:len(key)-1] + strconv.Itoa(int(l.Address.Port))
	}
	if !login.addForward(key, l) {
		l.Close()
		lease.Release()
		return guest.Address{}, errNoForward
	}
	go func() {
		defer lease.Release()
		defer login.does(&row, "forward from "+addressText(l.Address), nil)()
		defer login.dropForward(key, l)
		stop := context.AfterFunc(login.ctx, func() { l.Close() })
		defer stop()
		serveListening(login.ctx, l, func(in guest.Incoming) (ssh.Channel, <-chan *ssh.Request, error) {
			ch, requests, err := r.open(conn, in, l.Address)
			login.audit(auditChannel, &row, "forwarded from "+addressText(l.Address), err)
			return &meteredChannel{Channel: ch, counts: login.gate.meter.of(row.ID)}, requests, err
		})
	}()
	return l.Address, nil
}

// serveListening opens a channel to the client for each connection in the
// sandbox, until the listener ends.
func serveListening(ctx context.Context, l *guest.Listening, open func(guest.Incoming) (ssh.Channel, <-chan *ssh.Request, error)) {
	for {
		in, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer in.Stream.Close()
			ch, requests, err := open(in)
			if err != nil {
				return
			}
			serveForward(ctx, ch, requests, in.Stream)
		}()
	}
}

func cancelListen(ctx glider.Context, key string) bool {
	conn, ok := ctx.Value(glider.ContextKeyConn).(*ssh.ServerConn)
	if !ok {
		return false
	}
	login := loginOf(conn.Permissions)
	if login == nil {
		return false
	}
	login.mu.Lock()
	l := login.forwards[key]
	delete(login.forwards, key)
	login.mu.Unlock()
	if l == nil {
		return false
	}
	l.Close()
	return true
}

func (l *Login) mayForward() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.forwards) < maxForwards
}

func (l *Login) addForward(key string, f *guest.Listening) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.forwards[key] != nil {
		return false
	}
	l.forwards[key] = f
	return true
}

func (l *Login) dropForward(key string, f *guest.Listening) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.forwards[key] == f {
		delete(l.forwards, key)
	}
}

// forwardAgent makes a socket in the sandbox that leads to the client's ssh-agent
// (OpenSSH's PROTOCOL, auth-agent-req@openssh.com), until stop is called.
func (l *Login) forwardAgent(ctx context.Context, row store.Sandbox, client *guest.Client, conn *ssh.ServerConn) (path string, stop func(), err error) {
	listening, err := client.Listen(ctx, "", guest.Address{Agent: true})
	l.audit(auditForward, &row, "ssh-agent", err)
	if err != nil {
		return "", nil, err
	}
	go serveListening(ctx, listening, func(guest.Incoming) (ssh.Channel, <-chan *ssh.Request, error) {
		ch, requests, err := conn.OpenChannel("auth-agent@openssh.com", nil)
		l.audit(auditChannel, &row, "ssh-agent", err)
		return ch, requests, err
	})
	return string(listening.Address.Path), func() { listening.Close() }, nil
}
