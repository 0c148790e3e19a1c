package gateway

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"sandgate/agent"
)

// agentText shows a run to people: text as it comes, a line for each call and what
// came of it, and at the end what it took.
type agentText struct {
	w      io.Writer
	colour bool

	inText bool // the last thing written was text without an end of line
	shown  bool // the text of the response that is going on was shown in pieces
	calls  map[string]time.Time
}

func newAgentText(w io.Writer, terminal bool) *agentText {
	if terminal {
		w = crlfWriter{w}
	}
	return &agentText{w: w, colour: terminal, calls: make(map[string]time.Time)}
}

// The colours of terminals (ECMA-48 section 8.3.117).
const (
	dim   = "2"
	red   = "31"
	green = "32"
	bold  = "1"
)

func (t *agentText) paint(colour, s string) string { return paint(t.colour, colour, s) }

// paint gives text a colour, if colours are wanted.
func paint(wanted bool, colour, s string) string {
	if !wanted || s == "" {
		return s
	}
	return "\x1b[" + colour + "m" + s + "\x1b[0m"
}

// line writes a line of its own.
func (t *agentText) line(s string) error {
	if t.inText {
		s = "\n" + s
		t.inText = false
	}
	_, err := io.WriteString(t.w, s+"\n")
	return err
}

// show writes what a person wants to see of an event.
func (t *agentText) show(e agent.Event) error {
	b, err := json.Marshal(e.Fields)
	if err != nil {
		return err
	}
	var f struct {
		Event struct {
			Delta *agent.BlockDelta `json:"delta"`
		}
		Message struct {
			Content []agent.Block `json:"content"`
		}
		Guidance map[string]string
		Tool     string
		Sandgate json.RawMessage
		Request  agent.Question
		Result   string
		Error    string
		WaitMS   int64    `json:"wait_ms"`
		Steps    int      `json:"num_turns"`
		Duration int64    `json:"duration_ms"`
		Cost     *float64 `json:"total_cost_usd"`
		Usage    agent.Usage
		Session  string `json:"session_id"`
	}
	if json.Unmarshal(b, &f) != nil && e.Type != agent.TypeSystem {
		return nil
	}
	switch e.Type {
	case agent.TypeStream:
		if d := f.Event.Delta; d != nil && d.Text != "" {
			t.shown, t.inText = true, !strings.HasSuffix(d.Text, "\n")
			_, err := io.WriteString(t.w, plain(d.Text))
			return err
		}
	case agent.TypeAssistant:
		return t.response(f.Message.Content, e.Time)
	case agent.TypeUser:
		if len(f.Guidance) > 0 {
			return t.line(t.paint(dim, "  guidance of the project: "+oneLine(strings.Join(slices.Sorted(maps.Keys(f.Guidance)), ", "))))
		}
		for _, b := range f.Message.Content {
			if b.Type == agent.ToolResultBlock {
				return t.result(f.Tool, b, f.Sandgate, e.Time)
			}
		}
	case agent.TypeControlRequest:
		q := f.Request
		what := q.Text
		if q.Kind == agent.CanUseTool {
			what = "may it " + describeCall(q.Tool, q.Input) + "?"
		}
		return t.line(t.paint(bold, "? "+oneLine(what)) + "\n  ssh gate@HOST " + answerHint(q, f.Session))
	case agent.TypeSystem:
		switch e.Subtype {
		case agent.SubtypeRetry:
			return t.line(t.paint(dim, fmt.Sprintf("… %s; again in %v", oneLine(f.Error), time.Duration(f.WaitMS)*time.Millisecond)))
		case agent.SubtypeCompact:
			return t.line(t.paint(dim, "… the conversation was shortened"))
		case agent.SubtypeJob:
			return t.job(b)
		}
	case agent.TypeResult:
		if e.Subtype != agent.Success {
			if err := t.line(t.paint(red, "! "+e.Subtype+": "+oneLine(f.Result))); err != nil {
				return err
			}
		}
		cost := "cost not known"
		if f.Cost != nil {
			cost = fmt.Sprintf("$%.4f", *f.Cost)
		}
		return t.line(t.paint(dim, fmt.Sprintf("%s · %d tokens · %s · %v · go on: ssh gate@HOST agent --resume %s \"…\"",
			plural(f.Steps, "step"), f.Usage.Context(), cost, (time.Duration(f.Duration)*time.Millisecond).Round(100*time.Millisecond), f.Session)))
	}
	return nil
}

