package gateway

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"mvdan.cc/sh/v3/shell"

	"sandgate/store"
)

// verbWalk uses verbs one after the other, as alice, who is an admin, on what those
// before have made. Each is run with --json. DIR is a folder of the sandboxes, which
// are folders of this host.
var verbWalk = []struct{ line, input string }{
	{"help", ""},
	{"help key add", ""},
	{"version", ""},
	{"completion fish", ""},
	{"user add carol", ""},
	{"user ls", ""},
	{"user set-role carol admin", ""},
	{"invite carol", ""},
	{"key add --name laptop", "KEY"},
	{"key set laptop --read-only", ""},
	{"key ls", ""},
	{"secret set TOKEN", "hunter2-hunter2"},
	{"secret rotate TOKEN", "hunter3-hunter3"},
	{"new web --secret TOKEN", ""},
	{"new broken --setup true", ""},
	{"setup-log broken", ""},
	{"ls", ""},
	{"info web", ""},
	{"start web", ""},
	{"set web --idle off", ""},
	{"config", ""},
	{"secret ls", ""},
	{"secret take TOKEN web", ""},
	{"secret give TOKEN web", ""},
	{"secret rotate-key", ""},
	{"share web bob", ""},
	{"unshare web bob", ""},
	{"alias add web www", ""},
	{"alias ls", ""},
	{"alias rm www", ""},
	{"run --name build web", "-- echo built; sleep 600"},
	{"jobs web", ""},
	{"sessions web", ""},
	{"kill web/build", ""},
	{"logs web/build", ""},
	{"wait web/build", ""},
	{"job rm web/build", ""},
	{"exec web", "-- echo hi"},
	{"service add --name api web", "-- sleep 600"},
	{"service ls web", ""},
	{"service restart web/api", ""},
	{"service logs web/api", ""},
	{"service rm web/api", ""},
	{"cp - web:DIR/file", "text"},
	{"who", ""},
	{"doctor", ""},
	{"quota set hours 1000 --user alice", ""},
	{"quota ls", ""},
	{"quota rm hours --user alice", ""},
	{"usage", ""},
	{"audit", ""},
	{"audit verify", ""},
	{"rec ls", ""},
	{"runs ls", ""},
	{"runs show run1", ""},
	{"export run1", ""},
	{"runs rm run1", ""},
	{"snapshots", ""},
	{"rename web site", ""},
	{"stop site", ""},
	{"rm --force site", ""},
	{"secret rm TOKEN", ""},
	{"key revoke serial=7", ""},
	{"key rm laptop", ""},
	{"user rm carol", ""},
}

// notWalked are the verbs that need more than that: a model that answers, a recording,
// a driver that can pause, or a second client. Their stories use them with --json.
var notWalked = []deed{
	"agent", "runs attach", "cancel", "approve", "answer", "rec play", "rec cat", "rec rm", "pause", "fork", "snapshot take", "snapshot rm", "attach",
}

// mayEnd are the codes other than 0 with which verbs of the walk may end: as their
// job did, or as this host is.
var mayEnd = map[deed][]int{"wait": {128 + 15, 128 + 9}, "doctor": {int(failed)}}

// What every verb prints with --json is JSON, one value to a line.
func TestVerbsJSON(t *testing.T) {
	s := newStage(t, nil)
	s.promote()
	dir := t.TempDir()
	parser, err := kong.New(new(lobbyVerbs))
	if err != nil {
		t.Fatal(err)
	}
	walked := make(map[deed]bool)
	for _, d := range notWalked {
		walked[d] = true
	}
	for _, step := range verbWalk {
		words, err := shell.Fields(in(dir, step.line), nil)
		if err != nil {
			t.Fatal(err)
		}
		line := in(dir, step.line) + " --json"
		input := []byte(step.input)
		if strings.HasPrefix(step.input, "-- ") {
			words = append(words, "--", "true")
			line += " " + step.input
		}
		if step.input == "KEY" {
			input = authorized(newSigner(t))
		}
		parsed, err := parser.Parse(words)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		d := deedOf(parsed.Selected())
		walked[d] = true
		if d == "runs ls" {
			rows, err := s.gate.db.Sandboxes(t.Context())
			if err == nil {
				err = s.gate.db.CreateRun(t.Context(), store.Run{ID: "run1", UserID: rows[0].UserID, SandboxID: rows[0].ID, Options: []byte("{}")})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		stdout, stderr, code := s.verb(s.alice, line, input)
		if code != 0 && !slices.Contains(mayEnd[d], code) {
			t.Errorf("%s: %d, %s", line, code, stderr)
		}
		for l := range strings.Lines(stdout) {
			if !json.Valid([]byte(l)) {
				t.Errorf("%s: %q is no JSON", line, l)
			}
		}
	}
	for _, leaf := range parser.Model.Leaves(true) {
		if d := deedOf(leaf); !walked[d] {
			t.Errorf("%q is not walked", d)
		}
	}
	if text, err := os.ReadFile(dir + "/file"); err != nil || string(text) != "text" {
		t.Errorf("cp made %q, %v", text, err)
	}
}

// Every verb has --json, and help with an example that is understood.
func TestVerbsHelp(t *testing.T) {
	s := newStage(t, nil)
	login := newLoginOf(t, s, s.alice)
	parser, err := kong.New(new(lobbyVerbs))
	if err != nil {
		t.Fatal(err)
	}
	for _, leaf := range parser.Model.Leaves(true) {
		d := deedOf(leaf)
		var out syncBuffer
		if code := carryOut("help "+string(d), &verbCall{ctx: t.Context(), login: login, stdout: &out, stderr: &out}); code != 0 {
			t.Errorf("help %s: %d", d, code)
		}
		if text := strings.Join(strings.Fields(out.String()), " "); !strings.Contains(text, "Example: ") || !strings.Contains(text, "--json") {
			t.Errorf("help %s lacks an example or --json: %s", d, text)
		}
		_, example, _ := strings.Cut(leaf.Help, "Example: ")
		example = strings.TrimRight(example, ".")
		line, command, isCommand := splitCommand(example)
		if i := strings.IndexAny(line, "<>"); i >= 0 {
			line = line[:i] // of the shell that ssh is typed to
		}
		words, err := shell.Fields(line, nil)
		if err != nil {
			t.Errorf("%s: the example %q: %v", d, example, err)
			continue
		}
		if isCommand {
			words = append(words, "--", command)
		}
		parsed, err := parser.Parse(words)
		if err != nil {
			t.Errorf("%s: the example %q: %v", d, example, err)
			continue
		}
		if got := deedOf(parsed.Selected()); got != d {
			t.Errorf("%s: the example %q is one of %s", d, example, got)
		}
	}
	for _, group := range parser.Model.Children {
		if !strings.Contains(group.Help, "Example: ") {
			t.Errorf("%s: %s", group.Name, fmt.Sprintf("no example in %q", group.Help))
		}
	}
}
