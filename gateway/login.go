package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"sandgate/gateway/redact"
	"sandgate/sandbox"
	"sandgate/sandbox/guest"
	"sandgate/store"
)

// A Login is a user who is logged in on one connection, and the only door to
// doing anything on that user's behalf: SSH channels, verbs and whatever comes
// later call its methods, which say what the user may do and then do it.
type Login struct {
	gate  *Gateway
	user  store.User
	as    candidate // what it was made with
	id    string    // of the connection, in the log and in what users read
	asked string    // the user part of the SSH login, or the host of a jump
	bound string    // id of the sandbox that the address is bound to; empty: none
	front *frontConn
	outer *Login // whose connection it came through; nil: none
	log   *slog.Logger

	began time.Time

	known knownSecrets

	// ctx ends with the login; its cause is what sessions tell their users.
	ctx context.Context
	end context.CancelCauseFunc

	remote, local net.Addr

	begun    sync.Once
	channels chan struct{} // a slot for each open channel
	earlier  earlier

	renewing sync.Mutex

	mu       sync.Mutex
	forwards map[string]*guest.Listening // remote forwards, by what was asked for
	foreign  map[string]bool             // ids of other users' sandboxes that it has used
	expiry   *time.Timer                 // nil: the login lasts
	doings   map[*doing]bool
}

// maxChannels bounds the open channels of one connection: sessions and forwards.
const maxChannels = 512

// maxForwards bounds the remote forwards of one connection.
const maxForwards = 100

func newLogin(g *Gateway, c candidate, meta ssh.ConnMetadata, front *frontConn) *Login {
	l := &Login{
		gate:     g,
		user:     c.user,
		as:       c,
		id:       front.id,
		asked:    meta.User(),
		front:    front,
		began:    time.Now(),
		remote:   meta.RemoteAddr(),
		local:    meta.LocalAddr(),
		channels: make(chan struct{}, maxChannels),
		forwards: make(map[string]*guest.Listening),
		foreign:  make(map[string]bool),
	}
	if j, ok := front.Conn.(*jumpConn); ok {
		l.asked, l.outer = j.host, j.outer
	}
	l.ctx, l.end = context.WithCancelCause(context.Background())
	l.log = slog.New(redact.NewHandler(g.log.Handler(), l.known.current.Load)).With(keyConn, l.id, keyUser, l.user.Name, keyRemote, l.remote.String())
	return l
}

// who returns what the caller is at this moment: keys, certificates and roles may
// have changed since the login.
func (l *Login) who(ctx context.Context) (who, error) {
	c, err := l.gate.candidate(ctx, l.as.fingerprint, l.as.cert)
	_, refused := errors.AsType[*certError](err)
	switch {
	case refused || errors.Is(err, store.ErrNotFound):
		return who{}, &problem{kind: denied, sentence: "your login is not valid any more"}
	case err != nil:
		return who{}, err
	case c.user.ID != l.user.ID:
		return who{}, &problem{kind: denied, sentence: "your key belongs to somebody else now"}
	}
	w := whoIs(c)
	if w.invalid != "" {
		return who{}, &problem{kind: denied, sentence: w.invalid}
	}
	return w, nil
}

// may says whether the caller may do what is about no sandbox.
func (l *Login) may(ctx context.Context, d deed) error {
	w, err := l.who(ctx)
	if err != nil {
		return err
	}
	return permit(w, request{deed: d})
}

// enter takes a slot for a channel; leave gives it back.
func (l *Login) enter() bool {
	select {
	case l.channels <- struct{}{}:
		return true
	default:
		return false
	}
}

func (l *Login) leave() { <-l.channels }

// target returns what the connection asked for. *problem if that is no target.
func (l *Login) target() (target, error) {
	if _, ok := inviteCode(l.asked); ok {
		return target{}, &problem{kind: usage, sentence: fmt.Sprintf("an invite is no sandbox, and your key is registered, as %s's", l.user.Name), hint: "ssh gate@HOST help"}
	}
	if l.bound != "" && !strings.EqualFold(l.asked, lobbyName) {
		t, _ := parseTarget(l.asked) // any name will do
		return target{bound: l.bound, name: l.asked, session: t.session}, nil
	}
	if strings.EqualFold(l.asked, l.user.Name) {
		return target{name: l.user.Name}, nil // also where that name is reserved
	}
	return parseTarget(l.asked)
}

