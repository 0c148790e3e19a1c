package tool

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"
)

// GrepArgs are the arguments of grep.
type GrepArgs struct {
	Pattern    string `json:"pattern" jsonschema:"a regular expression without lookaround and backreferences"`
	Path       string `json:"path,omitempty" jsonschema:"the folder or file to search; default the working folder"`
	Glob       string `json:"glob,omitempty" jsonschema:"only files that match, such as *.go or src/**/*.ts"`
	Type       string `json:"type,omitempty" jsonschema:"only files of a language, such as go, py, js, ts, rust, c, md"`
	Mode       string `json:"mode,omitempty" enum:"content,files,count" jsonschema:"content (default) shows lines, files only names with the newest first, count how many in each"`
	IgnoreCase bool   `json:"ignore_case,omitempty" jsonschema:"upper and lower case are the same"`
	Literal    bool   `json:"literal,omitempty" jsonschema:"pattern is plain text"`
	Multiline  bool   `json:"multiline,omitempty" jsonschema:"a match may go over several lines, and . matches line ends"`
	Before     int    `json:"before,omitempty" min:"0" max:"50" jsonschema:"lines shown before a match"`
	After      int    `json:"after,omitempty" min:"0" max:"50" jsonschema:"lines shown after a match"`
	Context    int    `json:"context,omitempty" min:"0" max:"50" jsonschema:"lines shown before and after"`
	Limit      int    `json:"limit,omitempty" min:"1" max:"1000" jsonschema:"matching lines, or files, at most; default 100"`
	Offset     int    `json:"offset,omitempty" min:"0" jsonschema:"leave out so many of the first"`
	Ignored    bool   `json:"ignored,omitempty" jsonschema:"also files that .gitignore and .ignore leave out"`
}

var defaultGrep = GrepArgs{Mode: "content", Limit: 100}

// GrepOutput is what grep returns.
type GrepOutput struct {
	Root        string `json:"root" jsonschema:"what was searched"`
	Content     string `json:"content" jsonschema:"by file: number:text for a match, number-text for a line around one; or names, or names with counts"`
	Matches     int    `json:"matches" jsonschema:"matching lines in all"`
	Files       int    `json:"files" jsonschema:"files that have them"`
	BinaryFiles int    `json:"binary_files,omitempty" jsonschema:"binary files that match, which are not shown"`
	More        bool   `json:"more" jsonschema:"there are more than are shown"`
	NextOffset  int    `json:"next_offset,omitempty" jsonschema:"offset to go on with"`
	Partial     bool   `json:"partial,omitempty" jsonschema:"the search did not get to its end"`
	Syntax      string `json:"syntax" jsonschema:"of the expression: RE2, or Rust's regex where ripgrep is"`
	Common
}

// Text is the output as a model reads it.
func (o *GrepOutput) Text() string {
	var b strings.Builder
	b.WriteString(strings.TrimSuffix(o.Content, "\n"))
	fmt.Fprintf(&b, "\n(%s in %s)", summary(o.Matches, "matching line", "matching lines"), summary(o.Files, "file", "files"))
	return o.text(&b)
}

// The bounds of grep.
const (
	grepFile  = 10 << 20 // larger files are not searched
	grepRunes = 500      // shown of a line
)

// A hit is a line that is shown; a match may have several.
type hit struct {
	line  int
	match bool // not only near one
	text  []string
}

// hits are what one file has.
type hits struct {
	rel    string
	count  int // of matching lines
	binary bool
	large  bool
	shown  []hit
}

// A finder finds what matches in the files below a root, or in one file, and
// passes on in the order of paths what each has, including none.
type finder interface {
	find(ctx context.Context, emit func(hits)) (stopped string, err error)
}

// A query is what is looked for.
type query struct {
	GrepArgs
	root    string
	home    string
	single  bool // root is a file
	accepts func(rel string) bool
	names   []string // patterns of names that accepts goes by, where it goes by nothing else
	lines   int      // that a file need not show more than
}

