//go:build linux

package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// Layers mark what they take away from those below them by names.
const (
	whiteoutPrefix = ".wh."
	opaqueName     = ".wh..wh..opq"
	ownPrefix      = ".wh..wh." // other names that aufs used for itself
)

// Bounds on one path. All but the depth are the host's own.
const (
	maxPath  = 4095
	maxName  = 255
	maxDepth = 256 // folders
	maxLinks = 255 // symbolic links on the way to one file
)

// maxOwner is the greatest user or group of an image. A sandbox has users 0 to
// 65535, of which the last two belong to nobody in particular.
const maxOwner = 1<<16 - 1

const nobody = 65534

// errTooBig says that an image has more in it than it may have.
var errTooBig = errors.New("image is too big")

// A corruptError says why a layer is none.
type corruptError struct{ err error }

func (e *corruptError) Error() string { return "corrupt image: " + e.err.Error() }

func (e *corruptError) Unwrap() error { return e.err }

func corrupt(format string, args ...any) error {
	return &corruptError{fmt.Errorf(format, args...)}
}

// An owner is who a file of an image belongs to.
type owner struct{ uid, gid int }

// attributes are those of a folder, which it gets when nothing is to be made in it
// any more.
type attributes struct {
	mode fs.FileMode
	time time.Time
}

// An extractor makes files of layers, the lowest first, below a folder that
// nothing leads out of: neither names with dots or slashes, nor links. Paths
// without a slash at the beginning are below that folder, and free of links.
type extractor struct {
	root *os.Root

	// chown is whether files are given to whom the layers say. Otherwise owners
	// holds all that are not root's.
	chown      bool
	owners     map[string]owner
	ownedBytes int64 // how many of them writeOwners takes

	entries int64 // that may still be made
	bytes   int64 // that may still be written
	stream  int64 // that may still be read of layers

	folders map[string]attributes
	fresh   map[string]bool // what the layer at hand has made

	// The folder that was used last, since files of one folder come in a row.
	dirName string // as the layer names it
	dirPath string
	dir     *os.Root // nil if there is none
}

// newExtractor returns an extractor into dir, which it does not close.
func newExtractor(dir *os.Root, chown bool, limits Limits) *extractor {
	return &extractor{
		root:       dir,
		chown:      chown,
		owners:     make(map[string]owner),
		ownedBytes: maxOwnedBytes,
		entries:    limits.Entries,
		bytes:      limits.Bytes,
		stream:     limits.Bytes,
		folders:    make(map[string]attributes),
	}
}

// layer extracts one layer, an uncompressed tar archive, over those before it.
func (x *extractor) layer(r io.Reader) error {
	defer x.leave()
	x.fresh = make(map[string]bool)
	archive := tar.NewReader(r)
	for {
		header, err := archive.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return readFault(err)
		}
		if err := x.entry(header, archive); err != nil {
			return fmt.Errorf("extract %.200q: %w", header.Name, contentFault(err))
		}
	}
}

// readFault makes what goes wrong when a layer is read a fault of the layer, unless
// it is the disk's, or something else that is known.
func readFault(err error) error {
	_, disk := errors.AsType[*fs.PathError](err)
	if disk || errors.Is(err, errTooBig) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return &corruptError{err}
}

// finish gives the folders what they are to be in the end, those in them first: it
// may be that nobody can go there any more.
func (x *extractor) finish() error {
	x.leave()
	names := slices.Sorted(maps.Keys(x.folders))
	slices.Reverse(names)
	if i := slices.Index(names, "."); i >= 0 { // which all are in
		names = append(slices.Delete(names, i, i+1), ".")
	}
	for _, name := range names {
		a := x.folders[name]
		if err := x.root.Chmod(name, a.mode); err != nil {
			return err
		}
		if err := x.root.Chtimes(name, a.time, a.time); err != nil {
			return err
		}
	}
	return nil
}

// leave gives up the folder that was used last.
func (x *extractor) leave() {
	if x.dir != nil {
		x.dir.Close()
		x.dir = nil
	}
}

// entry extracts one entry of a layer.
func (x *extractor) entry(h *tar.Header, content io.Reader) error {
	switch h.Typeflag {
	case tar.TypeXGlobalHeader:
		return nil
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		return nil // a sandbox has those of its own kernel
	}
	name, err := entryName(h.Name)
	if err != nil {
		return err
	}
	if name == "." {
		if h.Typeflag != tar.TypeDir {
			return corrupt("the root folder is none")
		}
		return x.folder(name, h)
	}
	parent, base := path.Split(name)
	if strings.HasPrefix(base, whiteoutPrefix) {
		return x.whiteout(parent, base)
	}
	if err := x.enter(parent); err != nil {
		return err
	}
	full := path.Join(x.dirPath, base)
	if err := checkPath(full); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeDir {
		return x.makeFolder(full, h)
	}
	if err := x.count(); err != nil {
		return err
	}
	// What is linked to is found before it may be removed to make room for the link.
	target := ""
	if h.Typeflag == tar.TypeLink {
		if target, err = x.target(h.Linkname); err != nil {
			return err
		}
		if target == full {
			return nil
		}
	}
	if err := x.remove(full); err != nil {
		return err
	}
	if x.dir == nil { // what was removed may have been on the way
		if err := x.enter(parent); err != nil {
			return err
		}
		if path.Join(x.dirPath, base) != full {
			return corrupt("it is on the way to itself")
		}
	}
	x.fresh[full] = true
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeCont:
		return x.file(full, base, h, content)
	case tar.TypeSymlink:
		return x.symlink(full, base, h)
	case tar.TypeLink:
		if err := x.root.Link(target, full); err != nil {
			if errors.Is(err, os.ErrNotExist) {
				return corrupt("hard link to %.200q, which is not there", h.Linkname)
			}
			return err
		}
		if o, ok := x.owners[target]; ok {
			x.owners[full] = o
		}
		return nil
	}
	return corrupt("entry of unknown type %q", h.Typeflag)
}

