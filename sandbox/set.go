package sandbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"sandgate/store"
)

// A Change is what is to become different of a sandbox that is there. What is
// zero stays.
type Change struct {
	TTL  Duration // from now on; Off: it is not removed any more
	Idle Idle

	ForwardAgent *bool
	KeepCommands *bool
	Record       *bool

	// From the next start on.
	Env    []string // NAME=VALUE to be set
	Unset  []string // names of variables to be taken away
	Limits          // but Disk, which is zero
}

// apply returns o as it is after the change.
func (c Change) apply(o Options, now time.Time) Options {
	if o.Idle = cmp.Or(c.Idle, o.Idle); c.TTL != 0 {
		o.TTL, o.Expires = c.TTL, expiry(c.TTL, now)
	}
	o.ForwardAgent = cmp.Or(c.ForwardAgent, o.ForwardAgent)
	o.KeepCommands = cmp.Or(c.KeepCommands, o.KeepCommands)
	o.Record = cmp.Or(c.Record, o.Record)
	o.Limits = c.Limits.or(o.Limits)
	o.Env = slices.Clone(o.Env)
	for _, name := range c.Unset {
		o.Env = withoutEnv(o.Env, name)
	}
	o.Env = mergeEnv(o.Env, c.Env)
	return o
}

// Set changes a sandbox. It returns the names of what changes with the sandbox's
// next start only, if it is running or paused. The errors are those of Create.
func (m *Manager) Set(ctx context.Context, row store.Sandbox, change Change) (restart []string, err error) {
	if err := m.cfg.Load().admit(Options{Limits: change.Limits, TTL: change.TTL, Env: change.Env}); err != nil {
		return nil, err
	}
	l := m.life(ID(row.ID))
	if err := l.take(ctx); err != nil {
		return nil, err
	}
	defer l.give()
	if row, err = m.db.Sandbox(ctx, row.ID); err != nil {
		return nil, err
	}
	before, err := OptionsOf(row)
	if err != nil {
		return nil, err
	}
	after := change.apply(before, time.Now())
	if err := after.check(); err != nil {
		return nil, err
	}
	if err := m.checkIdle(row.Driver, after.Idle); err != nil {
		return nil, err
	}
	if !slices.Equal(before.Env, after.Env) {
		restart = append(restart, "env")
	}
	limits := changedLimits(before.Limits, after.Limits)
	if len(restart)+len(limits) > 0 {
		live, err := m.update(ctx, row, after)
		if err != nil {
			return nil, err
		}
		if !live {
			restart = append(restart, limits...)
		}
	}
	if reflect.DeepEqual(before, after) {
		return nil, nil
	}
	if row.Spec, err = json.Marshal(after); err != nil {
		return nil, err
	}
	if err := m.db.SetSpec(ctx, row.ID, row.Spec); err != nil {
		return nil, err
	}
	infos, err := m.Infos(ctx, []store.Sandbox{row})
	if state := infos[ID(row.ID)].State; err != nil || state != Running && state != Paused {
		return nil, err
	}
	return restart, nil
}

// changedLimits returns the names of the limits that differ.
func changedLimits(a, b Limits) []string {
	var names []string
	for name, differs := range map[string]bool{
		"cpus":   a.CPUs != b.CPUs,
		"memory": a.Memory != b.Memory,
		"pids":   a.PIDs != b.PIDs,
	} {
		if differs {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// update has a sandbox become what o says, if its driver can do that now, or sees
// that it will with the next start. live says that limits hold at once.
func (m *Manager) update(ctx context.Context, row store.Sandbox, o Options) (live bool, err error) {
	d := m.drivers[row.Driver]
	if _, ok := d.(Updater); !ok {
		return false, &UnsupportedError{Reason: fmt.Sprintf("the driver %q cannot change the variables and limits of a sandbox that is there", row.Driver)}
	}
	spec := specOf(row, o)
	if c, ok := d.(Checker); ok {
		if err := c.Check(spec); err != nil {
			return false, err
		}
	}
	u, live := d.(LiveUpdater)
	if live {
		err = u.UpdateNow(ctx, spec)
	}
	if errors.Is(err, ErrNotFound) { // it is made by its first start
		err = nil
	}
	return live, err
}
