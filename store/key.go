package store

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"
)

// A Key is a public key that its owner may log in with.
type Key struct {
	Fingerprint string // SHA256:…, unique
	UserID      int64
	Type        string // such as ssh-ed25519
	Blob        []byte // the public key in SSH wire format
	Name        string // the comment that came with it
	Scope       string // what it is limited to, opaque here; empty: nothing
	NoTouch     bool   // a FIDO key that need not be touched
	Created     time.Time
	LastUsed    time.Time // zero if never
	Expires     time.Time // zero if never
}

const keyColumns = `keys.fingerprint, keys.user_id, keys.type, keys.blob, keys.name,
	keys.scope, keys.no_touch, keys.created, keys.last_used, keys.expires`

// columns is where the keyColumns of a row go.
func (k *Key) columns() []any {
	return []any{&k.Fingerprint, &k.UserID, &k.Type, &k.Blob, &k.Name,
		&k.Scope, &k.NoTouch, millis{&k.Created}, millis{&k.LastUsed}, millis{&k.Expires}}
}

// AddKey adds a key to the user k.UserID and returns it as stored; its Created
// and LastUsed are ignored. ErrExists if the key belongs to anyone already,
// ErrNotFound if there is no such user.
func (db *DB) AddKey(ctx context.Context, k Key) (Key, error) {
	k.Created, k.LastUsed = now(), time.Time{}
	k.Expires = k.Expires.UTC().Truncate(time.Millisecond)
	if err := insertKey(ctx, db.write, k); err != nil {
		return Key{}, fmt.Errorf("add key %s: %w", k.Fingerprint, meaning(err))
	}
	return k, nil
}

// insertKey adds a key, never used so far, by itself or within a transaction.
func insertKey(ctx context.Context, db interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}, k Key) error {
	_, err := db.ExecContext(ctx,
		`INSERT INTO keys (fingerprint, user_id, type, blob, name, scope, no_touch, created, last_used, expires)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, ?)`,
		k.Fingerprint, k.UserID, k.Type, k.Blob, k.Name, k.Scope, k.NoTouch, toMillis(k.Created), toMillis(k.Expires))
	return err
}

const userByKeyQuery = "SELECT " + userColumns + ", " + keyColumns + `
	FROM keys JOIN users ON users.id = keys.user_id WHERE keys.fingerprint = ?
	AND NOT EXISTS (SELECT 1 FROM revocations WHERE what = keys.fingerprint)`

// UserByKey returns the key with that fingerprint and its owner, or
// ErrNotFound, also for one that is revoked. Every login waits for it: it is one
// lookup by three primary keys, and it writes nothing. Whether the key has
// expired is for the caller to see.
func (db *DB) UserByKey(ctx context.Context, fingerprint string) (User, Key, error) {
	var u User
	var k Key
	err := db.frequent[userByKeyQuery].QueryRowContext(ctx, fingerprint).Scan(slices.Concat(u.columns(), k.columns())...)
	if err != nil {
		return User{}, Key{}, fmt.Errorf("key %s: %w", fingerprint, meaning(err))
	}
	return u, k, nil
}

// TouchKey records that the key was used at t. An earlier time than the one
// recorded changes nothing. ErrNotFound if there is no such key.
func (db *DB) TouchKey(ctx context.Context, fingerprint string, t time.Time) error {
	err := db.update(ctx, "UPDATE keys SET last_used = max(last_used, ?) WHERE fingerprint = ?",
		toMillis(t), fingerprint)
	if err != nil {
		return fmt.Errorf("touch key %s: %w", fingerprint, err)
	}
	return nil
}

// SetKey gives the user's key of that fingerprint the name, the scope and the expiry of
// k. ErrNotFound if they have no such key, ErrLastAdmin if no admin could log in for
// good after it.
func (db *DB) SetKey(ctx context.Context, k Key) error {
	err := db.keepAdmin(ctx, func(tx *sql.Tx) error {
		return changeOne(tx.ExecContext(ctx, "UPDATE keys SET name = ?, scope = ?, expires = ? WHERE user_id = ? AND fingerprint = ?",
			k.Name, k.Scope, toMillis(k.Expires), k.UserID, k.Fingerprint))
	})
	if err != nil {
		return fmt.Errorf("set key %s: %w", k.Fingerprint, meaning(err))
	}
	return nil
}

// DeleteKey removes one of the user's keys. ErrNotFound if they have no such key,
// ErrLastAdmin if no admin could log in for good without it.
func (db *DB) DeleteKey(ctx context.Context, userID int64, fingerprint string) error {
	err := db.keepAdmin(ctx, func(tx *sql.Tx) error {
		return changeOne(tx.ExecContext(ctx, "DELETE FROM keys WHERE user_id = ? AND fingerprint = ?", userID, fingerprint))
	})
	if err != nil {
		return fmt.Errorf("delete key %s: %w", fingerprint, meaning(err))
	}
	return nil
}

// DeleteKeys removes all of the user's keys. ErrLastAdmin if no admin could log in
// for good without them.
func (db *DB) DeleteKeys(ctx context.Context, userID int64) error {
	err := db.keepAdmin(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "DELETE FROM keys WHERE user_id = ?", userID)
		return err
	})
	if err != nil {
		return fmt.Errorf("delete the keys of user %d: %w", userID, meaning(err))
	}
	return nil
}

// Keys returns the user's keys, oldest first.
func (db *DB) Keys(ctx context.Context, userID int64) ([]Key, error) {
	keys, err := selectAll(ctx, db, (*Key).columns,
		"SELECT "+keyColumns+" FROM keys WHERE user_id = ? ORDER BY created, fingerprint", userID)
	if err != nil {
		return nil, fmt.Errorf("list keys of user %d: %w", userID, err)
	}
	return keys, nil
}
