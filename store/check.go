package store

import (
	"context"
	"fmt"
	"os"
	"time"
)

// Check looks through the whole database and returns what is wrong with it, in
// SQLite's words; nothing if all is well.
func (db *DB) Check(ctx context.Context) ([]string, error) {
	all, err := selectAll(ctx, db, func(s *string) []any { return []any{s} }, "PRAGMA quick_check(10)")
	if err != nil {
		return nil, fmt.Errorf("check database: %w", err)
	}
	if len(all) == 1 && all[0] == "ok" {
		return nil, nil
	}
	return all, nil
}

// maxFailedLogins is how many of the newest rows FailedLogins looks at.
const maxFailedLogins = 20_000

// FailedLogins returns how many keys were refused since then, of those in the newest
// rows of the audit that are about nobody who is known.
func (db *DB) FailedLogins(ctx context.Context, since time.Time) (int, error) {
	var n int
	err := db.read.QueryRowContext(ctx, `
		SELECT count(*) FROM (SELECT time, kind, outcome FROM audit WHERE user_id = 0 ORDER BY id DESC LIMIT ?)
		WHERE time >= ? AND kind = 'login' AND outcome = 'denied'`, maxFailedLogins, toMillis(since)).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("failed logins: %w", err)
	}
	return n, nil
}

// Unreadable returns the names of the secrets of a user, or with 0 of all users, whose
// values cannot be unsealed.
func (v *Vault) Unreadable(ctx context.Context, userID int64) ([]string, error) {
	type row struct {
		Secret
		key    string
		sealed []byte
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	rows, err := selectAll(ctx, v.db, func(r *row) []any { return append(r.columns(), &r.key, &r.sealed) },
		"SELECT "+secretColumns+", s.key_id, s.sealed FROM secrets s WHERE ?1 IN (0, s.user_id) ORDER BY 4", userID)
	if err != nil {
		return nil, fmt.Errorf("check secrets: %w", err)
	}
	var names []string
	for _, r := range rows {
		if _, err := v.open(r.key, r.sealed, r.bound()); err != nil {
			names = append(names, r.Name)
		}
	}
	return names, nil
}

// CheckKey says whether the file with the vault's keys, if they are in one, is there
// for the next start, with the key that is in use.
func (v *Vault) CheckKey() error {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.path == "" {
		return nil
	}
	text, err := os.ReadFile(v.path)
	if err != nil {
		return err
	}
	keys, err := ParseSealKeys(text)
	if err != nil {
		return fmt.Errorf("%s: %w", v.path, err)
	}
	if keys[0].id != v.keys[0].id {
		return fmt.Errorf("%s has another key than the one in use", v.path)
	}
	return nil
}
