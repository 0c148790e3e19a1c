//go:build linux

package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"golang.org/x/sys/unix"

	"sandgate/sandbox"
)

// Config says where a Store keeps images and what becomes of them.
type Config struct {
	// Dir is the folder of the store, which nothing else may use.
	Dir string

	// Chown is whether files are given to whom their image says, for which this
	// process has to be root. Otherwise all are its own; see Image.Owners.
	Chown bool

	// Nodes are in every image in the end.
	Nodes []Node

	// Limits bound one image; zero fields are those of DefaultLimits.
	Limits Limits
}

// Limits bound one image.
type Limits struct {
	Bytes   int64 // of its uncompressed layers, together
	Entries int64 // files, folders and links in its layers, together
}

// DefaultLimits are ample for what people have in images.
var DefaultLimits = Limits{Bytes: 32 << 30, Entries: 2_000_000}

// An Image is one in the store.
type Image struct {
	Digest string `json:"-"` // of its manifest, in hexadecimal: what the store knows it by
	Dir    string `json:"-"` // all of it; never written to
	Root   string `json:"-"` // in Dir, its root folder

	// Owners is an archive, in Dir, of all that is not root's, with the folders
	// that it is in, for a driver to lay over Root; empty if there is nothing.
	// OwnersLost says that there was too much of it, so that all is root's.
	Owners     string `json:"-"`
	OwnersLost bool

	// What its programs begin with.
	Env        []string
	User       string
	WorkingDir string

	// Command is what it runs by itself: its entry point with arguments. Nothing does
	// that here unless it is asked for.
	Command []string
}

// What is in an image's folder.
const (
	rootName   = "rootfs"
	ownersName = "owners.tar"
	imageName  = "image.json" // written last
)

// What else is in a store's folder.
const (
	namesDir  = "names" // which image a reference means
	newPrefix = "new-"  // being made
	oldPrefix = "old-"  // being removed
)

// keepFresh is how long an image that was pulled stays without a user.
const keepFresh = 10 * time.Minute

// maxAtOnce bounds the images that are pulled at a time.
const maxAtOnce = 3

// A Store keeps images. All methods may be called at the same time.
type Store struct {
	cfg    Config
	source *source
	slots  chan struct{} // one for each image that is being pulled

	mu    sync.Mutex
	fresh map[string]time.Time     // when an image was pulled that nobody has used yet
	held  map[string]int           // images that are about to be used
	turns map[string]chan struct{} // closed when the image of that digest has been pulled
}

// Open opens the store and clears away what a crash has left in it.
func Open(cfg Config) (*Store, error) {
	if cfg.Limits.Bytes == 0 {
		cfg.Limits.Bytes = DefaultLimits.Bytes
	}
	if cfg.Limits.Entries == 0 {
		cfg.Limits.Entries = DefaultLimits.Entries
	}
	// Other users of the host must not come upon the setuid programs in there.
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(cfg.Dir, namesDir), 0o700); err != nil {
		return nil, err
	}
	files, err := os.ReadDir(cfg.Dir)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if strings.HasPrefix(f.Name(), newPrefix) || strings.HasPrefix(f.Name(), oldPrefix) {
			if err := removeAll(filepath.Join(cfg.Dir, f.Name())); err != nil {
				return nil, err
			}
		}
	}
	return &Store{
		cfg:    cfg,
		source: newSource(),
		slots:  make(chan struct{}, maxAtOnce),
		fresh:  make(map[string]time.Time),
		held:   make(map[string]int),
		turns:  make(map[string]chan struct{}),
	}, nil
}

// Close gives up connections to registries.
func (s *Store) Close() { s.source.close() }

// Find returns the image that a reference means. It is not removed before release
// is called; from then on it has to be among those that Collect is told of.
// sandbox.ErrNoImage if it has to be pulled first.
func (s *Store) Find(ref string) (img Image, release func(), err error) {
	parsed, err := name.ParseReference(ref)
	if err != nil {
		return Image{}, nil, fault(ref, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if img, err = s.named(parsed); err != nil {
		return Image{}, nil, err
	}
	s.held[img.Digest]++
	return img, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.fresh, img.Digest)
		if s.held[img.Digest]--; s.held[img.Digest] == 0 {
			delete(s.held, img.Digest)
		}
	}, nil
}

