package gateway

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"sandgate/sandbox"
	"sandgate/sandbox/drivertest"
	"sandgate/store"
)

// A stage is a gateway with two users, alice and bob, whose sandboxes are
// processes of this host.
type stage struct {
	t          testing.TB
	gate       *Gateway
	driver     *drivertest.Local
	addr       string
	alice, bob ssh.Signer
	log        *syncBuffer
	stop       func() error // ends Serve and returns its error
	dir        string       // with the database, db
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func newStage(t testing.TB, change func(*Config)) *stage {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	db, err := store.Open(t.Context(), filepath.Join(dir, "db"))
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{t: t, dir: dir, driver: drivertest.NewLocal(dir, self, "guest"), alice: newSigner(t), bob: newSigner(t), log: new(syncBuffer)}
	s.driver.Home = t.TempDir() // what the host's own shells read may take long, or wait for each other
	for name, key := range map[string]ssh.Signer{"alice": s.alice, "bob": s.bob} {
		pub := key.PublicKey()
		if _, err := db.CreateUserWithKeys(t.Context(), name, store.RoleUser, []store.Key{{
			Fingerprint: ssh.FingerprintSHA256(pub), Type: pub.Type(), Blob: pub.Marshal(),
		}}); err != nil {
			t.Fatal(err)
		}
	}
	log := slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	sandboxes, err := sandbox.NewManager(sandbox.Config{Driver: "local"}, db, map[string]sandbox.Driver{"local": s.driver}, log)
	if err != nil {
		t.Fatal(err)
	}
	vault, err := store.OpenVault(t.Context(), db, filepath.Join(dir, "vault.key"))
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Fixed: Fixed{HostKeys: []ssh.Signer{newSigner(t)}, Version: "test", Vault: vault, farewell: time.Minute}}
	if change != nil {
		change(&cfg)
	}
	if s.gate, err = New(cfg, db, sandboxes, log); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.gate.Serve(ctx, l) }()
	s.stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-served:
			return err
		case <-time.After(time.Minute):
			return errors.New("Serve does not end")
		}
	})
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
		sandboxes.Close()
		db.Close()
		if t.Failed() {
			t.Logf("log:\n%s", s.log)
		}
	})
	return s
}

// dial logs in; the client is closed with the test.
func (s *stage) dial(user string, auth ...ssh.AuthMethod) (*ssh.Client, error) {
	c, err := ssh.Dial("tcp", s.addr, &ssh.ClientConfig{
		User: user, Auth: auth, HostKeyCallback: ssh.InsecureIgnoreHostKey(), Timeout: 30 * time.Second,
	})
	if err == nil {
		s.t.Cleanup(func() { c.Close() })
	}
	return c, err
}

func (s *stage) login(user string, key ssh.Signer) *ssh.Client {
	s.t.Helper()
	c, err := s.dial(user, ssh.PublicKeys(key))
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// run runs a command on a connection.
func (s *stage) run(c *ssh.Client, command string) (stdout, stderr string, code int) {
	s.t.Helper()
	session, err := c.NewSession()
	if err != nil {
		s.t.Fatal(err)
	}
	defer session.Close()
	var out, errs bytes.Buffer
	session.Stdout, session.Stderr = &out, &errs
	err = session.Run(command)
	if exit, ok := errors.AsType[*ssh.ExitError](err); ok {
		code = exit.ExitStatus()
	} else if err != nil {
		s.t.Fatalf("%s: %v", command, err)
	}
	return out.String(), errs.String(), code
}
