//go:build linux

package gvisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"sandgate/sandbox"
	"sandgate/sandbox/guest"
	"sandgate/sandbox/image"
)

// imageNodes are what is mounted over, so that nothing has to be made for that in
// an image that sandboxes share, and a home for its root.
var imageNodes = []image.Node{
	{Path: filepath.Dir(guest.Executable), Folder: true},
	{Path: "/dev", Folder: true}, {Path: "/etc", Folder: true}, {Path: "/proc", Folder: true},
	{Path: "/run", Folder: true}, {Path: guest.SocketDir, Folder: true}, {Path: "/sys", Folder: true},
	{Path: workspaceDir, Folder: true}, {Path: "/root", Folder: true},
	{Path: "/etc/hostname"}, {Path: "/etc/hosts"}, {Path: "/etc/resolv.conf"},
}

// openImages opens the store of images. Where files cannot be given to others it
// is another one, as all that is in it is different.
func (d *Driver) openImages(maxBytes int64) (err error) {
	name := "images"
	if d.host.user {
		name = "images-user"
	}
	d.images, err = image.Open(image.Config{
		Dir:    filepath.Join(d.state, name),
		Chown:  !d.host.user,
		Nodes:  imageNodes,
		Limits: image.Limits{Bytes: maxBytes},
	})
	if err != nil {
		return fmt.Errorf("images: %w", err)
	}
	return nil
}

// Pull implements sandbox.Puller.
func (d *Driver) Pull(ctx context.Context, ref string, report func(sandbox.Progress)) error {
	return d.images.Pull(ctx, ref, report)
}

// Refresh implements sandbox.Puller.
func (d *Driver) Refresh(ctx context.Context, ref string, report func(sandbox.Progress)) error {
	return d.images.Refresh(ctx, ref, report)
}

// Entrypoint implements sandbox.Entrypointer.
func (d *Driver) Entrypoint(_ context.Context, id sandbox.ID) ([]string, error) {
	e := d.find(id)
	if e == nil {
		return nil, sandbox.ErrNotFound
	}
	if e.Digest == "" {
		return nil, nil
	}
	img, err := d.images.Get(e.Digest)
	return img.Command, err
}

// collectImages removes the images that no sandbox is made of.
func (d *Driver) collectImages() error {
	return d.images.Collect(func() map[string]bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		used := make(map[string]bool)
		for _, e := range d.entries {
			used[e.Digest] = true
		}
		for _, r := range d.snapshots {
			used[r.Digest] = true
		}
		return used
	})
}

// A base is what a sandbox has before it writes anything.
type base struct {
	root     string   // folder with all of it but
	folders  []string // host folders that are shown in it
	owners   string   // archive to begin its writable layer with; empty: none
	rootOwns bool     // all is root's, though in the image it was not
	init     string   // Status.Init
	settings guest.Settings
}

// base returns the base of a sandbox.
func (d *Driver) base(r record) (base, error) {
	s := guest.Settings{Env: r.Spec.Env, User: r.Spec.User}
	if r.Digest == "" {
		return base{root: d.image, folders: d.host.folders, settings: s}, nil
	}
	img, err := d.images.Get(r.Digest)
	if errors.Is(err, fs.ErrNotExist) {
		return base{}, fmt.Errorf("its image is not in the state folder any more: %w", err)
	}
	if err != nil {
		return base{}, err
	}
	return base{root: img.Root, owners: img.Owners, rootOwns: img.OwnersLost, init: sandbox.InitOf(img.Command), settings: guest.Settings{
		Env:  slices.Concat(img.Env, s.Env),
		User: cmp.Or(s.User, img.User),
		Dir:  img.WorkingDir,
	}}, nil
}

// initOf returns the init of a sandbox's image.
func (d *Driver) initOf(r record) string {
	b, err := d.base(r)
	if err != nil {
		return "" // a start says so
	}
	return b.init
}

// baseNotes says what the host cannot do for a sandbox because of what it is made of.
func (d *Driver) baseNotes(r record) (notes []string) {
	b, err := d.base(r)
	if err != nil {
		return nil // a start says so
	}
	if b.rootOwns {
		notes = append(notes, "All files of the image belong to root, since the gateway does not run as root and too many of them belong to others.")
	}
	if r.Spec.Workspace == "" {
		return notes
	}
	if uid, _, ok := ids(b.root, b.settings.User); !ok {
		notes = append(notes, fmt.Sprintf("The workspace belongs to root in the sandbox, since the image has no user %q.", b.settings.User))
	} else if d.host.user && uid != 0 {
		notes = append(notes, "The workspace belongs to root in the sandbox, since the gateway does not run as root.")
	}
	return notes
}

// imitate gives the folder name of an upper layer, which a sandbox sees instead of
// that in the base, what the latter has.
func imitate(root, upper, name string, shift int) error {
	info, err := os.Lstat(filepath.Join(root, name))
	if err != nil {
		return err
	}
	stat := info.Sys().(*syscall.Stat_t)
	path := filepath.Join(upper, name)
	if err := os.Lchown(path, shift+int(stat.Uid), shift+int(stat.Gid)); err != nil {
		return err
	}
	return os.Chmod(path, info.Mode())
}
