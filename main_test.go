package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/rogpeppe/go-internal/testscript"

	"sandgate/agent"
	"sandgate/agent/scripted"
	"sandgate/gateway"
	"sandgate/gateway/gatetest"
	"sandgate/sandbox/image/imagetest"
	"sandgate/sandbox/testneed"
)

func TestMain(m *testing.M) { os.Exit(gatetest.Main(m)) }

// TestStories runs the stories in testdata/script: real clients against a gateway
// that is a process of its own, with gVisor beneath. A story named after a case
// shows that case. They share one gateway, and each has a sandbox called box in
// its ssh_config; a story that needs a gateway for itself starts it.
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
//	mcp CALLS ANSWERS       calls the tools in a file over MCP, through ssh, and
//	                        writes what came back to another
//	model FILE              serves a scripted model at $MODEL_URL: FILE is a JSON list
//	                        of turns, each a list of {"text": …} or {"tool": NAME,
//	                        "input": …}
//	port NAME...            sets each $NAME to a port that nothing listens on here
//	registry NAME [LOGIN]   runs a registry for images and sets $NAME to its
//	                        address; with LOGIN, USER:PASSWORD, for nobody else
//	push IMAGE PROGRAM...   puts an image with programs of this host into one; see
//	                        pushImage for what else can be in it
//
// ssh, scp, sftp, rsync and sandgate are in PATH and use $SSH_CONFIG. $PORT, $KEY,
// $BOX and $USER_NAME are for clients that read no ssh_config: the gateway's port,
// a private key, the sandbox's login and its owner. $GATEWAY_PID is its process.
func TestStories(t *testing.T) {
	shared := gatetest.Run(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
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
			"registry": serveRegistry, "push": pushImage,
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
	config := filepath.Join(s.dir, ".ssh_config")
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
		if err := os.WriteFile(filepath.Join(s.bin, tool), []byte(wrapper), 0o755); err != nil {
			return err
		}
	}
	return os.WriteFile(config, sshConfig(g, s.box), 0o600)
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

// model serves a scripted model.
func model(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: model FILE")
	}
	var turns [][]struct {
		Text  string
		Tool  string
		Input json.RawMessage
	}
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[0])), &turns))
	var blocks [][]agent.Block
	for i, turn := range turns {
		var said []agent.Block
		for k, b := range turn {
			if b.Tool != "" {
				said = append(said, scripted.Call(fmt.Sprintf("call_%d_%d", i, k), b.Tool, b.Input))
			} else {
				said = append(said, agent.Text(b.Text))
			}
		}
		blocks = append(blocks, said)
	}
	s := httptest.NewServer(scripted.New(blocks...))
	ts.Defer(s.Close)
	ts.Setenv("MODEL_URL", s.URL)
}

func port(ts *testscript.TestScript, neg bool, args []string) {
	ports, err := freePorts(len(args))
	ts.Check(err)
	for i, name := range args {
		ts.Setenv(name, strconv.Itoa(ports[i]))
	}
}

