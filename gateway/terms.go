package gateway

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

// Terms are the settings of a gateway that may change while it serves. What is open
// then goes on under the terms that it began under.
type Terms struct {
	// HostCerts sign with one of the host keys, and show a certificate of it.
	HostCerts []ssh.Signer

	// Agent is what the operator says of the agent.
	Agent AgentConfig

	// MaxExec is the longest timeout that a call of the tool exec can have; 0: as long
	// as the tool allows.
	MaxExec time.Duration

	// NoCreate switches off that a sandbox is made when its name is first used.
	NoCreate bool

	// Domain, if there is one, is cut off the host of a jump: web.example.com is web.
	Domain string

	// UserCAs are the authorities whose certificates of users are trusted.
	UserCAs []ssh.PublicKey

	// Admission are the limits before a login.
	Admission AdmissionConfig

	// LoginGrace bounds the time from accept to a finished login. 0 is a minute.
	LoginGrace time.Duration

	// UserConns bounds the connections of one user. 0 is 256.
	UserConns int

	// Proxies are those whose connections begin with a PROXY header, which says
	// whom they are for. Nobody else is asked, or believed.
	Proxies []netip.Prefix

	// Banner is shown to clients before they log in.
	Banner string

	// Drain is how long a shutdown waits for connections to end by themselves.
	// 0 is five seconds; less is not at all.
	Drain time.Duration
}

// settled returns the terms with what they lack, or says what is wrong with them.
func (t Terms) settled() (Terms, error) {
	t.Domain = strings.ToLower(strings.Trim(t.Domain, "."))
	if strings.ContainsAny(t.Domain, " \t\r\n*?!\"'#") {
		return t, fmt.Errorf("gateway: %q is no domain", t.Domain)
	}
	if t.Admission.Places < 0 || t.Admission.PlacesEach < 0 || t.LoginGrace < 0 || t.UserConns < 0 {
		return t, errors.New("gateway: a limit of the door is below 0")
	}
	t.LoginGrace = cmp.Or(t.LoginGrace, time.Minute)
	t.UserConns = cmp.Or(t.UserConns, 256)
	if t.Drain == 0 {
		t.Drain = 5 * time.Second
	}
	return t, nil
}

// Validate says what is wrong with the terms.
func (t Terms) Validate() error {
	_, err := t.settled()
	return err
}

// SetTerms changes the terms from now on, or not at all.
func (g *Gateway) SetTerms(t Terms) error {
	t, err := t.settled()
	if err != nil {
		return err
	}
	g.terms.Store(&t)
	g.admission.limit(t.Admission)
	g.expelDistrusted()
	return nil
}

// expelDistrusted ends the logins by certificates whose authority is trusted no more.
func (g *Gateway) expelDistrusted() {
	g.live.expel("your certificate's authority is not trusted any more", func(l *Login) bool {
		return l.as.cert != nil && !g.trusts(l.as.cert.SignatureKey)
	})
}

// trusts says whether the certificates of users that an authority signs are accepted.
func (g *Gateway) trusts(authority ssh.PublicKey) bool {
	for _, k := range g.terms.Load().UserCAs {
		if bytes.Equal(k.Marshal(), authority.Marshal()) {
			return true
		}
	}
	return false
}
