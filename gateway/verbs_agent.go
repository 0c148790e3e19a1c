package gateway

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"sandgate/agent"
	"sandgate/store"
)

// AgentVerbs are those of the agent and its runs.
type AgentVerbs struct {
	Agent   agentVerb   `cmd:"" help:"Set the agent to work in a sandbox. Example: agent web \"Fix the failing tests\""`
	Runs    runsVerbs   `cmd:"" help:"The agent's runs. Example: runs"`
	Cancel  cancelVerb  `cmd:"" help:"End what the agent is doing in a run. Example: cancel run-x7"`
	Approve approveVerb `cmd:"" help:"Allow, or deny, what a run asks for. Example: approve run-x7 --always"`
	Answer  answerVerb  `cmd:"" help:"Answer a question of a run. Example: answer run-x7 \"the second one\""`
	Export  exportVerb  `cmd:"" help:"Print a whole run. Example: export run-x7 --md"`
}

type runsVerbs struct {
	Ls     runsLsVerb     `cmd:"" default:"withargs" help:"List your runs. Example: runs --json"`
	Show   runsShowVerb   `cmd:"" help:"Tell about one run and what it asks. Example: runs show run-x7"`
	Attach runsAttachVerb `cmd:"" help:"Follow a run. Example: runs attach run-x7"`
	Rm     runsRmVerb     `cmd:"" help:"Delete runs. Example: runs rm run-x7"`
}

type agentVerb struct {
	JSON
	runFlags
	Sandbox  string   `arg:"" optional:"" help:"Sandbox; not with --resume."`
	Prompt   []string `arg:"" optional:"" help:"What to do. Without it, it is read from stdin."`
	Resume   string   `help:"Run to say it in." placeholder:"RUN"`
	Continue bool     `help:"Say it in the last run."`
	Detach   bool     `short:"d" help:"Print the run's name and do not follow it."`
}

func (*agentVerb) lasting() {}

func (v *agentVerb) Run(c *verbCall) error {
	words := v.Prompt
	resumed := v.Resume != "" || v.Continue
	if resumed && v.Sandbox != "" {
		words = append([]string{v.Sandbox}, words...)
	}
	if !resumed && v.Sandbox == "" {
		return &problem{kind: usage, sentence: "no sandbox named", hint: `ssh gate@HOST agent SANDBOX "what to do"`}
	}
	prompt := strings.Join(words, " ")
	if prompt == "" && c.session.terminal == nil {
		b, err := io.ReadAll(io.LimitReader(c.stdin, maxPrompt+1))
		if err != nil {
			return err
		}
		prompt = string(b)
	}
	var run store.Run
	var err error
	after := int64(0)
	if resumed {
		if run, err = c.login.run(c.ctx, "agent", v.Resume); err != nil {
			return err
		}
		if after, err = c.login.gate.db.LastRunEvent(c.ctx, run.ID); err != nil {
			return err
		}
	} else {
		var o RunOptions
		var t target
		if o, err = v.options(c.session.terminal != nil || v.Detach); err != nil {
			return err
		}
		if t, err = parseTarget(v.Sandbox); err != nil {
			return err
		}
		if t.lobby || t.session != "" {
			return &problem{kind: usage, sentence: fmt.Sprintf("%.80q is not a sandbox name", v.Sandbox)}
		}
		if run, err = c.login.NewRunFor(c.ctx, t, o, prompt); err != nil {
			return err
		}
	}
	begin := func() error {
		_, err := c.login.ContinueRun(c.ctx, run.ID, prompt)
		return err
	}
	if v.Detach {
		if err := begin(); err != nil {
			return err
		}
		return c.print(v.JSON.JSON, runViewOf(run), run.ID+"\n")
	}
	return c.followRun("agent", run.ID, after, begin, v.JSON.JSON)
}

// followRun shows a run until its turn ends. On a terminal Ctrl-C ends the turn, and
// twice the following. For begin see type following.
func (c *verbCall) followRun(d deed, id string, after int64, begin func() error, asJSON bool) error {
	if c.session.terminal != nil {
		go c.keys(id)
	}
	text := newAgentText(c.stdout, false) // stdout turns ends of lines itself
	text.colour = c.session.colours()
	code := 0
	err := c.login.Follow(c.ctx, d, id, following{
		after:    after,
		partials: !asJSON,
		deltas:   true,
		begin:    begin,
		until:    untilIdle,
		yield: func(e agent.Event, line []byte) error {
			if e.Type == agent.TypeResult {
				code = exitOfResult(e.Subtype)
			}
			if !asJSON {
				return gone(text.show(e))
			}
			line, err := wireLine(e, line)
			if err != nil {
				return err
			}
			_, err = c.stdout.Write(line)
			return gone(err)
		},
	})
	if err == nil && code != 0 {
		return exitCode(code)
	}
	return err
}

