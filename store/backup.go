package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
)

// Copy copies the database at path, as it is at one moment, to a new file. Others
// may use it meanwhile, in this process or another. The copy is one file, which only
// its owner may read.
func Copy(ctx context.Context, path, to string) error {
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("copy the database: %w", err)
	}
	if err := copyTo(ctx, path, to); err != nil {
		return fmt.Errorf("copy the database %s: %w", path, err)
	}
	return nil
}

func copyTo(ctx context.Context, path, to string) error {
	if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", to, errors.Join(err, fs.ErrExist))
	}
	if err := protect(to); err != nil { // SQLite takes an empty file for none
		return err
	}
	db, err := sql.Open("sqlite", dsn(path, url.Values{"mode": {"rw"}}))
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.ExecContext(ctx, "VACUUM INTO ?", to)
	return err
}

// Verify says what is wrong with the database at path, which nobody uses. ErrNewer if
// a newer version of the program has written it.
func Verify(ctx context.Context, path string) error {
	if err := verify(ctx, path); err != nil {
		return fmt.Errorf("database %s: %w", path, err)
	}
	return nil
}

func verify(ctx context.Context, path string) error {
	db, err := sql.Open("sqlite", dsn(path, url.Values{"mode": {"ro"}}))
	if err != nil {
		return err
	}
	defer db.Close()
	var says string
	if err := db.QueryRowContext(ctx, "PRAGMA integrity_check(1)").Scan(&says); err != nil {
		return err
	}
	if says != "ok" {
		return fmt.Errorf("it is damaged: %s", says)
	}
	var version int
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	if version == 0 {
		return errors.New("it is none of sandgate's")
	}
	return known(version)
}
