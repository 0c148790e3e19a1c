package docker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/cli/cli/connhelper"
	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/client"

	"sandgate/sandbox"
)

// An engine is what the driver asks of Docker's API. This file alone knows the
// client, and uses only calls that Podman has, too.
type engine struct {
	client *client.Client
	host   string // its address, for people
}

// Time limits of calls.
const (
	callTimeout  = 15 * time.Second
	startTimeout = 45 * time.Second // to make or start a container
	copyTimeout  = 5 * time.Minute  // to copy the program into one
)

// Errors of the engine that callers tell apart.
var (
	errNoImage    = errors.New("no such image")
	errExists     = errors.New("the container exists")
	errNotRunning = errors.New("the container does not run")
	errNoQuota    = errors.New("the storage driver cannot limit a disk")
)

// newEngine returns the engine of cfg. It does not ask for it yet.
func newEngine(cfg Config) (*engine, error) {
	host := cfg.Host
	if host == "" {
		host = client.DefaultDockerHost
	}
	opts := []client.Opt{client.WithHost(host), client.WithAPIVersionNegotiation()}
	if cfg.Certificates != "" {
		opts = append(opts, client.WithTLSClientConfig(
			filepath.Join(cfg.Certificates, "ca.pem"),
			filepath.Join(cfg.Certificates, "cert.pem"),
			filepath.Join(cfg.Certificates, "key.pem")))
	}
	helper, err := connhelper.GetConnectionHelper(host)
	if err != nil {
		return nil, fmt.Errorf("engine %s: %w", host, err)
	}
	if helper != nil { // ssh
		opts = append(opts, client.WithHost(helper.Host), client.WithDialContext(helper.Dialer))
	}
	c, err := client.NewClientWithOpts(opts...)
	if err != nil {
		return nil, fmt.Errorf("engine %s: %w", host, err)
	}
	return &engine{c, host}, nil
}

// shares says whether folders of this host can be mounted. Only where processes on
// both sides of a mount have the same kernel does a socket work through it.
func (e *engine) shares(cfg Config) bool {
	return !cfg.Copy && runtime.GOOS == "linux" && strings.HasPrefix(e.host, "unix://")
}

func (e *engine) close() error { return e.client.Close() }

// fault names what is wrong with an error of the client, where callers care.
func (e *engine) fault(err error) error {
	var dial *net.OpError
	switch {
	case err == nil:
		return nil
	case cerrdefs.IsNotFound(err):
		return fmt.Errorf("%w: %v", sandbox.ErrNotFound, err)
	case client.IsErrConnectionFailed(err), errors.As(err, &dial), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return e.unavailable(err)
	}
	return err
}

func (e *engine) unavailable(err error) error {
	return &sandbox.UnavailableError{
		Reason: fmt.Sprintf("the Docker engine at %s does not answer", e.host),
		Remedy: "start it, for example with: systemctl start docker; sandboxes are there again as soon as it is",
		Err:    err,
	}
}

// within calls the engine and gives up after some time, which is the engine's
// fault and not the caller's.
func (e *engine) within(ctx context.Context, timeout time.Duration, call func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := call(limited)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil && limited.Err() != nil {
		return e.unavailable(fmt.Errorf("no answer within %v: %w", timeout, err))
	}
	return e.fault(err)
}

// abilities are what the engine can do.
type abilities struct {
	os, arch           string
	cpus, memory, pids bool // limits of these
	shiftsUsers        bool // root in a container is not the host's
	rootless           bool // nor is the engine's own user
	desktop            bool // its host is a machine within another
	runtimes           []string
	storage            string // the storage driver's name
	backing            string // the file system that it is on, where that matters to it
	snapshotter        bool   // it is containerd's, which forgets a limit on a disk
	podman             bool
}

func (e *engine) abilities(ctx context.Context) (abilities, error) {
	var a abilities
	err := e.within(ctx, callTimeout, func(ctx context.Context) error {
		info, err := e.client.Info(ctx)
		if err != nil {
			return err
		}
		version, err := e.client.ServerVersion(ctx)
		if err != nil {
			return err
		}
		a = abilities{
			os:     info.OSType,
			arch:   info.Architecture,
			cpus:   info.CPUCfsQuota,
			memory: info.MemoryLimit,
			pids:   info.PidsLimit,

			desktop: info.OperatingSystem == "Docker Desktop",
			storage: info.Driver,
			podman:  slices.ContainsFunc(version.Components, func(c types.ComponentVersion) bool { return c.Name == "Podman Engine" }),
		}
		for _, s := range info.DriverStatus {
			switch s[0] {
			case "Backing Filesystem":
				a.backing = s[1]
			case "driver-type":
				a.snapshotter = strings.HasPrefix(s[1], "io.containerd.")
			}
		}
		for name := range info.Runtimes {
			a.runtimes = append(a.runtimes, name)
		}
		for _, option := range info.SecurityOptions {
			a.shiftsUsers = a.shiftsUsers || option == "name=userns"
			a.rootless = a.rootless || option == "name=rootless"
		}
		return nil
	})
	return a, err
}

