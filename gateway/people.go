package gateway

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"sandgate/store"
)

// Users returns all users, with how much is theirs.
func (l *Login) Users(ctx context.Context) ([]store.UserCount, error) {
	if err := l.may(ctx, "user ls"); err != nil {
		return nil, err
	}
	return l.gate.db.UserCounts(ctx)
}

// AddUser makes a user who has no keys yet.
func (l *Login) AddUser(ctx context.Context, name, role string) (store.User, error) {
	if err := l.may(ctx, "user add"); err != nil {
		return store.User{}, err
	}
	return l.addUser(ctx, name, role)
}

func (l *Login) addUser(ctx context.Context, name, role string) (store.User, error) {
	name = strings.ToLower(name)
	if !ValidName(name) || reserved[name] {
		return store.User{}, &problem{kind: usage, sentence: fmt.Sprintf("%.80q cannot be a user's name", name),
			hint: "names are made of a-z, 0-9 and -; some are reserved"}
	}
	user, err := l.gate.db.CreateUser(ctx, name, role)
	if errors.Is(err, store.ErrExists) {
		return store.User{}, &problem{kind: conflict, sentence: fmt.Sprintf("there is a user named %q already", name)}
	}
	if err == nil {
		l.log.Info("user added", "name", name, "role", role)
	}
	return user, err
}

// SetRole changes what a user is, and ends their connections: what runs on them
// was begun in the old role.
func (l *Login) SetRole(ctx context.Context, name, role string) error {
	if err := l.may(ctx, "user set-role"); err != nil {
		return err
	}
	user, err := l.someone(ctx, name)
	if err != nil || user.Role == role {
		return err
	}
	if err := l.gate.db.SetRole(ctx, user.ID, role); err != nil {
		return lastAdmin(err)
	}
	l.log.Info("role set", "name", user.Name, "role", role)
	l.gate.live.expel("your role was changed; log in again", func(other *Login) bool { return other.user.ID == user.ID && other != l })
	return nil
}

// RemoveUser deletes a user with their keys and ends their connections. Only with
// force are their sandboxes deleted too.
func (l *Login) RemoveUser(ctx context.Context, name string, force bool) error {
	if err := l.may(ctx, "user rm"); err != nil {
		return err
	}
	user, err := l.someone(ctx, name)
	if err != nil {
		return err
	}
	expel := func() {
		l.gate.live.expel("you are not a user here any more", func(other *Login) bool { return other.user.ID == user.ID })
		l.gate.runs.cancel(ctx, func(r store.Run) bool { return r.UserID == user.ID })
	}
	if force {
		// First nobody can come back to what is being deleted.
		if err := l.gate.db.DeleteKeys(ctx, user.ID); err != nil {
			return lastAdmin(err)
		}
		expel()
		rows, err := l.gate.db.SandboxesOf(ctx, user.ID)
		if err != nil {
			return err
		}
		for _, r := range rows {
			if err := l.gate.sandboxes.Remove(ctx, r); err != nil {
				return err
			}
		}
	}
	err = l.gate.db.DeleteUser(ctx, user.ID)
	if errors.Is(err, store.ErrHasSandboxes) {
		return &problem{kind: conflict, sentence: fmt.Sprintf("%s still has sandboxes", user.Name),
			hint: "delete them with all that is in them: ssh gate@HOST user rm --force " + user.Name}
	}
	if err != nil {
		return lastAdmin(err)
	}
	l.log.Info("user removed", "name", user.Name)
	expel()
	return nil
}

// someone returns the user of that name, and the caller for no name.
func (l *Login) someone(ctx context.Context, name string) (store.User, error) {
	if name == "" || strings.EqualFold(name, l.user.Name) {
		return l.gate.db.UserByID(ctx, l.user.ID)
	}
	user, err := l.gate.db.UserByName(ctx, strings.ToLower(name))
	if errors.Is(err, store.ErrNotFound) {
		return store.User{}, &problem{kind: notFound, sentence: fmt.Sprintf("no user named %.80q", name)}
	}
	return user, err
}

