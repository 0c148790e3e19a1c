package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// Usage is what was used. The zero value is nothing.
type Usage struct {
	Running           time.Duration
	CPU               *time.Duration // nil: not measured
	MemoryPeak        *int64         // bytes; nil: not measured
	BytesIn, BytesOut int64
	Sessions, Jobs    int64
	TokensIn          int64 // uncached
	TokensCacheRead   int64
	TokensCacheWrite  int64
	TokensOut         int64
	CostMicros        int64 // millionths of a US dollar
}

// dayOf is the day of t as usage has it.
func dayOf(t time.Time) string { return t.UTC().Format(time.DateOnly) }

// AddUsage adds what a sandbox used on the day of at. A sandbox that is gone is
// still charged if it ever was before; one that nobody knows is not.
func (db *DB) AddUsage(ctx context.Context, sandboxID string, at time.Time, u Usage) error {
	err := transact(ctx, db.write, func(tx *sql.Tx) error { return addUsage(ctx, tx, sandboxID, dayOf(at), u) })
	if err != nil {
		return fmt.Errorf("usage of sandbox %s: %w", sandboxID, err)
	}
	return nil
}

func addUsage(ctx context.Context, tx *sql.Tx, sandboxID, day string, u Usage) error {
	var cpu *int64
	if u.CPU != nil {
		cpu = new(u.CPU.Milliseconds())
	}
	_, err := tx.ExecContext(ctx, `
		INSERT INTO usage (user_id, day, sandbox_id, user, sandbox, running_ms, cpu_ms, memory_peak, bytes_in, bytes_out,
			sessions, jobs, tokens_in, tokens_cache_read, tokens_cache_write, tokens_out, cost_micros)
		SELECT user_id, ?1, ?2, user, sandbox, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14 FROM (
			SELECT s.user_id, u.name AS user, s.name AS sandbox
			FROM sandboxes s JOIN users u ON u.id = s.user_id WHERE s.id = ?2
			UNION ALL
			SELECT * FROM (SELECT user_id, user, sandbox FROM usage WHERE sandbox_id = ?2 ORDER BY day DESC LIMIT 1)
		) LIMIT 1
		ON CONFLICT (user_id, day, sandbox_id) DO UPDATE SET
			user = excluded.user, sandbox = excluded.sandbox,
			running_ms = running_ms + excluded.running_ms,
			cpu_ms = CASE WHEN excluded.cpu_ms IS NULL THEN cpu_ms ELSE coalesce(cpu_ms, 0) + excluded.cpu_ms END,
			memory_peak = CASE WHEN excluded.memory_peak IS NULL THEN memory_peak ELSE max(coalesce(memory_peak, 0), excluded.memory_peak) END,
			bytes_in = bytes_in + excluded.bytes_in, bytes_out = bytes_out + excluded.bytes_out,
			sessions = sessions + excluded.sessions, jobs = jobs + excluded.jobs,
			tokens_in = tokens_in + excluded.tokens_in,
			tokens_cache_read = tokens_cache_read + excluded.tokens_cache_read,
			tokens_cache_write = tokens_cache_write + excluded.tokens_cache_write,
			tokens_out = tokens_out + excluded.tokens_out,
			cost_micros = cost_micros + excluded.cost_micros`,
		day, sandboxID, u.Running.Milliseconds(), cpu, u.MemoryPeak, u.BytesIn, u.BytesOut, u.Sessions, u.Jobs,
		u.TokensIn, u.TokensCacheRead, u.TokensCacheWrite, u.TokensOut, u.CostMicros)
	return err
}

// A Reading is what a host says that a running sandbox has used since it was
// started. nil is what the host does not measure.
type Reading struct {
	CPU        *time.Duration
	MemoryPeak *int64 // bytes
}

// StartRunning records that a sandbox runs from at on. It may be repeated.
// ErrNotFound if there is no such sandbox.
func (db *DB) StartRunning(ctx context.Context, sandboxID string, at time.Time) error {
	_, err := db.write.ExecContext(ctx,
		"INSERT INTO running (sandbox_id, charged, cpu_ms) VALUES (?, ?, 0) ON CONFLICT DO NOTHING", sandboxID, toMillis(at))
	if err != nil {
		return fmt.Errorf("start of sandbox %s: %w", sandboxID, meaning(err))
	}
	return nil
}

