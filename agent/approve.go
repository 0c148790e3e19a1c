package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// A Mode says what the model may do without being asked about.
type Mode string

// The modes of approval. Tools that only read are allowed in all of them.
const (
	Auto      Mode = "auto"       // everything
	Ask       Mode = "ask"        // nothing that changes something
	ReadOnly  Mode = "read-only"  // and nobody is asked: such calls are denied
	AllowList Mode = "allow-list" // what the rules name; the rest is asked about
)

// An Approval is a mode and its rules.
type Approval struct {
	Mode Mode // empty: Auto

	// Rules are those of AllowList. A rule is the name of a tool, which allows all
	// calls of it, or "exec:" and the words that a command must begin with, as in
	// "exec:go test". The word * stands for any one word.
	Rules []string
}

// Validate returns an error for a mode that is none, or a rule that cannot match.
func (a Approval) Validate() error {
	switch a.Mode {
	case "", Auto, Ask, ReadOnly, AllowList:
	default:
		return fmt.Errorf("%.40q is not a mode of approval: auto, ask, read-only or allow-list", a.Mode)
	}
	for _, r := range a.Rules {
		tool, words, command := strings.Cut(r, ":")
		if command && (tool != "exec" || len(strings.Fields(words)) == 0) || !command && tool == "" {
			return fmt.Errorf("%.80q is not a rule: the name of a tool, or exec: and the first words of a command", r)
		}
	}
	return nil
}

// A Question is something that only a person can answer. It stays open until it has
// been answered, over restarts too.
type Question struct {
	ID        string          `json:"id"`
	Kind      string          `json:"subtype"` // can_use_tool or ask_user
	ToolUseID string          `json:"tool_use_id"`
	Tool      string          `json:"tool_name"`
	Input     json.RawMessage `json:"input,omitempty"`
	Reason    string          `json:"reason,omitempty"`
	Text      string          `json:"question,omitempty"`
	Fields    []string        `json:"fields,omitempty"` // of ask_user: what is to be filled in
	Rule      string          `json:"rule,omitempty"`   // what "always for this run" would allow
}

// The kinds of questions.
const (
	CanUseTool = "can_use_tool"
	AskUser    = "ask_user"
)

// An Answer is what somebody said to a Question.
type Answer struct {
	ToolUseID string            `json:"tool_use_id"` // set by the run
	Allow     bool              `json:"allow"`
	Rule      string            `json:"rule,omitempty"`   // what is allowed for the rest of the run; empty: this call only
	Reason    string            `json:"reason,omitempty"` // for the model
	Text      string            `json:"answer,omitempty"` // of ask_user
	Values    map[string]string `json:"values,omitempty"` // of ask_user, by field
	By        string            `json:"by,omitempty"`     // who answered
}

// An Asker puts questions to people.
type Asker interface {
	// Ask returns when the question has been answered. It calls announce, whose error
	// it returns, once an answer can be taken: whoever reads of the question there may
	// answer at once. It may be called again for a question that was asked before a
	// restart. Any other error is of ctx.
	Ask(ctx context.Context, q Question, announce func() error) (Answer, error)
}