// keeper returns the user whose keys the caller may deal with: themselves, or for
// admins anybody.
func (l *Login) keeper(ctx context.Context, verb deed, name string) (store.User, error) {
	err := l.may(ctx, verb)
	if err == nil && name != "" && !strings.EqualFold(name, l.user.Name) {
		err = l.may(ctx, "user add")
	}
	if err != nil {
		return store.User{}, err
	}
	return l.someone(ctx, name)
}

// lastAdmin is the answer to a change that would leave nobody in charge.
func lastAdmin(err error) error {
	if errors.Is(err, store.ErrLastAdmin) {
		return &problem{kind: conflict, sentence: "no admin would be left who can log in for good",
			hint: "make another one first: ssh gate@HOST user set-role NAME admin"}
	}
	return err
}

// Keys returns the keys of a user; no name is the caller.
func (l *Login) Keys(ctx context.Context, name string) ([]store.Key, error) {
	user, err := l.keeper(ctx, "key ls", name)
	if err != nil {
		return nil, err
	}
	return l.gate.db.Keys(ctx, user.ID)
}

// setScope limits a key.
func setScope(k *store.Key, s Scope) error {
	k.Scope = ""
	if !s.limited() {
		return nil
	}
	scope, err := json.Marshal(s)
	k.Scope = string(scope)
	return err
}

// scopeOf returns what a key is limited to.
func scopeOf(k store.Key) (s Scope, err error) {
	if k.Scope == "" {
		return s, nil
	}
	if err := json.Unmarshal([]byte(k.Scope), &s); err != nil {
		return s, fmt.Errorf("scope of key %s: %w", k.Fingerprint, err)
	}
	return s, nil
}

// AddKey adds a key, given as in authorized_keys, to a user; no name is the caller.
// Of k, Name, NoTouch and Expires count.
func (l *Login) AddKey(ctx context.Context, user string, line []byte, k store.Key, s Scope) (store.Key, error) {
	whose, err := l.keeper(ctx, "key add", user)
	if err != nil {
		return store.Key{}, err
	}
	parsed, err := parseKey(line)
	if err != nil {
		return store.Key{}, &problem{kind: usage, sentence: fmt.Sprintf("what came on the standard input is %v", err),
			hint: "such as: ssh gate@HOST key add < ~/.ssh/id_ed25519.pub"}
	}
	parsed.UserID, parsed.NoTouch, parsed.Expires = whose.ID, k.NoTouch, k.Expires
	if k.Name != "" {
		parsed.Name = k.Name
	}
	parsed.Name = oneLine(printable(parsed.Name))
	if err := setScope(&parsed, s); err != nil {
		return store.Key{}, err
	}
	if gone, err := l.gate.db.Revoked(ctx, parsed.Fingerprint); err != nil {
		return store.Key{}, err
	} else if gone {
		return store.Key{}, &problem{kind: conflict, sentence: "this key is revoked"}
	}
	added, err := l.gate.db.AddKey(ctx, parsed)
	if errors.Is(err, store.ErrExists) {
		return store.Key{}, &problem{kind: conflict, sentence: "this key is registered already; it can belong to one user only"}
	}
	if err != nil {
		return store.Key{}, err
	}
	l.log.Info("key added", "name", whose.Name, "key", added.Fingerprint)
	return added, nil
}

// RemoveKey removes a user's key, named by its fingerprint or its name, and ends
// the connections that were made with it.
func (l *Login) RemoveKey(ctx context.Context, user, name string) error {
	whose, err := l.keeper(ctx, "key rm", user)
	if err != nil {
		return err
	}
	k, err := l.keyOf(ctx, whose, name)
	if err != nil {
		return err
	}
	if err := l.gate.db.DeleteKey(ctx, whose.ID, k.Fingerprint); err != nil {
		return lastAdmin(err)
	}
	l.log.Info("key removed", "name", whose.Name, "key", k.Fingerprint)
	l.gate.live.expel("your key was removed", madeWith(k))
	return nil
}

