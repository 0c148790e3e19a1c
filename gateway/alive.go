package gateway

import (
	"bytes"
	"time"

	glider "github.com/gliderlabs/ssh"
	"golang.org/x/crypto/ssh"
)

// A connection whose client does not answer is closed: it is asked every
// keepAliveEvery, and has keepAliveMissed times that to answer.
const (
	keepAliveEvery  = 30 * time.Second
	keepAliveMissed = 4
)

// begin is called for whatever a client asks for once it has logged in; the first
// time it sets going what goes on beside.
func (l *Login) begin(conn *ssh.ServerConn) {
	l.begun.Do(func() {
		if bytes.HasPrefix(conn.ClientVersion(), []byte("SSH-2.0-OpenSSH")) {
			conn.SendRequest("hostkeys-00@openssh.com", false, l.gate.hostKeys())
		}
		go l.keepAlive(conn)
	})
}

// keepAlive ends the connection when its client does not answer any more. It
// returns when the connection has ended.
func (l *Login) keepAlive(conn *ssh.ServerConn) {
	tick := time.NewTicker(l.gate.cfg.KeepAlive)
	defer tick.Stop()
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-tick.C:
		}
		late := time.AfterFunc(keepAliveMissed*l.gate.cfg.KeepAlive, func() {
			l.log.Info("the client does not answer")
			l.front.silent.Store(true)
			l.front.Close()
		})
		_, _, err := conn.SendRequest("keepalive@openssh.com", true, nil)
		late.Stop()
		if err != nil {
			return
		}
	}
}

// hostKeys are the gateway's public keys, one string each (OpenSSH's PROTOCOL,
// section 2.5).
func (g *Gateway) hostKeys() (payload []byte) {
	for _, k := range g.cfg.HostKeys {
		payload = append(payload, ssh.Marshal(struct{ Key []byte }{k.PublicKey().Marshal()})...)
	}
	return payload
}

// maxProofs bounds the keys that a client may ask proof of at once.
const maxProofs = 16

// proveHostKeys signs with the host keys that the client asks about, so that it
// may learn them.
func (g *Gateway) proveHostKeys(ctx glider.Context, _ *glider.Server, req *ssh.Request) (bool, []byte) {
	conn, ok := ctx.Value(glider.ContextKeyConn).(*ssh.ServerConn)
	if !ok {
		return false, nil
	}
	var proofs []byte
	rest := req.Payload
	for n := 0; len(rest) > 0; n++ {
		var m struct {
			Key  []byte
			Rest []byte `ssh:"rest"`
		}
		if ssh.Unmarshal(rest, &m) != nil || n == maxProofs {
			return false, nil
		}
		signature := g.proof(m.Key, conn.SessionID())
		if signature == nil {
			return false, nil
		}
		proofs = append(proofs, ssh.Marshal(struct{ Signature []byte }{signature})...)
		rest = m.Rest
	}
	return true, proofs
}

// proof is the signature of the host key with that public part, or nil.
func (g *Gateway) proof(public, sessionID []byte) []byte {
	for _, k := range g.cfg.HostKeys {
		if !bytes.Equal(k.PublicKey().Marshal(), public) {
			continue
		}
		signature, err := k.Sign(nil, ssh.Marshal(struct {
			Name      string
			SessionID []byte
			Key       []byte
		}{"hostkeys-prove-00@openssh.com", sessionID, public}))
		if err != nil {
			return nil
		}
		return ssh.Marshal(signature)
	}
	return nil
}

// beginning starts what a login needs with the first of its global requests.
func beginning(serve glider.RequestHandler) glider.RequestHandler {
	return func(ctx glider.Context, s *glider.Server, req *ssh.Request) (bool, []byte) {
		if conn, ok := ctx.Value(glider.ContextKeyConn).(*ssh.ServerConn); ok {
			if l := loginOf(conn.Permissions); l != nil {
				l.begin(conn)
			}
		}
		return serve(ctx, s, req)
	}
}

// accepted answers a request that needs nothing to be done.
func accepted(glider.Context, *glider.Server, *ssh.Request) (bool, []byte) { return true, nil }
