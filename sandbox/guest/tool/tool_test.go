package tool

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A desk is a folder with a session that works in it.
type desk struct {
	t   testing.TB
	dir string
	*Session
}

func newDesk(t testing.TB) *desk {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	home := filepath.Join(dir, ".home")
	return &desk{t: t, dir: dir, Session: NewSession(home)}
}

type args map[string]any

// put writes a file, and the folders above it.
func (d *desk) put(name, content string) string {
	d.t.Helper()
	path := filepath.Join(d.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		d.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		d.t.Fatal(err)
	}
	return path
}

// want compares the content of a file.
func (d *desk) want(name, content string) {
	d.t.Helper()
	got, err := os.ReadFile(filepath.Join(d.dir, name))
	if err != nil || string(got) != content {
		d.t.Errorf("%s is %q, want %q (%v)", name, got, content, err)
	}
}

// try calls a tool, which has to be done soon, and checks what holds for any
// result.
func (d *desk) try(name string, a any) (Output, *Error) {
	d.t.Helper()
	raw, err := json.Marshal(a)
	if err != nil {
		d.t.Fatal(err)
	}
	begun := time.Now()
	out, err := d.Call(d.t.Context(), d.dir, name, raw)
	if took := time.Since(begun); took > 30*time.Second {
		d.t.Errorf("%s took %v", name, took)
	}
	if err != nil {
		e, ok := err.(*Error)
		if !ok || e.Remedy == "" || e.Message == "" {
			d.t.Fatalf("%s: error without a remedy: %v", name, err)
		}
		d.check(name, e.Text(), e)
		return nil, e
	}
	d.check(name, out.Text(), out)
	return out, nil
}

// check checks that a result is text, within its limit, and the same after it has
// travelled.
func (d *desk) check(name, text string, v any) {
	d.t.Helper()
	image := false
	if o, ok := v.(*ReadOutput); ok {
		image = o.Data != nil
	}
	switch {
	case !utf8.ValidString(text):
		d.t.Errorf("%s returned invalid UTF-8: %q", name, text)
	case strings.Contains(text, "\x00"):
		d.t.Errorf("%s returned NUL: %q", name, text)
	case len(text) > maxText+4<<10 && !image:
		d.t.Errorf("%s returned %d bytes", name, len(text))
	}
	raw, err := json.Marshal(v)
	if err != nil {
		d.t.Fatal(err)
	}
	if bytes.Contains(raw, []byte(`\u0000`)) || bytes.Contains(raw, []byte(`\ud8`)) {
		d.t.Errorf("%s returned what breaks readers of JSON: %s", name, raw)
	}
	if out, ok := v.(Output); ok {
		if _, isError := v.(*Error); isError {
			return
		}
		again, err := DecodeOutput(name, raw)
		if err != nil || again.Text() != out.Text() {
			d.t.Errorf("%s: %q became %v, %v", name, out.Text(), again, err)
		}
	}
}

func do[O Output](d *desk, name string, a args) O {
	d.t.Helper()
	out, err := d.try(name, a)
	if err != nil {
		d.t.Fatalf("%s %v: %v", name, a, err)
	}
	return out.(O)
}

func (d *desk) read(a args) *ReadOutput   { d.t.Helper(); return do[*ReadOutput](d, "read", a) }
func (d *desk) write(a args) *WriteOutput { d.t.Helper(); return do[*WriteOutput](d, "write", a) }
func (d *desk) edit(a args) *EditOutput   { d.t.Helper(); return do[*EditOutput](d, "edit", a) }
func (d *desk) glob(a args) *GlobOutput   { d.t.Helper(); return do[*GlobOutput](d, "glob", a) }
func (d *desk) grep(a args) *GrepOutput   { d.t.Helper(); return do[*GrepOutput](d, "grep", a) }

// fails calls a tool that has to fail with a code.
func (d *desk) fails(code Code, name string, a args) *Error {
	d.t.Helper()
	out, err := d.try(name, a)
	if err == nil {
		d.t.Fatalf("%s %v returned %q, want the error %s", name, a, out.Text(), code)
	}
	if err.Code != code {
		d.t.Fatalf("%s %v: %v, want the error %s", name, a, err, code)
	}
	return err
}

// has checks that a text has all of the words in it.
func (d *desk) has(text string, words ...string) {
	d.t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			d.t.Errorf("%q is not in\n%s", w, text)
		}
	}
}

func TestArguments(t *testing.T) {
	d := newDesk(t)
	d.put("a", "1\n2\n3\n")
	o := d.read(args{"path": "a", "offset": "2", "limit": 1.0, "colour": "red", "format": nil})
	d.has(o.Content, "2\t2\n")
	d.has(strings.Join(o.Notes, "\n"), "ignored: colour")
	if o.NextOffset != 3 {
		t.Errorf("next_offset is %d", o.NextOffset)
	}
	d.edit(args{"path": "a", "edits": `[{"old":"1","new":"one"}]`})
	d.edit(args{"path": "a", "old": "2", "new": "two", "replace_all": "True"})
	d.want("a", "one\ntwo\n3\n")
	g := d.glob(args{"pattern": "*", "limit": 5000})
	d.has(strings.Join(g.Notes, "\n"), "limit was brought from 5000 to 1000")
	for _, bad := range []args{
		{}, {"path": args{}}, {"path": []int{1}}, {"path": "a", "offset": "x"}, {"path": "a", "offset": 1.5}, {"path": "a", "format": "pdf"},
	} {
		d.has(d.fails(BadArgs, "read", bad).Text(), "path string (required), offset integer")
	}
	for _, raw := range []string{"[]", "1", `"x"`, "{", `{"path":`} {
		if _, err := d.Call(t.Context(), d.dir, "read", json.RawMessage(raw)); err == nil || err.(*Error).Code != BadArgs {
			t.Errorf("%s: %v", raw, err)
		}
	}
	d.fails(BadArgs, "sudo", args{})
	d.has(d.read(args{"path": "~/../a"}).Path, d.dir+"/a")
	d.has(d.read(args{"path": "./x/../a"}).Path, d.dir+"/a")
	d.fails(BadArgs, "read", args{"path": "a\x00b"})
}

