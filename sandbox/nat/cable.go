//go:build linux

package nat

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The two ends of the cable.
const (
	nearEnd = "eth0"
	farEnd  = "nat0"
)

const cableMTU = 1500

// Lay makes the cable in the network namespace that this process is in, which has
// nothing else, and returns the far end as a socket for its packets. Where the
// kernel has no version 6 of the protocol the cable has none either.
func Lay() (int, error) {
	fail := func(err error) (int, error) { return -1, fmt.Errorf("make network: %w", err) }
	for _, name := range []string{"all", "default"} { // engines switch it off
		os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("0"), 0)
	}
	cable := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: nearEnd, MTU: cableMTU}, PeerName: farEnd}
	if err := netlink.LinkAdd(cable); err != nil {
		return fail(err)
	}
	links := make(map[string]int)
	for _, name := range []string{"lo", nearEnd, farEnd} {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return fail(fmt.Errorf("%s: %w", name, err))
		}
		links[name] = link.Attrs().Index
		if name != "lo" {
			// With an address of the kernel's own the far end would be a second
			// network to a runtime that looks for them.
			withoutAddress(link.Attrs().Index)
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return fail(fmt.Errorf("%s: %w", name, err))
		}
	}
	if err := address(links[nearEnd], Sandbox, Gateway, bits); err != nil {
		return fail(err)
	}
	address(links[nearEnd], sandbox6, gateway6, bits6) // or there is none
	far, err := open(links[farEnd])
	if err != nil {
		return -1, fmt.Errorf("open network: %w", err)
	}
	return far, nil
}

// address gives a link an address, and the route by way of the gateway.
func address(link int, own, gateway netip.Addr, bits int) error {
	l, err := netlink.LinkByIndex(link)
	if err != nil {
		return err
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: own.AsSlice(), Mask: net.CIDRMask(bits, own.BitLen())}}
	if own.Is6() {
		addr.Flags = unix.IFA_F_NODAD // there is nobody to have it already
	}
	if err := netlink.AddrAdd(l, addr); err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{LinkIndex: link, Gw: gateway.AsSlice()})
}

// withoutAddress keeps the kernel from giving a link an address of version 6.
func withoutAddress(link int) {
	const addrGenMode, none = 8, 1 // IFLA_INET6_ADDR_GEN_MODE, IN6_ADDR_GEN_MODE_NONE
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(link)
	req.AddData(msg)
	spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	spec.AddRtAttr(unix.AF_INET6, nil).AddRtAttr(addrGenMode, []byte{none})
	req.AddData(spec)
	req.Execute(unix.NETLINK_ROUTE, 0) // fails where there is no version 6
}

// open opens a link for packets.
func open(link int) (int, error) {
	all := uint16(unix.ETH_P_ALL)<<8 | uint16(unix.ETH_P_ALL)>>8 // in network order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(all))
	if err != nil {
		return -1, err
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link}); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// Send hands the far end of a cable to who has the other end of a unix socket.
func Send(socket, cable int) error {
	if err := unix.Sendmsg(socket, []byte{0}, unix.UnixRights(cable), nil, 0); err != nil {
		return fmt.Errorf("hand over network: %w", err)
	}
	return nil
}

// Receive is the other side of Send.
func Receive(socket int) (cable int, err error) {
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(socket, make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return -1, errNoCable
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return -1, errNoCable
	}
	return fds[0], nil
}
