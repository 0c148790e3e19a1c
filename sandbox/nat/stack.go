//go:build linux

package nat

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// Bounds on what one sandbox has open at the same time.
const (
	maxDials  = 256
	maxTCP    = 1024
	maxUDP    = 1024
	maxBuffer = 1 << 20 // of a TCP connection, each way
)

const (
	dialTimeout = 15 * time.Second
	udpIdle     = 90 * time.Second
	dnsPort     = 53
)

// A nat carries what a sandbox sends to where that is for, by sockets of the host.
type nat struct {
	dialer net.Dialer
	tcp    atomic.Int64 // open connections
	udp    atomic.Int64 // open flows
	pings  atomic.Int64 // that may be answered
}

// Carry carries what comes from a cable's far end, which is its own from then on. It
// calls ready and returns when the sandbox's end has gone.
func Carry(cable int, ready func()) error {
	gone := make(chan struct{})
	n := &nat{dialer: net.Dialer{Timeout: dialTimeout}}
	s, err := newStack(cable, n, sync.OnceFunc(func() { close(gone) }))
	if err != nil {
		return fmt.Errorf("open network: %w", err)
	}
	ready()
	<-gone
	s.Close()
	return nil
}

// nic is the stack's only link.
const nic = 1

// newStack returns a network stack that answers for every address there is.
func newStack(fd int, n *nat, gone func()) (*stack.Stack, error) {
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol},
	})
	sack := tcpip.TCPSACKEnabled(true)
	s.SetTransportProtocolOption(tcp.ProtocolNumber, &sack)
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4 << 10, Default: 256 << 10, Max: maxBuffer}
	s.SetTransportProtocolOption(tcp.ProtocolNumber, &receive)
	send := tcpip.TCPSendBufferSizeRangeOption{Min: 4 << 10, Default: 256 << 10, Max: maxBuffer}
	s.SetTransportProtocolOption(tcp.ProtocolNumber, &send)
	link, err := fdbased.New(&fdbased.Options{
		FDs:                []int{fd},
		MTU:                cableMTU,
		EthernetHeader:     true,
		Address:            tcpip.LinkAddress("\x02sg\x00\x00\x01"),
		PacketDispatchMode: fdbased.RecvMMsg,
		RXChecksumOffload:  true, // there is no wire, and the kernel's own stack leaves them out
		ClosedFunc:         func(tcpip.Error) { gone() },
	})
	if err != nil {
		return nil, err
	}
	if err := s.CreateNIC(nic, newQuietLink(link, s, n)); err != nil {
		return nil, errors.New(err.String())
	}
	for _, own := range []netip.Prefix{netip.PrefixFrom(Gateway, bits), netip.PrefixFrom(gateway6, bits6)} {
		address := tcpip.ProtocolAddress{
			Protocol:          protocolOf(own.Addr()),
			AddressWithPrefix: tcpip.AddressWithPrefix{Address: tcpip.AddrFromSlice(own.Addr().AsSlice()), PrefixLen: own.Bits()},
		}
		if err := s.AddProtocolAddress(nic, address, stack.AddressProperties{}); err != nil {
			return nil, errors.New(err.String())
		}
	}
	s.SetPromiscuousMode(nic, true)
	s.SetSpoofing(nic, true)
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}, {Destination: header.IPv6EmptySubnet, NIC: nic}})
	s.SetTransportProtocolHandler(tcp.ProtocolNumber, tcp.NewForwarder(s, 0, maxDials, n.connect).HandlePacket)
	s.SetTransportProtocolHandler(udp.ProtocolNumber, udp.NewForwarder(s, n.flow).HandlePacket)
	return s, nil
}

func protocolOf(addr netip.Addr) tcpip.NetworkProtocolNumber {
	if addr.Is4() {
		return ipv4.ProtocolNumber
	}
	return ipv6.ProtocolNumber
}

