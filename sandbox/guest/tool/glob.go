package tool

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/bmatcuk/doublestar/v4"
)

// GlobArgs are the arguments of glob.
type GlobArgs struct {
	Pattern string `json:"pattern" jsonschema:"such as **/*.go, src/{a,b}/*.ts or [a-z]*; ** stands for any folders"`
	Path    string `json:"path,omitempty" jsonschema:"the folder to search; default the working folder"`
	Limit   int    `json:"limit,omitempty" min:"1" max:"1000" jsonschema:"how many at most; default 100"`
	Type    string `json:"type,omitempty" enum:"file,dir,any" jsonschema:"what is wanted: file, dir or any (default)"`
	Sort    string `json:"sort,omitempty" enum:"mtime,path" jsonschema:"mtime (default) has the newest first"`
	Hidden  bool   `json:"hidden,omitempty" jsonschema:"also names that begin with a dot; default true"`
	Ignored bool   `json:"ignored,omitempty" jsonschema:"also what .gitignore and .ignore leave out; default false"`
}

var defaultGlob = GlobArgs{Limit: 100, Type: "any", Sort: "mtime", Hidden: true}

// GlobOutput is what glob returns.
type GlobOutput struct {
	Root    string   `json:"root" jsonschema:"the folder that was searched"`
	Paths   []string `json:"paths" jsonschema:"what was found; folders end with a slash"`
	Total   int      `json:"total" jsonschema:"how many there are"`
	More    bool     `json:"more" jsonschema:"there are more than are listed"`
	Partial bool     `json:"partial,omitempty" jsonschema:"the search did not get to its end"`
	Common
}

// Text is the output as a model reads it.
func (o *GlobOutput) Text() string {
	var b strings.Builder
	b.WriteString(strings.Join(o.Paths, "\n"))
	return o.text(&b)
}

func (c *call) glob(ctx context.Context, a GlobArgs) (*GlobOutput, error) {
	if err := checkGlob(a.Pattern); err != nil {
		return nil, err
	}
	pattern := strings.TrimPrefix(a.Pattern, "./")
	if base, rest := doublestar.SplitPattern(pattern); base != "." {
		// A path before the first wildcard is where to begin.
		if filepath.IsAbs(base) || strings.HasPrefix(base, "~") {
			a.Path = unescape(base)
		} else {
			a.Path = filepath.Join(a.Path, unescape(base))
		}
		pattern = rest
	}
	root, show, err := c.searchRoot(a.Path)
	if err != nil {
		return nil, err
	}
	out := &GlobOutput{Root: clean([]byte(root)), Paths: []string{}}
	fi, err := os.Stat(root)
	switch {
	case err != nil && fileError("search", root, err).Code == NotFound:
		e := c.notThere(root, err)
		if base, _ := doublestar.SplitPattern(a.Pattern); base == "." {
			return nil, e
		}
		// The path came with the pattern: then nothing matches it.
		out.note("%s does not exist, so nothing matches", root)
		return out, nil
	case err != nil:
		return nil, fileError("search", root, err)
	case !fi.IsDir():
		e := Errorf(NotRegular, "%s is a %s, not a folder", root, kindOfFile(fi.Mode()))
		return nil, e.With("name a folder in path")
	}
	ctx, cancel := context.WithTimeout(ctx, searchTimeout)
	defer cancel()
	found, w, err := c.match(ctx, root, pattern, a)
	if err != nil {
		return nil, err
	}
	out.Total, out.More = len(found), len(found) > a.Limit || w.stopped != ""
	out.Partial, out.Cancelled = w.stopped != "", w.stopped != "" && ctx.Err() == context.Canceled
	if a.Sort == "mtime" {
		sortNewest(root, found)
	}
	size := 0
	for i, m := range found[:min(len(found), a.Limit)] {
		p := show(m.rel)
		if m.dir {
			p += "/"
		}
		if size += len(p) + 1; size > maxText-1024 {
			out.More = true
			out.note("the list was cut at %d paths for its length", i)
			break
		}
		out.Paths = append(out.Paths, p)
	}
	switch {
	case out.Partial:
		out.note("partial: %s; %d entries were looked at, below %s", w.stopped, w.seen, root)
	case out.Total == 0:
		out.note("nothing matches below %s", root)
		if one := c.ignoredMatch(ctx, root, pattern, a); one != "" {
			out.note("%s matches but is left out by .gitignore or .ignore; ignored=true finds it", show(one))
		}
	case out.More:
		out.note("%d of %d; narrow the pattern or raise limit", len(out.Paths), out.Total)
	}
	return out, nil
}

