package tool

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sandgate/sandbox/testneed"
)

func TestGlob(t *testing.T) {
	d := newDesk(t)
	for i, n := range []string{"b.go", "a.go", "sub/c.go", "sub/deep/d.go", "sub/x.txt", ".hidden/e.go", ".git/f.go", "out/g.go", "f.log"} {
		os.Chtimes(d.put(n, ""), unixEpoch, unixEpoch.Add(time.Duration(i)*time.Hour))
	}
	d.put(".gitignore", "out/\n*.log\n")
	for _, tt := range []struct {
		a    args
		want string
	}{
		{args{"pattern": "*.go"}, "a.go b.go"},
		{args{"pattern": "**/*.go", "sort": "path"}, ".hidden/e.go a.go b.go sub/c.go sub/deep/d.go"},
		{args{"pattern": "**/*.go"}, ".hidden/e.go sub/deep/d.go sub/c.go a.go b.go"},
		{args{"pattern": "**/*.go", "sort": "path", "hidden": false}, "a.go b.go sub/c.go sub/deep/d.go"},
		{args{"pattern": "**/*.go", "sort": "path", "ignored": true}, ".hidden/e.go a.go b.go out/g.go sub/c.go sub/deep/d.go"},
		{args{"pattern": "sub/{c,x}.*", "sort": "path"}, "sub/c.go sub/x.txt"},
		{args{"pattern": "[ab].go", "sort": "path"}, "a.go b.go"},
		{args{"pattern": "./sub/*", "type": "dir"}, "sub/deep/"},
		{args{"pattern": "*", "type": "dir", "sort": "path"}, ".hidden/ sub/"},
		{args{"pattern": "*.go", "path": "sub"}, "sub/c.go"},
		{args{"pattern": d.dir + "/sub/*.go"}, d.dir + "/sub/c.go"},
		{args{"pattern": "*.go", "path": d.dir + "/sub"}, d.dir + "/sub/c.go"},
		{args{"pattern": "nothing*"}, ""},
		{args{"pattern": "no/such/*"}, ""},
	} {
		if got := strings.Join(d.glob(tt.a).Paths, " "); got != tt.want {
			t.Errorf("%v found %q, want %q", tt.a, got, tt.want)
		}
	}
	d.has(d.glob(args{"pattern": "f.log"}).Text(), "f.log matches but is left out")
	d.has(d.glob(args{"pattern": "nothing"}).Text(), "nothing matches below "+d.dir)
	if o := d.glob(args{"pattern": "**", "limit": 2}); !o.More || len(o.Paths) != 2 || o.Total <= 2 {
		t.Errorf("got %+v", o)
	}
	d.fails(BadPattern, "glob", args{"pattern": "!x"})
	d.fails(BadPattern, "glob", args{"pattern": "[x"})
	d.fails(NotFound, "glob", args{"pattern": "*", "path": "nowhere"})
	d.fails(NotRegular, "glob", args{"pattern": "*", "path": "a.go"})
}

