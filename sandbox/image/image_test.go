//go:build linux

package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"sandgate/sandbox"
	"sandgate/sandbox/testneed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// archive makes a layer of entries. One with content is a file, unless it says
// otherwise.
func archive(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Linkname: e.link, Typeflag: e.kind, Mode: e.mode, Uid: e.uid, Gid: e.gid,
			Size: int64(len(e.text)), ModTime: time.Unix(1_000_000_000, 0)}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

type entry struct {
	kind       byte
	name, link string
	text       string
	mode       int64
	uid, gid   int
}

func folder(name string) entry { return entry{kind: tar.TypeDir, name: name} }

func file(name, text string) entry { return entry{name: name, text: text} }

func symlink(name, target string) entry {
	return entry{kind: tar.TypeSymlink, name: name, link: target}
}

func hardlink(name, target string) entry { return entry{kind: tar.TypeLink, name: name, link: target} }

// build makes an image for this host of layers.
func build(t testing.TB, config v1.Config, layers ...[]byte) v1.Image {
	t.Helper()
	var img v1.Image = empty.Image
	for _, l := range layers {
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(l)), nil })
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			t.Fatal(err)
		}
	}
	return configured(t, img, config, runtime.GOARCH)
}

// configured gives an image a configuration.
func configured(t testing.TB, img v1.Image, config v1.Config, arch string) v1.Image {
	t.Helper()
	f, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	f = f.DeepCopy()
	f.OS, f.Architecture, f.Config = "linux", arch, config
	if img, err = mutate.ConfigFile(img, f); err != nil {
		t.Fatal(err)
	}
	return img
}

// serve runs a registry and returns its address. around, if not nil, is around it.
func serve(t testing.TB, around func(http.Handler) http.Handler) string {
	t.Helper()
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	if around != nil {
		handler = around(handler)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// push puts an image into a registry.
func push(t testing.TB, ref string, img v1.Image, options ...remote.Option) {
	t.Helper()
	parsed, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	tr := remote.DefaultTransport.(*http.Transport).Clone()
	defer tr.CloseIdleConnections()
	if err := remote.Write(parsed, img, append(options, remote.WithTransport(tr))...); err != nil {
		t.Fatal(err)
	}
}

// open opens a store in a folder of the test's own.
func open(t testing.TB, cfg Config) *Store {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = filepath.Join(t.TempDir(), "images")
	}
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		removeAll(cfg.Dir)
	})
	return s
}

func pull(t testing.TB, s *Store, ref string) error {
	t.Helper()
	return s.Pull(t.Context(), ref, func(sandbox.Progress) {})
}

func mustPull(t testing.TB, s *Store, ref string) Image {
	t.Helper()
	if err := pull(t, s, ref); err != nil {
		t.Fatal(err)
	}
	img, release, err := s.Find(ref)
	if err != nil {
		t.Fatal(err)
	}
	release()
	return img
}

func mustFault(t testing.TB, err error, want sandbox.ImageFault) {
	t.Helper()
	if got, ok := errors.AsType[*sandbox.ImageError](err); !ok || got.Fault != want {
		t.Errorf("got %v, want fault %d", err, want)
	}
}

// left returns what is in a store's folder.
func left(t testing.TB, s *Store) (names []string) {
	t.Helper()
	files, err := os.ReadDir(s.cfg.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		names = append(names, f.Name())
	}
	return names
}

