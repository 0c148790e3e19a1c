package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/crypto/ssh"

	"sandgate/store"
)

// maxAuthTries is how many keys a client may offer in vain: what agents hold.
const maxAuthTries = 6

// authTimeout bounds the look-up of a key.
const authTimeout = 10 * time.Second

// The algorithms on offer: what x/crypto has without SHA-1, post-quantum first.
var (
	kexAlgorithms = []string{
		ssh.KeyExchangeMLKEM768X25519, ssh.KeyExchangeCurve25519,
		ssh.KeyExchangeECDHP256, ssh.KeyExchangeECDHP384, ssh.KeyExchangeECDHP521,
		ssh.KeyExchangeDH16SHA512, ssh.KeyExchangeDH14SHA256,
	}
	macAlgorithms = []string{ssh.HMACSHA256ETM, ssh.HMACSHA512ETM, ssh.HMACSHA256, ssh.HMACSHA512}
)

// publicKeyAlgorithms are those that a client may sign with.
func publicKeyAlgorithms() []string {
	return slices.DeleteFunc(ssh.SupportedAlgorithms().PublicKeyAuths, func(a string) bool {
		return a == ssh.KeyAlgoRSA // its signatures are SHA-1
	})
}

var errKeyRequired = errors.New("a key is required")

// serverConfig returns what package ssh is to do for one connection.
func (g *Gateway) serverConfig(ctx interface{ Value(key any) any }) *ssh.ServerConfig {
	front := ctx.Value(frontKey).(*frontConn) // set by front, or there is no connection
	o := ctx.Value(offerKey).(offer)
	terms := g.terms.Load()
	cfg := &ssh.ServerConfig{
		Config: ssh.Config{
			KeyExchanges: kexAlgorithms,
			Ciphers:      ciphersFor(o),
			MACs:         macAlgorithms,
		},
		ServerVersion:           version,
		MaxAuthTries:            maxAuthTries,
		PublicKeyAuthAlgorithms: publicKeyAlgorithms(),

		// gliderlabs/ssh sets NoClientAuth when it has no handlers of its own;
		// without this a client that shows no key at all would be let in.
		NoClientAuthCallback: func(ssh.ConnMetadata) (*ssh.Permissions, error) {
			return nil, errKeyRequired
		},
		BannerCallback: func(ssh.ConnMetadata) string { return terms.Banner },
		// Runs for a key that is offered: says only whether it could be used.
		PublicKeyCallback: func(meta ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			perms, err := g.recognise(meta.User(), key)
			if err != nil {
				front.note(withoutCode(meta.User()), ssh.FingerprintSHA256(key))
			} else {
				front.known.Store(true)
				g.admission.reach(front.arrival, stageKnown)
			}
			return perms, err
		},
		// Runs once the client has signed with the key: this is the login.
		VerifiedPublicKeyCallback: func(meta ssh.ConnMetadata, key ssh.PublicKey, perms *ssh.Permissions, _ string) (*ssh.Permissions, error) {
			return g.login(meta, key, perms, front)
		},
		AuthLogCallback: func(meta ssh.ConnMetadata, method string, err error) {
			if err != nil && method != "none" {
				g.audit(auditLogin, front.id, meta.RemoteAddr(), withoutCode(meta.User()), method, err)
				g.log.Debug("key refused", keyConn, front.id, keyRemote, meta.RemoteAddr().String(), keyUser, withoutCode(meta.User()), keyErr, err)
			}
		},
	}
	for _, signer := range terms.HostCerts { // the host keys are the server's
		cfg.AddHostKey(signer)
	}
	return cfg
}

// ownerKey and loginKey name the values in a connection's permissions.
type permissionKey int

const (
	ownerKey permissionKey = iota // candidate, of a key that was offered
	loginKey                      // *Login, of the key that signed
)

// A candidate is a user who would log in with a key or a certificate.
type candidate struct {
	user        store.User
	fingerprint string
	scope       Scope
	noTouch     bool
	expires     time.Time        // zero: never
	cert        *ssh.Certificate // nil: a key
	invite      []byte           // hash of the code that lets the key in; nil: it is known
}

