package gateway

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/crypto/ssh"

	"sandgate/store"
)

// What a certificate may demand (OpenSSH's PROTOCOL.certkeys). One that demands
// anything else is refused.
const (
	forceCommand  = "force-command"
	sourceAddress = "source-address"
)

// verifyRequired asks that the owner of a FIDO key was verified, by a PIN or a finger. A
// certificate or key that demands it is refused, as it could not be kept: package ssh (of
// golang.org/x/crypto v0.59) looks at a signature's flags for the touch, and shows them
// to nobody.
const verifyRequired = "verify-required"

// maxPrincipals bounds the names in a certificate that are looked up.
const maxPrincipals = 16

// A certError says why a certificate is refused.
type certError struct{ err error }

func (e *certError) Error() string { return fmt.Sprintf("certificate refused: %v", e.err) }

// certified returns whose certificate this is: that of the first of its principals
// who is a user. *certError if it is not valid.
func (g *Gateway) certified(ctx context.Context, cert *ssh.Certificate) (candidate, error) {
	switch {
	case cert.CertType != ssh.UserCert:
		return candidate{}, &certError{errors.New("it is not a user's")}
	case !g.trusts(cert.SignatureKey):
		return candidate{}, &certError{fmt.Errorf("unknown authority %s", ssh.FingerprintSHA256(cert.SignatureKey))}
	case cert.Signature.Format == ssh.KeyAlgoRSA:
		return candidate{}, &certError{errors.New("it is signed with SHA-1")}
	}
	if _, ok := cert.CriticalOptions[verifyRequired]; ok {
		return candidate{}, &certError{errors.New("it has the option verify-required, and this gateway cannot tell whether a PIN was entered")}
	}
	revoked, err := g.db.Revoked(ctx, revocable(cert)...)
	if err != nil {
		return candidate{}, err
	}
	if revoked {
		return candidate{}, &certError{errors.New("it is revoked")}
	}
	checker := ssh.CertChecker{SupportedCriticalOptions: []string{forceCommand, sourceAddress}}
	for _, name := range cert.ValidPrincipals[:min(len(cert.ValidPrincipals), maxPrincipals)] {
		user, err := g.db.UserByName(ctx, name)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return candidate{}, err
		}
		if err := checker.CheckCert(name, cert); err != nil {
			return candidate{}, &certError{err}
		}
		c := candidate{user: user, fingerprint: ssh.FingerprintSHA256(cert.Key), cert: cert}
		if cert.ValidBefore != ssh.CertTimeInfinity {
			c.expires = time.Unix(int64(cert.ValidBefore), 0).UTC()
		}
		return c, nil
	}
	return candidate{}, &certError{fmt.Errorf("none of its principals %q is a user", cert.ValidPrincipals)}
}

// revocable returns what a certificate can be revoked by.
func revocable(cert *ssh.Certificate) []string {
	return []string{
		ssh.FingerprintSHA256(cert.Key),
		ssh.FingerprintSHA256(cert.SignatureKey),
		"serial=" + strconv.FormatUint(cert.Serial, 10),
		"id=" + cert.KeyId,
	}
}

// LoadUserCAs returns the public keys in a file, one to a line: those of the
// authorities whose certificates of users are trusted.
func LoadUserCAs(file string) ([]ssh.PublicKey, error) {
	rows, err := readKeys(file)
	if err != nil {
		return nil, fmt.Errorf("user CA: %w", err)
	}
	keys := make([]ssh.PublicKey, len(rows))
	for i, row := range rows {
		if keys[i], err = ssh.ParsePublicKey(row.Blob); err != nil {
			return nil, fmt.Errorf("user CA: %s: %w", file, err)
		}
	}
	return keys, nil
}

// LoadHostCert returns what signs with a host key and shows the certificate of it
// that is in a file: clients that trust its authority need not know the key. Without
// a file it is none.
func LoadHostCert(key ssh.Signer, file string) ([]ssh.Signer, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("host certificate: %w", err)
	}
	public, _, _, _, err := ssh.ParseAuthorizedKey(data)
	if err != nil {
		return nil, fmt.Errorf("host certificate %s: %w", file, err)
	}
	cert, ok := public.(*ssh.Certificate)
	if !ok || cert.CertType != ssh.HostCert {
		return nil, fmt.Errorf("host certificate %s: it is not one of a host", file)
	}
	signer, err := ssh.NewCertSigner(cert, key)
	if err != nil {
		return nil, fmt.Errorf("host certificate %s: %w", file, err)
	}
	return []ssh.Signer{signer}, nil
}
