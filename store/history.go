package store

import (
	"context"
	"database/sql"
	"fmt"
)

// MaxHistory is how many lines are kept of one user.
const MaxHistory = 500

// AddHistory keeps a line that a user typed, and forgets their oldest beyond
// MaxHistory. ErrNotFound if there is no such user.
func (db *DB) AddHistory(ctx context.Context, userID int64, line string) error {
	err := transact(ctx, db.write, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO history (user_id, line) VALUES (?, ?)", userID, line); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `DELETE FROM history WHERE user_id = ?1 AND id <=
			(SELECT id FROM history WHERE user_id = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)`, userID, MaxHistory)
		return err
	})
	if err != nil {
		return fmt.Errorf("add to history of user %d: %w", userID, meaning(err))
	}
	return nil
}

// History returns the lines of a user, the newest first.
func (db *DB) History(ctx context.Context, userID int64) ([]string, error) {
	all, err := selectAll(ctx, db, func(s *string) []any { return []any{s} },
		"SELECT line FROM history WHERE user_id = ? ORDER BY id DESC", userID)
	if err != nil {
		return nil, fmt.Errorf("history of user %d: %w", userID, err)
	}
	return all, nil
}