func (c *call) grep(ctx context.Context, a GrepArgs) (*GrepOutput, error) {
	if a.Pattern == "" {
		return nil, Errorf(BadPattern, "the pattern is empty").With("say what to look for; . is any character")
	}
	a.Before, a.After = max(a.Before, a.Context), max(a.After, a.Context)
	root, show, err := c.searchRoot(a.Path)
	if err != nil {
		return nil, err
	}
	fi, err := os.Stat(root)
	if err != nil {
		return nil, c.notThere(root, err)
	}
	q := &query{GrepArgs: a, root: root, home: c.session.home, single: !fi.IsDir(), lines: a.Offset + a.Limit}
	if q.single {
		if err := regular(root, fi); err != nil {
			return nil, err
		}
		show = func(string) string { return cmp.Or(clean([]byte(a.Path)), root) }
	}
	if err := q.filter(); err != nil {
		return nil, err
	}
	out := &GrepOutput{Root: clean([]byte(root))}
	find, err := q.finder(out)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, searchTimeout)
	defer cancel()
	r := &report{query: q, out: out, show: show}
	stopped, err := find.find(ctx, r.add)
	if err != nil {
		return nil, err
	}
	r.finish()
	if stopped != "" {
		out.Partial, out.More = true, true
		out.Cancelled = ctx.Err() == context.Canceled
		out.note("partial: %s; name a folder in path, or a glob", stopped)
	}
	return out, nil
}

// filter makes accepts of glob and type.
func (q *query) filter() error {
	accepts := func(string) bool { return true }
	if q.Type != "" {
		names, ok := fileTypes[q.Type]
		if !ok {
			return Errorf(BadArgs, "there is no type %.40q", q.Type).With("use glob, such as *.%.10s; the types are %s", q.Type, typeList())
		}
		q.names = names
		accepts = func(rel string) bool { return matchesAny(names, filepath.Base(rel)) }
	}
	if q.Glob != "" {
		if err := checkGlob(q.Glob); err != nil {
			return err
		}
		pattern, byType := strings.TrimPrefix(q.Glob, "./"), accepts
		if strings.Contains(pattern, "/") {
			q.names = nil
			accepts = func(rel string) bool { return byType(rel) && doublestar.MatchUnvalidated(pattern, rel) }
		} else {
			if q.names != nil {
				q.names = nil
			} else {
				q.names = []string{pattern}
			}
			accepts = func(rel string) bool {
				return byType(rel) && doublestar.MatchUnvalidated(pattern, filepath.Base(rel))
			}
		}
	}
	q.accepts = accepts
	return nil
}

func matchesAny(patterns []string, name string) bool {
	for _, p := range patterns {
		if doublestar.MatchUnvalidated(p, name) {
			return true
		}
	}
	return false
}

// finder returns ripgrep where it is there and can do what is asked, else our own.
// An expression is checked by who is to run it. Plain text in one file is found sooner
// than a program is started, which takes gVisor most of what a small search takes.
func (q *query) finder(out *GrepOutput) (finder, error) {
	filtered := q.Glob != "" || q.Type != ""
	if rg, err := exec.LookPath("rg"); err == nil && (!filtered || q.names != nil) && !(q.single && q.plain()) {
		out.Syntax = "Rust regex"
		return &ripgrep{query: q, program: rg}, nil
	}
	out.Syntax = "RE2"
	e, err := q.expression()
	if err != nil {
		return nil, err
	}
	return &walker{query: q, re: e}, nil
}

// plain says whether the pattern is text that means itself, whoever reads it.
func (q *query) plain() bool { return q.Literal || regexp.QuoteMeta(q.Pattern) == q.Pattern }

// expression compiles the pattern.
func (q *query) expression() (*regexp.Regexp, error) {
	p := q.Pattern
	if q.Literal {
		p = regexp.QuoteMeta(p)
	}
	flags := "m"
	if q.IgnoreCase {
		flags += "i"
	}
	if q.Multiline {
		flags += "s"
	}
	if _, err := regexp.Compile(p); err != nil {
		return nil, badExpression(strings.TrimPrefix(err.Error(), "error parsing regexp: "))
	}
	return regexp.MustCompile("(?" + flags + ")" + p), nil
}

func badExpression(reason string) *Error {
	return Errorf(BadPattern, "%.1000s", reason).
		With(`correct the expression, or use literal=true; \ takes the meaning from a special character, and lookaround and backreferences are not there`)
}

// A report turns hits into the output.
type report struct {
	*query
	out   *GrepOutput
	show  func(rel string) string
	b     strings.Builder
	names []string // of files mode
	seen  int      // lines, or files, so far
	shown int
	large int
	full  bool // no more fits
}

