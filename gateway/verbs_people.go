package gateway

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"sandgate/store"
)

// PeopleVerbs are the verbs about users, their keys and what they share.
type PeopleVerbs struct {
	User   userVerbs  `cmd:"" help:"Users, for admins. Example: user ls"`
	Key    keyVerbs   `cmd:"" help:"Keys that you log in with. Example: key ls"`
	Invite inviteVerb `cmd:"" help:"Let somebody register a key, or yourself another one. Example: invite alice"`
}

type userVerbs struct {
	Add     userAddVerb     `cmd:"" help:"Make a user. Example: user add bob"`
	Ls      userLsVerb      `cmd:"" help:"List users. Example: user ls"`
	Rm      userRmVerb      `cmd:"" help:"Delete users with their keys and end their connections. Example: user rm bob"`
	SetRole userSetRoleVerb `cmd:"" help:"Make a user an admin, or an admin a user. Example: user set-role bob admin"`
}

type userAddVerb struct {
	JSON
	Name  string `arg:"" help:"Name: a-z, 0-9 and -."`
	Admin bool   `help:"Make an admin."`
}

type userView struct {
	Name      string    `json:"name"`
	Role      string    `json:"role"`
	Keys      int       `json:"keys"`
	Sandboxes int       `json:"sandboxes"`
	Created   time.Time `json:"created"`
}

func (v *userAddVerb) Run(c *verbCall) error {
	role := store.RoleUser
	if v.Admin {
		role = store.RoleAdmin
	}
	u, err := c.login.AddUser(c.ctx, v.Name, role)
	if err != nil {
		return err
	}
	return c.print(v.JSON.JSON, userView{Name: u.Name, Role: u.Role, Created: u.Created},
		fmt.Sprintf("%s added; now a key: key add --user %s < id.pub, or: invite %s\n", u.Name, u.Name, u.Name))
}

type userLsVerb struct{ JSON }

func (v *userLsVerb) Run(c *verbCall) error {
	all, err := c.login.Users(c.ctx)
	if err != nil {
		return err
	}
	if v.JSON.JSON {
		for _, u := range all {
			if err := c.print(true, userView{u.Name, u.Role, u.Keys, u.Sandboxes, u.Created}, ""); err != nil {
				return err
			}
		}
		return nil
	}
	t := c.table()
	fmt.Fprintln(t, "NAME\tROLE\tKEYS\tSANDBOXES\tSINCE")
	for _, u := range all {
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%s\n", u.Name, u.Role, u.Keys, u.Sandboxes, u.Created.Format(time.DateOnly))
	}
	return t.Flush()
}

type userRmVerb struct {
	JSON
	Names []string `arg:"" name:"name" help:"Users."`
	Force bool     `short:"f" help:"Delete their sandboxes too."`
}

func (v *userRmVerb) Run(c *verbCall) error {
	return c.each(v.Names, v.JSON.JSON, "removed", func(n string) error { return c.login.RemoveUser(c.ctx, n, v.Force) })
}

type userSetRoleVerb struct {
	JSON
	Name string `arg:"" help:"User."`
	Role string `arg:"" enum:"admin,user" help:"admin or user."`
}

func (v *userSetRoleVerb) Run(c *verbCall) error {
	return c.each([]string{v.Name}, v.JSON.JSON, "is now "+v.Role, func(n string) error { return c.login.SetRole(c.ctx, n, v.Role) })
}

type keyVerbs struct {
	Add    keyAddVerb    `cmd:"" help:"Add a key, read from the standard input. Example: key add --name laptop < id_ed25519.pub"`
	Ls     keyLsVerb     `cmd:"" help:"List keys with their limits and last use. Example: key ls"`
	Set    keySetVerb    `cmd:"" help:"Change what a key is called, what it is limited to and when it ends. What it may no more do ends on its connections. Example: key set ci --sandboxes web,api"`
	Rm     keyRmVerb     `cmd:"" help:"Remove keys and end the connections made with them. Example: key rm laptop"`
	Revoke keyRevokeVerb `cmd:"" help:"Never again accept a key, an authority or certificates, for admins; lists what is revoked when nothing is named. Example: key revoke serial=7"`
}

