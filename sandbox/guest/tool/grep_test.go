package tool

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sandgate/sandbox/testneed"
)

// everyFinder runs a test with ripgrep and without.
func everyFinder(t *testing.T, test func(*testing.T)) {
	t.Run("RE2", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		test(t)
	})
	t.Run("ripgrep", func(t *testing.T) {
		testneed.Programs(t, "rg")
		test(t)
	})
}

// Both finders return the same.
func TestGrep(t *testing.T) {
	d := newDesk(t)
	d.put("a.go", "package a\n\nfunc One() {}\n\n\n\nfunc Two() {}\n// the end")
	d.put("b/c.py", "def one():\r\n    pass\r\n")
	d.put("b/d.go", strings.Repeat("one\ntwo\n", 100))
	d.put(".hidden", "one\n")
	d.put(".git/config", "one\n")
	d.put("vendor/v.go", "func One() {}\n")
	d.put(".gitignore", "vendor\n")
	d.put("utf16", "\xff\xfeo\x00n\x00e\x00\n\x00")
	d.put("latin", "\xe9 one \xff\n")
	d.put("large", "one\n"+strings.Repeat("x\n", grepFile/2))
	os.Symlink("a.go", filepath.Join(d.dir, "link"))
	for _, tt := range []struct {
		name string
		a    args
		want string
	}{
		{"plain", args{"pattern": "func", "glob": "*.go"}, "a.go\n3:func One() {}\n7:func Two() {}\n"},
		{"context", args{"pattern": "func", "type": "go", "context": 1}, "a.go\n2-\n3:func One() {}\n4-\n--\n6-\n7:func Two() {}\n8-// the end\n"},
		{"context that meets", args{"pattern": "One|Two", "before": 3}, "a.go\n1-package a\n2-\n3:func One() {}\n4-\n5-\n6-\n7:func Two() {}\n"},
		{"case", args{"pattern": "ONE", "ignore_case": true, "path": "a.go"}, "a.go\n3:func One() {}\n"},
		{"several files", args{"pattern": "one", "path": "b", "limit": 2}, "b/c.py\n1:def one():\n\nb/d.go\n1:one\n"},
		{"offset", args{"pattern": "one", "path": "b", "limit": 1, "offset": 3}, "b/d.go\n5:one\n"},
		{"line's end", args{"pattern": `:$`, "path": "b"}, "b/c.py\n1:def one():\n"},
		{"not over a line's end", args{"pattern": `\{\}\s+f`}, ""},
		{"over a line's end", args{"pattern": `One\(.*Two`, "multiline": true}, "a.go\n3:func One() {}\n4:\n5:\n6:\n7:func Two() {}\n"},
		{"literal", args{"pattern": "e() {", "literal": true}, "a.go\n3:func One() {}\n"},
		{"count", args{"pattern": "one", "mode": "count", "path": "b"}, "b/c.py: 1\nb/d.go: 100\n"},
		{"encodings", args{"pattern": "^one| one ", "glob": "{utf16,latin}"}, "latin\n1:\uFFFD one \uFFFD\n\nutf16\n1:one\n"},
		{"hidden", args{"pattern": "^one", "glob": ".h*"}, ".hidden\n1:one\n"},
		{"ignored", args{"pattern": "One", "ignored": true, "glob": "v*"}, "vendor/v.go\n1:func One() {}\n"},
		{"ignored and named", args{"pattern": "One", "type": "go"}, "a.go\n3:func One() {}\n"},
		{"empty matches", args{"pattern": "x*", "path": ".hidden"}, ".hidden\n1:one\n"},
		{"glob with folders", args{"pattern": "one", "glob": "b/**/*.py"}, "b/c.py\n1:def one():\n"},
		{"type and glob", args{"pattern": "func", "glob": "a*", "type": "go", "limit": 1}, "a.go\n3:func One() {}\n"},
	} {
		everyFinder(t, func(t *testing.T) {
			d := &desk{t: t, dir: d.dir, Session: d.Session}
			if o := d.grep(tt.a); o.Content != tt.want {
				t.Errorf("%s: found %q, want %q", tt.name, o.Content, tt.want)
			}
		})
	}
	everyFinder(t, func(t *testing.T) {
		d := &desk{t: t, dir: d.dir, Session: d.Session}
		o := d.grep(args{"pattern": "one", "mode": "files", "path": "b"})
		if len(strings.Fields(o.Content)) != 2 || o.Files != 2 || o.Matches != 101 {
			t.Errorf("got %+v", o)
		}
		o = d.grep(args{"pattern": "one", "path": "b", "limit": 2})
		if !o.More || o.NextOffset != 2 || o.Matches != 101 {
			t.Errorf("got %+v", o)
		}
		var all []string
		for next := 0; ; {
			o := d.grep(args{"pattern": "one", "path": "b/d.go", "limit": 7, "offset": next})
			all = append(all, strings.Split(strings.TrimSpace(o.Content), "\n")[1:]...)
			if next = o.NextOffset; next == 0 {
				break
			}
		}
		if len(all) != 100 || all[99] != "199:one" {
			t.Errorf("%d lines, the last is %q", len(all), all[len(all)-1])
		}
		d.fails(BadArgs, "grep", args{"pattern": "x", "type": "cobol"})
		d.has(d.fails(BadPattern, "grep", args{"pattern": "(?<!x)y"}).Text(), "lookaround")
		d.fails(NotFound, "grep", args{"pattern": "x", "path": "nowhere"})
	})
}

