package gateway

import (
	"bytes"
	"cmp"
	"crypto/ed25519"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"

	"sandgate/sandbox/testneed"
)

const testVersion = "SSH-2.0-sandgate_test"

// tcpPair returns the two ends of a connection over the loopback interface.
func tcpPair(t testing.TB) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err = net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

// greeted returns a connection after openFront, when package ssh has sent its
// version line and read the client's first bytes.
func greeted(t testing.TB) (client net.Conn, front *frontConn) {
	t.Helper()
	client, server := tcpPair(t)
	first := hello("SSH-2.0-test\r\n", nil, nil)
	if _, err := client.Write(first); err != nil {
		t.Fatal(err)
	}
	front, _, err := openFront(server, testVersion, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { front.Close() })
	if _, err := io.WriteString(front, testVersion+"\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(front, make([]byte, len(first))); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(client, make([]byte, len(testVersion)+2)); err != nil {
		t.Fatal(err)
	}
	return client, front
}

// However the client's first bytes arrive, package ssh reads all of them.
func TestOpenFrontReplays(t *testing.T) {
	gcm := []string{ssh.CipherAES128GCM}
	first := hello("SSH-2.0-test\r\n", gcm, gcm)
	sent := slices.Concat(first, bytes.Repeat([]byte("and what follows "), 10_000))
	transports := map[string]func(testing.TB) (net.Conn, net.Conn){
		"tcp":  tcpPair,
		"pipe": func(testing.TB) (net.Conn, net.Conn) { return net.Pipe() },
	}
	deliveries := map[string]func(client net.Conn) error{
		"at once": func(client net.Conn) error {
			_, err := client.Write(sent)
			return err
		},
		"byte by byte": func(client net.Conn) error {
			for i := range first {
				if _, err := client.Write(first[i : i+1]); err != nil {
					return err
				}
			}
			_, err := client.Write(sent[len(first):])
			return err
		},
	}
	for transport, pair := range transports {
		for delivery, deliver := range deliveries {
			t.Run(transport+" "+delivery, func(t *testing.T) {
				client, server := pair(t)
				defer server.Close()
				var wg sync.WaitGroup
				defer wg.Wait()
				wg.Go(func() {
					defer client.Close()
					// A client may wait for the server's line before it sends its own.
					line := make([]byte, len(testVersion)+2)
					if _, err := io.ReadFull(client, line); err != nil || string(line) != testVersion+"\r\n" {
						t.Errorf("the client read %q, %v", line, err)
					}
					if err := deliver(client); err != nil {
						t.Error(err)
					}
				})
				front, o, err := openFront(server, testVersion, time.Minute)
				if err != nil {
					t.Fatal(err)
				}
				defer front.Close()
				if want := (offer{"SSH-2.0-test", true}); o != want {
					t.Errorf("offer %+v, want %+v", o, want)
				}
				got, err := io.ReadAll(iotest.OneByteReader(front))
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got, sent) {
					t.Errorf("read %d bytes, want the %d that were sent", len(got), len(sent))
				}
			})
		}
	}
}

func TestOpenFrontSwallowsVersionOnce(t *testing.T) {
	client, front := greeted(t)
	if _, err := io.WriteString(front, testVersion+"\r\n"); err != nil {
		t.Fatal(err)
	}
	front.Close()
	got, err := io.ReadAll(client)
	if err != nil || string(got) != testVersion+"\r\n" {
		t.Errorf("the client read %q, %v, want the line that was written the second time", got, err)
	}
}

func TestOpenFrontInsistsOnVersion(t *testing.T) {
	client, server := tcpPair(t)
	if _, err := client.Write(hello("SSH-2.0-test\r\n", nil, nil)); err != nil {
		t.Fatal(err)
	}
	front, _, err := openFront(server, testVersion, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer front.Close()
	if _, err := io.WriteString(front, "SSH-2.0-Go\r\n"); err == nil {
		t.Error("a version was sent that is not part of the key exchange")
	}
}

// A client that sends a byte now and then does not keep its connection.
func TestGraceCoversOffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() {
			defer client.Close()
			io.ReadFull(client, make([]byte, len(testVersion)+2))
			for _, b := range hello("SSH-2.0-test\r\n", nil, nil) {
				time.Sleep(time.Second)
				if _, err := client.Write([]byte{b}); err != nil {
					return
				}
			}
		})
		start := time.Now()
		_, _, err := openFront(server, testVersion, 10*time.Second)
		if !errors.Is(err, errLoginGrace) || time.Since(start) != 10*time.Second {
			t.Errorf("%v after %v, want %v after 10s", err, time.Since(start), errLoginGrace)
		}
	})
}

