//go:build linux

package gvisor_test

import (
	"context"
	"log/slog"
	"testing"

	"sandgate/sandbox"
	"sandgate/sandbox/drivertest"
	"sandgate/sandbox/gvisor"
)

// BenchmarkStart measures from the call of Start until the guest has dialled.
func BenchmarkStart(b *testing.B) {
	d, id := benchSandbox(b)
	for b.Loop() {
		if err := d.Start(b.Context(), id); err != nil {
			b.Fatal(err)
		}
		conn, err := d.Connect(b.Context(), id)
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		conn.Close()
		if err := d.Stop(b.Context(), id); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkStop measures Stop with a guest that ends itself in 50 ms.
func BenchmarkStop(b *testing.B) {
	d, id := benchSandbox(b)
	for b.Loop() {
		b.StopTimer()
		if err := d.Start(b.Context(), id); err != nil {
			b.Fatal(err)
		}
		drivertest.Connect(b, d, id).Run("true")
		b.StartTimer()
		if err := d.Stop(b.Context(), id); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCreate measures Create and Remove.
func BenchmarkCreate(b *testing.B) {
	d, _ := benchSandbox(b)
	for b.Loop() {
		spec := sandbox.Spec{ID: sandbox.NewID(), Hostname: "bench", Image: sandbox.ImageHost}
		if err := d.Create(b.Context(), spec); err != nil {
			b.Fatal(err)
		}
		if err := d.Remove(b.Context(), spec.ID); err != nil {
			b.Fatal(err)
		}
	}
}

// benchSandbox returns a driver with one sandbox, stopped.
func benchSandbox(b *testing.B) (*gvisor.Driver, sandbox.ID) {
	cfg := gvisor.Config{State: b.TempDir(), Run: shortDir(b), Executable: program}
	d, err := gvisor.New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { d.Close() })
	spec := sandbox.Spec{ID: sandbox.NewID(), Hostname: "bench", Image: sandbox.ImageHost}
	if err := d.Create(b.Context(), spec); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := d.Remove(context.Background(), spec.ID); err != nil {
			b.Error(err)
		}
	})
	return d, spec.ID
}