// entryName returns an entry's name as a path below the root folder.
func entryName(name string) (string, error) {
	if len(name) > maxPath || strings.Contains(name, "\x00") {
		return "", corrupt("bad name")
	}
	clean := strings.TrimPrefix(path.Clean("/"+name), "/")
	if clean == "" {
		return ".", nil
	}
	for part := range strings.SplitSeq(clean, "/") {
		if len(part) > maxName {
			return "", corrupt("bad name")
		}
	}
	return clean, nil
}

// checkPath says whether a path, with all links on it followed, is within bounds.
func checkPath(full string) error {
	if len(full) > maxPath || strings.Count(full, "/") >= maxDepth {
		return corrupt("path is too long")
	}
	return nil
}

// count counts an entry that is about to be made.
func (x *extractor) count() error {
	if x.entries--; x.entries < 0 {
		return errTooBig
	}
	return nil
}

// enter makes the folder that an entry is in the current one, and makes it and
// those it is in if they are not there.
func (x *extractor) enter(name string) error {
	if x.dir != nil && x.dirName == name {
		return nil
	}
	x.leave()
	full, err := x.resolve(name, true)
	if err != nil {
		return err
	}
	dir, err := x.root.OpenRoot(full)
	if err != nil {
		return err
	}
	x.dir, x.dirName, x.dirPath = dir, name, full
	return nil
}

// resolve follows the links in name, which are those of the image: a target that
// begins with a slash begins at the image's root folder, and no .. leads out of
// that. With create, folders that are not there are made.
func (x *extractor) resolve(name string, create bool) (string, error) {
	at := "."
	rest := strings.Split(strings.Trim(name, "/"), "/")
	for links := 0; len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, part)
		if err := checkPath(next); err != nil {
			return "", err
		}
		info, err := x.root.Lstat(next)
		switch {
		case errors.Is(err, os.ErrNotExist) && create:
			if err := x.implicit(next); err != nil {
				return "", err
			}
		case errors.Is(err, os.ErrNotExist):
			return "", fs.ErrNotExist
		case err != nil:
			return "", err
		case info.Mode().Type() == fs.ModeSymlink:
			if links++; links > maxLinks {
				return "", corrupt("too many links on the way")
			}
			target, err := x.root.Readlink(next)
			if err != nil {
				return "", err
			}
			if strings.HasPrefix(target, "/") {
				at = "."
			}
			rest = append(strings.Split(target, "/"), rest...)
			continue
		case !info.IsDir():
			return "", corrupt("%.200q is in a file", name)
		}
		at = next
	}
	return at, nil
}

// implicit makes a folder that no entry asks for, but that others are in.
func (x *extractor) implicit(full string) error {
	if err := x.count(); err != nil {
		return err
	}
	if err := x.root.Mkdir(full, 0o700); err != nil {
		return err
	}
	x.fresh[full] = true
	x.folders[full] = attributes{0o755, time.Unix(0, 0)}
	return nil
}

// makeFolder extracts a folder, which may be there already.
func (x *extractor) makeFolder(full string, h *tar.Header) error {
	info, err := x.root.Lstat(full)
	if err == nil && !info.IsDir() {
		if err := x.remove(full); err != nil {
			return err
		}
	}
	if err != nil || !info.IsDir() {
		if err := x.count(); err != nil {
			return err
		}
		if err := x.root.Mkdir(full, 0o700); err != nil {
			return err
		}
	}
	x.fresh[full] = true
	return x.folder(full, h)
}

// folder sets the attributes of a folder that is there.
func (x *extractor) folder(full string, h *tar.Header) error {
	x.folders[full] = attributes{modeOf(h), h.ModTime}
	return x.own(x.root, full, full, h)
}

