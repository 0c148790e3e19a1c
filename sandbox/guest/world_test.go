//go:build linux

package guest

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// The test binary is the guest too: tests run it as a process of this host, where
// a driver would run it in a sandbox.
func TestMain(m *testing.M) {
	if IsGuest(os.Args) {
		os.Exit(Main(os.Args))
	}
	if len(os.Args) == 5 && os.Args[1] == "follow" {
		os.Exit(followAsGateway(os.Args[2], os.Args[3], os.Args[4]))
	}
	goleak.VerifyTestMain(m)
}

// A world is a guest process and the gateway's end of its socket folder.
type world struct {
	t        testing.TB
	dir      string
	listener *Listener
	cmd      *exec.Cmd
	proc     *os.Process
}

func newWorld(t testing.TB) *world {
	t.Helper()
	dir := t.TempDir()
	l, err := Listen(dir, -1, -1)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, dir: dir, listener: l}
	w.start()
	t.Cleanup(func() {
		w.proc.Signal(syscall.SIGTERM)
		w.cmd.Wait()
		l.Close()
	})
	return w
}

func (w *world) start() {
	w.t.Helper()
	self, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	w.cmd = exec.Command(self, "guest", w.dir)
	w.cmd.Stderr = os.Stderr
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := w.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.proc = w.cmd.Process
}

// restart ends the guest and starts it again on the same disk.
func (w *world) restart(sig syscall.Signal) {
	w.t.Helper()
	w.proc.Signal(sig)
	w.cmd.Wait()
	w.start()
}

func (w *world) connect() *Client {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	c, err := Connect(ctx, func(ctx context.Context) (io.ReadWriteCloser, error) {
		return w.listener.Accept(ctx)
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	return c
}

func command(text string) Command { return Command{Text: []byte(text)} }

// outcome is all that a client sees of a job.
type outcome struct {
	stdout, stderr string
	exit           Exit
}

// run runs a command to its end with the given input.
func run(t testing.TB, c *Client, cmd Command, input io.Reader) outcome {
	t.Helper()
	p, err := c.Start(cmd, false)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	go func() {
		if input != nil {
			io.Copy(p, input)
		}
		p.CloseWrite()
	}()
	var stdout, stderr bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	exit, err := p.Wait(ctx, &stdout, &stderr)
	if err != nil {
		t.Fatalf("%s: %v (stdout %q, stderr %q)", cmd.Text, err, stdout.String(), stderr.String())
	}
	return outcome{stdout.String(), stderr.String(), exit}
}

// waitFor waits until a condition holds.
func waitFor(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if cond() {
			return
		}
	}
	t.Fatalf("waited in vain: %s", what)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

type brokenWriter struct{}

// plainShell is the environment of a login shell that nobody's profile holds up.
func plainShell(t testing.TB) [][]byte {
	return [][]byte{[]byte("HOME=" + t.TempDir()), []byte("PS1=\\$ ")}
}

// stalledWriter takes nothing until it is released.
type stalledWriter struct{ release <-chan struct{} }

func (w stalledWriter) Write(p []byte) (int, error) {
	<-w.release
	return len(p), nil
}
