package drivertest

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sandgate/sandbox"
	"sandgate/sandbox/guest"
)

// The network full: what the host reaches, and never the host itself, what is on a
// link with it only, or another sandbox.
var networkCases = cases{
	"Full":       onHost(networkFull),
	"Hostile":    alone(networkHostile),
	"Neighbours": alone(networkNeighbours),
}

// startNetwork makes and starts a sandbox with the network full.
func (b *bench) startNetwork(hostname string) (sandbox.ID, *Shell) {
	b.t.Helper()
	spec := b.spec(sandbox.NewID(), hostname)
	spec.Network = sandbox.NetworkFull
	if c, ok := b.Driver.(sandbox.Checker); ok {
		if err := c.Check(spec); err != nil {
			b.t.Fatal(err)
		}
	}
	id := b.createWith(spec)
	return id, b.wake(id)
}

// refused fails the test if a sandbox can connect to an address, or has to wait for
// long to learn that it cannot.
func (s *Shell) refused(host string, port int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := s.Dial(ctx, guest.Address{Host: host, Port: uint16(port)})
	if err == nil {
		c.Close()
		s.t.Errorf("a sandbox reached %s, port %d", host, port)
	} else if ctx.Err() != nil {
		s.t.Errorf("%s, port %d: no answer", host, port)
	}
}

// secretPlaces are where no sandbox gets to, whatever the host reaches: each way to
// write the host's loopback, links, metadata, and the network's own ends.
var secretPlaces = []string{
	"127.0.0.1", "127.1.2.3", "0.0.0.0", "169.254.169.254", "169.254.170.2", "192.0.0.1", "192.0.0.3", "192.0.0.192",
	"100.100.100.200", "168.63.129.16",
	"::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:0:127.0.0.1", "64:ff9b::127.0.0.1", "64:ff9b::169.254.169.254",
	"2002:7f00:1::1", "fd00:ec2::254", "fd5a:9d1e:7c34::1", "fe80::1",
}

func networkFull(t *testing.T, b *bench) {
	id, sh := b.startNetwork("full")
	sh.Want("nameserver 192.0.0.1", "sh", "-c", "grep ^nameserver /etc/resolv.conf")
	sh.Run("grep", "-qw", "full", "/etc/hosts")
	sh.Want("full", "uname", "-n")
	l, err := net.Listen("tcp", ":0") // of both versions
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	own, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range own {
		sh.refused(a.(*net.IPNet).IP.String(), port)
	}
	for _, place := range secretPlaces {
		sh.refused(place, port)
	}
	b.ping(sh, "169.254.169.254", false)
	if os.Geteuid() != 0 {
		return // who cannot make another machine
	}
	there := makeElsewhere(t)
	there.reached(b, sh)
	sh.refused(there.here.String(), port)
	sh.refused(there.ip.String(), there.port+1)
	if there.ip6 != nil {
		sh.refused(there.here6.String(), port)
		sh.refused(there.ip6.String(), there.port+1)
	}

	// It outlives the gateway, and is there again after a stop.
	b.reopen()
	there.reached(b, b.connect(id))
	if err := b.Stop(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	there.reached(b, b.wake(id))
}

// Root in a sandbox has no rights over its end of the network.
func networkHostile(t *testing.T, b *bench) {
	_, sh := b.startNetwork("hostile")
	probe := func(args string) {
		t.Helper()
		if code, out, err := sh.Try("sh", "-c", b.probe()+" "+args); code != 1 || err != nil {
			t.Errorf("%s: exit code %d, %s %v", args, code, out, err)
		}
	}
	probe(fmt.Sprintf("socket %d %d %d", unix.AF_PACKET, unix.SOCK_RAW, 0x300))
	probe(fmt.Sprintf("socket %d %d %d", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW))
	probe("address eth0 127.0.0.2/8")
	probe("address eth0 192.0.0.1/29")
	probe("route 169.254.169.254/32 192.0.0.1")
	probe("link nat0")
	// What is at the network's other end is not to be seen.
	sh.Run("test", "!", "-e", "/run/sandgate/cable")
}

// Two sandboxes with that network are as far from each other as two without.
func networkNeighbours(t *testing.T, b *bench) {
	_, one := b.startNetwork("one")
	_, two := b.startNetwork("two")
	l, err := one.Listen(t.Context(), "", guest.Address{Host: "0.0.0.0"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := int(l.Address.Port)
	for line := range strings.Lines(one.Run("sh", "-c", b.probe()+" addresses")) {
		two.refused(strings.TrimSpace(line), port)
	}
	two.refused("192.0.0.2", port)
}

// An elsewhere is another machine, as far as this host can tell. It says how many
// bytes it got to whoever connects, and echoes packets, both at the port.
type elsewhere struct {
	ip, here   net.IP // its address and the host's on the way there
	ip6, here6 net.IP // the same with version 6, or nil
	port       int
}

// makeElsewhere makes one for a test.
func makeElsewhere(t *testing.T) elsewhere {
	t.Helper()
	suffix := string(sandbox.NewID())[:6]
	n, err := strconv.ParseUint(suffix[:4], 16, 16)
	if err != nil {
		t.Fatal(err)
	}
	// Other tests make theirs at the same time.
	high, low := byte(n>>8), byte(n)&^3
	e := elsewhere{ip: net.IPv4(10, 203, high, low|2), here: net.IPv4(10, 203, high, low|1), port: 8080}
	if _, err := os.Stat("/proc/net/if_inet6"); err == nil {
		e.ip6 = net.ParseIP(fmt.Sprintf("fd73:6174:%s::2", suffix[:4]))
		e.here6 = net.ParseIP(fmt.Sprintf("fd73:6174:%s::1", suffix[:4]))
	}
	name := "sgt" + suffix
	namespace, laid, ready := make(chan int), make(chan struct{}), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with the goroutine
		fd, err := newNamespace()
		if err != nil {
			t.Error(err)
			close(namespace)
			return
		}
		namespace <- fd
		<-laid
		ready <- e.settle(t, name+"p")
	}()
	fd, ok := <-namespace
	if !ok {
		t.FailNow()
	}
	defer unix.Close(fd)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	cable := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "p"}
	must(netlink.LinkAdd(cable))
	t.Cleanup(func() { netlink.LinkDel(cable) })
	far, err := netlink.LinkByName(name + "p")
	must(err)
	must(netlink.LinkSetNsFd(far, fd))
	must(addAddresses(cable, e.here, e.here6))
	must(netlink.LinkSetUp(cable))
	close(laid)
	must(<-ready)
	return e
}

// newNamespace moves the calling thread to a network namespace of its own.
func newNamespace() (int, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return -1, err
	}
	return unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
}

