package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"sandgate/sandbox"
	"sandgate/store"
)

// PauseVerbs are the verbs by which sandboxes stand still, and are copied.
type PauseVerbs struct {
	Pause     pauseVerb     `cmd:"" help:"Make sandboxes stand still with all that runs in them, until the next use. Example: pause web"`
	Fork      forkVerb      `cmd:"" help:"Make a copy of a sandbox with its disk and, where that can be done, all that runs in it. Example: fork web web2"`
	Snapshot  snapshotVerbs `cmd:"" help:"Keep the disk of a sandbox as it is now. Example: snapshot web --name before"`
	Snapshots snapshotsVerb `cmd:"" help:"List your snapshots. Example: snapshots"`
}

type pauseVerb struct {
	JSON
	Names []string `arg:"" name:"name" help:"Sandboxes."`
}

// lasting: much memory takes its time to be written.
func (*pauseVerb) lasting() {}

func (v *pauseVerb) Run(c *verbCall) error {
	return c.each(v.Names, v.JSON.JSON, "paused", func(n string) error { return c.login.Pause(c.ctx, n) })
}

// Pause makes a sandbox stand still until somebody uses it.
func (l *Login) Pause(ctx context.Context, name string) error {
	row, err := l.named(ctx, "pause", name)
	if err != nil {
		return err
	}
	err = l.gate.sandboxes.Pause(ctx, row)
	if errors.Is(err, sandbox.ErrNotRunning) {
		return &problem{kind: conflict, sentence: fmt.Sprintf("sandbox %q is stopped: nothing runs in it that could be paused", row.Name)}
	}
	return err
}

// pausedProblem is what a user reads who has to leave a sandbox that was paused, or
// copied.
func (l *Login) pausedProblem(e *sandbox.PausedError) *problem {
	name := e.Sandbox
	if e.Owner != l.user.Name {
		name += "." + e.Owner
	}
	p := &problem{kind: failed, sentence: e.Error(), hint: "it goes on where it was with: ssh " + name + "@HOST"}
	if e.Failed {
		p.hint = "log in again: ssh " + name + "@HOST"
	}
	return p
}

// tellOn returns what tells a user on w a sentence about their sandbox.
func tellOn(w io.Writer) func(string) {
	return func(sentence string) { fmt.Fprintf(w, "sandgate: %s\n", sentence) }
}

type forkVerb struct {
	JSON
	From        string `arg:"" help:"Sandbox."`
	To          string `arg:"" help:"Name of the copy."`
	WithSecrets bool   `help:"Copy its secrets, too."`
}

// lasting: much memory takes its time to be written.
func (*forkVerb) lasting() {}

// A forkView is a fork as JSON has it.
type forkView struct {
	Name   string   `json:"name"`
	From   string   `json:"from"`
	State  string   `json:"state"`
	Copied []string `json:"copied"`
	Waits  string   `json:"waits,omitempty"` // why it is paused
}

func (v *forkVerb) Run(c *verbCall) error {
	f, err := c.login.Fork(c.ctx, v.From, v.To, v.WithSecrets)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("%s forked from %s: copied %s\n", f.Name, f.From, strings.Join(f.Copied, ", "))
	if !slices.Contains(f.Copied, copiedMemory) {
		text = strings.TrimSuffix(text, "\n") + "; no processes\n"
	}
	if f.Waits != "" {
		text = strings.TrimSuffix(text, "\n") + "; it is paused: " + f.Waits + "\n"
	}
	return c.print(v.JSON.JSON, f, text)
}

// What a fork can say was copied. Disk and options always are.
const (
	copiedMemory  = "memory and processes"
	copiedSecrets = "secrets"
)

