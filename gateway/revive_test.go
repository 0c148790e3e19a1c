package gateway

import (
	"testing"
	"time"

	"sandgate/sandbox"
)

// A sandbox is started that is found stopped, and later and later again while it does
// not stay up.
func TestReviverDue(t *testing.T) {
	r := newReviver(nil)
	now := time.Now()
	over := func() { r.tries["a"].busy = false }
	for i, step := range []struct {
		after time.Duration
		state sandbox.State
		due   bool
	}{
		{0, sandbox.Running, false},
		{0, sandbox.Unknown, false},
		{0, sandbox.Stopped, true},
		{time.Second, sandbox.Stopped, false},
		{4 * time.Second, sandbox.Stopped, true},
		{9 * time.Second, sandbox.Stopped, false},
		{time.Second, sandbox.Stopped, true},
		{time.Second, sandbox.Running, false},
		{20 * time.Second, sandbox.Stopped, true},
		{11 * time.Minute, sandbox.Running, false}, // it has lasted
		{time.Second, sandbox.Stopped, true},
		{5 * time.Second, sandbox.Stopped, true},
		{5 * time.Minute, sandbox.Stopped, true},
	} {
		now = now.Add(step.after)
		if got := r.due("a", step.state, now); got != step.due {
			t.Fatalf("step %d: due is %v", i, got)
		}
		if step.due {
			if r.due("a", sandbox.Stopped, now.Add(time.Hour)) {
				t.Fatalf("step %d: due again while it is being started", i)
			}
			over()
		}
	}
	r.failed("a", "no room")
	if why := r.why("a"); why != "no room" {
		t.Errorf("it failed for %q", why)
	}
	r.forget(nil)
	if why := r.why("a"); why != "" || len(r.tries) > 0 {
		t.Errorf("of a sandbox that is gone is kept %q, %v", why, r.tries)
	}
}
