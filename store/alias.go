package store

import (
	"context"
	"database/sql"
	"fmt"
)

// An Alias is what a user calls a sandbox, theirs or not, besides its name.
type Alias struct {
	Name string // unique among the user's
	Sandbox
}

const selectAliases = `
	SELECT a.name, s.id, s.user_id, users.name, s.name, s.driver, s.spec, s.desired, s.created, s.last_used
	FROM aliases a JOIN sandboxes s ON s.id = a.sandbox_id JOIN users ON users.id = s.user_id `

// columns is where the columns of a row of selectAliases go.
func (a *Alias) columns() []any { return append([]any{&a.Name}, a.Sandbox.columns()...) }

// AddAlias adds an alias. ErrExists if the user has a sandbox or an alias of that
// name, ErrNotFound if there is no such user or sandbox.
func (db *DB) AddAlias(ctx context.Context, userID int64, name, sandboxID string) error {
	err := transact(ctx, db.write, func(tx *sql.Tx) error {
		var taken bool
		err := tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM sandboxes WHERE user_id = ? AND name = ?)", userID, name).Scan(&taken)
		if err != nil {
			return err
		}
		if taken {
			return ErrExists
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO aliases (user_id, name, sandbox_id, created) VALUES (?, ?, ?, ?)",
			userID, name, sandboxID, toMillis(now()))
		return err
	})
	if err != nil {
		return fmt.Errorf("add alias %q: %w", name, meaning(err))
	}
	return nil
}

// DeleteAlias removes an alias. ErrNotFound if the user has none of that name.
func (db *DB) DeleteAlias(ctx context.Context, userID int64, name string) error {
	if err := db.update(ctx, "DELETE FROM aliases WHERE user_id = ? AND name = ?", userID, name); err != nil {
		return fmt.Errorf("delete alias %q: %w", name, err)
	}
	return nil
}

// Alias returns the user's alias of that name, or ErrNotFound.
func (db *DB) Alias(ctx context.Context, userID int64, name string) (Alias, error) {
	var a Alias
	row := db.read.QueryRowContext(ctx, selectAliases+"WHERE a.user_id = ? AND a.name = ?", userID, name)
	if err := row.Scan(a.columns()...); err != nil {
		return Alias{}, fmt.Errorf("alias %q of user %d: %w", name, userID, meaning(err))
	}
	return a, nil
}

// Aliases returns the user's aliases in the order of their names.
func (db *DB) Aliases(ctx context.Context, userID int64) ([]Alias, error) {
	all, err := selectAll(ctx, db, (*Alias).columns, selectAliases+"WHERE a.user_id = ? ORDER BY a.name", userID)
	if err != nil {
		return nil, fmt.Errorf("list aliases of user %d: %w", userID, err)
	}
	return all, nil
}
