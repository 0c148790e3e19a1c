package gateway

import (
	"io"
	"path/filepath"
	"testing"

	"github.com/pkg/sftp"
)

func BenchmarkConnectAndRun(b *testing.B) {
	s := newStage(b, nil)
	s.run(s.login("web", s.alice), "true")
	for b.Loop() {
		c := s.login("web", s.alice)
		s.run(c, "true")
		c.Close()
	}
}

func BenchmarkRun(b *testing.B) {
	s := newStage(b, nil)
	c := s.login("web", s.alice)
	for b.Loop() {
		s.run(c, "true")
	}
}

func BenchmarkDownload(b *testing.B) {
	s := newStage(b, nil)
	c := s.login("web", s.alice)
	const size = 256 << 20
	b.SetBytes(size)
	for b.Loop() {
		session, err := c.NewSession()
		if err != nil {
			b.Fatal(err)
		}
		session.Stdout = io.Discard
		if err := session.Run("dd if=/dev/zero bs=256k count=1024 status=none"); err != nil {
			b.Fatal(err)
		}
		session.Close()
	}
}

func BenchmarkSFTP(b *testing.B) {
	s := newStage(b, nil)
	client, err := sftp.NewClient(s.login("web", s.alice), sftp.MaxPacketUnchecked(255<<10), sftp.UseConcurrentWrites(true))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { client.Close() })
	const size = 256 << 20
	name := filepath.Join(b.TempDir(), "file")
	b.Run("put", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			f, err := client.Create(name)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := f.ReadFrom(io.LimitReader(zeros{}, size)); err != nil {
				b.Fatal(err)
			}
			f.Close()
		}
	})
	b.Run("get", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			f, err := client.Open(name)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := f.WriteTo(io.Discard); err != nil {
				b.Fatal(err)
			}
			f.Close()
		}
	})
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func BenchmarkUpload(b *testing.B) {
	s := newStage(b, nil)
	c := s.login("web", s.alice)
	const size = 256 << 20
	b.SetBytes(size)
	for b.Loop() {
		session, err := c.NewSession()
		if err != nil {
			b.Fatal(err)
		}
		session.Stdin = io.LimitReader(zeros{}, size)
		if err := session.Run("exec cat >/dev/null"); err != nil {
			b.Fatal(err)
		}
		session.Close()
	}
}
