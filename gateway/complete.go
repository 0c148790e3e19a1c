package gateway

import (
	"context"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"mvdan.cc/sh/v3/shell"

	"sandgate/sandbox/guest"
)

// A source returns the names of one kind of thing that there are now.
type source func(kind string) []string

// Completions returns what the last of words, which may be empty, could become after
// those before it: verbs, flags, and values of both. allowed says which verbs to
// offer; names returns the names of what lives at the gateway.
func Completions(root *kong.Node, words []string, allowed func(*kong.Node) bool, names source) []string {
	if len(words) == 0 {
		return nil
	}
	last := words[len(words)-1]
	node, arguments := root, 0
	var flag *kong.Flag // whose value comes next
	for i, w := range words[:len(words)-1] {
		switch {
		case flag != nil:
			flag = nil
		case w == "--":
			return nil // a command for a shell
		case strings.HasPrefix(w, "-"):
			if f := flagOf(node, w); f != nil && !f.IsBool() {
				flag = f
			}
		case node.Name == "help":
			return Completions(root, words[i:], allowed, func(string) []string { return nil })
		default:
			if child := childOf(node, w); child != nil && arguments == 0 {
				node = child
			} else {
				arguments++
			}
		}
	}
	var found []string
	name, value, hasValue := strings.Cut(last, "=")
	switch {
	case flag != nil:
		found = valuesOf(flag.Value, flag.Name, names)
	case strings.HasPrefix(last, "-") && hasValue:
		if f := flagOf(node, name); f != nil && !f.IsBool() {
			for _, v := range valuesOf(f.Value, f.Name, names) {
				found = append(found, strings.TrimSuffix(last, value)+v)
			}
		}
	case strings.HasPrefix(last, "-"):
		at := node
		if node.DefaultCmd != nil {
			at = node.DefaultCmd
		}
		for _, group := range at.AllFlags(true) {
			for _, f := range group {
				found = append(found, "--"+f.Name)
			}
		}
	default:
		if arguments == 0 || node.Name == "help" {
			for _, child := range childrenOf(node, root) {
				if !child.Hidden && allowed(child) {
					found = append(found, child.Name)
				}
			}
		}
		if p := positional(node, arguments); p != nil {
			found = append(found, valuesOf(p, kindOf(node, p), names)...)
		}
	}
	found = slices.DeleteFunc(found, func(s string) bool { return !strings.HasPrefix(s, last) || !plainWord.MatchString(s) })
	slices.Sort(found)
	return slices.Compact(found)
}

// plainWord are words that need no quotes in a shell and do nothing to a terminal:
// names may come from a guest.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9._/+:@=,%-]{1,256}$`)

// childrenOf are the verbs that can follow: after help, any.
func childrenOf(node, root *kong.Node) []*kong.Node {
	if node.Name == "help" {
		return root.Children
	}
	return node.Children
}

func childOf(node *kong.Node, name string) *kong.Node {
	i := slices.IndexFunc(node.Children, func(n *kong.Node) bool { return n.Name == name })
	if i < 0 {
		return nil
	}
	return node.Children[i]
}

// flagOf returns the flag that is written like that.
func flagOf(node *kong.Node, written string) *kong.Flag {
	for n := node; n != nil; n = n.Parent {
		for _, f := range n.Flags {
			if written == "--"+f.Name || f.Short != 0 && written == "-"+string(f.Short) {
				return f
			}
		}
	}
	if node.DefaultCmd != nil {
		return flagOf(node.DefaultCmd, written)
	}
	return nil
}

// positional returns what the argument of that number is to be; nil if there is none.
func positional(node *kong.Node, n int) *kong.Value {
	if node.DefaultCmd != nil {
		node = node.DefaultCmd
	}
	all := node.Positional
	if n >= len(all) && len(all) > 0 && all[len(all)-1].IsCumulative() {
		n = len(all) - 1
	}
	if n >= len(all) {
		return nil
	}
	return all[n]
}

// kindOf is what an argument names. Its help says so with its first word.
func kindOf(node *kong.Node, p *kong.Value) string {
	if node.Parent != nil && node.Parent.Name == "secret" && p.Name == "name" || node.Parent != nil && node.Parent.Name == "alias" && p.Name == "alias" {
		return node.Parent.Name
	}
	first, _, _ := strings.Cut(p.Help, " ")
	return strings.ToLower(strings.Trim(first, ".,:;"))
}

