//go:build linux

package gvisor

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"sandgate/sandbox"
)

// workspaceDir is where a sandbox has its workspace.
const workspaceDir = "/workspace"

// A workspace is a folder of the host that a sandbox shares. What it has on the
// host belongs to the folder's owner, and in the sandbox to UID and GID there.
type workspace struct {
	Source   string // has no symbolic link on the way
	Shift    int    // the host's user id of the sandbox's root
	UID, GID int    // below idsPerSandbox

	// Own says that this process cannot give owners other names. The folder then
	// has to be its user's own, who is the sandbox's root.
	Own bool
}

// workspace returns the one of a sandbox.
func (d *Driver) workspace(s sandbox.Spec, b base, shift int) *workspace {
	if s.Workspace == "" {
		return nil
	}
	uid, gid, _ := ids(b.root, b.settings.User)
	return &workspace{Source: s.Workspace, Shift: shift, UID: uid, GID: gid, Own: d.host.user}
}

// open returns a mount of the folder that is nowhere yet. The folder is held from
// the first look on, so that nobody can put another in its place, and nothing on
// the way to it may be a link.
func (w *workspace) open() (int, error) {
	dir, err := unix.Openat2(unix.AT_FDCWD, w.Source, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return -1, fmt.Errorf("open workspace %s: %w", w.Source, err)
	}
	defer unix.Close(dir)
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return -1, fmt.Errorf("open workspace %s: %w", w.Source, err)
	}
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_EMPTY_PATH)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID}
	if w.Own {
		flags |= unix.AT_RECURSIVE // a user namespace may not uncover what is below mounts
	} else {
		users, err := userNamespace(w.mapping(int(st.Uid), w.UID), w.mapping(int(st.Gid), w.GID))
		if err != nil {
			return -1, err
		}
		defer users.Close()
		attr.Attr_set |= unix.MOUNT_ATTR_IDMAP
		attr.Userns_fd = uint64(users.Fd())
	}
	tree, err := unix.OpenTree(dir, "", flags)
	if err != nil {
		return -1, fmt.Errorf("open workspace %s: %w", w.Source, err)
	}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|flags&unix.AT_RECURSIVE, &attr); err != nil {
		unix.Close(tree)
		return -1, fmt.Errorf("shift the owners of workspace %s: %w", w.Source, err)
	}
	return tree, nil
}

// mapping says as whom the owners of files on the disk appear in a mount: owner as
// the sandbox's user, and the sandbox's other users as they are, so that they too
// can keep files there. Nobody else of the host has a name there.
func (w *workspace) mapping(owner, user int) []syscall.SysProcIDMap {
	var ids []syscall.SysProcIDMap
	show := func(disk, as, n int) {
		if n > 0 {
			ids = append(ids, syscall.SysProcIDMap{ContainerID: disk, HostID: as, Size: n})
		}
	}
	first, end := w.Shift, w.Shift+idsPerSandbox
	as := w.Shift + user
	show(owner, as, 1)
	taken := []int{as}
	if owner != as && first <= owner && owner < end {
		show(as, owner, 1)
		taken = append(taken, owner)
		slices.Sort(taken)
	}
	for _, t := range taken {
		show(first, first, t-first)
		first = t + 1
	}
	show(first, first, end-first)
	return ids
}

// checkWorkspace says whether this host can show a sandbox its workspace.
func (d *Driver) checkWorkspace(spec sandbox.Spec) error {
	refuse := func(format string, args ...any) error {
		return &sandbox.UnsupportedError{Reason: fmt.Sprintf(format, args...)}
	}
	if d.host.user {
		info, err := os.Lstat(spec.Workspace)
		if err != nil {
			return err
		}
		if owner := int(info.Sys().(*syscall.Stat_t).Uid); owner != os.Geteuid() {
			return refuse("workspace %s belongs to user %d of the host: a gateway that does not run as root can only share folders of its own user's", spec.Workspace, owner)
		}
		// The image may not be here yet. Every one has a root, who is 0.
		if uid, _, ok := ids(d.image, spec.User); !ok || uid != 0 {
			return refuse("with a workspace only root can be the user, as the gateway does not run as root")
		}
		return nil
	}
	shift := 0
	if d.host.overlay {
		shift = idsBase // as good as any
	}
	tree, err := d.workspace(spec, base{root: d.image}, shift).open()
	if errors.Is(err, unix.EINVAL) {
		return refuse("workspace %s lies on a file system that cannot give its owners other names", spec.Workspace)
	}
	if err != nil {
		return err
	}
	return unix.Close(tree)
}

// ids returns the numbers that a user of an image, which is a folder, has in a
// sandbox. For one that the image does not have they are root's, and ok is false.
func ids(image, user string) (uid, gid int, ok bool) {
	name, group, _ := strings.Cut(user, ":")
	if name == "" {
		name = "root"
	}
	uid, gid, ok = passwdIDs(filepath.Join(image, "etc/passwd"), name)
	if n, err := strconv.Atoi(name); err == nil {
		uid, ok = n, true
	}
	if n, err := strconv.Atoi(group); err == nil {
		gid = n
	}
	if !ok || uid >= idsPerSandbox || gid >= idsPerSandbox {
		return 0, 0, false
	}
	return uid, gid, true
}

// passwdIDs returns the numbers of the user with that name or number in a
// passwd(5) file.
func passwdIDs(file, user string) (uid, gid int, ok bool) {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return 0, 0, false
	}
	defer f.Close()
	lines := bufio.NewScanner(io.LimitReader(f, 1<<20))
	for lines.Scan() {
		fields := strings.Split(lines.Text(), ":")
		if len(fields) < 4 || fields[0] != user && fields[2] != user {
			continue
		}
		uid, err1 := strconv.Atoi(fields[2])
		gid, err2 := strconv.Atoi(fields[3])
		if err1 == nil && err2 == nil {
			return uid, gid, true
		}
	}
	return 0, 0, false
}
