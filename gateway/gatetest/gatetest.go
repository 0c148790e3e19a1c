// Package gatetest runs gateways for tests: processes of their own, of the program as it
// is used.
package gatetest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sandgate/sandbox/testneed"
)

// Program builds sandgate once for all tests of a package, without C as gVisor needs
// it, and returns its path.
var Program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "sandgate-test-")
	if err != nil {
		return "", err
	}
	built = dir
	path := filepath.Join(dir, "sandgate")
	cmd := exec.Command("go", "build", "-o", path, "sandgate")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %v\n%s", err, out)
	}
	return path, os.Chmod(dir, 0o755)
})

// built is the folder of Program, if it was called.
var built string

// Main runs the tests of a package that uses Program, removes that, and returns the exit
// code.
func Main(m *testing.M) int {
	code := m.Run()
	if built != "" {
		os.RemoveAll(built)
	}
	return code
}

// A Gateway is a gateway as a process of its own.
type Gateway struct {
	State string   // folder; the log is beside it
	Key   string   // private, the admin's
	Port  int      // kept over restarts; 0: any at the first start
	Admin string   // name of the first user, once it has run
	Flags []string // of serve, beyond those that it needs
	Env   []string // beyond this process's

	Program string // empty: the one of all tests
	PID     int    // 0 if it does not run

	ended chan error
}

// New prepares a gateway with a key of its own in dir.
func New(dir string) (*Gateway, error) {
	g := &Gateway{State: filepath.Join(dir, "state"), Key: filepath.Join(dir, "id")}
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", g.Key).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("ssh-keygen: %v\n%s", err, out)
	}
	return g, nil
}

// Run returns a gateway that has started, and stops it with the test, which shows the
// end of its log if it failed. Without OpenSSH's client the test is skipped, or fails
// where nothing may be skipped.
func Run(t *testing.T) *Gateway {
	t.Helper()
	testneed.Programs(t, "ssh", "ssh-keygen")
	g, err := New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			log, _ := os.ReadFile(g.State + ".log")
			t.Logf("the gateway's log ends with:\n%s", log[max(0, len(log)-20000):])
		}
	})
	return g
}

var isAdmin = regexp.MustCompile(`^  admin +([a-z0-9-]+), with the key`)

var listensOn = regexp.MustCompile(`listens on +\S*:(\d+)`)

// Start starts the gateway and waits until it listens.
func (g *Gateway) Start() error {
	path, err := Program()
	if err != nil {
		return err
	}
	if g.Program != "" {
		path = g.Program
	}
	log, err := os.OpenFile(g.State+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(path, append([]string{"serve", "--verbose", "--state", g.State,
		"--listen", "127.0.0.1:" + strconv.Itoa(g.Port), "--admin-keys", g.Key + ".pub"}, g.Flags...)...)
	cmd.Env = append(os.Environ(), g.Env...)
	cmd.Stderr = log
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	listens := false
	for lines := bufio.NewScanner(stdout); !listens && lines.Scan(); {
		if m := isAdmin.FindStringSubmatch(lines.Text()); m != nil {
			g.Admin = m[1]
		}
		if m := listensOn.FindStringSubmatch(lines.Text()); m != nil {
			g.Port, _ = strconv.Atoi(m[1])
			listens = true
		}
	}
	if !listens {
		cmd.Wait()
		said, _ := os.ReadFile(log.Name())
		return fmt.Errorf("the gateway did not start:\n%s", said)
	}
	g.PID = cmd.Process.Pid
	g.ended = make(chan error, 1)
	go func() {
		io.Copy(io.Discard, stdout)
		g.ended <- cmd.Wait()
	}()
	return nil
}

// Signal ends the gateway, if it runs, and returns how it ended.
func (g *Gateway) Signal(sig syscall.Signal) error {
	if g.PID == 0 {
		return nil
	}
	syscall.Kill(g.PID, sig)
	g.PID = 0
	select {
	case err := <-g.ended:
		return err
	case <-time.After(30 * time.Second):
		return errors.New("the gateway does not end")
	}
}

// Stop removes all sandboxes, also those of other users, with them, and stops the
// gateway.
func (g *Gateway) Stop() error {
	if g.PID == 0 {
		if err := g.Start(); err != nil {
			return err
		}
	}
	if out, err := exec.Command("ssh", g.SSHArgs("gate", "rm", "--all", "--force")...).CombinedOutput(); err != nil {
		return fmt.Errorf("rm --all --force: %v\n%s", err, out)
	}
	users, err := g.SSH("gate", "user", "ls", "--json")
	if err != nil {
		return fmt.Errorf("user ls: %v", err)
	}
	for line := range strings.Lines(users) {
		var u struct {
			Name      string
			Sandboxes int
		}
		if err := json.Unmarshal([]byte(line), &u); err != nil {
			return fmt.Errorf("user ls: %v", err)
		}
		if u.Sandboxes > 0 {
			if _, err := g.SSH("gate", "user", "rm", "--force", u.Name); err != nil {
				return fmt.Errorf("user rm %s: %v", u.Name, err)
			}
		}
	}
	return g.Signal(syscall.SIGTERM)
}

// QuietSSH are options of ssh with which it asks nothing and says little: each second
// is one, after -o.
var QuietSSH = []string{
	"-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR",
	"-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none", "-o", "BatchMode=yes",
}

// SSHArgs are arguments for ssh to run words at the gateway.
func (g *Gateway) SSHArgs(login string, words ...string) []string {
	args := append([]string{"-F", "none", "-p", strconv.Itoa(g.Port), "-i", g.Key}, QuietSSH...)
	return append(append(args, login+"@127.0.0.1"), words...)
}

// SSH runs a command at the gateway.
func (g *Gateway) SSH(login string, words ...string) (string, error) {
	out, err := exec.Command("ssh", g.SSHArgs(login, words...)...).Output()
	return string(out), err
}

// FreePorts returns n different ports of 127.0.0.1 that nothing listens on.
func FreePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		// Held until all are found, so that they differ.
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
