package gateway

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"sandgate/sandbox"
	"sandgate/store"
)

type auditVerbs struct {
	Show   auditShowVerb   `cmd:"" default:"withargs" help:"Tell what you did, and others in your sandboxes; for admins, what anybody did. Example: audit --sandbox web --since 2h"`
	Verify auditVerifyVerb `cmd:"" help:"Check that nothing in the audit was changed; for admins. Example: audit verify"`
}

type auditShowVerb struct {
	JSON
	User    string `help:"Only what this user did." placeholder:"NAME"`
	Sandbox string `help:"Only in this sandbox: NAME or NAME.OWNER." placeholder:"NAME"`
	Since   string `help:"Only from then on: 2h, 7d, 2026-11-30 or 2026-11-30T15:04:05Z." placeholder:"WHEN"`
	Follow  bool   `short:"f" help:"Go on with what comes."`
	Limit   int    `default:"100" help:"At most that many rows, the newest (${default})."`
}

// lasting: it may follow.
func (*auditShowVerb) lasting() {}

// An auditView is a row of the audit as JSON has it.
type auditView struct {
	ID      int64     `json:"id"`
	Time    time.Time `json:"time"`
	Conn    string    `json:"conn,omitempty"`
	Remote  string    `json:"remote,omitempty"`
	User    string    `json:"user,omitempty"`
	Sandbox string    `json:"sandbox,omitempty"` // NAME.OWNER
	Kind    string    `json:"kind"`
	Outcome string    `json:"outcome"`
	Detail  string    `json:"detail,omitempty"`
}

// followInterval is how often those who follow are told.
const followInterval = 500 * time.Millisecond

// maxAuditRows bounds what is read at a time.
const maxAuditRows = 10_000

func (v *auditShowVerb) Run(c *verbCall) error {
	since, err := parseSince(v.Since, time.Now())
	if err != nil {
		return err
	}
	if v.Limit < 0 || v.Limit > maxAuditRows {
		return &problem{kind: usage, sentence: fmt.Sprintf("a limit is between 0 and %d", maxAuditRows)}
	}
	f := store.AuditFilter{User: strings.ToLower(v.User), Sandbox: strings.ToLower(v.Sandbox), Since: since}
	if f.Sandbox != "" && !strings.Contains(f.Sandbox, ".") {
		f.Sandbox += "." + c.login.user.Name
	}
	limit := v.Limit
	for {
		rows, err := c.login.Audit(c.ctx, f, limit)
		if err != nil {
			return err
		}
		for _, r := range rows {
			if err := c.printAudit(v.JSON.JSON, r); err != nil {
				return err
			}
			f.After = r.ID
		}
		if !v.Follow {
			return nil
		}
		limit = maxAuditRows
		select {
		case <-c.ctx.Done():
			return nil
		case <-time.After(followInterval):
		}
	}
}

func (c *verbCall) printAudit(asJSON bool, r store.AuditRow) error {
	text := fmt.Sprintf("%s %-10s %-12s %-16s %-10s %-7s %s\n",
		r.Time.Format(time.RFC3339), r.Conn, orDash(printable(r.User)), orDash(r.Sandbox), r.Kind, r.Outcome, printable(r.Detail))
	if n := c.session.columns(); n > 0 {
		text = ansi.Truncate(strings.TrimSuffix(text, "\n"), n, "…") + "\n"
	}
	return c.print(asJSON, auditView{
		ID: r.ID, Time: r.Time, Conn: r.Conn, Remote: r.Remote, User: r.User, Sandbox: r.Sandbox,
		Kind: r.Kind, Outcome: r.Outcome, Detail: r.Detail,
	}, text)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// parseSince reads how far back somebody wants to look; empty is the beginning.
func parseSince(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	var d sandbox.Duration
	if d.UnmarshalText([]byte(s)) == nil && d > 0 {
		return now.Add(-time.Duration(d)), nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", time.DateOnly} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	return time.Time{}, &problem{kind: usage, sentence: fmt.Sprintf("%.40q is no time", s), hint: "such as 2h, 7d, 2026-11-30 or 2026-11-30T15:04:05Z"}
}

type auditVerifyVerb struct{ JSON }

func (v *auditVerifyVerb) Run(c *verbCall) error {
	n, head, err := c.login.VerifyAudit(c.ctx)
	if err != nil {
		return err
	}
	return c.print(v.JSON.JSON, map[string]any{"rows": n, "head": head},
		fmt.Sprintf("%d rows are as they were written; the last one's hash is %s\n", n, head))
}

// Audit returns rows of the audit: for admins any, for others those that they may
// see.
func (l *Login) Audit(ctx context.Context, f store.AuditFilter, limit int) ([]store.AuditRow, error) {
	if err := l.may(ctx, "audit show"); err != nil {
		return nil, err
	}
	if err := l.mustBeAdmin(ctx, "see what others did"); err != nil {
		f.Of = l.user.ID
	}
	if err := l.gate.auditor.written(ctx); err != nil {
		l.log.Warn("the newest rows of the audit are not written", keyErr, err)
	}
	return l.gate.db.Audit(ctx, f, limit)
}

// VerifyAudit checks the whole audit; see store.DB.VerifyAudit.
func (l *Login) VerifyAudit(ctx context.Context) (n int64, head string, err error) {
	if err := l.may(ctx, "audit verify"); err != nil {
		return 0, "", err
	}
	if err := l.gate.auditor.written(ctx); err != nil {
		return 0, "", err
	}
	n, head, err = l.gate.db.VerifyAudit(ctx)
	if tampered, ok := errors.AsType[*store.TamperedError](err); ok {
		return 0, "", &problem{kind: failed, sentence: tampered.Error(), hint: "compare it with a backup: who can do this has written to the gateway's database"}
	}
	return n, head, err
}
