package tool

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

var update = flag.Bool("update", false, "write testdata/errors.txt anew")

// Each code has an error that says what is wrong and what to do about it, as
// testdata/errors.txt has them.
func TestErrors(t *testing.T) {
	d := newDesk(t)
	d.put("main.go", "package main\n\nfunc main() {\n\tprintln(1)\n}\n")
	d.put("twice", "x\nx\n")
	d.put("bin", "\x00")
	d.put("unread", "x\n")
	for _, name := range []string{"main.go", "twice"} {
		d.read(args{"path": name})
	}
	stale := d.put("stale", "1\n")
	d.read(args{"path": "stale"})
	os.WriteFile(stale, []byte("2\n"), 0o644)
	unix.Mkfifo(d.dir+"/fifo", 0o600)
	t.Setenv("PATH", d.dir) // no ripgrep, which words its errors by version
	gone := Errorf(OutcomeUnknown, "the command was started, and what became of it is not known: sandbox stopped")
	gone.Job = "abcdefgh"
	free := uint64(0)
	full := Errorf(Quota, "write /f: no space left on device; 0 bytes are free")
	full.Free = &free
	var got strings.Builder
	codes := make(map[Code]bool)
	for _, e := range []*Error{
		d.fails(NotFound, "read", args{"path": "man.go"}),
		d.fails(IsDirectory, "edit", args{"path": ".", "old": "a", "new": "b"}),
		d.fails(NotRegular, "read", args{"path": "fifo"}),
		d.fails(Binary, "read", args{"path": "bin"}),
		d.fails(TooLarge, "write", args{"path": "big", "content": strings.Repeat("x", maxFile+1)}),
		d.fails(NotRead, "edit", args{"path": "unread", "old": "x", "new": "y"}),
		d.fails(Stale, "edit", args{"path": "stale", "old": "1", "new": "2"}),
		d.fails(NoMatch, "edit", args{"path": "main.go", "old": "func main() {\n    println(2)\n", "new": "x"}),
		d.fails(Ambiguous, "edit", args{"path": "twice", "old": "x", "new": "y"}),
		d.fails(Identical, "edit", args{"path": "twice", "old": "x", "new": "x"}),
		d.fails(BadPattern, "grep", args{"pattern": "a(b"}),
		d.fails(BadArgs, "read", args{}),
		fileError("read", "/f", errTime),
		fileError("read", "/f", errCancelled),
		full,
		fileError("write", "/f", unix.EACCES),
		Errorf(SandboxGone, "the sandbox stopped during read"),
		Errorf(Busy, "too many calls at once"),
		Errorf(NotStarted, "sandbox stopped"),
		gone,
	} {
		codes[e.Code] = true
		got.WriteString(strings.ReplaceAll(e.Text(), d.dir, "/project") + "\n\n")
	}
	for code := range remedies {
		if !codes[code] {
			t.Errorf("there is no example of %s", code)
		}
	}
	const golden = "testdata/errors.txt"
	if *update {
		os.Mkdir("testdata", 0o755)
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		gotLines, wantLines := strings.Split(got.String(), "\n"), strings.Split(string(want), "\n")
		for i, l := range gotLines {
			if i >= len(wantLines) || wantLines[i] != l {
				t.Fatalf("line %d is %q, in the file there is %q", i+1, l, slices.Concat(wantLines, []string{""})[min(i, len(wantLines))])
			}
		}
		t.Error("there is more in the file")
	}
}
