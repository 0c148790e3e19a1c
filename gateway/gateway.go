// Package gateway is what users reach: it translates SSH into calls on the
// sandboxes. Who someone is comes from the key that signed the handshake; what
// they may do, and doing it, is a Login's matter, whichever door they came in by.
// When sandboxes live is left to package sandbox, what happens inside one to its
// guest, rows to package store.
//
// github.com/gliderlabs/ssh listens, keeps connections and hands out channels;
// the channels themselves are served here on golang.org/x/crypto/ssh. Four traps
// of the former are avoided on purpose: without handlers of its own it switches
// authentication off (here NoClientAuthCallback refuses); its key handler runs
// for keys that are merely offered (here identity comes from the verified
// callback); its session's context is the connection's (here each channel has its
// own); and window changes that nobody reads block a session (here they are
// always read).
package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	glider "github.com/gliderlabs/ssh"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/crypto/ssh"

	"sandgate/sandbox"
	"sandgate/sandbox/guest"
	"sandgate/store"
)

// keys of log lines
const (
	keyConn    = "conn"
	keyUser    = "user"
	keySandbox = "sandbox"
	keyRemote  = "remote"
	keyErr     = "err"
	keyTook    = "took"
)

// Config are the settings of a gateway.
type Config struct {
	Fixed
	Terms
}

// Fixed are the settings that hold as long as a gateway serves.
type Fixed struct {
	HostKeys []ssh.Signer // at least one; no certificates
	Version  string       // of the program, for those who ask

	// Vault keeps the users' secrets. nil: there are none.
	Vault *store.Vault

	// Recordings is the folder of what was recorded of terminals. Empty: nothing
	// is recorded.
	Recordings string

	// Hurry, once closed, ends a shutdown's waiting. nil: nobody is in a hurry.
	Hurry <-chan struct{}

	// Examine says whether what the gateway stands on works. nil: it is not known.
	Examine func(context.Context) []sandbox.Finding

	tools toolbox // nil: those of the guest

	// KeepAlive is how often a client has to show that it is there. 0 is 30 s.
	KeepAlive time.Duration

	farewell time.Duration // that an expelled login has; 0 is farewellTime
}

// A Gateway serves SSH.
type Gateway struct {
	cfg       Fixed
	terms     atomic.Pointer[Terms]
	db        *store.DB
	sandboxes *sandbox.Manager
	log       *slog.Logger
	server    *glider.Server
	touches   *toucher
	meter     *meter
	auditor   *auditor
	runs      *runs
	reviver   *reviver
	leaving   chan struct{} // closed when sessions have to end
	phase     atomic.Int32  // a phase
	counters  counters
	starts    *prometheus.HistogramVec

	admission *admission
	arrivals  arrivals
	live      live
}

// version is what the gateway calls itself in SSH.
const version = "SSH-2.0-sandgate"

// New returns a gateway. What cfg lacks is told at once.
func New(cfg Config, db *store.DB, sandboxes *sandbox.Manager, log *slog.Logger) (*Gateway, error) {
	if len(cfg.HostKeys) == 0 {
		return nil, errors.New("gateway: no host key")
	}
	terms, err := cfg.Terms.settled()
	if err != nil {
		return nil, err
	}
	if cfg.KeepAlive == 0 {
		cfg.KeepAlive = keepAliveEvery
	}
	if cfg.farewell == 0 {
		cfg.farewell = farewellTime
	}
	g := &Gateway{
		cfg:       cfg.Fixed,
		db:        db,
		sandboxes: sandboxes,
		log:       log,
		touches:   newToucher(db, log),
		admission: newAdmission(terms.Admission),
		meter:     newMeter(db, log),
		auditor:   newAuditor(db, log),
		leaving:   make(chan struct{}),
		starts:    newStarts(),
	}
	if cfg.tools == nil {
		g.cfg.tools = g.guestTools
	}
	g.terms.Store(&terms)
	g.runs = newRuns(g, g.cfg.tools)
	g.reviver = newReviver(g)
	sandboxes.OnWake(func(ctx context.Context, row store.Sandbox, c *guest.Client) {
		g.startServices(ctx, row, c)
		if err := g.runs.watchJobs(ctx, row.ID); err != nil {
			g.log.Error("jobs of runs not watched", keySandbox, row.ID, keyErr, err)
		}
	})
	sandboxes.OnStart(g.started)
	g.meter.used = g.counters.use
	g.server = &glider.Server{
		ConnCallback:         g.front,
		ServerConfigCallback: func(ctx glider.Context) *ssh.ServerConfig { return g.serverConfig(ctx) },
		ConnectionFailedCallback: func(conn net.Conn, err error) {
			g.log.Debug("connection failed", keyRemote, conn.RemoteAddr().String(), keyErr, err)
		},
		ChannelHandlers: map[string]glider.ChannelHandler{
			"session":                        g.guarded(g.serveSession),
			"direct-tcpip":                   g.guarded(g.serveDirectTCP),
			"direct-streamlocal@openssh.com": g.guarded(g.serveDirectUnix),
		},
		RequestHandlers: map[string]glider.RequestHandler{
			"no-more-sessions@openssh.com":           beginning(accepted),
			"hostkeys-prove-00@openssh.com":          g.proveHostKeys,
			"tcpip-forward":                          ordered(beginning(g.listenTCP)),
			"cancel-tcpip-forward":                   ordered(g.cancelTCP),
			"streamlocal-forward@openssh.com":        ordered(beginning(g.listenUnix)),
			"cancel-streamlocal-forward@openssh.com": ordered(g.cancelUnix),
		},
		SubsystemHandlers: map[string]glider.SubsystemHandler{},
	}
	for _, k := range cfg.HostKeys {
		g.server.AddHostKey(k)
	}
	return g, nil
}

