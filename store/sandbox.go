package store

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// What the owner of a sandbox wants of it.
const (
	DesiredRunning = "running"
	DesiredStopped = "stopped"
)

// A Sandbox is a sandbox as its owner asked for it. What it is really doing is
// for its driver to say.
type Sandbox struct {
	ID       string // unique
	UserID   int64
	Owner    string // the name of user UserID
	Name     string // unique among the owner's
	Driver   string
	Spec     []byte // opaque here; not nil
	Desired  string // DesiredRunning or DesiredStopped
	Created  time.Time
	LastUsed time.Time // Created, if it was never used
}

const selectSandboxes = `
	SELECT s.id, s.user_id, users.name, s.name, s.driver, s.spec, s.desired, s.created, s.last_used
	FROM sandboxes s JOIN users ON users.id = s.user_id `

// columns is where the columns of a row of selectSandboxes go.
func (s *Sandbox) columns() []any {
	return []any{&s.ID, &s.UserID, &s.Owner, &s.Name, &s.Driver, &s.Spec, &s.Desired,
		millis{&s.Created}, millis{&s.LastUsed}}
}

// CreateSandbox adds a sandbox and returns it as stored; Owner, Created and
// LastUsed are filled in. ErrExists if the owner has one, or an alias, of that name
// or the id is taken, so of several callers at once only one succeeds. ErrNotFound
// if there is no user s.UserID.
func (db *DB) CreateSandbox(ctx context.Context, s Sandbox) (Sandbox, error) {
	s.Created = now()
	s.LastUsed = s.Created
	err := transact(ctx, db.write, func(tx *sql.Tx) error {
		if err := noAlias(ctx, tx, s.UserID, s.Name); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `
			INSERT INTO sandboxes (id, user_id, name, driver, spec, desired, created, last_used)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
			s.ID, s.UserID, s.Name, s.Driver, s.Spec, s.Desired, toMillis(s.Created), toMillis(s.LastUsed))
		if err != nil {
			return err
		}
		return tx.QueryRowContext(ctx, "SELECT name FROM users WHERE id = ?", s.UserID).Scan(&s.Owner)
	})
	if err != nil {
		return Sandbox{}, fmt.Errorf("create sandbox %q: %w", s.Name, meaning(err))
	}
	return s, nil
}

const sandboxByNameQuery = selectSandboxes + "WHERE s.user_id = ? AND s.name = ?"

// SandboxByName returns the user's sandbox of that name, or ErrNotFound.
func (db *DB) SandboxByName(ctx context.Context, userID int64, name string) (Sandbox, error) {
	var s Sandbox
	err := db.frequent[sandboxByNameQuery].QueryRowContext(ctx, userID, name).Scan(s.columns()...)
	if err != nil {
		return Sandbox{}, fmt.Errorf("sandbox %q of user %d: %w", name, userID, meaning(err))
	}
	return s, nil
}

// Sandbox returns the sandbox with that id, or ErrNotFound.
func (db *DB) Sandbox(ctx context.Context, id string) (Sandbox, error) {
	var s Sandbox
	err := db.read.QueryRowContext(ctx, selectSandboxes+"WHERE s.id = ?", id).Scan(s.columns()...)
	if err != nil {
		return Sandbox{}, fmt.Errorf("sandbox %s: %w", id, meaning(err))
	}
	return s, nil
}

// SandboxesOf returns the user's sandboxes in the order of their names.
func (db *DB) SandboxesOf(ctx context.Context, userID int64) ([]Sandbox, error) {
	all, err := selectAll(ctx, db, (*Sandbox).columns, selectSandboxes+"WHERE s.user_id = ? ORDER BY s.name", userID)
	if err != nil {
		return nil, fmt.Errorf("list sandboxes of user %d: %w", userID, err)
	}
	return all, nil
}

// Sandboxes returns all sandboxes in the order of their owners' names and
// theirs.
func (db *DB) Sandboxes(ctx context.Context) ([]Sandbox, error) {
	all, err := selectAll(ctx, db, (*Sandbox).columns, selectSandboxes+"ORDER BY users.name, s.name")
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	return all, nil
}

// noAlias is ErrExists if the user has an alias of that name.
func noAlias(ctx context.Context, tx *sql.Tx, userID int64, name string) error {
	var taken bool
	err := tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM aliases WHERE user_id = ? AND name = ?)", userID, name).Scan(&taken)
	if err == nil && taken {
		return ErrExists
	}
	return err
}

// RenameSandbox gives a sandbox another name. ErrExists if its owner has a sandbox
// or an alias of that name, ErrNotFound if there is no such sandbox.
func (db *DB) RenameSandbox(ctx context.Context, s Sandbox, name string) error {
	err := transact(ctx, db.write, func(tx *sql.Tx) error {
		if err := noAlias(ctx, tx, s.UserID, name); err != nil {
			return err
		}
		return changeOne(tx.ExecContext(ctx, "UPDATE sandboxes SET name = ? WHERE id = ?", name, s.ID))
	})
	if err != nil {
		return fmt.Errorf("rename sandbox %s to %q: %w", s.ID, name, meaning(err))
	}
	return nil
}

// SetDesired records what the owner wants of the sandbox, DesiredRunning or
// DesiredStopped. ErrNotFound if there is no such sandbox.
func (db *DB) SetDesired(ctx context.Context, id, desired string) error {
	if err := db.update(ctx, "UPDATE sandboxes SET desired = ? WHERE id = ?", desired, id); err != nil {
		return fmt.Errorf("set sandbox %s to %s: %w", id, desired, err)
	}
	return nil
}

// SetSpec replaces the sandbox's spec. ErrNotFound if there is no such sandbox.
func (db *DB) SetSpec(ctx context.Context, id string, spec []byte) error {
	if err := db.update(ctx, "UPDATE sandboxes SET spec = ? WHERE id = ?", spec, id); err != nil {
		return fmt.Errorf("set spec of sandbox %s: %w", id, err)
	}
	return nil
}

// TouchSandbox records that the sandbox was used at t. An earlier time than the
// one recorded changes nothing. ErrNotFound if there is no such sandbox.
func (db *DB) TouchSandbox(ctx context.Context, id string, t time.Time) error {
	err := db.update(ctx, "UPDATE sandboxes SET last_used = max(last_used, ?) WHERE id = ?", toMillis(t), id)
	if err != nil {
		return fmt.Errorf("touch sandbox %s: %w", id, err)
	}
	return nil
}

// DeleteSandbox removes the sandbox's row; its name can be used again.
// ErrNotFound if there is no such sandbox.
func (db *DB) DeleteSandbox(ctx context.Context, id string) error {
	if err := db.update(ctx, "DELETE FROM sandboxes WHERE id = ?", id); err != nil {
		return fmt.Errorf("delete sandbox %s: %w", id, err)
	}
	return nil
}