// FuzzArguments calls each tool with any arguments at all. In a folder of its own it
// may do what it likes.
func FuzzArguments(f *testing.F) {
	for _, s := range []string{
		`{"path":"a","offset":-1,"limit":"2"}`, `{"path":"a","old":"x","new":"y","edits":[{}]}`, `{"pattern":"**/[a-","type":7}`,
		`{"pattern":"(a","context":1e3,"mode":"count"}`, `{"paths":["a",".",""],"files":{"a":"00"}}`, `{"path":"a","content":"\ud800","mode":"99"}`, `{"path":null}`, `[`, `{"path":"a","byte_offset":-9e18}`,
	} {
		for i := range len(Names) + 1 {
			f.Add(i, []byte(s))
		}
	}
	names := append(Names[1:], Guidance, Recall)
	f.Fuzz(func(t *testing.T, n int, raw []byte) {
		if bytes.Contains(raw, []byte("/")) || bytes.Contains(raw, []byte("..")) || bytes.Contains(raw, []byte("~")) || bytes.Contains(raw, []byte(`\u`)) {
			return // it stays in its folder
		}
		d := newDesk(t)
		d.put("a", "one\r\ntwo\n\xff")
		name := names[uint(n)%uint(len(names))]
		out, err := d.Call(t.Context(), d.dir, name, raw)
		if err != nil {
			e, ok := err.(*Error)
			if !ok || e.Remedy == "" {
				t.Fatalf("%s %s: %v", name, raw, err)
			}
			d.check(name, e.Text(), e)
			return
		}
		d.check(name, out.Text(), out)
	})
}

func TestDefinitions(t *testing.T) {
	defs := Definitions()
	if len(defs) != len(Names) {
		t.Fatalf("%d definitions", len(defs))
	}
	for i, def := range defs {
		if def.Name != Names[i] || def.Description == "" || def.Input == nil || def.Output == nil {
			t.Errorf("definition %d is %+v", i, def)
		}
		for i, s := range []map[string]any{toMap(t, def.Input), toMap(t, def.Output)} {
			properties, ok := s["properties"].(map[string]any)
			if !ok {
				t.Fatalf("%s has the schema %v", def.Name, s)
			}
			for name, p := range properties {
				if kind, ok := p.(map[string]any)["type"].(string); i == 0 && !ok || kind == "null" {
					t.Errorf("%s: %s has the schema %v", def.Name, name, p)
				}
				if p.(map[string]any)["description"] == nil {
					t.Errorf("%s: %s has no description", def.Name, name)
				}
			}
		}
	}
}

func TestWithoutNUL(t *testing.T) {
	const in, want = `"\u0000 \\u0000 \\\u0000 \u00000"`, `"\ufffd \\u0000 \\\ufffd \ufffd0"`
	if got := string(withoutNUL([]byte(in))); got != want {
		t.Errorf("%s became %s, want %s", in, got, want)
	}
}

func toMap(t *testing.T, v any) map[string]any {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	m := make(map[string]any)
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// What a guest says a tool has returned is taken for that, or is an error.
func FuzzDecodeOutput(f *testing.F) {
	for _, name := range append(Names, Guidance, Recall) {
		f.Add(name, []byte(`{"content":"x","notes":["y"],"total_lines":null,"stdout":"\ud800"}`))
		f.Add(name, []byte(`{"content":"\u0000 \\u0000 \\\u0000","code":"stale","message":"\u0000"}`))
	}
	f.Fuzz(func(t *testing.T, name string, raw []byte) {
		if out, err := DecodeOutput(name, raw); err == nil && strings.Contains(out.Text(), "\x00") {
			t.Errorf("%q has NUL", out.Text())
		}
		if e, err := DecodeError(raw); err == nil && (e.Remedy == "" || strings.Contains(e.Text(), "\x00")) {
			t.Errorf("%+v", e)
		}
	})
}

// Calls that write to one file have their turns, one after the other, and none is
// lost.
func TestTurns(t *testing.T) {
	d := newDesk(t)
	d.put("f", strings.Repeat("x", 50))
	d.read(args{"path": "f"})
	done := make(chan *Error)
	for range 50 {
		go func() {
			_, err := d.try("edit", args{"path": "f", "edits": []args{{"old": "x", "new": "y"}}})
			if err != nil && err.Code == Ambiguous {
				_, err = d.try("write", args{"path": "f", "content": "+", "append": true})
			}
			done <- err
		}()
	}
	for range 50 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	d.want("f", strings.Repeat("x", 50)+strings.Repeat("+", 50))
	if len(d.turns) != 0 {
		t.Errorf("%d turns are left", len(d.turns))
	}
}

func numbered(n int) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	return b.String()
}
