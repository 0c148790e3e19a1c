package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sandgate/gateway"
	"sandgate/gateway/gatetest"
	"sandgate/gateway/story"
	"sandgate/sandbox/testneed"
)

// Stories wait more than they work, so more of them are told at a time than there are
// processors, unless -parallel says how many.
func TestMain(m *testing.M) {
	flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0)))
	os.Exit(gatetest.Main(m))
}

// TestStories runs the stories in testdata/script, which package story explains. One
// that is named after a case shows that case.
func TestStories(t *testing.T) { story.Run(t, "testdata/script") }

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
		"sandgate/gateway/story":       "agent agent/scripted gateway/gatetest sandbox/image/imagetest sandbox/testneed",
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
	free, err := gatetest.FreePorts(2)
	if err != nil {
		t.Fatal(err)
	}
	g.Port = free[0]
	bin := filepath.Join(home, ".bin")
	if err := errors.Join(os.Mkdir(bin, 0o755), os.Mkdir(filepath.Join(home, ".ssh"), 0o700)); err != nil {
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
	if err := story.Clients(g, home, bin, "", setenv); err != nil {
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
	setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
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
