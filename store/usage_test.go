package store

import (
	"testing"
	"time"
)

// used is what the user used in the month of at, by what.
func used(t *testing.T, db *DB, userID int64, at time.Time, by string) []UsageRow {
	t.Helper()
	rows, err := db.UsageBy(t.Context(), userID, at, by)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

func TestRunningIsChargedOnce(t *testing.T) {
	db, path := openTemp(t)
	ctx := t.Context()
	alice := addUser(t, db, "alice")
	web, api := addSandbox(t, db, alice, "web"), addSandbox(t, db, alice, "api")
	begin := time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)
	at := func(d time.Duration) time.Time { return begin.Add(d) }
	check := func(what string, want time.Duration) {
		t.Helper()
		var got time.Duration
		for _, r := range used(t, db, alice.ID, begin, BySandbox) {
			got += r.Running
		}
		if got != want {
			t.Errorf("%s: %v were charged, want %v", what, got, want)
		}
	}
	tick := func(seen, now time.Duration, ids ...string) {
		t.Helper()
		running := make(map[string]Reading)
		for _, id := range ids {
			running[id] = Reading{}
		}
		if err := db.ChargeRunning(ctx, running, at(seen), at(now)); err != nil {
			t.Fatal(err)
		}
	}

	if err := db.StartRunning(ctx, web.ID, at(0)); err != nil {
		t.Fatal(err)
	}
	tick(10*time.Second, 10*time.Second, web.ID)
	check("a beat", 10*time.Second)
	if err := db.StartRunning(ctx, web.ID, at(15*time.Second)); err != nil { // said again
		t.Fatal(err)
	}
	tick(20*time.Second, 20*time.Second, web.ID)
	tick(20*time.Second, 20*time.Second, web.ID) // the same moment again
	tick(15*time.Second, 15*time.Second, web.ID) // the clock was set back
	check("beats", 20*time.Second)

	// The gateway dies, the sandbox runs on, and the next gateway finds it.
	db.Close()
	db = reopen(t, path)
	tick(2*time.Minute, 2*time.Minute, web.ID)
	check("found running", 2*time.Minute)

	// A sandbox that was started after the drivers were asked is not forgotten.
	if err := db.StartRunning(ctx, api.ID, at(130*time.Second)); err != nil {
		t.Fatal(err)
	}
	tick(129*time.Second, 131*time.Second, web.ID)
	if err := db.EndRunning(ctx, api.ID, at(140*time.Second), Reading{}); err != nil {
		t.Fatal(err)
	}
	check("another", 131*time.Second+10*time.Second)
	if err := db.EndRunning(ctx, api.ID, at(150*time.Second), Reading{}); err != nil { // has ended
		t.Fatal(err)
	}
	check("ended twice", 141*time.Second)

	// One that is found dead ran until it was last charged, as far as is known.
	tick(time.Hour, time.Hour)
	check("found dead", 141*time.Second)
	tick(2*time.Hour, 2*time.Hour, web.ID) // and runs again
	tick(2*time.Hour+time.Second, 2*time.Hour+time.Second, web.ID)
	check("started again", 142*time.Second)

	// Midnight, and with it the month, is in the middle.
	if err := db.EndRunning(ctx, web.ID, begin.Add(15*time.Hour), Reading{}); err != nil {
		t.Fatal(err)
	}
	check("up to midnight", 141*time.Second+12*time.Hour)
	next := used(t, db, alice.ID, begin.Add(24*time.Hour), ByDay)
	if len(next) != 1 || next[0].Day != "2026-12-01" || next[0].Running != time.Hour {
		t.Errorf("after midnight: %+v", next)
	}
}

func TestReadings(t *testing.T) {
	db, _ := openTemp(t)
	ctx := t.Context()
	alice := addUser(t, db, "alice")
	web := addSandbox(t, db, alice, "web")
	now := time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)
	if err := db.StartRunning(ctx, web.ID, now); err != nil {
		t.Fatal(err)
	}
	beat := func(r Reading) {
		t.Helper()
		now = now.Add(time.Second)
		if err := db.ChargeRunning(ctx, map[string]Reading{web.ID: r}, now, now); err != nil {
			t.Fatal(err)
		}
	}
	beat(Reading{})
	if got := used(t, db, 0, now, ByUser)[0]; got.CPU != nil || got.MemoryPeak != nil {
		t.Errorf("guessed: %+v", got.Usage)
	}
	beat(Reading{CPU: new(3 * time.Second), MemoryPeak: new(int64(500))})
	beat(Reading{CPU: new(5 * time.Second), MemoryPeak: new(int64(400))})
	beat(Reading{})
	beat(Reading{CPU: new(2 * time.Second)}) // it was started anew
	got := used(t, db, 0, now, ByUser)[0]
	if got.User != "alice" || got.CPU == nil || *got.CPU != 7*time.Second || *got.MemoryPeak != 500 || got.Running != 5*time.Second {
		t.Errorf("by user: %+v, CPU %v, memory %v", got, got.CPU, got.MemoryPeak)
	}
}