// keys obeys Ctrl-C on a terminal.
func (c *verbCall) keys(id string) {
	buf := make([]byte, 64)
	var last time.Time
	for {
		n, err := c.stdin.Read(buf)
		if strings.ContainsRune(string(buf[:n]), '\x03') {
			if time.Since(last) < 2*time.Second {
				fmt.Fprintf(c.stderr, "\nsandgate: detached; the run goes on: ssh gate@HOST runs attach %s\n", id)
				c.session.end(errClientGone)
				return
			}
			last = time.Now()
			fmt.Fprintln(c.stderr, "\nsandgate: ending the turn; Ctrl-C once more leaves it to itself")
			c.login.CancelRun(c.ctx, id)
		}
		if err != nil {
			return
		}
	}
}

// A runView is a run as JSON has it.
type runView struct {
	Run     string     `json:"run"`
	Sandbox string     `json:"sandbox"`
	State   string     `json:"state"`
	Title   string     `json:"title"`
	Created time.Time  `json:"created"`
	Changed time.Time  `json:"changed"`
	Options RunOptions `json:"options"`

	Questions []agent.Question `json:"questions,omitempty"`
}

func runViewOf(r store.Run) runView {
	v := runView{Run: r.ID, Sandbox: r.Sandbox, State: string(r.State), Title: r.Title, Created: r.Created, Changed: r.Changed}
	json.Unmarshal(r.Options, &v.Options)
	return v
}

type runsLsVerb struct{ JSON }

func (v *runsLsVerb) Run(c *verbCall) error {
	all, err := c.login.Runs(c.ctx)
	if err != nil {
		return err
	}
	if v.JSON.JSON {
		for _, r := range all {
			if err := c.print(true, runViewOf(r), ""); err != nil {
				return err
			}
		}
		return nil
	}
	t := c.table()
	fmt.Fprintln(t, "RUN\tSANDBOX\tSTATE\tCHANGED\tTITLE")
	for _, r := range all {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", r.ID, r.Sandbox, r.State, ago(r.Changed), r.Title)
	}
	return t.Flush()
}

type runsShowVerb struct {
	JSON
	Named string `arg:"" name:"run" optional:"" help:"Run. Default: the last one."`
}

func (v *runsShowVerb) Run(c *verbCall) error {
	run, questions, err := c.login.Questions(c.ctx, v.Named)
	if err != nil {
		return err
	}
	view := runViewOf(run)
	view.Questions = questions
	var b strings.Builder
	fmt.Fprintf(&b, "run      %s\nsandbox  %s\nstate    %s\ntitle    %s\ncreated  %s\nchanged  %s\n",
		run.ID, run.Sandbox, run.State, run.Title, run.Created.Format(time.RFC3339), run.Changed.Format(time.RFC3339))
	for _, q := range questions {
		what := q.Text
		if q.Kind == agent.CanUseTool {
			what = "may it " + describeCall(q.Tool, q.Input) + "?"
		}
		fmt.Fprintf(&b, "asks     %s: %s\n         ssh gate@HOST %s\n", q.ID, oneLine(what), answerHint(q, run.ID))
	}
	return c.print(v.JSON.JSON, view, b.String())
}

type runsAttachVerb struct {
	JSON
	Named string `arg:"" name:"run" optional:"" help:"Run. Default: the last one."`
	After int64  `help:"Number of the last event that was seen." placeholder:"SEQ"`
}

func (*runsAttachVerb) lasting() {}

func (v *runsAttachVerb) Run(c *verbCall) error {
	run, err := c.login.run(c.ctx, "runs attach", v.Named)
	if err != nil {
		return err
	}
	return c.followRun("runs attach", run.ID, v.After, nil, v.JSON.JSON)
}

type runsRmVerb struct {
	JSON
	Runs []string `arg:"" name:"run" help:"Runs."`
}

func (v *runsRmVerb) Run(c *verbCall) error {
	return c.each(v.Runs, v.JSON.JSON, "removed", func(id string) error {
		_, err := c.login.RemoveRun(c.ctx, id)
		return err
	})
}

type cancelVerb struct {
	JSON
	Named string `arg:"" name:"run" optional:"" help:"Run. Default: the last one."`
}

func (v *cancelVerb) Run(c *verbCall) error {
	run, err := c.login.CancelRun(c.ctx, v.Named)
	if err != nil {
		return err
	}
	return c.print(v.JSON.JSON, map[string]string{"run": run.ID, "result": "cancelled"}, run.ID+" cancelled\n")
}

