package tool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"
)

// EditArgs are the arguments of edit.
type EditArgs struct {
	Path       string    `json:"path" jsonschema:"the file"`
	Old        *string   `json:"old,omitempty" jsonschema:"the text to be replaced, exactly as it is in the file, without line numbers; empty only to create a file"`
	New        *string   `json:"new,omitempty" jsonschema:"the text to put there, taken literally"`
	ReplaceAll bool      `json:"replace_all,omitempty" jsonschema:"replace every match, not just the only one"`
	NearLine   int       `json:"near_line,omitempty" min:"1" jsonschema:"of several matches take the one nearest to this line"`
	Edits      []OneEdit `json:"edits,omitempty" jsonschema:"several edits instead of old and new, applied in order, all or none"`
}

// OneEdit is one of several.
type OneEdit struct {
	Old        string `json:"old" jsonschema:"the text to be replaced"`
	New        string `json:"new" jsonschema:"the text to put there"`
	ReplaceAll bool   `json:"replace_all,omitempty" jsonschema:"replace every match"`
	nearLine   int
}

// EditOutput is what edit returns.
type EditOutput struct {
	Path         string `json:"path" jsonschema:"the file without links"`
	Status       string `json:"status" jsonschema:"created or updated"`
	Replacements int    `json:"replacements" jsonschema:"how many places were changed"`
	FirstLine    int    `json:"first_line" jsonschema:"line of the first change"`
	SHA256       string `json:"sha256" jsonschema:"of the file now"`
	Change
	Common
}

// Text is the output as a model reads it.
func (o *EditOutput) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s, %d replacements, first at line %d (+%d −%d)\n%s",
		o.Path, o.Status, o.Replacements, o.FirstLine, o.Added, o.Removed, o.Diff)
	return o.text(&b)
}

func (c *call) edit(ctx context.Context, a EditArgs) (*EditOutput, error) {
	edits, err := a.list()
	if err != nil {
		return nil, err
	}
	path, err := c.resolve(a.Path)
	if err != nil {
		return nil, err
	}
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) && edits[0].Old != "" {
		return nil, c.notThere(path, err)
	}
	real, linked, err := c.locate(path)
	if err != nil {
		return nil, err
	}
	defer c.session.turn(real)()
	t, err := c.look(ctx, real)
	if err != nil {
		return nil, err
	}
	out := &EditOutput{Path: clean([]byte(real)), Status: "updated", Replacements: 1, FirstLine: 1}
	if linked {
		out.note("%s is a link; what it points to was edited", path)
	}
	content := t.old
	switch {
	case !t.exists && len(edits) == 1:
		content, out.Status = []byte(edits[0].New), "created"
	case t.exists && edits[0].Old == "", !t.exists:
		return nil, Errorf(BadArgs, "old is empty, which only creates a file, and %s exists", real).
			With("say in old what is to be replaced; write replaces a whole file")
	case content == nil:
		e := Errorf(TooLarge, "%s has %d bytes; files of up to %d can be edited", real, t.info.Size(), maxFile)
		e.Size = t.info.Size()
		return nil, e.With("edit it with exec, such as: sed -i")
	default:
		if err := c.fresh(t); err != nil {
			return nil, err
		}
		if content, err = apply(t.old, edits, out); err != nil {
			return nil, err
		}
	}
	if len(content) > maxFile {
		return nil, Errorf(TooLarge, "%s would have %d bytes; the limit is %d", real, len(content), maxFile).
			With("replace fewer places, or edit it with exec")
	}
	if err := ended(ctx); err != nil {
		return nil, fileError("edit", real, err)
	}
	if err := c.replace(t, content, nil, &out.Common); err != nil {
		return nil, err
	}
	out.Change = changed(filepath.Base(real), t.old, content)
	out.SHA256 = c.know(real, content)
	return out, nil
}