func addAddresses(link netlink.Link, ip, ip6 net.IP) error {
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(30, 32)}}); err != nil {
		return err
	}
	if ip6 == nil {
		return nil
	}
	return netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: ip6, Mask: net.CIDRMask(64, 128)}, Flags: unix.IFA_F_NODAD})
}

// settle is what the other machine does.
func (e elsewhere) settle(t *testing.T, link string) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	if err := addAddresses(l, e.ip, e.ip6); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return err
	}
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{Port: e.port})
	if err != nil {
		return err
	}
	t.Cleanup(func() { listener.Close() })
	packets, err := net.ListenUDP("udp", &net.UDPAddr{Port: e.port})
	if err != nil {
		return err
	}
	t.Cleanup(func() { packets.Close() })
	go func() {
		for {
			conn, err := listener.AcceptTCP()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				n, _ := io.Copy(io.Discard, conn) // until its end, which comes by itself
				fmt.Fprintf(conn, "elsewhere got %d bytes", n)
			}()
		}
	}()
	go func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := packets.ReadFromUDP(buf)
			if err != nil {
				return
			}
			packets.WriteToUDP(buf[:n], from)
		}
	}()
	return nil
}

// reached fails the test if a sandbox does not reach the machine in every way.
func (e elsewhere) reached(b *bench, sh *Shell) {
	sh.t.Helper()
	for _, ip := range []net.IP{e.ip, e.ip6} {
		if ip == nil {
			continue
		}
		e.upload(sh, ip)
		sh.Want("packet", "sh", "-c", fmt.Sprintf("%s packet %s", b.probe(), net.JoinHostPort(ip.String(), fmt.Sprint(e.port))))
		b.ping(sh, ip.String(), pingAllowed())
	}
}

func (e elsewhere) upload(sh *Shell, ip net.IP) {
	sh.t.Helper()
	const size = 3_000_000
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := sh.Dial(ctx, guest.Address{Host: ip.String(), Port: uint16(e.port)})
	if err != nil {
		sh.t.Errorf("%s: %v", ip, err)
		return
	}
	defer c.Close()
	defer time.AfterFunc(patience, func() { c.Close() }).Stop()
	if _, err := c.Write(make([]byte, size)); err != nil {
		sh.t.Errorf("%s: %v", ip, err)
		return
	}
	c.CloseWrite()
	got, err := io.ReadAll(c)
	if want := fmt.Sprintf("elsewhere got %d bytes", size); err != nil || string(got) != want {
		sh.t.Errorf("%s: %q %v", ip, got, err)
	}
}

// ping fails the test if what answers to a ping does not fit. Not all kernels tell a
// program that its ping was refused, so that it has to wait for a while.
func (b *bench) ping(sh *Shell, address string, answers bool) {
	sh.t.Helper()
	wait := patience / 2
	if !answers {
		wait = 300 * time.Millisecond
	}
	code, out, err := sh.Try("sh", "-c", fmt.Sprintf("%s ping %s %s", b.probe(), address, wait))
	if err != nil || (code == 0) != answers {
		sh.t.Errorf("ping %s: exit code %d, %s %v", address, code, out, err)
	}
}

// pingAllowed says whether this host lets all its users send pings.
func pingAllowed() bool {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ping_group_range")
	if err != nil {
		return false
	}
	var low, high int
	fmt.Sscan(string(text), &low, &high)
	return low == 0 && high == 1<<31-1
}
