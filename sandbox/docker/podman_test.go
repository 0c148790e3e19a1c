package docker_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandgate/sandbox/docker"
	"sandgate/sandbox/drivertest"
	"sandgate/sandbox/testneed"
)

// TestPodman runs what depends on the engine on Podman, which has Docker's API.
func TestPodman(t *testing.T) {
	e := startPodman(t)
	drivertest.Run(t, func(t *testing.T) drivertest.Host {
		host := e.at(t, "podman", docker.Config{}, "", onRunc)
		host.Only = []string{"Stdio", "Lifecycle", "Network"}
		return host
	})
}

// startPodman starts a Podman of the test's own, with testImage.
func startPodman(t *testing.T) engine {
	t.Helper()
	if _, err := exec.LookPath("podman"); err != nil || os.Geteuid() != 0 {
		testneed.Lacking(t, "root and podman, to start an engine with")
	}
	dir, err := os.MkdirTemp("", "sg-podman-") // short, for its sockets
	if err != nil {
		t.Fatal(err)
	}
	// By itself it asks for more than some hosts give.
	var files, processes unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	if err := unix.Getrlimit(unix.RLIMIT_NPROC, &processes); err != nil {
		t.Fatal(err)
	}
	most := func(limit uint64) string {
		n := min(limit, 16384)
		return fmt.Sprintf("%d:%d", n, n)
	}
	settings := map[string]string{
		"containers.conf": fmt.Sprintf("[containers]\ndefault_ulimits = [\"nofile=%s\", \"nproc=%s\"]\n[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\nruntime = \"runc\"\n",
			most(files.Max), most(processes.Max)),
		"storage.conf": fmt.Sprintf("[storage]\ndriver = \"\"\nrunroot = %q\ngraphroot = %q\n", dir+"/run", dir+"/data"),
	}
	env := os.Environ()
	for name, text := range settings {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		env = append(env, map[string]string{"containers.conf": "CONTAINERS_CONF=", "storage.conf": "CONTAINERS_STORAGE_CONF="}[name]+path)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	e := engine{"unix://" + dir + "/podman.sock"}
	service := exec.Command("podman", "--log-level=error", "system", "service", "--time=0", e.host)
	service.Env, service.Stdout, service.Stderr = env, log, log
	service.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	t.Cleanup(func() {
		d := daemon{engine: e, t: t, dir: dir}
		d.unmount()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := service.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for id := range strings.FieldsSeq(e.docker(t, "ps", "-aq")) {
			e.docker(t, "rm", "-f", id)
		}
		service.Process.Signal(syscall.SIGTERM)
		service.Wait()
	})
	for end := time.Now().Add(2 * patience); e.command("version").Run() != nil; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			said, _ := os.ReadFile(filepath.Join(dir, "log"))
			t.Fatalf("Podman does not start:\n%s", said)
		}
	}
	e.importImage(t)
	return e
}
