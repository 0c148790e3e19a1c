package tool

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// guides returns which files of guidance there are for paths, without the desk's
// folder.
func (d *desk) guides(paths ...string) string {
	d.t.Helper()
	var names []string
	for _, f := range do[*GuidanceOutput](d, Guidance, args{"paths": paths}).Files {
		if sum := sha256.Sum256([]byte(f.Content)); f.SHA256 != hex.EncodeToString(sum[:]) {
			d.t.Errorf("%s: its sum is another", f.Path)
		}
		names = append(names, strings.TrimPrefix(f.Path, d.dir+"/"))
	}
	return strings.Join(names, " ")
}

func TestGuidance(t *testing.T) {
	d := newDesk(t)
	if got := d.guides(); got != "" {
		t.Errorf("without any: %q", got)
	}
	for _, name := range []string{"AGENTS.md", "CLAUDE.md", "a/CLAUDE.md", "a/b/AGENTS.md", "c/AGENTS.md", "c/repo/AGENTS.md", "c/repo/x/AGENTS.md"} {
		d.put(name, "of "+name)
	}
	for _, dir := range []string{"c/repo/.git", "empty"} {
		os.MkdirAll(filepath.Join(d.dir, dir), 0o755)
	}
	for _, tt := range []struct{ path, want string }{
		{"", "AGENTS.md"},
		{"a/file", "AGENTS.md a/CLAUDE.md"},
		{"a/b", "AGENTS.md a/CLAUDE.md a/b/AGENTS.md"},
		{"a/b/not/there", "AGENTS.md"},
		{"c/repo/x/file", "AGENTS.md c/repo/AGENTS.md c/repo/x/AGENTS.md"}, // a project ends where its repository does
		{"empty", "AGENTS.md"},
		{"/etc/passwd", "AGENTS.md"},
	} {
		if got := d.guides(tt.path); got != tt.want {
			t.Errorf("for %q: %q, want %q", tt.path, got, tt.want)
		}
	}
	// In a folder of a repository the guidance of all of it counts.
	inner := *d
	inner.dir = filepath.Join(d.dir, "c/repo/x")
	if got := inner.guides(); got != filepath.Join(d.dir, "c/repo/AGENTS.md")+" AGENTS.md" {
		t.Errorf("within a repository: %q", got)
	}
}

// What is in the sandbox may be anything.
func TestGuidanceHostile(t *testing.T) {
	d := newDesk(t)
	d.put("AGENTS.md", strings.Repeat("0123456789abcde\n", 1<<20/16))
	d.put("a/AGENTS.md", "no room is left for it")
	files := do[*GuidanceOutput](d, Guidance, args{"paths": []string{"a"}}).Files
	if len(files) != 1 || len(files[0].Content) != guidanceBytes || !files[0].Cut {
		t.Errorf("%d files", len(files))
	}
	d.put("AGENTS.md", "a\x00b\xff")
	if got := d.guides(); got != "" {
		t.Errorf("binary: %q", got)
	}
	os.Remove(filepath.Join(d.dir, "AGENTS.md"))
	if err := unix.Mkfifo(filepath.Join(d.dir, "AGENTS.md"), 0o644); err != nil {
		t.Fatal(err)
	}
	d.put("CLAUDE.md", " \n")
	if got := d.guides(); got != "" {
		t.Errorf("a pipe and an empty file: %q", got)
	}
	os.Remove(filepath.Join(d.dir, "CLAUDE.md"))
	os.Symlink("CLAUDE.md", filepath.Join(d.dir, "CLAUDE.md"))
	if got := d.guides(); got != "" {
		t.Errorf("a loop: %q", got)
	}
}

// A session whose process was another, and that is told what was read, lets that be
// changed, and nothing that has changed since or that was not read.
func TestRecall(t *testing.T) {
	d := newDesk(t)
	files := make(map[string]string)
	for i := range 3 {
		path := d.put(fmt.Sprint("f", i), "one\n")
		files[path] = d.read(args{"path": path}).SHA256
	}
	d.put("f2", "another's\n")
	d.put("unread", "one\n")
	d.Session = NewSession("/nonexistent")
	d.fails(NotRead, "edit", args{"path": "f0", "old": "one", "new": "two"})
	do[*RecallOutput](d, Recall, args{"files": files})
	d.edit(args{"path": "f0", "old": "one", "new": "two"})
	d.want("f0", "two\n")
	d.write(args{"path": "f1", "content": "new\n"})
	d.want("f1", "new\n")
	d.fails(Stale, "edit", args{"path": "f2", "old": "another's", "new": "mine"})
	d.fails(NotRead, "write", args{"path": "unread", "content": "x"})
	// What it was told before does not make it forget what it has seen since.
	do[*RecallOutput](d, Recall, args{"files": files})
	d.edit(args{"path": "f0", "old": "two", "new": "three"})
	for path, sum := range map[string]string{"relative": files[filepath.Join(d.dir, "f0")], "/x": "00", "/y": strings.Repeat("g", 64)} {
		d.fails(BadArgs, Recall, args{"files": map[string]string{path: sum}})
	}
}