// named returns the image that a reference means.
func (s *Store) named(ref name.Reference) (Image, error) {
	digest, err := os.ReadFile(s.nameFile(ref))
	if errors.Is(err, fs.ErrNotExist) {
		return Image{}, sandbox.ErrNoImage
	}
	if err != nil {
		return Image{}, err
	}
	img, err := s.Get(string(digest))
	if errors.Is(err, fs.ErrNotExist) {
		err = sandbox.ErrNoImage
	}
	return img, err
}

// nameFile returns the file that says which image a reference means.
func (s *Store) nameFile(ref name.Reference) string {
	sum := sha256.Sum256([]byte(ref.Name()))
	return filepath.Join(s.cfg.Dir, namesDir, hex.EncodeToString(sum[:]))
}

// Get returns the image of that digest, or fs.ErrNotExist.
func (s *Store) Get(digest string) (Image, error) {
	if b, err := hex.DecodeString(digest); err != nil || len(b) != sha256.Size {
		return Image{}, fmt.Errorf("%q is no digest", digest)
	}
	dir := filepath.Join(s.cfg.Dir, digest)
	text, err := os.ReadFile(filepath.Join(dir, imageName))
	if err != nil {
		return Image{}, fmt.Errorf("image %s: %w", digest, err)
	}
	var img Image
	if err := json.Unmarshal(text, &img); err != nil {
		return Image{}, fmt.Errorf("image %s: %w", digest, err)
	}
	img.Digest, img.Dir, img.Root = digest, dir, filepath.Join(dir, rootName)
	if owners := filepath.Join(dir, ownersName); exists(owners) {
		img.Owners = owners
	}
	return img, nil
}

// Collect removes all images but those whose digests used returns, those that are
// held, and those that were pulled just now.
func (s *Store) Collect(used func() map[string]bool) error {
	old, err := s.dropUnused(used)
	for _, dir := range old {
		err = errors.Join(err, removeAll(dir))
	}
	return err
}

// dropUnused takes the unused images out of the store and returns where they are
// now. used is called with the store locked, so that no image can come into use
// between the answer and what follows from it.
func (s *Store) dropUnused(used func() map[string]bool) (old []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	files, err := os.ReadDir(s.cfg.Dir)
	if err != nil {
		return nil, err
	}
	kept := used()
	for digest, pulled := range s.fresh {
		if time.Since(pulled) < keepFresh {
			kept[digest] = true
		} else {
			delete(s.fresh, digest)
		}
	}
	for _, f := range files {
		digest := f.Name()
		if b, err := hex.DecodeString(digest); err != nil || len(b) != sha256.Size || kept[digest] || s.held[digest] > 0 {
			continue
		}
		dir := filepath.Join(s.cfg.Dir, oldPrefix+digest)
		if err := os.Rename(filepath.Join(s.cfg.Dir, digest), dir); err != nil {
			return old, err
		}
		old = append(old, dir)
	}
	return old, s.dropNames()
}

