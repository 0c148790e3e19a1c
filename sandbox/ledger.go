package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sandgate/store"
)

// beat is how often what runs is charged: as much can be lost if the host goes
// down. What the gateway alone missed is charged when it is back.
const beat = 5 * time.Second

// beatTimeout bounds one round of charging. What it does not get to is charged by
// the next.
const beatTimeout = 30 * time.Second

// A Reading is what a host says that a running sandbox has used since its start.
type Reading = store.Reading

// A Meter is a Driver that can measure what its sandboxes use.
type Meter interface {
	// Read returns what the host knows; nothing is no error, and never a guess.
	Read(ctx context.Context, id ID) (Reading, error)
}

// keep charges what runs until ctx ends.
func (m *Manager) keep(ctx context.Context) {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		round, cancel := context.WithTimeout(ctx, beatTimeout)
		if err := m.charge(round); err != nil && ctx.Err() == nil {
			m.log.Warn("running sandboxes not charged, to be tried again", keyErr, err)
		}
		if err := m.enforce(round); err != nil && ctx.Err() == nil {
			m.log.Warn("quotas not enforced, to be tried again", keyErr, err)
		}
		cancel()
	}
}

// charge charges all sandboxes that run now.
func (m *Manager) charge(ctx context.Context) error {
	seen := m.now()
	running := make(map[string]Reading)
	for name, d := range m.drivers {
		found, err := d.List(ctx)
		var lost *UnavailableError
		if errors.As(err, &lost) {
			continue // what cannot be used is not charged
		}
		if err != nil {
			// What it has must not be taken for ended.
			return fmt.Errorf("list sandboxes of %s: %w", name, err)
		}
		for _, s := range found {
			if s.State == Running {
				running[string(s.ID)] = m.read(ctx, d, s.ID)
			}
		}
	}
	return m.db.ChargeRunning(ctx, running, seen, m.now())
}

func (m *Manager) read(ctx context.Context, d Driver, id ID) Reading {
	meter, ok := d.(Meter)
	if !ok {
		return Reading{}
	}
	r, err := meter.Read(ctx, id)
	if err != nil {
		m.log.Debug("sandbox not measured", keySandbox, id, keyErr, err)
	}
	return r
}

// begun and ended record when a sandbox runs. A failure is made good by the next
// beat.
func (m *Manager) begun(ctx context.Context, id ID) {
	if err := m.db.StartRunning(ctx, string(id), m.now()); err != nil {
		m.log.Warn("start not recorded", keySandbox, id, keyErr, err)
	}
}

func (m *Manager) ended(ctx context.Context, id ID, r Reading) {
	if err := m.db.EndRunning(ctx, string(id), m.now(), r); err != nil {
		m.log.Warn("end not recorded", keySandbox, id, keyErr, err)
	}
}

// Standings returns how the quotas stand that a user falls under.
func (m *Manager) Standings(ctx context.Context, userID int64) ([]Standing, error) {
	return m.standings(ctx, userID, m.now(), make(map[int64]store.Tally))
}

// standings is Standings at a time, with the tallies that are known by then. It adds
// those that it had to count: that of all users takes long.
func (m *Manager) standings(ctx context.Context, userID int64, now time.Time, known map[int64]store.Tally) ([]Standing, error) {
	quotas, err := m.db.QuotasFor(ctx, userID)
	if err != nil || len(quotas) == 0 {
		return nil, err
	}
	own, together := make(Amounts), make(Amounts)
	for _, q := range quotas {
		if q.Subject == store.EachUser {
			own[Measure(q.Measure)] = q.Value
		}
	}
	for _, q := range quotas { // a user's own go before those of each
		switch q.Subject {
		case userID:
			own[Measure(q.Measure)] = q.Value
		case store.AllUsers:
			together[Measure(q.Measure)] = q.Value
		}
	}
	var all []Standing
	for _, of := range []struct {
		userID int64
		quotas Amounts
	}{{userID, own}, {0, together}} {
		if len(of.quotas) == 0 {
			continue
		}
		t, counted := known[of.userID]
		if !counted {
			if t, err = m.db.TallyOf(ctx, of.userID, now); err != nil {
				return nil, err
			}
			known[of.userID] = t
		}
		used := Amounts{
			QuotaSandboxes: t.Sandboxes,
			QuotaRunning:   t.RunningNow,
			QuotaHours:     t.Running.Milliseconds(),
			QuotaTokens:    t.Tokens,
			QuotaMoney:     t.CostMicros,
		}
		all = append(all, Standings(of.quotas, used, of.userID == 0, now)...)
	}
	return all, nil
}

// Refused returns a *QuotaError if the user has reached one of measures.
func (m *Manager) Refused(ctx context.Context, userID int64, measures ...Measure) error {
	standings, err := m.Standings(ctx, userID)
	if err != nil {
		return err
	}
	if q := Refused(standings, measures...); q != nil {
		return q
	}
	return nil
}

// Afford returns a *QuotaError if a user may have no more work of a model done.
func (m *Manager) Afford(ctx context.Context, userID int64) error {
	return m.Refused(ctx, userID, QuotaTokens, QuotaMoney, QuotaHours)
}

// admit takes a place for a sandbox that is about to run, or returns a *QuotaError
// if there is none. What cannot be started gives it back by ended. Of two at the
// same time for one place only one gets it.
func (m *Manager) admit(ctx context.Context, row store.Sandbox) error {
	m.admitting.Lock()
	defer m.admitting.Unlock()
	running, err := m.db.RunningSandboxes(ctx)
	if err != nil {
		return err
	}
	for _, r := range running {
		if r.ID == row.ID {
			return nil // found again after a restart of the gateway
		}
	}
	if err := m.Refused(ctx, row.UserID, QuotaRunning, QuotaHours); err != nil {
		return err
	}
	m.begun(ctx, ID(row.ID))
	return nil
}

// enforce stops the sandboxes of those who have no hours left.
func (m *Manager) enforce(ctx context.Context) error {
	running, err := m.db.RunningSandboxes(ctx)
	if err != nil {
		return err
	}
	now, known := m.now(), make(map[int64]store.Tally)
	verdicts := make(map[int64]error)
	for _, row := range running {
		why, judged := verdicts[row.UserID]
		if !judged {
			standings, err := m.standings(ctx, row.UserID, now, known)
			if err != nil {
				return err
			}
			if q := Refused(standings, QuotaHours); q != nil {
				why = q
			}
			verdicts[row.UserID] = why
		}
		if why == nil {
			continue
		}
		m.log.Info("sandbox stopped for its owner's quota", keySandbox, row.ID, keyErr, why)
		if err := m.stop(ctx, row, why); err != nil {
			return err
		}
	}
	return nil
}