// EndRunning charges a sandbox up to at and records that it does not run any more.
// Nothing is charged if it was not running.
func (db *DB) EndRunning(ctx context.Context, sandboxID string, at time.Time, r Reading) error {
	err := transact(ctx, db.write, func(tx *sql.Tx) error {
		if err := charge(ctx, tx, sandboxID, at, r); errors.Is(err, ErrNotFound) {
			return nil
		} else if err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "DELETE FROM running WHERE sandbox_id = ?", sandboxID)
		return err
	})
	if err != nil {
		return fmt.Errorf("end of sandbox %s: %w", sandboxID, err)
	}
	return nil
}

// ChargeRunning charges the sandboxes that run up to at, in one transaction: after
// a crash each moment has been charged once or is still to be. running are those
// that ran at the time seen, whether they were recorded or not. Those that were
// recorded before seen and are not among them do not run any more, since some
// unknown moment after they were last charged, and are forgotten.
func (db *DB) ChargeRunning(ctx context.Context, running map[string]Reading, seen, at time.Time) error {
	err := transact(ctx, db.write, func(tx *sql.Tx) error {
		for id, r := range running {
			if _, err := tx.ExecContext(ctx, `
				INSERT INTO running (sandbox_id, charged, cpu_ms) SELECT id, ?, 0 FROM sandboxes WHERE id = ?
				ON CONFLICT DO NOTHING`, toMillis(at), id); err != nil {
				return err
			}
			if err := charge(ctx, tx, id, at, r); err != nil && !errors.Is(err, ErrNotFound) {
				return err
			}
		}
		rows, err := tx.QueryContext(ctx, "SELECT sandbox_id FROM running WHERE charged < ?", toMillis(seen))
		if err != nil {
			return err
		}
		defer rows.Close()
		var ended []string
		for rows.Next() {
			var id string
			if err := rows.Scan(&id); err != nil {
				return err
			}
			if _, runs := running[id]; !runs {
				ended = append(ended, id)
			}
		}
		if err := rows.Err(); err != nil {
			return err
		}
		for _, id := range ended {
			if _, err := tx.ExecContext(ctx, "DELETE FROM running WHERE sandbox_id = ?", id); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("charge running sandboxes: %w", err)
	}
	return nil
}

// charge adds the time from when a running sandbox was last charged until at to the
// days that it belongs to, and what r has more than then to the last of them.
// ErrNotFound if the sandbox is not recorded as running.
func charge(ctx context.Context, tx *sql.Tx, id string, at time.Time, r Reading) error {
	var from time.Time
	var cpu int64
	err := tx.QueryRowContext(ctx, "SELECT charged, cpu_ms FROM running WHERE sandbox_id = ?", id).Scan(millis{&from}, &cpu)
	if err != nil {
		return meaning(err)
	}
	at = at.UTC().Truncate(time.Millisecond)
	if at.Before(from) {
		at = from // the clock was set back: what was charged stays
	}
	u := Usage{MemoryPeak: r.MemoryPeak}
	if r.CPU != nil {
		total := r.CPU.Milliseconds()
		if total < cpu {
			cpu = 0 // counted from a later start
		}
		u.CPU = new(time.Duration(total-cpu) * time.Millisecond)
		cpu = total
	}
	for midnight := nextDay(from); midnight.Before(at); midnight = nextDay(from) {
		if err := addUsage(ctx, tx, id, dayOf(from), Usage{Running: midnight.Sub(from)}); err != nil {
			return err
		}
		from = midnight
	}
	u.Running = at.Sub(from)
	if err := addUsage(ctx, tx, id, dayOf(at), u); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, "UPDATE running SET charged = ?, cpu_ms = ? WHERE sandbox_id = ?", toMillis(at), cpu, id)
	return err
}

func nextDay(t time.Time) time.Time {
	y, m, d := t.UTC().Date()
	return time.Date(y, m, d+1, 0, 0, 0, 0, time.UTC)
}

// RunningSandboxes returns the sandboxes that are recorded as running.
func (db *DB) RunningSandboxes(ctx context.Context) ([]Sandbox, error) {
	all, err := selectAll(ctx, db, (*Sandbox).columns, selectSandboxes+"JOIN running r ON r.sandbox_id = s.id ORDER BY s.id")
	if err != nil {
		return nil, fmt.Errorf("list running sandboxes: %w", err)
	}
	return all, nil
}

// A UsageRow is what was used by a user, a sandbox or on a day; what it is not by
// is empty.
type UsageRow struct {
	User, Sandbox, Day string
	Usage
}

// What usage can be summed by.
const (
	ByUser    = "user"
	BySandbox = "sandbox"
	ByDay     = "day"
)

// UsageBy returns what was used in the month of month, of one user or, with 0, of
// all, summed by ByUser, BySandbox or ByDay and in the order of that.
func (db *DB) UsageBy(ctx context.Context, userID int64, month time.Time, by string) ([]UsageRow, error) {
	group := map[string]string{ByUser: "user, '', ''", BySandbox: "user, sandbox, ''", ByDay: "'', '', day"}[by]
	if group == "" {
		return nil, fmt.Errorf("usage by %q: no such sum", by)
	}
	// With a condition of both the index would not be used.
	whose := "user_id = ?1"
	if userID == 0 {
		whose = "?1 = 0"
	}
	from, to := monthOf(month)
	rows, err := selectAll(ctx, db, func(r *UsageRow) []any {
		return []any{&r.User, &r.Sandbox, &r.Day, durationMillis{&r.Running}, nullDurationMillis{&r.CPU}, &r.MemoryPeak,
			&r.BytesIn, &r.BytesOut, &r.Sessions, &r.Jobs,
			&r.TokensIn, &r.TokensCacheRead, &r.TokensCacheWrite, &r.TokensOut, &r.CostMicros}
	}, `
		SELECT `+group+`, sum(running_ms), sum(cpu_ms), max(memory_peak), sum(bytes_in), sum(bytes_out), sum(sessions), sum(jobs),
			sum(tokens_in), sum(tokens_cache_read), sum(tokens_cache_write), sum(tokens_out), sum(cost_micros)
		FROM usage WHERE `+whose+` AND day >= ?2 AND day < ?3
		GROUP BY 1, 2, 3 ORDER BY 1, 2, 3`, userID, from, to)
	if err != nil {
		return nil, fmt.Errorf("usage by %s: %w", by, err)
	}
	return rows, nil
}

// monthOf returns the days from which on and before which a month is.
func monthOf(t time.Time) (from, to string) {
	y, m, _ := t.UTC().Date()
	return dayOf(time.Date(y, m, 1, 0, 0, 0, 0, time.UTC)), dayOf(time.Date(y, m+1, 1, 0, 0, 0, 0, time.UTC))
}

// A Tally is what counts against quotas: how much there is now, and how much was
// used in a month.
type Tally struct {
	Sandboxes, RunningNow int64
	Running               time.Duration
	Tokens, CostMicros    int64
}

// TallyOf returns the tally of one user or, with 0, of all.
func (db *DB) TallyOf(ctx context.Context, userID int64, month time.Time) (Tally, error) {
	from, to := monthOf(month)
	var t Tally
	whose := "user_id = ?1"
	if userID == 0 {
		whose = "?1 = 0"
	}
	err := db.read.QueryRowContext(ctx, `
		SELECT (SELECT count(*) FROM sandboxes WHERE `+whose+`),
			(SELECT count(*) FROM running r JOIN sandboxes s ON s.id = r.sandbox_id WHERE `+whose+`),
			coalesce(sum(running_ms), 0),
			coalesce(sum(tokens_in + tokens_cache_read + tokens_cache_write + tokens_out), 0), coalesce(sum(cost_micros), 0)
		FROM usage WHERE `+whose+` AND day >= ?2 AND day < ?3`, userID, from, to).
		Scan(&t.Sandboxes, &t.RunningNow, durationMillis{&t.Running}, &t.Tokens, &t.CostMicros)
	if err != nil {
		return Tally{}, fmt.Errorf("tally of user %d: %w", userID, err)
	}
	return t, nil
}

// durationMillis is a duration to scan a column of milliseconds into.
type durationMillis struct{ d *time.Duration }

func (m durationMillis) Scan(column any) error {
	ms, ok := column.(int64)
	if !ok {
		return fmt.Errorf("duration stored as %T", column)
	}
	*m.d = time.Duration(ms) * time.Millisecond
	return nil
}

// nullDurationMillis is the same for a column that may be NULL.
type nullDurationMillis struct{ d **time.Duration }

func (m nullDurationMillis) Scan(column any) error {
	if column == nil {
		*m.d = nil
		return nil
	}
	*m.d = new(time.Duration)
	return durationMillis{*m.d}.Scan(column)
}
