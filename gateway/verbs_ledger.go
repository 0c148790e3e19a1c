package gateway

import (
	"encoding/csv"
	"fmt"
	"strconv"
	"strings"
	"time"

	"sandgate/sandbox"
	"sandgate/store"
)

// LedgerVerbs are those of usage, quotas, audit and recordings.
type LedgerVerbs struct {
	Usage usageVerb  `cmd:"" help:"Tell what was used in a month. Example: usage --by day --month 2026-11"`
	Audit auditVerbs `cmd:"" help:"Tell what was done. Example: audit --sandbox web --since 2h"`
	Rec   recVerbs   `cmd:"" help:"Recordings of terminals: new --record, set NAME --record. Example: rec ls"`
	Quota quotaVerbs `cmd:"" help:"Bound what users may use. Example: quota set hours 100 --user alice"`
}

type usageVerb struct {
	JSON
	By    string `enum:"user,sandbox,day" default:"sandbox" help:"What to sum by: user, sandbox or day."`
	Month string `help:"Month, such as 2026-11, of UTC. Default: this one." placeholder:"YYYY-MM"`
	User  string `help:"Another user; for admins."`
	All   bool   `help:"All users; for admins."`
	CSV   bool   `name:"csv" help:"Print CSV."`
}

// A usageView is a row of usage as JSON has it. What was not measured is left out.
type usageView struct {
	User             string   `json:"user,omitempty"`
	Sandbox          string   `json:"sandbox,omitempty"`
	Day              string   `json:"day,omitempty"`
	SandboxSeconds   float64  `json:"sandbox_seconds"`
	CPUSeconds       *float64 `json:"cpu_seconds,omitempty"`
	MemoryPeak       *int64   `json:"memory_peak,omitempty"` // bytes
	BytesIn          int64    `json:"bytes_in"`
	BytesOut         int64    `json:"bytes_out"`
	Sessions         int64    `json:"sessions"`
	Jobs             int64    `json:"jobs"`
	TokensIn         int64    `json:"tokens_in"`
	TokensCacheRead  int64    `json:"tokens_cache_read"`
	TokensCacheWrite int64    `json:"tokens_cache_write"`
	TokensOut        int64    `json:"tokens_out"`
	CostUSD          float64  `json:"cost_usd"`
}

func usageViewOf(r store.UsageRow) usageView {
	w := usageView{
		User: r.User, Sandbox: r.Sandbox, Day: r.Day,
		SandboxSeconds: r.Running.Seconds(), MemoryPeak: r.MemoryPeak,
		BytesIn: r.BytesIn, BytesOut: r.BytesOut, Sessions: r.Sessions, Jobs: r.Jobs,
		TokensIn: r.TokensIn, TokensCacheRead: r.TokensCacheRead, TokensCacheWrite: r.TokensCacheWrite, TokensOut: r.TokensOut,
		CostUSD: float64(r.CostMicros) / 1e6,
	}
	if r.CPU != nil {
		w.CPUSeconds = new(r.CPU.Seconds())
	}
	return w
}

func (v *usageVerb) Run(c *verbCall) error {
	month := time.Now()
	if v.Month != "" {
		var err error
		if month, err = time.Parse("2006-01", v.Month); err != nil {
			return &problem{kind: usage, sentence: fmt.Sprintf("%.40q is not a month", v.Month), hint: "such as 2026-11"}
		}
	}
	rows, err := c.login.Usage(c.ctx, v.User, v.All, month, v.By)
	if err != nil {
		return err
	}
	switch {
	case v.JSON.JSON:
		for _, r := range rows {
			if err := c.print(true, usageViewOf(r), ""); err != nil {
				return err
			}
		}
		return nil
	case v.CSV:
		return c.usageCSV(rows)
	}
	return c.usageTable(rows, v)
}

func (c *verbCall) usageCSV(rows []store.UsageRow) error {
	w := csv.NewWriter(c.stdout)
	w.Write([]string{"user", "sandbox", "day", "sandbox_seconds", "cpu_seconds", "memory_peak", "bytes_in", "bytes_out", "sessions", "jobs",
		"tokens_in", "tokens_cache_read", "tokens_cache_write", "tokens_out", "cost_usd"})
	for _, r := range rows {
		u := usageViewOf(r)
		line := []string{u.User, u.Sandbox, u.Day, fmt.Sprintf("%.3f", u.SandboxSeconds), "", ""}
		if u.CPUSeconds != nil {
			line[4] = fmt.Sprintf("%.3f", *u.CPUSeconds)
		}
		if u.MemoryPeak != nil {
			line[5] = strconv.FormatInt(*u.MemoryPeak, 10)
		}
		for _, n := range []int64{u.BytesIn, u.BytesOut, u.Sessions, u.Jobs, u.TokensIn, u.TokensCacheRead, u.TokensCacheWrite, u.TokensOut} {
			line = append(line, strconv.FormatInt(n, 10))
		}
		w.Write(append(line, fmt.Sprintf("%.6f", u.CostUSD)))
	}
	w.Flush()
	return w.Error()
}

