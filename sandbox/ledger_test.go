package sandbox_test

import (
	"errors"
	"fmt"
	"strings"
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

// Who has used up the hours of a month has no sandbox any more until the next one. The
// clock is simulated, the gateway restarted in between.
func TestHoursUsedUp(t *testing.T) {
	var clock atomic.Int64
	set := func(s string) {
		at, err := time.Parse(time.DateTime, s)
		if err != nil {
			t.Fatal(err)
		}
		clock.Store(at.Unix())
	}
	set("2026-11-28 12:00:00")
	w := newWorld(t)
	w.clock = func() time.Time { return time.Unix(clock.Load(), 0) }
	w.restart()
	w.quota(sandbox.QuotaHours, (40 * time.Hour).Milliseconds())
	row := w.create("web")
	lease, err := w.Wake(t.Context(), row)
	if err != nil {
		t.Fatal(err)
	}
	beat := func(at string) {
		t.Helper()
		set(at)
		if err := w.Beat(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	beat("2026-11-29 12:00:00")
	lease.Release()
	w.restart() // a kill is the same to the ledger
	if lease, err = w.Wake(t.Context(), row); err != nil {
		t.Fatal(err)
	}
	beat("2026-11-30 03:59:59")
	w.wantState(row, sandbox.Running)
	beat("2026-11-30 04:00:01")
	w.wantState(row, sandbox.Stopped)
	const says = "quota hours is reached: 40 of 40 sandbox-hours this month are used, until 2026-12-01"
	if err := lease.Gone(); err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("who was in it is told: %v", err)
	}
	lease.Release()
	set("2026-11-30 23:59:59")
	if _, err := w.Wake(t.Context(), row); err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("a second before the month ends: %v", err)
	}
	set("2026-12-01 00:00:00")
	if lease, err = w.Wake(t.Context(), row); err != nil {
		t.Fatal(err)
	}
	lease.Release()
	beat("2026-12-01 01:00:00")
	standings, err := w.Standings(t.Context(), w.user.ID)
	if err != nil || len(standings) != 1 || standings[0].Used != time.Hour.Milliseconds() {
		t.Errorf("in the new month: %+v, %v", standings, err)
	}
}