// list returns the edits that are asked for, one or more.
func (a EditArgs) list() ([]OneEdit, error) {
	single := a.Old != nil || a.New != nil
	switch {
	case single && len(a.Edits) > 0:
		return nil, badEdit("there are both old and new, and edits")
	case single && a.Old == nil:
		return nil, badEdit("old is missing")
	case single && a.New == nil:
		return nil, badEdit("new is missing")
	case single:
		a.Edits = []OneEdit{{Old: *a.Old, New: *a.New, ReplaceAll: a.ReplaceAll, nearLine: a.NearLine}}
	case len(a.Edits) == 0:
		return nil, badEdit("there are neither old and new nor edits")
	}
	for i, e := range a.Edits {
		if e.Old == e.New {
			return nil, Errorf(Identical, "%sold and new are the same", which(i, a.Edits))
		}
		if i > 0 && e.Old == "" {
			return nil, badEdit("%sold is empty", which(i, a.Edits))
		}
	}
	return a.Edits, nil
}

func badEdit(format string, args ...any) *Error {
	return Errorf(BadArgs, format, args...).With("give old and new, or edits: [{old, new, replace_all}, …]")
}

// which names one of several edits.
func which(i int, edits []OneEdit) string {
	if len(edits) == 1 {
		return ""
	}
	return fmt.Sprintf("edit %d of %d: ", i+1, len(edits))
}

// apply makes the edits one after the other in the bytes of a file.
func apply(content []byte, edits []OneEdit, out *EditOutput) ([]byte, error) {
	out.Replacements, out.FirstLine = 0, 0
	f := sniff(head(content))
	if f.binary != "" {
		e := Errorf(Binary, "%s is %s, not text", out.Path, f.binary)
		e.Kind = f.binary
		return nil, e.With("change it with a program of its own, by exec; write with encoding base64 replaces it as a whole")
	}
	for i, e := range edits {
		next, err := f.applyOne(content, e, out)
		if err != nil {
			if e, ok := errors.AsType[*Error](err); ok {
				e.Message = which(i, edits) + e.Message
			}
			return nil, err
		}
		content = next
	}
	return content, nil
}

// A span is a region of text.
type span struct{ from, to int }

// applyOne makes one edit. Only the bytes of the regions that match are replaced;
// all others are copied.
func (f form) applyOne(content []byte, e OneEdit, out *EditOutput) ([]byte, error) {
	body := content[f.bom:]
	text := f.charset.decode(body)
	spans, how := findAll(text, []byte(e.Old), e.ReplaceAll)
	if len(spans) == 0 {
		return nil, noMatch(text, e.Old)
	}
	if len(spans) > 1 && !e.ReplaceAll {
		one, err := choose(text, spans, e.nearLine)
		if err != nil {
			return nil, err
		}
		spans = []span{one}
	}
	if how != "" {
		out.note("%s", how)
	}
	if out.FirstLine == 0 {
		out.FirstLine = 1 + bytes.Count(text[:spans[0].from], []byte("\n"))
	}
	whole := eolIn(text)
	var ends []int
	for _, s := range spans {
		ends = append(ends, s.from, s.to)
	}
	ends = f.charset.offsets(body, ends)
	result := append(make([]byte, 0, len(content)+len(e.New)), content[:f.bom]...)
	at := 0
	for i, s := range spans {
		region, raw := text[s.from:s.to], body[ends[2*i]:ends[2*i+1]]
		put, note := withEOL([]byte(e.New), region, whole)
		if note != "" && !slices.Contains(out.Notes, note) {
			out.note("%s", note)
		}
		encoded, err := f.encode(put, region, raw)
		if err != nil {
			return nil, err
		}
		result = append(append(result, body[at:ends[2*i]]...), encoded...)
		at = ends[2*i+1]
		if len(result) > 2*maxFile {
			break // which is then refused as too large
		}
	}
	out.Replacements += len(spans)
	return append(result, body[at:]...), nil
}

