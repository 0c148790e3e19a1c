package store

import (
	"database/sql"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// fill adds a thousand users with ten keys and ten sandboxes each, and a million
// rows of usage and of audit.
func fill(b *testing.B, db *DB) (users []User) {
	b.Helper()
	ctx := b.Context()
	err := transact(ctx, db.write, func(tx *sql.Tx) error {
		run := func(query string, args ...any) {
			if _, err := tx.ExecContext(ctx, query, args...); err != nil {
				b.Fatal(err)
			}
		}
		const numbers = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < ?1 - 1) "
		run("INSERT INTO users (name, role, created) "+numbers+"SELECT 'u' || i, 'user', 0 FROM n", 1000)
		run("INSERT INTO keys (fingerprint, user_id, type, blob, name, created, last_used) "+numbers+
			"SELECT 'SHA256:' || i, 1 + i / 10, 'ssh-ed25519', randomblob(51), 'k', 0, 0 FROM n", 10_000)
		run("INSERT INTO sandboxes (id, user_id, name, driver, spec, desired, created, last_used) "+numbers+
			"SELECT printf('%016x', i), 1 + i / 10, 's' || (i % 10), 'd', x'7b7d', 'stopped', 0, 0 FROM n", 10_000)
		run(`INSERT INTO usage (user_id, day, sandbox_id, user, sandbox, running_ms, bytes_in, bytes_out, sessions, jobs,
				tokens_in, tokens_cache_read, tokens_cache_write, tokens_out, cost_micros) `+numbers+
			`SELECT 1 + i / 1000, date('2026-11-30', '-' || (i % 100) || ' days'), printf('%016x', i / 100), 'u', 's', 1000, 1, 1, 1, 1, 0, 0, 0, 0, 0 FROM n`, 1_000_000)
		run("INSERT INTO audit (id, time, conn, remote, user_id, user, owner_id, sandbox, kind, outcome, detail, hash) "+numbers+
			"SELECT 1 + i, i, 'CONN', '127.0.0.1:1', 1 + i % 1000, 'u' || (i % 1000), 0, '', 'exec', 'ok', 'make', randomblob(32) FROM n", 1_000_000)
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	if users, err = db.Users(ctx); err != nil || len(users) != 1000 {
		b.Fatal(len(users), err)
	}
	return users
}

// BenchmarkLarge is what logins and the commonest verbs ask of a store that has
// been in use for years. Each is to take less than 10 ms.
func BenchmarkLarge(b *testing.B) {
	db, _ := openTemp(b)
	ctx := b.Context()
	users := fill(b, db)
	month := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	for _, bb := range []struct {
		name string
		do   func(User) error
	}{
		{"login", func(u User) error {
			_, _, err := db.UserByKey(ctx, fmt.Sprintf("SHA256:%d", (u.ID-1)*10))
			return err
		}},
		{"ls", func(u User) error {
			_, err := db.SandboxesOf(ctx, u.ID)
			return err
		}},
		{"quota", func(u User) error {
			_, err := db.TallyOf(ctx, u.ID, month)
			return err
		}},
		{"usage", func(u User) error {
			_, err := db.UsageBy(ctx, u.ID, month, BySandbox)
			return err
		}},
		{"audit", func(u User) error {
			_, err := db.Audit(ctx, AuditFilter{Of: u.ID}, 100)
			return err
		}},
		{"audit of all", func(User) error {
			_, err := db.Audit(ctx, AuditFilter{}, 100)
			return err
		}},
	} {
		b.Run(bb.name, func(b *testing.B) {
			for b.Loop() {
				if err := bb.do(users[rand.IntN(len(users))]); err != nil {
					b.Fatal(err)
				}
			}
			if mean := b.Elapsed() / time.Duration(b.N); mean > 10*time.Millisecond {
				b.Errorf("takes %v", mean)
			}
		})
	}
}
