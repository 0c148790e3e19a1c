package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"sandgate/agent"
	"sandgate/sandbox"
	"sandgate/sandbox/guest"
	"sandgate/store"
)

// What rows of the audit are about.
const (
	auditConnection = "connection" // came, or ended
	auditLogin      = "login"      // a key that was offered in vain, or signed
	auditChannel    = "channel"    // was opened
	auditExec       = "exec"       // a command
	auditShell      = "shell"
	auditFile       = "file"    // an operation over SFTP
	auditForward    = "forward" // to a port or socket in a sandbox, or from one
	auditVerb       = "verb"
	auditTool       = "tool"     // a call of a tool, over MCP or by the agent, whose connection is the run
	auditApproval   = "approval" // or refusal of a call, by somebody who was asked; or an answer
	auditSecret     = "secret"   // was given to a command, to a service, or to the model of a run
	auditLost       = "lost"     // rows that could not be written
)

// How what a row is about went.
const (
	auditOK     = "ok"
	auditDenied = "denied" // for want of a right or a quota
	auditFailed = "failed"
)

// maxAuditDetail bounds the text of a row.
const maxAuditDetail = 1 << 10

// An auditor writes what happens to the audit, apart from those who do it: they
// never wait. What comes faster than it can be written, or while it cannot be, is
// counted and lost, and a row says how many.
type auditor struct {
	db   *store.DB
	log  *slog.Logger
	quit chan struct{}
	done chan struct{}

	queue chan store.AuditRow
	flush chan chan error
	lost  atomic.Int64 // since a row was written that says so

	turned turnedAway
}

const (
	auditQueue    = 8192
	auditBatch    = 512
	auditInterval = 200 * time.Millisecond
	auditTimeout  = 30 * time.Second
)

func newAuditor(db *store.DB, log *slog.Logger) *auditor {
	a := &auditor{
		db: db, log: log,
		quit: make(chan struct{}), done: make(chan struct{}),
		queue: make(chan store.AuditRow, auditQueue),
		flush: make(chan chan error),
	}
	go a.run()
	return a
}

// add takes a row to be written.
func (a *auditor) add(r store.AuditRow) {
	r.Time = time.Now()
	select {
	case a.queue <- r:
	default:
		a.lost.Add(1)
	}
}

// turnAway takes a connection that was turned away at the door.
func (a *auditor) turnAway(from net.Addr, why error) {
	if row, due := a.turned.add(from, why, time.Now()); due {
		a.add(row)
	}
}

// sum takes the sums of those who were turned away: the ones that are due, or all.
func (a *auditor) sum(all bool) {
	for _, row := range a.turned.due(time.Now(), all) {
		a.add(row)
	}
}

func (a *auditor) run() {
	defer close(a.done)
	tick := time.NewTicker(auditInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			a.sum(false)
			a.write()
		case reply := <-a.flush:
			reply <- a.write()
		case <-a.quit:
			a.sum(true)
			a.write()
			return
		}
	}
}

// write writes what is in the queue. A batch that cannot be written is lost: the
// next ones need the room.
func (a *auditor) write() error {
	for {
		batch := make([]store.AuditRow, 0, auditBatch+1)
		for len(batch) < auditBatch && len(a.queue) > 0 {
			batch = append(batch, <-a.queue)
		}
		lost := a.lost.Swap(0)
		if len(batch) == 0 && lost == 0 {
			return nil
		}
		rows := len(batch)
		if lost > 0 {
			batch = append(batch, store.AuditRow{Time: time.Now(), Kind: auditLost, Outcome: auditFailed, Detail: plural(int(lost), "row")})
		}
		ctx, cancel := context.WithTimeout(context.Background(), auditTimeout)
		err := a.db.AddAudit(ctx, batch)
		cancel()
		if err != nil {
			a.lost.Add(lost + int64(rows))
			a.log.Error("audit not written", "rows", rows, keyErr, err)
			return err
		}
		if lost > 0 {
			a.log.Error("audit rows were lost", "rows", lost)
		}
	}
}