// limitFlags are what a key can be limited to.
type limitFlags struct {
	Sandboxes []string `help:"Only for these sandboxes, as in web,api."`
	ReadOnly  *bool    `negatable:"" help:"Only for looking and for reading files."`
	Verbs     []string `help:"Only for these verbs of the lobby, as in ls,info,'key ls'."`
	Command   []string `name:"command" sep:"none" help:"Only for this command, given exactly, in a sandbox; may be repeated. sftp stands for files."`
	Expires   string   `help:"When it ends: a time from now such as 12h or 30d, a date such as 2027-01-31, or never."`
}

// over returns what the flags ask for, and for the rest what was there before.
func (f limitFlags) over(s Scope) (Scope, error) {
	for i, name := range f.Sandboxes {
		t, err := parseTarget(name)
		if err != nil {
			return s, err
		}
		if t.lobby || t.session != "" {
			return s, &problem{kind: usage, sentence: fmt.Sprintf("%.80q is not a sandbox name", name)}
		}
		f.Sandboxes[i] = t.String()
	}
	for _, verb := range f.Verbs {
		if _, ok := needs[deed(verb)]; !ok || strings.HasPrefix(verb, "ssh ") {
			return s, &problem{kind: usage, sentence: fmt.Sprintf("%.80q is not a verb", verb), hint: "ssh gate@HOST help"}
		}
	}
	if len(f.Sandboxes) > 0 {
		s.Sandboxes = f.Sandboxes
	}
	if f.ReadOnly != nil {
		s.ReadOnly = *f.ReadOnly
	}
	if len(f.Verbs) > 0 {
		s.Verbs = f.Verbs
	}
	if len(f.Command) > 0 {
		s.Commands = f.Command
	}
	return s, nil
}

type keyAddVerb struct {
	JSON
	User string `help:"Add it to this user; for admins."`
	Name string `help:"What to call it. Default: its comment."`
	limitFlags
	NoTouch bool `help:"A FIDO key that need not be touched."`
}

// maxKeyLine bounds a public key on the standard input.
const maxKeyLine = 64 << 10

func (v *keyAddVerb) Run(c *verbCall) error {
	expires, err := parseExpiry(v.Expires, time.Now())
	if err != nil {
		return err
	}
	scope, err := v.over(Scope{})
	if err != nil {
		return err
	}
	data, err := io.ReadAll(io.LimitReader(c.stdin, maxKeyLine))
	if err != nil {
		return err
	}
	k, err := c.login.AddKey(c.ctx, v.User, data, store.Key{Name: v.Name, NoTouch: v.NoTouch, Expires: expires}, scope)
	if err != nil {
		return err
	}
	return c.print(v.JSON.JSON, keyViewOf(k), k.Fingerprint+" added\n")
}

type keySetVerb struct {
	JSON
	Key       string `arg:"" help:"Fingerprint or name."`
	User      string `help:"Change this user's; for admins."`
	Name      string `help:"What to call it from now on."`
	Unlimited bool   `help:"Take away all limits but the time and those named here."`
	limitFlags
}

func (v *keySetVerb) Run(c *verbCall) error {
	change := KeyChange{Name: v.Name, Scope: func(s Scope) (Scope, error) {
		if v.Unlimited {
			s = Scope{}
		}
		return v.over(s)
	}}
	if v.Expires != "" {
		expires, err := parseExpiry(v.Expires, time.Now())
		if err != nil {
			return err
		}
		change.Expires = &expires
	}
	k, err := c.login.SetKey(c.ctx, v.User, v.Key, change)
	if err != nil {
		return err
	}
	view := keyViewOf(k)
	return c.print(v.JSON.JSON, view, fmt.Sprintf("%s set; limits: %s\n", k.Name, view.limits()))
}

// parseExpiry reads when a key ends. Empty is never.
func parseExpiry(s string, now time.Time) (time.Time, error) {
	if s == "" || s == "never" {
		return time.Time{}, nil
	}
	var t time.Time
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n < 100_000 {
			t = now.AddDate(0, 0, n)
		}
	} else if d, err := time.ParseDuration(s); err == nil {
		t = now.Add(d)
	} else if at, err := time.Parse(time.RFC3339, s); err == nil {
		t = at
	} else if day, err := time.Parse(time.DateOnly, s); err == nil {
		t = day
	}
	if !t.After(now) {
		return time.Time{}, &problem{kind: usage, sentence: fmt.Sprintf("%.40q is not a time to come", s), hint: "such as 12h, 30d or 2027-01-31"}
	}
	return t.UTC(), nil
}

