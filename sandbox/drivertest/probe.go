package drivertest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"sandgate/sandbox/guest"
)

// probeName is the first argument of the guest's program where it is a probe.
const probeName = "probe"

// probe is how a command line in a sandbox calls the probe.
func (h Host) probe() string {
	if h.NoWalls {
		self, err := os.Executable()
		if err != nil {
			panic(err) // the test runs from a file
		}
		return self + " " + probeName
	}
	return guest.Executable + " " + probeName
}

// probes are small attacks, and other things that no image has a program for. Each
// returns what it could not do.
var probes = map[string]func(args []string) error{
	"connect": probeConnect,
	"syscall": probeSyscall,
	"socket":  probeSocket,
	"mount":   probeMount,
	"device":  probeDevice,
	"chroot":  probeChroot,
	"write":   probeWrite,
	"flood":   probeFlood,
	"garbage": probeGarbage,
	"forks":   probeForks,
	"spawn":   probeSpawn,
	"fill":    probeFill,
	"key":     probeKey,
	"count":   probeCount,

	"packet":    probePacket,
	"ping":      probePing,
	"addresses": probeAddresses,
	"address":   probeAddress,
	"route":     probeRoute,
	"link":      probeLink,
}

// probe runs in a sandbox. It exits with 0 when it could do what it tried, else
// with 1 and the reason.
func probe(args []string) int {
	try := probes[args[0]]
	if try == nil {
		fmt.Println("no such probe")
		return 2
	}
	if err := try(args[1:]); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// probeConnect connects, says hello, and prints what it hears.
func probeConnect(args []string) error {
	c, err := net.DialTimeout("tcp", args[0], 2*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	fmt.Fprint(c, "hello")
	c.(*net.TCPConn).CloseWrite()
	_, err = io.Copy(os.Stdout, c)
	return err
}

// attacks are system calls that root in a sandbox has no business with, with
// arguments for which they would work outside.
var attacks = map[string]func() error{
	"bpf": func() error {
		attr := [16]uint32{2, 4, 4, 1} // BPF_MAP_TYPE_ARRAY of one word
		return call(unix.SYS_BPF, 0, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	},
	"perf_event_open": func() error {
		attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})), Config: unix.PERF_COUNT_SW_CPU_CLOCK}
		_, err := unix.PerfEventOpen(&attr, -1, 0, -1, 0) // the whole processor
		return err
	},
	"userfaultfd":       func() error { return call(unix.SYS_USERFAULTFD, unix.O_CLOEXEC) },
	"kexec_load":        func() error { return call(unix.SYS_KEXEC_LOAD, 0, 0, 0, 0) },
	"init_module":       func() error { return unix.InitModule([]byte("\x7fELF"), "") },
	"delete_module":     func() error { return unix.DeleteModule("sandgate_none", 0) },
	"reboot":            func() error { return unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF) },
	"swapon":            func() error { return callPath(unix.SYS_SWAPON, "/etc/passwd") },
	"acct":              func() error { return unix.Acct("/tmp/acct") },
	"settimeofday":      func() error { return unix.Settimeofday(&unix.Timeval{Sec: 1}) },
	"adjtimex":          func() error { _, err := unix.Adjtimex(&unix.Timex{Modes: unix.ADJ_TICK, Tick: 9999}); return err },
	"syslog":            func() error { return call(unix.SYS_SYSLOG, unix.SYSLOG_ACTION_CLEAR) },
	"open_by_handle_at": probeHandle,
	"iopl":              func() error { return call(172, 3) }, // amd64; another's number is refused as well
	"quotactl":          func() error { return callPath(unix.SYS_QUOTACTL, "/") },
	"setns":             func() error { return probeSetns("/proc/1/ns/net") },
	"pivot_root":        func() error { return unix.PivotRoot("/tmp", "/tmp") },
}

func call(number uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	if _, _, errno := syscall.Syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
		return errno
	}
	return nil
}

func callPath(number uintptr, path string) error {
	p, err := syscall.BytePtrFromString(path)
	if err != nil {
		return err
	}
	return call(number, uintptr(unsafe.Pointer(p)), uintptr(unsafe.Pointer(p)))
}

