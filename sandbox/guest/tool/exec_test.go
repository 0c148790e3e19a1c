package tool

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestPlain(t *testing.T) {
	for in, want := range map[string]string{
		"a\r\nb\n":                          "a\nb\n",
		"10%\r50%\r100%\n":                  "100%\n",
		"10%\r":                             "10%",
		"\x1b[1;31mred\x1b[0m":              "red",
		"\x1b]0;title\x07x\x1b]8;;u\x1b\\y": "xy",
		"\x1b(Bx\x1b=y\x1b":                 "xy",
		"\x1b[":                             "",
		"a\x00\xff":                         "a\uFFFD\uFFFD",
	} {
		if got := Plain([]byte(in)); got != want {
			t.Errorf("%q is %q, want %q", in, got, want)
		}
	}
}

// Whatever is written, in whatever pieces, what is shown of it is text, within the
// limit, with the beginning and the end, and all of it where there is room.
func FuzzTranscript(f *testing.F) {
	f.Add([]byte("out\nput"), 3, 10, false)
	f.Add(bytes.Repeat([]byte("日本 \x1b[0m\r\n"), 20), 7, 400, true)
	f.Fuzz(func(t *testing.T, piece []byte, cut, times int, skip bool) {
		if len(piece) == 0 || times < 0 || times > 5000 || len(piece)*times > 1<<20 {
			return
		}
		var tr Transcript
		var whole []byte
		cut = max(1, cut)
		for i := range times {
			for p := range chunks(piece, cut) {
				tr.Add(false, p)
			}
			whole = append(whole, piece...)
			if i%3 == 0 {
				tr.Add(true, piece[:1])
			}
		}
		if skip {
			tr.Skip(1000)
		}
		var o ExecOutput
		tr.Show(&o, "/log")
		for _, s := range []string{o.Stdout, o.Stderr} {
			if !utf8.ValidString(s) || strings.Contains(s, "\x00") {
				t.Errorf("shows %q", s)
			}
		}
		// Bytes that are no text take three as U+FFFD.
		if n := len(o.Stdout) + len(o.Stderr); n > 3*execText+400 {
			t.Errorf("shows %d bytes", n)
		}
		switch {
		case !o.Truncated && o.Stdout != Plain(whole):
			t.Errorf("of %q shows %q", whole, o.Stdout)
		case o.Truncated && !strings.Contains(o.Stdout+o.Stderr, "left out; all of it is in /log"):
			t.Errorf("does not say what is left out: %q", o.Stdout)
		}
	})
}

func chunks(b []byte, n int) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(b) > 0 {
			k := min(n, len(b))
			if !yield(b[:k]) {
				return
			}
			b = b[k:]
		}
	}
}

func FuzzParseExec(f *testing.F) {
	f.Add([]byte(`{"command":"x","env":{"A":"b"},"wait_s":"3","tty":"true"}`))
	f.Add([]byte(`{"job":"x","signal":"sigterm","cursor":-1}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		a, _, err := ParseExec(raw)
		if err != nil {
			if e, ok := err.(*Error); !ok || e.Remedy == "" {
				t.Errorf("%s: %v", raw, err)
			}
			return
		}
		if a.Wait < 0 || a.Wait > 600 || a.Timeout < 1 || a.Timeout > 86400 || (a.Job == "") == (a.Command == "") {
			t.Errorf("%s is %+v", raw, a)
		}
		for _, kv := range a.Environ() {
			if bytes.IndexByte(kv, 0) >= 0 || bytes.IndexByte(kv, '=') <= 0 {
				t.Errorf("%s has the variable %q", raw, kv)
			}
		}
	})
}