func (r *report) add(h hits) {
	switch {
	case h.large:
		r.large++
		return
	case h.count == 0:
		return
	case h.binary:
		r.out.BinaryFiles++
		return
	}
	r.out.Files++
	r.out.Matches += h.count
	switch r.Mode {
	case "files":
		r.names = append(r.names, h.rel)
	case "count":
		if r.seen++; r.seen > r.Offset {
			r.put(fmt.Sprintf("%s: %d\n", r.show(h.rel), h.count))
		}
	default:
		r.lines(h)
	}
}

// put adds a piece that counts as one of the limit.
func (r *report) put(piece string) bool {
	if r.shown == r.Limit || r.full || r.b.Len()+len(piece) > maxText-1024 {
		r.full = true
		return false
	}
	r.b.WriteString(piece)
	r.shown++
	return true
}

// lines adds the lines of one file.
func (r *report) lines(h hits) {
	first := r.seen
	r.seen += h.count
	if r.seen <= r.Offset || r.full {
		r.full = r.full || r.shown == r.Limit
		return
	}
	heading := r.show(h.rel) + "\n"
	if r.b.Len() > 0 {
		heading = "\n" + heading
	}
	number, last := first, 0 // of the match; the line before
	var around []hit
	for _, l := range h.shown {
		if !l.match {
			around = append(around, l)
			continue
		}
		number++
		if number <= r.Offset {
			around = around[:0]
			continue
		}
		piece := heading
		for _, near := range around {
			if last != 0 || near.line >= l.line-r.Before { // not of a match left out
				piece += r.gap(&last, near) + near.String()
			}
		}
		piece += r.gap(&last, l) + l.String()
		around = around[:0]
		if !r.put(piece) {
			return
		}
		heading = ""
	}
	if heading == "" {
		for _, l := range around { // after the last match
			r.b.WriteString(r.gap(&last, l) + l.String())
		}
	}
}

// gap separates lines that do not follow each other, where there are others than
// those that match.
func (r *report) gap(last *int, l hit) string {
	jump := *last != 0 && l.line > *last+1 && r.Before+r.After > 0
	*last = l.line + len(l.text) - 1
	if jump {
		return "--\n"
	}
	return ""
}

func (l hit) String() string {
	sign := "-"
	if l.match {
		sign = ":"
	}
	var b strings.Builder
	for i, text := range l.text {
		fmt.Fprintf(&b, "%d%s%s\n", l.line+i, sign, text)
	}
	return b.String()
}

func (r *report) finish() {
	if r.Mode == "files" {
		all := make([]found, len(r.names))
		for i, n := range r.names {
			all[i] = found{rel: n}
		}
		sortNewest(r.root, all)
		for i, m := range all {
			if r.seen++; i >= r.Offset {
				r.put(r.show(m.rel) + "\n")
			}
		}
	}
	r.out.Content = r.b.String()
	if r.seen > r.Offset+r.shown {
		r.out.More, r.out.NextOffset = true, r.Offset+r.shown
		r.out.note("%d of %d are shown; go on with offset=%d, or narrow the search", r.shown, r.seen, r.out.NextOffset)
	} else if r.shown == 0 && r.seen > 0 {
		r.out.note("offset=%d is behind the end; there are %d", r.Offset, r.seen)
	}
	if r.out.BinaryFiles > 0 {
		r.out.note("%s too, not shown", summary(r.out.BinaryFiles, "binary file matches", "binary files match"))
	}
	if r.large > 0 {
		r.out.note("%s of more than %d MiB not searched; search it by its name with exec", summary(r.large, "file", "files"), grepFile>>20)
	}
	if r.out.Matches == 0 && !r.out.Partial {
		r.out.note("no matches below %s", r.root)
	}
}

// shorten returns a line as text, of a long one the part around the match.
func shorten(line []byte, from, to int) string {
	if len(line) <= grepRunes {
		return clean(line)
	}
	if utf8.RuneCount(line) <= grepRunes {
		return clean(line)
	}
	// Bytes are taken for runes at first; then what is too much is cut.
	begin := max(0, min((from+to)/2-grepRunes/2, len(line)-grepRunes))
	for begin > 0 && begin < len(line) && !utf8.RuneStart(line[begin]) {
		begin++
	}
	end, runes := begin, 0
	for end < len(line) && runes < grepRunes {
		_, n := utf8.DecodeRune(line[end:])
		end += n
		runes++
	}
	text := clean(line[begin:end])
	if begin > 0 {
		text = "…" + text
	}
	if end < len(line) {
		text += "…"
	}
	return text
}
