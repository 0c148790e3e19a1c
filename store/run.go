package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// A RunState is what a run of the agent is doing.
type RunState string

// The states of a run.
const (
	RunWorking RunState = "working" // a turn has begun and has no result
	RunAsking  RunState = "asking"  // and waits for somebody's answer
	RunIdle    RunState = "idle"
)

// A Run is one conversation of the agent.
type Run struct {
	ID        string
	UserID    int64
	SandboxID string
	Title     string // the beginning of the first prompt; may be empty
	Options   []byte // what the run was started with: the gateway's matter
	State     RunState
	Created   time.Time
	Changed   time.Time // of the last event

	User    string // name; read only
	Sandbox string // name; read only
}

const selectRun = `SELECT r.id, r.user_id, r.sandbox_id, r.title, r.options, r.state, r.created, r.changed, u.name, s.name
	FROM runs r JOIN users u ON u.id = r.user_id JOIN sandboxes s ON s.id = r.sandbox_id `

func scanRun(row interface{ Scan(...any) error }) (Run, error) {
	var r Run
	err := row.Scan(&r.ID, &r.UserID, &r.SandboxID, &r.Title, &r.Options, &r.State, millis{&r.Created}, millis{&r.Changed}, &r.User, &r.Sandbox)
	return r, err
}