// reach returns the sandbox that t means, if the caller may do to it what r asks
// for. *problem if there is none that the caller may use, or not for that.
func (l *Login) reach(ctx context.Context, t target, r request) (store.Sandbox, error) {
	w, err := l.who(ctx)
	if err != nil {
		return store.Sandbox{}, err
	}
	row, rel, err := l.lookUp(ctx, t)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return store.Sandbox{}, err
	}
	r.sandbox, r.relation = l.nameOf(row), rel
	if err != nil { // whatever is not there is somebody else's
		r.sandbox, r.relation = t.String(), stranger
	}
	if err = permit(w, r); err == errHidden {
		names, err := l.names(ctx)
		if err != nil {
			return store.Sandbox{}, err
		}
		return store.Sandbox{}, noSandbox(t, names)
	}
	if err == nil && rel != owner {
		l.mu.Lock()
		l.foreign[row.ID] = true
		l.mu.Unlock()
		// Only now nobody who takes the leave away can miss this login.
		if now, err := l.relationTo(ctx, row); err != nil || now != rel {
			return store.Sandbox{}, noSandbox(t, nil)
		}
	}
	return row, err
}

// lookUp returns the sandbox that t means, whoever may use it, and what it is to
// the caller. store.ErrNotFound if there is none. Type target has the order.
func (l *Login) lookUp(ctx context.Context, t target) (store.Sandbox, relation, error) {
	row, err := l.resolve(ctx, t)
	if err != nil {
		return store.Sandbox{}, stranger, err
	}
	rel, err := l.relationTo(ctx, row)
	return row, rel, err
}

func (l *Login) resolve(ctx context.Context, t target) (store.Sandbox, error) {
	db := l.gate.db
	if t.bound != "" {
		return db.Sandbox(ctx, t.bound)
	}
	if t.owner != "" && t.owner != l.user.Name {
		user, err := db.UserByName(ctx, t.owner)
		if err != nil {
			return store.Sandbox{}, err
		}
		return db.SandboxByName(ctx, user.ID, t.name)
	}
	row, err := db.SandboxByName(ctx, l.user.ID, t.name)
	if t.owner != "" || !errors.Is(err, store.ErrNotFound) {
		return row, err
	}
	alias, err := db.Alias(ctx, l.user.ID, t.name)
	if !errors.Is(err, store.ErrNotFound) {
		return alias.Sandbox, err
	}
	shared, err := l.sharedAs(ctx, t.name)
	if !errors.Is(err, store.ErrNotFound) || t.name != l.user.Name {
		return shared, err
	}
	// The caller's own name stands for a default, so that a login without any name
	// works.
	return l.resolve(ctx, target{name: defaultName})
}

// sharedAs returns the one sandbox of that name that is shared with the caller.
func (l *Login) sharedAs(ctx context.Context, name string) (store.Sandbox, error) {
	all, err := l.gate.db.SharedWith(ctx, l.user.ID)
	if err != nil {
		return store.Sandbox{}, err
	}
	var found []string
	var row store.Sandbox
	for _, s := range all {
		if s.Name == name {
			row = s.Sandbox
			found = append(found, l.nameOf(row))
		}
	}
	switch len(found) {
	case 0:
		return store.Sandbox{}, store.ErrNotFound
	case 1:
		return row, nil
	}
	return store.Sandbox{}, &problem{kind: usage, sentence: fmt.Sprintf("several sandboxes named %q are shared with you", name),
		hint: "say whose: " + strings.Join(found, " ")}
}

// relationTo returns what a sandbox is to the caller at this moment.
func (l *Login) relationTo(ctx context.Context, row store.Sandbox) (relation, error) {
	if row.UserID == l.user.ID {
		return owner, nil
	}
	grant, err := l.gate.db.Grant(ctx, row.ID, l.user.ID)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return stranger, nil
	case err != nil:
		return stranger, err
	case grant.ReadOnly:
		return readOnly, nil
	}
	return granted, nil
}

// nameOf is what the caller calls a sandbox.
func (l *Login) nameOf(row store.Sandbox) string {
	if row.UserID == l.user.ID {
		return row.Name
	}
	return row.Name + "." + row.Owner
}

