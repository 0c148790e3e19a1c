package gateway

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/crypto/ssh"
)

const (
	maxIdent  = 255   // bytes of an identification line with its end, RFC 4253 section 4.2
	maxPacket = 35000 // bytes of a packet with its length, RFC 4253 section 6.1
)

// An offer is what a client says about itself, in clear, before any key is
// exchanged.
type offer struct {
	version string // its identification line, such as SSH-2.0-OpenSSH_9.2p1
	gcm     bool   // it can do AES-GCM in both directions
}

// ciphersFor returns the ciphers to accept from the client, best first.
//
// The client's order decides, and OpenSSH 9 asks for AES-GCM last, though it
// costs the gateway about half of what chacha20 does. So a client that can do
// AES-GCM is offered nothing else.
func ciphersFor(o offer) []string {
	if o.gcm {
		return []string{ssh.CipherAES128GCM, ssh.CipherAES256GCM}
	}
	return []string{
		ssh.CipherChaCha20Poly1305,
		ssh.CipherAES128CTR, ssh.CipherAES192CTR, ssh.CipherAES256CTR,
	}
}

// readOffer reads the client's identification line and its first packet, which
// must be its SSH_MSG_KEXINIT.
func readOffer(r *bufio.Reader) (offer, error) {
	version, err := readIdent(r)
	if err != nil {
		return offer{}, fmt.Errorf("read identification: %w", err)
	}
	payload, err := readFirstPacket(r)
	if err != nil {
		return offer{}, fmt.Errorf("read key exchange: %w", err)
	}
	var client kexInit
	if err := ssh.Unmarshal(payload, &client); err != nil {
		return offer{}, fmt.Errorf("read key exchange: %w", err)
	}
	return offer{
		version: version,
		gcm:     hasGCM(client.CiphersClientServer) && hasGCM(client.CiphersServerClient),
	}, nil
}

func hasGCM(ciphers []string) bool {
	return slices.Contains(ciphers, ssh.CipherAES128GCM) || slices.Contains(ciphers, ssh.CipherAES256GCM)
}

// readIdent returns the client's identification line without its end. Unlike
// a server, a client may not send other lines before it.
func readIdent(r *bufio.Reader) (string, error) {
	line, err := r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) || len(line) > maxIdent {
		return "", fmt.Errorf("%w: the line is too long", errNoSSH)
	}
	if err != nil {
		return "", err
	}
	line = bytes.TrimSuffix(line, []byte("\n"))
	line = bytes.TrimSuffix(line, []byte("\r"))
	ident := string(line)
	if !strings.HasPrefix(ident, "SSH-2.0-") && !strings.HasPrefix(ident, "SSH-1.99-") {
		return "", fmt.Errorf("%w: %.40q", errNoSSH, ident)
	}
	if strings.ContainsFunc(ident, unicode.IsControl) {
		return "", fmt.Errorf("%.40q has control characters", ident)
	}
	return ident, nil
}

// readFirstPacket returns the payload of a packet as they are before the first
// key exchange: neither encrypted nor authenticated (RFC 4253 section 6).
func readFirstPacket(r io.Reader) ([]byte, error) {
	var header [5]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return nil, err
	}
	length, padding := binary.BigEndian.Uint32(header[:]), uint32(header[4])
	if length > maxPacket-4 || length < 1+padding+1 {
		return nil, fmt.Errorf("%w: a packet of length %d with padding of %d", errNoSSH, length, padding)
	}
	body := make([]byte, length-1)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, err
	}
	return body[:len(body)-int(padding)], nil
}

// kexInit is SSH_MSG_KEXINIT, RFC 4253 section 7.1, for ssh.Unmarshal.
type kexInit struct {
	Cookie                  [16]byte `sshtype:"20"`
	KexAlgos                []string
	ServerHostKeyAlgos      []string
	CiphersClientServer     []string
	CiphersServerClient     []string
	MACsClientServer        []string
	MACsServerClient        []string
	CompressionClientServer []string
	CompressionServerClient []string
	LanguagesClientServer   []string
	LanguagesServerClient   []string
	FirstKexFollows         bool
	Reserved                uint32
}
