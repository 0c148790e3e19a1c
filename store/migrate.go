package store

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
)

// Each file takes the tables one version further. They are numbered from 1
// without gaps, sort in that order, and are never edited once released.
//
//go:embed migrations/*.sql
var migrations embed.FS

// known is ErrNewer if this program does not know that version of the tables.
func known(version int) error {
	files, err := fs.Glob(migrations, "migrations/*.sql")
	if err == nil && version > len(files) {
		err = fmt.Errorf("%w: its version is %d, this program knows up to %d", ErrNewer, version, len(files))
	}
	return err
}

// migrate brings the tables to the newest version, one transaction a step. The
// version is kept in the file's own user_version and changes with the tables.
func migrate(ctx context.Context, db *pool) error {
	files, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		return err
	}
	var version int
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	if err := known(version); err != nil {
		return err
	}
	for version < len(files) {
		file := files[version]
		script, err := migrations.ReadFile(file)
		if err != nil {
			return err
		}
		version++
		err = transact(ctx, db, func(tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, string(script)); err != nil {
				return err
			}
			_, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", version))
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return nil
}