// checkGlob says what is wrong with a pattern.
func checkGlob(pattern string) error {
	switch {
	case pattern == "":
		return Errorf(BadPattern, "the pattern is empty").With("** finds everything")
	case strings.HasPrefix(pattern, "!"):
		return Errorf(BadPattern, "%.100q: a pattern cannot be negated with !", pattern).
			With("say what is wanted; to find a name that begins with !, write [!]")
	case strings.Contains(pattern, "\x00") || !doublestar.ValidatePattern(pattern):
		return Errorf(BadPattern, "%.100q: a bracket, brace or backslash in it has no end", pattern).
			With(`close it, or write \[ \{ \\ for the character itself`)
	}
	return nil
}

func unescape(path string) string {
	var b strings.Builder
	for i := 0; i < len(path); i++ {
		if path[i] == '\\' && i+1 < len(path) {
			i++
		}
		b.WriteByte(path[i])
	}
	return b.String()
}

// A found file or folder.
type found struct {
	rel string
	dir bool
}

// match returns what matches the pattern, in the order of the paths. A name that is
// literally the pattern matches too, as names may have brackets.
func (c *call) match(ctx context.Context, root, pattern string, a GlobArgs) ([]found, *walk, error) {
	w := &walk{root: root, home: c.session.home, ignored: a.Ignored, hidden: a.Hidden || strings.HasPrefix(pattern, ".") || strings.Contains(pattern, "/.")}
	var all []found
	deepest := depth(pattern)
	err := w.each(ctx, func(rel string, e fs.DirEntry) error {
		below := error(nil)
		if strings.Count(rel, "/") >= deepest {
			below = fs.SkipDir
		}
		if rel != pattern && !doublestar.MatchUnvalidated(pattern, rel) {
			return below
		}
		dir := e.IsDir()
		if e.Type()&fs.ModeSymlink != 0 && a.Type == "dir" {
			if fi, err := os.Stat(filepath.Join(root, rel)); err == nil {
				dir = fi.IsDir()
			}
		}
		if a.Type == "any" || (a.Type == "dir") == dir {
			all = append(all, found{rel, dir})
		}
		return below
	})
	return all, w, err
}

// depth is how many folders deep a pattern can match.
func depth(pattern string) int {
	if strings.Contains(pattern, "**") || strings.ContainsAny(pattern, "{\\") {
		return maxEntries
	}
	return strings.Count(pattern, "/")
}

// ignoredMatch returns one that matches but is ignored, or "".
func (c *call) ignoredMatch(ctx context.Context, root, pattern string, a GlobArgs) string {
	if a.Ignored {
		return ""
	}
	one := ""
	w := &walk{root: root, home: c.session.home, ignored: true, hidden: a.Hidden}
	w.each(ctx, func(rel string, _ fs.DirEntry) error {
		if rel == pattern || doublestar.MatchUnvalidated(pattern, rel) {
			one = rel
			return errEnough
		}
		return nil
	})
	return one
}

// sortNewest sorts by when files were changed, and then by path.
func sortNewest(root string, all []found) {
	times := make(map[string]time.Time, len(all))
	for _, m := range all {
		if fi, err := os.Lstat(filepath.Join(root, m.rel)); err == nil {
			times[m.rel] = fi.ModTime()
		}
	}
	slices.SortStableFunc(all, func(a, b found) int { return times[b.rel].Compare(times[a.rel]) })
}

// summary is a number with its word.
func summary(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
