//go:build linux

package guest

import (
	"io"
	"testing"
)

func BenchmarkExec(b *testing.B) {
	c := newWorld(b).connect()
	for b.Loop() {
		run(b, c, command("true"), nil)
	}
}

func BenchmarkOutput(b *testing.B) {
	c := newWorld(b).connect()
	const size = 256 << 20
	b.SetBytes(size)
	for b.Loop() {
		p, err := c.Start(command("dd if=/dev/zero bs=256k count=1024 status=none"), false)
		if err != nil {
			b.Fatal(err)
		}
		var n counter
		if _, err := p.Wait(b.Context(), &n, io.Discard); err != nil || n != size {
			b.Fatalf("%d bytes, %v", n, err)
		}
		p.Close()
	}
}

func BenchmarkInput(b *testing.B) {
	c := newWorld(b).connect()
	const size = 256 << 20
	chunk := make([]byte, 256<<10)
	b.SetBytes(size)
	for b.Loop() {
		p, err := c.Start(command("exec cat >/dev/null"), false)
		if err != nil {
			b.Fatal(err)
		}
		go func() {
			for range size / len(chunk) {
				p.Write(chunk)
			}
			p.CloseWrite()
		}()
		if _, err := p.Wait(b.Context(), io.Discard, io.Discard); err != nil {
			b.Fatal(err)
		}
		p.Close()
	}
}

type counter int

func (c *counter) Write(p []byte) (int, error) { *c += counter(len(p)); return len(p), nil }