func freePorts(n int) ([]int, error) {
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

var shellBlock = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")

// TestReadme runs all commands of README.md, those in its blocks of shell, one
// after the other in one shell with a home of its own. They use the gateway that
// the README starts, at a free port.
func TestReadme(t *testing.T) {
	testneed.Programs(t, "bash", "ssh", "ssh-keygen", "rsync", "curl", "git", "/usr/bin/python3")
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	script.WriteString(readmePrelude)
	for _, block := range shellBlock.FindAllSubmatch(readme, -1) {
		script.Write(block[1])
	}
	home := t.TempDir()
	g, err := gatetest.New(home)
	if err != nil {
		t.Fatal(err)
	}
	free, err := freePorts(2)
	if err != nil {
		t.Fatal(err)
	}
	g.Port = free[0]
	s := &story{dir: home, bin: filepath.Join(home, ".bin")}
	if err := errors.Join(os.Mkdir(s.bin, 0o755), os.Mkdir(filepath.Join(home, ".ssh"), 0o700)); err != nil {
		t.Fatal(err)
	}
	env := os.Environ()
	setenv := func(key, value string) { env = append(env, key+"="+value) }
	for _, name := range []string{"GOCACHE", "GOPATH", "GOMODCACHE"} { // which depend on the home
		value, err := exec.Command("go", "env", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		setenv(name, strings.TrimSpace(string(value)))
	}
	if err := s.use(g, setenv); err != nil {
		t.Fatal(err)
	}
	// A home's own configuration, as ssh does not go by $HOME.
	config := fmt.Appendf(nil, "IdentityFile %s\nInclude %s/.ssh/config\n", g.Key, home)
	for i := 1; i < len(gatetest.QuietSSH); i += 2 {
		config = append(config, gatetest.QuietSSH[i]+"\n"...)
	}
	if err := os.WriteFile(filepath.Join(home, ".ssh_config"), config, 0o600); err != nil {
		t.Fatal(err)
	}
	setenv("HOME", home)
	setenv("PATH", s.bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	setenv("CGO_ENABLED", "0")
	setenv("SANDGATE_STATE", g.State)
	setenv("SANDGATE_LISTEN", "127.0.0.1:"+strconv.Itoa(g.Port))
	setenv("SANDGATE_ADMIN_KEYS", g.Key+".pub")
	text := strings.NewReplacer("2222", strconv.Itoa(free[0]), "8080", strconv.Itoa(free[1])).Replace(script.String())
	cmd := exec.CommandContext(t.Context(), "bash", "-c", text)
	cmd.Env = env
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
	for _, want := range []string{"exit code 3", "still there", "gvisor"} {
		if !bytes.Contains(out, []byte(want)) {
			t.Errorf("%q is not in the output", want)
		}
	}
}

// readmePrelude comes before the commands of the README. It ends with the first
// that fails. A gateway is started in the background, and at the end it is
// emptied and ended by way of the go command that started it.
const readmePrelude = `
set -euo pipefail
gateway=
go() {
	if [ "$*" != "run . serve" ]; then
		command go "$@"
		return
	fi
	set +x
	command go run . serve >~/serve.out 2>~/serve.err &
	gateway=$!
	until grep -q 'listens on' ~/serve.out; do
		kill -0 $gateway
		sleep 0.1
	done
	set -x
}
leave() {
	code=$?
	set +ex
	[ -n "$gateway" ] || exit $code
	ssh -p 2222 gate@127.0.0.1 rm --all --force
	[ $code = 0 ] || tail -n 50 ~/serve.err
	served=$(ps -o pid= --ppid $gateway)
	kill $gateway
	while kill -0 $served; do sleep 0.1; done 2>/dev/null
	exit $code
}
trap leave EXIT
set -x
`

// TestReadmeFlags compares the settings that README.md lists with those that
// there are.
func TestReadmeFlags(t *testing.T) {
	path, err := gatetest.Program()
	if err != nil {
		t.Fatal(err)
	}
	help, err := exec.Command(path, "serve", "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	find := func(text []byte, pattern string) []string {
		var found []string
		for _, m := range regexp.MustCompile(pattern).FindAllSubmatch(text, -1) {
			found = append(found, string(m[1]))
		}
		slices.Sort(found)
		return found
	}
	there, listed := find(help, `(?m)^  (?:    |-[^h], )--([a-z-]+)`), find(readme, "(?m)^\\| `--([a-z-]+)`")
	if !slices.Equal(there, listed) {
		t.Errorf("README.md lists %q, there are %q", listed, there)
	}
}

// TestSettingsFlags shows that the file of settings has all flags of serve but the
// one that names it.
func TestSettingsFlags(t *testing.T) {
	path, err := gatetest.Program()
	if err != nil {
		t.Fatal(err)
	}
	help, err := exec.Command(path, "serve", "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	keys := make(map[string]bool)
	for _, f := range reflect.VisibleFields(reflect.TypeFor[gateway.Settings]()) {
		keys[f.Tag.Get("toml")] = true
	}
	for _, m := range regexp.MustCompile(`(?m)^  (?:    |-[^h], )--([a-z-]+)`).FindAllSubmatch(help, -1) {
		if flag := string(m[1]); flag != "config" && !keys[flag] {
			t.Errorf("the file of settings lacks %q", flag)
		}
	}
}

// TestImports compares the packages' imports of each other with the arrows that
// the design has. A new arrow is a change of the design.
func TestImports(t *testing.T) {
	arrows := map[string]string{
		"sandgate":                     "gateway gateway/daemon gateway/demo sandbox/guest sandbox/gvisor sandbox/nat",
		"sandgate/agent":               "",
		"sandgate/agent/scripted":      "agent",
		"sandgate/gateway":             "agent gateway/redact sandbox sandbox/guest sandbox/guest/tool store",
		"sandgate/gateway/daemon":      "gateway gateway/packaging sandbox sandbox/docker sandbox/gvisor store",
		"sandgate/gateway/packaging":   "",
		"sandgate/gateway/demo":        "agent agent/scripted",
		"sandgate/gateway/gatetest":    "sandbox/testneed",
		"sandgate/gateway/redact":      "",
		"sandgate/sandbox":             "sandbox/guest store",
		"sandgate/sandbox/gvisor":      "sandbox sandbox/guest sandbox/image sandbox/nat",
		"sandgate/sandbox/image":       "sandbox",
		"sandgate/sandbox/docker":      "sandbox sandbox/guest sandbox/nat",
		"sandgate/sandbox/nat":         "",
		"sandgate/sandbox/drivertest":  "sandbox sandbox/guest sandbox/guest/tool sandbox/testneed",
		"sandgate/sandbox/guest":       "sandbox/guest/files sandbox/guest/tool",
		"sandgate/sandbox/guest/files": "",
		"sandgate/sandbox/guest/tool":  "",
		"sandgate/store":               "",

		"sandgate/sandbox/image/imagetest": "",
		"sandgate/sandbox/testneed":        "",
	}
	out, err := exec.Command("go", "list", "-f", "{{.ImportPath}} {{join .Imports \" \"}}", "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		from, imports, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.Contains(from, "/testdata/") {
			continue
		}
		var to []string
		for _, i := range strings.Fields(imports) {
			if own, ok := strings.CutPrefix(i, "sandgate/"); ok {
				to = append(to, own)
			}
		}
		if got := strings.Join(to, " "); got != arrows[from] {
			t.Errorf("%s imports %q, the design has %q", from, got, arrows[from])
		}
	}
}

// callTools calls tools of the sandbox box over MCP, one after the other on one
// connection, by way of ssh. Each line of a file is a tool and its arguments as JSON;
// what came back is written to another file.
func callTools(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: mcp CALLS ANSWERS")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	client := mcp.NewClient(&mcp.Implementation{Name: "story", Version: "1"}, nil)
	ssh := exec.Command(filepath.Join(storyOf(ts).bin, "ssh"), "-s", "box", "mcp")
	session, err := client.Connect(ctx, &mcp.CommandTransport{Command: ssh}, nil)
	ts.Check(err)
	defer session.Close()
	var answers strings.Builder
	for line := range strings.Lines(ts.ReadFile(args[0])) {
		name, raw, _ := strings.Cut(strings.TrimSpace(line), " ")
		r, err := session.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: json.RawMessage(raw)})
		ts.Check(err)
		fmt.Fprintf(&answers, "== %s, error %v\n", name, r.IsError)
		for _, c := range r.Content {
			if text, ok := c.(*mcp.TextContent); ok {
				answers.WriteString(text.Text + "\n")
			}
		}
	}
	ts.Logf("%s", answers.String())
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(answers.String()), 0o600))
}

