// Package store keeps the gateway's rows: users, their keys and their
// sandboxes. It is a drawer, not a brain: what a role permits, whether a name
// is well formed and what a sandbox's spec means are decided elsewhere.
//
// All rows live in one SQLite file in WAL mode, so readers and the writer do
// not wait for each other. SQLite has one writer at a time in any case, so
// there is one connection that writes: its callers queue in this process, in
// order, instead of polling for the file's lock. Transactions on it take that
// lock when they begin; one that began as a reader could not wait for it later
// and would fail at once. Reads go to a pool of read-only connections.
//
// What a method wrote is seen by every read that begins after it returned, and
// outlives a crash of the gateway. When the machine itself goes down the last
// few writes may be lost (synchronous=NORMAL).
package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// Errors that callers test for with errors.Is.
var (
	ErrNotFound = errors.New("not found")
	ErrExists   = errors.New("already exists")
	ErrNewer    = errors.New("the database was written by a newer version")

	ErrLastAdmin    = errors.New("no admin would be left who can log in")
	ErrHasSandboxes = errors.New("the user has sandboxes")
)

// lockWait bounds the wait for another process, such as a backup, that holds
// the file's write lock. The caller's context may end the wait earlier.
const lockWait = 30 * time.Second

// A DB is an open store. Its methods may be called at the same time.
type DB struct {
	write *pool // one connection
	read  *pool

	frequent map[string]*sql.Stmt // by query
}

// frequentQueries are those that every command waits for. SQLite parses them once, in
// each connection; parsing takes longer than all else that it does for them.
var frequentQueries = []string{userByKeyQuery, sandboxByNameQuery, secretsOfSandboxQuery}

// Open opens the database file at path, makes it if it does not exist, and
// brings its tables up to date. Only the file's owner may read or write it.
// ErrNewer if a newer version of the program has already changed the tables.
func Open(ctx context.Context, path string) (*DB, error) {
	db, err := open(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("open store %s: %w", path, err)
	}
	return db, nil
}

func open(ctx context.Context, path string) (_ *DB, err error) {
	path, err = filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if err := protect(path); err != nil {
		return nil, err
	}

	db := new(DB)
	defer func() {
		if err != nil {
			db.Close()
		}
	}()

	write, err := sql.Open("sqlite", dsn(path, url.Values{
		"_txlock":       {"immediate"},
		"_journal_mode": {"WAL"},
		"_synchronous":  {"NORMAL"},
		"_foreign_keys": {"1"},
	}))
	if err != nil {
		return nil, err
	}
	db.write = &pool{DB: write}
	db.write.SetMaxOpenConns(1)
	if err := migrate(ctx, db.write); err != nil {
		return nil, err
	}

	read, err := sql.Open("sqlite", dsn(path, url.Values{"mode": {"ro"}}))
	if err != nil {
		return nil, err
	}
	db.read = &pool{DB: read}
	// Idle connections are kept, as each has its prepared statements.
	readers := max(4, runtime.GOMAXPROCS(0))
	db.read.SetMaxOpenConns(readers)
	db.read.SetMaxIdleConns(readers)

	db.frequent = make(map[string]*sql.Stmt)
	for _, query := range frequentQueries {
		if db.frequent[query], err = db.read.PrepareContext(ctx, query); err != nil {
			return nil, err
		}
	}
	return db, nil
}

// protect makes the file private before SQLite sees it; the -wal and -shm files
// beside it get the same mode from SQLite. An existing file is never opened
// here: closing it would drop the locks that this process has on it.
func protect(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return os.Chmod(path, 0o600)
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// dsn returns the data source name of the file with the given parameters.
func dsn(path string, params url.Values) string {
	params.Set("_busy_timeout", fmt.Sprint(lockWait.Milliseconds()))
	u := url.URL{Scheme: "file", Path: path, RawQuery: params.Encode()}
	return u.String()
}

// Close ends all connections. Calls in progress finish first or fail.
func (db *DB) Close() error {
	var errs []error
	for _, stmt := range db.frequent {
		if stmt != nil {
			errs = append(errs, stmt.Close())
		}
	}
	// The writer goes last: the last connection to a file moves the WAL into
	// it, which a read-only one cannot do.
	if db.read != nil {
		errs = append(errs, db.read.Close())
	}
	if db.write != nil {
		errs = append(errs, db.write.Close())
	}
	return errors.Join(errs...)
}

// transact runs f in one write transaction, which it commits if f returns nil.
func transact(ctx context.Context, db *pool, f func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// update runs a statement that changes one row. ErrNotFound if it changed none.
func (db *DB) update(ctx context.Context, query string, args ...any) error {
	return changeOne(db.write.ExecContext(ctx, query, args...))
}

// changeOne is the error of a statement that was to change one row. ErrNotFound
// if it changed none.
func changeOne(res sql.Result, err error) error {
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err != nil {
		return err
	}
	if n == 0 {
		return ErrNotFound
	}
	return nil
}

// query asks for rows.
func (db *DB) query(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if stmt := db.frequent[query]; stmt != nil {
		return stmt.QueryContext(ctx, args...)
	}
	return db.read.QueryContext(ctx, query, args...)
}

// selectAll returns the rows of a query. columns says where a row's
// columns go in a T.
func selectAll[T any](ctx context.Context, db *DB, columns func(*T) []any, query string, args ...any) ([]T, error) {
	rows, err := db.query(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []T
	for rows.Next() {
		var v T
		if err := rows.Scan(columns(&v)...); err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, rows.Err()
}

// meaning replaces what SQLite and database/sql say about a row with this
// package's own errors, where there is one for it.
func meaning(err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return ErrNotFound
	}
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		switch e.Code() {
		case sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY:
			return ErrExists
		case sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
			return ErrNotFound
		}
	}
	return err
}

// now is the present as it is stored: to the millisecond, in UTC.
func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// toMillis returns t as it is stored. The zero time is 0 and means never.
func toMillis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// millis is a time to scan a column into that toMillis has filled.
type millis struct{ t *time.Time }

func (m millis) Scan(column any) error {
	ms, ok := column.(int64)
	if !ok {
		return fmt.Errorf("time stored as %T", column)
	}
	*m.t = time.Time{}
	if ms != 0 {
		*m.t = time.UnixMilli(ms).UTC()
	}
	return nil
}
