package store

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// The roles of users.
const (
	RoleAdmin = "admin"
	RoleUser  = "user"
)

// A User is a person or a program that owns keys and sandboxes.
type User struct {
	ID      int64
	Name    string // unique
	Role    string // RoleAdmin or RoleUser
	Created time.Time
}

const userColumns = "users.id, users.name, users.role, users.created"

// columns is where the userColumns of a row go.
func (u *User) columns() []any {
	return []any{&u.ID, &u.Name, &u.Role, millis{&u.Created}}
}

// CreateUser adds a user who has no keys yet. ErrExists if the name is taken.
func (db *DB) CreateUser(ctx context.Context, name, role string) (User, error) {
	return db.CreateUserWithKeys(ctx, name, role, nil)
}

// CreateUserWithKeys adds a user together with their keys, or nothing at all.
// The keys' UserID, Created and LastUsed are ignored. ErrExists if the name is
// taken or one of the keys belongs to somebody.
func (db *DB) CreateUserWithKeys(ctx context.Context, name, role string, keys []Key) (User, error) {
	u := User{Name: name, Role: role, Created: now()}
	err := transact(ctx, db.write, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, "INSERT INTO users (name, role, created) VALUES (?, ?, ?)",
			u.Name, u.Role, toMillis(u.Created))
		if err != nil {
			return err
		}
		if u.ID, err = res.LastInsertId(); err != nil {
			return err
		}
		for _, k := range keys {
			k.UserID, k.Created = u.ID, u.Created
			if err := insertKey(ctx, tx, k); err != nil {
				return fmt.Errorf("key %s: %w", k.Fingerprint, meaning(err))
			}
		}
		return nil
	})
	if err != nil {
		return User{}, fmt.Errorf("create user %q: %w", name, meaning(err))
	}
	return u, nil
}

// UserByName returns the user of that name, or ErrNotFound.
func (db *DB) UserByName(ctx context.Context, name string) (User, error) {
	var u User
	err := db.read.QueryRowContext(ctx, "SELECT "+userColumns+" FROM users WHERE name = ?", name).Scan(u.columns()...)
	if err != nil {
		return User{}, fmt.Errorf("user %q: %w", name, meaning(err))
	}
	return u, nil
}

// UserByID returns the user with that id, or ErrNotFound.
func (db *DB) UserByID(ctx context.Context, id int64) (User, error) {
	var u User
	err := db.read.QueryRowContext(ctx, "SELECT "+userColumns+" FROM users WHERE id = ?", id).Scan(u.columns()...)
	if err != nil {
		return User{}, fmt.Errorf("user %d: %w", id, meaning(err))
	}
	return u, nil
}

// SetRole changes what the user is. ErrNotFound if there is no such user,
// ErrLastAdmin if no admin could log in for good after it.
func (db *DB) SetRole(ctx context.Context, userID int64, role string) error {
	err := db.keepAdmin(ctx, func(tx *sql.Tx) error {
		return changeOne(tx.ExecContext(ctx, "UPDATE users SET role = ? WHERE id = ?", role, userID))
	})
	if err != nil {
		return fmt.Errorf("set the role of user %d: %w", userID, meaning(err))
	}
	return nil
}

// DeleteUser removes the user with their keys and all that was shared with them.
// ErrHasSandboxes if they still have sandboxes, ErrNotFound if there is no such
// user, ErrLastAdmin if no admin could log in for good after it.
func (db *DB) DeleteUser(ctx context.Context, userID int64) error {
	err := db.keepAdmin(ctx, func(tx *sql.Tx) error {
		var n int
		if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM sandboxes WHERE user_id = ?", userID).Scan(&n); err != nil {
			return err
		}
		if n > 0 {
			return ErrHasSandboxes
		}
		return changeOne(tx.ExecContext(ctx, "DELETE FROM users WHERE id = ?", userID))
	})
	if err != nil {
		return fmt.Errorf("delete user %d: %w", userID, meaning(err))
	}
	return nil
}

// keepAdmin runs change in a transaction, which it undoes with ErrLastAdmin if
// there was an admin with a key that does everything for good, and there is none
// any more.
func (db *DB) keepAdmin(ctx context.Context, change func(*sql.Tx) error) error {
	return transact(ctx, db.write, func(tx *sql.Tx) error {
		before, err := hasAdmin(ctx, tx)
		if err != nil {
			return err
		}
		if err := change(tx); err != nil {
			return err
		}
		after, err := hasAdmin(ctx, tx)
		if err == nil && before && !after {
			return ErrLastAdmin
		}
		return err
	})
}

func hasAdmin(ctx context.Context, tx *sql.Tx) (has bool, err error) {
	err = tx.QueryRowContext(ctx, `
		SELECT EXISTS (
			SELECT 1 FROM users JOIN keys ON keys.user_id = users.id
			WHERE users.role = 'admin' AND keys.scope = '' AND keys.expires = 0
			AND NOT EXISTS (SELECT 1 FROM revocations WHERE what = keys.fingerprint))`).Scan(&has)
	return has, err
}

// Users returns all users in the order of their names.
func (db *DB) Users(ctx context.Context) ([]User, error) {
	users, err := selectAll(ctx, db, (*User).columns, "SELECT "+userColumns+" FROM users ORDER BY name")
	if err != nil {
		return nil, fmt.Errorf("list users: %w", err)
	}
	return users, nil
}

// A UserCount is a user and how much is theirs.
type UserCount struct {
	User
	Keys, Sandboxes int
}

// UserCounts returns all users in the order of their names.
func (db *DB) UserCounts(ctx context.Context) ([]UserCount, error) {
	columns := func(u *UserCount) []any { return append(u.User.columns(), &u.Keys, &u.Sandboxes) }
	all, err := selectAll(ctx, db, columns, "SELECT "+userColumns+`,
		(SELECT count(*) FROM keys WHERE user_id = users.id), (SELECT count(*) FROM sandboxes WHERE user_id = users.id)
		FROM users ORDER BY name`)
	if err != nil {
		return nil, fmt.Errorf("count what users have: %w", err)
	}
	return all, nil
}

// CountUsers returns how many users there are.
func (db *DB) CountUsers(ctx context.Context) (int, error) {
	var n int
	if err := db.read.QueryRowContext(ctx, "SELECT count(*) FROM users").Scan(&n); err != nil {
		return 0, fmt.Errorf("count users: %w", err)
	}
	return n, nil
}