// serveRegistry is the story's command registry: it runs one until the story ends,
// whose address is in a variable.
func serveRegistry(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 || len(args) > 2 {
		ts.Fatalf("usage: registry NAME [USER:PASSWORD]")
	}
	user, password := "", ""
	if len(args) == 2 {
		user, password, _ = strings.Cut(args[1], ":")
	}
	r := imagetest.Serve(user, password)
	ts.Defer(r.Close)
	s := storyOf(ts)
	if s.registries == nil {
		s.registries = make(map[string]*imagetest.Registry)
	}
	s.registries[r.Address] = r
	ts.Setenv(args[0], r.Address)
}

// pushImage is the story's command push: it makes an image of programs of this host
// and pushes it. USER=, DIR=, CMD= and ENV= set what is in its configuration; FOLDER/:UID
// and FILE:UID add what belongs to somebody, of the story's own files if there is
// one of that name; LINK>TARGET adds a symbolic link.
func pushImage(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: push IMAGE [PROGRAM|USER=…|DIR=…|ENV=…|ENTRYPOINT=…|CMD=…|FILE:UID|LINK>TARGET]...")
	}
	var image imagetest.Image
	var files []imagetest.File
	for _, word := range args[1:] {
		key, value, isSetting := strings.Cut(word, "=")
		file, uid, isFile := strings.Cut(word, ":")
		link, target, isLink := strings.Cut(word, ">")
		switch {
		case isLink:
			files = append(files, imagetest.File{Name: link, Target: target})
		case isSetting && key == "USER":
			image.Config.User = value
		case isSetting && key == "DIR":
			image.Config.WorkingDir = value
		case isSetting && key == "ENV":
			image.Config.Env = append(image.Config.Env, value)
		case isSetting && key == "ENTRYPOINT":
			image.Config.Entrypoint = append(image.Config.Entrypoint, value)
		case isSetting && key == "CMD":
			image.Config.Cmd = append(image.Config.Cmd, value)
		case isFile:
			id, err := strconv.Atoi(uid)
			ts.Check(err)
			f := imagetest.File{Name: strings.TrimPrefix(file, "/"), UID: id, GID: id}
			if text, err := os.ReadFile(ts.MkAbs(f.Name)); err == nil {
				f.Text = string(text)
			}
			files = append(files, f)
		default:
			image.Programs = append(image.Programs, word)
		}
	}
	if len(files) > 0 {
		image.Layers = append(image.Layers, files)
	}
	img, err := image.Build()
	ts.Check(err)
	registry, name, _ := strings.Cut(args[0], "/")
	_, err = storyOf(ts).registries[registry].Push(name, img)
	ts.Check(err)
}
