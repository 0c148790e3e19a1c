package gateway

import (
	"context"
	"fmt"
	"io"
	"time"

	"sandgate/gateway/redact"
	"sandgate/store"
)

// VaultVerbs are those of secrets.
type VaultVerbs struct {
	Secret secretVerbs `cmd:"" help:"Keep secrets and give them to sandboxes. Example: secret set TOKEN --sandbox web <token.txt"`
}

type secretVerbs struct {
	Set       secretSetVerb       `cmd:"" help:"Keep a secret, or replace it; its value comes from stdin. Example: secret set TOKEN <token.txt"`
	Ls        secretLsVerb        `cmd:"" help:"List your secrets; values are never shown. Example: secret ls"`
	Rm        secretRmVerb        `cmd:"" help:"Delete secrets. Example: secret rm TOKEN"`
	Rotate    secretRotateVerb    `cmd:"" help:"Give a secret a new value, from stdin. Example: secret rotate TOKEN <token.txt"`
	Give      secretGiveVerb      `cmd:"" help:"Let sandboxes have a secret of your vault, from their next command on. Example: secret give TOKEN web"`
	Take      secretTakeVerb      `cmd:"" help:"Undo give. Example: secret take TOKEN web"`
	RotateKey secretRotateKeyVerb `cmd:"" help:"Seal all secrets of all users with a new key; for admins. Example: secret rotate-key"`
}

// readSecret reads a value: a line without echo from a terminal, else all of stdin.
func (c *verbCall) readSecret(name string) ([]byte, error) {
	if c.session == nil || c.session.terminal == nil {
		value, err := io.ReadAll(io.LimitReader(c.stdin, maxSecretSize+2))
		if err != nil {
			return nil, err
		}
		return secretValue(value, name)
	}
	fmt.Fprintf(c.stderr, "Value of %s (it is not shown): ", name)
	value, err := readHidden(c.stdin)
	io.WriteString(c.stderr, "\n")
	if err != nil {
		return nil, err
	}
	return secretValue(value, name)
}

// readHidden reads a line from a terminal, which echoes nothing by itself. The
// keys that delete work, and those that interrupt.
func readHidden(r io.Reader) ([]byte, error) {
	var line []byte
	var b [1]byte
	for {
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return nil, errNotEntered
		}
		switch b[0] {
		case '\r', '\n':
			return line, nil
		case 3, 4: // ^C, ^D
			return nil, errNotEntered
		case 8, 0x7f: // backspace
			line = line[:max(0, len(line)-1)]
		case 21: // ^U
			line = line[:0]
		default:
			if line = append(line, b[0]); len(line) > maxSecretSize {
				return line, nil // secretValue says that it is too long
			}
		}
	}
}

var errNotEntered = &problem{kind: failed, sentence: "no value was entered; nothing is changed"}

type secretSetVerb struct {
	JSON
	Name    string `arg:"" help:"Name: that of the variable that commands see."`
	Sandbox string `help:"The sandbox to have it, alone. Without one it is in your vault, for secret give and new --secret."`
	As      string `enum:"env,file" default:"env" help:"How commands get it: env, as a variable, or file, as a file in memory whose path is in the variable."`
}

func (v *secretSetVerb) Run(c *verbCall) error {
	// Before the value is typed.
	if err := secretName(v.Name); err != nil {
		return err
	}
	if _, err := c.login.secretScope(c.ctx, v.Sandbox); err != nil {
		return err
	}
	value, err := c.readSecret(v.Name)
	if err != nil {
		return err
	}
	if err := c.login.SetSecret(c.ctx, v.Name, v.Sandbox, v.As, value); err != nil {
		return err
	}
	return c.secretDone(v.JSON, v.Name, "set", value)
}

// secretDone says that a secret has a value.
func (c *verbCall) secretDone(j JSON, name, what string, value []byte) error {
	if len(value) < redact.MinLength {
		fmt.Fprintf(c.stderr, "sandgate: values of less than %d bytes are not removed from logs and recordings\n", redact.MinLength)
	}
	return c.print(j.JSON, map[string]string{"name": name, "result": what}, name+" "+what+"\n")
}

type secretRotateVerb struct {
	JSON
	Name    string `arg:"" help:"Name."`
	Sandbox string `help:"The sandbox whose own it is. Without one it is in your vault."`
}