// dropNames removes the names of images that are not there.
func (s *Store) dropNames() error {
	dir := filepath.Join(s.cfg.Dir, namesDir)
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		path := filepath.Join(dir, f.Name())
		digest, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !exists(filepath.Join(s.cfg.Dir, string(digest), imageName)) {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// Pull fetches the image ref if it is not in the store; see sandbox.Puller.
func (s *Store) Pull(ctx context.Context, ref string, report func(sandbox.Progress)) error {
	parsed, err := name.ParseReference(ref)
	if err != nil {
		return fault(ref, err)
	}
	s.mu.Lock()
	img, err := s.named(parsed)
	if err == nil {
		s.fresh[img.Digest] = time.Now()
	}
	s.mu.Unlock()
	if errors.Is(err, sandbox.ErrNoImage) {
		return s.Refresh(ctx, ref, report)
	}
	if err != nil {
		return fault(ref, err)
	}
	return nil
}

// Refresh is Pull also if there is an image of that name; see sandbox.Puller. Those
// who have the one of before keep it.
func (s *Store) Refresh(ctx context.Context, ref string, report func(sandbox.Progress)) error {
	parsed, err := name.ParseReference(ref)
	if err == nil {
		err = s.pull(ctx, parsed, report)
	}
	if err != nil {
		return fault(ref, err)
	}
	return nil
}

func (s *Store) pull(ctx context.Context, ref name.Reference, report func(sandbox.Progress)) error {
	found, err := s.source.find(ctx, ref)
	if err != nil {
		return err
	}
	done, err := s.claim(ctx, found.digest)
	if err != nil {
		return err
	}
	if done != nil {
		defer done()
		select {
		case s.slots <- struct{}{}:
			defer func() { <-s.slots }()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := s.fetch(ctx, found, report); err != nil {
			return err
		}
	}
	return writeFile(s.nameFile(ref), []byte(found.digest))
}

// claim waits until nobody else pulls the image of that digest. It returns nil if
// that is there then, else what to call when the caller has pulled it or given up.
func (s *Store) claim(ctx context.Context, digest string) (done func(), err error) {
	for {
		s.mu.Lock()
		turn := s.turns[digest]
		if turn == nil {
			defer s.mu.Unlock()
			if exists(filepath.Join(s.cfg.Dir, digest)) {
				s.fresh[digest] = time.Now()
				return nil, nil
			}
			turn = make(chan struct{})
			s.turns[digest] = turn
			return func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				delete(s.turns, digest)
				close(turn)
			}, nil
		}
		s.mu.Unlock()
		select {
		case <-turn:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// fetch puts an image into the store. It is there whole, or not at all.
func (s *Store) fetch(ctx context.Context, found *found, report func(sandbox.Progress)) error {
	dir, err := os.MkdirTemp(s.cfg.Dir, newPrefix)
	if err != nil {
		return err
	}
	defer removeAll(dir) // of no consequence when it has got its name
	img := Image{
		Env: found.config.Env, User: found.config.User, WorkingDir: found.config.WorkingDir,
		Command: slices.Concat(found.config.Entrypoint, found.config.Cmd),
	}
	if err := s.fill(ctx, dir, found, &img, report); err != nil {
		return err
	}
	text, err := json.Marshal(img)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, imageName), text, 0o600); err != nil {
		return err
	}
	// As a rename must not come to the disk before what is renamed.
	if err := syncFilesystem(dir); err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // for a sandbox's users; what it is in stays ours alone
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fresh[found.digest] = time.Now()
	return os.Rename(dir, filepath.Join(s.cfg.Dir, found.digest))
}

// fill makes an image's root folder in dir.
func (s *Store) fill(ctx context.Context, dir string, found *found, img *Image, report func(sandbox.Progress)) error {
	path := filepath.Join(dir, rootName)
	if err := os.Mkdir(path, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return err
	}
	defer root.Close()
	x := newExtractor(root, s.cfg.Chown, s.cfg.Limits)
	x.folders["."] = attributes{0o755, time.Unix(0, 0)}
	if err := s.source.fetch(ctx, found, dir, x, report); err != nil {
		return err
	}
	if err := errors.Join(x.prepare(s.cfg.Nodes), x.workDir(img.WorkingDir)); err != nil {
		return err
	}
	if len(x.owners) > 0 {
		f, err := os.Create(filepath.Join(dir, ownersName))
		if err != nil {
			return err
		}
		whole, err := x.writeOwners(f)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		if !whole {
			img.OwnersLost = true
			if err := os.Remove(f.Name()); err != nil {
				return err
			}
		}
	}
	return x.finish()
}

// writeFile writes a file so that it is there whole, or as it was before.
func writeFile(path string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(filepath.Dir(path)), newPrefix)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// removeAll is os.RemoveAll, also for folders that forbid it to their owner.
func removeAll(path string) error {
	if err := os.RemoveAll(path); !errors.Is(err, fs.ErrPermission) {
		return err
	}
	filepath.WalkDir(path, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			os.Chmod(path, 0o700)
		}
		return nil
	})
	return os.RemoveAll(path)
}

// syncFilesystem waits until all on the file system of dir is on the disk.
func syncFilesystem(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}
