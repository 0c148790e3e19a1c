package gateway

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
)

// packet returns payload as the first packet of a connection.
func packet(payload []byte) []byte {
	padding := 8 - (4+1+len(payload))%8
	if padding < 4 {
		padding += 8
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(1+len(payload)+padding))
	b = append(b, byte(padding))
	b = append(b, payload...)
	return append(b, make([]byte, padding)...)
}

// hello is what a client with these ciphers sends first.
func hello(ident string, ciphersOut, ciphersIn []string) []byte {
	return slices.Concat([]byte(ident), packet(ssh.Marshal(kexInit{
		KexAlgos:            []string{"curve25519-sha256", "kex-strict-c-v00@openssh.com"},
		ServerHostKeyAlgos:  []string{"ssh-ed25519"},
		CiphersClientServer: ciphersOut,
		CiphersServerClient: ciphersIn,
		FirstKexFollows:     true,
	})))
}

func TestReadOffer(t *testing.T) {
	const ident = "SSH-2.0-test\r\n"
	chacha := []string{ssh.CipherChaCha20Poly1305}
	both := []string{ssh.CipherChaCha20Poly1305, ssh.CipherAES128CTR, ssh.CipherAES256GCM}
	gcmOnly := []string{ssh.CipherAES128GCM}
	tests := []struct {
		name  string
		input []byte
		want  offer
	}{
		{"gcm last", hello(ident, both, both), offer{"SSH-2.0-test", true}},
		{"another gcm each way", hello(ident, both, gcmOnly), offer{"SSH-2.0-test", true}},
		{"no gcm", hello(ident, chacha, chacha), offer{"SSH-2.0-test", false}},
		{"gcm out only", hello(ident, both, chacha), offer{"SSH-2.0-test", false}},
		{"gcm in only", hello(ident, chacha, both), offer{"SSH-2.0-test", false}},
		{"nothing", hello(ident, nil, nil), offer{"SSH-2.0-test", false}},
		{"almost gcm", hello(ident, []string{"aes128-gcm"}, []string{"aes128-gcm"}), offer{"SSH-2.0-test", false}},
		{"bare newline", hello("SSH-2.0-x\n", both, both), offer{"SSH-2.0-x", true}},
		{"comment", hello("SSH-2.0-x a comment\r\n", both, both), offer{"SSH-2.0-x a comment", true}},
		{"protocol 1.99", hello("SSH-1.99-x\r\n", both, both), offer{"SSH-1.99-x", true}},
		{"longest line", hello("SSH-2.0-"+strings.Repeat("x", maxIdent-10)+"\r\n", both, both),
			offer{"SSH-2.0-" + strings.Repeat("x", maxIdent-10), true}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := readOffer(bufio.NewReader(bytes.NewReader(test.input)))
			if err != nil || got != test.want {
				t.Errorf("got %+v, %v, want %+v", got, err, test.want)
			}
		})
	}
}

func TestReadOfferRefuses(t *testing.T) {
	const ident = "SSH-2.0-test\r\n"
	good := hello(ident, []string{ssh.CipherAES128GCM}, nil)
	firstPacket := good[len(ident):]
	tests := map[string]string{
		"nothing":             "",
		"no newline":          "SSH-2.0-test",
		"HTTP":                "GET / HTTP/1.1\r\n\r\n",
		"lines before":        "hello\r\n" + string(good),
		"protocol 1":          "SSH-1.5-test\r\n" + string(firstPacket),
		"line too long":       "SSH-2.0-" + strings.Repeat("x", maxIdent-9) + "\r\n" + string(firstPacket),
		"endless line":        "SSH-2.0-" + strings.Repeat("x", 1<<20),
		"control character":   "SSH-2.0-te\x1b[2Jst\r\n" + string(firstPacket),
		"NUL":                 "SSH-2.0-te\x00st\r\n" + string(firstPacket),
		"no packet":           ident,
		"half a header":       ident + "\x00\x00",
		"half a packet":       string(good[:len(good)-1]),
		"packet too long":     ident + "\x00\x00\x88\xb5\x04" + strings.Repeat("x", maxPacket),
		"enormous packet":     ident + "\xff\xff\xff\xff\x04",
		"empty packet":        ident + "\x00\x00\x00\x00\x00",
		"only padding":        ident + "\x00\x00\x00\x0c\x0b" + strings.Repeat("x", 11),
		"more padding":        ident + "\x00\x00\x00\x0c\xff" + strings.Repeat("x", 255),
		"not KEXINIT":         ident + string(packet([]byte{2, 0, 0, 0, 0})),
		"empty KEXINIT":       ident + string(packet([]byte{20})),
		"list past the end":   ident + string(packet(slices.Concat([]byte{20}, make([]byte, 16), []byte{0xff, 0xff, 0xff, 0xff}))),
		"bytes after the end": ident + string(packet(append(ssh.Marshal(kexInit{}), 0))),
	}
	for name, input := range tests {
		t.Run(name, func(t *testing.T) {
			r := strings.NewReader(input)
			got, err := readOffer(bufio.NewReader(r))
			if err == nil {
				t.Fatalf("accepted as %+v", got)
			}
			if read := len(input) - r.Len(); read > maxIdent+maxPacket+4096 {
				t.Errorf("read %d bytes before it refused: %v", read, err)
			}
			t.Log(err)
		})
	}
}

func TestCiphersForAreSafe(t *testing.T) {
	supported := ssh.SupportedAlgorithms().Ciphers
	for _, o := range []offer{{gcm: true}, {gcm: false}} {
		for _, cipher := range ciphersFor(o) {
			if !slices.Contains(supported, cipher) {
				t.Errorf("%+v: package ssh calls %s insecure or does not have it", o, cipher)
			}
		}
	}
}

// What parses prints back the same, and is understood the same again.
func FuzzReadOffer(f *testing.F) {
	all := ssh.SupportedAlgorithms().Ciphers
	f.Add(hello("SSH-2.0-test\r\n", all, all))
	f.Add(hello("SSH-1.99-test\n", nil, all[2:]))
	f.Add([]byte("SSH-2.0-test\r\n\x00\x00\x00\x0c\x0b"))
	f.Fuzz(func(t *testing.T, input []byte) {
		want, err := readOffer(bufio.NewReader(bytes.NewReader(input)))
		if err != nil {
			return
		}
		end := bytes.IndexByte(input, '\n') + 1
		payload, err := readFirstPacket(bytes.NewReader(input[end:]))
		if err != nil {
			t.Fatal(err)
		}
		var msg kexInit
		if err := ssh.Unmarshal(payload, &msg); err != nil {
			t.Fatal(err)
		}
		printed := ssh.Marshal(msg)
		// Any byte but zero is true, RFC 4251 section 5; true is printed as 1.
		if follows := len(payload) - 5; payload[follows] != 0 {
			payload[follows] = 1
		}
		if !bytes.Equal(printed, payload) {
			t.Errorf("printed %x\nparsed  %x", printed, payload)
		}
		got, err := readOffer(bufio.NewReader(bytes.NewReader(slices.Concat(input[:end], packet(printed)))))
		if err != nil || got != want {
			t.Errorf("read again %+v, %v, want %+v", got, err, want)
		}
	})
}