// written waits until all that came before has been written.
func (a *auditor) written(ctx context.Context) error {
	reply := make(chan error, 1)
	select {
	case a.flush <- reply:
		return <-reply
	case <-a.done:
		return errLeaving
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// stop writes what there is and ends.
func (a *auditor) stop() {
	close(a.quit)
	<-a.done
}

// audit records something that the login did or tried: in a sandbox, if row is not
// nil, and with err if it came to nothing. The values of the user's secrets, and of
// others' that have passed through the login, are taken out of detail.
func (l *Login) audit(kind string, row *store.Sandbox, detail string, err error) {
	if err != nil {
		detail = strings.TrimSpace(detail) + ": " + oneLine(err.Error())
	}
	l.auditAs(kind, row, detail, auditOutcome(err))
}

// auditAs is audit for those who know the outcome.
func (l *Login) auditAs(kind string, row *store.Sandbox, detail, outcome string) {
	if kind != auditLogin { // which waits for nothing
		l.learnOwn()
	}
	r := store.AuditRow{
		Conn: l.id, Remote: l.remote.String(), UserID: l.user.ID, User: l.user.Name,
		Kind: kind, Outcome: outcome, Detail: auditDetail(l.known.current.Load().String(detail)),
	}
	if row != nil {
		r.OwnerID, r.Sandbox = row.UserID, row.Name+"."+row.Owner
	}
	l.gate.auditor.add(r)
}

// auditCommand records a command that is about to run.
func (l *Login) auditCommand(row store.Sandbox, cmd *guest.Command, err error) {
	if len(cmd.Text) == 0 {
		l.audit(auditShell, &row, cmd.Name, err)
		return
	}
	l.audit(auditExec, &row, string(cmd.Text), err)
}

// auditVerb records a verb. Of those about secrets only the names: who takes the
// value for an argument has not told it to anybody but us.
func (l *Login) auditVerb(words []string, err error) {
	if words[0] == "secret" {
		words = words[:min(3, len(words))]
		if p, ok := errors.AsType[*problem](err); ok && p.kind == usage {
			err = &problem{kind: usage, sentence: "not understood"}
		}
	}
	if _, ok := errors.AsType[exitCode](err); ok {
		err = nil // of what it carried out, and not of the verb
	}
	l.audit(auditVerb, nil, strings.Join(words, " "), err)
}

// auditAnswer records an answer to a question of a run.
func (l *Login) auditAnswer(ctx context.Context, run store.Run, question string, a agent.Answer, err error) {
	detail := "refused"
	switch {
	case len(a.Values) > 0 || a.Text != "":
		detail = "answered"
	case a.Allow && a.Rule != "":
		detail = "allowed for the rest of the run"
	case a.Allow:
		detail = "allowed"
	}
	var row *store.Sandbox
	if found, rowErr := l.gate.db.Sandbox(context.WithoutCancel(ctx), run.SandboxID); rowErr == nil {
		row = &found
	}
	l.audit(auditApproval, row, strings.TrimSpace(run.ID+" "+question)+" "+detail, err)
}

// auditOf is what a row about a door is about.
func auditOf(d deed) string {
	switch d {
	case doorShell:
		return auditShell
	case doorForward, doorAgent:
		return auditForward
	case doorFiles, doorWrite:
		return auditFile
	case doorTools:
		return auditTool
	}
	return auditExec
}

// audit records what happened on a connection before its login; user is what the
// client claims.
func (g *Gateway) audit(kind, conn string, remote net.Addr, user, detail string, err error) {
	if err != nil {
		detail = strings.TrimSpace(detail + " " + oneLine(err.Error()))
	}
	outcome := auditOutcome(err)
	if kind == auditLogin {
		outcome = auditDenied
	}
	g.auditor.add(store.AuditRow{
		Conn: conn, Remote: remote.String(), User: auditDetail(user), Kind: kind, Outcome: outcome, Detail: auditDetail(detail),
	})
}

// auditEnd records that a connection has ended: after how long, how much went over it,
// and why.
func (g *Gateway) auditEnd(f *frontConn) {
	r := store.AuditRow{Conn: f.id, Remote: f.RemoteAddr().String(), Kind: auditConnection}
	if l := f.login.Load(); l != nil && f.passed.Load() {
		r.UserID, r.User = l.user.ID, l.user.Name
	}
	why, outcome := g.endOf(f)
	r.Outcome = outcome
	r.Detail = auditDetail(fmt.Sprintf("ended after %v, %d bytes in, %d bytes out: %s",
		time.Since(f.began).Round(time.Millisecond), f.received.Load(), f.written.Load(), why))
	g.auditor.add(r)
}

// endOf says why a connection has ended.
func (g *Gateway) endOf(f *frontConn) (why, outcome string) {
	if !f.passed.Load() {
		return f.failure().Error(), auditDenied
	}
	if p := f.login.Load().expelled(); p != nil {
		return p.sentence, auditDenied
	}
	if f.silent.Load() {
		return "the client did not answer any more", auditFailed
	}
	select {
	case <-g.leaving:
		return "the gateway stopped", auditOK
	default:
	}
	if broke, ok := f.broke.Load().(string); ok {
		return broke, auditFailed
	}
	return "by the client", auditOK
}

func auditOutcome(err error) string {
	p, _ := errors.AsType[*problem](err)
	_, reached := errors.AsType[*sandbox.QuotaError](err)
	switch {
	case err == nil:
		return auditOK
	case reached, p != nil && (p.kind == denied || p.kind == quota || p.kind == notFound):
		return auditDenied
	}
	return auditFailed
}

// auditDetail makes text fit for a row: UTF-8, and no longer than that.
func auditDetail(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) > maxAuditDetail {
		s = s[:maxAuditDetail]
		for !utf8.ValidString(s) {
			s = s[:len(s)-1]
		}
		s += "…"
	}
	return s
}
