package gateway

import (
	"fmt"
)

// NameVerbs are the verbs about what sandboxes are called, and by whom.
type NameVerbs struct {
	Rename  renameVerb  `cmd:"" help:"Give a sandbox another name. Example: rename web old-web"`
	Share   shareVerb   `cmd:"" help:"Let another user use a sandbox, as NAME.YOU; without a user, tell who may. Example: share web bob --read-only"`
	Unshare unshareVerb `cmd:"" help:"Undo share and end the connections that use it. Example: unshare web bob"`
	Alias   aliasVerbs  `cmd:"" help:"Other names for sandboxes, and addresses that lead to them. Example: alias ls"`
}

type renameVerb struct {
	JSON
	From string `arg:"" help:"Sandbox."`
	To   string `arg:"" help:"Its new name."`
}

func (v *renameVerb) Run(c *verbCall) error {
	return c.each([]string{v.From}, v.JSON.JSON, "is now "+v.To, func(n string) error { return c.login.Rename(c.ctx, n, v.To) })
}

type shareVerb struct {
	JSON
	Sandbox  string `arg:"" help:"Sandbox."`
	User     string `arg:"" optional:"" help:"User."`
	ReadOnly bool   `help:"They may look and read files, and neither run nor change anything."`
}

func (v *shareVerb) Run(c *verbCall) error {
	if v.User != "" {
		done := "shared with " + v.User
		if v.ReadOnly {
			done += " for reading"
		}
		return c.each([]string{v.Sandbox}, v.JSON.JSON, done, func(n string) error { return c.login.Share(c.ctx, n, v.User, v.ReadOnly) })
	}
	l, err := c.login.Info(c.ctx, v.Sandbox)
	if err != nil {
		return err
	}
	for _, g := range l.Grants {
		how := "use"
		if g.ReadOnly {
			how = "read-only"
		}
		if err := c.print(v.JSON.JSON, map[string]any{"user": g.User, "read_only": g.ReadOnly, "created": g.Created}, g.User+" "+how+"\n"); err != nil {
			return err
		}
	}
	return nil
}

type unshareVerb struct {
	JSON
	Sandbox string `arg:"" help:"Sandbox."`
	User    string `arg:"" help:"User."`
}

func (v *unshareVerb) Run(c *verbCall) error {
	return c.each([]string{v.Sandbox}, v.JSON.JSON, "not shared with "+v.User+" any more", func(n string) error { return c.login.Unshare(c.ctx, n, v.User) })
}

type aliasVerbs struct {
	Add aliasAddVerb `cmd:"" help:"Call a sandbox by another name, or bind an address of the gateway to it. Example: alias add web --address 127.0.0.3"`
	Ls  aliasLsVerb  `cmd:"" help:"List your aliases. Example: alias ls"`
	Rm  aliasRmVerb  `cmd:"" help:"Remove aliases. Example: alias rm www"`
}

type aliasAddVerb struct {
	JSON
	Sandbox string `arg:"" help:"Sandbox."`
	Alias   string `arg:"" optional:"" help:"Its other name."`
	Address string `help:"At this address of the gateway, you reach it under any name."`
}

func (v *aliasAddVerb) Run(c *verbCall) error {
	alias := v.Alias
	switch {
	case (v.Alias == "") == (v.Address == ""):
		return &problem{kind: usage, sentence: "name an alias, or an --address", hint: "ssh gate@HOST alias add web www"}
	case v.Address != "":
		alias = v.Address
		if ValidName(alias) {
			return &problem{kind: usage, sentence: fmt.Sprintf("%.80q is not an address", alias), hint: "such as 127.0.0.3"}
		}
	}
	return c.each([]string{v.Sandbox}, v.JSON.JSON, "is also "+alias, func(n string) error { return c.login.AddAlias(c.ctx, n, alias) })
}

type aliasLsVerb struct{ JSON }

func (v *aliasLsVerb) Run(c *verbCall) error {
	all, err := c.login.Aliases(c.ctx)
	if err != nil {
		return err
	}
	if v.JSON.JSON {
		for _, a := range all {
			if err := c.print(true, map[string]string{"alias": a.Name, "sandbox": c.login.nameOf(a.Sandbox)}, ""); err != nil {
				return err
			}
		}
		return nil
	}
	t := c.table()
	fmt.Fprintln(t, "ALIAS\tSANDBOX")
	for _, a := range all {
		fmt.Fprintf(t, "%s\t%s\n", a.Name, c.login.nameOf(a.Sandbox))
	}
	return t.Flush()
}

type aliasRmVerb struct {
	JSON
	Aliases []string `arg:"" name:"alias" help:"Names or addresses."`
}

func (v *aliasRmVerb) Run(c *verbCall) error {
	return c.each(v.Aliases, v.JSON.JSON, "removed", func(a string) error { return c.login.RemoveAlias(c.ctx, a) })
}
