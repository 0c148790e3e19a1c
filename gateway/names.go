package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"sandgate/store"
)

// addressName is a local address as the name of an alias.
func addressName(a net.Addr) (string, bool) {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return "", false
	}
	ip, ok := netip.AddrFromSlice(tcp.IP)
	return ip.Unmap().String(), ok
}

// bind finds the sandbox that the caller has bound to the address they reached the
// gateway at. In a jump the host says which sandbox it is.
func (l *Login) bind(ctx context.Context) error {
	name, ok := addressName(l.local)
	if _, jump := l.front.Conn.(*jumpConn); jump || !ok {
		return nil
	}
	alias, err := l.gate.db.Alias(ctx, l.user.ID, name)
	if err == nil {
		l.bound = alias.Sandbox.ID
	}
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

// sandboxName reads what is to become the name of a sandbox or of an alias.
func sandboxName(name string) (string, error) {
	t, err := parseTarget(name)
	if err != nil {
		return "", err
	}
	if t.lobby || t.owner != "" || t.session != "" {
		return "", &problem{kind: usage, sentence: fmt.Sprintf("%.80q cannot be a sandbox's name", name)}
	}
	return t.name, nil
}

// Rename gives a sandbox another name. What runs in it goes on.
func (l *Login) Rename(ctx context.Context, from, to string) error {
	row, err := l.named(ctx, "rename", from)
	if err != nil {
		return err
	}
	name, err := sandboxName(to)
	if err != nil || name == row.Name {
		return err
	}
	if err := l.gate.db.RenameSandbox(ctx, row, name); err != nil {
		return exists(err, name)
	}
	l.log.Info("sandbox renamed", keySandbox, row.ID, "from", row.Name, "to", name)
	return nil
}

// Share lets another user use a sandbox of the caller's, or only look and read.
func (l *Login) Share(ctx context.Context, name, user string, reads bool) error {
	row, err := l.named(ctx, "share", name)
	if err != nil {
		return err
	}
	whom, err := l.someone(ctx, user)
	if err != nil {
		return err
	}
	if whom.ID == row.UserID {
		return &problem{kind: usage, sentence: fmt.Sprintf("sandbox %q is %s's own", row.Name, whom.Name)}
	}
	if err := l.gate.db.Share(ctx, row.ID, whom.ID, reads); err != nil {
		return err
	}
	l.log.Info("sandbox shared", keySandbox, row.ID, "with", whom.Name, "read-only", reads)
	if reads {
		l.expelFrom(ctx, row, whom, fmt.Sprintf("sandbox %q is shared with you for reading only now", row.Name+"."+row.Owner))
	}
	return nil
}

// Unshare undoes Share and ends the connections that use it.
func (l *Login) Unshare(ctx context.Context, name, user string) error {
	row, err := l.named(ctx, "unshare", name)
	if err != nil {
		return err
	}
	whom, err := l.someone(ctx, user)
	if err != nil {
		return err
	}
	err = l.gate.db.Unshare(ctx, row.ID, whom.ID)
	if errors.Is(err, store.ErrNotFound) {
		return &problem{kind: notFound, sentence: fmt.Sprintf("sandbox %q is not shared with %s", row.Name, whom.Name)}
	}
	if err != nil {
		return err
	}
	l.log.Info("sandbox not shared any more", keySandbox, row.ID, "with", whom.Name)
	l.expelFrom(ctx, row, whom, fmt.Sprintf("sandbox %q is not shared with you any more", row.Name+"."+row.Owner))
	return nil
}

// expelFrom ends a user's connections that have used somebody else's sandbox, and what
// the agent does there for them. Their jobs are left to the sandbox's owner.
func (l *Login) expelFrom(ctx context.Context, row store.Sandbox, whom store.User, why string) {
	l.gate.live.expel(why, func(other *Login) bool {
		other.mu.Lock()
		defer other.mu.Unlock()
		return other.user.ID == whom.ID && other.foreign[row.ID]
	})
	l.gate.runs.cancel(ctx, func(r store.Run) bool { return r.UserID == whom.ID && r.SandboxID == row.ID })
}

// AddAlias lets the caller call a sandbox by another name, or reach it at an
// address of the gateway's under any name.
func (l *Login) AddAlias(ctx context.Context, sandbox, alias string) error {
	if err := l.may(ctx, "alias add"); err != nil {
		return err
	}
	// An alias changes nothing for the sandbox: whoever may see it may call it
	// what they like.
	row, err := l.named(ctx, "info", sandbox)
	if err != nil {
		return err
	}
	if ip, ipErr := netip.ParseAddr(alias); ipErr == nil {
		alias = ip.Unmap().WithZone("").String()
	} else if alias, err = sandboxName(alias); err != nil {
		return err
	}
	if err := l.gate.db.AddAlias(ctx, l.user.ID, alias, row.ID); errors.Is(err, store.ErrExists) {
		return &problem{kind: conflict, sentence: fmt.Sprintf("%q is taken: you have a sandbox or an alias of that name", alias),
			hint: "ssh gate@HOST alias ls"}
	} else if err != nil {
		return err
	}
	l.log.Info("alias added", "name", alias, keySandbox, row.ID)
	return nil
}

// RemoveAlias removes an alias, a name or an address.
func (l *Login) RemoveAlias(ctx context.Context, alias string) error {
	if err := l.may(ctx, "alias rm"); err != nil {
		return err
	}
	name := strings.ToLower(alias)
	if ip, err := netip.ParseAddr(alias); err == nil {
		name = ip.Unmap().WithZone("").String()
	}
	err := l.gate.db.DeleteAlias(ctx, l.user.ID, name)
	if errors.Is(err, store.ErrNotFound) {
		return &problem{kind: notFound, sentence: fmt.Sprintf("you have no alias %.80q", alias), hint: "ssh gate@HOST alias ls"}
	}
	return err
}

// Aliases returns the caller's aliases.
func (l *Login) Aliases(ctx context.Context) ([]store.Alias, error) {
	if err := l.may(ctx, "alias ls"); err != nil {
		return nil, err
	}
	return l.gate.db.Aliases(ctx, l.user.ID)
}
