package nat

import (
	"errors"
	"net"
	"net/netip"
)

var errForbidden = errors.New("not for sandboxes")

// admit says whether a sandbox may reach an address, now.
func admit(addr netip.Addr) error {
	own, err := net.InterfaceAddrs()
	if err != nil {
		return err
	}
	if forbidden(addr, own) {
		return errForbidden
	}
	return nil
}

// neverReached are, beside the host's own addresses, those that no sandbox reaches:
// what means the host or the link itself, what is for many, what leads to addresses
// of version 4 in ways that cannot be looked through, and where clouds tell a
// machine its secrets.
var neverReached = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("192.0.0.0/24"), // ours, and Oracle's metadata
	netip.MustParsePrefix("224.0.0.0/3"),
	netip.MustParsePrefix("100.100.100.200/32"), // Alibaba's metadata
	netip.MustParsePrefix("168.63.129.16/32"),   // Azure's

	netip.MustParsePrefix("::/96"),             // unspecified, loopback, and an old form of version 4
	netip.MustParsePrefix("::ffff:0:0:0/96"),   // translated
	netip.MustParsePrefix("64:ff9b:1::/48"),    // translated, as a network likes
	netip.MustParsePrefix("2001::/32"),         // Teredo
	netip.MustParsePrefix("fe80::/10"),         // of the link
	netip.MustParsePrefix("fec0::/10"),         // of the site, as it once was
	netip.MustParsePrefix("ff00::/8"),          // for many
	netip.PrefixFrom(gateway6, bits6).Masked(), // ours
	netip.MustParsePrefix("fd00:ec2::/32"),     // Amazon's metadata
	netip.MustParsePrefix("fd20:ce::254/128"),  // Google's
	netip.MustParsePrefix("fd00:42::42/128"),   // Scaleway's
}

// embedding are the prefixes of version 6 after which there is an address of
// version 4, to which what is sent to them goes.
var embedding = []netip.Prefix{
	netip.MustParsePrefix("64:ff9b::/96"), // NAT64
	netip.MustParsePrefix("2002::/16"),    // 6to4
}

// forbidden reports whether a sandbox may not reach an address, on a host that has
// the addresses own.
func forbidden(addr netip.Addr, own []net.Addr) bool {
	addr = addr.Unmap()
	if addr.Zone() != "" {
		return true
	}
	for _, p := range neverReached {
		if p.Contains(addr) {
			return true
		}
	}
	for _, a := range own {
		if n, ok := a.(*net.IPNet); ok && n.IP.Equal(addr.AsSlice()) {
			return true
		}
	}
	for _, p := range embedding {
		if p.Contains(addr) {
			at := addr.As16()
			return forbidden(netip.AddrFrom4([4]byte(at[p.Bits()/8:])), own)
		}
	}
	return false
}
