//go:build linux

package gvisor_test

import (
	"testing"

	"sandgate/sandbox"
	"sandgate/sandbox/drivertest"
)

// The processes of a sandbox with the network full run as nobody, and end with it.
func TestNetworkProcesses(t *testing.T) {
	d := open(t)
	spec := sandbox.Spec{ID: sandbox.NewID(), Hostname: "test", Image: sandbox.ImageHost, Network: sandbox.NetworkFull, Limits: sandbox.Limits{Memory: 512 << 20}}
	if err := d.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	defer d.Remove(t.Context(), spec.ID)
	if err := d.Start(t.Context(), spec.ID); err != nil {
		t.Fatal(err)
	}
	drivertest.Connect(t, d, spec.ID).Run("true")
	if got := len(processes(spec.ID)); got != 3 {
		t.Errorf("%d processes work for the sandbox, want 3", got)
	}
	for _, pid := range processes(spec.ID) {
		if uid := owner(t, pid); uid < 1<<16 && len(status(t, d, spec.ID).Notes) == 0 {
			t.Errorf("process %d runs as %d, a user of the host", pid, uid)
		}
	}
	if err := d.Stop(t.Context(), spec.ID); err != nil {
		t.Fatal(err)
	}
	if left := processes(spec.ID); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