// names returns the names that the caller may use, with those of aliases last.
func (l *Login) names(ctx context.Context) ([]string, error) {
	all, err := l.visible(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	seen := make(map[string]bool)
	for _, r := range all {
		names = append(names, l.nameOf(r.Row))
		seen[r.Row.ID] = true
	}
	aliases, err := l.gate.db.Aliases(ctx, l.user.ID)
	if err != nil {
		return nil, err
	}
	for _, a := range aliases {
		if seen[a.Sandbox.ID] && ValidName(a.Name) { // which no address is
			names = append(names, a.Name)
		}
	}
	return names, nil
}

// visible returns the sandboxes that the caller may see, their own first.
func (l *Login) visible(ctx context.Context) ([]Listed, error) {
	w, err := l.who(ctx)
	if err != nil {
		return nil, err
	}
	own, err := l.gate.db.SandboxesOf(ctx, l.user.ID)
	if err != nil {
		return nil, err
	}
	shared, err := l.gate.db.SharedWith(ctx, l.user.ID)
	if err != nil {
		return nil, err
	}
	var all []Listed
	add := func(row store.Sandbox, rel relation) {
		if w.scope.covers(l.nameOf(row)) {
			all = append(all, Listed{Row: row, relation: rel})
		}
	}
	for _, row := range own {
		add(row, owner)
	}
	for _, s := range shared {
		rel := granted
		if s.ReadOnly {
			rel = readOnly
		}
		add(s.Sandbox, rel)
	}
	return all, nil
}

// reachOrCreate is as reach, and makes the sandbox when it is the caller's own and
// used for the first time.
func (l *Login) reachOrCreate(ctx context.Context, t target, r request) (store.Sandbox, error) {
	row, err := l.reach(ctx, t, r)
	if p, ok := errors.AsType[*problem](err); !ok || p.kind != notFound {
		return row, err
	}
	if t.owner != "" && t.owner != l.user.Name || t.bound != "" {
		return row, err
	}
	if t.name == l.user.Name && t.owner == "" {
		t.name = defaultName
	}
	if l.gate.terms.Load().NoCreate {
		return row, err
	}
	w, whoErr := l.who(ctx)
	if whoErr != nil {
		return row, whoErr
	}
	r.sandbox, r.relation = t.name, owner
	if refused := permit(w, r); refused == errHidden {
		return row, err
	} else if refused != nil {
		return row, refused
	}
	row, err = l.create(ctx, t.name, sandbox.Options{})
	if p, ok := errors.AsType[*problem](err); ok && p.kind == conflict {
		return l.reach(ctx, t, r) // somebody else was first
	}
	return row, err
}

// Create makes a sandbox for the caller.
func (l *Login) Create(ctx context.Context, name string, o sandbox.Options) (store.Sandbox, error) {
	name, err := l.newName(ctx, name)
	if err != nil {
		return store.Sandbox{}, err
	}
	return l.create(ctx, name, o)
}

// create makes a sandbox that the caller may make.
func (l *Login) create(ctx context.Context, name string, o sandbox.Options) (store.Sandbox, error) {
	row, err := l.gate.sandboxes.Create(ctx, l.user, name, o)
	if err != nil {
		return store.Sandbox{}, exists(err, name)
	}
	l.log.Info("sandbox created", keySandbox, row.ID, "name", row.Name)
	return row, nil
}

// Open returns the use of a sandbox for what r asks for, made and started if need
// be.
func (l *Login) Open(ctx context.Context, t target, r request) (*sandbox.Lease, store.Sandbox, error) {
	return l.OpenShowing(ctx, t, r, sandbox.Show{})
}

// OpenShowing is Open for a caller who wants to see what takes long.
func (l *Login) OpenShowing(ctx context.Context, t target, r request, show sandbox.Show) (*sandbox.Lease, store.Sandbox, error) {
	row, err := l.reachOrCreate(ctx, t, r)
	if err != nil {
		l.audit(auditOf(r.deed), nil, t.String()+" "+r.command, err)
		return nil, store.Sandbox{}, err
	}
	lease, err := l.gate.sandboxes.WakeShowing(ctx, row, show)
	if err != nil {
		l.audit(auditOf(r.deed), &row, r.command, err)
		return nil, store.Sandbox{}, err
	}
	l.gate.touches.touch(use{sandbox: row.ID})
	return lease, row, nil
}

// A Listed is a sandbox as the caller sees it.
type Listed struct {
	Row     store.Sandbox
	Options sandbox.Options
	Info    sandbox.Info
	Setup   sandbox.Setup // the zero value if there is no setup command
	Name    string        // as the caller calls it
	Grants  []store.Grant // with whom it is shared; only for the owner, by Info

	Services []Service // only by Info
	Unserved string    // why it has no services just now, if that is not as it should be

	relation relation
}

// List returns the sandboxes that the caller may see, their own first.
func (l *Login) List(ctx context.Context) ([]Listed, error) {
	if err := l.may(ctx, "ls"); err != nil {
		return nil, err
	}
	all, err := l.visible(ctx)
	if err != nil {
		return nil, err
	}
	return all, l.describe(ctx, all)
}

// Info returns one sandbox.
func (l *Login) Info(ctx context.Context, name string) (Listed, error) {
	row, err := l.named(ctx, "info", name)
	if err != nil {
		return Listed{}, err
	}
	one := []Listed{{Row: row}}
	if one[0].relation, err = l.relationTo(ctx, row); err != nil {
		return Listed{}, err
	}
	if one[0].relation == owner {
		if one[0].Grants, err = l.gate.db.GrantsOf(ctx, row.ID); err != nil {
			return Listed{}, err
		}
	}
	if err := l.describe(ctx, one); err != nil {
		return Listed{}, err
	}
	asking, cancel := context.WithTimeout(ctx, jobsTimeout)
	defer cancel()
	if one[0].Services, err = l.servicesOf(asking, row); err != nil {
		l.log.Warn("services not listed", keySandbox, row.ID, keyErr, err)
	}
	return one[0], nil
}

// describe fills in what the rows of all do not have.
func (l *Login) describe(ctx context.Context, all []Listed) error {
	rows := make([]store.Sandbox, len(all))
	for i := range all {
		rows[i] = all[i].Row
	}
	infos, err := l.gate.sandboxes.Infos(ctx, rows)
	if err != nil {
		return err
	}
	for i, row := range rows {
		o, err := sandbox.OptionsOf(row)
		if err != nil {
			return err
		}
		all[i].Name, all[i].Options, all[i].Info = l.nameOf(row), o, infos[sandbox.ID(row.ID)]
		all[i].Unserved = l.gate.reviver.why(row.ID)
		if o.Setup != "" {
			if all[i].Setup, err = l.gate.sandboxes.Setup(ctx, row); err != nil {
				return err
			}
		}
	}
	return nil
}

// named returns the sandbox that a verb's argument names, if the caller may use
// the verb on it.
func (l *Login) named(ctx context.Context, verb deed, name string) (store.Sandbox, error) {
	t, err := parseTarget(name)
	if err != nil {
		return store.Sandbox{}, err
	}
	if t.lobby || t.session != "" {
		return store.Sandbox{}, &problem{kind: usage, sentence: fmt.Sprintf("%.80q is not a sandbox name", name)}
	}
	return l.reach(ctx, t, request{deed: verb})
}

// Set changes what a sandbox is, and returns the names of what changes with its
// next start only.
func (l *Login) Set(ctx context.Context, name string, change sandbox.Change) (restart []string, err error) {
	row, err := l.named(ctx, "set", name)
	if err != nil {
		return nil, err
	}
	l.log.Info("sandbox changed", keySandbox, row.ID)
	return l.gate.sandboxes.Set(ctx, row, change)
}

// Start starts a sandbox, and shows what takes long.
func (l *Login) Start(ctx context.Context, name string, show sandbox.Show) error {
	row, err := l.named(ctx, "start", name)
	if err != nil {
		return err
	}
	lease, err := l.gate.sandboxes.WakeShowing(ctx, row, show)
	if err != nil {
		return err
	}
	lease.Release()
	return nil
}

// Setup returns what is known of a sandbox's setup.
func (l *Login) Setup(ctx context.Context, name string) (sandbox.Setup, error) {
	row, err := l.named(ctx, "setup-log", name)
	if err != nil {
		return sandbox.Setup{}, err
	}
	setup, err := l.gate.sandboxes.Setup(ctx, row)
	if errors.Is(err, sandbox.ErrNotFound) {
		return setup, &problem{kind: notFound, sentence: fmt.Sprintf("sandbox %q has no setup command", row.Name)}
	}
	return setup, err
}

// Stop ends all processes of a sandbox and keeps its disk.
func (l *Login) Stop(ctx context.Context, name string) error {
	row, err := l.named(ctx, "stop", name)
	if err != nil {
		return err
	}
	l.log.Info("sandbox stopped", keySandbox, row.ID)
	return l.gate.sandboxes.Stop(ctx, row)
}

// Remove deletes a sandbox with its disk. One that is in use is only removed with
// force.
func (l *Login) Remove(ctx context.Context, name string, force bool) error {
	row, err := l.named(ctx, "rm", name)
	if err != nil {
		return err
	}
	if !force {
		infos, err := l.gate.sandboxes.Infos(ctx, []store.Sandbox{row})
		if err != nil {
			return err
		}
		if n := infos[sandbox.ID(row.ID)].Users; n > 0 {
			return &problem{
				kind:     conflict,
				sentence: fmt.Sprintf("sandbox %q is in use by %s", row.Name, plural(n, "session")),
				hint:     "remove it all the same: ssh gate@HOST rm --force " + row.Name,
			}
		}
	}
	l.log.Info("sandbox removed", keySandbox, row.ID, "name", row.Name)
	l.gate.runs.cancel(ctx, func(r store.Run) bool { return r.SandboxID == row.ID })
	return l.gate.sandboxes.Remove(ctx, row)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}