// keyOf returns a user's key, named by its fingerprint or its name.
func (l *Login) keyOf(ctx context.Context, whose store.User, name string) (store.Key, error) {
	keys, err := l.gate.db.Keys(ctx, whose.ID)
	if err != nil {
		return store.Key{}, err
	}
	var found []store.Key
	for _, k := range keys {
		if k.Fingerprint == name || k.Name == name {
			found = append(found, k)
		}
	}
	switch len(found) {
	case 0:
		return store.Key{}, &problem{kind: notFound, sentence: fmt.Sprintf("%s has no key %.80q", whose.Name, name), hint: "ssh gate@HOST key ls"}
	case 1:
		return found[0], nil
	}
	return store.Key{}, &problem{kind: usage, sentence: fmt.Sprintf("%s has %d keys named %.80q", whose.Name, len(found), name),
		hint: "name it by its fingerprint, which key ls shows"}
}

// madeWith matches the logins that were made with a key.
func madeWith(k store.Key) func(*Login) bool {
	return func(l *Login) bool { return l.as.cert == nil && l.as.fingerprint == k.Fingerprint }
}

// A KeyChange is what is to be different about a key.
type KeyChange struct {
	Name    string                     // empty: nothing
	Scope   func(Scope) (Scope, error) // makes the new one of the old one
	Expires *time.Time                 // nil: nothing; zero: it ends no more
}

// SetKey changes a user's key, named by its fingerprint or its name; no user is the
// caller. It ends the connections that were made with it if it allows less than before,
// and others when it now expires.
func (l *Login) SetKey(ctx context.Context, user, name string, change KeyChange) (store.Key, error) {
	whose, err := l.keeper(ctx, "key set", user)
	if err != nil {
		return store.Key{}, err
	}
	k, err := l.keyOf(ctx, whose, name)
	if err != nil {
		return store.Key{}, err
	}
	before, err := scopeOf(k)
	if err != nil {
		return store.Key{}, err
	}
	after, err := change.Scope(before)
	if err != nil {
		return store.Key{}, err
	}
	if err := setScope(&k, after); err != nil {
		return store.Key{}, err
	}
	if change.Name != "" {
		k.Name = oneLine(printable(change.Name))
	}
	if change.Expires != nil {
		k.Expires = change.Expires.UTC().Truncate(time.Millisecond)
	}
	if err := l.gate.db.SetKey(ctx, k); err != nil {
		return store.Key{}, lastAdmin(err)
	}
	l.log.Info("key changed", "name", whose.Name, "key", k.Fingerprint)
	if after.narrows(before) {
		l.gate.live.expel("your key allows less now; log in again", madeWith(k))
		return k, nil
	}
	return k, l.gate.live.renew(context.WithoutCancel(ctx), madeWith(k))
}

var revocableForm = regexp.MustCompile(`^(SHA256:[A-Za-z0-9+/]{43}|serial=[0-9]{1,20}|id=.{1,200})$`)

// Revoke makes something never to be accepted again, and ends the connections that
// were made with it: a key or an authority by its fingerprint, certificates by
// serial=N or id=NAME.
func (l *Login) Revoke(ctx context.Context, what string) error {
	if err := l.may(ctx, "key revoke"); err != nil {
		return err
	}
	if !revocableForm.MatchString(what) {
		return &problem{kind: usage, sentence: fmt.Sprintf("%.80q is nothing that can be revoked", what),
			hint: "a fingerprint such as SHA256:…, or serial=7 or id=NAME of certificates"}
	}
	if err := l.gate.db.Revoke(ctx, what); err != nil {
		return lastAdmin(err)
	}
	l.log.Info("revoked", "what", what)
	l.gate.live.expel("what you logged in with was revoked", func(other *Login) bool {
		if other.as.cert == nil {
			return other.as.fingerprint == what
		}
		for _, w := range revocable(other.as.cert) {
			if w == what {
				return true
			}
		}
		return false
	})
	return nil
}

// Revocations returns what is revoked.
func (l *Login) Revocations(ctx context.Context) ([]store.Revocation, error) {
	if err := l.may(ctx, "key revoke"); err != nil {
		return nil, err
	}
	return l.gate.db.Revocations(ctx)
}

