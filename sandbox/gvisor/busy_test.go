//go:build linux

package gvisor_test

import (
	"testing"
	"time"

	"sandgate/sandbox"
	"sandgate/sandbox/drivertest"
)

// Processor time counts, whether or not there are control groups, and an idle
// sandbox takes next to none.
func TestBusy(t *testing.T) {
	for name, limits := range map[string]sandbox.Limits{"without groups": {}, "with groups": {PIDs: 100}} {
		d := open(t)
		id, sh := drivertest.Start(t, d, sandbox.Spec{Limits: limits})
		busy := func() time.Duration {
			t.Helper()
			b, err := d.Busy(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		before := busy()
		sh.Run("bash", "-c", "for ((i = 0; i < 300000; i++)); do :; done")
		used := busy() - before
		if used < 100*time.Millisecond {
			t.Errorf("%s: a loop took %v", name, used)
		}
		before = busy()
		time.Sleep(2 * time.Second)
		if idle := busy() - before; idle > 20*time.Millisecond {
			t.Errorf("%s: doing nothing for two seconds took %v", name, idle)
		}
	}
	if _, err := open(t).Busy(t.Context(), sandbox.NewID()); err == nil {
		t.Error("a sandbox that does not run is busy")
	}
}
