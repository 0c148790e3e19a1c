package docker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"sandgate/sandbox"
	"sandgate/sandbox/docker"
	"sandgate/sandbox/drivertest"
	"sandgate/sandbox/testneed"
)

func open(t *testing.T, cfg docker.Config) *docker.Driver {
	t.Helper()
	cfg.State, cfg.Executable = t.TempDir(), program
	d, err := docker.New(cfg, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// start makes and starts a sandbox.
func start(t *testing.T, d *docker.Driver, spec sandbox.Spec) *drivertest.Shell {
	t.Helper()
	_, sh := drivertest.Start(t, d, spec)
	return sh
}

// Without an engine the driver opens and says what is wrong when it is used.
func TestNoEngine(t *testing.T) {
	d := open(t, docker.Config{Host: "unix://" + t.TempDir() + "/none.sock"})
	if list, err := d.List(t.Context()); len(list) > 0 || err != nil {
		t.Errorf("%v, %v", list, err)
	}
	id := sandbox.NewID()
	if err := d.Remove(t.Context(), id); err != nil {
		t.Error(err)
	}
	err := d.Create(t.Context(), sandbox.Spec{ID: id, Image: testImage})
	if lost, ok := errors.AsType[*sandbox.UnavailableError](err); !ok || lost.Remedy == "" {
		t.Errorf("Create: %v", err)
	}
}

// What a driver cannot make is said before anything is made.
func TestCheck(t *testing.T) {
	local := open(t, docker.Config{Host: "unix:///nowhere.sock"})
	remote := open(t, docker.Config{Host: "tcp://127.0.0.1:1"})
	for _, c := range []struct {
		d    *docker.Driver
		spec sandbox.Spec
		want string
	}{
		{local, sandbox.Spec{Image: sandbox.ImageHost}, "--image"},
		{local, sandbox.Spec{Image: "x", Workspace: "/srv"}, ""},
		{remote, sandbox.Spec{Image: "x", Workspace: "/srv"}, "shares folders"},
		{remote, sandbox.Spec{Image: "x"}, ""},
	} {
		err := c.d.Check(c.spec)
		_, ok := errors.AsType[*sandbox.UnsupportedError](err)
		if ok != (c.want != "") || ok && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.spec, err, c.want)
		}
	}
}

func TestRuntimeUnknown(t *testing.T) {
	e := theEngine(t)
	d := open(t, docker.Config{Host: e.host})
	err := d.Create(t.Context(), sandbox.Spec{ID: sandbox.NewID(), Image: testImage, Runtime: "none-such"})
	if _, ok := errors.AsType[*sandbox.UnsupportedError](err); !ok || !strings.Contains(err.Error(), "runc") {
		t.Errorf("got %v", err)
	}
}

