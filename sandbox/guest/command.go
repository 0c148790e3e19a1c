//go:build linux

package guest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"
)

// defaultPath is PATH where the image names none.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// ownPrograms is a folder with names for this executable: scp.
const ownPrograms = "/.sandgate/bin"

// A startError is why a command could not be started, and the exit code that a
// shell would give: 127 not found, 126 not executable.
type startError struct {
	code   int
	reason string
}

func (e *startError) Error() string { return e.reason }

// environment returns the variables of a command: the account's own, under those
// of the sandbox's settings, under those that were sent with the command.
func environment(a account, shell string, settings []string, sent [][]byte) []string {
	env := []string{
		"HOME=" + a.home,
		"USER=" + a.name,
		"LOGNAME=" + a.name,
		"PATH=" + defaultPath,
		"SHELL=" + shell,
	}
	at := make(map[string]int, len(env)+len(settings)+len(sent))
	for i, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		at[name] = i
	}
	put := func(kv string) {
		name, _, ok := strings.Cut(kv, "=")
		if !ok || name == "" {
			return
		}
		if i, ok := at[name]; ok {
			env[i] = kv
			return
		}
		at[name] = len(env)
		env = append(env, kv)
	}
	for _, kv := range settings {
		put(kv)
	}
	for _, kv := range sent {
		put(string(kv))
	}
	return env
}

// getenv returns the value of a variable in env.
func getenv(env []string, name string) string {
	for _, kv := range env {
		if n, v, _ := strings.Cut(kv, "="); n == name {
			return v
		}
	}
	return ""
}

// shellOf returns the shell of a: its own, else /bin/sh, else "". One that only says
// no is none: the sandbox's owner has said who is to work in it, and images often
// have such users.
func shellOf(a account) string {
	for _, sh := range []string{a.shell, "/bin/sh"} {
		switch filepath.Base(sh) {
		case "nologin", "false":
			continue
		}
		if sh != "" && executable(sh) == nil {
			return sh
		}
	}
	return ""
}

func executable(path string) error {
	fi, err := os.Stat(path)
	if err != nil {
		return err
	}
	if fi.IsDir() {
		return unix.EISDIR
	}
	if fi.Mode()&0o111 == 0 {
		return unix.EACCES
	}
	return nil
}

// lookPath finds a program in the folders of path, as execvp(3) does.
func lookPath(path, name string) (string, error) {
	if strings.Contains(name, "/") {
		return name, executable(name)
	}
	err := error(unix.ENOENT)
	for dir := range strings.SplitSeq(path, ":") {
		p := filepath.Join(dir, name)
		switch e := executable(p); {
		case e == nil:
			return p, nil
		case errors.Is(e, unix.EACCES):
			err = e
		}
	}
	return "", err
}

// A program is what a command comes to: a file and its arguments.
type program struct {
	path string
	argv []string
	env  []string
}

// resolve finds out what to run for cmd.Text, or for a login shell. Errors are
// *startError.
func resolve(cmd *Command, a account, settings []string, login bool) (program, error) {
	shell := shellOf(a)
	shown := shell
	if shown == "" {
		shown = "/bin/sh"
	}
	p := program{path: shell, env: environment(a, shown, settings, cmd.Env)}
	text := string(cmd.Text)
	if cmd.Script {
		p.path = scriptShell(p.env)
		shell = p.path
		if getenv(p.env, "LC_ALL") == "" && hasLocale() {
			p.env = append(p.env, "LC_ALL=C.UTF-8")
		}
	}
	switch {
	case login && shell == "":
		return p, &startError{127, "sandbox has no shell"}
	case login:
		p.argv = []string{"-" + filepath.Base(shell)}
	case strings.Contains(text, "\x00"):
		return p, &startError{126, "command contains a NUL byte"}
	default:
		// scp in its old dialect runs scp on this side. Where the image has
		// none, this executable is it.
		if first, _, _ := strings.Cut(strings.TrimLeft(text, " "), " "); first == "scp" {
			if _, err := lookPath(getenv(p.env, "PATH"), "scp"); err != nil {
				path := []byte("PATH=" + getenv(p.env, "PATH") + ":" + ownPrograms)
				p.env = environment(a, shown, settings, append(cmd.Env, path))
			}
		}
		if shell != "" {
			if cmd.Script {
				text = tellDir + text
			}
			p.argv = []string{filepath.Base(shell), "-c", text}
			return p, nil
		}
		argv, err := splitPlain(text)
		if err != nil {
			return p, err
		}
		p.argv = argv
		path, err := lookPath(getenv(p.env, "PATH"), argv[0])
		if err != nil {
			return p, startFailure(argv[0], err)
		}
		p.path = path
	}
	return p, nil
}