// encode returns the text that replaces a region as bytes of the file.
func (f form) encode(put, region, raw []byte) ([]byte, error) {
	if f.charset == utf8Text {
		return put, nil
	}
	back, err := f.charset.encode(region)
	if err != nil || !bytes.Equal(back, raw) {
		return nil, Errorf(Binary, "the text that old matches cannot be changed without loss, as the file is taken for %s", f.charset).
			With("choose a smaller region without the unusual characters, or change the file with exec")
	}
	b, err := f.charset.encode(put)
	if err != nil {
		return nil, Errorf(BadArgs, "new cannot be written into the file: %v", err).
			With("use other characters, or turn the file into UTF-8 first with exec: iconv")
	}
	return b, nil
}

// maxSpans bounds the matches that are told apart where only one is wanted.
const maxSpans = 10_000

// findAll returns where old is in text: exactly, else but for the line ends, else
// but for blanks at the ends of lines and then only if that is one place. how says
// what was not exact. Matches to be replaced do not overlap; those to choose from
// may.
func findAll(text, old []byte, replace bool) (spans []span, how string) {
	if at := occurrences(text, old, replace); len(at) > 0 {
		for _, from := range at {
			spans = append(spans, span{from, from + len(old)})
		}
		return spans, ""
	}
	if spans := findByLF(text, old, replace); len(spans) > 0 {
		return spans, ""
	}
	if s, ok := findTrimmed(text, old); ok {
		return []span{s}, "old matched only without the blanks at the ends of its lines"
	}
	return nil, ""
}

// occurrences returns the offsets of old in text, see findAll.
func occurrences(text, old []byte, replace bool) (found []int) {
	step := 1
	if replace {
		step = len(old)
	}
	for at := 0; len(old) > 0 && (replace || len(found) < maxSpans); {
		i := bytes.Index(text[min(at, len(text)):], old)
		if i < 0 {
			break
		}
		found = append(found, at+i)
		at += i + step
	}
	return found
}

// findByLF finds old where line ends may differ.
func findByLF(text, old []byte, replace bool) (spans []span) {
	crlf, lf := []byte("\r\n"), []byte("\n")
	old = bytes.ReplaceAll(old, crlf, lf)
	at := occurrences(bytes.ReplaceAll(text, crlf, lf), old, replace)
	if len(at) == 0 {
		return nil
	}
	// plain is an offset into the text without carriage returns, real the same one
	// into the text.
	plain, real := 0, 0
	seek := func(to int) int {
		for plain < to {
			if text[real] == '\r' && real+1 < len(text) && text[real+1] == '\n' {
				real++
			}
			real++
			plain++
		}
		return real
	}
	for _, from := range at {
		start := seek(from)
		spans = append(spans, span{start, seek(from + len(old))})
		plain, real = from, start // the next one may begin within
	}
	return spans
}

// findTrimmed finds the only place where the lines of old are, but for blanks at
// their ends.
func findTrimmed(text, old []byte) (found span, ok bool) {
	const blanks = " \t\r"
	want := bytes.Split(old, []byte("\n"))
	open := len(want[len(want)-1]) == 0 // old ends with a line's end
	if open {
		want = want[:len(want)-1]
	}
	for i := range want {
		want[i] = bytes.TrimRight(want[i], blanks)
	}
	if len(bytes.Join(want, nil)) == 0 {
		return span{}, false // blanks only
	}
	var starts []int // of lines
	for at := 0; at < len(text); {
		starts = append(starts, at)
		next := bytes.IndexByte(text[at:], '\n')
		if next < 0 {
			break
		}
		at += next + 1
	}
	end := func(i int) int { // of line i, without its line end
		if i+1 == len(starts) {
			return len(bytes.TrimSuffix(text, []byte("\n")))
		}
		return starts[i+1] - 1
	}
	count := 0
	for i := 0; i+len(want) <= len(starts); i++ {
		match := true
		for k := 0; match && k < len(want); k++ {
			match = bytes.Equal(bytes.TrimRight(text[starts[i+k]:end(i+k)], blanks), want[k])
		}
		if !match {
			continue
		}
		last := i + len(want) - 1
		stop := end(last)
		switch {
		case open && stop < len(text):
			stop++
		case open:
			continue // the last line has no end
		case stop > starts[last] && text[stop-1] == '\r':
			stop-- // which belongs to the line's end
		}
		found, count = span{starts[i], stop}, count+1
	}
	return found, count == 1
}

