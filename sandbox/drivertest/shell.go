package drivertest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"sandgate/sandbox"
	"sandgate/sandbox/guest"
)

// A Shell runs commands in a sandbox.
type Shell struct {
	*guest.Client
	t testing.TB
}

// Start makes and starts a sandbox of the test's own, removed at its end. What it is made
// of is ImageHost, unless spec says otherwise.
func Start(t testing.TB, d sandbox.Driver, spec sandbox.Spec) (sandbox.ID, *Shell) {
	t.Helper()
	spec.ID, spec.Hostname, spec.Image = sandbox.NewID(), "test", cmp.Or(spec.Image, sandbox.ImageHost)
	if c, ok := d.(sandbox.Checker); ok {
		if err := c.Check(spec); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Remove(context.Background(), spec.ID); err != nil {
			t.Error(err)
		}
	})
	if err := d.Start(t.Context(), spec.ID); err != nil {
		t.Fatal(err)
	}
	return spec.ID, Connect(t, d, spec.ID)
}

// Connect waits for the guest of a sandbox.
func Connect(t testing.TB, d sandbox.Driver, id sandbox.ID) *Shell {
	t.Helper()
	client, err := dial(d, id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return &Shell{client, t}
}

func dial(d sandbox.Driver, id sandbox.ID) (*guest.Client, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return guest.Connect(ctx, func(ctx context.Context) (io.ReadWriteCloser, error) {
		return d.Connect(ctx, id)
	}, slog.New(slog.DiscardHandler))
}

// Try runs a command and returns its exit code, -1 if a signal ended it, and what
// it wrote. The error is the sandbox's.
func (s *Shell) Try(argv ...string) (int, string, error) {
	var out lockedBuffer
	exit, err := execute(s.Client, guest.Command{Text: []byte(quote(argv))}, nil, &out, &out)
	if err != nil {
		return 0, "", fmt.Errorf("%q: %w", argv, err)
	}
	if exit.Signal != "" {
		exit.Code = -1
	}
	return exit.Code, strings.TrimSuffix(out.String(), "\n"), nil
}

// Run runs a command that has to succeed, and returns what it wrote.
func (s *Shell) Run(argv ...string) string {
	s.t.Helper()
	code, out, err := s.Try(argv...)
	if err != nil {
		s.t.Fatal(err)
	}
	if code != 0 {
		s.t.Fatalf("%q: exit code %d:\n%s", argv, code, out)
	}
	return out
}

// Want runs a command and compares what it wrote.
func (s *Shell) Want(want string, argv ...string) {
	s.t.Helper()
	if got := s.Run(argv...); got != want {
		s.t.Errorf("%q wrote %q, want %q", argv, got, want)
	}
}

// execute runs a command to its end, with stdin as its whole input.
func execute(c *guest.Client, cmd guest.Command, stdin []byte, stdout, stderr io.Writer) (guest.Exit, error) {
	p, err := c.Start(cmd, false)
	if err != nil {
		return guest.Exit{}, err
	}
	defer p.Close()
	go func() {
		p.Write(stdin)
		p.CloseWrite()
	}()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return p.Wait(ctx, stdout, stderr)
}

// quote makes a command line of argv.
func quote(argv []string) string {
	var words []string
	for _, arg := range argv {
		words = append(words, "'"+strings.ReplaceAll(arg, "'", `'\''`)+"'")
	}
	return strings.Join(words, " ")
}

// A lockedBuffer is for two outputs at once, and for a look while they come.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
