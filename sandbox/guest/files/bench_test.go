package files

import (
	"os"
	"testing"
)

const benchSize = 512 << 20

// benchDir is in memory if it can be: what counts is the way, not the disk.
func benchDir(b *testing.B) string {
	if dir, err := os.MkdirTemp("/dev/shm", "files"); err == nil {
		b.Cleanup(func() { os.RemoveAll(dir) })
		return dir
	}
	return b.TempDir()
}

// windowed sends n requests, of which as many are on their way as a stock client
// allows itself, and hands each answer to take.
func (c *client) windowed(n int, send func(i int), take func(*answer)) {
	const window = 64
	tokens := make(chan struct{}, window)
	go func() {
		for i := range n {
			tokens <- struct{}{}
			send(i)
		}
	}()
	buf := make([]byte, maxPacket)
	for range n {
		take(c.recvInto(buf))
		<-tokens
	}
}

func BenchmarkSFTPPut(b *testing.B) {
	c := dialWith(b, Options{Home: benchDir(b)})
	h := c.open("f", openWrite|openCreate)
	var r reply
	data := make([]byte, maxData)
	b.SetBytes(benchSize)
	b.ReportAllocs()
	for b.Loop() {
		c.windowed(benchSize/maxData, func(i int) {
			r.begin(fxpWrite, uint32(i))
			r.text(h)
			r.uint64(uint64(i) * maxData)
			r.uint32(maxData)
			r.b = append(r.b, data...)
			c.w.Write(r.packet())
		}, func(a *answer) {
			equal(b, "write", a.uint32(), fine)
		})
	}
}

func BenchmarkSFTPGet(b *testing.B) {
	c := dialWith(b, Options{Home: benchDir(b)})
	h := c.open("f", openRead|openWrite|openCreate)
	for i := range benchSize / maxData {
		c.write(h, uint64(i)*maxData, string(make([]byte, maxData)))
	}
	var r reply
	b.SetBytes(benchSize)
	b.ReportAllocs()
	for b.Loop() {
		c.windowed(benchSize/maxData, func(i int) {
			r.begin(fxpRead, uint32(i))
			r.text(h)
			r.uint64(uint64(i) * maxData)
			r.uint32(maxData)
			c.w.Write(r.packet())
		}, func(a *answer) {
			equal(b, "data", a.uint32(), maxData)
		})
	}
}
