package drivertest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandgate/sandbox"
	"sandgate/sandbox/guest"
	"sandgate/sandbox/testneed"
)

// What a sandbox can see, and reach, of the host and of other sandboxes.
var isolationCases = cases{
	"Neighbour":        onHost(testIsolation),
	"HostPrograms":     onHost(testHostUntouched),
	"HostFiles":        onHost(testSecrets),
	"Loopback":         alone(isolationLoopback),
	"HostLoopback":     alone(isolationHostLoopback),
	"Metadata":         cannot{"connect 169.254.169.254:80"},
	"Internet":         cannot{"connect 192.0.2.1:80"},
	"AbstractSockets":  check(isolationAbstract),
	"EngineSockets":    does{text: `find / -xdev \( -path /proc -o -path /tmp -o -path /usr \) -prune -o -type s -print 2>/dev/null | grep -v ^/root/ | grep -v ^/run/sandgate/; true`},
	"FirstProcess":     does{text: `tr '\0' ' ' </proc/1/cmdline`, out: "/.sandgate/guest guest "},
	"FirstEnvironment": check(isolationEnvironment),
	"Mounts":           check(isolationMounts),
	"Devices":          check(isolationDevices),
	"HostPID":          check(isolationPIDs),
	"Chroot":           check(isolationChroot),
	"SharedMemory":     alone(isolationShared),
	"Hostname":         alone(isolationHostname),
	"Interfaces":       does{text: "ls /sys/class/net 2>/dev/null || tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '", out: "lo\n"},
}

// cannot is a testCase: a probe that has to fail, at once.
type cannot struct{ probe string }

func (c cannot) run(s *seat) {
	got := s.do(guest.Command{Text: []byte(s.bench.probe() + " " + c.probe)}, nil)
	if got.exit.Code != 1 {
		s.Errorf("%q: %+v", c.probe, got)
	}
}

func testIsolation(t *testing.T, b *bench) {
	_, one := b.start("one")
	_, two := b.start("two")
	for _, dir := range []string{"/root", "/tmp", "/var/tmp", "/usr/local", "/dev/shm", "/run"} {
		one.Run("touch", dir+"/secret-of-one")
		two.Run("test", "!", "-e", dir+"/secret-of-one")
	}
	one.Run("sh", "-c", "sleep 1000 >/dev/null 2>&1 &")
	if out := two.Run("sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"); strings.Contains(out, "sleep 1000") {
		t.Errorf("one sandbox sees the processes of another:\n%s", out)
	}
}

// What root does to the programs in a sandbox does nothing to the host's.
func testHostUntouched(t *testing.T, b *bench) {
	_, sh := b.start("vandal")
	name := "sandgate-test-" + string(sandbox.NewID())
	sh.Run("touch", "/usr/bin/"+name)
	if _, err := os.Lstat("/usr/bin/" + name); err == nil {
		os.Remove("/usr/bin/" + name)
		t.Fatal("a file written to /usr in a sandbox appeared on the host")
	}
	before, err := os.Stat("/usr/bin/env")
	if err != nil {
		testneed.Lacking(t, "/usr/bin/env")
	}
	sh.Run("sh", "-c", "echo broken >/usr/bin/env && chmod 600 /usr/bin/env")
	after, err := os.Stat("/usr/bin/env")
	if err != nil || after.Size() != before.Size() || after.Mode() != before.Mode() || !after.ModTime().Equal(before.ModTime()) {
		t.Fatal("a program overwritten in a sandbox changed on the host")
	}
}

// No file of the host's is to be seen that is not a program or its configuration,
// not even by root.
func testSecrets(t *testing.T, b *bench) {
	secret := "host secret " + string(sandbox.NewID())
	for _, dir := range []string{os.TempDir(), "/root", "/home", "/var/tmp", "/run", "/srv", "/opt", "/mnt", "/etc", "/dev/shm"} {
		f, err := os.CreateTemp(dir, "sandgate-test-")
		if err != nil {
			continue // not ours to write to, so we need not look for it
		}
		t.Cleanup(func() { os.Remove(f.Name()) })
		f.WriteString(secret)
		f.Close()
	}
	_, sh := b.start("spy")
	// What is to be found if anything is.
	sh.Run("sh", "-c", "printf '"+secret+"' >/var/control")
	// Everything but what the kernel makes up and, for speed, the programs.
	code, out, err := sh.Try("sh", "-c", `find / -xdev \( -path /proc -o -path /sys -o -path /usr \) -prune -o `+
		`-type f -size -64k -exec grep -lF "`+secret+`" {} +`)
	if err != nil {
		t.Fatal(err)
	}
	if out != "/var/control" {
		t.Errorf("exit code %d; found:\n%s", code, out)
	}
	for _, path := range []string{"/root/.ssh", "/etc/ssh/ssh_host_ed25519_key", "/etc/ssl/private", "/var/lib/dpkg/info/bash.list", "/boot", "/lost+found"} {
		if code, out, err := sh.Try("ls", "-d", path); err != nil || code == 0 {
			t.Errorf("ls %s: %v %s", path, err, out)
		}
	}
	for _, name := range []string{"shadow", "passwd", "hosts"} {
		host, err := os.ReadFile(filepath.Join("/etc", name))
		if err != nil {
			continue
		}
		if sh.Run("cat", "/etc/"+name) == strings.TrimSuffix(string(host), "\n") {
			t.Errorf("the sandbox has the host's /etc/%s", name)
		}
	}
}

