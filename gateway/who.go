package gateway

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"sandgate/sandbox"
	"sandgate/sandbox/guest"
	"sandgate/store"
)

// A doing is something that a login has open: a session, a forward or the lobby.
type doing struct {
	row   *store.Sandbox // nil: no sandbox
	what  string
	since time.Time
	ch    *meteredChannel // on which the client is heard; nil: none of its own
}

// does records something that the login has open, until ended is called.
func (l *Login) does(row *store.Sandbox, what string, ch *meteredChannel) (ended func()) {
	d := &doing{row: row, what: what, since: time.Now(), ch: ch}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.doings == nil {
		l.doings = make(map[*doing]bool)
	}
	l.doings[d] = true
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.doings, d)
	}
}

// whatOf is what a session that asks for r does.
func whatOf(r request, t target) string {
	switch {
	case r.deed == doorShell && t.session != "":
		return "session " + t.session
	case r.deed == doorShell:
		return "shell"
	case r.deed == doorFiles:
		return "sftp"
	case r.deed == doorTools:
		return "mcp"
	}
	return r.command
}

// Presence is one line about who is there, or about what keeps a sandbox busy.
type Presence struct {
	Kind    string // connection, session, job, service or run
	User    string
	From    string // the client's address; empty: it needs no client
	Conn    string // id of the connection
	Since   time.Time
	Heard   time.Time // when the client last sent something; zero: not known
	Sandbox string    // as the caller calls it
	What    string
}

// The kinds of a Presence.
const (
	presentConnection = "connection" // on which nothing is open
	presentSession    = "session"
	presentJob        = "job"
	presentRun        = "run"
)

// Who returns the connections of the caller and what they have open, what others have
// open in the caller's sandboxes, and what goes on in these without a connection. Admins
// are told of all, but not what commands run in the sandboxes of others.
func (l *Login) Who(ctx context.Context) ([]Presence, error) {
	if err := l.may(ctx, "who"); err != nil {
		return nil, err
	}
	w, err := l.who(ctx)
	if err != nil {
		return nil, err
	}
	all := w.admin && !w.scope.limited()
	var found []Presence
	for _, other := range l.gate.live.all() {
		found = append(found, l.connection(other, w, all)...)
	}
	rows, err := l.watched(ctx, all)
	if err != nil {
		return nil, err
	}
	jobs, err := l.unattended(ctx, rows)
	if err != nil {
		return nil, err
	}
	found = append(found, jobs...)
	runs, err := l.gate.db.RunsAtWork(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range runs {
		if i := slices.IndexFunc(rows, func(row store.Sandbox) bool { return row.ID == r.SandboxID }); i >= 0 {
			what := "agent " + r.ID
			if r.UserID == l.user.ID {
				what += ": " + printable(r.Title)
			}
			found = append(found, Presence{Kind: presentRun, User: r.User, Since: r.Created, Heard: r.Changed, Sandbox: l.nameOf(rows[i]), What: what})
		}
	}
	slices.SortStableFunc(found, func(a, b Presence) int {
		return cmp.Or(strings.Compare(a.User, b.User), a.Since.Compare(b.Since))
	})
	return found, nil
}

// all returns the logins whose connections are open.
func (v *live) all() []*Login {
	v.mu.Lock()
	defer v.mu.Unlock()
	var all []*Login
	for l := range v.logins {
		all = append(all, l)
	}
	return all
}

// connection returns what the caller may know of a login.
func (l *Login) connection(other *Login, w who, all bool) []Presence {
	own := other.user.ID == l.user.ID
	base := Presence{Kind: presentConnection, User: other.user.Name, From: other.remote.String(), Conn: other.id, Since: other.began}
	other.mu.Lock()
	defer other.mu.Unlock()
	var found []Presence
	for d := range other.doings {
		p := base
		p.Kind, p.Since, p.What = presentSession, d.since, oneLine(printable(other.known.current.Load().String(d.what)))
		p.Heard = d.since
		if d.ch != nil {
			p.Heard = d.ch.lastHeard(d.since)
		}
		visible := all || own && !w.scope.limited()
		if d.row != nil {
			p.Sandbox = l.nameOf(*d.row)
			visible = visible || (own || d.row.UserID == l.user.ID) && w.scope.covers(p.Sandbox)
		}
		if visible || other == l {
			found = append(found, p)
		}
	}
	if len(other.doings) == 0 && (all || own && !w.scope.limited()) {
		found = append(found, base)
	}
	return found
}

// watched returns the sandboxes that run and of which the caller is told.
func (l *Login) watched(ctx context.Context, all bool) ([]store.Sandbox, error) {
	var rows []store.Sandbox
	if all {
		var err error
		if rows, err = l.gate.db.Sandboxes(ctx); err != nil {
			return nil, err
		}
	} else {
		visible, err := l.visible(ctx)
		if err != nil {
			return nil, err
		}
		for _, v := range visible {
			rows = append(rows, v.Row)
		}
	}
	infos, err := l.gate.sandboxes.Infos(ctx, rows)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(rows, func(row store.Sandbox) bool {
		return infos[sandbox.ID(row.ID)].State != sandbox.Running
	}), nil
}

// guestsAtOnce bounds the guests that are asked at the same time.
const guestsAtOnce = 16

// unattended returns the jobs that run in sandboxes and need no client. A guest that
// does not answer in time is left out.
func (l *Login) unattended(ctx context.Context, rows []store.Sandbox) ([]Presence, error) {
	ctx, cancel := context.WithTimeout(ctx, jobsTimeout)
	defer cancel()
	var mu sync.Mutex
	var found []Presence
	var wg sync.WaitGroup
	slots := make(chan struct{}, guestsAtOnce)
	for _, row := range rows {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			jobs, err := l.jobsRunning(ctx, row)
			if err != nil {
				l.log.Debug("jobs not listed", keySandbox, row.ID, keyErr, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			found = append(found, jobs...)
		})
	}
	wg.Wait()
	return found, nil
}

func (l *Login) jobsRunning(ctx context.Context, row store.Sandbox) ([]Presence, error) {
	lease, err := l.gate.sandboxes.Look(ctx, row)
	if err != nil {
		return nil, err
	}
	defer lease.Release()
	jobs, err := lease.Jobs(ctx)
	if err != nil {
		return nil, err
	}
	var found []Presence
	for _, j := range jobs {
		if !j.Running() || j.Kind == guest.KindExec && j.Attached > 0 { // which is its session's
			continue
		}
		name := j.Name
		if name == "" {
			name = j.ID
		}
		words := map[guest.JobKind]string{guest.KindRun: "job", guest.KindSession: "session", guest.KindService: "service", guest.KindExec: "left running"}
		what := words[j.Kind] + " " + name
		if rel, err := l.relationTo(ctx, row); err == nil && rel != stranger && len(j.Text) > 0 {
			what += ": " + strings.ToValidUTF8(string(j.Text), "\uFFFD")
		}
		found = append(found, Presence{Kind: presentJob, User: row.Owner, Since: j.Started, Sandbox: l.nameOf(row), What: oneLine(printable(what))})
	}
	return found, nil
}