// Fork makes a copy of a sandbox, for the caller, who owns it.
func (l *Login) Fork(ctx context.Context, from, to string, withSecrets bool) (forkView, error) {
	row, err := l.named(ctx, "fork", from)
	if err != nil {
		return forkView{}, err
	}
	if to, err = l.newName(ctx, to); err != nil {
		return forkView{}, err
	}
	secrets, err := l.secretsIn(ctx, row)
	if err != nil {
		return forkView{}, err
	}
	child, memory, err := l.gate.sandboxes.Fork(ctx, row, sandbox.Forking{Owner: l.user, Name: to, May: func(memory bool) error {
		if !memory || withSecrets {
			return nil
		}
		exposed, err := l.gate.db.Exposed(ctx, row.ID)
		if err != nil || len(exposed) == 0 {
			return err
		}
		return &problem{
			kind:     conflict,
			sentence: fmt.Sprintf("what runs in sandbox %q may have secrets in its memory, which would be copied: %s", row.Name, strings.Join(exposed, ", ")),
			hint:     fmt.Sprintf("copy them, too: ssh gate@HOST fork --with-secrets %[1]s %[2]s; or only the disk: ssh gate@HOST snapshot %[1]s", row.Name, to),
		}
	}})
	if err != nil {
		return forkView{}, exists(err, to)
	}
	l.log.Info("sandbox forked", keySandbox, row.ID, "to", child.ID, "name", child.Name)
	view := forkView{Name: child.Name, From: row.Name, State: string(sandbox.Stopped), Copied: []string{"disk", "options"}}
	if withSecrets && len(secrets) > 0 {
		if err := l.copySecrets(ctx, secrets, child); err != nil {
			return view, err
		}
		view.Copied = append(view.Copied, copiedSecrets)
	}
	if !memory {
		return view, nil
	}
	view.Copied = append(view.Copied, copiedMemory)
	view.State = string(sandbox.Paused)
	lease, err := l.gate.sandboxes.Wake(ctx, child)
	if q, ok := errors.AsType[*sandbox.QuotaError](err); ok {
		view.Waits = q.Error()
		return view, nil
	}
	if err != nil {
		return view, err
	}
	lease.Release()
	view.State = string(sandbox.Running)
	return view, nil
}

// newName returns the name of a sandbox that the caller may make.
func (l *Login) newName(ctx context.Context, name string) (string, error) {
	name, err := sandboxName(name)
	if err != nil {
		return "", err
	}
	w, err := l.who(ctx)
	if err != nil {
		return "", err
	}
	switch err := permit(w, request{deed: "new", sandbox: name, relation: owner}); err {
	case nil:
		return name, nil
	case errHidden:
		return "", limitedKey("new", fmt.Sprintf("it is not for sandbox %q", name))
	default:
		return "", err
	}
}

// secretsIn returns the secrets that a sandbox has.
func (l *Login) secretsIn(ctx context.Context, row store.Sandbox) ([]store.Revealed, error) {
	if l.gate.cfg.Vault == nil {
		return nil, nil
	}
	return l.gate.cfg.Vault.Reveal(ctx, row.ID)
}

// copySecrets lets a fork have the secrets of its parent.
func (l *Login) copySecrets(ctx context.Context, secrets []store.Revealed, child store.Sandbox) error {
	vault := l.gate.cfg.Vault
	for _, s := range secrets {
		var err error
		if s.SandboxID == "" {
			err = vault.Give(ctx, s.ID, child.ID)
		} else {
			err = vault.Set(ctx, store.Secret{UserID: child.UserID, SandboxID: child.ID, Name: s.Name, Form: s.Form}, s.Value)
		}
		if err != nil {
			return err
		}
		l.audit(auditSecret, &child, s.Name, nil)
	}
	return nil
}

type snapshotVerbs struct {
	Take snapshotTakeVerb `cmd:"" default:"withargs" help:"Keep the disk of a sandbox as it is now. Example: snapshot web --name before"`
	Rm   snapshotRmVerb   `cmd:"" help:"Delete snapshots; sandboxes that began with them stay. Example: snapshot rm before"`
}

type snapshotTakeVerb struct {
	JSON
	Sandbox string `arg:"" help:"Sandbox. What runs in it goes on; only its disk is kept."`
	Name    string `help:"Name of the snapshot. Default: the sandbox's, and when it was made."`
}

// lasting: much memory takes its time to be written.
func (*snapshotTakeVerb) lasting() {}

// A snapshotView is a snapshot as JSON has it.
type snapshotView struct {
	Name    string    `json:"name"`
	Sandbox string    `json:"sandbox"`
	Driver  string    `json:"driver"`
	Created time.Time `json:"created"`
}