// candidate returns who the key of that fingerprint, or the certificate, belongs
// to, at this moment. store.ErrNotFound if it is nobody's, or revoked.
func (g *Gateway) candidate(ctx context.Context, fingerprint string, cert *ssh.Certificate) (candidate, error) {
	if cert != nil {
		return g.certified(ctx, cert)
	}
	user, key, err := g.db.UserByKey(ctx, fingerprint)
	if err != nil {
		return candidate{}, err
	}
	scope, err := scopeOf(key)
	if err != nil {
		return candidate{}, err
	}
	return candidate{user: user, fingerprint: fingerprint, scope: scope, noTouch: key.NoTouch, expires: key.Expires}, nil
}

// recognise returns permissions with the owner of a key, for a login as user.
func (g *Gateway) recognise(user string, key ssh.PublicKey) (*ssh.Permissions, error) {
	ctx, cancel := context.WithTimeout(context.Background(), authTimeout)
	defer cancel()
	fingerprint := ssh.FingerprintSHA256(key)
	cert, _ := key.(*ssh.Certificate)
	c, err := g.candidate(ctx, fingerprint, cert)
	if errors.Is(err, store.ErrNotFound) && cert == nil {
		c, err = g.invited(ctx, user, fingerprint)
	}
	if errors.Is(err, store.ErrNotFound) {
		return nil, fmt.Errorf("unknown key %s", fingerprint)
	}
	if refused, ok := errors.AsType[*certError](err); ok {
		return nil, refused
	}
	if err != nil {
		g.log.Error("key look-up", keyErr, err)
		return nil, errors.New("key look-up failed")
	}
	perms := &ssh.Permissions{ExtraData: map[any]any{ownerKey: c}}
	if cert != nil {
		perms.CriticalOptions = cert.CriticalOptions // package ssh checks the source-address
	}
	if c.noTouch {
		perms.Extensions = map[string]string{"no-touch-required": ""}
	}
	return perms, nil
}

// login makes the login of the user whose key has signed.
func (g *Gateway) login(meta ssh.ConnMetadata, key ssh.PublicKey, perms *ssh.Permissions, front *frontConn) (*ssh.Permissions, error) {
	c, ok := perms.ExtraData[ownerKey].(candidate)
	if !ok {
		return nil, errors.New("no owner of the key")
	}
	if !c.expires.IsZero() && !time.Now().Before(c.expires) {
		return nil, refusal("your key expired at %s", c.expires.Format(time.RFC3339))
	}
	if j, ok := front.Conn.(*jumpConn); ok && j.outer.user.ID != c.user.ID {
		return nil, errors.New("another user's key than on the connection jumped through")
	}
	ctx, cancel := context.WithTimeout(context.Background(), authTimeout)
	defer cancel()
	if c.invite != nil {
		if err := g.accept(ctx, c, key); err != nil {
			return nil, err
		}
	}
	l := newLogin(g, c, meta, front)
	if most := g.terms.Load().UserConns; !g.live.add(l, most) {
		return nil, refusal("you have %d connections open already, which is as many as one user may have", most)
	}
	front.carry(l)
	// Only now nobody who revokes or changes the key can miss this login; that may
	// have been done since it was offered.
	if err := l.renew(ctx); err != nil {
		g.live.remove(l)
		return nil, err
	}
	if err := l.bind(ctx); err != nil {
		g.live.remove(l)
		return nil, err
	}
	if c.cert == nil {
		g.touches.touch(use{key: c.fingerprint})
	}
	front.admit()
	g.admission.admit(front.arrival)
	g.counters.logins.add("ok", 1)
	g.arrivals.admitted(front.Conn)
	l.audit(auditLogin, nil, "as "+withoutCode(meta.User())+" with "+c.fingerprint, nil)
	l.log.Info("logged in", "as", withoutCode(meta.User()), "key", c.fingerprint, "client", string(meta.ClientVersion()))
	return &ssh.Permissions{CriticalOptions: perms.CriticalOptions, ExtraData: map[any]any{loginKey: l}}, nil
}

// refusal refuses a login and tells the client why.
func refusal(format string, args ...any) error {
	why := fmt.Sprintf(format, args...)
	return &ssh.BannerError{Err: errors.New(why), Message: "sandgate: " + why + "\r\n"}
}

// loginOf returns the login of a finished handshake, or nil.
func loginOf(perms *ssh.Permissions) *Login {
	if perms == nil {
		return nil
	}
	l, _ := perms.ExtraData[loginKey].(*Login)
	return l
}
