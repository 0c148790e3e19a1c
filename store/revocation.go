package store

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"
)

// A Revocation is something that is never to be accepted again. What it names,
// apart from fingerprints of keys, means nothing here.
type Revocation struct {
	What    string
	Created time.Time
}

// Revoke records that something is not to be accepted any more; a second time
// changes nothing. A key of a user with that fingerprint cannot be used from then
// on. ErrLastAdmin if no admin could log in for good after it.
func (db *DB) Revoke(ctx context.Context, what string) error {
	err := db.keepAdmin(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO revocations (what, created) VALUES (?, ?) ON CONFLICT DO NOTHING",
			what, toMillis(now()))
		return err
	})
	if err != nil {
		return fmt.Errorf("revoke %s: %w", what, meaning(err))
	}
	return nil
}

// Revocations returns all revocations, oldest first.
func (db *DB) Revocations(ctx context.Context) ([]Revocation, error) {
	all, err := selectAll(ctx, db, func(r *Revocation) []any { return []any{&r.What, millis{&r.Created}} },
		"SELECT what, created FROM revocations ORDER BY created, what")
	if err != nil {
		return nil, fmt.Errorf("list revocations: %w", err)
	}
	return all, nil
}

// Revoked says whether any of these is revoked.
func (db *DB) Revoked(ctx context.Context, what ...string) (revoked bool, err error) {
	args := make([]any, len(what))
	for i, w := range what {
		args[i] = w
	}
	marks := strings.TrimSuffix(strings.Repeat("?,", len(what)), ",")
	err = db.read.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM revocations WHERE what IN ("+marks+"))", args...).Scan(&revoked)
	if err != nil {
		return false, fmt.Errorf("look for revocations: %w", err)
	}
	return revoked, nil
}
