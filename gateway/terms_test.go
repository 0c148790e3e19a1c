package gateway

import (
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"
)

// TestSetTerms changes the terms while people log in: whoever comes then is under the
// old or the new ones, and who holds a certificate of an authority that is trusted no
// more has to go.
func TestSetTerms(t *testing.T) {
	ca := newSigner(t)
	s := newStage(t, func(c *Config) { c.UserCAs = []ssh.PublicKey{ca.PublicKey()} })
	certified, err := s.dial("web", ssh.PublicKeys(certify(t, ca, nil)))
	if err != nil {
		t.Fatal(err)
	}
	stays, err := s.dial("web", ssh.PublicKeys(s.alice))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range 10 {
				c, err := s.dial("gate", ssh.PublicKeys(s.bob))
				if err != nil {
					t.Error(err)
					return
				}
				c.Close()
			}
		})
	}
	for i := range 50 {
		terms := Terms{UserCAs: []ssh.PublicKey{ca.PublicKey()}, NoCreate: i%2 == 0, Domain: "example.com"}
		if err := s.gate.SetTerms(terms); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()

	if err := s.gate.SetTerms(Terms{Domain: "no domain"}); err == nil || !strings.Contains(err.Error(), "is no domain") {
		t.Errorf("wrong terms: %v", err)
	}
	if got := s.gate.terms.Load(); got.Domain != "example.com" || len(got.UserCAs) != 1 {
		t.Errorf("wrong terms have changed them to %+v", got)
	}
	if err := s.gate.SetTerms(Terms{NoCreate: true}); err != nil {
		t.Fatal(err)
	}
	// Its sessions would be told; it has none, and is closed.
	session, err := certified.NewSession()
	if err == nil {
		err = session.Run("true")
	}
	if err == nil {
		t.Error("a certificate of an authority that is trusted no more is good enough")
	}
	if _, err := s.dial("web", ssh.PublicKeys(certify(t, ca, nil))); err == nil {
		t.Error("so is one for a new login")
	}
	session, err = stays.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	if err := session.Run("true"); err == nil {
		t.Error("a sandbox was made, though NoCreate is on now")
	}
}
