package agent

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestAllowed(t *testing.T) {
	rules := []string{"edit", "exec:go test", "exec:ls", "exec:git * --stat", "exec:grep", "exec:cat"}
	tests := []struct {
		tool, input string
		want        bool
	}{
		{"edit", `{"path":"x"}`, true},
		{"write", `{"path":"x"}`, false},
		{"exec", `{"command":"go test ./..."}`, true},
		{"exec", `{"command":"go test ./... | grep -v ok && ls"}`, true},
		{"exec", `{"command":"'go' \"test\" x"}`, true},
		{"exec", `{"command":"go build"}`, false},
		{"exec", `{"command":"go test; rm -rf /"}`, false},
		{"exec", `{"command":"go test && $(rm -rf /)"}`, false},
		{"exec", `{"command":"ls $(rm -rf /)"}`, false},
		{"exec", `{"command":"ls $(cat x)"}`, true},
		{"exec", "{\"command\":\"ls `rm x`\"}", false},
		{"exec", `{"command":"ls <(rm x)"}`, false},
		{"exec", `{"command":"ls & rm x"}`, false},
		{"exec", `{"command":"ls > /etc/passwd"}`, false},
		{"exec", `{"command":"ls >/dev/null 2>&1"}`, true},
		{"exec", `{"command":"PATH=/tmp ls"}`, false},
		{"exec", `{"command":"ls","env":{"PATH":"/tmp"}}`, false},
		{"exec", `{"command":"l\\s"}`, false},
		{"exec", `{"command":"$LS"}`, false},
		{"exec", `{"command":"git log --stat"}`, true},
		{"exec", `{"command":"git push"}`, false},
		{"exec", `{"command":"f() { rm x; }; f"}`, false},
		{"exec", `{"command":"for i in 1; do ls; done"}`, false},
		{"exec", `{"command":"cat <<X\n$(rm x)\nX"}`, false},
		{"exec", `{"command":"ls (("}`, false},
		{"exec", `{"command":""}`, false},
		{"exec", `{"job":"1","signal":"KILL"}`, false},
		{"exec", `nonsense`, false},
	}
	for _, tt := range tests {
		if got := allowed(rules, use("x", tt.tool, tt.input)); got != tt.want {
			t.Errorf("%s %s: %v", tt.tool, tt.input, got)
		}
	}
}

// A command that is allowed consists of commands that are.
func FuzzAllowed(f *testing.F) {
	f.Add("ls | grep x")
	f.Add("ls $(grep `ls`)")
	f.Add("ls >/dev/null; {ls;}")
	f.Fuzz(func(t *testing.T, command string) {
		in, _ := json.Marshal(map[string]string{"command": command})
		if !allowed([]string{"exec:ls", "exec:grep"}, Block{Name: "exec", Input: in}) {
			return
		}
		argvs, ok := simpleCommands(strings.ToValidUTF8(command, "\uFFFD"))
		if !ok {
			t.Fatalf("%q is not plain", command)
		}
		for _, argv := range argvs {
			if argv[0] != "ls" && argv[0] != "grep" {
				t.Fatalf("%q runs %q", command, argv)
			}
		}
	})
}

// answers answers every question in the same way.
type answers struct {
	answer Answer
	err    error
	asked  []Question
}

func (a *answers) Ask(_ context.Context, q Question, announce func() error) (Answer, error) {
	a.asked = append(a.asked, q)
	if err := announce(); err != nil {
		return Answer{}, err
	}
	return a.answer, a.err
}