// A plan says what a container is made of.
type plan struct {
	name     string
	labels   map[string]string
	image    string
	hostname string
	runtime  string // empty: the engine's default
	network  string
	argv     []string
	env      []string
	binds    []bind
	limits   sandbox.Limits
	storage  string // what a limit on the disk is up to

	user        string // empty: root
	caps        []string
	volumes     []string // folders that are not the image's
	volumesFrom string   // another container whose volumes it has, too
	dns         string
	sysctls     map[string]string
	hostUsers   bool // the host's, on an engine that shifts users
}

// A bind is a folder of the engine's host that is mounted in a container.
type bind struct {
	source, target string
	readOnly       bool
}

// capabilities are what the package managers of the usual images need: to own and
// change files, to become other users, to run scripts in a root folder, and to
// give capabilities to files, without which rpm refuses packages. All of them end
// at the sandbox's edge.
var capabilities = []string{
	"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE",
	"SETFCAP", "SETGID", "SETUID", "SYS_CHROOT",
}

// spareThreads are for gVisor's kernel itself.
const spareThreads = 4096

// isGVisor says whether a runtime is gVisor, by the names that its documentation and
// ours give it.
func isGVisor(runtime string) bool {
	return runtime == "sandgate" || strings.HasPrefix(runtime, "runsc")
}

// create makes a container. errExists, errNoImage and errNoQuota are told apart.
func (e *engine) create(ctx context.Context, p plan) error {
	config := &container.Config{
		Hostname:    p.hostname,
		User:        cmp.Or(p.user, "0:0"),
		WorkingDir:  "/",
		Entrypoint:  p.argv,
		Cmd:         []string{},
		Env:         p.env,
		Image:       p.image,
		Labels:      p.labels,
		StopSignal:  "SIGTERM",
		Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
		Volumes:     make(map[string]struct{}),
	}
	for _, folder := range p.volumes {
		config.Volumes[folder] = struct{}{}
	}
	host := &container.HostConfig{
		NetworkMode: container.NetworkMode(p.network),
		Runtime:     p.runtime,
		CapDrop:     []string{"ALL"},
		CapAdd:      p.caps,
		Sysctls:     p.sysctls,
		SecurityOpt: []string{"no-new-privileges"},
		// What the guest writes is nobody's business, and could fill the disk.
		LogConfig: container.LogConfig{Type: "none"},
		Resources: resources(p.limits),
	}
	if p.dns != "" {
		host.DNS = []string{p.dns}
	}
	if p.volumesFrom != "" {
		host.VolumesFrom = []string{p.volumesFrom}
	}
	if p.hostUsers {
		host.UsernsMode = "host"
	}
	if p.network == "none" && p.hostname != "" {
		// Elsewhere the engine does this itself.
		host.ExtraHosts = []string{p.hostname + ":127.0.1.1"}
	}
	if n := p.limits.PIDs; n > 0 {
		if isGVisor(p.runtime) {
			// The engine's limit counts gVisor's own threads, and one that meets
			// it dies with the sandbox: it is a backstop to gVisor's own limit.
			host.PidsLimit = new(2*n + spareThreads)
			host.Ulimits = []*container.Ulimit{{Name: "nproc", Soft: n, Hard: n}}
		}
	}
	if p.limits.Disk > 0 {
		host.StorageOpt = map[string]string{"size": fmt.Sprint(p.limits.Disk)}
	}
	for _, b := range p.binds {
		host.Mounts = append(host.Mounts, mount.Mount{
			Type: mount.TypeBind, Source: b.source, Target: b.target, ReadOnly: b.readOnly,
		})
	}
	return e.within(ctx, startTimeout, func(ctx context.Context) error {
		_, err := e.client.ContainerCreate(ctx, config, host, nil, nil, p.name)
		switch {
		case cerrdefs.IsNotFound(err):
			return errNoImage
		case cerrdefs.IsConflict(err):
			return errExists
		case err != nil && p.limits.Disk > 0 && (strings.Contains(err.Error(), "storage-opt") || strings.Contains(err.Error(), "storage option")):
			return errNoQuota
		}
		return err
	})
}

// resources are what an engine calls limits.
func resources(l sandbox.Limits) container.Resources {
	r := container.Resources{NanoCPUs: int64(l.CPUs * 1e9)}
	if l.Memory > 0 {
		r.Memory, r.MemorySwap = l.Memory, l.Memory
	}
	if l.PIDs > 0 {
		r.PidsLimit = &l.PIDs
	}
	return r
}

