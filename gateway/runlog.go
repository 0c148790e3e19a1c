package gateway

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"iter"

	"sandgate/agent"
	"sandgate/store"
)

// The bounds of reading and following a run.
const (
	eventsAtOnce = 256 // read from the store
	maxPartials  = 256 // that wait for one follower
)

// A viewer is somebody who follows a run.
type viewer struct {
	partials chan partial // nil: they do not want them
	deltas   bool         // pieces of responses, too
	next     *partial     // that was taken from there, and is not due yet
}

// A partial is an event that is not kept, and what had happened before it.
type partial struct {
	event agent.Event
	after int64
}

// Append implements agent.Log.
func (l *liveRun) Append(ctx context.Context, e agent.Event) (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	state := store.RunWorking
	switch {
	case e.Type == agent.TypeResult:
		state = store.RunIdle
	case len(l.asks) > 0 || e.Type == agent.TypeControlRequest:
		state = store.RunAsking
	}
	return l.put(e, func(seq int64, line []byte) error {
		return l.runs.gate.db.AppendRunEvent(ctx, l.row.ID, seq, line, state, e.Time)
	})
}

// put gives an event the next number, has it kept without the values of secrets, and
// tells those who follow. The caller holds mu.
func (l *liveRun) put(e agent.Event, keep func(seq int64, line []byte) error) (int64, error) {
	e.Seq = l.seq + 1
	mark(&e, l.row.Sandbox)
	line, err := json.Marshal(e)
	if err != nil {
		return 0, err
	}
	if err := keep(e.Seq, []byte(l.redact.Load().String(string(line)))); err != nil {
		return 0, err
	}
	l.seq = e.Seq
	l.announce()
	return e.Seq, nil
}

// announce has those who follow the run look again. The caller holds mu.
func (l *liveRun) announce() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// mark gives an event what all have: a name of its own, and that of the sandbox.
func mark(e *agent.Event, sandbox string) {
	var id [16]byte
	rand.Read(id[:])
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80 // RFC 9562 section 5.4
	e.Fields["uuid"] = fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
	e.Fields["sandbox"] = sandbox
}

// Show implements agent.Log.
func (l *liveRun) Show(e agent.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	mark(&e, l.row.Sandbox)
	for v := range l.viewers {
		if e.Type == agent.TypeStream && !v.deltas {
			continue
		}
		select {
		case v.partials <- partial{e, l.seq}:
		default: // a slow follower misses pieces, never whole events
		}
	}
}

func (l *liveRun) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.announce()
}

// wake has those who follow a run look again.
func (r *runs) wake(id string) {
	r.mu.Lock()
	l := r.live[id]
	r.mu.Unlock()
	if l != nil {
		l.wake()
	}
}

// stored returns the events in the store, and counts them. The caller holds l.mu.
func (l *liveRun) stored(ctx context.Context) iter.Seq2[agent.Event, error] {
	return func(yield func(agent.Event, error) bool) {
		l.seq = 0
		for {
			rows, err := l.runs.gate.db.RunEvents(ctx, l.row.ID, l.seq, eventsAtOnce)
			if err != nil {
				yield(agent.Event{}, err)
				return
			}
			for _, row := range rows {
				var e agent.Event
				if err := json.Unmarshal(row.Event, &e); err != nil {
					yield(e, fmt.Errorf("event %d: %w", row.Seq, err))
					return
				}
				l.seq = row.Seq
				if !yield(e, nil) {
					return
				}
			}
			if len(rows) == 0 {
				return
			}
		}
	}
}

// A following is what somebody who follows a run wants of it.
type following struct {
	after    int64 // the event that they have already
	partials bool  // also events that are not kept
	deltas   bool  // also pieces of responses; with partials

	// begin is called before anything is told, when nothing that begins then can
	// be missed. It may be nil.
	begin func() error

	// until says that what there is by now is enough. It may ask whether a turn is
	// going on.
	until func(working func() bool) bool

	// replayed is called once, between what was and what comes. It may be nil.
	replayed func() error

	// yield is called for each event, in order, and for partials.
	yield func(agent.Event, []byte) error
}

// follow tells f what happens, until a function of f's returns an error, ctx ends, or
// it is enough.
func (l *liveRun) follow(ctx context.Context, f following) error {
	v := &viewer{}
	if f.partials {
		v.partials, v.deltas = make(chan partial, maxPartials), f.deltas
	}
	l.mu.Lock()
	l.viewers[v] = true
	l.attended()
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.viewers, v)
		l.attended()
	}()
	if f.begin != nil {
		if err := f.begin(); err != nil {
			return err
		}
	}
	after, told := f.after, false
	tell := func(p partial) error {
		line, err := json.Marshal(p.event)
		if err != nil {
			return err
		}
		return f.yield(p.event, []byte(l.redact.Load().String(string(line))))
	}
	for {
		l.mu.Lock()
		changed := l.changed
		l.mu.Unlock()
		enough := f.until(l.atWork)
		for {
			rows, err := l.runs.gate.db.RunEvents(ctx, l.row.ID, after, eventsAtOnce)
			if err != nil {
				return err
			}
			for _, row := range rows {
				var e agent.Event
				if err := json.Unmarshal(row.Event, &e); err != nil {
					return fmt.Errorf("event %d of run %s: %w", row.Seq, l.row.ID, err)
				}
				for p := range v.before(after, row.Seq) {
					if err := tell(p); err != nil {
						return err
					}
				}
				if err := f.yield(e, row.Event); err != nil {
					return err
				}
				after = row.Seq
			}
			if len(rows) == 0 {
				break
			}
		}
		if !told {
			told = true
			if f.replayed != nil {
				if err := f.replayed(); err != nil {
					return err
				}
			}
		}
		if enough {
			return nil
		}
	waiting:
		for {
			if p := v.next; p != nil {
				if p.after > after { // what came before it first
					break waiting
				}
				v.next = nil
				if p.after == after { // else its whole was told already
					if err := tell(*p); err != nil {
						return err
					}
				}
				continue
			}
			select {
			case p := <-v.partials:
				v.next = &p
			case <-changed:
				break waiting
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
}

func (l *liveRun) atWork() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.working
}

// What until of follow may be: until a turn has ended, or not waiting for any.
func untilIdle(working func() bool) bool { return !working() }
func atOnce(func() bool) bool            { return true }

// before returns the partials that came after one event and before another.
func (v *viewer) before(after, seq int64) iter.Seq[partial] {
	return func(yield func(partial) bool) {
		for {
			if v.next == nil {
				select {
				case p := <-v.partials:
					v.next = &p
				default:
					return
				}
			}
			if v.next.after >= seq {
				return
			}
			p := *v.next
			v.next = nil
			if p.after == after && !yield(p) {
				return
			}
		}
	}
}