// errLeaving is what ends a session when the gateway stops.
var errLeaving = errors.New("the gateway is going down for an update; your sandbox goes on; reconnect in a moment")

// Serve serves connections from l until ctx ends, and then as long as they take
// to end, at most for the time to drain. It closes l, and returns nil after a
// shutdown that was asked for.
func (g *Gateway) Serve(ctx context.Context, l net.Listener) error {
	failed := make(chan error, 1)
	go func() { failed <- g.server.Serve(l) }()
	defer g.touches.stop()
	defer g.meter.stop()
	defer g.auditor.stop()
	defer g.runs.stop()
	if err := g.runs.resume(ctx); err != nil && ctx.Err() == nil { // else it was to end before it had begun
		return err
	}
	reviving, ended := context.WithCancel(ctx)
	var reviver sync.WaitGroup
	reviver.Go(func() { g.reviver.keep(reviving) })
	defer reviver.Wait()
	defer ended()
	g.phase.Store(int32(phaseServing))
	select {
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	g.phase.Store(int32(phaseDraining))
	g.admission.end()
	g.arrivals.end()
	// Not by the server's Shutdown: it can wait while a connection is counted that
	// has just logged in.
	l.Close()
	<-failed
	if !g.arrivals.wait(g.terms.Load().Drain, g.cfg.Hurry) {
		// Sessions are told why, and their commands left running.
		close(g.leaving)
		g.arrivals.wait(time.Second, nil)
		g.arrivals.close()
		g.arrivals.wait(time.Minute, nil)
	}
	g.server.Close()
	return nil
}

// arrivals are the connections that were accepted, from then to their end.
// gliderlabs/ssh knows of them only once they have logged in.
type arrivals struct {
	mu    sync.Mutex
	conns map[net.Conn]bool // true: has logged in
	ended bool
	wg    sync.WaitGroup
}

// add adds a connection, unless they have ended.
func (a *arrivals) add(c net.Conn) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return false
	}
	if a.conns == nil {
		a.conns = make(map[net.Conn]bool)
	}
	a.conns[c] = false
	a.wg.Add(1)
	return true
}

func (a *arrivals) admitted(c net.Conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.conns[c]; ok {
		a.conns[c] = true
	}
}

func (a *arrivals) remove(c net.Conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.conns[c]; ok {
		delete(a.conns, c)
		a.wg.Done()
	}
}

// end closes those that have not logged in, and takes no more.
func (a *arrivals) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = true
	for c, in := range a.conns {
		if !in {
			c.Close()
		}
	}
}

// close closes all.
func (a *arrivals) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for c := range a.conns {
		c.Close()
	}
}

// count returns how many there are, and how many of them have logged in.
func (a *arrivals) count() (open, inside int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, in := range a.conns {
		if in {
			inside++
		}
	}
	return len(a.conns), inside
}

// wait waits until all have been removed, at most for d or until hurry is closed, and
// says whether they have.
func (a *arrivals) wait(d time.Duration, hurry <-chan struct{}) bool {
	gone := make(chan struct{})
	go func() {
		a.wg.Wait()
		close(gone)
	}()
	select {
	case <-gone:
		return true
	case <-hurry:
		return false
	case <-time.After(d):
		return false
	}
}

