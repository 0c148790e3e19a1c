//go:build linux

package image

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"syscall"
	"time"
)

// Bounds on what belongs to others than root, where these cannot be kept on the
// disk: a sandbox reads it into memory when it first starts.
const (
	maxOwnedBytes = 256 << 20
	maxOwnedFiles = 100_000
)

// writeOwners writes an archive of all that is not root's, with its owners and the
// folders that it is in. It returns false, and writes nothing, if there is too much
// of it. Files may be more readable afterwards than they were.
func (x *extractor) writeOwners(w io.Writer) (bool, error) {
	paths := make(map[string]fs.FileInfo)
	size := int64(0)
	for full := range x.owners {
		info, err := x.root.Lstat(full)
		if err != nil {
			return false, err
		}
		paths[full] = info
		size += info.Size()
	}
	if size > x.ownedBytes || len(paths) > maxOwnedFiles {
		return false, nil
	}
	for full := range x.owners {
		for full != "." {
			full = path.Dir(full)
			if _, ok := paths[full]; ok {
				break
			}
			info, err := x.root.Lstat(full)
			if err != nil {
				return false, err
			}
			paths[full] = info
		}
	}
	archive := tar.NewWriter(w)
	names := make(map[uint64]string) // of files with several, by inode
	for _, full := range slices.Sorted(maps.Keys(paths)) {
		if err := x.writeOwned(archive, full, paths[full], names); err != nil {
			return false, err
		}
	}
	return true, archive.Close()
}

// writeOwned writes one entry, under a name as gVisor expects it.
func (x *extractor) writeOwned(archive *tar.Writer, full string, info fs.FileInfo, names map[uint64]string) error {
	o := x.owners[full]
	mode, modified := info.Mode(), info.ModTime()
	h := &tar.Header{Name: "./" + full, Uid: o.uid, Gid: o.gid}
	switch {
	case info.IsDir():
		h.Typeflag = tar.TypeDir
		h.Name += "/"
		if full == "." {
			h.Name = "./"
		}
		mode, modified = 0o755, time.Unix(0, 0)
		if a, ok := x.folders[full]; ok {
			mode, modified = a.mode, a.time
		}
	case mode.Type() == fs.ModeSymlink:
		h.Typeflag = tar.TypeSymlink
		target, err := x.root.Readlink(full)
		if err != nil {
			return err
		}
		h.Linkname = target
	default:
		h.Typeflag = tar.TypeReg
		h.Size = info.Size()
		if stat := info.Sys().(*syscall.Stat_t); stat.Nlink > 1 {
			if first, ok := names[stat.Ino]; ok {
				h.Typeflag, h.Size, h.Linkname = tar.TypeLink, 0, first
			} else {
				names[stat.Ino] = h.Name
			}
		}
	}
	h.Mode, h.ModTime = permissions(mode), modified
	if err := archive.WriteHeader(h); err != nil {
		return err
	}
	if h.Size == 0 {
		return nil
	}
	f, err := x.root.Open(full)
	if errors.Is(err, os.ErrPermission) { // whose owner may not read it
		if err := x.root.Chmod(full, 0o600); err != nil {
			return err
		}
		f, err = x.root.Open(full)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(archive, f)
	return err
}

// permissions are a mode's as archives have them.
func permissions(mode fs.FileMode) int64 {
	bits := int64(mode.Perm())
	for flag, bit := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if mode&flag != 0 {
			bits |= bit
		}
	}
	return bits
}