// Two gateways on one engine do not see each other's sandboxes.
func TestForeign(t *testing.T) {
	e := theEngine(t)
	one, two := open(t, docker.Config{Host: e.host}), open(t, docker.Config{Host: e.host})
	id := sandbox.NewID()
	for _, d := range []*docker.Driver{one, two} {
		if err := d.Create(t.Context(), sandbox.Spec{ID: id, Image: testImage}); err != nil {
			t.Fatal(err)
		}
		defer d.Remove(context.Background(), id)
	}
	if err := one.Remove(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if list, err := two.List(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
}

// A container that somebody has removed is made again by whoever asks for it.
func TestRemovedOutside(t *testing.T) {
	e := theEngine(t)
	d := open(t, docker.Config{Host: e.host})
	id := sandbox.NewID()
	spec := sandbox.Spec{ID: id, Image: testImage}
	if err := d.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	defer d.Remove(context.Background(), id)
	name, err := e.container(id)
	if err != nil {
		t.Fatal(err)
	}
	e.docker(t, "rm", name)
	if err := d.Start(t.Context(), id); !errors.Is(err, sandbox.ErrNotFound) {
		t.Fatalf("Start: %v", err)
	}
	if err := errors.Join(d.Create(t.Context(), spec), d.Start(t.Context(), id)); err != nil {
		t.Fatal(err)
	}
	drivertest.Connect(t, d, id).Run("true")
}

// Nothing is in what the engine shows that the sandbox does not have, and nothing
// is given that package managers do not need.
func TestContainer(t *testing.T) {
	e := theEngine(t)
	d := open(t, docker.Config{Host: e.host})
	id := sandbox.NewID()
	limits := sandbox.Limits{CPUs: 1.5, Memory: 256 << 20, PIDs: 99}
	if err := d.Create(t.Context(), sandbox.Spec{ID: id, Image: testImage, Limits: limits}); err != nil {
		t.Fatal(err)
	}
	defer d.Remove(context.Background(), id)
	name, err := e.container(id)
	if err != nil {
		t.Fatal(err)
	}
	for format, want := range map[string]string{
		"{{.HostConfig.SecurityOpt}} {{.HostConfig.CapDrop}} {{.HostConfig.Privileged}}":                       "[no-new-privileges] [ALL] false",
		"{{.HostConfig.NetworkMode}} {{.HostConfig.PidMode}} {{.HostConfig.IpcMode}} {{.Config.User}}":         "none  private 0:0",
		"{{.HostConfig.NanoCpus}} {{.HostConfig.Memory}} {{.HostConfig.MemorySwap}} {{.HostConfig.PidsLimit}}": "1500000000 268435456 268435456 99",
		"{{json .Path}} {{json .Args}}":                                          `"/.sandgate/guest" ["guest"]`,
		"{{range .Mounts}}{{.Destination}} {{.RW}} {{end}}{{.HostConfig.Binds}}": "",
		"{{range .HostConfig.CapAdd}}{{if or (eq . \"SYS_ADMIN\") (eq . \"NET_ADMIN\") (eq . \"NET_RAW\")}}{{.}}{{end}}{{end}}": "",
	} {
		got := e.docker(t, "inspect", "--format", format, name)
		if strings.Contains(format, "Mounts") {
			words := strings.Fields(strings.ReplaceAll(got, "[]", ""))
			slices.Sort(words)
			if want := []string{"/.sandgate", "/run/sandgate", "false", "false"}; !slices.Equal(words, want) {
				t.Errorf("mounts: %q", got)
			}
			continue
		}
		if got != want {
			t.Errorf("%s: %q, want %q", format, got, want)
		}
	}
}

// Limits change under what runs; what cannot be changed is said.
func TestUpdate(t *testing.T) {
	e := theEngine(t)
	d := open(t, docker.Config{Host: e.host})
	spec := sandbox.Spec{ID: sandbox.NewID(), Image: testImage, Env: []string{"A=1"}, Limits: sandbox.Limits{CPUs: 1, Memory: 256 << 20, PIDs: 99}}
	if err := d.UpdateNow(t.Context(), spec); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("before it is made: %v", err)
	}
	if err := d.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	defer d.Remove(context.Background(), spec.ID)
	name, err := e.container(spec.ID)
	if err != nil {
		t.Fatal(err)
	}
	update := func(want string) {
		t.Helper()
		if err := d.UpdateNow(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		if got := e.docker(t, "inspect", "--format", "{{.HostConfig.NanoCpus}} {{.HostConfig.Memory}} {{.HostConfig.MemorySwap}} {{.HostConfig.PidsLimit}}", name); got != want {
			t.Errorf("limits are %s, want %s", got, want)
		}
	}
	spec.Limits.CPUs = 0.5
	update("500000000 268435456 268435456 99")
	if err := d.Start(t.Context(), spec.ID); err != nil {
		t.Fatal(err)
	}
	sh := drivertest.Connect(t, d, spec.ID)
	spec.Limits = sandbox.Limits{CPUs: 1.5, Memory: 300 << 20, PIDs: 44}
	update("1500000000 314572800 314572800 44")
	sh.Want("44", "sh", "-c", "cat /sys/fs/cgroup/pids.max 2>/dev/null || cat /sys/fs/cgroup/pids/pids.max")
	spec.Env = []string{"A=2"}
	err = d.UpdateNow(t.Context(), spec)
	if _, ok := errors.AsType[*sandbox.UnsupportedError](err); !ok || !strings.Contains(err.Error(), "variables") {
		t.Errorf("other variables: %v", err)
	}
}

// What a sandbox takes of a processor can be read, while it runs.
func TestRead(t *testing.T) {
	e := theEngine(t)
	d := open(t, docker.Config{Host: e.host})
	id := sandbox.NewID()
	if err := errors.Join(d.Create(t.Context(), sandbox.Spec{ID: id, Image: testImage}), d.Start(t.Context(), id)); err != nil {
		t.Fatal(err)
	}
	defer d.Remove(context.Background(), id)
	sh := drivertest.Connect(t, d, id)
	read := func() time.Duration {
		t.Helper()
		r, err := d.Read(t.Context(), id)
		if err != nil || r.CPU == nil {
			t.Fatalf("%+v, %v", r, err)
		}
		return *r.CPU
	}
	before := read()
	sh.Run("sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done")
	if after := read(); after-before < 20*time.Millisecond {
		t.Errorf("a loop took from %v to %v", before, after)
	}
	if err := d.Stop(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if r, err := d.Read(t.Context(), id); err != nil || r.CPU != nil {
		t.Errorf("stopped: %+v, %v", r, err)
	}
}

// BACK-04: an image with a USER, variables and a folder. The sandbox's own win.
func TestBACK04(t *testing.T) {
	e := theEngine(t)
	const image = "sandgate-test:user"
	e.derive(t, image, `echo app:x:1234:1234::/home/app:/bin/sh >>/etc/passwd; echo extra:x:1300:app >>/etc/group
		mkdir /home/app; chown 1234:1234 /home/app`,
		"USER app", "ENV FROM=image", "ENV BOTH=image", "WORKDIR /var/tmp", "ENTRYPOINT [\"/bin/false\"]", "HEALTHCHECK CMD /bin/false")
	d := open(t, docker.Config{Host: e.host})
	sh := start(t, d, sandbox.Spec{Image: image, Env: []string{"BOTH=sandbox"}})
	sh.Want("app 1234 1300 image sandbox /home/app /var/tmp", "sh", "-c", `echo $(id -un) $(id -G) $FROM $BOTH $HOME $(pwd)`)
	sh.Want("app", "sh", "-c", `touch /tmp/mine && stat -c %U /tmp/mine`)
	start(t, d, sandbox.Spec{Image: image, User: "root"}).Want("0", "id", "-u")
	start(t, d, sandbox.Spec{Image: image, User: "4321"}).Want("4321", "id", "-u")
}

// derive makes an image of testImage with other files and settings.
func (e engine) derive(t *testing.T, image, command string, changes ...string) {
	t.Helper()
	made := e.docker(t, "create", "--network=none", testImage, "sh", "-ec", command)
	defer e.docker(t, "rm", made)
	e.docker(t, "start", "--attach", made)
	args := []string{"commit"}
	for _, c := range changes {
		args = append(args, "--change", c)
	}
	e.docker(t, append(args, made, image)...)
	t.Cleanup(func() { e.docker(t, "rmi", image) })
}

// importProgram gives the engine an image with nothing in it but program, and takes
// it away at the end.
func (e engine) importProgram(t *testing.T) string {
	t.Helper()
	const image = "sandgate-test:scratch"
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	w.WriteHeader(&tar.Header{Name: "program", Mode: 0o755, Size: int64(len(content))})
	w.Write(content)
	w.Close()
	cmd := e.command("import", "-", image)
	cmd.Stdin = &archive
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("import: %v\n%s", err, out)
	}
	t.Cleanup(func() { e.docker(t, "rmi", image) })
	return image
}

// BACK-03: an image with nothing in it but one static program.
func TestBACK03(t *testing.T) {
	e := theEngine(t)
	image := e.importProgram(t)
	for name, cfg := range map[string]docker.Config{"Shared": {Host: e.host}, "Copy": {Host: e.host, Copy: true}} {
		t.Run(name, func(t *testing.T) {
			sh := start(t, open(t, cfg), sandbox.Spec{Image: image})
			if out := sh.Run("/program", "runsc", "--version"); !strings.Contains(out, "version") {
				t.Errorf("the program wrote %q", out)
			}
			if code, out, err := sh.Try("sh"); err != nil || code != 127 || out == "" {
				t.Errorf("a shell: %d %q %v", code, out, err)
			}
		})
	}
}

// An engine on another host is reached by TLS, and nobody without the right
// certificate is.
func TestTLS(t *testing.T) {
	e := theEngine(t)
	path, ok := strings.CutPrefix(e.host, "unix://")
	if !ok {
		testneed.Lacking(t, "an engine on a unix socket, to put TLS before")
	}
	good, bad := certificates(t), certificates(t)
	address := "tcp://" + serveTLS(t, good, path)
	start(t, open(t, docker.Config{Host: address, Certificates: good}), sandbox.Spec{Image: testImage}).Want("hello", "echo", "hello")

	d := open(t, docker.Config{Host: address, Certificates: bad})
	err := d.Create(t.Context(), sandbox.Spec{ID: sandbox.NewID(), Image: testImage})
	if err == nil {
		t.Error("an engine with a certificate of nobody's was trusted")
	}
}

// certificates returns a folder with those of a server and a client.
func certificates(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "sandgate test"},
		NotAfter:              time.Now().Add(time.Hour),
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"ca.pem": {Type: "CERTIFICATE", Bytes: cert}, "cert.pem": {Type: "CERTIFICATE", Bytes: cert}, "key.pem": {Type: "PRIVATE KEY", Bytes: secret},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// serveTLS serves the engine at path to clients with a certificate of dir's.
func serveTLS(t *testing.T, dir, path string) string {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				to, err := net.Dial("unix", path)
				if err != nil {
					return
				}
				defer to.Close()
				go func() {
					io.Copy(to, c)
					to.(*net.UnixConn).CloseWrite()
				}()
				io.Copy(c, to)
			}()
		}
	}()
	return l.Addr().String()
}