// CreateRun adds a run, idle. ErrExists if there is one of that id.
func (db *DB) CreateRun(ctx context.Context, r Run) error {
	_, err := db.write.ExecContext(ctx, `INSERT INTO runs (id, user_id, sandbox_id, title, options, state, created, changed)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
		r.ID, r.UserID, r.SandboxID, r.Title, r.Options, RunIdle, toMillis(r.Created), toMillis(r.Created))
	if err != nil {
		return fmt.Errorf("create run: %w", meaning(err))
	}
	return nil
}

// Run returns a run. ErrNotFound if there is none.
func (db *DB) Run(ctx context.Context, id string) (Run, error) {
	r, err := scanRun(db.read.QueryRowContext(ctx, selectRun+"WHERE r.id = ?", id))
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrNotFound
	}
	if err != nil {
		return Run{}, fmt.Errorf("run %q: %w", id, err)
	}
	return r, nil
}

// RunsOf returns a user's runs, the last changed first, at most limit.
func (db *DB) RunsOf(ctx context.Context, userID int64, limit int) ([]Run, error) {
	return db.runs(ctx, "WHERE r.user_id = ? ORDER BY r.changed DESC LIMIT ?", userID, limit)
}

// RunsAtWork returns the runs of all users that are not idle.
func (db *DB) RunsAtWork(ctx context.Context) ([]Run, error) {
	return db.runs(ctx, "WHERE r.state <> 'idle' ORDER BY r.created")
}

func (db *DB) runs(ctx context.Context, where string, args ...any) ([]Run, error) {
	rows, err := db.read.QueryContext(ctx, selectRun+where, args...)
	if err != nil {
		return nil, fmt.Errorf("runs: %w", err)
	}
	defer rows.Close()
	var all []Run
	for rows.Next() {
		r, err := scanRun(rows)
		if err != nil {
			return nil, fmt.Errorf("runs: %w", err)
		}
		all = append(all, r)
	}
	return all, rows.Err()
}

// SetRunOptions changes a run's options. ErrNotFound if there is no such run.
func (db *DB) SetRunOptions(ctx context.Context, id string, options []byte) error {
	res, err := db.write.ExecContext(ctx, "UPDATE runs SET options = ? WHERE id = ?", options, id)
	if err == nil {
		var n int64
		if n, err = res.RowsAffected(); err == nil && n == 0 {
			err = ErrNotFound
		}
	}
	if err != nil {
		return fmt.Errorf("options of run %q: %w", id, err)
	}
	return nil
}

// SetRunTitle gives a run that has no title one.
func (db *DB) SetRunTitle(ctx context.Context, id, title string) error {
	if _, err := db.write.ExecContext(ctx, "UPDATE runs SET title = ? WHERE id = ? AND title = ''", title, id); err != nil {
		return fmt.Errorf("title of run %q: %w", id, err)
	}
	return nil
}

// DeleteRun deletes a run with its events. Deleting what is not there is no error.
func (db *DB) DeleteRun(ctx context.Context, id string) error {
	if _, err := db.write.ExecContext(ctx, "DELETE FROM runs WHERE id = ?", id); err != nil {
		return fmt.Errorf("delete run: %w", err)
	}
	return nil
}

// AppendRunEvent keeps an event and the state that the run is in after it. seq must
// follow the last one; ErrExists if it is taken, ErrNotFound if the run is gone.
func (db *DB) AppendRunEvent(ctx context.Context, runID string, seq int64, event []byte, state RunState, at time.Time) error {
	err := transact(ctx, db.write, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, "UPDATE runs SET state = ?, changed = ? WHERE id = ?", state, toMillis(at), runID)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, ErrNotFound)
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO run_events (run_id, seq, event) VALUES (?, ?, ?)", runID, seq, event)
		return err
	})
	if err != nil {
		return fmt.Errorf("event %d of run %q: %w", seq, runID, meaning(err))
	}
	return nil
}

// AppendRunJob keeps an event that says that a command of a run goes on by itself, or
// has ended. The state of the run stays what it is. ErrExists if seq is taken, or if
// that was said before; ErrNotFound if the run is gone.
func (db *DB) AppendRunJob(ctx context.Context, runID string, seq int64, event []byte, job string, running bool, at time.Time) error {
	err := transact(ctx, db.write, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, "UPDATE runs SET changed = ? WHERE id = ?", toMillis(at), runID)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, ErrNotFound)
		}
		if running {
			_, err = tx.ExecContext(ctx, "INSERT INTO run_jobs (run_id, job) VALUES (?, ?)", runID, job)
		} else if res, err = tx.ExecContext(ctx, "DELETE FROM run_jobs WHERE run_id = ? AND job = ?", runID, job); err == nil {
			var n int64
			if n, err = res.RowsAffected(); err == nil && n == 0 {
				err = ErrExists
			}
		}
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO run_events (run_id, seq, event) VALUES (?, ?, ?)", runID, seq, event)
		return err
	})
	if err != nil {
		return fmt.Errorf("event %d of run %q: %w", seq, runID, meaning(err))
	}
	return nil
}

// RunJobs returns the commands of a sandbox's runs that go on, as far as their runs
// know, by run. An empty id means all sandboxes.
func (db *DB) RunJobs(ctx context.Context, sandboxID string) (map[string][]string, error) {
	rows, err := db.read.QueryContext(ctx, `SELECT j.run_id, j.job FROM run_jobs j JOIN runs r ON r.id = j.run_id
		WHERE ?1 = '' OR r.sandbox_id = ?1`, sandboxID)
	if err != nil {
		return nil, fmt.Errorf("jobs of runs: %w", err)
	}
	defer rows.Close()
	jobs := make(map[string][]string)
	for rows.Next() {
		var run, job string
		if err := rows.Scan(&run, &job); err != nil {
			return nil, fmt.Errorf("jobs of runs: %w", err)
		}
		jobs[run] = append(jobs[run], job)
	}
	return jobs, rows.Err()
}

// A RunEvent is one event of a run.
type RunEvent struct {
	Seq   int64
	Event []byte
}

// maxEventBytes is from how many bytes on RunEvents returns no more: some events have
// pictures in them.
const maxEventBytes = 8 << 20

// RunEvents returns the events of a run after one, in order, at most limit, and fewer
// if they are long. Without any there are no more.
func (db *DB) RunEvents(ctx context.Context, runID string, after int64, limit int) ([]RunEvent, error) {
	rows, err := db.read.QueryContext(ctx, "SELECT seq, event FROM run_events WHERE run_id = ? AND seq > ? ORDER BY seq LIMIT ?", runID, after, limit)
	if err != nil {
		return nil, fmt.Errorf("events of run %q: %w", runID, err)
	}
	defer rows.Close()
	var all []RunEvent
	size := 0
	for size < maxEventBytes && rows.Next() {
		var e RunEvent
		if err := rows.Scan(&e.Seq, &e.Event); err != nil {
			return nil, fmt.Errorf("events of run %q: %w", runID, err)
		}
		all = append(all, e)
		size += len(e.Event)
	}
	return all, rows.Err()
}

// LastRunEvent returns the number of a run's last event; 0 if it has none.
func (db *DB) LastRunEvent(ctx context.Context, runID string) (seq int64, err error) {
	err = db.read.QueryRowContext(ctx, "SELECT coalesce(max(seq), 0) FROM run_events WHERE run_id = ?", runID).Scan(&seq)
	if err != nil {
		return 0, fmt.Errorf("events of run %q: %w", runID, err)
	}
	return seq, nil
}
