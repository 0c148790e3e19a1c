package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"sandgate/gateway/redact"
	"sandgate/sandbox/guest"
	"sandgate/store"
)

// The bounds of the vault.
const (
	maxSecrets     = 256      // of one user
	maxSecretSize  = 32 << 10 // bytes of a value
	maxSecretsSize = 96 << 10 // bytes of all values in one sandbox: they travel with each command
)

var errNoVault = &problem{kind: failed, sentence: "this gateway keeps no secrets"}

// secretName says whether a secret can have the name: that of a variable which
// neither decides what is run nor is the gateway's.
func secretName(name string) error {
	refuse := func(why string) error {
		return &problem{kind: usage, sentence: fmt.Sprintf("%.80q cannot be a secret's name: %s", name, why), hint: "such as ANTHROPIC_API_KEY"}
	}
	if name == "" || len(name) > 128 || '0' <= name[0] && name[0] <= '9' ||
		strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") != "" {
		return refuse("it is not one of a variable: letters, digits and _, and no digit first")
	}
	switch name {
	case "PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "ENV", "BASH_ENV", "IFS", "TERM", "IS_SANDBOX":
		return refuse("the variable has a meaning of its own")
	}
	for _, prefix := range []string{"LD_", "SSH_", "SANDGATE_"} {
		if strings.HasPrefix(name, prefix) {
			return refuse("variables that begin with " + prefix + " have a meaning of their own")
		}
	}
	return nil
}

// secretValue checks a value as it was read and returns it as it is kept. One line
// loses its end, which echo and editors add.
func secretValue(value []byte, name string) ([]byte, error) {
	if s := strings.TrimSuffix(strings.TrimSuffix(string(value), "\n"), "\r"); !strings.Contains(s, "\n") {
		value = []byte(s)
	}
	switch {
	case len(value) == 0:
		return nil, &problem{kind: usage, sentence: "the value is empty", hint: "it is read from stdin: ssh gate@HOST secret set " + name + " <FILE"}
	case len(value) > maxSecretSize:
		return nil, &problem{kind: usage, sentence: fmt.Sprintf("the value has more than %d KiB", maxSecretSize>>10)}
	case !utf8.Valid(value) || strings.Contains(string(value), "\x00"):
		return nil, &problem{kind: usage, sentence: "the value is not text", hint: "send binary values in base64: base64 FILE | ssh gate@HOST secret set " + name}
	}
	return value, nil
}

// secretScope returns the sandbox whose own a secret is to be: id and name, or
// nothing for the caller's vault. It has to be the caller's sandbox.
func (l *Login) secretScope(ctx context.Context, sandboxName string) (id string, err error) {
	if l.gate.cfg.Vault == nil {
		return "", errNoVault
	}
	if sandboxName == "" {
		return "", nil
	}
	row, err := l.named(ctx, "secret set", sandboxName)
	if err != nil {
		return "", err
	}
	return row.ID, l.ownsSecretsOf(row)
}

func (l *Login) ownsSecretsOf(row store.Sandbox) error {
	if row.UserID != l.user.ID {
		return &problem{kind: denied, sentence: fmt.Sprintf("the secrets of sandbox %q are for its owner to change", row.Name)}
	}
	return nil
}

// findSecret returns the caller's secret of that name and scope.
func (l *Login) findSecret(ctx context.Context, name, sandboxName string) (store.Secret, error) {
	id, err := l.secretScope(ctx, sandboxName)
	if err != nil {
		return store.Secret{}, err
	}
	s, err := l.gate.cfg.Vault.Secret(ctx, l.user.ID, id, name)
	if errors.Is(err, store.ErrNotFound) {
		where := "in your vault"
		if sandboxName != "" {
			where = fmt.Sprintf("of sandbox %q alone", sandboxName)
		}
		return store.Secret{}, &problem{kind: notFound, sentence: fmt.Sprintf("no secret %.80q %s", name, where), hint: "ssh gate@HOST secret ls"}
	}
	return s, err
}

