package drivertest

import (
	"strings"
	"testing"

	"sandgate/sandbox/guest"
)

// What a sandbox does with the socket of its guest, on which the gateway listens.
var socketCases = cases{
	"ReadOnly":  check(socketReadOnly),
	"Mode":      check(socketMode),
	"NotRoot":   does{text: "rm -f /run/sandgate/guest.sock 2>/dev/null; test -e /run/sandgate/guest.sock", user: "4321"},
	"Garbage":   alone(socketGarbage),
	"Flood":     alone(socketFlood),
	"FloodIdle": alone(socketFloodIdle),
	"Program":   check(socketProgram),
}

// The folder belongs to the gateway: nothing in it can be made, taken away,
// swapped or covered.
func socketReadOnly(s *seat) {
	socket := guest.SocketDir + "/" + guest.SocketName
	for _, text := range []string{
		"touch " + guest.SocketDir + "/new",
		"mkdir " + guest.SocketDir + "/new",
		"ln -s /etc/passwd " + guest.SocketDir + "/new",
		"ln -sf /etc/passwd " + socket,
		"rm " + socket,
		"mv " + socket + " " + socket + ".old",
		"mv " + guest.SocketDir + " " + guest.SocketDir + ".old",
		"rmdir " + guest.SocketDir,
		"chmod 777 " + guest.SocketDir,
		"chmod 666 " + socket,
		"chown 4321 " + socket,
		s.bench.probe() + " mount remount none " + guest.SocketDir,
		"umount " + guest.SocketDir,
	} {
		if got := s.do(guest.Command{Text: []byte(text)}, nil); got.exit == (guest.Exit{}) {
			s.Errorf("root in a sandbox could %s", text)
		}
	}
	s.want("ls\n", "test -S "+socket+" && echo ls")
}

// Only root may speak to the gateway.
func socketMode(s *seat) {
	got := s.do(guest.Command{Text: []byte(s.bench.probe() + " flood 1"), User: "4321"}, nil)
	if strings.TrimSpace(got.stdout) != "0 connections" {
		s.Errorf("an ordinary user of the sandbox made %s", got.stdout)
	}
}

// The guest's own program cannot be changed either.
func socketProgram(s *seat) {
	for _, text := range []string{
		"rm " + guest.Executable, "echo x >>" + guest.Executable, "touch /.sandgate/new",
		"chmod 644 " + guest.Executable, "mv /.sandgate /.old", "ln -sf /bin/sh " + guest.Executable,
	} {
		if got := s.do(guest.Command{Text: []byte(text)}, nil); got.exit == (guest.Exit{}) {
			s.Errorf("root in a sandbox could %s", text)
		}
	}
}

func socketGarbage(t *testing.T, b *bench) {
	_, sh := b.start("garbage")
	sh.Run("sh", "-c", b.probe()+" garbage")
	sh.Run("true")
}

// Connections that say nothing do not keep the gateway from its guest for long,
// nor do they cost it more than a few descriptors.
func socketFlood(t *testing.T, b *bench) {
	id, sh := b.start("flood")
	for range 3 {
		sh.Run("sh", "-c", b.probe()+" flood 500")
	}
	sh.Run("true")
	sh.Close()
	b.connect(id).Run("true")
}

// The same while no gateway listens to the sandbox.
func socketFloodIdle(t *testing.T, b *bench) {
	id, sh := b.start("flood")
	sh.Run("sh", "-c", "(sleep 0.2; "+b.probe()+" flood 500) >/dev/null 2>&1 </dev/null &")
	sh.Close()
	sh = b.connect(id)
	sh.Run("true")
	if err := b.Stop(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	b.wake(id).Run("true")
}
