package demo

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
)

// How long things may take.
const (
	startTimeout   = 30 * time.Second // the gateway, to listen
	commandTimeout = time.Minute      // a command that is shown
	endTimeout     = 30 * time.Second // all sandboxes, to be removed
	stopTimeout    = 15 * time.Second // the gateway, to end
)

// A gateway is `sandgate serve` as a process of its own.
type gateway struct {
	cmd    *exec.Cmd
	port   int
	config string // the ssh_config by which it is reached
	log    string
	ended  chan error // receives once
}

// startGateway starts a gateway that keeps everything in dir, and waits until it
// listens.
func startGateway(ctx context.Context, dir string) (*gateway, error) {
	g := &gateway{
		config: filepath.Join(dir, "ssh_config"),
		log:    filepath.Join(dir, "log"),
		ended:  make(chan error, 1),
	}
	key := filepath.Join(dir, "key")
	if err := writeKey(key); err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	log, err := os.Create(g.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	g.cmd = exec.Command(program, "serve", "--state", filepath.Join(dir, "state"),
		"--listen", "127.0.0.1:0", "--admin-keys", key+".pub")
	// Settings of another gateway are not this one's.
	g.cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "SANDGATE_") })
	g.cmd.Stderr = log
	// A Ctrl-C is for the demo, which then ends the gateway in good order.
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdout, err := g.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := g.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the gateway: %w", err)
	}
	listens := make(chan int, 1)
	go func() {
		lines := bufio.NewReader(stdout)
		if port, err := readPort(lines); err == nil {
			listens <- port
		}
		io.Copy(io.Discard, lines)
		g.ended <- g.cmd.Wait()
	}()
	select {
	case g.port = <-listens:
	case err := <-g.ended:
		said, _ := os.ReadFile(g.log)
		return nil, fmt.Errorf("the gateway does not start (%v):\n%s", err, strings.TrimSpace(string(said)))
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), g.stop())
	case <-time.After(startTimeout):
		return nil, errors.Join(fmt.Errorf("the gateway does not listen within %v", startTimeout), g.stop())
	}
	if err := os.WriteFile(g.config, sshConfig(g.port, dir), 0o600); err != nil {
		return nil, errors.Join(err, g.stop())
	}
	return g, nil
}

var listensOn = regexp.MustCompile(`^ *listens on +127\.0\.0\.1:(\d+)$`)

// readPort reads what serve prints up to the line that says where it listens.
func readPort(serve *bufio.Reader) (int, error) {
	for {
		line, err := serve.ReadString('\n')
		if err != nil {
			return 0, err
		}
		if m := listensOn.FindStringSubmatch(strings.TrimSuffix(line, "\n")); m != nil {
			return strconv.Atoi(m[1])
		}
	}
}

// writeKey writes a new private key to path and its public half to path.pub.
func writeKey(path string) error {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return err
	}
	block, err := ssh.MarshalPrivateKey(private, "sandgate demo")
	if err != nil {
		return err
	}
	line, err := ssh.NewPublicKey(public)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(path, pem.EncodeToMemory(block), 0o600),
		os.WriteFile(path+".pub", ssh.MarshalAuthorizedKey(line), 0o600))
}

// sshConfig is an ssh_config in which web is a sandbox and gate is the lobby.
func sshConfig(port int, dir string) []byte {
	return fmt.Appendf(nil, `Host web
  User web
Host gate
  User gate
Host *
  HostName 127.0.0.1
  Port %d
  IdentityFile "%s/key"
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile "%s/known_hosts"
  GlobalKnownHostsFile none
  StrictHostKeyChecking accept-new
  BatchMode yes
  ExitOnForwardFailure yes
  LogLevel ERROR
`, port, dir, dir)
}

// shell returns a command line to be run in dir by a shell whose ssh, scp and
// sftp read the gateway's ssh_config. It and all that it starts are killed when
// ctx ends.
func (g *gateway) shell(ctx context.Context, dir, line string) *exec.Cmd {
	const clients = `ssh() { command ssh -F "$0" "$@"; }; scp() { command scp -F "$0" "$@"; }; sftp() { command sftp -F "$0" "$@"; }
`
	cmd := exec.CommandContext(ctx, "sh", "-c", clients+line, g.config)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	return cmd
}

func (g *gateway) pid() int { return g.cmd.Process.Pid }

// stop ends the gateway.
func (g *gateway) stop() error {
	g.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-g.ended:
		if err != nil {
			return fmt.Errorf("the gateway ended with: %w", err)
		}
		return nil
	case <-time.After(stopTimeout):
		g.cmd.Process.Kill()
		<-g.ended
		return fmt.Errorf("the gateway did not end within %v", stopTimeout)
	}
}