// The time limit ends with the login, and not because somebody sets deadlines.
func TestGraceCoversLogin(t *testing.T) {
	for _, loggedIn := range []bool{false, true} {
		t.Run(fmt.Sprint("logged in ", loggedIn), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, server := net.Pipe()
				var wg sync.WaitGroup
				defer wg.Wait()
				wg.Go(func() {
					defer client.Close()
					io.ReadFull(client, make([]byte, len(testVersion)+2))
					client.Write(hello("SSH-2.0-test\r\n", nil, nil))
					time.Sleep(time.Hour)
				})
				start := time.Now()
				front, _, err := openFront(server, testVersion, 10*time.Second)
				if err != nil {
					t.Fatal(err)
				}
				defer front.Close()
				front.SetDeadline(time.Time{})
				if loggedIn {
					front.admit()
				}
				_, err = io.Copy(io.Discard, front)
				wantErr, wantTime := errLoginGrace, 10*time.Second
				if loggedIn {
					wantErr, wantTime = nil, time.Hour
				}
				if err != wantErr || time.Since(start) != wantTime {
					t.Errorf("%v after %v, want %v after %v", err, time.Since(start), wantErr, wantTime)
				}
			})
		})
	}
}

func TestFrontConnEnds(t *testing.T) {
	read := func(front *frontConn) error {
		_, err := front.Read(make([]byte, 1))
		return err
	}
	t.Run("client closes", func(t *testing.T) {
		client, front := greeted(t)
		client.Close()
		for range 2 {
			if err := read(front); err != io.EOF {
				t.Errorf("got %v, want EOF", err)
			}
		}
	})
	t.Run("client resets", func(t *testing.T) {
		client, front := greeted(t)
		client.(*net.TCPConn).SetLinger(0)
		client.Close()
		err := read(front)
		if _, ok := errors.AsType[net.Error](err); !ok || !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("got %v, want a net.Error that is ECONNRESET", err)
		}
	})
	t.Run("closed while reading", func(t *testing.T) {
		_, front := greeted(t)
		time.AfterFunc(10*time.Millisecond, func() { front.Close() })
		if err := read(front); !errors.Is(err, net.ErrClosed) {
			t.Errorf("got %v, want %v", err, net.ErrClosed)
		}
	})
	t.Run("deadline", func(t *testing.T) {
		_, front := greeted(t)
		front.SetDeadline(time.Now().Add(10 * time.Millisecond))
		if err := read(front); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("got %v, want %v", err, os.ErrDeadlineExceeded)
		}
	})
	t.Run("half closed", func(t *testing.T) {
		client, front := greeted(t)
		if err := front.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(client); err != nil || len(got) > 0 {
			t.Fatalf("the client read %q, %v", got, err)
		}
		if _, err := client.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := read(front); err != nil {
			t.Error(err)
		}
	})
}

// sshServer serves connections until the test ends. Each session channel gets
// its input back. The cipher of each login, client to server, is sent on
// ciphers.
func sshServer(t testing.TB) (addr net.Addr, ciphers <-chan string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	hostKey := newSigner(t)
	negotiated := make(chan string, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				if err := echoSessions(conn, hostKey, negotiated); err != nil {
					t.Error(err)
				}
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr(), negotiated
}

func echoSessions(conn net.Conn, hostKey ssh.Signer, negotiated chan<- string) error {
	front, o, err := openFront(conn, testVersion, time.Minute)
	if err != nil {
		return err
	}
	defer front.Close()
	config := &ssh.ServerConfig{
		Config:        ssh.Config{Ciphers: ciphersFor(o)},
		ServerVersion: testVersion,
		PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) {
			return nil, nil
		},
	}
	config.AddHostKey(hostKey)
	login, channels, requests, err := ssh.NewServerConn(front, config)
	if err != nil {
		return err
	}
	front.loginDone()
	negotiated <- login.Conn.(ssh.AlgorithmsConnMetadata).Algorithms().Read.Cipher
	go ssh.DiscardRequests(requests)
	for c := range channels {
		ch, requests, err := c.Accept()
		if err != nil {
			return err
		}
		for r := range requests {
			r.Reply(r.Type == "exec", nil)
			if r.Type == "exec" {
				break
			}
		}
		go ssh.DiscardRequests(requests)
		if _, err := io.Copy(ch, ch); err != nil {
			return err
		}
		if _, err := ch.SendRequest("exit-status", false, make([]byte, 4)); err != nil {
			return err
		}
		ch.Close()
	}
	return nil
}