// An engine on another host is reached by ssh, whose other end here is this host.
func TestSSH(t *testing.T) {
	e := theEngine(t)
	bin := t.TempDir()
	script := "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\nshift 2\nDOCKER_HOST=" + e.host + " exec sh -c \"$*\"\n"
	if err := os.WriteFile(filepath.Join(bin, "ssh"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	sh := start(t, open(t, docker.Config{Host: "ssh://ada@engine.example"}), sandbox.Spec{Image: testImage})
	sh.Want("hello", "echo", "hello")
	if out := sh.Run("head", "-c", "3000000", "/dev/zero"); len(out) != 3000000 {
		t.Errorf("%d bytes came", len(out))
	}
}

// Images are pulled with progress, and what goes wrong is told apart.
func TestPull(t *testing.T) {
	e := theEngine(t)
	images := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer images.Close()
	locked := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		http.Error(w, "no", http.StatusUnauthorized)
	}))
	defer locked.Close()
	nobody := httptest.NewServer(http.NotFoundHandler())
	nobody.Close()
	host := func(s *httptest.Server) string { return strings.TrimPrefix(s.URL, "http://") }

	ref := host(images) + "/some/thing:1"
	image, err := random.Image(1<<20, 3)
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(tag, image); err != nil {
		t.Fatal(err)
	}
	d := open(t, docker.Config{Host: e.host})
	if err := d.Create(t.Context(), sandbox.Spec{ID: sandbox.NewID(), Image: ref}); !errors.Is(err, sandbox.ErrNoImage) {
		t.Fatalf("Create: %v", err)
	}
	t.Cleanup(func() { e.command("rmi", ref).Run() })
	var mu sync.Mutex
	last := make(map[string]sandbox.LayerState)
	if err := d.Pull(t.Context(), ref, func(p sandbox.Progress) {
		mu.Lock()
		defer mu.Unlock()
		last[p.Layer] = p.State
	}); err != nil && !strings.Contains(err.Error(), "failed to register layer") { // its layers are no archives
		t.Errorf("Pull: %v", err)
	}
	if len(last) != 3 {
		t.Errorf("layers: %v", last)
	}
	for ref, want := range map[string]sandbox.ImageFault{
		host(images) + "/some/thing:2":  sandbox.ImageNotFound,
		host(images) + "/other/thing:1": sandbox.ImageNotFound,
		host(locked) + "/some/thing:1":  sandbox.ImageDenied,
		host(nobody) + "/some/thing:1":  sandbox.ImageUnreachable,
	} {
		err := d.Pull(t.Context(), ref, func(sandbox.Progress) {})
		if got, ok := errors.AsType[*sandbox.ImageError](err); !ok || got.Fault != want {
			t.Errorf("%s: %v, want fault %d", ref, err, want)
		}
	}
}
