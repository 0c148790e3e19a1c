package gateway

import (
	"context"
	"errors"
	"sync"
	"time"

	"sandgate/sandbox"
	"sandgate/store"
)

// How often it is looked for sandboxes that are meant to serve and do not run, how many
// are started at once, and when one is tried again that could not be started or did not
// run for long: twice as late each time.
const (
	reviveEvery  = 5 * time.Second
	revivers     = 4
	firstRevival = 5 * time.Second
	lastRevival  = 5 * time.Minute
	revived      = 10 * time.Minute
)

// A reviver sees to it that sandboxes with services run that are meant to, without
// anybody coming to use them: after the host has started anew, or their engine, or
// after they have ended by themselves.
type reviver struct {
	gate *Gateway
	wg   sync.WaitGroup
	free chan struct{} // a place for each that may be started at once

	mu    sync.Mutex
	tries map[string]*revival // by sandbox id
	fails map[string]string   // why services do not run, by sandbox id
}

// A revival is what was tried of late to bring up one sandbox.
type revival struct {
	at    time.Time     // of the last try
	again time.Duration // until the next
	busy  bool
}

func newReviver(g *Gateway) *reviver {
	return &reviver{gate: g, free: make(chan struct{}, revivers), tries: make(map[string]*revival), fails: make(map[string]string)}
}

// keep does the reviver's work until ctx ends.
func (r *reviver) keep(ctx context.Context) {
	defer r.wg.Wait()
	tick := time.NewTicker(reviveEvery)
	defer tick.Stop()
	for {
		if err := r.look(ctx); err != nil && ctx.Err() == nil {
			r.gate.log.Warn("sandboxes with services not looked after", keyErr, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// look begins to start what is meant to run and does not.
func (r *reviver) look(ctx context.Context) error {
	rows, err := r.gate.db.Serving(ctx)
	if err != nil {
		return err
	}
	infos, err := r.gate.sandboxes.Infos(ctx, rows)
	if err != nil {
		return err
	}
	now := time.Now()
	r.forget(rows)
	for _, row := range rows {
		if r.due(row.ID, infos[sandbox.ID(row.ID)].State, now) {
			r.wg.Go(func() { r.revive(ctx, row) })
		}
	}
	return nil
}

// forget drops what is known of sandboxes that are not meant to serve any more.
func (r *reviver) forget(rows []store.Sandbox) {
	serving := make(map[string]bool, len(rows))
	for _, row := range rows {
		serving[row.ID] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, t := range r.tries {
		if !serving[id] && !t.busy {
			delete(r.tries, id)
		}
	}
	for id := range r.fails {
		if !serving[id] {
			delete(r.fails, id)
		}
	}
}

// due says whether a sandbox in this state is to be started now, and if so, notes that
// it is.
func (r *reviver) due(id string, state sandbox.State, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.tries[id]
	switch {
	case t == nil && state == sandbox.Stopped:
		t = &revival{again: firstRevival}
		r.tries[id] = t
	case t == nil || t.busy:
		return false
	case state != sandbox.Stopped:
		if now.Sub(t.at) > revived {
			delete(r.tries, id)
		}
		return false
	case now.Sub(t.at) < t.again:
		return false
	default:
		t.again = min(2*t.again, lastRevival)
	}
	t.at, t.busy = now, true
	return true
}

// revive starts a sandbox, and with it its services.
func (r *reviver) revive(ctx context.Context, row store.Sandbox) {
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.tries[row.ID].busy = false
	}()
	select {
	case r.free <- struct{}{}:
		defer func() { <-r.free }()
	case <-ctx.Done():
		return
	}
	err := r.gate.sandboxes.Revive(ctx, row)
	switch {
	case ctx.Err() != nil || errors.Is(err, sandbox.ErrRemoved):
	case err != nil:
		r.gate.log.Warn("sandbox with services not started", keySandbox, row.ID, keyErr, err)
		r.failed(row.ID, explain(err, r.gate.log).sentence)
	default:
		r.gate.log.Info("sandbox with services started", keySandbox, row.ID)
	}
}

// failed notes why the services of a sandbox do not run; an empty reason, that they do.
func (r *reviver) failed(id, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if why == "" {
		delete(r.fails, id)
	} else {
		r.fails[id] = why
	}
}

// why says why the services of a sandbox do not run. It is empty if they do.
func (r *reviver) why(id string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fails[id]
}