// file extracts a regular file into the current folder.
func (x *extractor) file(full, base string, h *tar.Header, content io.Reader) error {
	if x.bytes -= h.Size; x.bytes < 0 {
		return errTooBig
	}
	f, err := x.dir.OpenFile(base, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(f, content); err != nil {
		return readFault(err)
	}
	// The owner first, as a change of it takes away the bits that change the user.
	if err := x.own(x.dir, base, full, h); err != nil {
		return err
	}
	if err := f.Chmod(modeOf(h)); err != nil {
		return err
	}
	return x.dir.Chtimes(base, h.ModTime, h.ModTime)
}

func (x *extractor) symlink(full, base string, h *tar.Header) error {
	if h.Linkname == "" || len(h.Linkname) > maxPath || strings.Contains(h.Linkname, "\x00") {
		return corrupt("bad target of a link")
	}
	if err := x.dir.Symlink(h.Linkname, base); err != nil {
		return err
	}
	return x.own(x.dir, base, full, h)
}

// target returns the path of what a hard link names. A symbolic link is linked to
// itself, those on the way are followed.
func (x *extractor) target(linkname string) (string, error) {
	name, err := entryName(linkname)
	if err != nil {
		return "", err
	}
	parent, base := path.Split(name)
	dir, err := x.resolve(parent, false)
	if errors.Is(err, fs.ErrNotExist) {
		return "", corrupt("hard link to %.200q, which is not there", linkname)
	}
	if err != nil {
		return "", err
	}
	full := path.Join(dir, base)
	if info, err := x.root.Lstat(full); err != nil || info.IsDir() {
		return "", corrupt("hard link to %.200q, which is no file", linkname)
	}
	return full, nil
}

// own gives name in dir, which is full below the root folder, to its owner.
func (x *extractor) own(dir *os.Root, name, full string, h *tar.Header) error {
	o := owner{h.Uid, h.Gid}
	if o.uid < 0 || o.uid > maxOwner {
		o.uid = nobody
	}
	if o.gid < 0 || o.gid > maxOwner {
		o.gid = nobody
	}
	if x.chown {
		return dir.Lchown(name, o.uid, o.gid)
	}
	if o == (owner{}) {
		delete(x.owners, full)
	} else {
		x.owners[full] = o
	}
	return nil
}

// modeOf returns an entry's permissions and the bits that change users or keep
// others from deleting.
func modeOf(h *tar.Header) fs.FileMode {
	return h.FileInfo().Mode() & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky)
}

// whiteout takes away what the layers below have at a place.
func (x *extractor) whiteout(parent, base string) error {
	dir, err := x.resolve(parent, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if base == opaqueName {
		return x.hideAll(dir)
	}
	name := strings.TrimPrefix(base, whiteoutPrefix)
	switch {
	case strings.HasPrefix(base, ownPrefix):
		return nil
	case name == "" || name == "." || name == "..":
		return corrupt("bad whiteout")
	}
	return x.hide(path.Join(dir, name))
}

// hide removes what the layers below have at full, and keeps what this one has,
// whatever the order in which that comes.
func (x *extractor) hide(full string) error {
	if !x.fresh[full] {
		return x.remove(full)
	}
	if info, err := x.root.Lstat(full); err != nil || !info.IsDir() {
		return nil
	}
	return x.hideAll(full)
}

// hideAll hides all that is in a folder.
func (x *extractor) hideAll(dir string) error {
	names, err := x.list(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := x.hide(path.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// list returns the names in a folder, or none if it is not there.
func (x *extractor) list(dir string) ([]string, error) {
	f, err := x.root.Open(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// remove removes full, with all that is in it, if it is there.
func (x *extractor) remove(full string) error {
	info, err := x.root.Lstat(full)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.IsDir() || info.Mode().Type() == fs.ModeSymlink {
		x.leave() // that may have been on the way to the current folder
	}
	if info.IsDir() {
		names, err := x.list(full)
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := x.remove(path.Join(full, name)); err != nil {
				return err
			}
		}
	}
	delete(x.folders, full)
	delete(x.owners, full)
	delete(x.fresh, full)
	return x.root.Remove(full)
}

// A Node is a folder or an empty file that an image has in the end, whatever is in
// its layers.
type Node struct {
	Path   string // absolute; parents come first
	Folder bool
}

// prepare makes the nodes. What is in their way is removed: they are where a
// driver mounts things, which must not end up elsewhere.
func (x *extractor) prepare(nodes []Node) error {
	x.fresh = make(map[string]bool)
	for _, n := range nodes {
		full := strings.TrimPrefix(n.Path, "/")
		info, err := x.root.Lstat(full)
		if err == nil && (n.Folder && info.IsDir() || !n.Folder && info.Mode().IsRegular()) {
			continue
		}
		if err := x.remove(full); err != nil {
			return err
		}
		if n.Folder {
			if err := x.implicit(full); err != nil {
				return err
			}
			continue
		}
		f, err := x.root.OpenFile(full, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Chmod(0o644), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// workDir makes the folder in which an image's programs begin, if there is none. A
// name that can be none is left to the guest, which says so.
func (x *extractor) workDir(dir string) error {
	if dir == "" {
		return nil
	}
	name, err := entryName(dir)
	if err != nil {
		return nil
	}
	if _, err := x.resolve(name, true); err != nil {
		if _, ok := errors.AsType[*corruptError](err); ok {
			return nil
		}
		return err
	}
	return nil
}
