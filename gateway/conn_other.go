//go:build !linux

package gateway

import "net"

// An inbound reads a connection. What makes it fast needs Linux.
type inbound struct{ net.Conn }

func newInbound(conn net.Conn) *inbound { return &inbound{conn} }

func (*inbound) delayACKs() {}
