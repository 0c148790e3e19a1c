package gateway

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"sandgate/store"
)

// A meter counts what sandboxes are used for, apart from those who use them: a
// count is an addition in memory, and is written now and then. What was not
// written is lost if the gateway is killed; what cannot be written is kept.
type meter struct {
	db   *store.DB
	log  *slog.Logger
	used func(store.Usage) // called with what was written; set before the first use
	quit chan struct{}
	done chan struct{}

	mu     sync.Mutex
	counts map[string]*counts // by sandbox
}

// counts are what one sandbox was used for since they were last written.
type counts struct{ in, out, sessions, jobs atomic.Int64 }

// meterInterval is how often counts are written.
const meterInterval = 5 * time.Second

func newMeter(db *store.DB, log *slog.Logger) *meter {
	m := &meter{db: db, log: log, quit: make(chan struct{}), done: make(chan struct{}), counts: make(map[string]*counts)}
	go m.run()
	return m
}

// of returns the counts of a sandbox, to be added to at any time.
func (m *meter) of(sandboxID string) *counts {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.counts[sandboxID]
	if c == nil {
		c = new(counts)
		m.counts[sandboxID] = c
	}
	return c
}

func (m *meter) run() {
	defer close(m.done)
	tick := time.NewTicker(meterInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			m.write()
		case <-m.quit:
			m.write()
			return
		}
	}
}

func (m *meter) write() {
	m.mu.Lock()
	all := maps.Clone(m.counts)
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), touchTimeout)
	defer cancel()
	for id, c := range all {
		u := store.Usage{BytesIn: c.in.Swap(0), BytesOut: c.out.Swap(0), Sessions: c.sessions.Swap(0), Jobs: c.jobs.Swap(0)}
		if u == (store.Usage{}) {
			continue
		}
		if err := m.db.AddUsage(ctx, id, time.Now(), u); err != nil {
			m.log.Warn("usage not recorded, to be tried again", keyErr, err)
			c.in.Add(u.BytesIn)
			c.out.Add(u.BytesOut)
			c.sessions.Add(u.Sessions)
			c.jobs.Add(u.Jobs)
		} else {
			m.used(u)
		}
	}
}

// stop writes what there is and ends.
func (m *meter) stop() {
	close(m.quit)
	<-m.done
}

// A meteredChannel counts the bytes of a channel once it is known what for.
type meteredChannel struct {
	ssh.Channel
	counts *counts // set before the first byte is moved; nil: not counted

	heard atomic.Int64 // when the client last sent something, in Unix nanoseconds; 0: never
}

func (c *meteredChannel) Read(p []byte) (int, error) {
	n, err := c.Channel.Read(p)
	if n > 0 {
		c.heard.Store(time.Now().UnixNano())
	}
	if c.counts != nil {
		c.counts.in.Add(int64(n))
	}
	return n, err
}

func (c *meteredChannel) Write(p []byte) (int, error) {
	n, err := c.Channel.Write(p)
	if c.counts != nil {
		c.counts.out.Add(int64(n))
	}
	return n, err
}

// lastHeard returns when the client last sent something; before that it was at began.
func (c *meteredChannel) lastHeard(began time.Time) time.Time {
	if n := c.heard.Load(); n > began.UnixNano() {
		return time.Unix(0, n)
	}
	return began
}

// Stderr is metered too.
func (c *meteredChannel) Stderr() io.ReadWriter {
	return meteredStderr{c.Channel.Stderr(), c}
}

type meteredStderr struct {
	io.ReadWriter
	c *meteredChannel
}

func (s meteredStderr) Write(p []byte) (int, error) {
	n, err := s.ReadWriter.Write(p)
	if s.c.counts != nil {
		s.c.counts.out.Add(int64(n))
	}
	return n, err
}
