//go:build linux

package gvisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandgate/sandbox/guest"
)

// Where things lie in the stage.
const (
	stageRoot   = "/rootfs" // the sandbox's root folder
	stageBundle = "/bundle" // config.json
	stageDisk   = "/disk"   // the sandbox's folder of the state folder
	stageRunsc  = "/runsc"  // runsc's --root

	stageWorkspace = "/workspace" // a folder that the sandbox shares with the host
)

// A plan tells the stage what to put together and what to run then.
type plan struct {
	// Mount is a folder to begin with. Any will do; nothing in it is changed.
	Mount string

	// Binds appear in the stage, in this order.
	Binds []bind

	// Overlays make up the root folder by the kernel's means, if there are any.
	// Shift is the host's user id of the sandbox's root.
	Overlays []layers
	Shift    int

	// Workspace appears in the stage as stageWorkspace; nil: there is none.
	Workspace *workspace

	// Cable says that the sandbox has a network, to be made in the network namespace
	// that the stage is in.
	Cable bool

	// Spec is written to the bundle, if there is one, and Args are runsc's arguments.
	// Without arguments the stage ends there: it was only tried. If it is Pinned, runsc
	// is the program in the sandbox, which is not this one.
	Spec   *specs.Spec
	Args   []string
	Pinned bool

	launch  *launch // what there is to be remembered
	resumes bool    // it reads memory, of which there may be much
}

// A bind shows Source, a path on the host, at Target in the stage.
type bind struct {
	Source, Target string
	ReadOnly       bool
}

// A layers is a folder that can be written to, over some that cannot. It shows at
// Target, a path in the sandbox. Upper and Work are paths in the stage; without
// them there is only Lower. Between lies what sandboxes have written before, the
// topmost first.
type layers struct {
	Lower, Target, Upper, Work string
	Between                    []lower
}

// A lower is a folder whose root is the host's user Shift.
type lower struct {
	Source string
	Shift  int
}

// stage puts together, in a mount namespace that this process is alone in, what
// a plan on r asks for. It makes that its root folder, drops the rest of the
// host, and returns the arguments to go on with as runsc.
func stage(r io.Reader) ([]string, error) {
	var p plan
	if err := json.NewDecoder(r).Decode(&p); err != nil {
		return nil, fmt.Errorf("read plan: %w", err)
	}
	if p.Cable {
		if err := layCable(); err != nil {
			return nil, err
		}
	}
	unix.Umask(0o022) // or the sandbox's users could not reach what is made here
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return nil, fmt.Errorf("make mounts private: %w", err)
	}
	// The sources are opened first because what is mounted next may hide them.
	trees := make([]int, len(p.Binds))
	for i, b := range p.Binds {
		var err error
		if trees[i], err = openTree(b); err != nil {
			return nil, err
		}
	}
	lowers, err := openLowers(p.Overlays, p.Shift)
	if err != nil {
		return nil, err
	}
	shared := -1
	if p.Workspace != nil {
		if shared, err = p.Workspace.open(); err != nil {
			return nil, err
		}
	}
	if err := unix.Mount("sandgate", p.Mount, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return nil, fmt.Errorf("mount stage: %w", err)
	}
	for i, b := range p.Binds {
		if err := attach(trees[i], b, p.Mount); err != nil {
			return nil, err
		}
	}
	for i, l := range p.Overlays {
		for j, source := range append(l.between(), l.Lower) {
			to := bind{Source: source, Target: lowerPath(i, j)}
			if l.Upper == "" {
				to.Target = filepath.Join(stageRoot, l.Target)
			}
			if err := attach(lowers[i][j], to, p.Mount); err != nil {
				return nil, err
			}
		}
	}
	if p.Workspace != nil {
		if err := attach(shared, bind{Source: p.Workspace.Source, Target: stageWorkspace}, p.Mount); err != nil {
			return nil, err
		}
	}
	if err := leave(p.Mount); err != nil {
		return nil, err
	}
	for i, l := range p.Overlays {
		if l.Upper == "" {
			continue
		}
		var below []string
		for j := range len(l.Between) + 1 {
			below = append(below, lowerPath(i, j))
		}
		if err := l.mount(strings.Join(below, ":")); err != nil {
			return nil, err
		}
	}
	if len(p.Args) == 0 {
		return nil, nil
	}
	if p.Spec != nil {
		if err := writeBundle(p.Spec); err != nil {
			return nil, err
		}
	}
	args, err := quiet(p.Args, p.Pinned)
	if err == nil && p.Pinned {
		err = runPinned(args)
	}
	return args, err
}

// openTree returns a copy of the mounts at and below the bind's source.
func openTree(b bind) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, b.Source,
		unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", b.Source, err)
	}
	if b.ReadOnly {
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID}
		if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
			return -1, fmt.Errorf("make %s read-only: %w", b.Source, err)
		}
	}
	return fd, nil
}

// between returns the paths of what lies between.
func (l layers) between() (paths []string) {
	for _, b := range l.Between {
		paths = append(paths, b.Source)
	}
	return paths
}

// lowerPath is where the stage shows the jth folder below overlay i.
func lowerPath(i, j int) string {
	return filepath.Join("/lower", strconv.Itoa(i)+"-"+strconv.Itoa(j))
}