type approveVerb struct {
	JSON
	Named    string `arg:"" name:"run" optional:"" help:"Run. Default: the last one."`
	Question string `arg:"" optional:"" help:"Question. Default: the only open one."`
	Deny     bool   `help:"Say no."`
	Always   bool   `help:"Allow the same for the rest of the run."`
	Reason   string `help:"For the model."`
}

func (v *approveVerb) Run(c *verbCall) error {
	if v.Deny && v.Always {
		return &problem{kind: usage, sentence: "--deny and --always exclude each other"}
	}
	done := "approved"
	if v.Deny {
		done = "denied"
	}
	run, err := c.login.Answer(c.ctx, "approve", v.Named, v.Question, agent.Answer{Allow: !v.Deny, Reason: v.Reason}, v.Always)
	if err != nil {
		return err
	}
	return c.print(v.JSON.JSON, map[string]string{"run": run.ID, "result": done}, run.ID+" "+done+"\n")
}

type answerVerb struct {
	JSON
	Named    string            `arg:"" name:"run" help:"Run."`
	Text     []string          `arg:"" optional:"" help:"The answer."`
	Question string            `help:"Question. Default: the only open one."`
	Value    map[string]string `help:"Answer to one of its fields." placeholder:"FIELD=VALUE" mapsep:"none"`
}

func (v *answerVerb) Run(c *verbCall) error {
	a := agent.Answer{Allow: true, Text: strings.Join(v.Text, " "), Values: v.Value}
	if a.Text == "" && len(a.Values) == 0 {
		return &problem{kind: usage, sentence: "there is no answer", hint: `ssh gate@HOST answer RUN "…"`}
	}
	run, err := c.login.Answer(c.ctx, "answer", v.Named, v.Question, a, false)
	if err != nil {
		return err
	}
	return c.print(v.JSON.JSON, map[string]string{"run": run.ID, "result": "answered"}, run.ID+" answered\n")
}

type exportVerb struct {
	JSON
	Named string `arg:"" name:"run" optional:"" help:"Run. Default: the last one."`
	MD    bool   `name:"md" help:"As Markdown; the default."`
}

func (*exportVerb) lasting() {}

func (v *exportVerb) Run(c *verbCall) error {
	run, err := c.login.run(c.ctx, "export", v.Named)
	if err != nil {
		return err
	}
	if !v.JSON.JSON {
		if _, err := fmt.Fprintf(c.stdout, "# %s\n\nRun %s in sandbox %s, %s\n", run.Title, run.ID, run.Sandbox, run.Created.Format(time.RFC3339)); err != nil {
			return err
		}
	}
	return c.login.Follow(c.ctx, "export", run.ID, following{
		until: atOnce,
		yield: func(e agent.Event, line []byte) error {
			if !v.JSON.JSON {
				_, err := io.WriteString(c.stdout, markdown(e))
				return err
			}
			line, err := wireLine(e, line)
			if err != nil {
				return err
			}
			_, err = c.stdout.Write(line)
			return err
		},
	})
}

// markdown is what a reader wants to see of an event.
func markdown(e agent.Event) string {
	b, err := json.Marshal(e.Fields["message"])
	if err != nil {
		return ""
	}
	var m agent.Message
	if json.Unmarshal(b, &m) != nil {
		return ""
	}
	var out strings.Builder
	for _, b := range m.Content {
		switch {
		case b.Type == agent.TextBlock && synthetic(e):
		case b.Type == agent.TextBlock && b.Text != "" && e.Type == agent.TypeUser:
			fmt.Fprintf(&out, "\n## User\n\n%s\n", plain(b.Text))
		case b.Type == agent.TextBlock && b.Text != "":
			fmt.Fprintf(&out, "\n%s\n", plain(b.Text))
		case b.Type == agent.ToolUseBlock:
			fmt.Fprintf(&out, "\n**%s**\n\n%s", b.Name, fenced("json", string(b.Input)))
		case b.Type == agent.ToolResultBlock:
			fmt.Fprintf(&out, "\n%s", fenced("", plain(b.WithoutImages("it is not part of this text").Result)))
		}
	}
	return out.String()
}

// synthetic says whether a message in the user's name is not the user's.
func synthetic(e agent.Event) bool { return e.Fields["synthetic"] != nil }

// fenced is a block of code, whatever is in it.
func fenced(language, text string) string {
	fence := "```"
	for strings.Contains(text, fence) {
		fence += "`"
	}
	return fence + language + "\n" + strings.TrimRight(text, "\n") + "\n" + fence + "\n"
}