// update changes the limits of a container, but for those that are zero.
func (e *engine) update(ctx context.Context, name string, l sandbox.Limits) error {
	return e.within(ctx, callTimeout, func(ctx context.Context) error {
		_, err := e.client.ContainerUpdate(ctx, name, container.UpdateConfig{Resources: resources(l)})
		return err
	})
}

// stats returns what a container has used since its start; nothing, if it does not
// run.
func (e *engine) stats(ctx context.Context, name string) (sandbox.Reading, error) {
	var r sandbox.Reading
	err := e.within(ctx, callTimeout, func(ctx context.Context) error {
		answer, err := e.client.ContainerStatsOneShot(ctx, name)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		var s container.StatsResponse
		if err := json.NewDecoder(io.LimitReader(answer.Body, maxStats)).Decode(&s); err != nil {
			return err
		}
		if s.CPUStats.CPUUsage.TotalUsage > 0 {
			r.CPU = new(time.Duration(s.CPUStats.CPUUsage.TotalUsage))
		}
		if s.MemoryStats.MaxUsage > 0 { // control groups of version 1 only
			r.MemoryPeak = new(int64(s.MemoryStats.MaxUsage))
		}
		return nil
	})
	return r, err
}

// maxStats bounds what an engine says of a container.
const maxStats = 1 << 20

// A box is a container as the engine sees it.
type box struct {
	labels  map[string]string
	running bool // also when it is paused
	paused  bool

	// Only what inspect returns has the rest.
	started   time.Time // by the engine's clock
	exitCode  int
	oomKilled bool
	runtime   string
	image     string         // its id
	limits    sandbox.Limits // but of its disk; PIDs as the sandbox has it
}

// list returns all containers with a label of that value.
func (e *engine) list(ctx context.Context, label, value string) ([]box, error) {
	var boxes []box
	err := e.within(ctx, callTimeout, func(ctx context.Context) error {
		found, err := e.client.ContainerList(ctx, container.ListOptions{
			All:     true,
			Filters: filters.NewArgs(filters.Arg("label", label+"="+value)),
		})
		for _, c := range found {
			paused := c.State == container.StatePaused
			boxes = append(boxes, box{labels: c.Labels, paused: paused, running: paused || c.State == container.StateRunning})
		}
		return err
	})
	return boxes, err
}

// inspect returns the container of that name, or sandbox.ErrNotFound.
func (e *engine) inspect(ctx context.Context, name string) (box, error) {
	var b box
	err := e.within(ctx, callTimeout, func(ctx context.Context) error {
		c, err := e.client.ContainerInspect(ctx, name)
		if err != nil {
			return err
		}
		b.image = c.Image
		if c.Config != nil {
			b.labels = c.Config.Labels
		}
		if h := c.HostConfig; h != nil {
			b.runtime = h.Runtime
			b.limits = sandbox.Limits{CPUs: float64(h.NanoCPUs) / 1e9, Memory: h.Memory}
			if h.PidsLimit != nil {
				b.limits.PIDs = max(*h.PidsLimit, 0)
			}
			if n := slices.IndexFunc(h.Ulimits, func(u *container.Ulimit) bool { return u.Name == "nproc" }); n >= 0 {
				b.limits.PIDs = h.Ulimits[n].Soft
			}
		}
		if s := c.State; s != nil {
			b.running, b.paused = s.Running, s.Paused
			b.exitCode, b.oomKilled = s.ExitCode, s.OOMKilled
			b.started, _ = time.Parse(time.RFC3339Nano, s.StartedAt)
		}
		return nil
	})
	return b, err
}

func (e *engine) start(ctx context.Context, name string) error {
	return e.within(ctx, startTimeout, func(ctx context.Context) error {
		return e.client.ContainerStart(ctx, name, container.StartOptions{})
	})
}

// startReady starts a container and waits for its first line of output, which has
// to be that. The error says what it wrote instead.
func (e *engine) startReady(ctx context.Context, name, line string) error {
	var s *execStream
	err := e.within(ctx, startTimeout, func(ctx context.Context) error {
		attached, err := e.client.ContainerAttach(ctx, name, container.AttachOptions{Stream: true, Stdout: true, Stderr: true})
		if err == nil {
			s = newExecStream(attached.Conn, attached.Reader)
		}
		return err
	})
	if err != nil {
		return err
	}
	defer s.Close()
	if err := e.start(ctx, name); err != nil {
		return err
	}
	return e.within(ctx, readyTimeout, func(ctx context.Context) error {
		defer context.AfterFunc(ctx, func() { s.Close() })()
		got, err := s.out.ReadString('\n')
		switch said := strings.TrimSpace(s.stderr.String()); {
		case err == nil && got == line+"\n":
			return nil
		case said != "":
			return errors.New(said)
		case ctx.Err() != nil:
			return ctx.Err()
		}
		return fmt.Errorf("the container %s ended at once", name)
	})
}

