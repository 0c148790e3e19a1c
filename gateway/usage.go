package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"sandgate/sandbox"
	"sandgate/store"
)

// mustBeAdmin is asked by verbs that anyone may use, and admins for all users.
func (l *Login) mustBeAdmin(ctx context.Context, what string) error {
	w, err := l.who(ctx)
	if err != nil {
		return err
	}
	if !w.admin || w.scope.limited() {
		return &problem{kind: denied, sentence: "only an admin can " + what}
	}
	return nil
}

// Usage returns what was used in a month, summed by store.ByUser, BySandbox or
// ByDay: by the caller or, for admins, by another or with everybody by all.
func (l *Login) Usage(ctx context.Context, user string, everybody bool, month time.Time, by string) ([]store.UsageRow, error) {
	whose := l.user.ID
	if user != "" && user != l.user.Name || everybody {
		if err := l.mustBeAdmin(ctx, "see what others use"); err != nil {
			return nil, err
		}
		whose = 0
		if !everybody {
			u, err := l.someone(ctx, user)
			if err != nil {
				return nil, err
			}
			whose = u.ID
		}
	}
	return l.gate.db.UsageBy(ctx, whose, month, by)
}

// Standings returns how the caller's quotas stand.
func (l *Login) Standings(ctx context.Context) ([]sandbox.Standing, error) {
	return l.gate.sandboxes.Standings(ctx, l.user.ID)
}

// warn says on a terminal which quotas of a user are nearly used up.
func (l *Login) warn(ctx context.Context, userID int64, w io.Writer) {
	standings, err := l.gate.sandboxes.Standings(ctx, userID)
	if err != nil {
		l.log.Warn("quotas not read", keyErr, err)
	}
	for _, s := range standings {
		if s.Near() {
			fmt.Fprintf(w, "sandgate: quota %s: %s (%d %%)\n", s.Measure, s, s.Share())
		}
	}
}

// A quotaSubject says whom a quota is for: one user, all together, or else each.
type quotaSubject struct {
	user     string
	together bool
}

func (l *Login) quotaSubject(ctx context.Context, s quotaSubject) (int64, error) {
	switch {
	case s.together && s.user != "":
		return 0, &problem{kind: usage, sentence: "a quota is for one user or for all together, not both"}
	case s.together:
		return store.AllUsers, nil
	case s.user != "":
		u, err := l.someone(ctx, s.user)
		return u.ID, err
	}
	return store.EachUser, nil
}

// SetQuota bounds a measure; amount is as people write it.
func (l *Login) SetQuota(ctx context.Context, of quotaSubject, measure, amount string) error {
	if err := l.may(ctx, "quota set"); err != nil {
		return err
	}
	subject, err := l.quotaSubject(ctx, of)
	if err != nil {
		return err
	}
	value, err := sandbox.Measure(measure).Parse(amount)
	if err != nil {
		return &problem{kind: usage, sentence: err.Error(), hint: fmt.Sprintf("there are: %v", sandbox.Measures)}
	}
	l.log.Info("quota set", "measure", measure, "value", value, "subject", subject)
	return l.gate.db.SetQuota(ctx, store.Quota{Subject: subject, Measure: measure, Value: value})
}

// RemoveQuota undoes SetQuota.
func (l *Login) RemoveQuota(ctx context.Context, of quotaSubject, measure string) error {
	if err := l.may(ctx, "quota rm"); err != nil {
		return err
	}
	subject, err := l.quotaSubject(ctx, of)
	if err != nil {
		return err
	}
	err = l.gate.db.DeleteQuota(ctx, subject, measure)
	if errors.Is(err, store.ErrNotFound) {
		return &problem{kind: notFound, sentence: fmt.Sprintf("there is no such quota of %.40q", measure), hint: "ssh gate@HOST quota ls"}
	}
	if err == nil {
		l.log.Info("quota removed", "measure", measure, "subject", subject)
	}
	return err
}

// Quotas returns the quotas that the caller falls under and, for admins, all.
func (l *Login) Quotas(ctx context.Context) ([]store.Quota, error) {
	if err := l.mustBeAdmin(ctx, "see all quotas"); err == nil {
		return l.gate.db.Quotas(ctx)
	}
	return l.gate.db.QuotasFor(ctx, l.user.ID)
}