func (v *secretRotateVerb) Run(c *verbCall) error {
	if _, err := c.login.findSecret(c.ctx, v.Name, v.Sandbox); err != nil {
		return err
	}
	value, err := c.readSecret(v.Name)
	if err != nil {
		return err
	}
	if err := c.login.RotateSecret(c.ctx, v.Name, v.Sandbox, value); err != nil {
		return err
	}
	return c.secretDone(v.JSON, v.Name, "rotated", value)
}

type secretRmVerb struct {
	JSON
	Names   []string `arg:"" name:"name" help:"Names."`
	Sandbox string   `help:"The sandbox whose own they are. Without one they are in your vault."`
}

func (v *secretRmVerb) Run(c *verbCall) error {
	return c.each(v.Names, v.JSON.JSON, "removed", func(n string) error { return c.login.RemoveSecret(c.ctx, n, v.Sandbox) })
}

type secretGiveVerb struct {
	JSON
	Name      string   `arg:"" help:"Name, in your vault."`
	Sandboxes []string `arg:"" name:"sandbox" help:"Sandboxes."`
}

func (v *secretGiveVerb) Run(c *verbCall) error {
	return c.withSecret(v.JSON, v.Name, v.Sandboxes, "given", func(ctx context.Context, row store.Sandbox, s store.Secret) error {
		return c.login.GiveSecrets(ctx, row, []store.Secret{s})
	})
}

type secretTakeVerb struct {
	JSON
	Name      string   `arg:"" help:"Name, in your vault."`
	Sandboxes []string `arg:"" name:"sandbox" help:"Sandboxes."`
}

func (v *secretTakeVerb) Run(c *verbCall) error {
	return c.withSecret(v.JSON, v.Name, v.Sandboxes, "taken", c.login.TakeSecret)
}

// withSecret carries out do for a secret of the vault and each of the sandboxes.
func (c *verbCall) withSecret(j JSON, name string, sandboxes []string, done string, do func(context.Context, store.Sandbox, store.Secret) error) error {
	found, err := c.login.vaultSecrets(c.ctx, []string{name})
	if err != nil {
		return err
	}
	return c.each(sandboxes, j.JSON, done, func(n string) error {
		row, err := c.login.named(c.ctx, "secret give", n)
		if err != nil {
			return err
		}
		return do(c.ctx, row, found[0])
	})
}

// A secretView is a secret as JSON has it.
type secretView struct {
	Name     string     `json:"name"`
	Sandbox  string     `json:"sandbox,omitempty"` // whose own it is
	As       string     `json:"as"`
	GivenTo  int        `json:"given_to"` // sandboxes, of one in the vault
	Changed  time.Time  `json:"changed"`
	LastUsed *time.Time `json:"last_used,omitempty"`
}

type secretLsVerb struct{ JSON }

func (v *secretLsVerb) Run(c *verbCall) error {
	all, err := c.login.Secrets(c.ctx)
	if err != nil {
		return err
	}
	if v.JSON.JSON {
		for _, s := range all {
			w := secretView{Name: s.Name, Sandbox: s.Sandbox, As: s.Form, GivenTo: s.GivenTo, Changed: s.Changed}
			if !s.LastUsed.IsZero() {
				w.LastUsed = &s.LastUsed
			}
			if err := c.print(true, w, ""); err != nil {
				return err
			}
		}
		return nil
	}
	t := c.table()
	fmt.Fprintln(t, "NAME\tFOR\tAS\tCHANGED\tLAST USED")
	for _, s := range all {
		whose, used := s.Sandbox, "never"
		switch {
		case whose == "" && s.GivenTo == 1:
			whose = "1 sandbox"
		case whose == "":
			whose = fmt.Sprintf("%d sandboxes", s.GivenTo)
		}
		if !s.LastUsed.IsZero() {
			used = ago(s.LastUsed)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", s.Name, whose, s.Form, ago(s.Changed), used)
	}
	return t.Flush()
}

type secretRotateKeyVerb struct{ JSON }

func (v *secretRotateKeyVerb) Run(c *verbCall) error {
	key, n, err := c.login.RotateVaultKey(c.ctx)
	if err != nil {
		return err
	}
	return c.print(v.JSON.JSON, map[string]any{"key": key, "secrets": n},
		fmt.Sprintf("%s sealed with the new key %s\n", plural(n, "secret"), key))
}
