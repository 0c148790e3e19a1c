package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// An AuditRow is one thing that was done or tried.
type AuditRow struct {
	ID      int64 // counted up without gaps; set when it is written
	Time    time.Time
	Conn    string // id of the connection; empty: of none
	Remote  string // address of the client
	UserID  int64  // 0: nobody who is known
	User    string // by the name they had or claimed
	OwnerID int64  // of the sandbox; 0: of none
	Sandbox string // NAME.OWNER; empty: none
	Kind    string // what it is about
	Outcome string
	Detail  string

	hash []byte
}

// chain returns the hash of a row behind one with the hash before. Each part is
// told apart from the next by its length.
func (r *AuditRow) chain(before []byte) []byte {
	h := sha256.New()
	h.Write(before)
	var n [8]byte
	number := func(v int64) {
		binary.BigEndian.PutUint64(n[:], uint64(v))
		h.Write(n[:])
	}
	number(r.ID)
	number(toMillis(r.Time))
	for _, s := range []string{r.Conn, r.Remote, r.User, r.Sandbox, r.Kind, r.Outcome, r.Detail} {
		number(int64(len(s)))
		h.Write([]byte(s))
	}
	return h.Sum(nil)
}

// AddAudit writes rows in one transaction, all or none. Their IDs are ignored.
func (db *DB) AddAudit(ctx context.Context, rows []AuditRow) error {
	err := transact(ctx, db.write, func(tx *sql.Tx) error {
		var last int64
		var hash []byte
		err := tx.QueryRowContext(ctx, "SELECT id, hash FROM audit ORDER BY id DESC LIMIT 1").Scan(&last, &hash)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		insert, err := tx.PrepareContext(ctx, `
			INSERT INTO audit (id, time, conn, remote, user_id, user, owner_id, sandbox, kind, outcome, detail, hash)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`)
		if err != nil {
			return err
		}
		defer insert.Close()
		for _, r := range rows {
			last++
			r.ID = last
			hash = r.chain(hash)
			if _, err := insert.ExecContext(ctx, r.ID, toMillis(r.Time), r.Conn, r.Remote, r.UserID, r.User, r.OwnerID, r.Sandbox,
				r.Kind, r.Outcome, r.Detail, hash); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	return nil
}

const auditColumns = "id, time, conn, remote, user_id, user, owner_id, sandbox, kind, outcome, detail, hash"

func (r *AuditRow) columns() []any {
	return []any{&r.ID, millis{&r.Time}, &r.Conn, &r.Remote, &r.UserID, &r.User, &r.OwnerID, &r.Sandbox,
		&r.Kind, &r.Outcome, &r.Detail, &r.hash}
}

// An AuditFilter says which rows are wanted. What is empty does not matter.
type AuditFilter struct {
	Of      int64 // only what this user did, or was done in their sandboxes
	User    string
	Sandbox string // NAME.OWNER
	Since   time.Time
	After   int64 // only those with a greater ID
}

// Audit returns the newest limit of the rows that are wanted, in the order of their
// IDs.
func (db *DB) Audit(ctx context.Context, f AuditFilter, limit int) ([]AuditRow, error) {
	// With a condition of both the indexes would not be used.
	whose := "(user_id = ?1 OR owner_id = ?1)"
	if f.Of == 0 {
		whose = "?1 = 0"
	}
	rows, err := selectAll(ctx, db, (*AuditRow).columns, `
		SELECT * FROM (
			SELECT `+auditColumns+` FROM audit
			WHERE `+whose+` AND id > ?2
				AND (?3 = '' OR user = ?3) AND (?4 = '' OR sandbox = ?4) AND time >= ?5
			ORDER BY id DESC LIMIT ?6
		) ORDER BY id`, f.Of, f.After, f.User, f.Sandbox, toMillis(f.Since), limit)
	if err != nil {
		return nil, fmt.Errorf("read audit: %w", err)
	}
	return rows, nil
}

// A TamperedError says which row of the audit is not as it was written.
type TamperedError struct{ ID int64 }

func (e *TamperedError) Error() string {
	return fmt.Sprintf("row %d of the audit is not as it was written, or one before it is missing", e.ID)
}

// verifyBatch is how many rows are read at a time.
const verifyBatch = 10_000

// VerifyAudit checks the whole chain and returns how many rows there are and the
// last one's hash, for whom to keep elsewhere: rows that are missing at the end
// leave no other trace. *TamperedError if something was changed.
func (db *DB) VerifyAudit(ctx context.Context) (n int64, head string, err error) {
	var hash []byte
	for {
		rows, err := selectAll(ctx, db, (*AuditRow).columns,
			"SELECT "+auditColumns+" FROM audit WHERE id > ? ORDER BY id LIMIT ?", n, verifyBatch)
		if err != nil {
			return 0, "", fmt.Errorf("verify audit: %w", err)
		}
		for _, r := range rows {
			hash = r.chain(hash)
			if r.ID != n+1 || !bytes.Equal(hash, r.hash) {
				return 0, "", &TamperedError{ID: r.ID}
			}
			n++
		}
		if len(rows) < verifyBatch {
			return n, hex.EncodeToString(hash), nil
		}
	}
}

// A Recording is of one terminal. Its file is not here.
type Recording struct {
	ID      string // unique
	OwnerID int64  // of the sandbox; 0: of a user who is gone
	Sandbox string // NAME.OWNER
	User    string // whose terminal it was
	Conn    string
	Started time.Time
	Ended   time.Time // zero: not yet, or the gateway was killed
	Size    int64
}

const recordingColumns = "id, owner_id, sandbox, user, conn, started, ended, size"

func (r *Recording) columns() []any {
	return []any{&r.ID, &r.OwnerID, &r.Sandbox, &r.User, &r.Conn, millis{&r.Started}, millis{&r.Ended}, &r.Size}
}

// AddRecording adds a recording that has begun.
func (db *DB) AddRecording(ctx context.Context, r Recording) error {
	_, err := db.write.ExecContext(ctx, "INSERT INTO recordings ("+recordingColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
		r.ID, r.OwnerID, r.Sandbox, r.User, r.Conn, toMillis(r.Started), toMillis(r.Ended), r.Size)
	if err != nil {
		return fmt.Errorf("add recording %s: %w", r.ID, meaning(err))
	}
	return nil
}

// EndRecording records when a recording ended and how long it is. ErrNotFound if it
// was deleted.
func (db *DB) EndRecording(ctx context.Context, id string, at time.Time, size int64) error {
	if err := db.update(ctx, "UPDATE recordings SET ended = ?, size = ? WHERE id = ?", toMillis(at), size, id); err != nil {
		return fmt.Errorf("end recording %s: %w", id, err)
	}
	return nil
}

// Recordings returns those of a user's sandboxes or, with 0, all, oldest first.
func (db *DB) Recordings(ctx context.Context, ownerID int64) ([]Recording, error) {
	all, err := selectAll(ctx, db, (*Recording).columns,
		"SELECT "+recordingColumns+" FROM recordings WHERE ?1 = 0 OR owner_id = ?1 ORDER BY started, id", ownerID)
	if err != nil {
		return nil, fmt.Errorf("list recordings: %w", err)
	}
	return all, nil
}

// Recording returns the recording with that id, or ErrNotFound.
func (db *DB) Recording(ctx context.Context, id string) (Recording, error) {
	var r Recording
	err := db.read.QueryRowContext(ctx, "SELECT "+recordingColumns+" FROM recordings WHERE id = ?", id).Scan(r.columns()...)
	if err != nil {
		return Recording{}, fmt.Errorf("recording %s: %w", id, meaning(err))
	}
	return r, nil
}

// DeleteRecording removes the row of a recording, or returns ErrNotFound.
func (db *DB) DeleteRecording(ctx context.Context, id string) error {
	if err := db.update(ctx, "DELETE FROM recordings WHERE id = ?", id); err != nil {
		return fmt.Errorf("delete recording %s: %w", id, err)
	}
	return nil
}
