package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"sync"
	"time"
)

// How a secret reaches a command.
const (
	SecretEnv  = "env"  // as a variable
	SecretFile = "file" // as a file in memory; the variable has its path
)

// A Secret is all of a secret but its value.
type Secret struct {
	ID        int64
	UserID    int64
	SandboxID string // empty: in the owner's vault, for the sandboxes it is given to
	Sandbox   string // the name of sandbox SandboxID
	Name      string // unique among the owner's with the same SandboxID
	Form      string // SecretEnv or SecretFile
	Changed   time.Time
	LastUsed  time.Time // zero: never
	GivenTo   int       // sandboxes, of one in the owner's vault
}

// A Revealed is a secret with its value.
type Revealed struct {
	Secret
	Value []byte
}

// A Vault keeps secrets in the database, sealed with keys that are not in it.
type Vault struct {
	db   *DB
	path string // of the file of keys; empty: they came from elsewhere

	rotating sync.Mutex // one rotation at a time: each ends by dropping all keys but one

	// mu is held to write while the keys change, and to read while something is
	// sealed with the current one.
	mu   sync.RWMutex
	keys []SealKey // the current one first
}

// OpenVault returns the vault whose keys are in the file at path, which is made if
// there are no secrets yet. A rotation that was cut short is finished.
func OpenVault(ctx context.Context, db *DB, path string) (*Vault, error) {
	keys, err := readSealKeys(path)
	if errors.Is(err, fs.ErrNotExist) {
		var n int
		if err := db.read.QueryRowContext(ctx, "SELECT count(*) FROM secrets").Scan(&n); err != nil {
			return nil, fmt.Errorf("open vault: %w", err)
		}
		if n > 0 {
			return nil, fmt.Errorf("open vault: the database has %d secrets, and %s, which opens them, is not there: restore it", n, path)
		}
		keys = []SealKey{NewSealKey()}
		err = writeSealKeys(path, keys)
	}
	if err != nil {
		return nil, fmt.Errorf("open vault: %w", err)
	}
	return openVault(ctx, &Vault{db: db, path: path, keys: keys})
}

// OpenVaultWith returns the vault with keys that are kept elsewhere. What is sealed
// with another than the first is sealed anew.
func OpenVaultWith(ctx context.Context, db *DB, keys []SealKey) (*Vault, error) {
	return openVault(ctx, &Vault{db: db, keys: keys})
}

func openVault(ctx context.Context, v *Vault) (*Vault, error) {
	if _, err := v.reseal(ctx); err != nil {
		return nil, fmt.Errorf("open vault: %w", err)
	}
	if v.path != "" && len(v.keys) > 1 {
		if err := v.forget(); err != nil {
			return nil, fmt.Errorf("open vault: %w", err)
		}
	}
	return v, nil
}

// bound is what a sealed value belongs to, and cannot be moved from.
func (s *Secret) bound() string {
	return "sandgate secret\x00" + strconv.FormatInt(s.UserID, 10) + "\x00" + s.SandboxID + "\x00" + s.Name
}

// Set adds a secret or gives it another value and form; UserID, SandboxID, Name
// and Form of s say which and how.
func (v *Vault) Set(ctx context.Context, s Secret, value []byte) error {
	v.mu.RLock()
	defer v.mu.RUnlock()
	k := v.keys[0]
	_, err := v.db.write.ExecContext(ctx, `
		INSERT INTO secrets (user_id, sandbox_id, name, form, key_id, sealed, changed, last_used)
		VALUES (?, nullif(?, ''), ?, ?, ?, ?, ?, 0)
		ON CONFLICT (user_id, coalesce(sandbox_id, ''), name) DO UPDATE
		SET form = excluded.form, key_id = excluded.key_id, sealed = excluded.sealed, changed = excluded.changed`,
		s.UserID, s.SandboxID, s.Name, s.Form, k.id, k.seal(value, s.bound()), toMillis(now()))
	if err != nil {
		return fmt.Errorf("set secret %q: %w", s.Name, meaning(err))
	}
	return nil
}

const secretColumns = `s.id, s.user_id, coalesce(s.sandbox_id, ''), s.name, s.form, s.changed, s.last_used`

func (s *Secret) columns() []any {
	return []any{&s.ID, &s.UserID, &s.SandboxID, &s.Name, &s.Form, millis{&s.Changed}, millis{&s.LastUsed}}
}

