package gateway

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"sandgate/store"
)

// A toucher records when keys, sandboxes and secrets were used, apart from those who use
// them: nobody waits for it, and what happens often is written once.
type toucher struct {
	db   *store.DB
	log  *slog.Logger
	quit chan struct{}
	done chan struct{}

	mu   sync.Mutex
	uses map[use]time.Time // not written yet
}

// A use is of a key, of a sandbox or of a secret.
type use struct {
	key, sandbox string
	secret       int64
}

// touchInterval is how often uses are written.
const touchInterval = 2 * time.Second

// touchTimeout bounds one round of writing.
const touchTimeout = 30 * time.Second

func newToucher(db *store.DB, log *slog.Logger) *toucher {
	t := &toucher{
		db: db, log: log,
		quit: make(chan struct{}), done: make(chan struct{}),
		uses: make(map[use]time.Time),
	}
	go t.run()
	return t
}

// touch records a use, now.
func (t *toucher) touch(u use) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.uses[u] = time.Now()
}

func (t *toucher) run() {
	defer close(t.done)
	tick := time.NewTicker(touchInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			t.write()
		case <-t.quit:
			t.write()
			return
		}
	}
}

// write writes what has come up. What cannot be written is kept for the next time.
func (t *toucher) write() {
	t.mu.Lock()
	uses := t.uses
	t.uses = make(map[use]time.Time)
	t.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), touchTimeout)
	defer cancel()
	for u, at := range uses {
		var err error
		switch {
		case u.key != "":
			err = t.db.TouchKey(ctx, u.key, at)
		case u.secret != 0:
			err = t.db.TouchSecret(ctx, u.secret, at)
		default:
			err = t.db.TouchSandbox(ctx, u.sandbox, at)
		}
		if err == nil || errors.Is(err, store.ErrNotFound) {
			continue
		}
		t.log.Warn("use not recorded, to be tried again", keyErr, err)
		t.mu.Lock()
		if _, newer := t.uses[u]; !newer {
			t.uses[u] = at
		}
		t.mu.Unlock()
	}
}

// stop writes what there is and ends.
func (t *toucher) stop() {
	close(t.quit)
	<-t.done
}
