package drivertest

import (
	"fmt"
	"net"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// probePacket sends a packet and prints the one that comes back.
func probePacket(args []string) error {
	c, err := net.Dial("udp", args[0])
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write([]byte("packet")); err != nil {
		return err
	}
	answer := make([]byte, 100)
	n, err := c.Read(answer)
	fmt.Print(string(answer[:n]))
	return err
}

// probePing sends a ping of 32 bytes to an address, and looks whether the same come
// back within some time.
func probePing(args []string) error {
	ip := net.ParseIP(args[0])
	family, protocol, request := unix.AF_INET, unix.IPPROTO_ICMP, byte(8)
	var to unix.Sockaddr
	if four := ip.To4(); four != nil {
		to = &unix.SockaddrInet4{Addr: [4]byte(four)}
	} else {
		family, protocol, request = unix.AF_INET6, unix.IPPROTO_ICMPV6, 128
		to = &unix.SockaddrInet6{Addr: [16]byte(ip)}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM, protocol)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, to); err != nil {
		return err
	}
	wait, err := time.ParseDuration(args[1])
	if err != nil {
		return err
	}
	timeout := unix.NsecToTimeval(int64(wait))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return err
	}
	message := make([]byte, 40)
	message[0], message[7] = request, 1
	copy(message[8:], "what is sent is what comes back.")
	if _, err := unix.Write(fd, message); err != nil {
		return err
	}
	answer := make([]byte, 100)
	n, err := unix.Read(fd, answer)
	if err != nil {
		return err
	}
	if n != len(message) || string(answer[8:n]) != string(message[8:]) {
		return fmt.Errorf("%q came back", answer[:n])
	}
	return nil
}

// probeAddresses prints the sandbox's own addresses.
func probeAddresses([]string) error {
	addrs, err := net.InterfaceAddrs()
	for _, a := range addrs {
		fmt.Fprintln(os.Stdout, a.(*net.IPNet).IP)
	}
	return err
}

// probeAddress gives a link another address.
func probeAddress(args []string) error {
	link, err := netlink.LinkByName(args[0])
	if err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(args[1])
	if err != nil {
		return err
	}
	return netlink.AddrAdd(link, addr)
}

// probeRoute makes a route by way of a gateway.
func probeRoute(args []string) error {
	to, err := netlink.ParseIPNet(args[0])
	if err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{Dst: to, Gw: net.ParseIP(args[1])})
}

// probeLink takes a link away.
func probeLink(args []string) error {
	link, err := netlink.LinkByName(args[0])
	if err != nil {
		return err
	}
	return netlink.LinkDel(link)
}