// stop asks a container to end and kills it after the grace.
func (e *engine) stop(ctx context.Context, name string, grace time.Duration) error {
	seconds := int(grace.Seconds())
	return e.within(ctx, grace+callTimeout, func(ctx context.Context) error {
		return e.client.ContainerStop(ctx, name, container.StopOptions{Timeout: &seconds})
	})
}

// kill kills a container. One that does not run is left alone.
func (e *engine) kill(ctx context.Context, name string) error {
	return e.within(ctx, callTimeout, func(ctx context.Context) error {
		err := e.client.ContainerKill(ctx, name, "KILL")
		if err == nil || cerrdefs.IsNotFound(err) {
			return err
		}
		// Engines say in different ways that it does not run.
		if b, inspectErr := e.inspect(ctx, name); inspectErr == nil && !b.running {
			return nil
		}
		return err
	})
}

func (e *engine) pause(ctx context.Context, name string) error {
	return e.within(ctx, callTimeout, func(ctx context.Context) error {
		return e.client.ContainerPause(ctx, name)
	})
}

func (e *engine) unpause(ctx context.Context, name string) error {
	return e.within(ctx, callTimeout, func(ctx context.Context) error {
		return e.client.ContainerUnpause(ctx, name)
	})
}

// remove kills and deletes a container with its volumes, if it is there.
func (e *engine) remove(ctx context.Context, name string) error {
	return e.within(ctx, startTimeout, func(ctx context.Context) error {
		for {
			err := e.client.ContainerRemove(ctx, name, container.RemoveOptions{Force: true, RemoveVolumes: true})
			switch {
			case cerrdefs.IsNotFound(err):
				return nil
			case !cerrdefs.IsConflict(err): // somebody else is removing it
				return err
			}
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
				return err
			}
		}
	})
}

// stat returns the size and time of a file in a container, or sandbox.ErrNotFound.
func (e *engine) stat(ctx context.Context, name, path string) (size int64, modified time.Time, err error) {
	err = e.within(ctx, callTimeout, func(ctx context.Context) error {
		file, err := e.client.ContainerStatPath(ctx, name, path)
		size, modified = file.Size, file.Mtime
		return err
	})
	return size, modified, err
}

// copyIn unpacks an archive in the root folder of a container.
func (e *engine) copyIn(ctx context.Context, name string, archive io.Reader) error {
	return e.within(ctx, copyTimeout, func(ctx context.Context) error {
		return e.client.CopyToContainer(ctx, name, "/", archive, container.CopyToContainerOptions{})
	})
}

// exec runs a command in a container, as root, and returns its standard input and
// output. errNotRunning is told apart.
func (e *engine) exec(ctx context.Context, name string, argv []string) (*execStream, error) {
	var s *execStream
	err := e.within(ctx, callTimeout, func(limited context.Context) error {
		made, err := e.client.ContainerExecCreate(limited, name, container.ExecOptions{
			User: "0:0", WorkingDir: "/", Cmd: argv,
			AttachStdin: true, AttachStdout: true, AttachStderr: true,
		})
		if cerrdefs.IsConflict(err) {
			return errNotRunning
		}
		if err != nil {
			return err
		}
		attached, err := e.client.ContainerExecAttach(limited, made.ID, container.ExecAttachOptions{})
		if err != nil {
			return err
		}
		s = newExecStream(attached.Conn, attached.Reader)
		return nil
	})
	return s, err
}

// An event is something that happened to one of our containers.
type event struct {
	what   string // as Docker calls it: die, oom, kill, pause, unpause
	labels map[string]string
	signal string // of kill
	when   time.Time
}

// events calls hear with what happens to containers with a label of that value,
// and ready as soon as nothing is missed any more, until the engine is gone or ctx
// ends.
func (e *engine) events(ctx context.Context, label, value string, ready func(), hear func(event)) error {
	// The client agrees on a version with its first call, and Events reads that
	// version without the client's lock.
	err := e.within(ctx, callTimeout, func(ctx context.Context) error {
		_, err := e.client.ServerVersion(ctx)
		return err
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	args := filters.NewArgs(filters.Arg("type", string(events.ContainerEventType)), filters.Arg("label", label+"="+value))
	messages, errs := e.client.Events(ctx, events.ListOptions{Filters: args})
	select {
	case err := <-errs:
		return e.fault(err)
	default:
		ready()
	}
	for {
		select {
		case m := <-messages:
			hear(event{
				what:   string(m.Action),
				labels: m.Actor.Attributes,
				signal: m.Actor.Attributes["signal"],
				when:   time.Unix(0, m.TimeNano),
			})
		case err := <-errs:
			return e.fault(err)
		}
	}
}
