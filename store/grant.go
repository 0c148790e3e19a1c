package store

import (
	"context"
	"fmt"
	"time"
)

// A Grant is the leave to use somebody else's sandbox.
type Grant struct {
	SandboxID string
	UserID    int64
	User      string // the name of user UserID
	ReadOnly  bool
	Created   time.Time
}

// Share lets a user use a sandbox. For one who may already it changes how.
// ErrNotFound if there is no such user or sandbox.
func (db *DB) Share(ctx context.Context, sandboxID string, userID int64, readOnly bool) error {
	_, err := db.write.ExecContext(ctx, `
		INSERT INTO grants (sandbox_id, user_id, read_only, created) VALUES (?, ?, ?, ?)
		ON CONFLICT DO UPDATE SET read_only = excluded.read_only`,
		sandboxID, userID, readOnly, toMillis(now()))
	if err != nil {
		return fmt.Errorf("share sandbox %s with user %d: %w", sandboxID, userID, meaning(err))
	}
	return nil
}

// Unshare undoes Share. ErrNotFound if the sandbox was not shared with the user.
func (db *DB) Unshare(ctx context.Context, sandboxID string, userID int64) error {
	err := db.update(ctx, "DELETE FROM grants WHERE sandbox_id = ? AND user_id = ?", sandboxID, userID)
	if err != nil {
		return fmt.Errorf("unshare sandbox %s from user %d: %w", sandboxID, userID, err)
	}
	return nil
}

const selectGrants = `
	SELECT grants.sandbox_id, grants.user_id, users.name, grants.read_only, grants.created
	FROM grants JOIN users ON users.id = grants.user_id `

// columns is where the columns of a row of selectGrants go.
func (g *Grant) columns() []any {
	return []any{&g.SandboxID, &g.UserID, &g.User, &g.ReadOnly, millis{&g.Created}}
}

// Grant returns a user's leave to use a sandbox, or ErrNotFound.
func (db *DB) Grant(ctx context.Context, sandboxID string, userID int64) (Grant, error) {
	var g Grant
	row := db.read.QueryRowContext(ctx, selectGrants+"WHERE grants.sandbox_id = ? AND grants.user_id = ?", sandboxID, userID)
	if err := row.Scan(g.columns()...); err != nil {
		return Grant{}, fmt.Errorf("grant of sandbox %s to user %d: %w", sandboxID, userID, meaning(err))
	}
	return g, nil
}

// GrantsOf returns with whom a sandbox is shared, in the order of their names.
func (db *DB) GrantsOf(ctx context.Context, sandboxID string) ([]Grant, error) {
	all, err := selectAll(ctx, db, (*Grant).columns, selectGrants+"WHERE grants.sandbox_id = ? ORDER BY users.name", sandboxID)
	if err != nil {
		return nil, fmt.Errorf("list grants of sandbox %s: %w", sandboxID, err)
	}
	return all, nil
}

// A Shared is a sandbox and the leave to use it.
type Shared struct {
	Sandbox
	ReadOnly bool
}

// SharedWith returns the sandboxes that are shared with a user, in the order of
// their names and their owners'.
func (db *DB) SharedWith(ctx context.Context, userID int64) ([]Shared, error) {
	columns := func(s *Shared) []any { return append(s.Sandbox.columns(), &s.ReadOnly) }
	all, err := selectAll(ctx, db, columns, `
		SELECT s.id, s.user_id, users.name, s.name, s.driver, s.spec, s.desired, s.created, s.last_used, grants.read_only
		FROM grants JOIN sandboxes s ON s.id = grants.sandbox_id JOIN users ON users.id = s.user_id
		WHERE grants.user_id = ? ORDER BY s.name, users.name`, userID)
	if err != nil {
		return nil, fmt.Errorf("list sandboxes shared with user %d: %w", userID, err)
	}
	return all, nil
}