// SetSecret adds a secret to the caller's vault or to a sandbox, or replaces it.
func (l *Login) SetSecret(ctx context.Context, name, sandboxName, form string, value []byte) error {
	if err := secretName(name); err != nil {
		return err
	}
	id, err := l.secretScope(ctx, sandboxName)
	if err != nil {
		return err
	}
	vault := l.gate.cfg.Vault
	all, err := vault.SecretsOf(ctx, l.user.ID)
	if err != nil {
		return err
	}
	known := slices.ContainsFunc(all, func(s store.Secret) bool { return s.Name == name && s.SandboxID == id })
	if len(all) >= maxSecrets && !known {
		return &problem{kind: failed, sentence: fmt.Sprintf("you have %d secrets, which is the most", maxSecrets), hint: "remove one: ssh gate@HOST secret rm NAME"}
	}
	l.known.learn([]string{string(value)})
	if err := vault.Set(ctx, store.Secret{UserID: l.user.ID, SandboxID: id, Name: name, Form: form}, value); err != nil {
		return err
	}
	l.log.Info("secret set", "name", name, keySandbox, id)
	return nil
}

// RotateSecret gives a secret that there is a new value.
func (l *Login) RotateSecret(ctx context.Context, name, sandboxName string, value []byte) error {
	s, err := l.findSecret(ctx, name, sandboxName)
	if err != nil {
		return err
	}
	return l.SetSecret(ctx, name, sandboxName, s.Form, value)
}

// Secrets returns the caller's secrets.
func (l *Login) Secrets(ctx context.Context) ([]store.Secret, error) {
	if l.gate.cfg.Vault == nil {
		return nil, errNoVault
	}
	return l.gate.cfg.Vault.SecretsOf(ctx, l.user.ID)
}

// RemoveSecret deletes a secret.
func (l *Login) RemoveSecret(ctx context.Context, name, sandboxName string) error {
	s, err := l.findSecret(ctx, name, sandboxName)
	if err != nil {
		return err
	}
	if err := l.gate.cfg.Vault.Delete(ctx, s.ID); err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	l.log.Info("secret removed", "name", name, keySandbox, s.SandboxID)
	return nil
}

// vaultSecrets returns the secrets of those names in the caller's vault.
func (l *Login) vaultSecrets(ctx context.Context, names []string) ([]store.Secret, error) {
	found := make([]store.Secret, len(names))
	for i, name := range names {
		s, err := l.findSecret(ctx, name, "")
		if p, ok := errors.AsType[*problem](err); ok && p.kind == notFound {
			p.hint = "put it there first: ssh gate@HOST secret set NAME"
		}
		if err != nil {
			return nil, err
		}
		found[i] = s
	}
	return found, nil
}

// GiveSecrets lets a sandbox have secrets of the caller's vault.
func (l *Login) GiveSecrets(ctx context.Context, row store.Sandbox, secrets []store.Secret) error {
	if err := l.ownsSecretsOf(row); err != nil {
		return err
	}
	for _, s := range secrets {
		if err := l.gate.cfg.Vault.Give(ctx, s.ID, row.ID); err != nil {
			return err
		}
		l.log.Info("secret given", "name", s.Name, keySandbox, row.ID)
	}
	return nil
}

// TakeSecret undoes GiveSecrets for one.
func (l *Login) TakeSecret(ctx context.Context, row store.Sandbox, s store.Secret) error {
	if err := l.ownsSecretsOf(row); err != nil {
		return err
	}
	err := l.gate.cfg.Vault.Take(ctx, s.ID, row.ID)
	if errors.Is(err, store.ErrNotFound) {
		return &problem{kind: notFound, sentence: fmt.Sprintf("sandbox %q does not have the secret %q", row.Name, s.Name)}
	}
	if err == nil {
		l.log.Info("secret taken", "name", s.Name, keySandbox, row.ID)
	}
	return err
}