func TestPull(t *testing.T) {
	at := serve(t, nil)
	ref := at + "/people/app:1"
	push(t, ref, build(t, v1.Config{Env: []string{"A=b"}, User: "app", WorkingDir: "/srv/deep"},
		archive(t, folder("etc"), file("etc/a", "one"), file("etc/b", "two")),
		archive(t, file("etc/b", "three"), file("etc/.wh.a", "")),
	))
	s := open(t, Config{Nodes: []Node{{"/proc", true}, {"/etc", true}, {"/etc/hosts", false}}})
	if _, _, err := s.Find(ref); !errors.Is(err, sandbox.ErrNoImage) {
		t.Fatalf("found before it was pulled: %v", err)
	}
	var mu sync.Mutex
	var states []string
	err := s.Pull(t.Context(), ref, func(p sandbox.Progress) {
		mu.Lock()
		defer mu.Unlock()
		if n := len(states); n == 0 || states[n-1] != string(p.State) {
			states = append(states, string(p.State))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(states, " "); !strings.HasPrefix(got, "waiting downloading") || !strings.HasSuffix(got, "extracting ready") {
		t.Errorf("states %s", got)
	}
	img := mustPull(t, s, ref)
	if fmt.Sprint(img.Env, img.User, img.WorkingDir) != "[A=b]app/srv/deep" {
		t.Errorf("configuration %+v", img)
	}
	got := tree(t, img.Root)
	want := "d 755 . | d 755 etc | f 755 etc/b three | f 644 etc/hosts  | d 755 proc | d 755 srv | d 755 srv/deep"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if names := left(t, s); len(names) != 2 {
		t.Errorf("left: %q", names)
	}
}

// tree describes all files below dir.
func tree(t testing.TB, dir string) string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		bits := permissions(info.Mode())
		switch {
		case info.IsDir():
			lines = append(lines, fmt.Sprintf("d %o %s", bits, rel))
		case info.Mode().Type() == fs.ModeSymlink:
			target, _ := os.Readlink(path)
			lines = append(lines, fmt.Sprintf("l %s %s", rel, target))
		default:
			text, _ := os.ReadFile(path)
			lines = append(lines, fmt.Sprintf("f %o %s %s", bits, rel, text))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, " | ")
}

// Two references to one image are one image, and what one pulls the other waits for.
func TestPullTogether(t *testing.T) {
	var mu sync.Mutex
	blobs := make(map[string]int)
	at := serve(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
				mu.Lock()
				blobs[r.URL.Path]++
				mu.Unlock()
				time.Sleep(50 * time.Millisecond)
			}
			h.ServeHTTP(w, r)
		})
	})
	same := archive(t, file("a", "x"))
	img := build(t, v1.Config{}, same, archive(t, file("a", "y")), same)
	push(t, at+"/x:1", img)
	push(t, at+"/x:2", img)
	s := open(t, Config{})
	var wg sync.WaitGroup
	for _, tag := range []string{"1", "2", "1"} {
		wg.Go(func() {
			if err := pull(t, s, at+"/x:"+tag); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	one, two := mustPull(t, s, at+"/x:1"), mustPull(t, s, at+"/x:2")
	if one.Digest != two.Digest || tree(t, one.Root) != "d 755 . | f 755 a x" {
		t.Errorf("got %s and %s with %s", one.Digest, two.Digest, tree(t, one.Root))
	}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		d, _ := l.Digest()
		if n := blobs["/v2/x/blobs/"+d.String()]; n != 1 {
			t.Errorf("layer %s was downloaded %d times", d, n)
		}
	}
	// By its digest it is the same one too.
	if img := mustPull(t, s, at+"/x@sha256:"+one.Digest); img.Digest != one.Digest {
		t.Errorf("by digest it is %s", img.Digest)
	}
}

// Of an image for many platforms the one for this host is taken.
func TestPlatform(t *testing.T) {
	at := serve(t, nil)
	mine := build(t, v1.Config{}, archive(t, file("mine", "")))
	other := configured(t, build(t, v1.Config{}, archive(t, file("other", ""))), v1.Config{}, "s390x")
	tagged := func(ref string, imgs map[string]v1.Image) {
		t.Helper()
		index := v1.ImageIndex(empty.Index)
		for _, arch := range []string{"s390x", runtime.GOARCH} {
			if img := imgs[arch]; img != nil {
				index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img,
					Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
			}
		}
		parsed, err := name.ParseReference(ref)
		if err != nil {
			t.Fatal(err)
		}
		if err := remote.WriteIndex(parsed, index); err != nil {
			t.Fatal(err)
		}
		remote.DefaultTransport.(*http.Transport).CloseIdleConnections()
	}
	tagged(at+"/both", map[string]v1.Image{"s390x": other, runtime.GOARCH: mine})
	tagged(at+"/index-of-other", map[string]v1.Image{"s390x": other})
	push(t, at+"/other", other)
	s := open(t, Config{})
	if got := tree(t, mustPull(t, s, at+"/both").Root); got != "d 755 . | f 755 mine " {
		t.Errorf("got %s", got)
	}
	mustFault(t, pull(t, s, at+"/index-of-other"), sandbox.ImagePlatform)
	mustFault(t, pull(t, s, at+"/other"), sandbox.ImagePlatform)
}

// Credentials come from the file that docker login writes.
func TestCredentials(t *testing.T) {
	at := serve(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if user, password, _ := r.BasicAuth(); user != "alice" || password != "right" {
				w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			h.ServeHTTP(w, r)
		})
	})
	push(t, at+"/private", build(t, v1.Config{}, archive(t, file("a", ""))),
		remote.WithAuth(&authn.Basic{Username: "alice", Password: "right"}))
	s := open(t, Config{})
	login := func(password string) {
		dir := t.TempDir()
		auth := fmt.Sprintf(`{"auths":{%q:{"username":"alice","password":%q}}}`, at, password)
		if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(auth), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv("DOCKER_CONFIG", dir)
	}
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	mustFault(t, pull(t, s, at+"/private"), sandbox.ImageDenied)
	login("wrong")
	mustFault(t, pull(t, s, at+"/private"), sandbox.ImageDenied)
	login("right")
	mustPull(t, s, at+"/private")
	mustFault(t, pull(t, s, at+"/other"), sandbox.ImageNotFound)
	if names := left(t, s); len(names) != 2 {
		t.Errorf("left: %q", names)
	}
}

