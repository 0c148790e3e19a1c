// Package imagetest makes images of programs of this host and serves them, for
// tests that must not depend on anybody's registry.
package imagetest

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// An Image says what an image is made of. The zero Image is one from scratch: no
// layer at all.
type Image struct {
	// Programs are names, or paths, of programs of this host. They lie in /bin,
	// and what they load where it lies here.
	Programs []string

	// Layers are put on top of that, in this order.
	Layers [][]File

	Config v1.Config
}

// A File is an entry of a layer. One whose name ends in a slash is a folder, one
// with a target a symbolic link.
type File struct {
	Name     string
	Text     string
	Target   string
	Mode     int64 // 0: 0644, or 0755 for a folder
	UID, GID int
}

// Build makes the image, for this host's kind of machine.
func (i Image) Build() (v1.Image, error) {
	layers := i.Layers
	if len(i.Programs) > 0 {
		files, err := programs(i.Programs)
		if err != nil {
			return nil, err
		}
		layers = append([][]File{files}, layers...)
	}
	img := v1.Image(empty.Image)
	for _, files := range layers {
		archive, err := Archive(files)
		if err != nil {
			return nil, err
		}
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil })
		if err != nil {
			return nil, err
		}
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			return nil, err
		}
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Config = "linux", runtime.GOARCH, i.Config
	return mutate.ConfigFile(img, config)
}

// Archive makes a layer of files.
func Archive(files []File) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.Name, Mode: f.Mode, Uid: f.UID, Gid: f.GID,
			Size: int64(len(f.Text)), ModTime: time.Unix(1_000_000_000, 0)}
		switch {
		case strings.HasSuffix(f.Name, "/"):
			h.Typeflag = tar.TypeDir
		case f.Target != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, f.Target
		}
		if h.Mode == 0 {
			h.Mode = 0o644
			if h.Typeflag == tar.TypeDir {
				h.Mode = 0o755
			}
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := io.WriteString(w, f.Text); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), w.Close()
}

// loaded finds the files that a program loads in what ldd says.
var loaded = regexp.MustCompile(`(?m)(/\S+) \(0x`)

// programs returns programs of the host with what they load.
func programs(names []string) ([]File, error) {
	var files []File
	for _, program := range names {
		path, err := exec.LookPath(program)
		if err != nil {
			return nil, err
		}
		if files, err = add(files, "bin/"+filepath.Base(program), path); err != nil {
			return nil, err
		}
		// It fails for a program that loads nothing.
		out, _ := exec.Command("ldd", path).Output()
		for _, m := range loaded.FindAllSubmatch(out, -1) {
			lib := string(m[1])
			if files, err = add(files, strings.TrimPrefix(lib, "/"), lib); err != nil {
				return nil, err
			}
		}
	}
	return files, nil
}

// add adds a file of the host under a name, unless there is one.
func add(files []File, name, from string) ([]File, error) {
	name = path.Clean(name)
	if slices.ContainsFunc(files, func(f File) bool { return f.Name == name }) {
		return files, nil
	}
	text, err := os.ReadFile(from)
	if err != nil {
		return nil, err
	}
	return append(files, File{Name: name, Text: string(text), Mode: 0o755}), nil
}

// A Registry is one on this host, for plain http. It is to be closed.
type Registry struct {
	Address string // as it begins a reference
	auth    authn.Authenticator
	*httptest.Server
}

// Serve runs a registry. With a user it serves nobody else.
func Serve(user, password string) *Registry {
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	r := &Registry{auth: authn.Anonymous}
	if user != "" {
		r.auth = &authn.Basic{Username: user, Password: password}
	}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if u, p, _ := req.BasicAuth(); user != "" && (u != user || p != password) {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, req)
	}))
	r.Address = strings.TrimPrefix(r.URL, "http://")
	return r
}

// Push puts an image into the registry, under a name without the registry's, and
// returns what to pull it by.
func (r *Registry) Push(image string, img v1.Image) (string, error) {
	ref, err := name.ParseReference(r.Address + "/" + image)
	if err != nil {
		return "", err
	}
	transport := remote.DefaultTransport.(*http.Transport).Clone()
	defer transport.CloseIdleConnections()
	if err := remote.Write(ref, img, remote.WithAuth(r.auth), remote.WithTransport(transport)); err != nil {
		return "", fmt.Errorf("push %s: %w", image, err)
	}
	return ref.String(), nil
}
