package gateway

import (
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// What TAB offers after a line.
func TestCompletions(t *testing.T) {
	parser, err := kong.New(new(lobbyVerbs))
	if err != nil {
		t.Fatal(err)
	}
	names := func(kind string) []string {
		return map[string][]string{
			"sandbox": {"web", "api", "api.bob", "evil\x1b[2J"}, "job": {"web/build", "web+shell"}, "user": {"alice", "bob"},
			"secret": {"TOKEN"}, "run": {"run-x7"}, "alias": {"www"}, "service": {"web/api"}, "recording": {"rec1"}, "snapshot": {"before"},
		}[kind]
	}
	for line, want := range map[string]string{
		"inf":                      "info",
		"info ":                    "api api.bob web",
		"info w":                   "web",
		"info web ":                "",
		"stop web a":               "api api.bob", // one after the other
		"se":                       "secret service sessions set setup-log",
		"secret r":                 "rm rotate rotate-key",
		"secret rm ":               "TOKEN",
		"secret give TOKEN ":       "api api.bob web",
		"secret set T --sandbox ":  "api api.bob web",
		"secret set T --sandbox=a": "--sandbox=api --sandbox=api.bob",
		"secret set T --as ":       "env file",
		"ls --j":                   "--json",
		"new --re":                 "--record",
		"new --json ":              "",
		"new --image ":             "",
		"new ":                     "",
		"run -e A=B ":              "api api.bob web",
		"run web -- ":              "",
		"run web -- inf":           "",
		"logs ":                    "web+shell web/build",
		"logs -f web/":             "web/build",
		"attach web":               "web+shell web/build",
		"kill web/build web+":      "web+shell",
		"service rm ":              "web/api",
		"share web ":               "alice bob",
		"user set-role bob ":       "admin user",
		"alias rm ":                "www",
		"snapshot rm ":             "before",
		"snapshot ":                "api api.bob rm take web",
		"rec play ":                "rec1",
		"runs show ":               "run-x7",
		"runs ":                    "attach ls rm show",
		"cancel ":                  "run-x7",
		"help secret t":            "take",
		"help ver":                 "version",
		"usage --by ":              "day sandbox user",
		"usage --by day --user ":   "alice bob",
		"audit --sand":             "--sandbox",
		"nosuch verb ":             "",
		"":                         "agent alias answer",
	} {
		words, ok := wordsOf(line)
		if !ok {
			t.Fatalf("%q has no words", line)
		}
		got := Completions(parser.Model.Node, words, func(*kong.Node) bool { return true }, names)
		if line == "" {
			got = got[:3]
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%q: %s, want %s", line, s, want)
		}
	}
	for _, line := range []string{"info 'w", `info w\`, "info $"} {
		if words, ok := wordsOf(line); ok {
			t.Errorf("%q has the words %q", line, words)
		}
	}
}

// Only what the caller may do and see is offered.
func TestComplete(t *testing.T) {
	s := newStage(t, nil)
	s.promote()
	s.must(s.alice, "new web", nil)
	s.must(s.alice, "new api", nil)
	s.must(s.alice, "alias add web www", nil)
	s.must(s.bob, "new secret", nil)
	s.must(s.bob, "share secret alice", nil)
	limited := newSigner(t)
	s.must(s.alice, "key add --name ci --verbs info,ls --sandboxes api", authorized(limited))
	alice, bob, ci := newLoginOf(t, s, s.alice), newLoginOf(t, s, s.bob), newLoginOf(t, s, limited)
	for _, test := range []struct {
		l     *Login
		words []string
		want  []string
	}{
		{alice, []string{"info", ""}, []string{"api", "secret.bob", "web", "www"}},
		{bob, []string{"info", ""}, []string{"secret"}},
		{ci, []string{"info", ""}, []string{"api"}},
		{alice, []string{"us"}, []string{"usage", "user"}},
		{bob, []string{"us"}, []string{"usage"}},
		{ci, []string{""}, []string{"completion", "help", "info", "ls", "version"}},
		{alice, []string{"share", "web", ""}, []string{"alice", "bob"}},
		{bob, []string{"share", "secret", ""}, nil},
		{ci, []string{"logs", ""}, nil},
	} {
		if got := test.l.Complete(t.Context(), test.words); !slices.Equal(got, test.want) {
			t.Errorf("%s, %q: %q, want %q", test.l.user.Name, test.words, got, test.want)
		}
	}

	// TAB at the prompt: one goes into the line, of several what they have in common,
	// and then all are shown.
	y := s.sits(t, s.alice, 80)
	y.types("inf\tw\t")
	y.sees("info w")
	y.types("\t")
	y.sees("web  www\r\n")
	y.types("e\t\r")
	y.sees("name                web")
	y.types("secret \t")
	y.sees("give        rm")
	y.types("\x03exit\r")
	y.leaves()
}