func TestFaults(t *testing.T) {
	broken := "" // a blob that is not what it should be
	cut := ""    // one that always breaks off
	status := 0
	at := serve(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Method == http.MethodGet && broken != "" && strings.HasSuffix(r.URL.Path, broken):
				answer := httptest.NewRecorder()
				h.ServeHTTP(answer, r)
				body := answer.Body.Bytes()
				body[len(body)/2] ^= 1
				w.Write(body)
			case r.Method == http.MethodGet && cut != "" && strings.HasSuffix(r.URL.Path, cut):
				w.Header().Set("Content-Length", "100000")
				w.Write([]byte("x"))
			case status != 0 && strings.Contains(r.URL.Path, "/manifests/"):
				w.WriteHeader(status)
			default:
				h.ServeHTTP(w, r)
			}
		})
	})
	img := build(t, v1.Config{}, archive(t, file("a", strings.Repeat("0123456789", 1000))))
	push(t, at+"/x", img)
	push(t, at+"/nonsense", build(t, v1.Config{}, []byte("no archive, "+strings.Repeat("really", 1000))))
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, Config{})
	_, _, err = s.Find("not a name")
	mustFault(t, err, sandbox.ImageMalformed)
	mustFault(t, pull(t, s, "not a name"), sandbox.ImageMalformed)
	mustFault(t, pull(t, s, at+"/x:other"), sandbox.ImageNotFound)
	mustFault(t, pull(t, s, at+"/x@sha256:"+strings.Repeat("0", 64)), sandbox.ImageNotFound)
	mustFault(t, pull(t, s, "127.0.0.1:1/x"), sandbox.ImageUnreachable)
	mustFault(t, pull(t, s, "169.254.169.254/latest/meta-data"), sandbox.ImageUnreachable)
	mustFault(t, pull(t, s, at+"/nonsense"), sandbox.ImageCorrupt)
	status = http.StatusTooManyRequests
	mustFault(t, pull(t, s, at+"/x"), sandbox.ImageTooMany)
	status = http.StatusBadGateway
	mustFault(t, pull(t, s, at+"/x"), sandbox.ImageUnreachable)
	status = 0
	broken = digest.String()
	mustFault(t, pull(t, s, at+"/x"), sandbox.ImageCorrupt)
	broken, cut = "", digest.String()
	mustFault(t, pull(t, s, at+"/x"), sandbox.ImageUnreachable)
	cut = ""
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Pull(ctx, at+"/x", func(sandbox.Progress) {}); err == nil {
		t.Error("pulled although nobody wants it")
	}
	small := open(t, Config{Limits: Limits{Bytes: 9000}})
	mustFault(t, pull(t, small, at+"/x"), sandbox.ImageTooBig)
	if names := left(t, small); len(names) != 1 {
		t.Errorf("left: %q", names)
	}
	if names := left(t, s); len(names) != 1 {
		t.Errorf("left: %q", names)
	}
	mustPull(t, s, at+"/x")
}

