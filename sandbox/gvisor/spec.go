//go:build linux

package gvisor

import (
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandgate/sandbox"
	"sandgate/sandbox/guest"
)

// Path is the search path of programs in a sandbox.
const Path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Where the stage shows what is mounted into a sandbox.
const (
	stageGuest  = "/guest"
	stageSocket = "/socket"
)

// stageImage is where the stage shows an image whose owners are kept beside it, and
// annotationUpper tells gVisor what its own overlay begins with.
const (
	stageImage      = "/image"
	annotationUpper = "dev.gvisor.tar.rootfs.upper"
)

// A backstop beside what the sandbox itself may use, since the host's limit also
// counts the threads of the sentry, and a sentry that meets it dies.
const spareThreads = 4096

// capabilities are what root has in a sandbox. They count against gVisor's
// kernel only, not against the host's.
var capabilities = []string{
	"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID",
	"CAP_KILL", "CAP_MKNOD", "CAP_NET_BIND_SERVICE", "CAP_SETFCAP", "CAP_SETGID",
	"CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE",
}

// runtimeSpec describes the sandbox to runsc. All paths are those of the stage.
func runtimeSpec(s sandbox.Spec, settings guest.Settings, shift int, g groups) *specs.Spec {
	spec := &specs.Spec{
		Version:  specs.Version,
		Hostname: s.Hostname,
		Root:     &specs.Root{Path: stageRoot},
		Process: &specs.Process{
			Args: []string{guest.Executable, "guest"},
			Cwd:  "/",
			Env:  []string{"PATH=" + Path, settings.Environ()},
			Capabilities: &specs.LinuxCapabilities{
				Bounding:  capabilities,
				Effective: capabilities,
				Permitted: capabilities,
			},
			Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 1 << 20, Soft: 1 << 20}},
			// True would take away what sudo and su live from.
			NoNewPrivileges: false,
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"ro", "nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec"}},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "mode=1777"}},
			{Destination: guestDir, Type: "bind", Source: stageGuest, Options: []string{"ro"}},
			{Destination: guest.SocketDir, Type: "bind", Source: stageSocket, Options: []string{"ro"}},
		},
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
				{Type: specs.MountNamespace}, {Type: specs.NetworkNamespace},
			},
			CgroupsPath: g.of(s.ID),
			Resources:   resources(g.enforced(s.Limits)),
		},
	}
	if s.Workspace != "" {
		spec.Mounts = append(spec.Mounts, specs.Mount{Destination: workspaceDir, Type: "bind", Source: stageWorkspace, Options: []string{"nosuid", "nodev"}})
	}
	if s.Network == sandbox.NetworkFull {
		for i, ns := range spec.Linux.Namespaces {
			if ns.Type == specs.NetworkNamespace {
				spec.Linux.Namespaces[i].Path = "/proc/self/ns/net" // the stage's
			}
		}
	}
	if shift > 0 {
		ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: uint32(shift), Size: idsPerSandbox}}
		spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
		spec.Linux.UIDMappings = ids
		spec.Linux.GIDMappings = ids
	}
	if n := uint64(s.Limits.PIDs); n > 0 {
		spec.Process.Rlimits = append(spec.Process.Rlimits,
			specs.POSIXRlimit{Type: "RLIMIT_NPROC", Hard: n, Soft: n})
	}
	return spec
}

// resources are what the host's control groups enforce.
func resources(l sandbox.Limits) *specs.LinuxResources {
	res := &specs.LinuxResources{}
	if l.CPUs > 0 {
		period := uint64(100_000) // microseconds
		quota := max(int64(l.CPUs*float64(period)), 1000)
		res.CPU = &specs.LinuxCPU{Period: &period, Quota: &quota}
	}
	if l.Memory > 0 {
		res.Memory = &specs.LinuxMemory{Limit: &l.Memory}
	}
	if l.PIDs > 0 {
		// Each process costs a thread of the sentry and one of its helper.
		res.Pids = &specs.LinuxPids{Limit: 2*l.PIDs + spareThreads}
	}
	return res
}
