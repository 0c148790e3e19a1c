package gateway

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"sandgate/store"
)

// sshPort is the port that a jump asks for: the one that ssh takes for a host
// whose port nobody named.
const sshPort = 22

// hostName cuts off the host of a jump what only leads to the gateway.
func (g *Gateway) hostName(host string) string {
	for _, suffix := range g.jumpSuffixes() {
		if name, ok := strings.CutSuffix(strings.ToLower(host), suffix); ok {
			return name
		}
	}
	return host
}

func (g *Gateway) jumpSuffixes() []string {
	domain := g.terms.Load().Domain
	if domain == "" {
		return []string{jumpSuffix}
	}
	return []string{jumpSuffix, "." + domain}
}

// jumpSuffix is cut off the host of a jump, so that one pattern in an ssh_config
// covers all sandboxes: web.gate. The lobby's name is no user's.
const jumpSuffix = "." + lobbyName

// A jumpConn is a connection that came through another one: `ssh -J gate web`.
// The host asked for is the sandbox; the client logs in on it once more.
type jumpConn struct {
	ssh.Channel
	host  string
	outer *Login
}

func (c *jumpConn) LocalAddr() net.Addr              { return c.outer.local }
func (c *jumpConn) RemoteAddr() net.Addr             { return c.outer.remote }
func (c *jumpConn) SetDeadline(time.Time) error      { return nil }
func (c *jumpConn) SetReadDeadline(time.Time) error  { return nil }
func (c *jumpConn) SetWriteDeadline(time.Time) error { return nil }

// jumps says whether a connection to host and port is one to a sandbox by its
// name, and not one from inside a sandbox: the outer connection is the lobby's, or
// asked for what is no sandbox, such as the local user's name that ssh puts in.
func (l *Login) jumps(ctx context.Context, host string, port uint32) bool {
	t, err := parseTarget(l.gate.hostName(host))
	if port != sshPort || err != nil || t.lobby || t.session != "" || host == "localhost" {
		return false
	}
	outer, err := l.target()
	if err != nil || outer.lobby {
		return true
	}
	_, _, err = l.lookUp(ctx, outer)
	return errors.Is(err, store.ErrNotFound)
}

// serveJump serves SSH on a channel of another connection.
func (g *Gateway) serveJump(login *Login, newChannel ssh.NewChannel, host string) {
	ch, requests, err := newChannel.Accept()
	if err != nil {
		return
	}
	go ssh.DiscardRequests(requests)
	login.beginSession()
	login.audit(auditChannel, nil, "jump to "+host, nil)
	g.server.HandleConn(&jumpConn{
		Channel: ch,
		host:    g.hostName(host),
		outer:   login,
	})
}
