// Package story tells stories of testscript: real clients against a gateway that is
// a process of its own, with gVisor beneath. They share one gateway, and each has a
// sandbox called box in its ssh_config; a story that needs a gateway for itself starts
// it.
//
// Beyond what testscript has, stories can say:
//
//	rc N COMMAND ARGS...    COMMAND must end with the exit code N; several may be
//	                        named, as in 137,255
//	need WHAT...            skips the story, or fails it where nothing may be
//	                        skipped, unless each WHAT is a program in PATH or,
//	                        as in python:paramiko, a module of /usr/bin/python3
//	                        or a device that is there
//	gateway start FLAGS...  starts a gateway of the story's own in $WORK/state; once
//	                        more restarts it on the same port; variables of its
//	                        environment, NAME=VALUE, may come before the flags
//	gateway kill|stop       kills it with SIGKILL, or stops it with SIGTERM
//	within D COMMAND...     COMMAND is repeated until it ends with 0, at most for D
//	talk LINES ARGS...      runs ssh ARGS and types what a file says, with a line
//	                        each: > TEXT types a line, < TEXT waits until that has
//	                        been shown, kill kills it; without that it has to end
//	                        by itself, with 0. stdout is all that it has shown
//	mcp CALLS ANSWERS       calls the tools in a file over MCP, through ssh, and
//	                        writes what came back to another
//	model FILE              serves a scripted model at $MODEL_URL: FILE is a JSON list
//	                        of turns, each a list of {"text": …} or {"tool": NAME,
//	                        "input": …}
//	port NAME...            sets each $NAME to a port that nothing listens on here
//	registry NAME [LOGIN]   runs a registry for images and sets $NAME to its
//	                        address; with LOGIN, USER:PASSWORD, for nobody else
//	nowhere VALUES WHERE... none of the values in a file is, in any writing, in those
//	                        files and folders, stdout or stderr, or on a command line
//	push IMAGE PROGRAM...   puts an image with programs of this host into one; see
//	                        pushImage for what else can be in it
//
// ssh, scp, sftp, rsync and sandgate are in PATH and use $SSH_CONFIG. $PORT, $KEY,
// $BOX and $USER_NAME are for clients that read no ssh_config: the gateway's port,
// a private key, the sandbox's login and its owner. $GATEWAY_PID is its process.
package story

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"sandgate/gateway/gatetest"
	"sandgate/sandbox/image/imagetest"
	"sandgate/sandbox/testneed"
)

// Run tells the stories in a folder, each as a subtest.
func Run(t *testing.T, dir string) {
	shared := gatetest.Run(t)
	testscript.Run(t, testscript.Params{
		Dir:                 dir,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup:               func(env *testscript.Env) error { return setupStory(env, shared) },
		Condition: func(name string) (bool, error) {
			if name != "root" {
				return false, fmt.Errorf("no condition %q", name)
			}
			return os.Geteuid() == 0, nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"rc": rc, "mcp": callTools, "need": need, "gateway": ownGateway, "within": within, "port": port, "model": model,
			"talk": talk, "registry": serveRegistry, "push": pushImage, "nowhere": nowhere,
		},
	})
}

// A story is what the commands of one script share. It is the script's value of
// storyKey.
type story struct {
	t      testscript.T
	dir    string
	box    string
	bin    string
	shared *gatetest.Gateway
	own    *gatetest.Gateway // nil until the story starts one

	registries map[string]*imagetest.Registry // by address
}

type storyKey struct{}

