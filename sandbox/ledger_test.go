package sandbox_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sandgate/sandbox"
	"sandgate/store"
)

func (w *world) quota(m sandbox.Measure, n int64) {
	w.t.Helper()
	if err := w.db.SetQuota(w.t.Context(), store.Quota{Subject: w.user.ID, Measure: string(m), Value: n}); err != nil {
		w.t.Fatal(err)
	}
}

// Of many at the same time only as many get through as there are places.
func TestQuotaAtTheSameTime(t *testing.T) {
	w := newWorld(t)
	w.quota(sandbox.QuotaSandboxes, 4)
	w.quota(sandbox.QuotaRunning, 2)
	var made, running atomic.Int32
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			row, err := w.Create(t.Context(), w.user, fmt.Sprintf("s%d", i), sandbox.Options{})
			if q, ok := errors.AsType[*sandbox.QuotaError](err); ok && q.Measure == sandbox.QuotaSandboxes {
				return
			} else if err != nil {
				t.Error(err)
				return
			}
			made.Add(1)
			lease, err := w.Wake(t.Context(), row)
			if q, ok := errors.AsType[*sandbox.QuotaError](err); ok && q.Measure == sandbox.QuotaRunning {
				return
			} else if err != nil {
				t.Error(err)
				return
			}
			running.Add(1)
			lease.Release()
		})
	}
	wg.Wait()
	if made.Load() != 4 || running.Load() != 2 {
		t.Errorf("%d made and %d run, want 4 and 2", made.Load(), running.Load())
	}
}

// A sandbox that cannot be started takes no place and costs nothing.
func TestQuotaAfterFailure(t *testing.T) {
	w := newWorld(t)
	w.quota(sandbox.QuotaRunning, 1)
	row, err := w.Create(t.Context(), w.user, "web", sandbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		w.driver.failWith(errors.New("engine is down"))
		if _, err := w.Wake(t.Context(), row); err == nil {
			t.Fatal("started")
		}
	}
	if n, err := w.db.RunningSandboxes(t.Context()); err != nil || len(n) != 0 {
		t.Errorf("running: %v, %v", n, err)
	}
	w.driver.failWith(nil)
	lease, err := w.Wake(t.Context(), row)
	if err != nil {
		t.Fatal(err)
	}
	lease.Release()
}

// What runs while there is no gateway is charged by the next one.
func TestChargedOverRestart(t *testing.T) {
	w := newWorld(t)
	row, err := w.Create(t.Context(), w.user, "web", sandbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	woken := time.Now()
	lease, err := w.Wake(t.Context(), row)
	if err != nil {
		t.Fatal(err)
	}
	lease.Release()
	began := time.Now()
	time.Sleep(100 * time.Millisecond)
	w.restart()
	ran := time.Since(began)
	if err := w.Stop(t.Context(), row); err != nil {
		t.Fatal(err)
	}
	stopped := time.Now()
	time.Sleep(100 * time.Millisecond)
	w.restart()
	rows, err := w.db.UsageBy(t.Context(), w.user.ID, began, store.ByUser)
	if err != nil || len(rows) != 1 {
		t.Fatalf("usage: %v, %v", rows, err)
	}
	if got := rows[0].Running; got < ran-10*time.Millisecond || got > stopped.Sub(woken)+10*time.Millisecond {
		t.Errorf("%v were charged, it ran for %v to %v", got, ran, stopped.Sub(woken))
	}
}