func TestAGENT06(t *testing.T) {
	d := newDesk(t)
	d.put("src/app/[id]/page.tsx", "x")
	d.put("src/app/i/page.tsx", "x")
	d.put(".github/workflows/ci.yml", "x")
	d.put("pkg/a.go", "lines\n--help -i\na(b\nnaïve 日本\n")
	d.put("long.txt", strings.Repeat("y", 2_000_000)+"needle"+strings.Repeat("y", 3_000_000))
	d.put("nul", "a\x00needle")
	os.Symlink("..", filepath.Join(d.dir, "pkg/loop"))
	if o := d.glob(args{"pattern": "src/app/[id]/page.tsx", "sort": "path"}); fmt.Sprint(o.Paths) != "[src/app/[id]/page.tsx src/app/i/page.tsx]" {
		t.Errorf("got %q", o.Paths)
	}
	if o := d.glob(args{"pattern": ".github/workflows/*.yml", "hidden": false}); len(o.Paths) != 1 {
		t.Errorf("got %+v", o)
	}
	if o := d.glob(args{"pattern": "**/*.go"}); fmt.Sprint(o.Paths) != "[pkg/a.go]" {
		t.Errorf("got %+v", o)
	}
	everyFinder(t, func(t *testing.T) {
		d := &desk{t: t, dir: d.dir, Session: d.Session}
		for pattern, want := range map[string]string{"-i": "2:--help -i", "--help": "2:--help -i", `a\(b`: "3:a(b", "naïve": "4:naïve 日本", "日本": "4:naïve 日本"} {
			if o := d.grep(args{"pattern": pattern}); o.Content != "pkg/a.go\n"+want+"\n" {
				t.Errorf("%q found %q", pattern, o.Content)
			}
		}
		d.fails(BadPattern, "grep", args{"pattern": "a(b"})
		o := d.grep(args{"pattern": "needle"})
		d.has(o.Text(), "long.txt\n1:…yyy", "yneedley", "1 binary file matches")
		if len(o.Content) > 600 || o.Matches != 1 {
			t.Errorf("%d bytes, %d matches", len(o.Content), o.Matches)
		}
		o = d.grep(args{"pattern": "nowhere at all"})
		if o.Matches != 0 || o.Content != "" {
			t.Errorf("got %+v", o)
		}
	})
}

// What is ignored is what git ignores.
func TestIgnoredAsByGit(t *testing.T) {
	testneed.Programs(t, "git")
	random := rand.New(rand.NewPCG(1, 3))
	pick := func(of ...string) string { return of[random.IntN(len(of))] }
	name := func() string { return pick("a", "b", "ab", "a.c", "b.c", "a b", "{a}", "[a]", "#a", "!a", `a\`) }
	for round := range 12 {
		d := newDesk(t)
		if out, err := exec.Command("git", "-C", d.dir, "init", "-q").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for range 60 {
			path := name()
			for range random.IntN(4) {
				path = filepath.Join(path, name())
			}
			full := filepath.Join(d.dir, path)
			if os.MkdirAll(filepath.Dir(full), 0o755) == nil {
				os.WriteFile(full, nil, 0o644)
			}
		}
		rules := func() string {
			var b strings.Builder
			for range 1 + random.IntN(6) {
				b.WriteString(pick("", "", "", "!", "/", "!/", "**/", "#", " ", `\`))
				b.WriteString(pick(name(), "*", "*.c", "?", "[ab]", "[!a]", "a*", "**", "a/**", "a/**/b", "a/*", "*/b", name()+"/"+name(), "{a,b}", `\*`, "[", "a**b"))
				b.WriteString(pick("", "", "", "/", " ", "\\ ", "/**", "\r") + "\n")
			}
			return b.String()
		}
		d.put(".gitignore", rules())
		for _, sub := range []string{"a", "b", "a/b"} {
			if fi, err := os.Stat(filepath.Join(d.dir, sub)); err == nil && fi.IsDir() {
				d.put(sub+"/.gitignore", rules())
			}
		}
		cmd := exec.Command("git", "-C", d.dir, "-c", "core.quotePath=false", "-c", "core.excludesFile=/dev/null", "ls-files", "-z", "--others", "--exclude-standard")
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		want := strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 })
		slices.Sort(want)
		got := d.glob(args{"pattern": "**", "type": "file", "limit": 1000}).Paths
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("round %d: found %q, git %q", round, got, want)
			filepath.WalkDir(d.dir, func(path string, _ os.DirEntry, _ error) error {
				if filepath.Base(path) == ".gitignore" {
					b, _ := os.ReadFile(path)
					t.Logf("%s has %q", path, b)
				}
				return nil
			})
		}
	}
}

func FuzzRules(f *testing.F) {
	f.Add("*.c\n!a\n/b/\n", "a/b.c", false)
	f.Add("[", "[", true)
	f.Fuzz(func(t *testing.T, text, path string, dir bool) {
		l := &layer{dir: "/root", sets: []ruleset{parseRules(text)}}
		l.ignores("/root/"+path, dir)
	})
}