// connect carries one TCP connection. It is called in a goroutine of its own.
func (n *nat) connect(r *tcp.ForwarderRequest) {
	if n.tcp.Add(1) > maxTCP {
		n.tcp.Add(-1)
		r.Complete(true)
		return
	}
	defer n.tcp.Add(-1)
	there, err := n.dial("tcp", r.ID())
	if err != nil {
		r.Complete(true)
		return
	}
	defer there.Close()
	var queue waiter.Queue
	end, tcpErr := r.CreateEndpoint(&queue)
	if tcpErr != nil {
		r.Complete(true)
		return
	}
	r.Complete(false)
	here := gonet.NewTCPConn(&queue, end)
	defer here.Close()
	var both sync.WaitGroup
	both.Go(func() { carry(there.(*net.TCPConn), here) })
	both.Go(func() { carry(here, there.(*net.TCPConn)) })
	both.Wait()
}

// A halfConn is a connection whose two directions end by themselves.
type halfConn interface {
	net.Conn
	CloseRead() error
	CloseWrite() error
}

// carry copies one direction to its end.
func carry(to, from halfConn) {
	if _, err := io.Copy(to, from); err != nil {
		to.Close()
		from.Close()
		return
	}
	to.CloseWrite()
	from.CloseRead()
}

// flow carries the UDP packets between two addresses.
func (n *nat) flow(r *udp.ForwarderRequest) bool {
	if n.udp.Add(1) > maxUDP {
		n.udp.Add(-1)
		return true
	}
	var queue waiter.Queue
	end, err := r.CreateEndpoint(&queue)
	if err != nil {
		n.udp.Add(-1)
		return true
	}
	go func() {
		defer n.udp.Add(-1)
		here := gonet.NewUDPConn(&queue, end)
		defer here.Close()
		there, err := n.dial("udp", r.ID())
		if err != nil {
			return
		}
		defer there.Close()
		var last atomic.Int64 // when a packet was carried
		last.Store(time.Now().UnixNano())
		var both sync.WaitGroup
		both.Go(func() { carryPackets(there, here, &last) })
		both.Go(func() { carryPackets(here, there, &last) })
		both.Wait()
	}()
	return true
}

// carryPackets copies packets until none has come, either way, for a while.
func carryPackets(to, from net.Conn, last *atomic.Int64) {
	packet := make([]byte, 64<<10)
	for {
		from.SetReadDeadline(time.Unix(0, last.Load()).Add(udpIdle))
		size, err := from.Read(packet)
		switch {
		case err == nil:
			last.Store(time.Now().UnixNano())
			if _, err := to.Write(packet[:size]); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
				return
			}
		case errors.Is(err, unix.ECONNREFUSED): // an answer to what was sent before
		case time.Since(time.Unix(0, last.Load())) < udpIdle && errors.Is(err, os.ErrDeadlineExceeded):
		default:
			return
		}
	}
}

// dial opens a connection to where a packet of the sandbox is for.
func (n *nat) dial(network string, id stack.TransportEndpointID) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	addr, ok := netip.AddrFromSlice(id.LocalAddress.AsSlice())
	if !ok {
		return nil, errForbidden
	}
	if addr == Gateway && id.LocalPort == dnsPort {
		servers := resolvers()
		if len(servers) == 0 {
			return nil, errors.New("the host has no resolver of names")
		}
		return n.dialer.DialContext(ctx, network, net.JoinHostPort(servers[0], "53"))
	}
	if err := admit(addr); err != nil {
		return nil, err
	}
	return n.dialer.DialContext(ctx, network, netip.AddrPortFrom(addr, id.LocalPort).String())
}

// resolvers returns the host's own resolvers of names.
func resolvers() []string {
	f, err := os.Open("/etc/resolv.conf")
	if err != nil {
		return nil
	}
	defer f.Close()
	var found []string
	lines := bufio.NewScanner(io.LimitReader(f, 64<<10))
	for lines.Scan() {
		if words := strings.Fields(lines.Text()); len(words) > 1 && words[0] == "nameserver" && net.ParseIP(words[1]) != nil {
			found = append(found, words[1])
		}
	}
	return found
}