// approve returns nil when a call may be made, else why not. The error is of the
// log; when ctx ends first, both are nil and the caller is to look at ctx.
func (r *Run) approve(ctx context.Context, tool Tool, call Block) (*denial, error) {
	deny := func(reason string) *denial {
		return &denial{Tool: call.Name, ID: call.ID, Input: call.Input, Reason: reason}
	}
	if tool.ReadOnly {
		return nil, nil
	}
	rule := ruleFor(call)
	r.mu.Lock()
	always := r.always[rule]
	answer, answered := r.answers[call.ID]
	r.mu.Unlock()
	a := r.cfg.Approval
	switch {
	case answered && answer.Allow:
		return nil, nil
	case answered:
		return deny(orElse(answer.Reason, "this call was not approved")), nil
	case a.Mode == "" || a.Mode == Auto || always:
		return nil, nil
	case a.Mode == ReadOnly:
		return deny("this run may only read"), nil
	case a.Mode == AllowList && allowed(a.Rules, call):
		return nil, nil
	case r.cfg.Asker == nil:
		return deny("this call needs an approval, and nobody is there to give it"), nil
	}
	reason := "the mode is " + string(a.Mode)
	answer, ok, err := r.ask(ctx, Question{
		Kind: CanUseTool, ToolUseID: call.ID, Tool: call.Name, Input: call.Input, Reason: reason, Rule: rule,
	})
	switch {
	case err != nil || !ok:
		return nil, err
	case answer.Allow:
		return nil, nil
	}
	return deny(orElse(answer.Reason, "this call was not approved")), nil
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// ask puts a question, which is in the log before, and the answer after. ok is false
// when ctx ended first.
func (r *Run) ask(ctx context.Context, q Question) (answer Answer, ok bool, err error) {
	r.mu.Lock()
	old, again := r.asked[q.ToolUseID]
	r.mu.Unlock()
	if again {
		q.ID = old.ID
	} else {
		q.ID = "ask_" + q.ToolUseID
	}
	var unsaid error
	answer, err = r.cfg.Asker.Ask(ctx, q, func() error {
		if !again {
			unsaid = r.append(ctx, TypeControlRequest, q.Kind, map[string]any{"request_id": q.ID, "request": q})
		}
		return unsaid
	})
	if unsaid != nil {
		return Answer{}, false, unsaid
	}
	if err != nil {
		if ctx.Err() != nil {
			return Answer{}, false, nil
		}
		answer = Answer{Reason: shorten(err.Error(), 300)}
	}
	answer.ToolUseID = q.ToolUseID
	return answer, true, r.append(ctx, TypeControlResponse, q.Kind, map[string]any{"request_id": q.ID, "response": answer})
}

// askUserTool lets the model ask whoever is there. It is not one of the six: a run
// that has nobody to ask does not have it.
const askUserTool = "ask_user"

// AskUserTool describes it. Its calls go to the run's Asker.
func AskUserTool() Tool {
	return Tool{
		Spec: Spec{
			Name:        askUserTool,
			Description: "Ask the user something that you cannot find out yourself and that you need to go on. Do not ask for permission.",
			Schema:      json.RawMessage(`{"type":"object","properties":{"question":{"type":"string"},"fields":{"type":"array","items":{"type":"string"},"description":"Names of what is to be filled in, if it is more than one thing."}},"required":["question"]}`),
		},
		ReadOnly: true,
	}
}

func (r *Run) askUser(ctx context.Context, call Block) error {
	var in struct {
		Question string
		Fields   []string
	}
	if err := json.Unmarshal(call.Input, &in); err != nil || in.Question == "" || len(in.Fields) > 20 {
		return r.result(ctx, call, failure("bad_args", "a question is needed, and at most 20 fields", `{"question": "…"}`))
	}
	r.mu.Lock()
	answer, ok := r.answers[call.ID]
	r.mu.Unlock()
	if !ok && r.cfg.Asker == nil {
		return r.result(ctx, call, failure("denied", "nobody is there to answer", "go on as well as you can without it"))
	}
	if !ok {
		var err error
		answer, ok, err = r.ask(ctx, Question{Kind: AskUser, ToolUseID: call.ID, Tool: call.Name, Text: in.Question, Fields: in.Fields})
		if err != nil || !ok {
			return err
		}
	}
	if answer.Text == "" && len(answer.Values) == 0 {
		return r.result(ctx, call, failure("denied", orElse(answer.Reason, "the user gave no answer"), "go on as well as you can without it"))
	}
	text := answer.Text
	if len(answer.Values) > 0 {
		b, err := json.Marshal(answer.Values)
		if err != nil {
			return err
		}
		text = strings.TrimSpace(text + "\n" + string(b))
	}
	return r.result(ctx, call, Result{Text: text})
}

// ruleFor returns the narrowest rule that allows a call again: a command word for
// word, or another tool as such.
func ruleFor(call Block) string {
	if call.Name != "exec" {
		return call.Name
	}
	return "exec=" + execCommand(call)
}

func execCommand(call Block) string {
	var in struct{ Command string }
	json.Unmarshal(call.Input, &in)
	return in.Command
}

// allowed says whether rules allow a call. A command is allowed when it is made of
// nothing but simple commands that each are.
func allowed(rules []string, call Block) bool {
	var commands [][]string
	for _, rule := range rules {
		tool, words, command := strings.Cut(rule, ":")
		switch {
		case tool != call.Name:
		case !command:
			return true
		default:
			commands = append(commands, strings.Fields(words))
		}
	}
	if call.Name != "exec" || len(commands) == 0 {
		return false
	}
	var in struct {
		Command string
		Env     map[string]string
		Job     string
	}
	// A variable can change what a command is.
	if json.Unmarshal(call.Input, &in) != nil || len(in.Env) > 0 || in.Job != "" {
		return false
	}
	argvs, ok := simpleCommands(in.Command)
	if !ok || len(argvs) == 0 {
		return false
	}
	for _, argv := range argvs {
		match := false
		for _, words := range commands {
			match = match || begins(argv, words)
		}
		if !match {
			return false
		}
	}
	return true
}

func begins(argv, words []string) bool {
	if len(argv) < len(words) {
		return false
	}
	for i, w := range words {
		if w != "*" && w != argv[i] {
			return false
		}
	}
	return true
}

// simpleCommands returns the argument lists of all commands in a line of shell, also
// those in pipes, lists and substitutions. ok is false for what is not plain: a word
// that the shell would make something else of, a redirection into a file, an
// assignment, a loop, a function.
func simpleCommands(line string) (argvs [][]string, ok bool) {
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(line), "")
	if err != nil {
		return nil, false
	}
	ok = true
	syntax.Walk(file, func(n syntax.Node) bool {
		switch n := n.(type) {
		case nil, *syntax.File, *syntax.BinaryCmd, *syntax.Word, *syntax.Lit, *syntax.SglQuoted, *syntax.DblQuoted, *syntax.CmdSubst, *syntax.Comment, *syntax.Subshell, *syntax.Block:
		case *syntax.Stmt:
			ok = ok && !n.Coprocess
		case *syntax.Redirect:
			ok = ok && harmless(n)
		case *syntax.CallExpr:
			argv, plain := words(n)
			ok = ok && plain && len(n.Assigns) == 0
			argvs = append(argvs, argv)
		default:
			ok = false
		}
		return ok
	})
	return argvs, ok
}

