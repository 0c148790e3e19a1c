package docker_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"sandgate/sandbox"
	"sandgate/sandbox/docker"
	"sandgate/sandbox/drivertest"
	"sandgate/sandbox/testneed"
)

// program is what runs as the guest. It is not this test, since that may be linked
// with libc or with the race detector.
var program string

// testImage is made of this host's programs: where tests run, none can be pulled.
const testImage = "sandgate-test:host"

// ourRuntime is the name under which test.sh registers our own runsc.
const ourRuntime = "sandgate"

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "sandgate-program-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "program")
	build := exec.Command("go", "build", "-o", program, "./testdata/program")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%s%v\n", out, err)
		return 1
	}
	return m.Run()
}

// An engine is one to test with.
type engine struct{ host string }

// theEngine returns the engine that DOCKER_HOST names, with testImage.
func theEngine(t testing.TB) engine {
	t.Helper()
	e := engine{os.Getenv("DOCKER_HOST")}
	if e.host == "" {
		testneed.Lacking(t, "a Docker engine, named by DOCKER_HOST; test.sh starts one")
	}
	imported.Do(func() { e.importImage(t) })
	return e
}

var imported sync.Once

// importImage gives the engine testImage.
func (e engine) importImage(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("dpkg-query"); err != nil {
		testneed.Lacking(t, "dpkg-query: the image is made of Debian's packages")
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(drivertest.HostRoot(w, "procps")) }()
	cmd := e.command("import", "-", testImage)
	cmd.Stdin = r
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("import: %v\n%s", err, out)
	}
}

// command is one of the engine's own client.
func (e engine) command(args ...string) *exec.Cmd {
	cmd := exec.Command("docker", args...)
	cmd.Env = append(os.Environ(), "DOCKER_HOST="+e.host)
	return cmd
}

// docker runs the engine's own client and returns what it wrote.
func (e engine) docker(t testing.TB, args ...string) string {
	t.Helper()
	var stderr bytes.Buffer
	cmd := e.command(args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("docker %q: %v\n%s", args, err, &stderr)
	}
	return strings.TrimSpace(string(out))
}

// container returns the container of a sandbox, or nothing.
func (e engine) container(id sandbox.ID) (string, error) {
	out, err := e.command("ps", "-aq", "--filter", "label=sandgate.sandbox="+string(id)).Output()
	return strings.TrimSpace(string(out)), err
}

// A withRuntime is a driver whose sandboxes have a runtime unless they ask for one.
type withRuntime struct {
	*docker.Driver
	runtime string
}

func (d withRuntime) Create(ctx context.Context, spec sandbox.Spec) error {
	spec.Runtime = cmp.Or(spec.Runtime, d.runtime)
	return d.Driver.Create(ctx, spec)
}

// at returns a host on the engine. cfg may have more than where things are.
func (e engine) at(t *testing.T, name string, cfg docker.Config, runtime string, except map[string]string) drivertest.Host {
	cfg.State, cfg.Executable = e.state(t), program
	cfg.Host = cmp.Or(cfg.Host, e.host)
	return drivertest.Host{
		Name:   name,
		Except: except,
		Image:  testImage,
		Memory: true, PIDs: true, CPUs: true, NoNewPrivs: true, Pauses: true,
		Open: func() (sandbox.Driver, error) {
			d, err := docker.New(cfg, slog.New(slog.NewTextHandler(t.Output(), nil)))
			return withRuntime{d, runtime}, err
		},
		Crash: func(id sandbox.ID) error {
			name, err := e.container(id)
			if err != nil {
				return err
			}
			return e.command("kill", name).Run()
		},
		Traces: func(id sandbox.ID) (found []string) {
			names, err := e.command("ps", "-a", "--filter", "name="+string(id), "--format", "{{.Names}}").Output()
			if err != nil {
				found = append(found, err.Error())
			}
			for name := range strings.FieldsSeq(string(names)) {
				found = append(found, "container "+name)
			}
			filepath.WalkDir(cfg.State, func(path string, _ os.DirEntry, _ error) error {
				if strings.Contains(path, string(id)) {
					found = append(found, path)
				}
				return nil
			})
			return found
		},
	}
}

// state returns a state folder for a driver, and fails the test if any of its
// containers is there at the end.
func (e engine) state(t *testing.T) string {
	dir := t.TempDir()
	t.Cleanup(func() {
		instance, err := os.ReadFile(filepath.Join(dir, "instance"))
		if err != nil {
			return // nothing was made
		}
		if left := e.docker(t, "ps", "-aq", "--filter", "label=sandgate.gateway="+strings.TrimSpace(string(instance))); left != "" {
			t.Errorf("left on the engine: %s", left)
		}
	})
	return dir
}

// needsOurRuntime skips the test on an engine without our own runtime.
func (e engine) needsOurRuntime(t *testing.T) {
	t.Helper()
	if !strings.Contains(e.docker(t, "info", "--format", "{{json .Runtimes}}"), `"`+ourRuntime+`"`) {
		testneed.Lacking(t, "an engine with our own runtime registered as "+ourRuntime+", as README.md says")
	}
}

// What is different on an engine: the reasons are in the table of package
// drivertest.
var (
	onEngine = map[string]string{
		"Lifecycle/HostnameKept": "the engine writes the file at each start",
		"Limits/PIDsOfUser":      "there is one limit for root and others",
	}
	onRunc = with(onEngine, map[string]string{
		"Hardening/VsockSocket": "engines before 23 do not filter these sockets",
	})
	onRunsc = with(onEngine, map[string]string{
		"Hardening/SysWrites": "gVisor shows control groups of its own",
		"Recorded/OOM":        "the sandbox ends with the job, and nobody tells the next guest why",
	})
	onCopy = with(onRunc, map[string]string{
		"Socket/ReadOnly": "the folder is the sandbox's own",
		"Socket/Program":  "the program is the sandbox's own copy",
	})
)

func with[V any](a, b map[string]V) map[string]V {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

func TestRunc(t *testing.T) {
	e := theEngine(t)
	drivertest.Run(t, func(t *testing.T) drivertest.Host { return e.at(t, "docker, runc", docker.Config{}, "", onRunc) })
}

// TestRunsc runs the suite with our own runtime.
func TestRunsc(t *testing.T) {
	e := theEngine(t)
	e.needsOurRuntime(t)
	drivertest.Run(t, func(t *testing.T) drivertest.Host {
		return e.at(t, "docker, runsc", docker.Config{}, ourRuntime, onRunsc)
	})
}

// TestCopy runs the suite as on an engine on another host.
func TestCopy(t *testing.T) {
	e := theEngine(t)
	drivertest.Run(t, func(t *testing.T) drivertest.Host {
		return e.at(t, "docker, remote", docker.Config{Copy: true}, "", onCopy)
	})
}
