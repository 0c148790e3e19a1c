package gateway

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// Remote carries out a verb at the gateway host, HOST or HOST:PORT, through the ssh
// client, and returns its exit code.
func Remote(host string, words []string) (int, error) {
	if host == "" {
		return 2, errors.New("SANDGATE_HOST is not set\nsandgate: hint: export SANDGATE_HOST=gate.example.com:2222")
	}
	args, host := sshTo(host)
	if asksForSecret(words) {
		args = append(args, "-t") // or this terminal shows what is typed
	}
	args = append(args, "--", "gate@"+host)
	verbatim := false
	for _, w := range words {
		if verbatim { // a command for a shell, as ssh itself would send it
			args = append(args, w)
			continue
		}
		verbatim = w == "--" && TakesCommand(words[0])
		quoted, err := syntax.Quote(w, syntax.LangPOSIX)
		if err != nil {
			return 2, fmt.Errorf("%q cannot be sent: %v", w, err)
		}
		args = append(args, quoted)
	}
	cmd := exec.Command("ssh", args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), nil
	}
	if err != nil {
		return 1, fmt.Errorf("run ssh: %w", err)
	}
	return 0, nil
}

// sshTo returns what ssh needs to reach HOST or HOST:PORT.
func sshTo(address string) (args []string, host string) {
	host = strings.TrimPrefix(address, "ssh://")
	if _, after, ok := strings.Cut(host, "@"); ok {
		host = after
	}
	if h, port, err := net.SplitHostPort(host); err == nil {
		host = h
		args = append(args, "-p", port)
	}
	return args, host
}

// asksForSecret says whether words make the gateway ask for a secret at a terminal.
func asksForSecret(words []string) bool {
	fi, err := os.Stdin.Stat()
	return err == nil && fi.Mode()&os.ModeCharDevice != 0 &&
		len(words) > 1 && words[0] == "secret" && (words[1] == "set" || words[1] == "rotate")
}