// scriptShell returns what runs scripts: bash, else /bin/sh, else "".
func scriptShell(env []string) string {
	if bash, err := lookPath(getenv(env, "PATH"), "bash"); err == nil {
		return bash
	}
	return shellOf(account{})
}

// hasLocale says whether there is a locale that is UTF-8 and otherwise nobody's.
func hasLocale() bool {
	found, _ := filepath.Glob("/usr/lib/locale/C.[uU][tT][fF]*8")
	return len(found) > 0
}

// dirDescriptor is where a script tells the folder that it ends in. It is far from
// those that scripts use themselves.
const dirDescriptor = 19

// tellDir comes before a script, on its first line so that the numbers of lines
// stay. It goes by /proc, since not every shell can name a descriptor of two digits.
var tellDir = fmt.Sprintf("trap '{ pwd -P >/proc/self/fd/%d; } 2>/dev/null' EXIT;", dirDescriptor)

// startFailure words an error of exec as a shell would.
func startFailure(name string, err error) *startError {
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return &startError{127, name + ": not found"}
	case errors.Is(err, unix.E2BIG):
		return &startError{126, name + ": argument list too long"}
	case errors.Is(err, unix.EACCES):
		return &startError{126, name + ": permission denied"}
	case errors.Is(err, unix.EAGAIN):
		return &startError{126, name + ": too many processes in this sandbox"}
	case errors.Is(err, unix.ENOMEM):
		return &startError{126, name + ": out of memory in this sandbox"}
	}
	return &startError{126, fmt.Sprintf("%s: %v", name, err)}
}

// expands says whether a shell would look for files that the word is a pattern of,
// or for a home folder.
func expands(w *syntax.Word) bool {
	for i, part := range w.Parts {
		lit, ok := part.(*syntax.Lit)
		if !ok {
			continue
		}
		if i == 0 && strings.HasPrefix(lit.Value, "~") {
			return true
		}
		escaped := false
		for _, c := range lit.Value {
			if !escaped && strings.ContainsRune("*?[", c) {
				return true
			}
			escaped = c == '\\' && !escaped
		}
	}
	return false
}

// splitPlain splits a command line into words where there is no shell. Quotes
// are understood; what only a shell can do is refused.
func splitPlain(text string) ([]string, error) {
	needsShell := &startError{127, "sandbox has no shell, and this command needs one"}
	f, err := syntax.NewParser().Parse(strings.NewReader(text), "")
	if err != nil || len(f.Stmts) > 1 {
		return nil, needsShell
	}
	if len(f.Stmts) == 0 {
		return nil, &startError{127, "sandbox has no shell, and the command is empty"}
	}
	st := f.Stmts[0]
	call, ok := st.Cmd.(*syntax.CallExpr)
	if !ok || len(st.Redirs) > 0 || len(call.Assigns) > 0 || st.Negated || st.Background || st.Coprocess {
		return nil, needsShell
	}
	plain := true
	syntax.Walk(call, func(n syntax.Node) bool {
		switch n := n.(type) {
		case nil, *syntax.CallExpr, *syntax.Lit, *syntax.SglQuoted, *syntax.DblQuoted, *syntax.Comment:
		case *syntax.Word:
			plain = plain && !expands(n)
		default:
			plain = false
		}
		return plain
	})
	if !plain {
		return nil, needsShell
	}
	argv, err := expand.Fields(&expand.Config{}, call.Args...)
	if err != nil || len(argv) == 0 || argv[0] == "" {
		return nil, needsShell
	}
	return argv, nil
}
