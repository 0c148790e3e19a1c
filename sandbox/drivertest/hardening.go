package drivertest

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandgate/sandbox"
	"sandgate/sandbox/guest"
)

// What root in a sandbox tries against the kernel and the host. An attack is
// refused, or does nothing outside: gVisor's kernel is the sandbox's own.
var hardeningCases = cases{
	"Capabilities":      check(hardeningCapabilities),
	"NoCapabilityGain":  check(hardeningGain),
	"NoNewPrivs":        check(hardeningPrivileges),
	"MountDisk":         check(hardeningDisk),
	"MountProc":         alone(hardeningMount("proc proc /tmp/proc")),
	"MountSys":          alone(hardeningMount("sysfs sysfs /tmp/sys")),
	"MountCgroup":       alone(hardeningMount("cgroup cgroup /tmp/cgroup")),
	"MountOverSocket":   alone(hardeningMount("bind /tmp " + guest.SocketDir)),
	"MountBpf":          cannot{"mount bpf bpf /tmp/bpf"},
	"MountDebugfs":      cannot{"mount debugfs debugfs /tmp/debugfs"},
	"MountSecurityfs":   cannot{"mount securityfs securityfs /tmp/securityfs"},
	"DeviceMemory":      cannot{"device char 1 1"},
	"DevicePort":        cannot{"device char 1 4"},
	"DeviceKmsg":        cannot{"device char 1 11"},
	"DeviceKVM":         cannot{"device char 10 232"},
	"DeviceLoop":        cannot{"device block 7 0"},
	"DeviceDisk":        cannot{"device block 8 0"},
	"PacketSocket":      cannot{fmt.Sprintf("socket %d %d %d", unix.AF_PACKET, unix.SOCK_RAW, 0x300)},
	"VsockSocket":       cannot{fmt.Sprintf("socket %d %d %d", unix.AF_VSOCK, unix.SOCK_STREAM, 0)},
	"AlgSocket":         cannot{fmt.Sprintf("socket %d %d %d", unix.AF_ALG, unix.SOCK_SEQPACKET, 0)},
	"Routes":            check(hardeningRoutes),
	"ProcWrites":        check(hardeningProc),
	"SysWrites":         check(hardeningSys),
	"SysRq":             check(hardeningSysRq),
	"Keyring":           check(hardeningKeyring),
	"Clock":             check(hardeningClock),
	"bpf":               attacked("bpf"),
	"perf_event_open":   attacked("perf_event_open"),
	"userfaultfd":       attacked("userfaultfd"),
	"kexec_load":        attacked("kexec_load"),
	"init_module":       attacked("init_module"),
	"delete_module":     attacked("delete_module"),
	"reboot":            attacked("reboot"),
	"swapon":            attacked("swapon"),
	"acct":              attacked("acct"),
	"settimeofday":      attacked("settimeofday"),
	"adjtimex":          attacked("adjtimex"),
	"open_by_handle_at": attacked("open_by_handle_at"),
	"iopl":              attacked("iopl"),
	"quotactl":          attacked("quotactl"),
	"setns":             attacked("setns"),
	"pivot_root":        attacked("pivot_root"),
}

// attacked is a testCase: a system call that has to fail.
type attacked string

func (a attacked) run(s *seat) { cannot{"syscall " + string(a)}.run(s) }

// forbidden are capabilities that nobody has in a sandbox.
var forbidden = map[string]int{
	"DAC_READ_SEARCH": unix.CAP_DAC_READ_SEARCH, "LINUX_IMMUTABLE": unix.CAP_LINUX_IMMUTABLE,
	"NET_ADMIN": unix.CAP_NET_ADMIN, "NET_BROADCAST": unix.CAP_NET_BROADCAST,
	"IPC_LOCK": unix.CAP_IPC_LOCK, "IPC_OWNER": unix.CAP_IPC_OWNER,
	"SYS_MODULE": unix.CAP_SYS_MODULE, "SYS_RAWIO": unix.CAP_SYS_RAWIO, "SYS_PACCT": unix.CAP_SYS_PACCT,
	"SYS_ADMIN": unix.CAP_SYS_ADMIN, "SYS_BOOT": unix.CAP_SYS_BOOT, "SYS_NICE": unix.CAP_SYS_NICE,
	"SYS_RESOURCE": unix.CAP_SYS_RESOURCE, "SYS_TIME": unix.CAP_SYS_TIME, "SYS_TTY_CONFIG": unix.CAP_SYS_TTY_CONFIG,
	"LEASE": unix.CAP_LEASE, "AUDIT_CONTROL": unix.CAP_AUDIT_CONTROL, "MAC_OVERRIDE": unix.CAP_MAC_OVERRIDE,
	"MAC_ADMIN": unix.CAP_MAC_ADMIN, "SYSLOG": unix.CAP_SYSLOG, "WAKE_ALARM": unix.CAP_WAKE_ALARM,
	"BLOCK_SUSPEND": unix.CAP_BLOCK_SUSPEND, "AUDIT_READ": unix.CAP_AUDIT_READ, "PERFMON": unix.CAP_PERFMON,
	"BPF": unix.CAP_BPF, "CHECKPOINT_RESTORE": unix.CAP_CHECKPOINT_RESTORE,
}