// The loopback of a sandbox is its own.
func isolationLoopback(t *testing.T, b *bench) {
	_, one := b.start("one")
	_, two := b.start("two")
	l, err := one.Listen(t.Context(), "", guest.Address{Host: "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if c, err := two.Dial(t.Context(), guest.Address{Host: "127.0.0.1", Port: l.Address.Port}); err == nil {
		c.Close()
		t.Error("a sandbox reached a port of another")
	}
}

func isolationHostLoopback(t *testing.T, b *bench) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, sh := b.start("inside")
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	hosts := []string{"127.0.0.1", "localhost"}
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil {
			hosts = append(hosts, ip.IP.String())
		}
	}
	for _, host := range hosts {
		if c, err := sh.Dial(t.Context(), guest.Address{Host: host, Port: port}); err == nil {
			c.Close()
			t.Errorf("a sandbox without network reached the host as %s", host)
		}
	}
}

// Sockets without a file belong to a network, too.
func isolationAbstract(s *seat) {
	name := "@sandgate-test-" + string(sandbox.NewID())
	l, err := net.Listen("unix", name)
	must(s, err)
	defer l.Close()
	if c, err := s.client.Dial(s.Context(), guest.Address{Path: []byte(name)}); err == nil {
		c.Close()
		s.Error("a sandbox reached a socket of the host")
	}
}

// Nothing of the gateway's environment is in that of the guest.
func isolationEnvironment(s *seat) {
	for kv := range strings.SplitSeq(s.sh("cat /proc/1/environ 2>/dev/null; true"), "\x00") {
		name, value, _ := strings.Cut(kv, "=")
		switch name {
		case "", "PATH", "HOME", "HOSTNAME", "TERM", guest.SettingsVariable:
		default:
			if os.Getenv(name) == value && value != "" {
				s.Errorf("the guest has the gateway's %s", name)
			}
		}
	}
}

// The list of mounts names no folder of the host.
func isolationMounts(s *seat) {
	home, _ := os.UserHomeDir()
	tmp := os.TempDir()
	engines := []string{"/etc/hostname", "/etc/hosts", "/etc/resolv.conf"} // where it keeps these is its matter
	for line := range strings.Lines(s.sh("cat /proc/self/mountinfo")) {
		fields := strings.Fields(line)
		root := fields[3]
		if slices.Contains(engines, fields[4]) {
			continue
		}
		if fields[4] != "/" && (home != "/" && strings.HasPrefix(root, home+"/") || strings.HasPrefix(root, tmp+"/")) &&
			!strings.HasPrefix(fields[4], guest.SocketDir) && !strings.HasPrefix(fields[4], filepath.Dir(guest.Executable)) {
			s.Errorf("a mount names a folder of the host: %s", line)
		}
	}
}

func isolationDevices(s *seat) {
	known := " char console core fd full fuse mqueue net null ptmx pts random shm stderr stdin stdout tty urandom zero "
	for name := range strings.FieldsSeq(s.sh("ls -A /dev")) {
		if !strings.Contains(known, " "+name+" ") {
			s.Errorf("there is a device /dev/%s", name)
		}
	}
}

// The gateway's process is not to be seen by its number, nor by its name.
func isolationPIDs(s *seat) {
	self, err := os.ReadFile("/proc/self/cmdline")
	must(s, err)
	name := filepath.Base(string(self[:strings.IndexByte(string(self), 0)]))
	out := s.sh(`cat /proc/[0-9]*/cmdline | tr '\0' '\n'`)
	for line := range strings.Lines(out) {
		if filepath.Base(strings.TrimSpace(line)) == name {
			s.Errorf("the sandbox sees %q among\n%s", name, out)
		}
	}
	if s.do(guest.Command{Text: fmt.Appendf(nil, "kill -0 %d", os.Getpid())}, nil).exit.Code == 0 && os.Getpid() > 1000 {
		s.Errorf("the sandbox can signal the gateway, process %d", os.Getpid())
	}
}

// The old way out of a chroot leads to the sandbox's own root folder.
func isolationChroot(s *seat) {
	secret, err := os.CreateTemp("", "sandgate-test-")
	must(s, err)
	defer os.Remove(secret.Name())
	secret.Close()
	got := s.do(guest.Command{Text: []byte(s.bench.probe() + " chroot " + secret.Name())}, nil)
	if got.exit.Code != 1 {
		s.Errorf("the way out leads to the host: %+v", got)
	}
}

func isolationShared(t *testing.T, b *bench) {
	_, one := b.start("one")
	_, two := b.start("two")
	one.Run("sh", "-c", "echo secret >/dev/shm/secret; mkfifo /tmp/pipe")
	two.Run("test", "!", "-e", "/dev/shm/secret")
	one.Run("test", "-p", "/tmp/pipe")
	two.Run("test", "!", "-e", "/tmp/pipe")
}

// A sandbox that renames itself renames nobody else.
func isolationHostname(t *testing.T, b *bench) {
	before, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	_, one := b.start("one")
	_, two := b.start("two")
	one.Try("hostname", "renamed")
	two.Want("two", "uname", "-n")
	if after, _ := os.Hostname(); after != before {
		t.Errorf("the host is called %q, and was %q", after, before)
	}
}