// RotateVaultKey seals all secrets of all users with a new key.
func (l *Login) RotateVaultKey(ctx context.Context) (key string, n int, err error) {
	if l.gate.cfg.Vault == nil {
		return "", 0, errNoVault
	}
	if err := l.may(ctx, "secret rotate-key"); err != nil {
		return "", 0, err
	}
	key, n, err = l.gate.cfg.Vault.Rotate(ctx)
	if errors.Is(err, store.ErrKeyElsewhere) {
		return "", 0, &problem{
			kind:     failed,
			sentence: "the vault's key comes from the gateway's environment or from systemd, and is changed there",
			hint:     "put a new key on a line before the old one and restart the gateway, which then seals all secrets with it",
		}
	}
	if err == nil {
		l.log.Info("key of the vault changed", "key", key, "secrets", n)
	}
	return key, n, err
}

// equip gives a command the secrets of the sandbox that it is for, and records it.
// Whatever starts one on a user's behalf calls it. It returns what removes their values from text.
func (l *Login) equip(ctx context.Context, row store.Sandbox, cmd *guest.Command) (r *redact.Redactor, err error) {
	l.gate.meter.of(row.ID).jobs.Add(1)
	defer func() { l.auditCommand(row, cmd, err) }() // once it is known what to redact
	secrets, err := l.gate.equip(ctx, row, cmd, func(name string) { l.audit(auditSecret, &row, name, nil) })
	if err != nil || len(secrets) == 0 {
		return nil, err
	}
	values := make([]string, len(secrets))
	for i, s := range secrets {
		values[i] = string(s.Value)
	}
	l.known.learn(values)
	return redact.New(values), nil
}

// equip is Login.equip for who works without a login. It returns what was given, and
// has given record the name of each.
func (g *Gateway) equip(ctx context.Context, row store.Sandbox, cmd *guest.Command, given func(name string)) ([]store.Revealed, error) {
	if g.cfg.Vault == nil {
		return nil, nil
	}
	secrets, err := g.cfg.Vault.Reveal(ctx, row.ID)
	if err != nil || len(secrets) == 0 {
		return nil, err
	}
	size := 0
	var env [][]byte
	for _, s := range secrets {
		size += len(s.Value)
		// No variable that a client sends stands in for a secret.
		cmd.Env = slices.DeleteFunc(cmd.Env, func(kv []byte) bool { return strings.HasPrefix(string(kv), s.Name+"=") })
		if s.Form == store.SecretFile {
			cmd.Files = append(cmd.Files, guest.File{Variable: s.Name, Data: s.Value})
		} else {
			env = append(env, fmt.Appendf(nil, "%s=%s", s.Name, s.Value))
		}
	}
	if size > maxSecretsSize {
		return nil, &problem{
			kind:     failed,
			sentence: fmt.Sprintf("the secrets of sandbox %q have more than %d KiB together", row.Name, maxSecretsSize>>10),
			hint:     "take one from it: ssh gate@HOST secret take NAME " + row.Name,
		}
	}
	for _, s := range secrets {
		if err := g.db.Expose(ctx, row.ID, s.Name); err != nil {
			return nil, err
		}
	}
	cmd.Env = append(cmd.Env, env...)
	for _, s := range secrets {
		g.touches.touch(use{secret: s.ID})
		given(s.Name)
	}
	return secrets, nil
}

// knownSecrets are the values that have passed through a login, none of which may
// be in its part of the log.
type knownSecrets struct {
	current atomic.Pointer[redact.Redactor]
	own     sync.Once // all of the user's

	mu     sync.Mutex
	values []string
}

// learnOwn learns all secrets of the caller, before something that may name one is
// recorded.
func (l *Login) learnOwn() {
	if l.gate.cfg.Vault == nil {
		return
	}
	l.known.own.Do(func() {
		secrets, err := l.gate.cfg.Vault.RevealAll(context.WithoutCancel(l.ctx), l.user.ID)
		if err != nil {
			l.log.Error("secrets not read", keyErr, err)
		}
		values := make([]string, len(secrets))
		for i, s := range secrets {
			values[i] = string(s.Value)
		}
		l.known.learn(values)
	})
}

func (k *knownSecrets) learn(values []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	before := len(k.values)
	for _, v := range values {
		if !slices.Contains(k.values, v) {
			k.values = append(k.values, v)
		}
	}
	if len(k.values) > before {
		k.current.Store(redact.New(k.values))
	}
}