func hardeningCapabilities(s *seat) {
	for _, process := range []string{"self", "1"} {
		for line := range strings.Lines(s.sh("grep ^Cap /proc/" + process + "/status")) {
			set, hex, _ := strings.Cut(strings.TrimSpace(line), ":")
			bits, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			must(s, err)
			for name, n := range forbidden {
				if bits>>n&1 == 1 {
					s.Errorf("%s of process %s has CAP_%s", set, process, name)
				}
			}
		}
	}
}

// A file cannot give what the sandbox does not have.
func hardeningGain(s *seat) {
	got := s.do(guest.Command{Text: []byte(`command -v setcap >/dev/null || exit 0
		cp $(command -v cat) ` + s.folder() + `/cat && setcap cap_sys_admin+ep ` + s.folder() + `/cat || exit 0
		` + s.folder() + `/cat /proc/self/status | grep ^CapEff`)}, nil)
	if _, hex, ok := strings.Cut(strings.TrimSpace(got.stdout), ":"); ok {
		bits, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
		must(s, err)
		if bits>>unix.CAP_SYS_ADMIN&1 == 1 {
			s.Error("a program gained CAP_SYS_ADMIN")
		}
	}
}

// Programs gain rights, or do not, as the driver promises.
func hardeningPrivileges(s *seat) {
	s.sh("cp $(command -v id) " + s.folder() + "/id && chmod 4755 " + s.folder() + "/id")
	want := "0\n"
	if s.bench.NoNewPrivs {
		want = "4321\n"
	}
	if got := s.do(guest.Command{Text: []byte(s.folder() + "/id -u"), User: "4321"}, nil); got.stdout != want {
		s.Errorf("a set-user-ID program of root's runs as %+v, want %q", got, want)
	}
}

// A disk of the host cannot be mounted, by its numbers either.
func hardeningDisk(s *seat) {
	for _, device := range []string{"/dev/sda", "/dev/vda", "/dev/nvme0n1", "/dev/loop0"} {
		for _, kind := range []string{"ext4", "xfs", "btrfs"} {
			cannot{"mount " + kind + " " + device + " /tmp/disk"}.run(s)
		}
	}
}

// hardeningMount is a test: where a mount can be made at all, it shows nothing of
// the host and takes nothing from the gateway.
func hardeningMount(mount string) func(*testing.T, *bench) {
	return func(t *testing.T, b *bench) {
		_, sh := b.start("mount")
		code, out, err := sh.Try("sh", "-c", b.probe()+" mount "+mount)
		if err != nil {
			t.Fatal(err)
		}
		if code == 0 {
			t.Errorf("root in a sandbox could mount: %s", out)
		}
	}
}

// The network of the sandbox stays what it was.
func hardeningRoutes(s *seat) {
	s.do(guest.Command{Text: []byte("ip link add sneaky type dummy; ip route add default dev lo; ip addr add 10.0.0.1/8 dev lo; true")}, nil)
	s.sh("test ! -e /sys/class/net/sneaky")
	cannot{"connect 192.0.2.1:80"}.run(s)
}