func TestModes(t *testing.T) {
	tests := []struct {
		name   string
		mode   Mode
		asker  *answers
		calls  int
		asked  int
		denied int
	}{
		{"auto", Auto, nil, 2, 0, 0},
		{"read-only", ReadOnly, &answers{answer: Answer{Allow: true}}, 0, 0, 2},
		{"ask, nobody there", Ask, nil, 0, 0, 2},
		{"ask, allowed", Ask, &answers{answer: Answer{Allow: true}}, 2, 2, 0},
		{"ask, always", Ask, &answers{answer: Answer{Allow: true, Rule: "exec=ls"}}, 2, 1, 0},
		{"ask, denied", Ask, &answers{answer: Answer{Reason: "not now"}}, 0, 2, 2},
		{"ask, broken", Ask, &answers{err: errors.New("gone")}, 0, 2, 2},
		{"allow-list", AllowList, nil, 2, 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			log, c := &memory{}, newCounter()
			m := &script{turns: []any{
				[]Block{use("a", "exec", `{"command":"ls"}`)}, []Block{use("b", "exec", `{"command":"ls"}`)},
				[]Block{use("r", "read", `{"path":"x"}`)}, []Block{Text("ok")},
			}}
			cfg := config(m, log, c)
			cfg.Approval = Approval{Mode: tt.mode, Rules: []string{"exec:ls"}}
			if tt.asker != nil {
				cfg.Asker = tt.asker
			}
			out, err := New(cfg).Turn(t.Context(), "go")
			if err != nil || out.Subtype != Success || out.Denials != tt.denied || c.calls["r"] != 1 {
				t.Fatalf("got %+v, %v", out, err)
			}
			if n := c.calls["a"] + c.calls["b"]; n != tt.calls {
				t.Errorf("%d calls", n)
			}
			if tt.asker != nil && len(tt.asker.asked) != tt.asked {
				t.Errorf("asked %v", tt.asker.asked)
			}
		})
	}
}

// A question that was open when the process ended is asked again under its old id,
// and an answer that was given counts after a restart.
func TestQuestionSurvives(t *testing.T) {
	turns := []any{[]Block{use("a", "exec", `{"command":"ls"}`)}, []Block{use("q", askUserTool, `{"question":"Which?"}`)}, []Block{Text("ok")}}
	for _, cutAt := range []string{TypeControlRequest, TypeControlResponse} {
		log, c := &memory{}, newCounter()
		ctx, cancel := context.WithCancelCause(t.Context())
		log.onto = func(e Event) {
			if e.Type == cutAt {
				cancel(ErrSuspended)
			}
		}
		asker := &answers{answer: Answer{Allow: true, Text: "that one"}}
		cfg := config(&script{turns: turns}, log, c)
		cfg.Approval.Mode = Ask
		cfg.Asker = asker
		cfg.Tools = append(cfg.Tools, AskUserTool())
		if _, err := New(cfg).Turn(ctx, "go"); !errors.Is(err, ErrSuspended) {
			t.Fatal(err)
		}
		log.events = log.events[:1+slices.IndexFunc(log.events, func(e Event) bool { return e.Type == cutAt })]
		log.onto = nil
		c.calls = map[string]int{}
		r, err := Resume(cfg, log.all())
		if err != nil {
			t.Fatal(err)
		}
		asker.asked = nil
		out, err := r.Continue(t.Context())
		if err != nil || out.Text != "ok" || c.calls["a"] != 1 {
			t.Errorf("%s: %+v, %v, %v", cutAt, out, err, c.calls)
		}
		if n := strings.Count(log.kinds(), TypeControlRequest); n != 2 {
			t.Errorf("%s: %d questions: %s", cutAt, n, log.kinds())
		}
		if cutAt == TypeControlResponse && len(asker.asked) != 1 {
			t.Errorf("asked again: %v", asker.asked)
		}
	}
}

func TestCost(t *testing.T) {
	u := Usage{Input: 1e6, CacheRead: 1e6, CacheWrite5m: 1e6, CacheWrite1h: 1e6, Output: 1e6}
	for _, tt := range []struct {
		model string
		want  float64 // 0: not known
	}{
		{"claude-sonnet-4-5-20250929", 3 + 0.3 + 3.75 + 6 + 15},
		{"claude-opus-4-5", 5 + 0.5 + 6.25 + 10 + 25},
		{"claude-opus-4-1-20250805", 15 + 1.5 + 18.75 + 30 + 75},
		{"gpt-5-2025-08-07", 1.25 + 0.125 + 1.25 + 1.25 + 10},
		{"gpt-5-mini", 0.25 + 0.025 + 0.25 + 0.25 + 2},
		{"gpt-5-unheard-of", 0},
		{"llama", 0},
		{"", 0},
	} {
		got := cost(tt.model, "nothing", u)
		if (got == nil) != (tt.want == 0) || got != nil && (*got-tt.want > 1e-9 || tt.want-*got > 1e-9) {
			t.Errorf("%s: %v", tt.model, got)
		}
	}
	if got := cost("an alias", "gpt-5", Usage{}); got == nil {
		t.Error("the name that was asked for does not count")
	}
}
