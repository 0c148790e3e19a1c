package store

import (
	"context"
	"fmt"
	"time"
)

// A Snapshot is the disk of a sandbox as it once was.
type Snapshot struct {
	ID      string // unique
	UserID  int64
	Name    string // unique among the owner's
	Driver  string
	Spec    []byte // of the sandbox, then
	Sandbox string // its name, then
	Created time.Time
}

const selectSnapshots = "SELECT id, user_id, name, driver, spec, sandbox, created FROM snapshots "

func (s *Snapshot) columns() []any {
	return []any{&s.ID, &s.UserID, &s.Name, &s.Driver, &s.Spec, &s.Sandbox, millis{&s.Created}}
}

// CreateSnapshot adds a snapshot and returns it as stored; Created is filled in.
// ErrExists if its owner has one of that name, ErrNotFound if there is no such owner.
func (db *DB) CreateSnapshot(ctx context.Context, s Snapshot) (Snapshot, error) {
	s.Created = now()
	_, err := db.write.ExecContext(ctx, "INSERT INTO snapshots (id, user_id, name, driver, spec, sandbox, created) VALUES (?, ?, ?, ?, ?, ?, ?)",
		s.ID, s.UserID, s.Name, s.Driver, s.Spec, s.Sandbox, toMillis(s.Created))
	if err != nil {
		return Snapshot{}, fmt.Errorf("create snapshot %q: %w", s.Name, meaning(err))
	}
	return s, nil
}

// SnapshotByName returns the user's snapshot of that name, or ErrNotFound.
func (db *DB) SnapshotByName(ctx context.Context, userID int64, name string) (Snapshot, error) {
	var s Snapshot
	err := db.read.QueryRowContext(ctx, selectSnapshots+"WHERE user_id = ? AND name = ?", userID, name).Scan(s.columns()...)
	if err != nil {
		return Snapshot{}, fmt.Errorf("snapshot %q of user %d: %w", name, userID, meaning(err))
	}
	return s, nil
}

// SnapshotsOf returns the user's snapshots in the order of their names; with 0 all
// that there are.
func (db *DB) SnapshotsOf(ctx context.Context, userID int64) ([]Snapshot, error) {
	all, err := selectAll(ctx, db, (*Snapshot).columns, selectSnapshots+"WHERE user_id = ?1 OR ?1 = 0 ORDER BY name", userID)
	if err != nil {
		return nil, fmt.Errorf("list snapshots of user %d: %w", userID, err)
	}
	return all, nil
}

// DeleteSnapshot removes the snapshot's row. ErrNotFound if there is none.
func (db *DB) DeleteSnapshot(ctx context.Context, id string) error {
	if err := db.update(ctx, "DELETE FROM snapshots WHERE id = ?", id); err != nil {
		return fmt.Errorf("delete snapshot %s: %w", id, err)
	}
	return nil
}

// Expose records that commands of a sandbox were given a secret. It may be repeated.
func (db *DB) Expose(ctx context.Context, sandboxID, secret string) error {
	_, err := db.write.ExecContext(ctx, "INSERT INTO exposures (sandbox_id, secret) VALUES (?, ?) ON CONFLICT DO NOTHING", sandboxID, secret)
	if err != nil {
		return fmt.Errorf("record that sandbox %s has secret %q: %w", sandboxID, secret, meaning(err))
	}
	return nil
}

// Exposed returns the names of the secrets that commands of a sandbox were given since
// Unexpose.
func (db *DB) Exposed(ctx context.Context, sandboxID string) ([]string, error) {
	names, err := selectAll(ctx, db, func(s *string) []any { return []any{s} },
		"SELECT secret FROM exposures WHERE sandbox_id = ? ORDER BY secret", sandboxID)
	if err != nil {
		return nil, fmt.Errorf("secrets in sandbox %s: %w", sandboxID, err)
	}
	return names, nil
}

// Unexpose records that nothing is left in the memory of a sandbox.
func (db *DB) Unexpose(ctx context.Context, sandboxID string) error {
	_, err := db.write.ExecContext(ctx, "DELETE FROM exposures WHERE sandbox_id = ?", sandboxID)
	if err != nil {
		return fmt.Errorf("forget secrets in sandbox %s: %w", sandboxID, err)
	}
	return nil
}