// choose returns the match that is nearest to a line.
func choose(text []byte, spans []span, near int) (span, error) {
	var lines []int
	best, tie := 0, false
	line, at := 1, 0
	for i, s := range spans {
		line += bytes.Count(text[at:s.from], []byte("\n"))
		at = s.from
		lines = append(lines, line)
		far, nearest := abs(line-near), abs(lines[best]-near)
		switch {
		case i > 0 && far == nearest:
			tie = true
		case far < nearest:
			best, tie = i, false
		}
	}
	if near == 0 || tie {
		e := Errorf(Ambiguous, "old is there %d times", len(spans))
		e.Count, e.Lines = len(spans), lines[:min(len(lines), 10)]
		return span{}, e
	}
	return spans[best], nil
}

func abs(n int) int { return max(n, -n) }

// withEOL returns new with the line ends that the region had, one by one. Where it
// had none, they are as in all of the file, if that is of one kind.
func withEOL(new, region []byte, whole eol) (put []byte, note string) {
	if !bytes.Contains(new, []byte("\n")) {
		return new, ""
	}
	var had []bool // whether each line end of the region is CRLF
	for i, c := range region {
		if c == '\n' {
			had = append(had, i > 0 && region[i-1] == '\r')
		}
	}
	if len(had) == 0 && whole != lf && whole != crlf {
		return new, ""
	}
	if len(had) == 0 {
		had = []bool{whole == crlf}
	}
	for i, line := range bytes.SplitAfter(bytes.ReplaceAll(new, []byte("\r\n"), []byte("\n")), []byte("\n")) {
		if had[min(i, len(had)-1)] && bytes.HasSuffix(line, []byte("\n")) {
			put = append(append(put, line[:len(line)-1]...), "\r\n"...)
		} else {
			put = append(put, line...)
		}
	}
	if !bytes.Equal(put, new) {
		note = "the line ends of new were written as they are in the file"
	}
	return put, note
}

// noMatch is the error for text that is not there, with the lines most like it.
func noMatch(text []byte, old string) error {
	e := Errorf(NoMatch, "old is not in the file")
	const most = 8 // lines
	want := strings.Split(strings.TrimRight(old, "\r\n"), "\n")
	for i := range want {
		want[i] = strings.TrimSpace(want[i])
	}
	want = want[:min(len(want), most)]
	lines := bytes.Split(text, []byte("\n"))
	best, at := 0, -1
	for i := range lines {
		score := 0
		for k := 0; k < len(want) && i+k < len(lines); k++ {
			line := bytes.TrimSpace(lines[i+k])
			switch {
			case want[k] == "" || len(line) == 0:
			case string(line) == want[k]:
				score += 1000
			case k == 0:
				score += alike(line, want[0])
			}
		}
		if score > best {
			best, at = score, i
		}
	}
	if at < 0 {
		return e
	}
	e.Line = at + 1
	var shown []string
	for _, l := range lines[at:min(at+len(want), len(lines))] {
		shown = append(shown, visible(l))
	}
	e.Closest = strings.Join(shown, "\n")
	return e
}

// alike says, up to 999, how much of a line begins or ends as another does. It is
// nothing where that is less than half.
func alike(line []byte, want string) int {
	same := 0
	for same < min(len(line), len(want)) && line[same] == want[same] {
		same++
	}
	for k := 1; k <= min(len(line), len(want))-same && line[len(line)-k] == want[len(want)-k]; k++ {
		same++
	}
	longer := max(len(line), len(want))
	if same*2 < longer {
		return 0
	}
	return same * 999 / longer
}

// visible shows what cannot be seen of a line.
func visible(line []byte) string {
	const most = 200
	body := bytes.TrimRight(line, " \t\r")
	end := strings.NewReplacer(" ", "·", "\t", "→", "\r", "␍").Replace(string(line[len(body):]))
	if utf8.RuneCount(body) > most {
		return cutRunes(clean(body), most)
	}
	return strings.ReplaceAll(clean(body), "\t", "→") + end
}