// What was used outlives the sandbox and the user, and nobody inherits it.
func TestUsageOutlives(t *testing.T) {
	db, _ := openTemp(t)
	ctx := t.Context()
	now := time.Now()
	alice, bob := addUser(t, db, "alice"), addUser(t, db, "bob")
	web, other := addSandbox(t, db, alice, "web"), addSandbox(t, db, bob, "web")
	for range 2 {
		if err := db.AddUsage(ctx, web.ID, now, Usage{BytesIn: 5, Sessions: 1, TokensOut: 7, CostMicros: 9}); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.DeleteSandbox(ctx, web.ID); err != nil {
		t.Fatal(err)
	}
	if err := db.AddUsage(ctx, web.ID, now, Usage{BytesOut: 3}); err != nil { // came late
		t.Fatal(err)
	}
	if err := db.AddUsage(ctx, "nobody-knows", now, Usage{BytesOut: 3}); err != nil {
		t.Fatal(err)
	}
	want := UsageRow{User: "alice", Sandbox: "web", Usage: Usage{BytesIn: 10, BytesOut: 3, Sessions: 2, TokensOut: 14, CostMicros: 18}}
	wantEqual(t, used(t, db, alice.ID, now, BySandbox), []UsageRow{want})

	if err := db.AddUsage(ctx, other.ID, now, Usage{Jobs: 1}); err != nil {
		t.Fatal(err)
	}
	if err := db.SetQuota(ctx, Quota{Subject: bob.ID, Measure: "m", Value: 1}); err != nil {
		t.Fatal(err)
	}
	if err := db.DeleteSandbox(ctx, other.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := db.write.Exec("DELETE FROM users WHERE id = ?", bob.ID); err != nil {
		t.Fatal(err)
	}
	carol := addUser(t, db, "carol")
	wantEqual(t, carol.ID, bob.ID) // as SQLite has it
	wantEqual(t, len(used(t, db, carol.ID, now, ByUser)), 0)
	wantEqual(t, len(used(t, db, 0, now, ByUser)), 2)
	quotas, err := db.QuotasFor(ctx, carol.ID)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, len(quotas), 0)
}

func TestTally(t *testing.T) {
	db, _ := openTemp(t)
	ctx := t.Context()
	now := time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)
	alice, bob := addUser(t, db, "alice"), addUser(t, db, "bob")
	web, other := addSandbox(t, db, alice, "web"), addSandbox(t, db, bob, "web")
	addSandbox(t, db, alice, "api")
	for _, s := range []Sandbox{web, other} {
		if err := db.StartRunning(ctx, s.ID, now); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.EndRunning(ctx, other.ID, now.Add(time.Minute), Reading{}); err != nil {
		t.Fatal(err)
	}
	if err := db.AddUsage(ctx, web.ID, now, Usage{TokensIn: 1, TokensCacheRead: 10, TokensCacheWrite: 100, TokensOut: 1000, CostMicros: 5}); err != nil {
		t.Fatal(err)
	}
	if err := db.AddUsage(ctx, web.ID, now.AddDate(0, 1, 0), Usage{TokensIn: 1, Running: time.Hour}); err != nil { // another month
		t.Fatal(err)
	}
	for id, want := range map[int64]Tally{
		alice.ID: {Sandboxes: 2, RunningNow: 1, Tokens: 1111, CostMicros: 5},
		bob.ID:   {Sandboxes: 1, Running: time.Minute},
		0:        {Sandboxes: 3, RunningNow: 1, Running: time.Minute, Tokens: 1111, CostMicros: 5},
	} {
		got, err := db.TallyOf(ctx, id, now)
		if err != nil {
			t.Fatal(err)
		}
		wantEqual(t, got, want)
	}
}

func TestQuotas(t *testing.T) {
	db, _ := openTemp(t)
	ctx := t.Context()
	alice, bob := addUser(t, db, "alice"), addUser(t, db, "bob")
	all := []Quota{
		{Subject: AllUsers, Measure: "hours", Value: 5},
		{Subject: EachUser, Measure: "hours", Value: 4},
		{Subject: alice.ID, User: "alice", Measure: "hours", Value: 3},
		{Subject: bob.ID, User: "bob", Measure: "tokens", Value: 2},
	}
	for _, q := range all {
		q.Value++
		if err := db.SetQuota(ctx, q); err != nil {
			t.Fatal(err)
		}
		q.Value--
		if err := db.SetQuota(ctx, q); err != nil {
			t.Fatal(err)
		}
	}
	got, err := db.Quotas(ctx)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, got, all)
	if got, err = db.QuotasFor(ctx, alice.ID); err != nil || len(got) != 3 {
		t.Errorf("for alice: %v, %v", got, err)
	}
	if err := db.DeleteQuota(ctx, bob.ID, "tokens"); err != nil {
		t.Fatal(err)
	}
	wantErr(t, db.DeleteQuota(ctx, bob.ID, "tokens"), ErrNotFound)
}
