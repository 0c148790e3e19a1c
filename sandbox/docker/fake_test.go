package docker_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"sandgate/sandbox"
	"sandgate/sandbox/docker"
)

// A fake is an engine that says what a test wants to hear. What it is not told
// about is not found.
type fake struct {
	*docker.Driver
	host    string
	answers map[string]any // by method and path, without version and the gateway's own part of names

	mu    sync.Mutex
	asked map[string]string // bodies, by the same
}

// A failure is an answer of the kind of that status.
type failure struct {
	status  int
	message string
}

var (
	versioned = regexp.MustCompile(`^/v[0-9.]+/`)
	named     = regexp.MustCompile(`sandgate-[0-9a-f]{16}-[0-9a-f]{16}`)
)

// startFake starts an engine and opens a driver on it.
func startFake(t *testing.T, answers map[string]any) *fake {
	f := &fake{answers: answers, asked: make(map[string]string)}
	server := httptest.NewServer(http.HandlerFunc(f.answer))
	t.Cleanup(server.Close)
	f.host = "tcp://" + strings.TrimPrefix(server.URL, "http://")
	f.Driver = open(t, docker.Config{Host: f.host})
	return f
}

func (f *fake) answer(w http.ResponseWriter, r *http.Request) {
	key := r.Method + " " + named.ReplaceAllString(versioned.ReplaceAllString(r.URL.Path, "/"), "BOX")
	body, _ := io.ReadAll(r.Body)
	f.mu.Lock()
	f.asked[key] = string(body)
	f.mu.Unlock()
	w.Header().Set("Api-Version", "1.41")
	w.Header().Set("Content-Type", "application/json")
	answer, ok := f.answers[key]
	switch key {
	case "GET /_ping":
		return
	case "GET /version":
		answer, ok = map[string]string{"ApiVersion": "1.41"}, true
	}
	if !ok {
		answer = failure{http.StatusNotFound, "no " + key}
	}
	if no, ok := answer.(failure); ok {
		w.WriteHeader(no.status)
		answer = map[string]string{"message": no.message}
	}
	if answer == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	json.NewEncoder(w).Encode(answer)
}

// body returns what was sent with a request, or nothing if there was none.
func (f *fake) body(key string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[key]
}

// info is what an engine says of itself.
func info(changes map[string]any) map[string]any {
	i := map[string]any{
		"OSType": "linux", "CPUCfsQuota": true, "MemoryLimit": true, "PidsLimit": true,
		"Runtimes": map[string]any{"runc": map[string]any{}}, "Driver": "overlay2",
	}
	for k, v := range changes {
		i[k] = v
	}
	return i
}

// Where the network full cannot be what it is elsewhere it is refused.
func TestNetworkRefused(t *testing.T) {
	for want, changes := range map[string]map[string]any{
		"without root":    {"SecurityOptions": []string{"name=seccomp,profile=builtin", "name=rootless"}},
		"virtual machine": {"OperatingSystem": "Docker Desktop"},
		"no runtime runc": {"Runtimes": map[string]any{"runsc": map[string]any{}}},
	} {
		f := startFake(t, map[string]any{"GET /info": info(changes)})
		err := f.Create(t.Context(), sandbox.Spec{ID: sandbox.NewID(), Image: "x", Network: sandbox.NetworkFull})
		if _, ok := errors.AsType[*sandbox.UnsupportedError](err); !ok || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--network none") {
			t.Errorf("want %q: %v", want, err)
		}
	}
}

// A limit on the disk is passed on, and where the engine has none the sandbox is
// not made without it.
func TestDiskLimit(t *testing.T) {
	spec := sandbox.Spec{Image: "x", Limits: sandbox.Limits{Disk: 5 << 30}}
	answers := map[string]any{
		"GET /info":               info(nil),
		"GET /images/x/json":      map[string]any{"Id": "sha256:1", "Config": map[string]any{}},
		"POST /containers/create": map[string]any{"Id": "1"},
	}
	f := startFake(t, answers)
	spec.ID = sandbox.NewID()
	if err := f.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if body, want := f.body("POST /containers/create"), fmt.Sprintf(`"StorageOpt":{"size":"%d"}`, spec.Limits.Disk); !strings.Contains(body, want) {
		t.Errorf("the engine was not asked for %s: %s", want, body)
	}

	const create = "POST /containers/create"
	for name, change := range map[string]map[string]any{
		"Docker":     {create: failure{http.StatusInternalServerError, "--storage-opt is supported only for overlay over xfs with 'pquota' mount option"}},
		"Podman":     {create: failure{http.StatusInternalServerError, "storage option overlay.size and overlay.inodes only supported for backingFS XFS. Found extfs"}},
		"containerd": {"GET /info": info(map[string]any{"DriverStatus": [][2]string{{"driver-type", "io.containerd.snapshotter.v1"}}})}, // says nothing
	} {
		f := startFake(t, with(answers, change))
		spec.ID = sandbox.NewID()
		err := f.Create(t.Context(), spec)
		if _, ok := errors.AsType[*sandbox.UnsupportedError](err); !ok || !strings.Contains(err.Error(), "overlay2") || !strings.Contains(err.Error(), "--disk") {
			t.Errorf("%s: got %v", name, err)
		}
		if list, err := f.List(t.Context()); err == nil && len(list) > 0 {
			t.Errorf("%s left: %v", name, list)
		}
	}
}

// What an engine cannot do is found out without a sandbox.
func TestExamine(t *testing.T) {
	status := func(key, value string) [][2]string { return [][2]string{{key, value}} }
	for name, c := range map[string]struct {
		info    map[string]any
		finding string
		ok      bool
		says    string
	}{
		"no control groups": {map[string]any{"MemoryLimit": false}, "docker, limit on memory", false, "does not enforce"},
		"ext4":              {map[string]any{"DriverStatus": status("Backing Filesystem", "extfs")}, "docker, limit on disk", false, "overlay2 cannot"},
		"xfs":               {map[string]any{"DriverStatus": status("Backing Filesystem", "xfs")}, "docker, limit on disk", true, "pquota"},
		"btrfs":             {map[string]any{"Driver": "btrfs"}, "docker, limit on disk", true, "btrfs enforces"},
		"containerd":        {map[string]any{"Driver": "btrfs", "DriverStatus": status("driver-type", "io.containerd.snapshotter.v1")}, "docker, limit on disk", false, "btrfs cannot"},
		"elsewhere":         {nil, "docker, workspaces", false, "shares folders"},
		"rootless":          {map[string]any{"SecurityOptions": []string{"name=rootless"}}, "docker, network full", false, "without root"},
	} {
		f := startFake(t, map[string]any{"GET /info": info(c.info)})
		found, works := docker.Examine(t.Context(), docker.Config{Host: f.host})
		i := slices.IndexFunc(found, func(f sandbox.Finding) bool { return f.Name == c.finding })
		if !works || i < 0 || found[i].OK != c.ok || !strings.Contains(found[i].Says, c.says) {
			t.Errorf("%s: %+v", name, found)
		}
	}
}
