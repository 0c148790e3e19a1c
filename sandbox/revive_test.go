package sandbox_test

import (
	"errors"
	"testing"

	"sandgate/sandbox"
)

// What is meant to run is started when it does not; what was stopped or removed is not.
func TestRevive(t *testing.T) {
	w := newWorld(t)
	row := w.createOf("", "web")
	w.mustRun(row)
	revive := func(want sandbox.State, starts int) {
		t.Helper()
		if err := w.Revive(t.Context(), row); err != nil {
			t.Fatal(err)
		}
		w.wantState(row, want)
		if n := w.driver.count(); n != starts {
			t.Errorf("it was started %d times, want %d", n, starts)
		}
	}
	revive(sandbox.Running, 1)
	w.restart()
	if err := w.driver.Stop(t.Context(), sandbox.ID(row.ID)); err != nil { // behind the manager's back
		t.Fatal(err)
	}
	revive(sandbox.Running, 2)
	if err := w.Stop(t.Context(), row); err != nil {
		t.Fatal(err)
	}
	revive(sandbox.Stopped, 2)
	w.mustRun(row)
	w.restart()
	if err := w.driver.Stop(t.Context(), sandbox.ID(row.ID)); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("no room")
	w.driver.failWith(broken)
	if err := w.Revive(t.Context(), row); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	w.driver.failWith(nil)
	if err := w.Remove(t.Context(), row); err != nil {
		t.Fatal(err)
	}
	if err := w.Revive(t.Context(), row); err != nil {
		t.Errorf("of a removed one: %v", err)
	}
	if n := w.driver.count(); n != 3 {
		t.Errorf("it was started %d times, want 3", n)
	}
}
