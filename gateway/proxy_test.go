package gateway

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
)

const (
	v2tcp4 = "\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00\x02\x01\xc6\x33\x64\x02\x04\xd2\x08\xae"
	v2tcp6 = "\r\n\r\n\x00\r\nQUIT\n\x21\x21\x00\x24 \x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01 \x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x04\xd2\x08\xae"
)

func TestReadProxy(t *testing.T) {
	for in, want := range map[string]string{
		"PROXY TCP4 192.0.2.1 198.51.100.2 1234 2222\r\n":  "192.0.2.1:1234 198.51.100.2:2222",
		"PROXY TCP6 2001:db8::1 2001:db8::2 1234 2222\r\n": "[2001:db8::1]:1234 [2001:db8::2]:2222",
		"PROXY UNKNOWN\r\n":                          "own",
		"PROXY UNKNOWN ffff:f...f:ffff whatever\r\n": "own",
		v2tcp4:                                   "192.0.2.1:1234 198.51.100.2:2222",
		v2tcp6:                                   "[2001:db8::1]:1234 [2001:db8::2]:2222",
		"\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00": "own", // the proxy's health check
		strings.Replace(v2tcp4, "\x0c", "\x0f", 1) + "ext": "192.0.2.1:1234 198.51.100.2:2222",

		"":                                                 "",
		"SSH-2.0-x\r\n":                                    "",
		"PROXY\r\n":                                        "",
		"PROXY \r\n":                                       "",
		"PROXY TCP4\r\n":                                   "",
		"PROXY TCP4 1.2.3.4 1.2.3.4\n":                     "",
		"PROXY TCP4 1.2.3.4 1.2.3.4 1 65536\r\n":           "",
		"PROXY TCP4 1.2.3.4 1.2.3.4 1 -1\r\n":              "",
		"PROXY TCP4 2001:db8::1 1.2.3.4 1 1\r\n":           "",
		"PROXY TCP6 fe80::1%lo fe80::2 1 1\r\n":            "",
		"PROXY TCP4 1.2.3.4 1.2.3.4 1 1 1\r\n":             "",
		"PROXY UDP4 1.2.3.4 1.2.3.4 1 1\r\n":               "",
		"PROXY TCP4 1.2.3.4 1.2.3.4 1 1":                   "",
		"PROXY " + strings.Repeat("x", 200) + "\r\n":       "",
		strings.Replace(v2tcp4, "\x21", "\x11", 1):         "", // version 1
		strings.Replace(v2tcp4, "\x21", "\x22", 1):         "", // no such command
		strings.Replace(v2tcp4, "\x11", "\x12", 1):         "", // UDP
		strings.Replace(v2tcp4, "\x00\x0c", "\x00\x0b", 1): "",
		strings.Replace(v2tcp4, "\x00\x0c", "\xff\xff", 1): "",
	} {
		r := strings.NewReader(in + "SSH-2.0-next")
		got, err := readProxy(r)
		says := ""
		if err == nil {
			says = "own"
			if got.remote != nil {
				says = fmt.Sprint(got.remote, " ", got.local)
			}
		}
		if rest, _ := io.ReadAll(r); err == nil && string(rest) != "SSH-2.0-next" {
			t.Errorf("%q: %q is left", in, rest)
		}
		if says != want {
			t.Errorf("%q: %q, %v; want %q", in, says, err, want)
		}
	}
}

// What is read is a whole header and no more, with both addresses or none; and what
// it says, said again in version 1, reads the same.
func FuzzReadProxy(f *testing.F) {
	for _, s := range []string{"PROXY TCP4 192.0.2.1 198.51.100.2 1234 2222\r\n", "PROXY UNKNOWN\r\n", v2tcp4, v2tcp6} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		r := bytes.NewReader(in)
		p, err := readProxy(r)
		if read := len(in) - r.Len(); read > 16+maxProxyBytes {
			t.Fatalf("read %d bytes", read)
		}
		if err != nil || p.remote == nil && p.local == nil {
			return
		}
		family := "TCP6"
		if p.remote.IP.To4() != nil && len(p.remote.IP) == net.IPv4len {
			family = "TCP4"
		}
		host := func(a *net.TCPAddr) string { ip, _ := netip.AddrFromSlice(a.IP); return ip.String() }
		line := fmt.Sprintf("PROXY %s %s %s %d %d\r\n", family, host(p.remote), host(p.local), p.remote.Port, p.local.Port)
		again, err := readProxy(strings.NewReader(line))
		if err != nil || again.remote.String() != p.remote.String() || again.local.String() != p.local.String() {
			t.Errorf("%q: %v, %v, and again %v, %v", in, p.remote, p.local, again, err)
		}
	})
}

// Behind a listed proxy the client's address counts; anybody else who claims to be
// one speaks no SSH, and a listed one has to say whom it speaks for.
func TestProxy(t *testing.T) {
	ca := newSigner(t)
	s := newStage(t, func(c *Config) {
		c.Proxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
		c.UserCAs = []ssh.PublicKey{ca.PublicKey()}
	})
	other := newStage(t, nil)
	try := func(s *stage, header string, key ssh.Signer) (*ssh.Client, error) {
		conn, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(conn, header)
		c, channels, requests, err := ssh.NewClientConn(conn, "", &ssh.ClientConfig{
			User: "web", Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
		})
		if err != nil {
			conn.Close()
			return nil, err
		}
		client := ssh.NewClient(c, channels, requests)
		t.Cleanup(func() { client.Close() })
		return client, nil
	}
	const header = "PROXY TCP4 192.0.2.1 198.51.100.2 1234 2222\r\n"
	c, err := try(s, header, s.alice)
	if err != nil {
		t.Fatal(err)
	}
	if out, _, _ := s.run(c, "echo $SSH_CONNECTION"); out != "192.0.2.1 1234 198.51.100.2 2222\n" {
		t.Errorf("SSH_CONNECTION is %q", out)
	}
	for address, in := range map[string]bool{"192.0.2.0/24": true, "127.0.0.0/8": false} {
		key := certify(t, ca, func(c *ssh.Certificate) { c.CriticalOptions[sourceAddress] = address })
		if _, err := try(s, header, key); (err == nil) != in {
			t.Errorf("a certificate for %s: %v", address, err)
		}
	}
	if _, err := try(s, "", s.alice); err == nil {
		t.Error("a proxy that does not say whom it speaks for")
	}
	if _, err := try(other, header, other.alice); err == nil {
		t.Error("anybody may say that they are a proxy")
	}
}