func snapshotViewOf(s store.Snapshot) snapshotView {
	return snapshotView{Name: s.Name, Sandbox: s.Sandbox, Driver: s.Driver, Created: s.Created}
}

func (v *snapshotTakeVerb) Run(c *verbCall) error {
	s, err := c.login.Snapshot(c.ctx, v.Sandbox, v.Name)
	if err != nil {
		return err
	}
	return c.print(v.JSON.JSON, snapshotViewOf(s), s.Name+"\n")
}

// maxSnapshots bounds those of one user.
const maxSnapshots = 100

// Snapshot keeps the disk of a sandbox as it is now; its name may be left to us.
func (l *Login) Snapshot(ctx context.Context, sandboxName, name string) (store.Snapshot, error) {
	row, err := l.named(ctx, "snapshot take", sandboxName)
	if err != nil {
		return store.Snapshot{}, err
	}
	if name == "" {
		when := time.Now().UTC().Format("0102-150405")
		name = row.Name[:min(len(row.Name), 50)] + "-" + when
	}
	if !ValidName(name) {
		return store.Snapshot{}, &problem{kind: usage, sentence: fmt.Sprintf("%.80q cannot be a snapshot's name", name), hint: "names are made of a-z, 0-9 and -"}
	}
	all, err := l.gate.db.SnapshotsOf(ctx, l.user.ID)
	if err != nil {
		return store.Snapshot{}, err
	}
	if len(all) >= maxSnapshots {
		return store.Snapshot{}, &problem{kind: quota, sentence: fmt.Sprintf("you have %d snapshots, which is the most", len(all)), hint: "remove one: ssh gate@HOST snapshot rm NAME"}
	}
	s, err := l.gate.sandboxes.Snapshot(ctx, row, name)
	if errors.Is(err, store.ErrExists) {
		return s, &problem{kind: conflict, sentence: fmt.Sprintf("you already have a snapshot named %q", name)}
	}
	return s, err
}

type snapshotRmVerb struct {
	JSON
	Names []string `arg:"" name:"name" help:"Snapshots."`
}

func (v *snapshotRmVerb) Run(c *verbCall) error {
	return c.each(v.Names, v.JSON.JSON, "removed", func(n string) error { return c.login.RemoveSnapshot(c.ctx, n) })
}

// RemoveSnapshot deletes a snapshot of the caller's.
func (l *Login) RemoveSnapshot(ctx context.Context, name string) error {
	s, err := l.findSnapshot(ctx, name)
	if err != nil {
		return err
	}
	l.log.Info("snapshot removed", "name", s.Name)
	return l.gate.sandboxes.DropSnapshot(ctx, s)
}

func (l *Login) findSnapshot(ctx context.Context, name string) (store.Snapshot, error) {
	s, err := l.gate.db.SnapshotByName(ctx, l.user.ID, name)
	if errors.Is(err, store.ErrNotFound) {
		return s, &problem{kind: notFound, sentence: fmt.Sprintf("no snapshot named %.80q", name), hint: "ssh gate@HOST snapshots"}
	}
	return s, err
}

// fromSnapshot returns the options of a sandbox that is to begin with a snapshot.
func (l *Login) fromSnapshot(ctx context.Context, name string, o sandbox.Options) (sandbox.Options, error) {
	if o.Image != "" || o.Driver != "" || o.Runtime != "" || o.Template != "" {
		return o, &problem{kind: usage, sentence: "a sandbox from a snapshot has the snapshot's image, driver and runtime, and no template"}
	}
	s, err := l.findSnapshot(ctx, name)
	if err != nil {
		return o, err
	}
	return sandbox.FromSnapshot(s, o)
}

type snapshotsVerb struct{ JSON }

func (v *snapshotsVerb) Run(c *verbCall) error {
	all, err := c.login.gate.db.SnapshotsOf(c.ctx, c.login.user.ID)
	if err != nil {
		return err
	}
	t := c.table()
	if !v.JSON.JSON {
		fmt.Fprintln(t, "NAME\tSANDBOX\tCREATED")
	}
	for _, s := range all {
		if v.JSON.JSON { // one to a line
			if err := c.print(true, snapshotViewOf(s), ""); err != nil {
				return err
			}
			continue
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", s.Name, s.Sandbox, ago(s.Created))
	}
	return t.Flush()
}
