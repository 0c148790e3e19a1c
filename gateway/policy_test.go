package gateway

import (
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// Every verb and every door, with every relation to a sandbox and every kind of
// login. y is yes, n denied, h hidden. The columns are those of policyColumns.
const policyTable = `
                             own shr ro  str exp rev  adm rok bok cmd vrb tmp ffc
 ssh shell                   y   y   n   h   n   n    h   n   y   n   n   y   y
 ssh exec                    y   y   n   h   n   n    h   n   y   y   n   y   y
 ssh sftp                    y   y   y   h   n   n    h   y   y   n   n   y   n
 ssh sftp, writing           y   y   n   h   n   n    h   n   y   n   n   y   n
 ssh forward                 y   y   n   h   n   n    h   n   y   n   n   y   n
 ssh forward of an ssh-agent y   y   n   h   n   n    h   n   y   n   n   y   n
 ssh terminal                y   y   n   h   n   n    h   n   y   y   y   y   n
 ssh tools                   y   y   n   h   n   n    h   n   y   n   n   y   n
 help                        y   y   y   y   n   n    y   y   y   y   y   y   y
 completion                  y   y   y   y   n   n    y   y   y   y   y   y   y
 complete                    y   y   y   y   n   n    y   y   y   y   y   y   y
 version                     y   y   y   y   n   n    y   y   y   y   y   y   y
 ls                          y   y   y   h   n   n    h   y   y   n   y   y   n
who                          y   y   y   h   n   n    h   y   y   n   n   y   n
 cp                          y   y   y   h   n   n    h   y   y   n   n   y   n
 cp, writing                 y   y   n   h   n   n    h   n   y   n   n   y   n
 doctor                      y   y   y   h   n   n    h   y   y   n   n   y   n
 config                      y   y   y   h   n   n    h   y   y   n   n   y   n
 info                        y   y   y   h   n   n    h   y   y   n   y   y   n
 setup-log                   y   y   y   h   n   n    h   y   y   n   n   y   n
start                       y   y   n   h   n   n    h   n   y   n   n   y   n
 stop                        y   y   n   h   n   n    h   n   y   n   n   y   n
 pause                       y   y   n   h   n   n    h   n   y   n   n   y   n
 fork                        y   n   n   h   n   n    h   n   y   n   n   y   n
 snapshot take               y   n   n   h   n   n    h   n   y   n   n   y   n
 snapshot rm                 y   n   n   h   n   n    h   n   n   n   n   y   n
 snapshots                   y   y   y   h   n   n    h   y   y   n   n   y   n
 new                         y   n   n   h   n   n    h   n   y   n   n   y   n
 rm                          y   n   n   h   n   n    h   n   y   n   n   y   n
 set                         y   n   n   h   n   n    h   n   y   n   n   y   n
 rename                      y   n   n   h   n   n    h   n   n   n   n   y   n
 share                       y   n   n   h   n   n    h   n   n   n   n   y   n
 unshare                     y   n   n   h   n   n    h   n   n   n   n   y   n
 alias ls                    y   y   y   y   n   n    y   y   y   n   n   y   n
 alias add                   y   y   y   y   n   n    y   n   n   n   n   y   n
 alias rm                    y   y   y   y   n   n    y   n   n   n   n   y   n
 agent                       y   y   n   h   n   n    h   n   y   n   n   y   n
 cancel                      y   y   n   h   n   n    h   n   y   n   n   y   n
 approve                     y   y   n   h   n   n    h   n   y   n   n   y   n
 answer                      y   y   n   h   n   n    h   n   y   n   n   y   n
 runs rm                     y   y   n   h   n   n    h   n   y   n   n   y   n
 runs ls                     y   y   y   h   n   n    h   y   y   n   n   y   n
 runs show                   y   y   y   h   n   n    h   y   y   n   n   y   n
 runs attach                 y   y   y   h   n   n    h   y   y   n   n   y   n
 export                      y   y   y   h   n   n    h   y   y   n   n   y   n
 secret ls                   y   y   y   y   n   n    y   y   y   n   n   y   n
 secret set                  y   n   n   h   n   n    h   n   n   n   n   y   n
 secret rm                   y   n   n   h   n   n    h   n   n   n   n   y   n
 secret rotate               y   n   n   h   n   n    h   n   n   n   n   y   n
 secret give                 y   n   n   h   n   n    h   n   n   n   n   y   n
 secret take                 y   n   n   h   n   n    h   n   n   n   n   y   n
 secret rotate-key           n   n   n   n   n   n    y   n   n   n   n   n   n
 audit show                  y   y   y   h   n   n    h   y   y   n   n   y   n
 audit verify                n   n   n   n   n   n    y   n   n   n   n   n   n
 rec ls                      y   y   y   y   n   n    y   y   y   n   n   y   n
 rec play                    y   y   y   y   n   n    y   n   n   n   n   y   n
 rec cat                     y   y   y   y   n   n    y   n   n   n   n   y   n
 rec rm                      y   y   y   y   n   n    y   n   n   n   n   y   n
 usage                       y   y   y   h   n   n    h   y   y   n   n   y   n
 quota ls                    y   y   y   y   n   n    y   y   y   n   n   y   n
 quota set                   n   n   n   n   n   n    y   n   n   n   n   n   n
 quota rm                    n   n   n   n   n   n    y   n   n   n   n   n   n
 an unheard-of one           y   n   n   h   n   n    h   n   n   n   n   y   n
 service add                 y   y   n   h   n   n    h   n   y   n   n   y   n
 service restart             y   y   n   h   n   n    h   n   y   n   n   y   n
 service rm                  y   y   n   h   n   n    h   n   y   n   n   y   n
 service ls                  y   y   y   h   n   n    h   y   y   n   n   y   n
 service logs                y   y   y   h   n   n    h   y   y   n   n   y   n
 run                         y   y   n   h   n   n    h   n   y   n   n   y   n
 exec                        y   y   n   h   n   n    h   n   y   n   n   y   n
 attach                      y   y   n   h   n   n    h   n   y   n   n   y   n
 kill                        y   y   n   h   n   n    h   n   y   n   n   y   n
 job rm                      y   y   n   h   n   n    h   n   y   n   n   y   n
 jobs                        y   y   y   h   n   n    h   y   y   n   n   y   n
 sessions                    y   y   y   h   n   n    h   y   y   n   n   y   n
 logs                        y   y   y   h   n   n    h   y   y   n   n   y   n
 wait                        y   y   y   h   n   n    h   y   y   n   n   y   n
 key ls                      y   y   y   y   n   n    y   y   y   n   n   y   n
 key add                     y   y   y   y   n   n    y   n   n   n   n   n   n
 key set                     y   y   y   y   n   n    y   n   n   n   n   n   n
 key rm                      y   y   y   y   n   n    y   n   n   n   n   y   n
 key revoke                  n   n   n   n   n   n    y   n   n   n   n   n   n
 invite                      y   y   y   y   n   n    y   n   n   n   n   n   n
 user add                    n   n   n   n   n   n    y   n   n   n   n   n   n
 user ls                     n   n   n   n   n   n    y   n   n   n   n   n   n
 user rm                     n   n   n   n   n   n    y   n   n   n   n   n   n
 user set-role               n   n   n   n   n   n    y   n   n   n   n   n   n
`

// A policyColumn is who asks and what the sandbox is to them.
type policyColumn struct {
	who      who
	relation relation
}

var policyColumns = map[string]policyColumn{
	"own": {who{}, owner},
	"shr": {who{}, granted},
	"ro":  {who{}, readOnly},
	"str": {who{}, stranger},
	"exp": {who{invalid: "the key has expired"}, owner},
	"rev": {who{invalid: "the key is revoked"}, owner},
	"adm": {who{admin: true}, stranger},                            // being an admin opens no sandbox
	"rok": {who{admin: true, scope: Scope{ReadOnly: true}}, owner}, // and a limited key is limited, whosever it is
	"bok": {who{scope: Scope{Sandboxes: []string{"api", "web"}}}, owner},
	"cmd": {who{scope: Scope{Commands: []string{"make"}}}, owner},
	"vrb": {who{scope: Scope{Verbs: []string{"ls", "info"}}}, owner},
	"tmp": {who{ends: true}, owner},
	"ffc": {who{forced: "make", ends: true, noForward: true, noAgent: true, noTerminal: true}, owner},
}

// aboutNone says whether a verb is about no sandbox.
func aboutNone(d deed) bool {
	family, _, _ := strings.Cut(string(d), " ")
	switch family {
	case "key", "user", "alias", "invite", "quota", "rec", "help", "version", "completion", "complete":
		return true
	}
	return needs[d] == needAdmin || d == "secret ls"
}

func TestPolicy(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(policyTable), "\n")
	columns := strings.Fields(lines[0])
	listed := make(map[deed]bool)
	for _, line := range lines[1:] {
		cells := strings.Fields(line)
		what := deed(strings.Join(cells[:len(cells)-len(columns)], " "))
		cells = cells[len(cells)-len(columns):]
		listed[what] = true
		for i, name := range columns {
			c := policyColumns[name]
			r := request{deed: what, command: "make", sandbox: "web", relation: c.relation}
			if aboutNone(what) {
				r.sandbox = ""
			}
			got := "y"
			if err := permit(c.who, r); err == errHidden {
				got = "h"
			} else if err != nil {
				got = "n"
			}
			if got != cells[i] {
				t.Errorf("%s by %s: %s, want %s", what, name, got, cells[i])
			}
		}
	}
	for d := range needs {
		if !listed[d] {
			t.Errorf("the table lacks %q", d)
		}
	}
}

