package gateway

import (
	"fmt"
	"time"
)

// WhoVerbs are those about what goes on now.
type WhoVerbs struct {
	Who whoVerb `cmd:"" help:"Tell who is logged in, and what keeps sandboxes busy: yours, or for admins all. Example: who --json"`
}

type whoVerb struct{ JSON }

// A whoView is a Presence as JSON has it.
type whoView struct {
	Kind    string     `json:"kind"` // connection, session, job or run
	User    string     `json:"user"` // of a job, the sandbox's owner
	From    string     `json:"from,omitempty"`
	Conn    string     `json:"conn,omitempty"`
	Since   time.Time  `json:"since"`
	Heard   *time.Time `json:"heard,omitempty"` // when the client last sent something
	Sandbox string     `json:"sandbox,omitempty"`
	What    string     `json:"what,omitempty"`
}

func (v *whoVerb) Run(c *verbCall) error {
	all, err := c.login.Who(c.ctx)
	if err != nil {
		return err
	}
	t := c.table()
	fmt.Fprintln(t, "USER\tFROM\tSINCE\tIDLE\tSANDBOX\tWHAT")
	for _, p := range all {
		w := whoView{Kind: p.Kind, User: p.User, From: p.From, Conn: p.Conn, Since: p.Since, Sandbox: p.Sandbox, What: p.What}
		idle := "-"
		if !p.Heard.IsZero() {
			w.Heard, idle = &p.Heard, span(time.Since(p.Heard))
		}
		if v.JSON.JSON {
			if err := c.print(true, w, ""); err != nil {
				return err
			}
			continue
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", w.User, orDash(w.From), span(time.Since(w.Since)), idle, orDash(w.Sandbox), orDash(w.What))
	}
	if v.JSON.JSON {
		return nil
	}
	return t.Flush()
}

// span is a time span in as few characters as say enough.
func span(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(max(0, d).Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd", int(d.Hours())/24)
}
