package gateway

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"sandgate/sandbox"
	"sandgate/store"
)

// DoctorVerbs are those that find troubles.
type DoctorVerbs struct {
	Doctor doctorVerb `cmd:"" help:"Find the usual troubles, and tell what to do about them; for admins, those of the gateway too. Ends with 1 if there are any. Example: doctor"`
}

type doctorVerb struct{ JSON }

// lasting: a driver is tried, and the whole database read.
func (*doctorVerb) lasting() {}

func (v *doctorVerb) Run(c *verbCall) error {
	found, err := c.login.Examine(c.ctx)
	if err != nil {
		return err
	}
	if err := sandbox.WriteFindings(c.stdout, found, v.JSON.JSON); err != nil {
		return err
	}
	for _, f := range found {
		if !f.OK {
			return exitCode(failed)
		}
	}
	return nil
}

// What counts as a trouble.
const (
	expiresSoon  = 7 * 24 * time.Hour // a key or a certificate that ends
	fullShare    = 95                 // percent of a sandbox's disk
	manyFailures = 100                // logins that failed, in a day
)

// Examine finds what is wrong for the caller and, for admins, with the gateway. What
// is well is told too.
func (l *Login) Examine(ctx context.Context) ([]sandbox.Finding, error) {
	if err := l.may(ctx, "doctor"); err != nil {
		return nil, err
	}
	w, err := l.who(ctx)
	if err != nil {
		return nil, err
	}
	found := []sandbox.Finding{l.examineLogin(w)}
	sandboxes, err := l.examineSandboxes(ctx)
	if err != nil {
		return nil, err
	}
	found = append(found, sandboxes...)
	quotas, err := l.Standings(ctx)
	if err != nil {
		return nil, err
	}
	for _, q := range quotas {
		f := sandbox.Finding{Name: "quota " + string(q.Measure), OK: !q.Near(), Says: q.String()}
		if !f.OK {
			f.Remedy = "use less, or ask an admin for more"
		}
		found = append(found, f)
	}
	if !w.scope.limited() {
		found = append(found, l.gate.examineSecrets(ctx, "secrets", l.user.ID)...)
	}
	if w.admin && !w.scope.limited() {
		found = append(found, l.gate.examine(ctx)...)
	}
	return found, nil
}

// examineLogin tells who the caller is, and whether that will last.
func (l *Login) examineLogin(w who) sandbox.Finding {
	f := sandbox.Finding{Name: "login", OK: true, Says: fmt.Sprintf("you are %s, %s, with the key %s", l.user.Name, l.user.Role, l.as.fingerprint)}
	until := l.as.expires
	if l.as.cert != nil {
		f.Says = fmt.Sprintf("you are %s, %s, with a certificate", l.user.Name, l.user.Role)
		if l.as.cert.ValidBefore != ssh.CertTimeInfinity {
			until = time.Unix(int64(l.as.cert.ValidBefore), 0)
		}
	}
	if limits := (keyView{Scope: w.scope}).limits(); limits != "none" {
		f.Says += ", limited to " + limits
	}
	if !until.IsZero() {
		f.Says += ", valid until " + until.UTC().Format(time.RFC3339)
		// A certificate is short-lived on purpose.
		if f.OK = l.as.cert != nil || time.Until(until) > expiresSoon; !f.OK {
			f.Remedy = "add another key in time: ssh gate@HOST key add < ~/.ssh/id_ed25519.pub"
		}
	}
	return f
}

// examineSandboxes looks at those that the caller may see.
func (l *Login) examineSandboxes(ctx context.Context) ([]sandbox.Finding, error) {
	all, err := l.visible(ctx)
	if err == nil {
		err = l.describe(ctx, all)
	}
	if err != nil {
		return nil, err
	}
	var troubles []sandbox.Finding
	for _, s := range all {
		add := func(says, remedy string) {
			troubles = append(troubles, sandbox.Finding{Name: "sandbox " + s.Name, Says: says, Remedy: remedy})
		}
		if s.Setup.State == sandbox.SetupFailed {
			add("its setup command failed: "+oneLine(printable(s.Setup.How)), "see why: ssh gate@HOST setup-log "+s.Name)
		}
		switch s.Info.State {
		case sandbox.Unknown:
			add(strings.Join(append(s.Info.Notes, "nobody knows whether it runs"), "; "), "the operator sees to the engine")
		case sandbox.Running:
			if share, err := l.diskShare(ctx, s.Row); err != nil {
				l.log.Debug("disk not looked at", keySandbox, s.Row.ID, keyErr, err)
			} else if share >= fullShare {
				add(fmt.Sprintf("%d %% of its disk are used", share), fmt.Sprintf("delete files in it: ssh %s@HOST, or give it a larger one: ssh gate@HOST set %[1]s --disk SIZE", s.Name))
			}
		}
	}
	says := fmt.Sprintf("you may use %d", len(all))
	if row, err := l.resolve(ctx, target{name: l.user.Name}); err == nil {
		says += fmt.Sprintf("; logging in as %s leads to %s", l.user.Name, l.nameOf(row))
	} else if !errors.Is(err, store.ErrNotFound) {
		if _, ok := errors.AsType[*problem](err); !ok {
			return nil, err
		}
	}
	return append([]sandbox.Finding{{Name: "sandboxes", OK: true, Says: says}}, troubles...), nil
}

