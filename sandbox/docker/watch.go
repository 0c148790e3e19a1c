package docker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"sandgate/sandbox"
)

// Back-off between attempts to follow the engine's events.
const (
	firstFollow = 200 * time.Millisecond
	lastFollow  = 5 * time.Second
)

// Watch implements sandbox.Watcher. As long as nothing was ever made it asks for
// no engine.
func (d *Driver) Watch(ctx context.Context, report func(sandbox.Event)) {
	select {
	case <-d.used:
	case <-ctx.Done():
		return
	}
	var tidying sync.WaitGroup
	defer tidying.Wait()
	for wait, lost := firstFollow, false; ; wait = min(2*wait, lastFollow) {
		err := d.engine.events(ctx, labelGateway, d.instance, func() {
			wait, lost = firstFollow, false
			report(sandbox.Event{Kind: sandbox.EngineFound})
			tidying.Go(func() { d.tidyAll(ctx) })
		}, func(ev event) {
			d.hear(ctx, ev, report)
			if id, err := sandbox.ParseID(ev.labels[labelSandbox]); err == nil && ev.what == "die" && ev.labels[labelNetwork] != "" {
				tidying.Go(func() { d.tidy(ctx, id) })
			}
		})
		if ctx.Err() != nil {
			return
		}
		if !lost {
			lost = true
			d.log.Debug("events end", "err", err)
			report(sandbox.Event{Kind: sandbox.EngineLost, Cause: fmt.Sprintf("the Docker engine at %s has gone", d.engine.host)})
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// tidyAll ends the helpers of sandboxes that have ended while nobody followed the
// engine's events. Those of one that is just being made have no sandbox yet.
func (d *Driver) tidyAll(ctx context.Context) {
	boxes, err := d.engine.list(ctx, labelGateway, d.instance)
	if err != nil {
		d.log.Debug("helpers not looked after", "err", err)
		return
	}
	helped := make(map[string]bool)
	for _, b := range boxes {
		if b.running && b.labels[labelHelper] != "" {
			helped[b.labels[labelHelper]] = true
		}
	}
	for _, b := range boxes {
		if id, err := sandbox.ParseID(b.labels[labelSandbox]); err == nil && !b.running && helped[string(id)] {
			d.tidy(ctx, id)
		}
	}
}

// tidy ends the helpers of a sandbox that has ended by itself, unless it runs again.
func (d *Driver) tidy(ctx context.Context, id sandbox.ID) {
	err := d.do("tidy", id, func(*entry) error {
		b, err := d.engine.inspect(ctx, d.name(id))
		if b.running || err != nil && !errors.Is(err, sandbox.ErrNotFound) {
			return err
		}
		return errors.Join(err, d.stopNetwork(ctx, id))
	})
	if err != nil && !errors.Is(err, sandbox.ErrNotFound) && ctx.Err() == nil {
		d.log.Warn("helpers of a sandbox that has ended not ended", "err", err)
	}
}

// hear passes on an event that is not our own doing. What the engine tells late,
// about the time before the sandbox was last started, is dropped.
func (d *Driver) hear(ctx context.Context, ev event, report func(sandbox.Event)) {
	id, err := sandbox.ParseID(ev.labels[labelSandbox])
	if err != nil {
		return
	}
	e := d.find(id)
	if e == nil {
		return
	}
	out := sandbox.Event{ID: id}
	switch ev.what {
	case "pause":
		out.Kind = sandbox.Frozen
	case "unpause":
		out.Kind = sandbox.Thawed
	case "kill":
		switch ev.signal {
		case "9", "15": // as docker kill, docker stop and docker restart send them
		default:
			return
		}
		out.Kind, out.Cause = sandbox.Ending, "it was stopped from outside, by somebody with access to the Docker engine"
	case "oom":
		e.mu.Lock()
		e.oom = e.oom || !ev.when.Before(e.started)
		e.mu.Unlock()
		return
	case "die":
		b, err := d.engine.inspect(ctx, d.name(id))
		if err != nil || b.running {
			return // removed, or running again
		}
		out.Kind, out.Cause = sandbox.Ended, e.cause(b)
	default:
		return
	}
	// Held until it is reported: a Start that comes now must not be taken for what
	// has ended.
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.ours && !ev.when.Before(e.started) {
		report(out)
	}
}

// cause says why a container ended.
func (e *entry) cause(b box) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case (e.oom || b.oomKilled) && b.limits.Memory > 0:
		return fmt.Sprintf("it ran out of memory: its limit is %d MiB", b.limits.Memory>>20)
	case e.oom || b.oomKilled:
		return "the engine's host ran out of memory"
	}
	return fmt.Sprintf("its first process ended with exit code %d", b.exitCode)
}