// procFiles are switches of a kernel. Where they can be written to, it is not the
// host's kernel that hears it.
var procFiles = []string{
	"sys/kernel/core_pattern", "sys/kernel/modprobe", "sys/kernel/hostname", "sys/kernel/domainname",
	"sys/kernel/randomize_va_space", "sys/kernel/panic", "sys/kernel/sysrq", "sys/kernel/printk", "sys/kernel/shmmax",
	"sys/kernel/pid_max", "sys/kernel/ns_last_pid", "sys/vm/overcommit_memory", "sys/vm/drop_caches", "sys/vm/swappiness",
	"sys/vm/panic_on_oom", "sys/fs/file-max", "sys/fs/binfmt_misc/register", "sys/fs/suid_dumpable", "sys/fs/protected_symlinks",
	"sys/net/ipv4/ip_forward", "sys/net/core/somaxconn", "sys/dev/cdrom/debug",
	"sysrq-trigger", "kcore", "kmsg", "kallsyms", "keys", "timer_list", "sched_debug", "irq/default_smp_affinity", "bus/pci/devices", "scsi/scsi", "acpi/wakeup",
}

// emptied are files that show nothing or are not there.
var emptied = []string{"kcore", "keys", "timer_list", "sched_debug", "latency_stats", "timer_stats"}

func hardeningProc(s *seat) {
	value := func(name string) string {
		switch name {
		case "kcore", "kmsg", "keys", "timer_list", "sysrq-trigger", "sched_debug", "kallsyms", "sys/kernel/ns_last_pid":
			return "" // cannot be read, waits, or changes by itself
		}
		b, _ := os.ReadFile("/proc/" + name)
		return string(b)
	}
	for _, name := range procFiles {
		before := value(name)
		word := "1"
		if name == "sysrq-trigger" {
			word = "?" // harmless should it work: prints a help text
		}
		if slices.Contains([]string{"sys/kernel/hostname", "sys/kernel/domainname"}, name) {
			continue // the sandbox's own; see Isolation/Hostname
		}
		s.do(guest.Command{Text: []byte(s.bench.probe() + " write /proc/" + name + " " + word)}, nil)
		if after := value(name); after != before {
			os.WriteFile("/proc/"+name, []byte(before), 0)
			s.Errorf("a sandbox changed the host's /proc/%s from %q to %q", name, before, after)
		}
	}
	for _, name := range emptied {
		if got := s.do(guest.Command{Text: []byte("head -c 1 /proc/" + name + " | wc -c")}, nil); strings.TrimSpace(got.stdout) != "0" {
			s.Errorf("/proc/%s can be read", name)
		}
	}
}

func hardeningSys(s *seat) {
	for _, path := range []string{
		"/sys/kernel/uevent_helper", "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/power/state", "/sys/fs/cgroup/release_agent",
		"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/pids.max", "/sys/module/kernel/parameters/panic",
		"/sys/devices/system/cpu/cpu1/online", "/sys/class/net/lo/mtu",
	} {
		cannot{"write " + path + " 1"}.run(s)
	}
	if got := s.do(guest.Command{Text: []byte("mkdir /sys/fs/cgroup/x /sys/fs/cgroup/memory/x /sys/x")}, nil); got.exit.Code == 0 {
		s.Errorf("a folder was made in /sys: %+v", got)
	}
}

func hardeningSysRq(s *seat) {
	cannot{"write /proc/sysrq-trigger ?"}.run(s)
}

// The keys of the host's users are not to be had by users of the same number.
func hardeningKeyring(s *seat) {
	name := "sandgate-test-" + string(sandbox.NewID())
	if key, err := unix.AddKey("user", name, []byte("secret"), unix.KEY_SPEC_USER_KEYRING); err == nil {
		defer unix.KeyctlInt(unix.KEYCTL_UNLINK, key, unix.KEY_SPEC_USER_KEYRING, 0, 0)
	}
	cannot{"key " + name}.run(s)
}

// However the clock is turned, the host's goes on.
func hardeningClock(s *seat) {
	s.do(guest.Command{Text: []byte("date -s '2001-02-03 04:05:06'")}, nil)
	if time.Now().Unix() < 1_700_000_000 {
		s.Fatal("a sandbox has turned the host's clock")
	}
	before := time.Now().Unix()
	n, err := strconv.ParseInt(strings.TrimSpace(s.sh("date +%s")), 10, 64)
	must(s, err)
	if after := time.Now().Unix(); n < before-5 || n > after+5 {
		s.Errorf("it is %d in the sandbox, and was %d to %d here", n, before, after)
	}
}