func answerHint(q agent.Question, run string) string {
	if q.Kind == agent.AskUser {
		return `answer ` + run + ` "…"`
	}
	return "approve " + run + " [--always|--deny]"
}

// response shows a whole response: its text unless it was shown already.
func (t *agentText) response(blocks []agent.Block, at time.Time) error {
	for _, b := range blocks {
		switch {
		case b.Type == agent.TextBlock && b.Text != "" && !t.shown:
			if err := t.line(plain(strings.TrimRight(b.Text, "\n"))); err != nil {
				return err
			}
		case b.Type == agent.ToolUseBlock:
			t.calls[b.ID] = at
			if err := t.line(t.paint(bold, "● "+describeCall(b.Name, b.Input))); err != nil {
				return err
			}
		}
	}
	t.shown = false
	return nil
}

// job shows that a command goes on by itself, or how it ended.
func (t *agentText) job(fields []byte) error {
	var e jobEvent
	if json.Unmarshal(fields, &e) != nil {
		return nil
	}
	how := "goes on by itself"
	switch {
	case e.State == jobKilled:
		how = "was ended: " + cmp.Or(e.KilledBy, e.Signal, "its sandbox went down")
	case e.ExitCode != nil:
		how = fmt.Sprintf("ended with exit code %d", *e.ExitCode)
	case e.State == jobExited:
		how = "ended"
	}
	return t.line(t.paint(dim, oneLine("  job "+e.Job+" "+how)))
}

// result shows what came of a call, in a line, and a change of a file as a diff.
func (t *agentText) result(tool string, b agent.Block, detail json.RawMessage, at time.Time) error {
	var d struct {
		Exit   *int `json:"exit_code"`
		Diff   string
		Code   string
		Signal string
	}
	json.Unmarshal(detail, &d)
	took := ""
	if began, ok := t.calls[b.ToolUseID]; ok {
		took = fmt.Sprintf(" (%v)", at.Sub(began).Round(10*time.Millisecond))
		delete(t.calls, b.ToolUseID)
	}
	outcome := t.paint(green, "ok")
	switch {
	case b.IsError && d.Code != "":
		outcome = t.paint(red, d.Code)
	case b.IsError:
		outcome = t.paint(red, oneLine(b.Result))
	case d.Signal != "":
		outcome = t.paint(red, "signal "+oneLine(d.Signal))
	case d.Exit != nil && *d.Exit != 0:
		outcome = t.paint(red, fmt.Sprintf("exit %d", *d.Exit))
	}
	if err := t.line("  " + oneLine(tool) + ": " + outcome + t.paint(dim, took)); err != nil {
		return err
	}
	if d.Diff == "" {
		return nil
	}
	for _, l := range strings.Split(strings.TrimRight(d.Diff, "\n"), "\n") {
		colour := dim
		switch {
		case strings.HasPrefix(l, "+"):
			colour = green
		case strings.HasPrefix(l, "-"):
			colour = red
		}
		if err := t.line("    " + t.paint(colour, plain(l))); err != nil {
			return err
		}
	}
	return nil
}

// describeCall is a call in a few words.
func describeCall(tool string, input json.RawMessage) string {
	var in struct{ Command, Path, Pattern, Question string }
	json.Unmarshal(input, &in)
	s := tool
	for _, v := range []string{in.Command, in.Pattern, in.Path, in.Question} {
		if v != "" {
			s += " " + v
		}
	}
	s = oneLine(s)
	if r := []rune(s); len(r) > 120 {
		s = string(r[:119]) + "…"
	}
	return s
}

// plain takes from text what a terminal would obey: a model's words may come from a
// hostile file.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0:
			return -1
		}
		return r
	}, s)
}