// diskTimeout bounds the question to a guest how full its disk is.
const diskTimeout = 3 * time.Second

// diskShare returns how much of the disk of a sandbox that runs is used, in percent.
func (l *Login) diskShare(ctx context.Context, row store.Sandbox) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, diskTimeout)
	defer cancel()
	lease, err := l.gate.sandboxes.Look(ctx, row)
	if err != nil {
		return 0, err
	}
	defer lease.Release()
	stream, err := lease.SFTP("", true)
	if err != nil {
		return 0, err
	}
	defer stream.Close()
	defer context.AfterFunc(ctx, func() { stream.Close() })()
	files, err := sftp.NewClientPipe(stream, stream)
	if err != nil {
		return 0, err
	}
	defer files.Close()
	disk, err := files.StatVFS(".")
	if err != nil {
		return 0, err
	}
	if disk.Blocks == 0 || disk.Bavail > disk.Blocks {
		return 0, nil
	}
	return int(100 - float64(disk.Bavail)/float64(disk.Blocks)*100), nil
}

// examineSecrets says whether the secrets of a user, or with 0 of all, can be opened.
func (g *Gateway) examineSecrets(ctx context.Context, name string, userID int64) []sandbox.Finding {
	if g.cfg.Vault == nil {
		return nil
	}
	broken, err := g.cfg.Vault.Unreadable(ctx, userID)
	f := sandbox.Finding{Name: name, OK: true, Says: "all can be unsealed"}
	switch {
	case err != nil:
		f.OK, f.Says = false, oneLine(err.Error())
	case len(broken) > 0:
		f.OK, f.Says = false, fmt.Sprintf("%s cannot be unsealed: %s", plural(len(broken), "secret"), oneLine(strings.Join(broken, " ")))
		f.Remedy = "give them their values again: ssh gate@HOST secret set NAME; or the operator puts the key back that they were sealed with"
	}
	return []sandbox.Finding{f}
}

// examine finds what is wrong with the gateway.
func (g *Gateway) examine(ctx context.Context) []sandbox.Finding {
	var found []sandbox.Finding
	if g.cfg.Examine != nil {
		found = g.cfg.Examine(ctx)
	}
	add := func(name, well string, err error, remedy string) {
		f := sandbox.Finding{Name: name, OK: err == nil, Says: well}
		if err != nil {
			f.Says, f.Remedy = oneLine(err.Error()), remedy
		}
		found = append(found, f)
	}
	wrong, err := g.db.Check(ctx)
	if err == nil && len(wrong) > 0 {
		err = errors.New(strings.Join(wrong, "; "))
	}
	add("database", "it is whole", err, "stop the gateway and put a backup in its place")
	if g.cfg.Vault != nil {
		add("vault key", "it is where the next start looks for it", g.cfg.Vault.CheckKey(), "put it back from your copy, or seal all secrets with a new one: ssh gate@HOST secret rotate-key")
		found = append(found, g.examineSecrets(ctx, "secrets of all", 0)...)
	}
	for _, signer := range g.terms.Load().HostCerts {
		if cert, ok := signer.PublicKey().(*ssh.Certificate); ok && cert.ValidBefore != ssh.CertTimeInfinity {
			until := time.Unix(int64(cert.ValidBefore), 0).UTC()
			err = nil
			if time.Until(until) < expiresSoon {
				err = fmt.Errorf("it is valid until %s only", until.Format(time.RFC3339))
			}
			add("host certificate", "it is valid until "+until.Format(time.RFC3339), err, "sign the host key anew, and reload the gateway")
		}
	}
	failures, err := g.db.FailedLogins(ctx, time.Now().Add(-24*time.Hour))
	if err == nil && failures >= manyFailures {
		err = fmt.Errorf("%s were refused in the last 24 hours", plural(failures, "key"))
	}
	add("failed logins", plural(failures, "key")+" refused in the last 24 hours", err, "see from where: ssh gate@HOST audit --since 24h; addresses that go on are shut out by themselves")
	return found
}
