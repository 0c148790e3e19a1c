//go:build linux

package gvisor

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandgate/sandbox"
)

// plan says how to put together and run a sandbox.
func (d *Driver) plan(e *entry, b base) plan {
	settings := b.settings
	settings.Starved = e.starved()
	p := plan{
		Mount: e.run,
		Binds: []bind{
			{Source: "/proc", Target: "/proc"},
			{Source: "/sys", Target: "/sys"},
			{Source: "/dev", Target: "/dev"},
			{Source: e.dir, Target: stageDisk},
			{Source: filepath.Dir(d.program), Target: stageGuest, ReadOnly: true},
			{Source: e.socket.Dir(), Target: stageSocket, ReadOnly: true},
			{Source: e.runsc(), Target: stageRunsc},
		},
		Shift:     e.shift(),
		Workspace: d.workspace(e.Spec, b, e.shift()),
		Spec:      runtimeSpec(e.Spec, settings, e.shift(), d.host.groups),
		Args: []string{
			"--root=" + stageRunsc,
			"--platform=systrap",
			"--network=" + runscNetwork(e.Spec),
			"--gofer-network-namespace=new",
			"--host-uds=open",
			"--allow-suid",
		},
	}
	if e.Spec.Network == sandbox.NetworkFull {
		p.Cable = true
		p.Args = append(p.Args, "--gso=false") // packets as they would be on a wire
	}
	// Its waits spin. Where there are no processors to spare they hold up what
	// they wait for: a command takes a tenth longer, and no bulk is faster.
	if runtime.NumCPU() <= 2 {
		p.Args = append(p.Args, "--systrap-disable-fast-path")
	}
	// Joining them takes a quarter of the time that a start takes.
	if d.host.groups.enforced(e.Spec.Limits) == (sandbox.Limits{}) {
		p.Args = append(p.Args, "--ignore-cgroups")
	}
	run := []string{"run", "--detach", "--bundle=" + stageBundle}
	if e.Saved {
		if e.Shared {
			p.Binds = append(p.Binds, readOnlyRoot(e, b)...)
		} else {
			for _, part := range readOnlyRoot(e, b) {
				p.Overlays = append(p.Overlays, layers{Lower: part.Source, Target: strings.TrimPrefix(part.Target, stageRoot)})
			}
		}
		overlay := "--overlay2=root:dir=" + filepath.Join(stageDisk, upperDir)
		if e.Spec.Limits.Disk > 0 {
			overlay += fmt.Sprintf(",size=%d", e.Spec.Limits.Disk)
		}
		p.Args = append(p.Args, overlay)
		if save := e.lastSave(); save != "" {
			run = append(run, "--fs-restore-image-path="+filepath.Join(stageDisk, save))
		} else if b.owners != "" {
			p.Binds = append(p.Binds, bind{Source: filepath.Dir(b.owners), Target: stageImage, ReadOnly: true})
			p.Args = append(p.Args, "--allow-rootfs-tar-annotation")
			p.Spec.Annotations = map[string]string{annotationUpper: filepath.Join(stageImage, filepath.Base(b.owners))}
		}
	} else {
		p.Overlays = writableRoot(b)
		for i, l := range p.Overlays {
			part := upperDir
			if l.Target == "/" {
				part = rootDir
			}
			p.Overlays[i].Between = d.below(e.Layers, filepath.Join(part, l.Target))
		}
		p.Args = append(p.Args, "--overlay2=none")
	}
	p.launch = &launch{Program: d.program, Spec: p.Spec, Args: slices.Clone(p.Args)}
	if e.Digest == "" {
		p.launch.Image = b.root
	}
	p.Args = append(p.Args, append(run, string(e.Spec.ID))...)
	return p
}

// planResume says how to put together a sandbox as before, and go on with what is in
// its resumingDir.
func (d *Driver) planResume(e *entry, b base, began *launch) plan {
	if began.Image != "" {
		b.root = began.Image
	}
	p := d.plan(e, b)
	for i, bind := range p.Binds {
		if bind.Target == stageGuest {
			p.Binds[i].Source = filepath.Dir(began.Program)
		}
	}
	// Another version of this program may have made the checkpoint.
	p.Pinned = began.Program != d.program
	p.launch, p.Spec, p.resumes = began, began.Spec, true
	p.Args = append(slices.Clone(began.Args), "restore", "--detach",
		"--image-path="+filepath.Join(stageDisk, resumingDir), "--bundle="+stageBundle, string(e.Spec.ID))
	return p
}

// readOnlyRoot says what a root folder consists of over which gVisor has its own
// writable layer.
func readOnlyRoot(e *entry, b base) []bind {
	root := []bind{{Source: b.root, Target: stageRoot, ReadOnly: true}}
	for _, dir := range b.folders {
		root = append(root, bind{Source: dir, Target: filepath.Join(stageRoot, dir), ReadOnly: true})
	}
	for _, n := range nameFiles("", "") {
		root = append(root, bind{
			Source:   filepath.Join(e.dir, rootDir, n.path),
			Target:   filepath.Join(stageRoot, n.path),
			ReadOnly: true,
		})
	}
	return root
}

