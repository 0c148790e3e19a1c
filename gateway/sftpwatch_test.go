package gateway

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
)

// sftpPacket is an SFTP packet.
func sftpPacket(typ byte, body any) []byte {
	b := append([]byte{typ}, ssh.Marshal(body)...)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

type sftpPathPacket struct {
	ID   uint32
	Path string
}

type sftpTwoPacket struct {
	ID       uint32
	One, Two string
}

type sftpOpenPacket struct {
	ID           uint32
	Path         string
	Flags, Attrs uint32
}

type sftpExtendedPacket struct {
	ID             uint32
	Name, One, Two string
}

type sftpStatusPacket struct {
	ID, Code      uint32
	Message, Lang string
}

// watch passes what both sides send, in pieces of n bytes, and returns what was
// recorded.
func watch(up, down []byte, n int) []string {
	var ops []string
	w := newSFTPWatch(func(op, outcome string) { ops = append(ops, op+": "+outcome) })
	c := watchSFTP(nil, w)
	for piece := range slices.Chunk(up, n) {
		c.up.pass(piece)
	}
	for piece := range slices.Chunk(down, n) {
		c.down.pass(piece)
	}
	w.end()
	if len(ops) > 0 {
		slices.Sort(ops)
	}
	return ops
}

func TestSFTPWatch(t *testing.T) {
	up := slices.Concat(
		sftpPacket(1, struct{ Version uint32 }{3}),
		sftpPacket(sftpOpen, sftpOpenPacket{1, "/a", 1, 0}),
		sftpPacket(sftpOpen, sftpOpenPacket{2, "/b", 2 | 8, 0}),
		sftpPacket(6, struct { // write
			ID     uint32
			Handle string
			Offset uint64
			Data   string
		}{3, "h", 0, strings.Repeat("\x00\x00\x00\x09\x0d", 10_000)}),
		sftpPacket(sftpRemove, sftpPathPacket{4, "/c\n\x1b[2J"}),
		sftpPacket(sftpRename, sftpTwoPacket{5, "/d", "/e"}),
		sftpPacket(sftpExtended, sftpExtendedPacket{6, "posix-rename@openssh.com", "/f", "/g"}),
		sftpPacket(sftpExtended, sftpExtendedPacket{7, "statvfs@openssh.com", "/f", ""}),
		sftpPacket(sftpMkdir, sftpPathPacket{8, strings.Repeat("x", 5000)}),
		sftpPacket(sftpRmdir, sftpPathPacket{9, "/h"}),
	)
	down := slices.Concat(
		sftpPacket(2, struct{ Version uint32 }{3}),
		sftpPacket(sftpHandle, sftpPathPacket{1, "h"}),
		sftpPacket(sftpStatus, sftpStatusPacket{2, 3, "denied", ""}),
		sftpPacket(103, sftpPathPacket{77, strings.Repeat("data", 10_000)}),
		sftpPacket(sftpStatus, sftpStatusPacket{4, 0, "", ""}),
		sftpPacket(sftpStatus, sftpStatusPacket{5, 0, "", ""}),
		sftpPacket(sftpStatus, sftpStatusPacket{6, 0, "", ""}),
		sftpPacket(sftpStatus, sftpStatusPacket{8, 4, "", ""}),
		sftpPacket(sftpStatus, sftpStatusPacket{99, 0, "", ""}),
	)
	want := []string{
		`mkdir "` + strings.Repeat("x", 400) + `": failed`, `read "/a": ok`, `remove "/c\n\x1b[2J": ok`,
		`rename "/d" "/e": ok`, `rename "/f" "/g": ok`, `rmdir "/h": unknown`, `write "/b": failed`,
	}
	for _, n := range []int{1, 3, 5, 1000, 1 << 20} {
		if got := watch(up, down, n); !slices.Equal(got, want) {
			t.Errorf("in pieces of %d:\n%q, want\n%q", n, got, want)
		}
	}
}

// FuzzSFTPWatch passes anything: what is seen does not depend on how it is cut, and
// what is kept of it stays small.
func FuzzSFTPWatch(f *testing.F) {
	f.Add(sftpPacket(sftpOpen, sftpOpenPacket{1, "/a", 1, 0}), sftpPacket(sftpHandle, sftpPathPacket{1, "h"}), uint8(3))
	f.Add(sftpPacket(sftpRename, sftpTwoPacket{5, "/d", "/e"}), sftpPacket(sftpStatus, sftpStatusPacket{5, 0, "", ""}), uint8(1))
	f.Add([]byte{0, 0, 0, 0, 0}, []byte{255, 255, 255, 255, 101}, uint8(1))
	f.Fuzz(func(t *testing.T, up, down []byte, n uint8) {
		whole, cut := watch(up, down, 1<<20), watch(up, down, int(n)+1)
		if fmt.Sprint(whole) != fmt.Sprint(cut) {
			t.Errorf("whole %q, cut %q", whole, cut)
		}
		c := watchSFTP(nil, newSFTPWatch(func(string, string) {}))
		c.up.pass(up)
		if len(c.up.buf) > 4+maxSFTPHead {
			t.Errorf("%d bytes are kept", len(c.up.buf))
		}
	})
}