const (
	invitePrefix = "invite-"
	inviteTime   = 24 * time.Hour
)

// Invite returns a code that lets whoever knows it add one key to a user, and until
// when. An admin may invite anybody, and makes the user if there is none; no name
// is the caller.
func (l *Login) Invite(ctx context.Context, name string) (code string, expires time.Time, err error) {
	user, err := l.keeper(ctx, "invite", name)
	if p, ok := errors.AsType[*problem](err); ok && p.kind == notFound {
		user, err = l.addUser(ctx, name, store.RoleUser)
	}
	if err != nil {
		return "", time.Time{}, err
	}
	code = strings.ToLower(rand.Text())
	expires = time.Now().Add(inviteTime).UTC().Truncate(time.Second)
	if err := l.gate.db.CreateInvite(ctx, inviteHash(code), user.ID, expires); err != nil {
		return "", time.Time{}, err
	}
	l.log.Info("invited", "name", user.Name)
	return code, expires, nil
}

// inviteCode returns the code in the user part of a login that is an invite's.
func inviteCode(login string) (string, bool) {
	code, ok := strings.CutPrefix(strings.ToLower(login), invitePrefix)
	return code, ok && len(code) == len(rand.Text())
}

// withoutCode is the user part of a login for others to read: the code of an
// invite, which may be good still, is not in it.
func withoutCode(login string) string {
	if _, ok := inviteCode(login); ok {
		return invitePrefix + "…"
	}
	return login
}

func inviteHash(code string) []byte {
	h := sha256.Sum256([]byte(code))
	return h[:]
}

// invited returns the user whom an unknown key is to belong to, if login is that
// of an invite; else store.ErrNotFound.
func (g *Gateway) invited(ctx context.Context, login, fingerprint string) (candidate, error) {
	code, ok := inviteCode(login)
	if !ok {
		return candidate{}, store.ErrNotFound
	}
	if gone, err := g.db.Revoked(ctx, fingerprint); err != nil {
		return candidate{}, err
	} else if gone {
		return candidate{}, store.ErrNotFound
	}
	hash := inviteHash(code)
	user, err := g.db.UserByInvite(ctx, hash)
	if err != nil {
		return candidate{}, err
	}
	return candidate{user: user, fingerprint: fingerprint, invite: hash}, nil
}

// accept registers the key that came with an invite and has signed.
func (g *Gateway) accept(ctx context.Context, c candidate, key ssh.PublicKey) error {
	err := g.db.UseInvite(ctx, c.invite, store.Key{
		Fingerprint: c.fingerprint, Type: key.Type(), Blob: key.Marshal(), Name: "by invite",
	})
	switch {
	case errors.Is(err, store.ErrNotFound):
		return refusal("this invite has been used or has expired; ask for another one")
	case errors.Is(err, store.ErrExists):
		return refusal("this key is registered already")
	}
	return err
}

// welcome is what those see who came with an invite.
func (s *session) welcome() status {
	host := s.login.address()
	fmt.Fprintf(crlfWriter{s.ch}, "Welcome, %s. Your key %s is registered.\nA shell in a sandbox of your own:  %s\nEverything else:                   %s help\n",
		s.login.user.Name, s.login.as.fingerprint, host.ssh("web"), host.ssh(lobbyName))
	return status{}
}

// An address is where the gateway is, as the caller reached it.
type address struct {
	host string
	port int
}

// address returns where the caller reached the gateway.
func (l *Login) address() address {
	if tcp, ok := l.local.(*net.TCPAddr); ok {
		return address{tcp.IP.String(), tcp.Port}
	}
	return address{"HOST", sshPort}
}

// ssh is the command line that logs in there as user.
func (a address) ssh(user string) string {
	if a.port == sshPort {
		return "ssh " + user + "@" + a.host
	}
	return "ssh -p " + strconv.Itoa(a.port) + " " + user + "@" + a.host
}

// printable replaces what could move a terminal's cursor.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if strconv.IsPrint(r) {
			return r
		}
		return ' '
	}, s)
}