// writableRoot says the same for one that the kernel makes writable.
func writableRoot(b base) []layers {
	root := []layers{{
		Lower: b.root, Target: "/",
		Upper: filepath.Join(stageDisk, rootDir),
		Work:  filepath.Join(stageDisk, workDir, rootDir),
	}}
	for _, dir := range b.folders {
		root = append(root, layers{
			Lower: dir, Target: dir,
			Upper: filepath.Join(stageDisk, upperDir, dir),
			Work:  filepath.Join(stageDisk, workDir, dir),
		})
	}
	return root
}

// runscNetwork is what runsc calls a sandbox's network.
func runscNetwork(s sandbox.Spec) string {
	if s.Network == sandbox.NetworkFull {
		return "sandbox"
	}
	return "none"
}

// runStage runs the stage for e, and then runsc if the plan says so. cable is where
// the stage sends its end of the network, if it has one.
func (d *Driver) runStage(ctx context.Context, e *entry, p plan, cable *os.File) error {
	limit := startTimeout
	if p.resumes {
		limit = saveTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	text, err := json.Marshal(p)
	if err == nil && p.launch != nil {
		// Before there is something to know it of; see recall.
		err = p.launch.write(e.run)
	}
	if err != nil {
		return err
	}
	cmd := d.command(ctx, stageName, string(e.Spec.ID))
	cmd.Stdin = bytes.NewReader(text)
	cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWNS
	if cable != nil {
		cmd.ExtraFiles = []*os.File{cable}
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWNET
	}
	d.asUser(cmd)
	if err := call(ctx, cmd); err != nil {
		return err
	}
	if p.launch != nil {
		e.launch = p.launch
	}
	return nil
}

// asUser gives a command that an ordinary user runs a user namespace of its own.
func (d *Driver) asUser(cmd *exec.Cmd) {
	if d.host.mode.user {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
}

// runsc runs a command of runsc about a sandbox that runs.
func (d *Driver) runsc(ctx context.Context, e *entry, limit time.Duration, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := d.command(ctx, runscName, append([]string{"--root=" + e.runsc()}, args...)...)
	if e.launch != nil {
		cmd.Path = e.launch.Program // which the sandbox's kernel understands
	}
	if err := call(ctx, cmd); err != nil {
		return fmt.Errorf("runsc %s: %w", args[0], err)
	}
	return nil
}

// command is our own program under another name. It gets nothing of our
// environment, and no signals that are meant for us.
func (d *Driver) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, d.program)
	cmd.Args = append([]string{name}, args...)
	cmd.Env = []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// If it is killed, what it started may keep its standard error open.
	cmd.WaitDelay = time.Second
	return cmd
}

// call runs cmd. The error contains the last of what it wrote to standard error.
func call(ctx context.Context, cmd *exec.Cmd) error {
	var stderr tail
	cmd.Stderr = &stderr
	err := cmd.Run()
	if err == nil {
		return nil
	}
	if cmd.Process != nil {
		endGroup(cmd.Process.Pid)
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if said := stderr.text(); said != "" {
		return fmt.Errorf("%s (%w)", said, err)
	}
	return err
}

// endGroup ends what a failed command has left of its process group, and reaps
// it: orphans become this process's children.
func endGroup(group int) {
	unix.Kill(-group, unix.SIGKILL)
	for deadline := time.Now().Add(killTimeout); time.Now().Before(deadline); {
		pid, err := unix.Wait4(-group, nil, unix.WNOHANG, nil)
		if err != nil && err != unix.EINTR {
			return // none is left
		}
		if pid == 0 {
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// A tail keeps the last of what is written to it.
type tail struct{ buf []byte }

const tailSize = 4096

func (t *tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - tailSize; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

// text returns what was written as one line. runsc writes its errors as JSON.
func (t *tail) text() string {
	var lines []string
	for rest := t.buf; ; {
		var e struct {
			Msg string `json:"msg"`
		}
		dec := json.NewDecoder(bytes.NewReader(rest))
		if dec.Decode(&e) != nil || e.Msg == "" {
			lines = append(lines, strings.Fields(string(rest))...)
			return strings.Join(lines, " ")
		}
		lines = append(lines, e.Msg)
		rest = rest[dec.InputOffset():]
	}
}

// runFolder returns the folder for what lasts until the host goes down, and
// makes it. dir is what the user asked for, if anything.
func runFolder(dir, state string) (string, error) {
	if dir == "" {
		dir = defaultRunFolder(shortHash(state))
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	// The longest address of a socket that runsc makes.
	const socket = "/0123456789abcdef/runsc/runsc-0123456789abcdef.sock"
	if len(dir)+len(socket) >= len(syscall.RawSockaddrUnix{}.Path) {
		return "", fmt.Errorf("path of run folder %s is too long", dir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", err
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; int(owner) != os.Geteuid() || !info.IsDir() || info.Mode().Perm()&0o022 != 0 {
		return "", fmt.Errorf("run folder %s is not a folder that only we can write to", dir)
	}
	return dir, nil
}

// defaultRunFolder returns a folder for a driver, below one that no other user
// can write to, or at least not to what is ours.
func defaultRunFolder(name string) string {
	uid := strconv.Itoa(os.Geteuid())
	if uid == "0" {
		return filepath.Join("/run/sandgate", name)
	}
	if dir := filepath.Join("/run/user", uid); unix.Access(dir, unix.W_OK) == nil {
		return filepath.Join(dir, "sandgate", name)
	}
	// Not where TMPDIR says: it must be short, and the same at the next start.
	return filepath.Join("/tmp", "sandgate-"+uid+"-"+name)
}
