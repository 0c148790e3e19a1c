package redact

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"testing"
)

func TestString(t *testing.T) {
	const v = "s3cr3t/+value&?"
	quoted, _ := json.Marshal("x" + v)
	r := New([]string{v + "\n", "multi\nline", "short", "abcabcabc", "wow!=it's (a b)"})
	tests := []struct{ name, in, out string }{
		{"raw", "a " + v + " b", "a [redacted] b"},
		{"nothing", "a short b", "a short b"},
		{"twice", v + v, "[redacted][redacted]"},
		{"query", "k=" + url.QueryEscape(v), "k=[redacted]"},
		{"path, in lower case", "/" + "s3cr3t%2f+value&%3f", "/[redacted]"},
		{"python's quote", "/s3cr3t/%2Bvalue%26%3F", "/[redacted]"},
		{"encodeURI", "?s3cr3t/+value&?", "?[redacted]"},
		{"encodeURIComponent", "wow!%3Dit's%20(a%20b)", "[redacted]"},
		{"a form's", "wow%21%3Dit%27s+%28a+b%29", "[redacted]"},
		{"every byte", "%73%33%63%72%33%74%2f%2b%76%61%6c%75%65%26%3f", "[redacted]"},
		{"json", string(quoted), `"x[redacted]"`},
		{"a terminal's line ends", "multi\r\nline.", "[redacted]."},
		{"overlapping itself", "abcabcabcabcd", "[redacted]d"},
		{"a beginning only", "s3cr3t/+valu", "s3cr3t/+valu"},
		{"a beginning, then all", "s3cr3t/+s3cr3t/+value&?", "s3cr3t/+[redacted]"},
	}
	for _, tt := range tests {
		if got := r.String(tt.in); got != tt.out {
			t.Errorf("%s: %q became %q, want %q", tt.name, tt.in, got, tt.out)
		}
	}
}

// What stands before a value decides how base64 writes it.
func TestBase64(t *testing.T) {
	const v = "sk-ant-0123456789abcdef"
	r := New([]string{v})
	for n := range 6 {
		for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding, base64.RawStdEncoding} {
			got := r.String(enc.EncodeToString([]byte(strings.Repeat("?", n) + v + "/tail")))
			if !strings.Contains(got, "[redacted]") {
				t.Errorf("with %d bytes before it: %q", n, got)
			}
			// No character is left that is made of the value alone.
			decoded, _ := base64.RawStdEncoding.DecodeString(strings.SplitN(got, "[", 2)[0])
			if strings.Contains(string(decoded), v[:1]) {
				t.Errorf("with %d bytes before it, %q is left", n, decoded)
			}
		}
	}
}

// A marker must not complete a value.
func TestMarker(t *testing.T) {
	for _, values := range [][]string{
		{"redact", "abcdef"}, {"[redacted]", "xx[redac"}, {"[<{(|*~^#!", "abcdef"}, {"d]>})|*~^#!", "abcdef"},
	} {
		r := New(values)
		got := r.String("xxabcdefyy redact [redacted]")
		for _, v := range values {
			if strings.Contains(got, v) {
				t.Errorf("%q is in %q", v, got)
			}
		}
	}
}

func TestNil(t *testing.T) {
	r := New([]string{"short", "      ", ""})
	if r != nil {
		t.Error("short values are redacted")
	}
	var b strings.Builder
	w := r.Writer(&b)
	w.Write([]byte("as it is"))
	if err := w.Close(); err != nil || b.String() != "as it is" || r.String("x") != "x" {
		t.Errorf("nothing to redact: %q, %v", b.String(), err)
	}
}

// FuzzWriter compares the automaton with a search, whatever the text, the values
// and the cuts: no form of a value is left, and all else is unchanged.
func FuzzWriter(f *testing.F) {
	f.Add("hello s3cr3tvalue and aGVsbG8", "s3cr3tvalue", "aGVsbG8", []byte{3, 9})
	f.Add("abcabcabcabcabc", "abcabc", "cabcab", []byte{1})
	f.Add("aaaaaaaaaaaaaaaaaaa", "aaaaaaaa", "aaaaaaa", []byte{1, 1, 2})
	f.Add("czNjcjN0dmFsdWU= czNjcjN0", "s3cr3tvalue", "[redacted]", []byte{5})
	f.Fuzz(func(t *testing.T, text, v1, v2 string, cuts []byte) {
		values := []string{strings.ToValidUTF8(v1, "?"), strings.ToValidUTF8(v2, "?")}
		r := New(values)
		if r == nil {
			return
		}
		patterns := make(map[string]bool)
		for _, v := range values {
			if v = strings.TrimSpace(v); len(v) >= MinLength {
				for _, form := range forms(v) {
					patterns[form] = true
				}
			}
		}
		// Each form is somewhere in the text.
		for p := range patterns {
			text += p[:len(p)/2] + p
		}
		var b strings.Builder
		w := r.Writer(&b)
		for i, rest := 0, text; rest != ""; i++ {
			n := len(rest)
			if len(cuts) > 0 {
				n = min(n, int(cuts[i%len(cuts)])+1)
			}
			if _, err := w.Write([]byte(rest[:n])); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		w.Close()
		got := b.String()
		for p := range patterns {
			if strings.Contains(got, p) {
				t.Fatalf("%q is left in %q", p, got)
			}
		}
		if want := search(text, patterns, r.marker); got != want {
			t.Fatalf("%q became\n%q, want\n%q", text, got, want)
		}
	})
}

// search is what a Writer does, done plainly.
func search(text string, patterns map[string]bool, marker string) string {
	var found []span
	for p := range patterns {
		for at := 0; ; at++ {
			i := strings.Index(text[at:], p)
			if i < 0 {
				break
			}
			at += i
			found = append(found, span{at, at + len(p)})
		}
	}
	slices.SortFunc(found, func(a, b span) int { return a.from - b.from })
	var b strings.Builder
	at := 0
	for i, s := range found {
		if i == 0 || s.from >= at {
			b.WriteString(text[at:s.from])
			b.WriteString(marker)
		}
		at = max(at, s.to)
	}
	b.WriteString(text[at:])
	return b.String()
}

func BenchmarkWriter(b *testing.B) {
	r := New([]string{"sk-ant-0123456789abcdefghijklmnopqrstuvwxyz", strings.Repeat("another secret ", 10)})
	line := []byte("the quick brown fox jumps over the lazy dog, and on it goes\n")
	w := r.Writer(discard{})
	b.SetBytes(int64(len(line)))
	for b.Loop() {
		w.Write(line)
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