// usageTable prints rows for people, with a bar for the hours on a terminal, and
// how the quotas stand.
func (c *verbCall) usageTable(rows []store.UsageRow, v *usageVerb) error {
	var most time.Duration
	for _, r := range rows {
		most = max(most, r.Running)
	}
	barWidth := 20
	if n := c.session.columns(); n > 0 && n < 110 { // beside the other columns
		barWidth = 8
	}
	t := c.table()
	fmt.Fprintf(t, "%s\tHOURS\tCPU\tMEMORY\tIN\tOUT\tSESSIONS\tJOBS\tTOKENS\tUSD\n", strings.ToUpper(v.By))
	for _, r := range rows {
		of := map[string]string{store.ByUser: r.User, store.BySandbox: r.Sandbox, store.ByDay: r.Day}[v.By]
		if v.By == store.BySandbox && r.User != c.login.user.Name {
			of += "." + r.User
		}
		cpu, memory := "-", "-"
		if r.CPU != nil {
			cpu = r.CPU.Round(time.Second / 10).String()
		}
		if r.MemoryPeak != nil {
			memory = size(*r.MemoryPeak)
		}
		tokens := r.TokensIn + r.TokensCacheRead + r.TokensCacheWrite + r.TokensOut
		fmt.Fprintf(t, "%s\t%.2f\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s", of, r.Running.Hours(), cpu, memory,
			size(r.BytesIn), size(r.BytesOut), r.Sessions, r.Jobs, tokens, sandbox.QuotaMoney.Format(r.CostMicros))
		if c.onTerminal() {
			t.Write([]byte("\t" + bar(r.Running, most, barWidth)))
		}
		t.Write([]byte("\n"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if v.Month != "" || v.User != "" || v.All {
		return nil
	}
	standings, err := c.login.Standings(c.ctx)
	if err != nil {
		return err
	}
	for _, s := range standings {
		mark := ""
		if s.Near() {
			mark = "  <- nearly used up"
		}
		if s.Reached() {
			mark = "  <- used up"
		}
		fmt.Fprintf(c.stdout, "quota %s: %s (%d %%)%s\n", s.Measure, s, s.Share(), mark)
	}
	return nil
}

// bar is n of most, as long as that takes of width characters.
func bar(n, most time.Duration, width int) string {
	const eighths = " ▏▎▍▌▋▊▉"
	if most <= 0 {
		return ""
	}
	length := int(time.Duration(width) * 8 * n / most)
	s := strings.Repeat("█", length/8)
	if rest := length % 8; rest > 0 {
		s += string([]rune(eighths)[rest])
	}
	return s
}

// size is a number of bytes for people.
func size(n int64) string {
	const units = "KMGTPE"
	if n < 1<<10 {
		return strconv.FormatInt(n, 10)
	}
	f, unit := float64(n)/(1<<10), 0
	for f >= 1<<10 {
		f, unit = f/(1<<10), unit+1
	}
	return fmt.Sprintf("%.1f%c", f, units[unit])
}

type quotaVerbs struct {
	Set quotaSetVerb `cmd:"" help:"Set a quota; for admins. Example: quota set hours 100 --user alice"`
	Ls  quotaLsVerb  `cmd:"" help:"List the quotas that hold for you and how they stand; for admins, all quotas. Example: quota ls"`
	Rm  quotaRmVerb  `cmd:"" help:"Remove a quota; for admins. Example: quota rm hours --user alice"`
}

type quotaOf struct {
	User     string `help:"For one user. Without it the quota holds for each user who has none of their own."`
	Together bool   `help:"For all users together."`
}

type quotaSetVerb struct {
	JSON
	Measure string `arg:"" help:"What to bound: sandboxes, running (at the same time), hours (of running sandboxes in a month), tokens or money (in a month, in US dollars)."`
	Amount  string `arg:"" help:"How much."`
	quotaOf
}

func (v *quotaSetVerb) Run(c *verbCall) error {
	if err := c.login.SetQuota(c.ctx, quotaSubject{v.User, v.Together}, v.Measure, v.Amount); err != nil {
		return err
	}
	return c.print(v.JSON.JSON, map[string]string{"measure": v.Measure, "result": "set"}, v.Measure+" set\n")
}

type quotaRmVerb struct {
	JSON
	Measure string `arg:"" help:"What is bounded."`
	quotaOf
}

func (v *quotaRmVerb) Run(c *verbCall) error {
	if err := c.login.RemoveQuota(c.ctx, quotaSubject{v.User, v.Together}, v.Measure); err != nil {
		return err
	}
	return c.print(v.JSON.JSON, map[string]string{"measure": v.Measure, "result": "removed"}, v.Measure+" removed\n")
}

type quotaLsVerb struct{ JSON }

// A quotaView is a quota as JSON has it.
type quotaView struct {
	For     string `json:"for"` // "each user", "all together" or "user NAME"
	Measure string `json:"measure"`
	Amount  string `json:"amount"`
}

func (v *quotaLsVerb) Run(c *verbCall) error {
	quotas, err := c.login.Quotas(c.ctx)
	if err != nil {
		return err
	}
	t := c.table()
	fmt.Fprintln(t, "FOR\tQUOTA\tAMOUNT")
	for _, q := range quotas {
		w := quotaView{Measure: q.Measure, Amount: sandbox.Measure(q.Measure).Format(q.Value)}
		switch q.Subject {
		case store.EachUser:
			w.For = "each user"
		case store.AllUsers:
			w.For = "all together"
		default:
			w.For = "user " + q.User
		}
		if v.JSON.JSON {
			if err := c.print(true, w, ""); err != nil {
				return err
			}
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", w.For, w.Measure, w.Amount)
	}
	if v.JSON.JSON {
		return nil
	}
	return t.Flush()
}