// What a key names is all that it may do, and a sandbox that it does not name is
// not there.
func TestPolicyScope(t *testing.T) {
	for _, test := range []struct {
		who  who
		r    request
		want string
	}{
		{who{scope: Scope{Sandboxes: []string{"web"}}}, request{deed: doorExec, sandbox: "api", relation: owner}, "h"},
		{who{scope: Scope{Sandboxes: []string{"web"}}}, request{deed: "rm", sandbox: "web.bob", relation: granted}, "h"},
		{who{scope: Scope{Sandboxes: []string{"web.bob"}}}, request{deed: doorExec, sandbox: "web.bob", relation: granted}, "y"},
		{who{scope: Scope{Commands: []string{"make"}}}, request{deed: doorExec, command: "make ", sandbox: "web", relation: owner}, "n"},
		{who{scope: Scope{Commands: []string{"make"}}}, request{deed: doorExec, command: "make; id", sandbox: "web", relation: owner}, "n"},
		{who{scope: Scope{Commands: []string{"sftp"}}}, request{deed: doorFiles, sandbox: "web", relation: owner}, "y"},
		{who{scope: Scope{Commands: []string{"sftp"}}}, request{deed: doorShell, sandbox: "web", relation: owner}, "n"},
		{who{scope: Scope{Verbs: []string{"ls"}}}, request{deed: doorExec, command: "ls", sandbox: "web", relation: owner}, "n"},
		{who{scope: Scope{Verbs: []string{"key add"}}}, request{deed: "key add"}, "n"},
		{who{forced: "internal-sftp"}, request{deed: doorFiles, sandbox: "web", relation: owner}, "y"},
	} {
		got := "y"
		if err := permit(test.who, test.r); err == errHidden {
			got = "h"
		} else if err != nil {
			got = "n"
		}
		if got != test.want {
			t.Errorf("%+v of %+v: %s, want %s", test.r, test.who, got, test.want)
		}
	}
}

