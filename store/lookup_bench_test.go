package store

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"testing"
	"time"
)

// BenchmarkThousandUsers looks up a login, and what ls, usage and a quota need, where
// there are a thousand users with ten keys and ten sandboxes each and a million rows
// of usage.
func BenchmarkThousandUsers(b *testing.B) {
	const users, each, days = 1000, 10, 100
	ctx := b.Context()
	db, err := Open(ctx, filepath.Join(b.TempDir(), "db"))
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	today := time.Now()
	err = transact(ctx, db.write, func(tx *sql.Tx) error {
		for u := 1; u <= users; u++ {
			if _, err := tx.ExecContext(ctx, "INSERT INTO users (id, name, role, created) VALUES (?, ?, 'user', 0)", u, fmt.Sprintf("user%d", u)); err != nil {
				return err
			}
			for i := range each {
				id := fmt.Sprintf("%08x%08x", u, i)
				if _, err := tx.ExecContext(ctx, "INSERT INTO keys (fingerprint, user_id, type, blob, name, created, last_used) VALUES (?, ?, '', x'', '', 0, 0)", "SHA256:"+id, u); err != nil {
					return err
				}
				if _, err := tx.ExecContext(ctx, `INSERT INTO sandboxes (id, user_id, name, driver, spec, desired, created, last_used)
					VALUES (?, ?, ?, 'gvisor', x'', 'stopped', 0, 0)`, id, u, fmt.Sprintf("box%d", i)); err != nil {
					return err
				}
			}
		}
		for day := range days {
			if _, err := tx.ExecContext(ctx, `
				INSERT INTO usage (user_id, day, sandbox_id, user, sandbox, running_ms, bytes_in, bytes_out, sessions, jobs,
					tokens_in, tokens_cache_read, tokens_cache_write, tokens_out, cost_micros)
				SELECT user_id, ?, id, 'user', name, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 FROM sandboxes`, dayOf(today.AddDate(0, 0, -day))); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	for _, u := range []int64{EachUser, AllUsers} {
		if err := db.SetQuota(ctx, Quota{Subject: u, Measure: "tokens", Value: 1 << 40}); err != nil {
			b.Fatal(err)
		}
	}
	for name, f := range map[string]func(n int) error{
		"login": func(n int) error {
			_, _, err := db.UserByKey(ctx, fmt.Sprintf("SHA256:%08x%08x", 1+n%users, n%each))
			return err
		},
		"ls": func(n int) error {
			_, err := db.SandboxesOf(ctx, int64(1+n%users))
			return err
		},
		"tally-of-one": func(n int) error {
			_, err := db.TallyOf(ctx, int64(1+n%users), today)
			return err
		},
		"tally-of-all": func(n int) error {
			_, err := db.TallyOf(ctx, 0, today)
			return err
		},
		"charge": func(n int) error {
			return db.AddUsage(ctx, fmt.Sprintf("%08x%08x", 1+n%users, n%each), today, Usage{Running: time.Second})
		},
	} {
		b.Run(name, func(b *testing.B) {
			for n := 0; b.Loop(); n++ {
				if err := f(n); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/op")
		})
	}
}