// harmless says whether a redirection writes nowhere: between descriptors, to
// /dev/null, or from a file.
func harmless(r *syntax.Redirect) bool {
	switch r.Op {
	case syntax.DplOut, syntax.DplIn, syntax.RdrIn:
		return true
	case syntax.RdrOut, syntax.AppOut, syntax.RdrAll:
		return r.Word != nil && r.Word.Lit() == "/dev/null"
	}
	return false
}

// words returns a command's words. A substitution within one stands as an argument
// that no rule names; the first word must be plain.
func words(c *syntax.CallExpr) (argv []string, ok bool) {
	for i, w := range c.Args {
		s, plain := literal(w.Parts)
		if !plain && i == 0 {
			return nil, false
		}
		if !plain {
			s = "\x00"
		}
		argv = append(argv, s)
	}
	return argv, len(argv) > 0
}

func literal(parts []syntax.WordPart) (string, bool) {
	var b strings.Builder
	for _, p := range parts {
		switch p := p.(type) {
		case *syntax.Lit:
			if strings.Contains(p.Value, "\\") {
				return "", false
			}
			b.WriteString(p.Value)
		case *syntax.SglQuoted:
			if p.Dollar {
				return "", false
			}
			b.WriteString(p.Value)
		case *syntax.DblQuoted:
			s, ok := literal(p.Parts)
			if !ok || p.Dollar {
				return "", false
			}
			b.WriteString(s)
		default:
			return "", false
		}
	}
	return b.String(), true
}
