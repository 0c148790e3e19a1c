package store

import (
	"context"
	"database/sql"
	"sync/atomic"
	"time"
)

// A Latency is how long something took, how often.
type Latency struct {
	Count   uint64
	Sum     time.Duration
	Buckets map[float64]uint64 // how many took at most so many seconds
}

// bounds are the upper ones of the buckets.
var bounds = [...]time.Duration{100 * time.Microsecond, 300 * time.Microsecond, time.Millisecond, 3 * time.Millisecond,
	10 * time.Millisecond, 30 * time.Millisecond, 100 * time.Millisecond, 300 * time.Millisecond, time.Second, 10 * time.Second}

// A pool is connections to the database whose answers are timed: of a query up to its
// first row, of a transaction up to its beginning, which is the wait for its turn.
type pool struct {
	*sql.DB
	sum    atomic.Int64
	within [len(bounds) + 1]atomic.Uint64 // the last: longer than all bounds
}

func (p *pool) took(since time.Time) {
	d := time.Since(since)
	p.sum.Add(int64(d))
	i := 0
	for i < len(bounds) && d > bounds[i] {
		i++
	}
	p.within[i].Add(1)
}

func (p *pool) latency() Latency {
	l := Latency{Sum: time.Duration(p.sum.Load()), Buckets: make(map[float64]uint64, len(bounds))}
	for i := range p.within {
		l.Count += p.within[i].Load()
		if i < len(bounds) {
			l.Buckets[bounds[i].Seconds()] = l.Count
		}
	}
	return l
}

func (p *pool) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	defer p.took(time.Now())
	return p.DB.ExecContext(ctx, query, args...)
}

func (p *pool) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	defer p.took(time.Now())
	return p.DB.QueryContext(ctx, query, args...)
}

func (p *pool) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	defer p.took(time.Now())
	return p.DB.QueryRowContext(ctx, query, args...)
}

func (p *pool) BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error) {
	defer p.took(time.Now())
	return p.DB.BeginTx(ctx, opts)
}

// Latencies returns how long reading and writing have taken since the store was opened.
func (db *DB) Latencies() (read, write Latency) { return db.read.latency(), db.write.latency() }