// SecretsOf returns the user's secrets, those of the vault first.
func (v *Vault) SecretsOf(ctx context.Context, userID int64) ([]Secret, error) {
	all, err := selectAll(ctx, v.db, func(s *Secret) []any { return append(s.columns(), &s.Sandbox, &s.GivenTo) }, `
		SELECT `+secretColumns+`, coalesce(b.name, ''), (SELECT count(*) FROM secret_grants g WHERE g.secret_id = s.id)
		FROM secrets s LEFT JOIN sandboxes b ON b.id = s.sandbox_id
		WHERE s.user_id = ? ORDER BY coalesce(b.name, ''), s.name`, userID)
	if err != nil {
		return nil, fmt.Errorf("list secrets of user %d: %w", userID, err)
	}
	return all, nil
}

// Secret returns the user's secret of that name, in the vault or, with a
// sandboxID, of that sandbox alone. ErrNotFound if there is none.
func (v *Vault) Secret(ctx context.Context, userID int64, sandboxID, name string) (Secret, error) {
	var s Secret
	err := v.db.read.QueryRowContext(ctx, "SELECT "+secretColumns+
		" FROM secrets s WHERE s.user_id = ? AND coalesce(s.sandbox_id, '') = ? AND s.name = ?",
		userID, sandboxID, name).Scan(s.columns()...)
	if err != nil {
		return Secret{}, fmt.Errorf("secret %q of user %d: %w", name, userID, meaning(err))
	}
	return s, nil
}

// Delete removes a secret. ErrNotFound if there is none of that id.
func (v *Vault) Delete(ctx context.Context, id int64) error {
	if err := v.db.update(ctx, "DELETE FROM secrets WHERE id = ?", id); err != nil {
		return fmt.Errorf("delete secret %d: %w", id, err)
	}
	return nil
}

// Give gives a secret of a vault to a sandbox. It may be repeated.
func (v *Vault) Give(ctx context.Context, secretID int64, sandboxID string) error {
	_, err := v.db.write.ExecContext(ctx,
		"INSERT INTO secret_grants (sandbox_id, secret_id) VALUES (?, ?) ON CONFLICT DO NOTHING", sandboxID, secretID)
	if err != nil {
		return fmt.Errorf("give secret %d to sandbox %s: %w", secretID, sandboxID, meaning(err))
	}
	return nil
}

// Take undoes Give. ErrNotFound if the sandbox does not have the secret.
func (v *Vault) Take(ctx context.Context, secretID int64, sandboxID string) error {
	err := v.db.update(ctx, "DELETE FROM secret_grants WHERE sandbox_id = ? AND secret_id = ?", sandboxID, secretID)
	if err != nil {
		return fmt.Errorf("take secret %d from sandbox %s: %w", secretID, sandboxID, err)
	}
	return nil
}

const (
	selectSealed = "SELECT " + secretColumns + ", s.key_id, s.sealed "
	sealedOrder  = " ORDER BY 4" // their names

	secretsOfSandboxQuery = selectSealed + `
		FROM secrets s WHERE s.sandbox_id = ?1
		UNION ALL ` + selectSealed + `
		FROM secret_grants g JOIN secrets s ON s.id = g.secret_id
		WHERE g.sandbox_id = ?1
		AND NOT EXISTS (SELECT 1 FROM secrets o WHERE o.sandbox_id = ?1 AND o.name = s.name)` + sealedOrder
)

// Reveal returns the secrets of a sandbox with their values: its own, and those of
// its owner's vault that it was given and has no own of that name for.
func (v *Vault) Reveal(ctx context.Context, sandboxID string) ([]Revealed, error) {
	all, err := v.reveal(ctx, secretsOfSandboxQuery, sandboxID)
	if err != nil {
		return nil, fmt.Errorf("secrets of sandbox %s: %w", sandboxID, err)
	}
	return all, nil
}

// RevealAll returns all secrets of a user with their values.
func (v *Vault) RevealAll(ctx context.Context, userID int64) ([]Revealed, error) {
	all, err := v.reveal(ctx, selectSealed+"FROM secrets s WHERE s.user_id = ?"+sealedOrder, userID)
	if err != nil {
		return nil, fmt.Errorf("secrets of user %d: %w", userID, err)
	}
	return all, nil
}