// openLowers returns read-only copies of the mounts at the folders below each of
// the overlays, the topmost first, in which what belongs to their root appears as
// shift's, and so on. Mounts below them are left out, as an overlay would not show
// them.
func openLowers(overlays []layers, shift int) ([][]int, error) {
	users := make(map[int]*os.File) // by the shift that owners have
	defer func() {
		for _, u := range users {
			u.Close()
		}
	}()
	all := make([][]int, len(overlays))
	for i, l := range overlays {
		for _, low := range append(slices.Clone(l.Between), lower{Source: l.Lower}) {
			if users[low.Shift] == nil {
				ids := []syscall.SysProcIDMap{{ContainerID: low.Shift, HostID: shift, Size: idsPerSandbox}}
				var err error
				if users[low.Shift], err = userNamespace(ids, ids); err != nil {
					return nil, err
				}
			}
			fd, err := low.open(users[low.Shift])
			if err != nil {
				return nil, err
			}
			all[i] = append(all[i], fd)
		}
	}
	return all, nil
}

// open returns a read-only copy of the mount at the folder with these owners.
func (l lower) open(users *os.File) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, l.Source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", l.Source, err)
	}
	attr := unix.MountAttr{
		Attr_set:  unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_IDMAP,
		Userns_fd: uint64(users.Fd()),
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return -1, fmt.Errorf("shift the owners of %s: %w", l.Source, err)
	}
	return fd, nil
}

// userNamespace returns a user namespace with these ids. It is that of a child
// which, being traced, never runs an instruction of its program.
func userNamespace(uids, gids []syscall.SysProcIDMap) (*os.File, error) {
	child, err := os.StartProcess("/proc/self/exe", []string{"runsc-ids"}, &os.ProcAttr{
		Sys: &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER,
			UidMappings: uids,
			GidMappings: gids,
			Ptrace:      true,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("make user namespace: %w", err)
	}
	defer func() {
		child.Kill()
		child.Wait()
	}()
	return os.Open("/proc/" + strconv.Itoa(child.Pid) + "/ns/user")
}

// attach mounts tree at the bind's target below root, and makes the mount point
// if it is not there. No link on the way is followed: what is at root may already
// be a stranger's image.
func attach(tree int, b bind, root string) error {
	defer unix.Close(tree)
	at, err := openBelow(root, b.Target)
	if errors.Is(err, unix.ENOENT) {
		if err := os.MkdirAll(filepath.Join(root, b.Target), 0o755); err != nil {
			return err
		}
		at, err = openBelow(root, b.Target)
	}
	if err != nil {
		return fmt.Errorf("mount point %s: %w", b.Target, err)
	}
	defer unix.Close(at)
	err = unix.MoveMount(tree, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("mount %s at %s: %w", b.Source, b.Target, err)
	}
	return nil
}

// openBelow opens target, which is no link and below none, in the folder root.
func openBelow(root, target string) (int, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	return unix.Openat2(dir, filepath.Join(".", target), &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
}

// leave makes root the root folder and drops all other mounts.
func leave(root string) error {
	// The sentry mounts its own root folder there, before it enters that.
	if err := os.Mkdir(filepath.Join(root, "tmp"), 0o755); err != nil {
		return err
	}
	if err := unix.Chdir(root); err != nil {
		return fmt.Errorf("enter stage: %w", err)
	}
	// The old root comes to lie over the new one, from where it is taken off.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("make stage the root folder: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("drop the host's mounts: %w", err)
	}
	return unix.Chdir("/")
}

// mount mounts the layers, of which the lower ones are already mounted at lower.
func (l layers) mount(lower string) error {
	// The last three keep out of the upper folder what would tie it to one lower
	// folder for ever: the host's programs change from one start to the next.
	options := "lowerdir=" + lower + ",upperdir=" + l.Upper + ",workdir=" + l.Work +
		",index=off,redirect_dir=off,metacopy=off"
	target := filepath.Join(stageRoot, l.Target)
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("overlay", target, "overlay", 0, options); err != nil {
		return fmt.Errorf("mount overlay on %s: %w", l.Target, err)
	}
	return nil
}

func writeBundle(spec *specs.Spec) error {
	config, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	if err := os.Mkdir(stageBundle, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(stageBundle, "config.json"), config, 0o644)
}

// quiet points this process's standard files, which become those of the guest,
// to nothing, and returns args with an option that makes runsc report errors to
// what was standard error; with pinned another program is to have that.
func quiet(args []string, pinned bool) ([]string, error) {
	dup := unix.F_DUPFD_CLOEXEC
	if pinned {
		dup = unix.F_DUPFD
	}
	stderr, err := unix.FcntlInt(2, dup, 3)
	if err != nil {
		return nil, fmt.Errorf("keep standard error: %w", err)
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/null: %w", err)
	}
	defer unix.Close(null)
	for fd := range 3 {
		if err := unix.Dup3(null, fd, 0); err != nil {
			return nil, fmt.Errorf("replace standard files: %w", err)
		}
	}
	return append([]string{runscName, "--log-fd=" + strconv.Itoa(stderr)}, args...), nil
}

// runPinned becomes the program that the sandbox was started with.
func runPinned(args []string) error {
	program := filepath.Join(stageGuest, filepath.Base(guest.Executable))
	args = append([]string{pinnedName}, args[1:]...)
	return fmt.Errorf("run %s: %w", program, unix.Exec(program, args, nil))
}
