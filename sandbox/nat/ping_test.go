//go:build linux

package nat

import (
	"net/netip"
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"sandgate/sandbox/testneed"
)

// FuzzPing: what is taken for a ping is within its packet, and its refusal is one
// that fits into any link.
func FuzzPing(f *testing.F) {
	f.Add(false, []byte("\x45\x00\x00\x1c\x00\x00\x00\x00\x40\x01\x00\x00\x0a\x00\x00\x01\x0a\x00\x00\x02\x08\x00\x00\x00\x00\x01\x00\x01"))
	f.Add(true, append([]byte("\x60\x00\x00\x00\x00\x08\x3a\x40"), append(make([]byte, 32), 128, 0, 0, 0, 0, 1, 0, 1)...))
	f.Fuzz(func(t *testing.T, six bool, packet []byte) {
		parse := parsePing4
		if six {
			parse = parsePing6
			if len(packet) < header.IPv6MinimumSize {
				return
			}
		} else if len(packet) < header.IPv4MinimumSize {
			return
		}
		p, ok := parse(packet)
		if !ok {
			return
		}
		if len(p.message) < header.ICMPv4MinimumSize || p.to.Is6() != six || p.from.Is6() != six {
			t.Fatalf("%+v", p)
		}
		if n := len(refusal(p, true)); n > 600 {
			t.Errorf("a refusal of %d bytes", n)
		}
	})
}

// A ping goes out by a socket of the host, if that lets its users ping, and what
// comes back has the number that the sandbox gave it.
func TestSendPing(t *testing.T) {
	testneed.Root(t) // for a host that lets its users ping
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for ever: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		here := netip.MustParseAddr("127.0.0.1")
		message := append([]byte{byte(header.ICMPv4Echo), 0, 0, 0, 0x12, 0x34, 0, 7}, "payload"...)
		if err := setPingers("1 0"); err != nil {
			t.Error(err)
			return
		}
		if _, err := sendPing(here, message); err == nil {
			t.Error("a host that lets nobody ping let us")
		}
		if err := setPingers("0 2147483647"); err != nil {
			t.Error(err)
			return
		}
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err != nil {
			t.Error(err)
			return
		}
		answer, err := sendPing(here, message)
		if err != nil {
			t.Error(err)
			return
		}
		answer = reply(here, answer, message)
		if h := header.ICMPv4(answer); h.Type() != header.ICMPv4EchoReply || h.Ident() != 0x1234 || h.Sequence() != 7 || string(answer[8:]) != "payload" {
			t.Errorf("answer is %q", answer)
		}
	}()
	<-done
}

func setPingers(groups string) error {
	return os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte(groups), 0)
}
