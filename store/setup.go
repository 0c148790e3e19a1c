package store

import (
	"context"
	"fmt"
	"time"
)

// A Setup is the last run of a sandbox's setup command that came to its end.
type Setup struct {
	Done  bool   // it succeeded, and is not to be run again
	How   string // it ended, in words
	Ended time.Time
	Log   []byte // what it wrote; not nil
}

// PutSetup records a run, in the place of the one before. ErrNotFound if there is
// no such sandbox.
func (db *DB) PutSetup(ctx context.Context, sandboxID string, s Setup) error {
	_, err := db.write.ExecContext(ctx, "INSERT OR REPLACE INTO setups (sandbox_id, done, how, ended, log) VALUES (?, ?, ?, ?, ?)",
		sandboxID, s.Done, s.How, toMillis(s.Ended), s.Log)
	if err != nil {
		return fmt.Errorf("record setup of sandbox %s: %w", sandboxID, meaning(err))
	}
	return nil
}

// Setup returns the last run. ErrNotFound if none has come to its end.
func (db *DB) Setup(ctx context.Context, sandboxID string) (Setup, error) {
	var s Setup
	err := db.read.QueryRowContext(ctx, "SELECT done, how, ended, log FROM setups WHERE sandbox_id = ?", sandboxID).
		Scan(&s.Done, &s.How, millis{&s.Ended}, &s.Log)
	if err != nil {
		return Setup{}, fmt.Errorf("setup of sandbox %s: %w", sandboxID, meaning(err))
	}
	return s, nil
}