func (v *Vault) reveal(ctx context.Context, query string, arg any) ([]Revealed, error) {
	type row struct {
		Revealed
		key    string
		sealed []byte
	}
	// No rotation may end between the rows and their keys.
	v.mu.RLock()
	defer v.mu.RUnlock()
	rows, err := selectAll(ctx, v.db, func(r *row) []any { return append(r.columns(), &r.key, &r.sealed) }, query, arg)
	if err != nil {
		return nil, err
	}
	all := make([]Revealed, len(rows))
	for i, r := range rows {
		if r.Value, err = v.open(r.key, r.sealed, r.bound()); err != nil {
			return nil, fmt.Errorf("secret %q: %w", r.Name, err)
		}
		all[i] = r.Revealed
	}
	return all, nil
}

// open opens a sealed value. The caller holds mu.
func (v *Vault) open(keyID string, sealed []byte, bound string) ([]byte, error) {
	for _, k := range v.keys {
		if k.id == keyID {
			return k.open(sealed, bound)
		}
	}
	return nil, fmt.Errorf("it is sealed with key %s, which is not here", keyID)
}

// TouchSecret records that the secret was used at t. An earlier time than the one
// recorded changes nothing. ErrNotFound if there is no such secret.
func (db *DB) TouchSecret(ctx context.Context, id int64, t time.Time) error {
	err := db.update(ctx, "UPDATE secrets SET last_used = max(last_used, ?) WHERE id = ?", toMillis(t), id)
	if err != nil {
		return fmt.Errorf("touch secret %d: %w", id, err)
	}
	return nil
}

// ErrKeyElsewhere says that the vault's key is not in a file of its own, so that it
// can only be changed where it is.
var ErrKeyElsewhere = errors.New("the vault's key did not come from a file of its own")

// Rotate makes a new key and seals all values with it, while the vault is in use.
// After a crash on the way both keys are known, and OpenVault goes on. It returns
// the new key's id and how many values there were.
func (v *Vault) Rotate(ctx context.Context) (key string, resealed int, err error) {
	if v.path == "" {
		return "", 0, ErrKeyElsewhere
	}
	v.rotating.Lock()
	defer v.rotating.Unlock()
	if err := v.add(NewSealKey()); err != nil {
		return "", 0, fmt.Errorf("rotate the vault's key: %w", err)
	}
	if resealed, err = v.reseal(ctx); err != nil {
		return "", 0, fmt.Errorf("rotate the vault's key: %w", err)
	}
	if err := v.forget(); err != nil {
		return "", 0, fmt.Errorf("rotate the vault's key: %w", err)
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.keys[0].id, resealed, nil
}

// add makes k the current key. The file has it before anything is sealed with it.
func (v *Vault) add(k SealKey) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	keys := append([]SealKey{k}, v.keys...)
	if err := writeSealKeys(v.path, keys); err != nil {
		return err
	}
	v.keys = keys
	return nil
}

// resealBatch is how many values are sealed anew in one transaction. Others wait
// for it to end.
const resealBatch = 100

// reseal seals all values with the current key, and returns how many were not.
func (v *Vault) reseal(ctx context.Context) (n int, err error) {
	for {
		some, err := v.resealSome(ctx)
		n += some
		if err != nil || some == 0 {
			return n, err
		}
	}
}

func (v *Vault) resealSome(ctx context.Context) (n int, err error) {
	type row struct {
		Secret
		key    string
		sealed []byte
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	k := v.keys[0]
	rows, err := selectAll(ctx, v.db, func(r *row) []any { return append(r.columns(), &r.key, &r.sealed) },
		"SELECT "+secretColumns+", s.key_id, s.sealed FROM secrets s WHERE s.key_id <> ? LIMIT ?", k.id, resealBatch)
	if err != nil {
		return 0, err
	}
	err = transact(ctx, v.db.write, func(tx *sql.Tx) error {
		for _, r := range rows {
			value, err := v.open(r.key, r.sealed, r.bound())
			if err != nil {
				return fmt.Errorf("secret %q of user %d: %w", r.Name, r.UserID, err)
			}
			// Unless it has another value since it was read.
			_, err = tx.ExecContext(ctx, "UPDATE secrets SET key_id = ?, sealed = ? WHERE id = ? AND sealed = ?",
				k.id, k.seal(value, r.bound()), r.ID, r.sealed)
			if err != nil {
				return err
			}
		}
		return nil
	})
	return len(rows), err
}

// forget drops the keys that nothing is sealed with any more: all but the current.
func (v *Vault) forget() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := writeSealKeys(v.path, v.keys[:1]); err != nil {
		return err
	}
	v.keys = v.keys[:1]
	return nil
}
