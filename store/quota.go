package store

import (
	"context"
	"fmt"
)

// Subjects of quotas that are no user's id.
const (
	EachUser = 0  // each user who has no quota of that measure of their own
	AllUsers = -1 // all users together
)

// A Quota is how much of something a subject may use. What measures there are and
// what their units are is decided elsewhere.
type Quota struct {
	Subject int64  // a user's id, EachUser or AllUsers
	User    string // the name of user Subject
	Measure string
	Value   int64
}

// SetQuota adds a quota or changes its value; User is ignored.
func (db *DB) SetQuota(ctx context.Context, q Quota) error {
	_, err := db.write.ExecContext(ctx, `
		INSERT INTO quotas (subject, measure, value) VALUES (?, ?, ?)
		ON CONFLICT (subject, measure) DO UPDATE SET value = excluded.value`, q.Subject, q.Measure, q.Value)
	if err != nil {
		return fmt.Errorf("set quota of %s: %w", q.Measure, err)
	}
	return nil
}

// DeleteQuota removes a quota. ErrNotFound if there is none.
func (db *DB) DeleteQuota(ctx context.Context, subject int64, measure string) error {
	if err := db.update(ctx, "DELETE FROM quotas WHERE subject = ? AND measure = ?", subject, measure); err != nil {
		return fmt.Errorf("delete quota of %s: %w", measure, err)
	}
	return nil
}

const selectQuotas = "SELECT q.subject, coalesce(u.name, ''), q.measure, q.value FROM quotas q LEFT JOIN users u ON u.id = q.subject "

func (q *Quota) columns() []any { return []any{&q.Subject, &q.User, &q.Measure, &q.Value} }

// Quotas returns all quotas: of all users together, of each, and of single ones.
func (db *DB) Quotas(ctx context.Context) ([]Quota, error) {
	all, err := selectAll(ctx, db, (*Quota).columns, selectQuotas+"ORDER BY min(q.subject, 1), 2, q.measure")
	if err != nil {
		return nil, fmt.Errorf("list quotas: %w", err)
	}
	return all, nil
}

// QuotasFor returns the quotas that a user falls under: their own, those of each
// user and those of all together.
func (db *DB) QuotasFor(ctx context.Context, userID int64) ([]Quota, error) {
	all, err := selectAll(ctx, db, (*Quota).columns, selectQuotas+"WHERE q.subject IN (?, ?, ?)", userID, EachUser, AllUsers)
	if err != nil {
		return nil, fmt.Errorf("quotas of user %d: %w", userID, err)
	}
	return all, nil
}
