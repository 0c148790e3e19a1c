//go:build linux

package nat

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/nested"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// Bounds on the pings of one sandbox.
const (
	maxPings    = 64 // that may be answered at the same time
	pingTimeout = 10 * time.Second
	maxPing     = 64 << 10
)

// A quietLink keeps ICMP from the stack, which would answer a ping to any address
// itself, and has it carried like everything else. What the stack needs to find its
// neighbour with version 6 is let through.
type quietLink struct {
	nested.Endpoint
	stack *stack.Stack
	nat   *nat
}

func newQuietLink(link stack.LinkEndpoint, s *stack.Stack, n *nat) *quietLink {
	q := &quietLink{stack: s, nat: n}
	q.Init(link, q)
	return q
}

// DeliverNetworkPacket implements stack.NetworkDispatcher.
func (q *quietLink) DeliverNetworkPacket(protocol tcpip.NetworkProtocolNumber, pkt *stack.PacketBuffer) {
	switch protocol {
	case ipv4.ProtocolNumber:
		h, ok := pkt.Data().PullUp(header.IPv4MinimumSize)
		if !ok {
			return
		}
		if header.IPv4(h).TransportProtocol() == header.ICMPv4ProtocolNumber {
			q.take(parsePing4(pkt.Data().AsRange().ToSlice()))
			return
		}
	case ipv6.ProtocolNumber:
		h, ok := pkt.Data().PullUp(header.IPv6MinimumSize)
		if !ok {
			return
		}
		switch header.IPv6(h).NextHeader() {
		case uint8(header.TCPProtocolNumber), uint8(header.UDPProtocolNumber):
		case uint8(header.IPv6FragmentExtHdrIdentifier):
			h, ok := pkt.Data().PullUp(header.IPv6MinimumSize + 1)
			if !ok || h[header.IPv6MinimumSize] != uint8(header.UDPProtocolNumber) && h[header.IPv6MinimumSize] != uint8(header.TCPProtocolNumber) {
				return
			}
		case uint8(header.ICMPv6ProtocolNumber):
			packet := pkt.Data().AsRange().ToSlice()
			if !findsNeighbour(packet) {
				q.take(parsePing6(packet))
				return
			}
		default:
			return
		}
	}
	q.Endpoint.DeliverNetworkPacket(protocol, pkt)
}

// A ping is one that a sandbox has sent.
type ping struct {
	from, to netip.Addr
	packet   []byte // as it came
	message  []byte // its ICMP, a part of packet
}

// parsePing4 returns the ping that a packet of version 4 is, if it is one.
func parsePing4(packet []byte) (ping, bool) {
	h := header.IPv4(packet)
	if !h.IsValid(len(packet)) || h.More() || h.FragmentOffset() != 0 {
		return ping{}, false
	}
	message := packet[h.HeaderLength():h.TotalLength()]
	if len(message) < header.ICMPv4MinimumSize || header.ICMPv4(message).Type() != header.ICMPv4Echo {
		return ping{}, false
	}
	from, to := h.SourceAddress(), h.DestinationAddress()
	return ping{netip.AddrFrom4(from.As4()), netip.AddrFrom4(to.As4()), packet, message}, true
}

// parsePing6 is parsePing4 for one of version 6.
func parsePing6(packet []byte) (ping, bool) {
	message, ok := icmp6(packet)
	if !ok || header.ICMPv6(message).Type() != header.ICMPv6EchoRequest {
		return ping{}, false
	}
	from, to := header.IPv6(packet).SourceAddress(), header.IPv6(packet).DestinationAddress()
	return ping{netip.AddrFrom16(from.As16()), netip.AddrFrom16(to.As16()), packet, message}, true
}

// icmp6 returns the ICMP that a packet of version 6 has after its header.
func icmp6(packet []byte) ([]byte, bool) {
	h := header.IPv6(packet)
	if !h.IsValid(len(packet)) || h.NextHeader() != uint8(header.ICMPv6ProtocolNumber) || h.PayloadLength() < header.ICMPv6EchoMinimumSize {
		return nil, false
	}
	return packet[header.IPv6MinimumSize:][:h.PayloadLength()], true
}

func findsNeighbour(packet []byte) bool {
	message, ok := icmp6(packet)
	if !ok {
		return false
	}
	kind := header.ICMPv6(message).Type()
	return kind == header.ICMPv6NeighborSolicit || kind == header.ICMPv6NeighborAdvert
}

