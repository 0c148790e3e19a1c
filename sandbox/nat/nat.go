// Package nat is the network "full" of sandboxes, which every driver has the same.
//
// A sandbox with that network has one end of a cable in a network namespace of its
// own. What comes out at the other end is taken by a process with a network stack
// of gVisor's (Carry), which opens an ordinary socket of its own host for each
// connection, each flow of packets and each ping, after it has looked where they
// lead: a sandbox never reaches the host itself, another sandbox, what is on the
// link only, or where clouds tell a machine its secrets. Nothing on the host is
// changed for that: there is no bridge, no address and no filter that somebody
// could miss, and a sandbox has no rights over its end that would matter.
//
// Who lays the cable (Lay) has to be root in the namespace. The two processes need
// nothing of each other but one message with the open end (Send, Receive): package
// gvisor starts both itself, package docker has an engine start them as two
// containers beside the sandbox's own (see Main).
package nat

import "net/netip"

// Where the sandbox finds the network, and which address it has itself.
// IANA has set 192.0.0.0/29 aside for the two ends of such links, so nothing else
// is hidden by it; the prefix of version 6 is a random one of local use.
var (
	Gateway  = netip.MustParseAddr("192.0.0.1") // and resolver of names
	Sandbox  = netip.MustParseAddr("192.0.0.2")
	gateway6 = netip.MustParseAddr("fd5a:9d1e:7c34::1")
	sandbox6 = netip.MustParseAddr("fd5a:9d1e:7c34::2")
)

// The lengths of the prefixes of these addresses.
const (
	bits  = 29
	bits6 = 64
)

// The arguments with which our program is one end in a container.
const (
	mainName  = "nat"
	holdName  = "hold"
	carryName = "carry"
)

// ReadyLine is what Main writes when its end of the cable is ready.
const ReadyLine = "ready"

// HoldArgs is a command that lays a cable in the namespace that it runs in, and
// hands the far end to whoever connects to a socket in dir.
func HoldArgs(program, dir string) []string { return []string{program, mainName, holdName, dir} }

// CarryArgs is a command that carries what comes from the cable of HoldArgs.
func CarryArgs(program, dir string) []string { return []string{program, mainName, carryName, dir} }
