package gateway

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Bounds on a PROXY header: version 1 says how long it is at most, version 2 can
// have extensions, which are passed over.
const (
	maxProxyLine  = 107
	maxProxyBytes = 4096
)

var proxySignature = []byte("\r\n\r\n\x00\r\nQUIT\n")

// A proxied is what a PROXY header says: whom the proxy has a connection with.
// Without addresses it is the proxy's own.
type proxied struct{ remote, local *net.TCPAddr }

// readProxy reads a PROXY header of version 1 or 2, and not a byte beyond it.
func readProxy(r io.Reader) (proxied, error) {
	first := make([]byte, 1, 16)
	if _, err := io.ReadFull(r, first); err != nil {
		return proxied{}, fmt.Errorf("PROXY header: %w", err)
	}
	var p proxied
	var err error
	switch first[0] {
	case 'P':
		p, err = readProxyLine(r)
	case '\r':
		p, err = readProxyBytes(r)
	default:
		err = errors.New("there is none")
	}
	if err != nil {
		return proxied{}, fmt.Errorf("PROXY header: %w", err)
	}
	return p, nil
}

// readProxyLine reads version 1 after its first letter.
func readProxyLine(r io.Reader) (proxied, error) {
	line := []byte{'P'}
	var b [1]byte
	for !bytes.HasSuffix(line, []byte("\r\n")) {
		if len(line) == maxProxyLine {
			return proxied{}, errors.New("the line is too long")
		}
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return proxied{}, err
		}
		line = append(line, b[0])
	}
	words := strings.Split(strings.TrimSuffix(string(line), "\r\n"), " ")
	switch {
	case words[0] != "PROXY" || len(words) < 2:
	case words[1] == "UNKNOWN":
		return proxied{}, nil
	case len(words) == 6 && (words[1] == "TCP4" || words[1] == "TCP6"):
		remote, err1 := proxyAddr(words[2], words[4], words[1] == "TCP4")
		local, err2 := proxyAddr(words[3], words[5], words[1] == "TCP4")
		if err1 == nil && err2 == nil {
			return proxied{remote, local}, nil
		}
	}
	return proxied{}, fmt.Errorf("malformed line %.120q", line)
}

func proxyAddr(host, port string, four bool) (*net.TCPAddr, error) {
	ip, err := netip.ParseAddr(host)
	if err != nil || ip.Is4() != four || ip.Zone() != "" {
		return nil, errors.New("malformed address")
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, err
	}
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(ip, uint16(n))), nil
}

// readProxyBytes reads version 2 after its first byte.
func readProxyBytes(r io.Reader) (proxied, error) {
	head := make([]byte, 16)
	head[0] = '\r'
	if _, err := io.ReadFull(r, head[1:]); err != nil {
		return proxied{}, err
	}
	length := int(binary.BigEndian.Uint16(head[14:]))
	if !bytes.Equal(head[:12], proxySignature) || length > maxProxyBytes {
		return proxied{}, errors.New("malformed")
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(r, body); err != nil {
		return proxied{}, err
	}
	size := 0
	switch head[13] {
	case 0x11: // TCP over IPv4
		size = net.IPv4len
	case 0x21: // TCP over IPv6
		size = net.IPv6len
	}
	switch {
	case head[12] == 0x20: // the proxy itself, to see whether we are alive
		return proxied{}, nil
	case head[12] != 0x21 || size == 0 || len(body) < 2*size+4:
		return proxied{}, errors.New("malformed")
	}
	addr := func(ip, port []byte) *net.TCPAddr {
		return &net.TCPAddr{IP: bytes.Clone(ip), Port: int(binary.BigEndian.Uint16(port))}
	}
	return proxied{
		remote: addr(body[:size], body[2*size:]),
		local:  addr(body[size:2*size], body[2*size+2:]),
	}, nil
}
