package drivertest

import (
	"fmt"
	"strings"

	"sandgate/sandbox/guest"
)

// What a command finds in its environment.
var environmentCases = cases{
	"ENV-01/Home":      does{text: `test "$HOME" = "$(pwd)" && test -d "$HOME"`},
	"ENV-01/User":      does{text: `test "$USER" = "$(id -un)" && test "$LOGNAME" = "$USER"`},
	"ENV-01/Shell":     does{text: `test -x "$SHELL"`},
	"ENV-01/Path":      does{text: `case $PATH in /usr/local/sbin:*:/bin*) ;; *) exit 1 ;; esac`},
	"ENV-01/Sent":      does{text: `printf '[%s]' "$FOO" "$BAR"`, env: []string{"FOO=a b=c", "BAR="}, out: "[a b=c][]"},
	"ENV-01/Newline":   does{text: `printf %s "$FOO"`, env: []string{"FOO=a\nb"}, out: "a\nb"},
	"ENV-01/Bytes":     does{text: `printf %s "$FOO"`, env: []string{"FOO=\xff\xfe"}, out: "\xff\xfe"},
	"ENV-01/Last":      does{text: `printf %s "$FOO"`, env: []string{"FOO=1", "FOO=2"}, out: "2"},
	"ENV-02/NoName":    does{text: "env | grep -c '^=' || true", env: []string{"=x", "x", ""}, out: "0\n"},
	"ENV-02/Option":    does{text: "echo fine", env: []string{"--split-string=id", "-u=x"}, out: "fine\n"},
	"ENV-01/NoTTY":     does{text: "env | grep -E '^(SSH_TTY|TERM)=' || true"},
	"ENV-01/TTY":       check(environmentTTY),
	"NothingOfOurs":    check(environmentClean),
	"Many":             check(environmentMany),
	"LoginShell":       where{walls, check(environmentLogin)},
	"Hostname":         does{text: "test -n \"$(uname -n)\""},
	"WorkingDirectory": does{text: "cd / && pwd", out: "/\n"},
}

func environmentTTY(s *seat) {
	r := s.terminal("echo $SSH_TTY; tty")
	r.ends(guest.Exit{})
	if lines := strings.Fields(r.out.String()); len(lines) != 2 || lines[0] != lines[1] {
		s.Errorf("SSH_TTY and tty are %q", lines)
	}
}

// No variable comes from the gateway, the guest or an engine.
func environmentClean(s *seat) {
	known := map[string]bool{
		"HOME": true, "USER": true, "LOGNAME": true, "SHELL": true, "PATH": true,
		"PWD": true, "OLDPWD": true, "SHLVL": true, "_": true, // the shell's own
		"HOSTNAME": true, "LANG": true, "LC_ALL": true, // an image may set them
	}
	for line := range strings.Lines(s.sh("env")) {
		if name, _, _ := strings.Cut(line, "="); !known[name] {
			s.Errorf("the environment has %q", line)
		}
	}
}

func environmentMany(s *seat) {
	cmd := guest.Command{Text: []byte("env | grep -c ^MANY_")}
	for i := range 1000 {
		cmd.Env = append(cmd.Env, fmt.Appendf(nil, "MANY_%d=%s", i, strings.Repeat("x", 100)))
	}
	if got := s.do(cmd, nil); got.stdout != "1000\n" {
		s.Errorf("%+v", got)
	}
}

func environmentLogin(s *seat) {
	r := s.begin(guest.Command{Env: [][]byte{[]byte("FOO=sent")}})
	r.types(`echo "$FOO $(test "$HOME" = "$(pwd)" && echo home)"; exit` + "\n")
	r.ends(guest.Exit{})
	if out := r.out.String(); out != "sent home\n" {
		s.Errorf("wrote %q", out)
	}
}
