package files

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// path reads a path. It is not cleaned: where ".." leads is for the kernel to
// say, who knows the links. The empty path is Dir
// (draft-ietf-secsh-filexfer-02, section 6.2), named so that it cannot be removed.
func (r *responder) path(p *packet) string { return r.absolute(p.text()) }

func (r *responder) absolute(name string) string {
	if strings.HasPrefix(name, "/") {
		return name
	}
	if name == "" {
		name = "."
	}
	return r.Dir + "/" + name
}

func (r *responder) remove(p *packet) error {
	name := r.path(p)
	if p.err != nil {
		return p.err
	}
	return unix.Unlink(name)
}

func (r *responder) mkdir(p *packet) error {
	name, a := r.path(p), p.attrs()
	if p.err != nil {
		return p.err
	}
	mode := uint32(0o777)
	if a.flags&attrMode != 0 {
		mode = a.mode & 0o7777
	}
	return unix.Mkdir(name, mode)
}

func (r *responder) rmdir(p *packet) error {
	name := r.path(p)
	if p.err != nil {
		return p.err
	}
	return unix.Rmdir(name)
}

// rename refuses to overwrite: draft-ietf-secsh-filexfer-02, section 6.5.
func (r *responder) rename(p *packet) error {
	from, to := r.path(p), r.path(p)
	if p.err != nil {
		return p.err
	}
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if err != unix.ENOSYS && err != unix.EINVAL {
		return err
	}
	return renameByLink(from, to)
}

// renameByLink is for kernels and file systems that know no RENAME_NOREPLACE.
// Like OpenSSH it links files, which never overwrites, and looks first if that
// is not possible, as with a directory.
func renameByLink(from, to string) error {
	switch err := unix.Link(from, to); err {
	case nil:
		err := unix.Unlink(from)
		if err != nil {
			unix.Unlink(to)
		}
		return err
	case unix.EEXIST, unix.ENOENT:
		return err
	}
	var st unix.Stat_t
	switch err := unix.Lstat(to, &st); err {
	case nil:
		return unix.EEXIST
	case unix.ENOENT:
		return unix.Rename(from, to)
	default:
		return err
	}
}

// posixRename is posix-rename@openssh.com: it overwrites, as rename(2) does.
func (r *responder) posixRename(_ uint32, p *packet) error {
	from, to := r.path(p), r.path(p)
	if p.err != nil {
		return p.err
	}
	return unix.Rename(from, to)
}

// hardlink is hardlink@openssh.com.
func (r *responder) hardlink(_ uint32, p *packet) error {
	from, to := r.path(p), r.path(p)
	if p.err != nil {
		return p.err
	}
	return unix.Link(from, to)
}

// symlink has its arguments in the order of OpenSSH's PROTOCOL, section 4.1: the
// reverse of the draft's. The link's text is kept byte for byte.
func (r *responder) symlink(p *packet) error {
	text, link := p.text(), r.path(p)
	if p.err != nil {
		return p.err
	}
	return unix.Symlink(text, link)
}

func (r *responder) readlink(id uint32, p *packet) error {
	name := r.path(p)
	if p.err != nil {
		return p.err
	}
	text, err := os.Readlink(name)
	if err != nil {
		return err
	}
	r.reply.name(id, text)
	return nil
}

func (r *responder) realpath(id uint32, p *packet) error {
	name := r.path(p)
	if p.err != nil {
		return p.err
	}
	return r.sendRealpath(id, name)
}

func (r *responder) sendRealpath(id uint32, name string) error {
	name, err := resolve(name)
	if err != nil {
		return err
	}
	r.reply.name(id, name)
	return nil
}

// resolve returns an absolute path without links, "." and "..". As in OpenSSH
// the last component need not exist.
func resolve(name string) (string, error) {
	real, err := filepath.EvalSymlinks(name)
	if !errors.Is(err, fs.ErrNotExist) {
		return real, err
	}
	dir, base := filepath.Split(strings.TrimRight(name, "/"))
	if base == "." || base == ".." {
		return "", err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return "", err
	}
	return filepath.Join(dir, base), nil
}