type keyView struct {
	Fingerprint string     `json:"fingerprint"`
	Type        string     `json:"type"`
	Name        string     `json:"name"`
	Scope       Scope      `json:"scope"`
	NoTouch     bool       `json:"no_touch,omitempty"`
	Created     time.Time  `json:"created"`
	LastUsed    *time.Time `json:"last_used"` // null: never
	Expires     *time.Time `json:"expires"`   // null: never
}

func keyViewOf(k store.Key) keyView {
	v := keyView{Fingerprint: k.Fingerprint, Type: k.Type, Name: k.Name, NoTouch: k.NoTouch, Created: k.Created}
	v.Scope, _ = scopeOf(k) // written by setScope
	if !k.LastUsed.IsZero() {
		v.LastUsed = &k.LastUsed
	}
	if !k.Expires.IsZero() {
		v.Expires = &k.Expires
	}
	return v
}

// limits are a key's limits in words.
func (v keyView) limits() string {
	var words []string
	if len(v.Scope.Sandboxes) > 0 {
		words = append(words, "sandboxes "+strings.Join(v.Scope.Sandboxes, ","))
	}
	if v.Scope.ReadOnly {
		words = append(words, "read-only")
	}
	if len(v.Scope.Verbs) > 0 {
		words = append(words, "verbs "+strings.Join(v.Scope.Verbs, ","))
	}
	for _, c := range v.Scope.Commands {
		words = append(words, "command "+strconv.Quote(c))
	}
	if v.NoTouch {
		words = append(words, "no touch")
	}
	if v.Expires != nil {
		words = append(words, "until "+v.Expires.Format("2006-01-02 15:04"))
	}
	if len(words) == 0 {
		return "none"
	}
	return strings.Join(words, "; ")
}

type keyLsVerb struct {
	JSON
	User string `help:"List this user's; for admins."`
}

func (v *keyLsVerb) Run(c *verbCall) error {
	keys, err := c.login.Keys(c.ctx, v.User)
	if err != nil {
		return err
	}
	if v.JSON.JSON {
		for _, k := range keys {
			if err := c.print(true, keyViewOf(k), ""); err != nil {
				return err
			}
		}
		return nil
	}
	t := c.table()
	fmt.Fprintln(t, "NAME\tFINGERPRINT\tLAST USED\tLIMITS")
	for _, k := range keys {
		used := "never"
		if !k.LastUsed.IsZero() {
			used = ago(k.LastUsed)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", k.Name, k.Fingerprint, used, keyViewOf(k).limits())
	}
	return t.Flush()
}

type keyRmVerb struct {
	JSON
	Keys []string `arg:"" name:"key" help:"Fingerprints or names."`
	User string   `help:"Remove this user's; for admins."`
}

func (v *keyRmVerb) Run(c *verbCall) error {
	return c.each(v.Keys, v.JSON.JSON, "removed", func(k string) error { return c.login.RemoveKey(c.ctx, v.User, k) })
}

type keyRevokeVerb struct {
	JSON
	What []string `arg:"" optional:"" help:"A fingerprint of a key or an authority, or serial=N or id=NAME of certificates."`
}

func (v *keyRevokeVerb) Run(c *verbCall) error {
	if len(v.What) > 0 {
		return c.each(v.What, v.JSON.JSON, "revoked", func(w string) error { return c.login.Revoke(c.ctx, w) })
	}
	all, err := c.login.Revocations(c.ctx)
	if err != nil {
		return err
	}
	for _, r := range all {
		err := c.print(v.JSON.JSON, map[string]any{"what": r.What, "created": r.Created}, fmt.Sprintf("%s  since %s\n", r.What, r.Created.Format(time.DateOnly)))
		if err != nil {
			return err
		}
	}
	return nil
}

type inviteVerb struct {
	JSON
	Name string `arg:"" optional:"" help:"User, who is made if there is none; for admins. Default: you."`
}

func (v *inviteVerb) Run(c *verbCall) error {
	code, expires, err := c.login.Invite(c.ctx, v.Name)
	if err != nil {
		return err
	}
	command := c.login.address().ssh(invitePrefix + code)
	if v.JSON.JSON {
		return c.print(true, map[string]any{"command": command, "expires": expires}, "")
	}
	fmt.Fprintln(c.stdout, command)
	_, err = fmt.Fprintf(c.stderr, "sandgate: whoever runs this first has their key registered; it can be used once, until %s\n", expires.Format(time.RFC3339))
	return err
}