func TestScopeNarrows(t *testing.T) {
	none, web := Scope{}, Scope{Sandboxes: []string{"web"}}
	both := Scope{Sandboxes: []string{"api", "web"}}
	made, read := Scope{Commands: []string{"make"}}, Scope{ReadOnly: true}
	listing := Scope{Commands: []string{"make"}, Verbs: []string{"ls"}}
	for _, test := range []struct {
		before, after Scope
		want          bool
	}{
		{none, none, false}, {none, web, true}, {web, none, false}, {web, both, false}, {both, web, true},
		{web, Scope{Sandboxes: []string{"api"}}, true}, {none, made, true}, {made, none, false},
		{made, listing, false}, {listing, made, true}, {made, Scope{Verbs: []string{"ls"}}, true},
		{none, read, true}, {read, none, false}, {read, read, false}, {made, read, true}, {listing, listing, false},
	} {
		if got := test.after.narrows(test.before); got != test.want {
			t.Errorf("%+v after %+v narrows: %t", test.after, test.before, got)
		}
	}
}

// Every verb has its place in the policy, and the policy has no verb that is none.
func TestPolicyKnowsEveryVerb(t *testing.T) {
	parser, err := kong.New(new(lobbyVerbs))
	if err != nil {
		t.Fatal(err)
	}
	var verbs []deed
	for _, leaf := range parser.Model.Leaves(false) {
		verbs = append(verbs, deedOf(leaf))
	}
	for _, v := range verbs {
		if _, ok := needs[v]; !ok {
			t.Errorf("the policy lacks %q", v)
		}
	}
	for d := range needs {
		verb, _, _ := strings.Cut(string(d), ",")
		if !strings.HasPrefix(verb, "ssh ") && !slices.Contains(verbs, deed(verb)) {
			t.Errorf("the policy has %q, which is no verb", d)
		}
	}
}