// contextKey names what is known of a connection before its login.
type contextKey int

const (
	frontKey contextKey = iota
	offerKey
)

// front prepares an accepted connection, or refuses it by returning nil.
func (g *Gateway) front(ctx glider.Context, conn net.Conn) net.Conn {
	if !g.arrivals.add(conn) {
		return nil
	}
	g.counters.connections.add("", 1)
	f, o, err := g.receive(conn)
	if err != nil {
		g.counters.logins.add(outcome(err), 1)
		g.arrivals.remove(conn)
		g.log.Debug("connection refused", keyRemote, conn.RemoteAddr().String(), keyErr, err)
		return nil
	}
	ctx.SetValue(frontKey, f)
	ctx.SetValue(offerKey, o)
	return f
}

// proxyTimeout bounds the wait for a proxy to say whose connection it is.
const proxyTimeout = 5 * time.Second

// receive waits for the connection's turn and for the client's offer.
func (g *Gateway) receive(conn net.Conn) (*frontConn, offer, error) {
	var who proxied
	var a *arrival
	remote := conn.RemoteAddr()
	if _, jump := conn.(*jumpConn); !jump { // which somebody has logged in for
		if tcp, ok := remote.(*net.TCPAddr); ok && contains(g.terms.Load().Proxies, tcp.AddrPort().Addr().Unmap()) {
			conn.SetReadDeadline(time.Now().Add(proxyTimeout))
			var err error
			if who, err = readProxy(conn); err != nil {
				g.auditor.turnAway(remote, err)
				return nil, offer{}, err
			}
			conn.SetReadDeadline(time.Time{})
			if who.remote != nil {
				remote = who.remote
			}
		}
		var err error
		if a, err = g.admission.enter(conn, remote); err != nil {
			g.auditor.turnAway(remote, err)
			if errors.Is(err, errPenalised) {
				conn.SetWriteDeadline(time.Now().Add(time.Second))
				io.WriteString(conn, "Not allowed at this time\r\n")
			}
			return nil, offer{}, err
		}
	}
	id := rand.Text()[:10]
	f, o, err := openFront(conn, version, g.terms.Load().LoginGrace)
	g.audit(auditConnection, id, remote, "", "", err)
	if err != nil {
		g.admission.part(a, err)
		return nil, offer{}, err
	}
	if who.remote != nil {
		f.remote, f.local = who.remote, who.local
	}
	f.id, f.arrival = id, a
	f.closed = func() {
		g.arrivals.remove(conn)
		if !f.passed.Load() {
			g.admission.part(a, f.failure())
			g.counters.logins.add(outcome(f.failure()), 1)
			g.log.Info("login failed", keyConn, f.id, keyRemote, f.RemoteAddr().String(), "tried", f.vain(), keyErr, f.failure())
		}
		g.auditEnd(f)
	}
	g.admission.reach(a, stageOffered)
	return f, o, nil
}

// guarded runs a channel's handler so that its panic ends that channel and not
// everybody's. Its context ends with the login.
func (g *Gateway) guarded(serve func(context.Context, *Login, *ssh.ServerConn, ssh.NewChannel)) glider.ChannelHandler {
	return func(_ *glider.Server, conn *ssh.ServerConn, ch ssh.NewChannel, _ glider.Context) {
		login := loginOf(conn.Permissions)
		defer func() {
			if p := recover(); p != nil {
				g.log.Error("panic in a channel", "panic", p, "stack", string(debug.Stack()))
				// Whichever the handler has not done yet; the other does nothing.
				ch.Reject(ssh.ResourceShortage, "internal error")
			}
		}()
		if login == nil { // cannot be: the handshake only succeeds with one
			ch.Reject(ssh.Prohibited, "not logged in")
			return
		}
		if p := login.expelled(); p != nil {
			ch.Reject(ssh.Prohibited, login.reason(p))
			return
		}
		if !login.enter() {
			login.auditAs(auditChannel, nil, ch.ChannelType()+": too many channels", auditDenied)
			ch.Reject(ssh.ResourceShortage, "too many channels on this connection")
			return
		}
		defer login.leave()
		kind := ch.ChannelType() // one that has a handler
		g.counters.opened.add(kind, 1)
		g.counters.channels.add(kind, 1)
		defer g.counters.channels.add(kind, -1)
		login.begin(conn)
		if isDropbear(conn) {
			ch = wakingChannel{ch, conn}
		}
		serve(login.ctx, login, conn, ch)
	}
}