// A full disk is told as such, and leaves it as it was.
func TestDiskFull(t *testing.T) {
	testneed.Root(t)
	at := serve(t, nil)
	noise := make([]byte, 1<<20)
	rand.Read(noise)
	push(t, at+"/x", build(t, v1.Config{}, archive(t, file("a", string(noise)))))
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		testneed.Lacking(t, "the right to mount: "+err.Error())
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	s := open(t, Config{Dir: filepath.Join(dir, "images")})
	mustFault(t, pull(t, s, at+"/x"), sandbox.ImageDiskFull)
	if names := left(t, s); len(names) != 1 {
		t.Errorf("left: %q", names)
	}
}

// No image is removed that is used, about to be, or has just been pulled; others
// are, with their names.
func TestCollect(t *testing.T) {
	at := serve(t, nil)
	cfg := Config{Dir: filepath.Join(t.TempDir(), "images")}
	s := open(t, cfg)
	var images []Image
	for i := range 3 {
		ref := fmt.Sprintf("%s/x:%d", at, i)
		push(t, ref, build(t, v1.Config{}, archive(t, file("a", ref))))
		if err := pull(t, s, ref); err != nil {
			t.Fatal(err)
		}
	}
	collect := func(s *Store, used ...string) {
		t.Helper()
		err := s.Collect(func() map[string]bool {
			set := make(map[string]bool)
			for _, u := range used {
				set[u] = true
			}
			return set
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	collect(s) // all are fresh
	var releases []func()
	for i := range 3 {
		img, release, err := s.Find(fmt.Sprintf("%s/x:%d", at, i))
		if err != nil {
			t.Fatal(err)
		}
		images = append(images, img)
		releases = append(releases, release)
	}
	collect(s) // all are held
	releases[0]()
	releases[1]()
	collect(s, images[0].Digest)
	for i, want := range []error{nil, sandbox.ErrNoImage, nil} {
		_, release, err := s.Find(fmt.Sprintf("%s/x:%d", at, i))
		if !errors.Is(err, want) {
			t.Errorf("image %d: %v, want %v", i, err, want)
		}
		if err == nil {
			release()
		}
	}
	// A new gateway knows of nobody who is about to use one, and clears away what a
	// crash has left.
	for _, name := range []string{newPrefix + "1", oldPrefix + "2"} {
		if err := os.Mkdir(filepath.Join(cfg.Dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	again := open(t, cfg)
	collect(again, images[2].Digest)
	if names := left(t, again); len(names) != 2 || names[0] != images[2].Digest && names[1] != images[2].Digest {
		t.Errorf("left: %q", names)
	}
	names, err := os.ReadDir(filepath.Join(cfg.Dir, namesDir))
	if err != nil || len(names) != 1 {
		t.Errorf("left: %q, %v", names, err)
	}
}