// probeHandle opens the root folder of a file system by its number, as the way out
// of a container that was called shocker.
func probeHandle() error {
	fd, err := unix.Open("/etc/passwd", unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	handle := unix.NewFileHandle(1, []byte{2, 0, 0, 0, 0, 0, 0, 0})
	_, err = unix.OpenByHandleAt(fd, handle, unix.O_RDONLY)
	return err
}

func probeSetns(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Setns(fd, unix.CLONE_NEWNET)
}

func probeSyscall(args []string) error {
	attack := attacks[args[0]]
	if attack == nil {
		return fmt.Errorf("no attack by %q", args[0])
	}
	return attack()
}

// probeSocket opens a socket: domain, type, protocol.
func probeSocket(args []string) error {
	var n [3]int
	for i := range n {
		var err error
		if n[i], err = strconv.Atoi(args[i]); err != nil {
			return err
		}
	}
	fd, err := unix.Socket(n[0], n[1], n[2])
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// probeMount mounts a file system: type, source, target.
func probeMount(args []string) error {
	if err := os.MkdirAll(args[2], 0o755); err != nil {
		return err
	}
	flags := uintptr(0)
	switch args[0] {
	case "bind":
		flags = unix.MS_BIND
	case "remount":
		flags = unix.MS_REMOUNT | unix.MS_BIND
	}
	return unix.Mount(args[1], args[2], args[0], flags, "")
}

// probeDevice makes a device by its numbers and reads it.
func probeDevice(args []string) error {
	major, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	minor, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	mode := uint32(unix.S_IFCHR)
	if args[0] == "block" {
		mode = unix.S_IFBLK
	}
	path := filepath.Join(os.TempDir(), fmt.Sprintf("device-%d-%d", major, minor))
	if err := unix.Mknod(path, mode|0o600, int(unix.Mkdev(uint32(major), uint32(minor)))); err != nil {
		return err
	}
	defer os.Remove(path)
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// probeChroot leaves a chroot by the old trick, and looks for a file of the host.
func probeChroot(args []string) error {
	if err := os.MkdirAll("/tmp/jail", 0o755); err != nil {
		return err
	}
	if err := unix.Chroot("/tmp/jail"); err != nil {
		return err
	}
	for range 64 {
		if err := unix.Chdir(".."); err != nil {
			return err
		}
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	_, err := os.Stat(args[0])
	return err
}

// probeWrite writes what a file holds back to it, or a word.
func probeWrite(args []string) error {
	f, err := os.OpenFile(args[0], os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(args[1])
	return err
}

// probeFlood opens connections to the gateway, says nothing on them, and holds
// them for a while.
func probeFlood(args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	var opened int
	var conns []net.Conn
	for range n {
		c, err := net.DialTimeout("unix", filepath.Join(guest.SocketDir, guest.SocketName), 100*time.Millisecond)
		if err != nil {
			continue
		}
		conns = append(conns, c)
		opened++
	}
	fmt.Println(opened, "connections")
	os.Stdout.Close()
	time.Sleep(time.Second)
	for _, c := range conns {
		c.Close()
	}
	return nil
}

// probeGarbage says to the gateway what no guest says.
func probeGarbage([]string) error {
	for _, says := range []string{
		strings.Repeat("x", 100_000),
		"{}\n",
		"\x00\x00\x00\x00",
		`{"sandgate":1,"role":"control"}` + "\n" + strings.Repeat("\xff", 10_000),
		`{"sandgate":1,"role":"spare","session":"guessed"}` + "\n",
		`{"sandgate":-1,"role":"king"}` + "\n",
	} {
		c, err := net.Dial("unix", filepath.Join(guest.SocketDir, guest.SocketName))
		if err != nil {
			return err
		}
		c.SetDeadline(time.Now().Add(time.Second))
		io.WriteString(c, says)
		io.Copy(io.Discard, c)
		c.Close()
	}
	return nil
}

// probeForks starts processes that start processes, for as long as it can.
func probeForks([]string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for {
		attr := &syscall.ProcAttr{Sys: &syscall.SysProcAttr{Setsid: true}}
		if _, err := syscall.ForkExec(self, []string{self, probeName, "forks"}, attr); err != nil {
			time.Sleep(time.Millisecond)
		}
	}
}

// probeSpawn starts that many processes, which end with it.
func probeSpawn(args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		return err
	}
	runtime.LockOSThread() // whose end is the children's
	attr := &syscall.ProcAttr{Sys: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}}
	for range n {
		if _, err := syscall.ForkExec(sleep, []string{"sleep", "1000"}, attr); err != nil {
			return err
		}
	}
	return nil
}

// probeFill writes to a file until that fails, and prints how much it was.
func probeFill(args []string) error {
	most, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return err
	}
	f, err := os.Create(args[0])
	if err != nil {
		return err
	}
	defer f.Close()
	var written int64
	block := make([]byte, 1<<20)
	for written < most {
		n, err := f.Write(block)
		written += int64(n)
		if err != nil {
			fmt.Println(written)
			return errors.Unwrap(err)
		}
	}
	fmt.Println(written)
	return nil
}

// probeKey looks for a key of the kernel's.
func probeKey(args []string) error {
	_, err := unix.KeyctlSearch(unix.KEY_SPEC_USER_KEYRING, "user", args[0], 0)
	return err
}