// A search that is cancelled returns what it has.
func TestGrepCancelled(t *testing.T) {
	d := newDesk(t)
	for i := range 200 {
		d.put(fmt.Sprintf("f%d", i), "x\n")
	}
	everyFinder(t, func(t *testing.T) {
		d := &desk{t: t, dir: d.dir, Session: d.Session}
		ctx, cancel := contextThatEnds(t)
		cancel()
		out, err := d.Call(ctx, d.dir, "grep", []byte(`{"pattern":"x"}`))
		if err != nil {
			t.Fatal(err)
		}
		if o := out.(*GrepOutput); !o.Cancelled || !o.Partial {
			t.Errorf("got %+v", o)
		}
		out, err = d.Call(ctx, d.dir, "glob", []byte(`{"pattern":"**"}`))
		if err != nil || !out.(*GlobOutput).Cancelled {
			t.Errorf("got %+v, %v", out, err)
		}
		if _, err := d.Call(ctx, d.dir, "read", []byte(`{"path":"f1"}`)); err == nil || !err.(*Error).Cancelled {
			t.Errorf("got %v", err)
		}
	})
}

// BenchmarkGrep searches 50,000 files, as ripgrep does with one thread.
func BenchmarkGrep(b *testing.B) {
	dir := manyFiles(b)
	b.Run("tool", func(b *testing.B) {
		b.Setenv("PATH", b.TempDir())
		s := NewSession(dir)
		for b.Loop() {
			out, err := s.Call(b.Context(), dir, "grep", []byte(`{"pattern":"nee.le"}`))
			if err != nil || out.(*GrepOutput).Matches != 500 {
				b.Fatalf("%+v, %v", out, err)
			}
		}
	})
	b.Run("ripgrep", func(b *testing.B) {
		rg, err := exec.LookPath("rg")
		if err != nil {
			testneed.Lacking(b, "rg")
		}
		for b.Loop() {
			out, err := exec.Command(rg, "--threads", "1", "--hidden", "--no-config", "nee.le", dir).Output()
			if err != nil || strings.Count(string(out), "\n") != 500 {
				b.Fatal(err)
			}
		}
	})
}

// manyFiles makes 50,000 files of a few kilobytes, one in a hundred with a needle.
func manyFiles(b *testing.B) string {
	dir := b.TempDir()
	text := strings.Repeat("some text of a line that has no such thing in it\n", 40)
	for i := range 50_000 {
		sub := filepath.Join(dir, fmt.Sprint(i/500))
		if i%500 == 0 {
			os.Mkdir(sub, 0o755)
		}
		content := text
		if i%100 == 0 {
			content += "a needle\n"
		}
		if err := os.WriteFile(filepath.Join(sub, fmt.Sprintf("file%d.txt", i)), []byte(content), 0o644); err != nil {
			b.Fatal(err)
		}
	}
	return dir
}

// BenchmarkTools measures calls on small files.
func BenchmarkTools(b *testing.B) {
	d := newDesk(b)
	d.put("f.go", numbered(200))
	d.read(args{"path": "f.go"})
	b.Setenv("PATH", b.TempDir())
	for _, tt := range []struct{ name, args string }{
		{"read", `{"path":"f.go"}`},
		{"write", `{"path":"g.go","content":"x\n","expect":""}`},
		{"glob", `{"pattern":"*.go"}`},
		{"grep", `{"pattern":"line 1"}`},
	} {
		b.Run(tt.name, func(b *testing.B) {
			for b.Loop() {
				if _, err := d.Call(b.Context(), d.dir, tt.name, []byte(tt.args)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("edit", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			a := fmt.Sprintf(`{"path":"f.go","old":"line 7%s\n","new":"line 7%s\n"}`, strings.Repeat("x", i%2), strings.Repeat("x", (i+1)%2))
			if _, err := d.Call(b.Context(), d.dir, "edit", []byte(a)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