func storyOf(ts *testscript.TestScript) *story { return ts.Value(storyKey{}).(*story) }

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// setupStory gives a story its sandbox's name, an ssh_config, and clients that use
// it.
func setupStory(env *testscript.Env, g *gatetest.Gateway) error {
	name := strings.TrimPrefix(filepath.Base(env.WorkDir), "script-")
	s := &story{
		t:      env.T(),
		dir:    env.WorkDir,
		box:    strings.Trim(notInNames.ReplaceAllString(strings.ToLower(name), "-"), "-"),
		bin:    filepath.Join(env.WorkDir, ".bin"),
		shared: g,
	}
	env.Values[storyKey{}] = s
	if err := os.Mkdir(s.bin, 0o755); err != nil {
		return err
	}
	path, err := gatetest.Program()
	if err != nil {
		return err
	}
	if err := os.Symlink(path, filepath.Join(s.bin, "sandgate")); err != nil {
		return err
	}
	env.Setenv("PATH", s.bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	env.Setenv("HOME", env.WorkDir)
	env.Setenv("BOX", s.box)
	env.Setenv("USER_NAME", g.Admin)
	env.Setenv("LC_ALL", "C.UTF-8")
	env.Setenv("DOCKER_HOST", os.Getenv("DOCKER_HOST"))
	env.Defer(func() {
		exec.Command("ssh", g.SSHArgs("gate", "rm", "--force", s.box)...).Run()
	})
	return s.use(g, env.Setenv)
}

// use makes the story's clients use a gateway.
func (s *story) use(g *gatetest.Gateway, setenv func(key, value string)) error {
	return Clients(g, s.dir, s.bin, s.box, setenv)
}

// Clients puts ssh, scp and sftp that use a gateway into the folder bin, and their
// ssh_config, in which box is a sandbox's name, into dir. It sets the variables that
// stories have; PATH is the caller's matter.
func Clients(g *gatetest.Gateway, dir, bin, box string, setenv func(key, value string)) error {
	config := filepath.Join(dir, ".ssh_config")
	setenv("SSH_CONFIG", config)
	setenv("PORT", strconv.Itoa(g.Port))
	setenv("GATEWAY_PID", strconv.Itoa(g.PID))
	setenv("KEY", g.Key)
	setenv("SANDGATE_HOST", "127.0.0.1:"+strconv.Itoa(g.Port))
	for _, tool := range []string{"ssh", "scp", "sftp"} {
		real, err := exec.LookPath(tool)
		if err != nil {
			continue
		}
		wrapper := fmt.Sprintf("#!/bin/sh\nexec %s -F %s \"$@\"\n", real, config)
		if err := os.WriteFile(filepath.Join(bin, tool), []byte(wrapper), 0o755); err != nil {
			return err
		}
	}
	return os.WriteFile(config, sshConfig(g, box), 0o600)
}

// sshConfig is an ssh_config in which box is the sandbox of that name and gate the
// lobby; NAME@gate is any other.
func sshConfig(g *gatetest.Gateway, box string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "Host box\n  User %s\nHost gate\n  User gate\nHost *\n  HostName 127.0.0.1\n  Port %d\n  IdentityFile %s\n", box, g.Port, g.Key)
	for i := 1; i < len(gatetest.QuietSSH); i += 2 {
		fmt.Fprintf(&b, "  %s\n", strings.Replace(gatetest.QuietSSH[i], "=", " ", 1))
	}
	return b.Bytes()
}

func rc(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: rc N COMMAND ARGS...")
	}
	got := 0
	err := ts.Exec(args[1], args[2:]...)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		got = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	for want := range strings.SplitSeq(args[0], ",") {
		if want == strconv.Itoa(got) {
			return
		}
	}
	ts.Fatalf("exit code %d, want %s", got, args[0])
}

func need(ts *testscript.TestScript, neg bool, args []string) {
	for _, what := range args {
		var err error
		if module, ok := strings.CutPrefix(what, "python:"); ok {
			err = exec.Command("/usr/bin/python3", "-c", "import "+module).Run()
		} else if what == "engine" { // as test.sh starts one
			err = exec.Command("docker", "version").Run()
		} else if strings.HasPrefix(what, "/dev/") {
			var f *os.File
			if f, err = os.OpenFile(what, os.O_RDWR, 0); err == nil {
				f.Close()
			}
		} else {
			_, err = exec.LookPath(what)
		}
		switch {
		case err != nil && testneed.All():
			ts.Fatalf("needs %s", what)
		case err != nil:
			storyOf(ts).t.Skip("needs " + what)
		}
	}
}

func within(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: within DURATION COMMAND ARGS...")
	}
	d, err := time.ParseDuration(args[0])
	if err != nil {
		ts.Fatalf("%v", err)
	}
	for deadline := time.Now().Add(d); ; time.Sleep(100 * time.Millisecond) {
		err := ts.Exec(args[1], args[2:]...)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("not within %v: %v", d, err)
		}
	}
}

func port(ts *testscript.TestScript, neg bool, args []string) {
	ports, err := gatetest.FreePorts(len(args))
	ts.Check(err)
	for i, name := range args {
		ts.Setenv(name, strconv.Itoa(ports[i]))
	}
}

var isVariable = regexp.MustCompile(`^[A-Z_]+=`)

func ownGateway(ts *testscript.TestScript, neg bool, args []string) {
	s := storyOf(ts)
	if neg || len(args) == 0 || len(args) > 1 && args[0] != "start" {
		ts.Fatalf("usage: gateway start [NAME=VALUE...] [FLAGS...]|kill|stop")
	}
	switch args[0] {
	case "start":
		if s.own == nil {
			own, err := gatetest.New(s.dir)
			ts.Check(err)
			s.own = own
			ts.Defer(func() { ts.Check(own.Stop()) })
		}
		s.own.Env, s.own.Flags = nil, args[1:]
		for len(s.own.Flags) > 0 && isVariable.MatchString(s.own.Flags[0]) {
			s.own.Env, s.own.Flags = append(s.own.Env, s.own.Flags[0]), s.own.Flags[1:]
		}
		ts.Check(s.own.Start())
		ts.Check(s.use(s.own, ts.Setenv))
	case "kill":
		s.own.Signal(syscall.SIGKILL)
	case "stop":
		ts.Check(s.own.Signal(syscall.SIGTERM))
	default:
		ts.Fatalf("usage: gateway start|kill|stop")
	}
}