// valuesOf returns what a value can be: one of a list, or a name of that kind.
func valuesOf(v *kong.Value, kind string, names source) []string {
	if v.Enum != "" {
		return slices.DeleteFunc(strings.Split(v.Enum, ","), func(s string) bool { return s == "" })
	}
	switch kind {
	case "sandbox", "sandboxes":
		return names("sandbox")
	case "job", "jobs", "named": // session, or job
		return names("job")
	case "service", "services":
		return names("service")
	case "run", "runs", "resume":
		return names("run")
	case "user", "users":
		return names("user")
	case "secret", "alias", "snapshot":
		return names(kind)
	case "snapshots":
		return names("snapshot")
	case "recording", "recordings":
		return names("recording")
	case "path", "paths":
		var found []string
		for _, n := range names("sandbox") {
			found = append(found, n+":")
		}
		return found
	}
	return nil
}

// openEnded says whether more of a word can come after it.
func openEnded(word string) bool { return strings.HasSuffix(word, ":") || strings.HasSuffix(word, "=") }

// commonPrefix is how all of words begin.
func commonPrefix(words []string) string {
	if len(words) == 0 {
		return ""
	}
	prefix := words[0]
	for _, w := range words[1:] {
		for !strings.HasPrefix(w, prefix) {
			prefix = prefix[:len(prefix)-1]
		}
	}
	return prefix
}

// wordsOf returns the words of a line that is being typed, the last of which is
// empty after a space. It returns false if that cannot be told, as in quotes.
func wordsOf(line string) ([]string, bool) {
	i := strings.LastIndexAny(line, " \t") + 1
	words, err := shell.Fields(line[:i], func(name string) string { return "$" + name })
	if err != nil || strings.ContainsAny(line[i:], `"'\$`) {
		return nil, false
	}
	return append(words, line[i:]), true
}

// Complete returns what the last of words could become, for what the caller may do
// and see.
func (l *Login) Complete(ctx context.Context, words []string) []string {
	w, err := l.who(ctx)
	if err != nil {
		return nil
	}
	parser, err := kong.New(new(lobbyVerbs))
	if err != nil {
		return nil
	}
	allowed := func(n *kong.Node) bool {
		return slices.ContainsFunc(append(n.Leaves(true), n), func(leaf *kong.Node) bool {
			return leaf.Leaf() && permit(w, request{deed: deedOf(leaf)}) == nil
		})
	}
	return Completions(parser.Model.Node, words, allowed, func(kind string) []string {
		names, err := l.namesOf(ctx, kind)
		if err != nil {
			l.log.Debug("names not listed", "kind", kind, keyErr, err)
		}
		return names
	})
}

// namesOf returns the names of things that the caller may see.
func (l *Login) namesOf(ctx context.Context, kind string) (names []string, err error) {
	add := func(name string) { names = append(names, name) }
	switch kind {
	case "sandbox":
		if err := l.may(ctx, "ls"); err != nil {
			return nil, err
		}
		return l.names(ctx)
	case "job":
		if err := l.may(ctx, "jobs"); err != nil {
			return nil, err
		}
		jobs, err := l.Jobs(ctx, "jobs", "")
		if err != nil {
			return nil, err
		}
		for _, j := range jobs {
			if j.Kind == guest.KindSession || j.Kind == guest.KindRun {
				add(j.called())
			}
			if j.called() != j.Name() && !j.Running() {
				add(j.Name()) // of several with one name, the newest has it
			}
		}
	case "run":
		runs, err := l.Runs(ctx)
		if err != nil {
			return nil, err
		}
		for _, r := range runs {
			add(r.ID)
		}
	case "user":
		users, err := l.Users(ctx)
		if err != nil {
			return nil, err
		}
		for _, u := range users {
			add(u.Name)
		}
	case "alias":
		aliases, err := l.Aliases(ctx)
		if err != nil {
			return nil, err
		}
		for _, a := range aliases {
			add(a.Name)
		}
	case "secret":
		if err := l.may(ctx, "secret ls"); err != nil {
			return nil, err
		}
		secrets, err := l.Secrets(ctx)
		if err != nil {
			return nil, err
		}
		for _, s := range secrets {
			add(s.Name)
		}
	case "recording":
		all, err := l.Recordings(ctx, false)
		if err != nil {
			return nil, err
		}
		for _, r := range all {
			add(r.ID)
		}
	case "snapshot":
		if err := l.may(ctx, "snapshots"); err != nil {
			return nil, err
		}
		all, err := l.gate.db.SnapshotsOf(ctx, l.user.ID)
		if err != nil {
			return nil, err
		}
		for _, s := range all {
			add(s.Name)
		}
	case "service":
		return l.serviceNames(ctx)
	}
	return names, nil
}

// serviceNames returns the services of all sandboxes that the caller may see.
func (l *Login) serviceNames(ctx context.Context) ([]string, error) {
	if err := l.may(ctx, "ls"); err != nil {
		return nil, err
	}
	all, err := l.visible(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, s := range all {
		services, err := l.gate.db.Services(ctx, s.Row.ID)
		if err != nil {
			return nil, err
		}
		for _, v := range services {
			names = append(names, l.nameOf(s.Row)+"/"+v.Name)
		}
	}
	return names, nil
}
