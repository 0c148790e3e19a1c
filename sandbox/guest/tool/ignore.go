package tool

import (
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
	"golang.org/x/sys/unix"
)

// A rule is one line of a .gitignore file, see gitignore(5).
type rule struct {
	pattern  string
	keep     bool // it began with !
	folders  bool // it ended with /
	anchored bool // it is about paths from the file's folder on, not names anywhere

	literal bool   // the pattern has no wildcards
	suffix  string // of the pattern, where that is * and a suffix
}

// A ruleset is what ignore files in one folder say about what is below it.
type ruleset []rule

// maxIgnoreFile bounds what is read of one ignore file.
const maxIgnoreFile = 1 << 20

// readRules reads an ignore file. One that cannot be read has no rules.
func readRules(path string) ruleset {
	if fi, err := os.Stat(path); err != nil || !fi.Mode().IsRegular() {
		return nil
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxIgnoreFile))
	if err != nil {
		return nil
	}
	return parseRules(string(b))
}

func parseRules(text string) ruleset {
	var rules ruleset
	for line := range strings.SplitSeq(strings.TrimPrefix(text, "\ufeff"), "\n") {
		if r, ok := parseRule(strings.TrimSuffix(line, "\r")); ok {
			rules = append(rules, r)
		}
	}
	return rules
}

func parseRule(line string) (rule, bool) {
	if strings.HasPrefix(line, "#") {
		return rule{}, false
	}
	for strings.HasSuffix(line, " ") && !escaped(line, len(line)-1) {
		line = line[:len(line)-1]
	}
	var r rule
	line, r.keep = cutPrefix(line, "!")
	if strings.HasSuffix(line, "/") {
		line, r.folders = line[:len(line)-1], true
	}
	r.anchored = strings.Contains(line, "/")
	line = strings.TrimPrefix(line, "/")
	if line == "" {
		return rule{}, false
	}
	if strings.HasSuffix(line, "/**") {
		line += "/*" // all that is in the folder, which is not itself meant
	}
	// To git braces are only braces.
	r.pattern = strings.NewReplacer(`\{`, `\{`, `\}`, `\}`, `\\`, `\\`, "{", `\{`, "}", `\}`).Replace(line)
	if !doublestar.ValidatePattern(r.pattern) {
		return rule{}, false
	}
	const wild = `*?[\{}`
	r.literal = !strings.ContainsAny(r.pattern, wild)
	if rest, ok := strings.CutPrefix(r.pattern, "*"); ok && !r.anchored && rest != "" && !strings.ContainsAny(rest, wild) {
		r.suffix = rest
	}
	return r, true
}

func cutPrefix(s, prefix string) (string, bool) {
	rest, ok := strings.CutPrefix(s, prefix)
	return rest, ok
}

// escaped says whether there is an odd number of backslashes before s[i].
func escaped(s string, i int) bool {
	n := 0
	for i > 0 && s[i-1] == '\\' {
		i--
		n++
	}
	return n%2 == 1
}

// matches says whether the rule is about a path, as seen from the rule's folder.
func (r rule) matches(path, name string, dir bool) bool {
	if r.folders && !dir {
		return false
	}
	subject := name
	if r.anchored {
		subject = path
	}
	switch {
	case r.literal:
		return subject == r.pattern
	case r.suffix != "":
		return strings.HasSuffix(subject, r.suffix)
	}
	return doublestar.MatchUnvalidated(r.pattern, subject)
}

// decide returns what the last rule about a path says of it.
func (rs ruleset) decide(path, name string, dir bool) (ignored, decided bool) {
	for i := len(rs) - 1; i >= 0; i-- {
		if rs[i].matches(path, name, dir) {
			return !rs[i].keep, true
		}
	}
	return false, false
}

// A layer is the rules of one folder; those of the folders above come after it.
type layer struct {
	above *layer
	dir   string // its absolute path
	// In the order in which they are asked.
	sets []ruleset
}

// ignores says whether the absolute path, which is below the layer's folder, is to
// be left out.
func (l *layer) ignores(path string, dir bool) bool {
	name := filepath.Base(path)
	for ; l != nil; l = l.above {
		below := strings.TrimPrefix(strings.TrimPrefix(path, l.dir), "/")
		for _, rules := range l.sets {
			if ignored, decided := rules.decide(below, name, dir); decided {
				return ignored
			}
		}
	}
	return false
}

// ignoreFiles are read in each folder, the first in the list first.
var ignoreFiles = []string{".ignore", ".gitignore"}

// layerOf returns the rules of one folder upon those above, which are returned
// where it has none.
func layerOf(dir string, above *layer, has func(name string) bool) *layer {
	l := &layer{above: above, dir: dir}
	for _, name := range ignoreFiles {
		if !has(name) {
			continue
		}
		if rules := readRules(filepath.Join(dir, name)); len(rules) > 0 {
			l.sets = append(l.sets, rules)
		}
	}
	if len(l.sets) == 0 {
		return above
	}
	return l
}

// layersAbove returns the rules that hold in a folder because of those above it: of
// the repository that it is in, and of all repositories of the user.
func layersAbove(root, home string) *layer {
	anywhere := func(string) bool { return true }
	dirs := []string{}
	top := ""
	for dir := root; ; dir = filepath.Dir(dir) {
		if dir != root {
			dirs = append(dirs, dir)
		}
		if _, err := os.Lstat(filepath.Join(dir, ".git")); err == nil {
			top = dir
			break
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	var l *layer
	global := &layer{dir: root, sets: []ruleset{
		readRules(filepath.Join(home, ".config/git/ignore")),
	}}
	if top == "" {
		if len(global.sets[0]) > 0 {
			l = global
		}
		return l
	}
	global.dir = top
	global.sets = append([]ruleset{readRules(filepath.Join(top, ".git/info/exclude"))}, global.sets...)
	l = global
	for i := len(dirs) - 1; i >= 0; i-- {
		l = layerOf(dirs[i], l, anywhere)
	}
	return l
}
