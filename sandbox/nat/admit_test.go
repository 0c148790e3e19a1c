package nat

import (
	"net"
	"net/netip"
	"testing"
)

func TestForbidden(t *testing.T) {
	own := []net.Addr{
		&net.IPNet{IP: net.IPv4(203, 0, 113, 7), Mask: net.CIDRMask(24, 32)},
		&net.IPNet{IP: net.ParseIP("2001:db8::7"), Mask: net.CIDRMask(64, 128)},
	}
	for addr, want := range map[string]bool{
		"203.0.113.7": true, "203.0.113.8": false, "10.0.0.1": false, "1.1.1.1": false, "192.168.0.1": false, "172.16.0.1": false, "100.64.0.1": false,
		"127.0.0.1": true, "127.255.0.1": true, "0.0.0.0": true, "169.254.169.254": true, "192.0.0.2": true, "192.0.0.192": true, "240.0.0.1": true,
		"224.0.0.1": true, "255.255.255.255": true, "100.100.100.200": true, "168.63.129.16": true,
		"2001:db8::7": true, "2001:db8::8": false, "2606:4700::1111": false, "fd12:3456::1": false,
		"::": true, "::1": true, "::127.0.0.1": true, "::1.1.1.1": true,
		"::ffff:127.0.0.1": true, "::ffff:169.254.169.254": true, "::ffff:203.0.113.7": true, "::ffff:1.1.1.1": false,
		"::ffff:0:127.0.0.1": true,
		"64:ff9b::127.0.0.1": true, "64:ff9b::a9fe:a9fe": true, "64:ff9b::203.0.113.7": true, "64:ff9b::1.1.1.1": false,
		"64:ff9b:1::1": true, "2002:7f00:1::1": true, "2002:cb00:7107::1": true, "2002:101:101::1": false, "2001:0:1::1": true,
		"fe80::1": true, "fe80::1%eth0": true, "2606:4700::1111%eth0": true, "fec0::1": true, "ff02::1": true,
		"fd00:ec2::254": true, "fd20:ce::254": true, "fd5a:9d1e:7c34::2": true,
	} {
		if got := forbidden(netip.MustParseAddr(addr), own); got != want {
			t.Errorf("%s: forbidden is %v", addr, got)
		}
	}
}

// No way of writing an address of version 4 gets past what is forbidden.
func FuzzEmbedded(f *testing.F) {
	f.Add([]byte{127, 0, 0, 1})
	f.Add([]byte{169, 254, 169, 254})
	f.Add([]byte{1, 1, 1, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) != 4 {
			return
		}
		four := netip.AddrFrom4([4]byte(b))
		if !forbidden(four, nil) {
			return
		}
		for _, form := range [][]byte{
			append(append(make([]byte, 10), 0xff, 0xff), b...),
			append(make([]byte, 12), b...),
			append([]byte{0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0}, b...),
			append(append([]byte{0x20, 0x02}, b...), make([]byte, 10)...),
		} {
			six, _ := netip.AddrFromSlice(form)
			if !forbidden(six, nil) {
				t.Errorf("%v is forbidden, and as %v it is not", four, six)
			}
		}
	})
}