// take carries a ping, unless too many are under way. Where it cannot be carried the
// sandbox is told so by what a router on the way would send.
func (q *quietLink) take(p ping, ok bool) {
	if !ok {
		return
	}
	if q.nat.pings.Add(1) > maxPings {
		q.nat.pings.Add(-1)
		return
	}
	go func() {
		defer q.nat.pings.Add(-1)
		err := admit(p.to)
		var answer []byte
		if err == nil {
			answer, err = sendPing(p.to, p.message)
		}
		switch {
		case err == nil:
			q.send(p.to, p.from, reply(p.to, answer, p.message))
		case !errors.Is(err, os.ErrDeadlineExceeded):
			from := Gateway
			if p.to.Is6() {
				from = gateway6
			}
			q.send(from, p.from, refusal(p, errors.Is(err, errForbidden) || errors.Is(err, os.ErrPermission)))
		}
	}()
}

// send sends the sandbox a message of ICMP.
func (q *quietLink) send(from, to netip.Addr, message []byte) {
	route, err := q.stack.FindRoute(nic, tcpip.AddrFromSlice(from.AsSlice()), tcpip.AddrFromSlice(to.AsSlice()), protocolOf(to), false)
	if err != nil {
		return
	}
	defer route.Release()
	params := stack.NetworkHeaderParams{Protocol: header.ICMPv4ProtocolNumber, TTL: route.DefaultTTL()}
	if to.Is6() {
		params.Protocol = header.ICMPv6ProtocolNumber
		icmp := header.ICMPv6(message)
		icmp.SetChecksum(0)
		icmp.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{
			Header: icmp, Src: route.LocalAddress(), Dst: route.RemoteAddress(),
		}))
	} else {
		icmp := header.ICMPv4(message)
		icmp.SetChecksum(0)
		icmp.SetChecksum(header.ICMPv4Checksum(icmp, 0))
	}
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{
		ReserveHeaderBytes: int(route.MaxHeaderLength()),
		Payload:            buffer.MakeWithData(message),
	})
	defer pkt.DecRef()
	pkt.TransportProtocolNumber = params.Protocol
	route.WritePacket(params, pkt)
}

// reply makes the answer to the host's ping the answer to the sandbox's, which has
// a number of its own.
func reply(to netip.Addr, answer, asked []byte) []byte {
	if to.Is6() {
		header.ICMPv6(answer).SetIdent(header.ICMPv6(asked).Ident())
	} else {
		header.ICMPv4(answer).SetIdent(header.ICMPv4(asked).Ident())
	}
	return answer
}

// refusal says that a ping leads nowhere, or is forbidden.
func refusal(p ping, forbidden bool) []byte {
	if p.to.Is6() {
		message := make([]byte, header.ICMPv6DstUnreachableMinimumSize, header.IPv6MinimumMTU)
		icmp := header.ICMPv6(message)
		icmp.SetType(header.ICMPv6DstUnreachable)
		if forbidden {
			icmp.SetCode(header.ICMPv6Prohibited)
		} else {
			icmp.SetCode(header.ICMPv6NetworkUnreachable)
		}
		return append(message, p.packet[:min(len(p.packet), 512)]...)
	}
	message := make([]byte, header.ICMPv4MinimumSize, header.IPv4MinimumProcessableDatagramSize)
	icmp := header.ICMPv4(message)
	icmp.SetType(header.ICMPv4DstUnreachable)
	if forbidden {
		icmp.SetCode(header.ICMPv4AdminProhibited)
	} else {
		icmp.SetCode(header.ICMPv4NetUnreachable)
	}
	return append(message, p.packet[:min(len(p.packet), 512)]...)
}

// sendPing sends a ping to an address and returns the answer. The host decides who
// may do that (net.ipv4.ping_group_range), and numbers the ping itself.
func sendPing(to netip.Addr, message []byte) ([]byte, error) {
	family, protocol := unix.AF_INET, unix.IPPROTO_ICMP
	if to.Is6() {
		family, protocol = unix.AF_INET6, unix.IPPROTO_ICMPV6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "ping")
	conn, err := net.FilePacketConn(f)
	f.Close()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(pingTimeout))
	if _, err := conn.WriteTo(message, &net.UDPAddr{IP: to.AsSlice()}); err != nil {
		return nil, err
	}
	for answer := make([]byte, maxPing); ; {
		n, from, err := conn.ReadFrom(answer)
		if err != nil {
			return nil, err
		}
		if addr, ok := from.(*net.UDPAddr); ok && addr.IP.Equal(to.AsSlice()) && n >= header.ICMPv4MinimumSize {
			return answer[:n], nil
		}
	}
}
