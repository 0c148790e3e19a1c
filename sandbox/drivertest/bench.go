package drivertest

import (
	"context"
	"strings"
	"testing"
	"time"

	"sandgate/sandbox"
)

// A bench is a driver on a host with the sandboxes that a test has made.
type bench struct {
	Host
	t *testing.T
	sandbox.Driver
	ids    []sandbox.ID
	shells []*Shell
	lent   bool // the driver is another bench's
}

func newBench(t *testing.T, h Host) *bench {
	b := &bench{Host: h, t: t}
	b.open()
	t.Cleanup(b.clean)
	return b
}

// lend returns a bench for another test that uses the same driver.
func (b *bench) lend(t *testing.T) *bench {
	other := &bench{Host: b.Host, t: t, Driver: b.Driver, lent: true}
	t.Cleanup(other.clean)
	return other
}

func (b *bench) open() {
	b.t.Helper()
	d, err := b.Open()
	if err != nil {
		b.t.Fatal(err)
	}
	b.Driver = d
}

// reopen does what a restart of the gateway does.
func (b *bench) reopen() {
	b.t.Helper()
	b.hangUp()
	b.open()
}

// hangUp closes the driver and all connections.
func (b *bench) hangUp() {
	b.t.Helper()
	if err := b.Close(); err != nil {
		b.t.Fatal(err)
	}
	for _, sh := range b.shells {
		sh.Close()
	}
}

// clean removes what the test has made and fails it if anything is left.
func (b *bench) clean() {
	for _, sh := range b.shells {
		sh.Close()
	}
	for _, id := range b.ids {
		if err := b.Remove(context.Background(), id); err != nil {
			b.t.Error(err)
		}
		if traces := b.Traces(id); len(traces) > 0 {
			b.t.Errorf("of sandbox %s is left:\n%s", id, strings.Join(traces, "\n"))
		}
	}
	if b.lent {
		return
	}
	if err := b.Close(); err != nil {
		b.t.Error(err)
	}
}

// create makes a sandbox that is called hostname.
func (b *bench) create(hostname string) sandbox.ID {
	b.t.Helper()
	return b.createWith(b.spec(sandbox.NewID(), hostname))
}

func (b *bench) createWith(spec sandbox.Spec) sandbox.ID {
	b.t.Helper()
	b.ids = append(b.ids, spec.ID)
	if err := b.Create(b.t.Context(), spec); err != nil {
		b.t.Fatal(err)
	}
	return spec.ID
}

// start makes and starts a sandbox.
func (b *bench) start(hostname string) (sandbox.ID, *Shell) {
	b.t.Helper()
	id := b.create(hostname)
	return id, b.wake(id)
}

// startLimited makes and starts a sandbox with limits.
func (b *bench) startLimited(hostname string, limits sandbox.Limits) (sandbox.ID, *Shell) {
	b.t.Helper()
	spec := b.spec(sandbox.NewID(), hostname)
	spec.Limits = limits
	id := b.createWith(spec)
	return id, b.wake(id)
}

// wake starts a sandbox and connects to it.
func (b *bench) wake(id sandbox.ID) *Shell {
	b.t.Helper()
	if err := b.Start(b.t.Context(), id); err != nil {
		b.t.Fatal(err)
	}
	return b.connect(id)
}

func (b *bench) connect(id sandbox.ID) *Shell {
	b.t.Helper()
	sh := Connect(b.t, b.Driver, id)
	b.shells = append(b.shells, sh)
	return sh
}

// status returns what the driver lists of a sandbox, or nothing.
func (b *bench) status(id sandbox.ID) (status sandbox.Status) {
	b.t.Helper()
	list, err := b.List(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	for _, s := range list {
		if s.ID != id {
			continue
		}
		if status.ID != "" {
			b.t.Errorf("sandbox %s is listed twice", id)
		}
		status = s
	}
	return status
}

// state returns the state of a sandbox, or "" if the driver does not list it.
func (b *bench) state(id sandbox.ID) sandbox.State {
	b.t.Helper()
	return b.status(id).State
}

func (b *bench) wantState(id sandbox.ID, want sandbox.State) {
	b.t.Helper()
	if got := b.state(id); got != want {
		b.t.Fatalf("sandbox is %q, want %q", got, want)
	}
}

// awaitState waits for a state that nobody announces.
func (b *bench) awaitState(id sandbox.ID, want sandbox.State) {
	b.t.Helper()
	eventually(b.t, "the sandbox to be "+string(want), func() bool { return b.state(id) == want })
}

// eventually waits for what nobody announces.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v for %s", patience, what)
		}
	}
}
