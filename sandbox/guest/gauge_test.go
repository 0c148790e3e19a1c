//go:build linux

package guest

import (
	"strings"
	"testing"
)

// The memory of a job is that of all its processes, and not the guest's.
func TestPeak(t *testing.T) {
	w := newWorld(t)
	c := w.connect()
	start := func(text string) string {
		i, err := c.Run(t.Context(), Run{ID: NewJobID(), Command: command(text)})
		if err != nil {
			t.Fatal(err)
		}
		return i.ID
	}
	const fill = "x=$(head -c 20000000 /dev/zero | tr '\\0' x); sleep 7271; :"
	large, small := start("(sh -c '"+strings.ReplaceAll(fill, "'", `'\''`)+"; :') & "+fill), start("exec sleep 7271")
	memory := func(id string) int64 {
		i, err := c.Job(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return i.Memory
	}
	waitFor(t, "a look at both", func() bool { return memory(large) > 40e6 && memory(small) > 0 })
	for _, id := range []string{large, small} {
		if err := c.End(t.Context(), id, ""); err != nil {
			t.Fatal(err)
		}
	}
	if i := wait(t, c, large); i.Memory < 40e6 {
		t.Errorf("the large one had %d bytes", i.Memory)
	}
	if i := wait(t, c, small); i.Memory == 0 || i.Memory > 10e6 {
		t.Errorf("the small one had %d bytes", i.Memory)
	}
}