func newSigner(t testing.TB) ssh.Signer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

// dialSSH logs in with the package's own client, which offers ciphers, or the
// package's defaults if there are none.
func dialSSH(t testing.TB, addr net.Addr, ciphers ...string) *ssh.Client {
	t.Helper()
	client, err := ssh.Dial("tcp", addr.String(), &ssh.ClientConfig{
		Config:          ssh.Config{Ciphers: ciphers},
		Auth:            []ssh.AuthMethod{ssh.PublicKeys(newSigner(t))},
		HostKeyCallback: ssh.InsecureIgnoreHostKey(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func TestGoClientCiphers(t *testing.T) {
	tests := []struct {
		offered []string
		want    string
	}{
		{nil, ssh.CipherAES128GCM},
		{[]string{ssh.CipherChaCha20Poly1305, ssh.CipherAES256CTR, ssh.CipherAES256GCM}, ssh.CipherAES256GCM},
		{[]string{ssh.CipherAES256CTR, ssh.CipherChaCha20Poly1305}, ssh.CipherAES256CTR},
		{[]string{ssh.CipherChaCha20Poly1305}, ssh.CipherChaCha20Poly1305},
	}
	for _, test := range tests {
		t.Run(fmt.Sprint(test.offered), func(t *testing.T) {
			addr, ciphers := sshServer(t)
			session, err := dialSSH(t, addr, test.offered...).NewSession()
			if err != nil {
				t.Fatal(err)
			}
			if got := <-ciphers; got != test.want {
				t.Errorf("cipher %s, want %s", got, test.want)
			}
			// Enough to pass through the large buffer many times over.
			sent := bytes.Repeat([]byte("sandgate"), 1<<17)
			session.Stdin = bytes.NewReader(sent)
			got, err := session.Output("cat")
			if err != nil || !bytes.Equal(got, sent) {
				t.Errorf("%d bytes came back, %v, want the %d that were sent", len(got), err, len(sent))
			}
		})
	}
}

func TestOpenSSHCiphers(t *testing.T) {
	program, err := exec.LookPath("ssh")
	if err != nil {
		testneed.Lacking(t, "ssh")
	}
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(key, "")
	if err != nil {
		t.Fatal(err)
	}
	identity := filepath.Join(t.TempDir(), "id_ed25519")
	if err := os.WriteFile(identity, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := map[string]string{ // option -c, and what comes of it
		"":                              ssh.CipherAES128GCM,
		"chacha20-poly1305@openssh.com": ssh.CipherChaCha20Poly1305,
		"aes256-ctr,chacha20-poly1305@openssh.com": ssh.CipherAES256CTR,
		"aes256-ctr,aes256-gcm@openssh.com":        ssh.CipherAES256GCM,
	}
	for offered, want := range tests {
		t.Run(cmp.Or(offered, "default"), func(t *testing.T) {
			addr, ciphers := sshServer(t)
			args := []string{"-F", "none", "-i", identity, "-p", fmt.Sprint(addr.(*net.TCPAddr).Port),
				"-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes",
				"-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"}
			if offered != "" {
				args = append(args, "-c", offered)
			}
			cmd := exec.CommandContext(t.Context(), program, append(args, "somebody@127.0.0.1", "cat")...)
			cmd.Stdin = strings.NewReader("hello")
			out, err := cmd.CombinedOutput()
			if err != nil || string(out) != "hello" {
				t.Fatalf("ssh: %q, %v", out, err)
			}
			if got := <-ciphers; got != want {
				t.Errorf("cipher %s, want %s", got, want)
			}
		})
	}
}

// What is held back is sent in one piece, and what is too much for that in its turn.
func TestFrontConnHolds(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	c := &frontConn{Conn: near}
	defer near.Close()
	read := func(want string) {
		t.Helper()
		buf := make([]byte, 2*maxHeld)
		if n, err := far.Read(buf); string(buf[:n]) != want || err != nil {
			t.Errorf("sent %.20q, %v, want %.20q", buf[:n], err, want)
		}
	}
	outer, inner := c.hold(), c.hold()
	for _, p := range []string{"one ", "two ", "three"} {
		if n, err := c.Write([]byte(p)); n != len(p) || err != nil {
			t.Fatalf("Write: %d, %v", n, err)
		}
	}
	inner()
	go outer()
	read("one two three")

	release := c.hold()
	large := strings.Repeat("x", maxHeld)
	c.Write([]byte("first "))
	go func() {
		c.Write([]byte(large))
		release()
	}()
	read("first ")
	read(large)

	go c.Write([]byte("on its own"))
	read("on its own")
}
