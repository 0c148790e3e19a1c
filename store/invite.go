package store

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// CreateInvite lets whoever knows the code with that hash add one key to a user,
// until it expires. ErrNotFound if there is no such user.
func (db *DB) CreateInvite(ctx context.Context, hash []byte, userID int64, expires time.Time) error {
	err := transact(ctx, db.write, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "DELETE FROM invites WHERE expires <= ?", toMillis(now())); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO invites (hash, user_id, created, expires) VALUES (?, ?, ?, ?)",
			hash, userID, toMillis(now()), toMillis(expires))
		return err
	})
	if err != nil {
		return fmt.Errorf("invite user %d: %w", userID, meaning(err))
	}
	return nil
}

// UserByInvite returns the user who was invited by the code with that hash, or
// ErrNotFound, also if it was used or has expired.
func (db *DB) UserByInvite(ctx context.Context, hash []byte) (User, error) {
	var u User
	err := db.read.QueryRowContext(ctx, "SELECT "+userColumns+`
		FROM invites JOIN users ON users.id = invites.user_id WHERE invites.hash = ? AND invites.expires > ?`,
		hash, toMillis(now())).Scan(u.columns()...)
	if err != nil {
		return User{}, fmt.Errorf("invite: %w", meaning(err))
	}
	return u, nil
}

// UseInvite adds the key k to the user who was invited by the code with that
// hash, and ends the invite: of several callers at once only one succeeds. The
// key's UserID, Created and LastUsed are ignored. ErrNotFound if there is no such
// invite any more, ErrExists if the key belongs to somebody; then the invite can
// still be used.
func (db *DB) UseInvite(ctx context.Context, hash []byte, k Key) error {
	err := transact(ctx, db.write, func(tx *sql.Tx) error {
		row := tx.QueryRowContext(ctx, "DELETE FROM invites WHERE hash = ? AND expires > ? RETURNING user_id", hash, toMillis(now()))
		if err := row.Scan(&k.UserID); err != nil {
			return err
		}
		k.Created = now()
		return insertKey(ctx, tx, k)
	})
	if err != nil {
		return fmt.Errorf("use an invite: %w", meaning(err))
	}
	return nil
}
