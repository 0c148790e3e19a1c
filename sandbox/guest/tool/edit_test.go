package tool

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"sandgate/sandbox/testneed"
)

// edited writes a file, reads it and edits it.
func (d *desk) edited(content string, a args) *EditOutput {
	d.t.Helper()
	d.put("f", content)
	d.read(args{"path": "f"})
	a["path"] = "f"
	return d.edit(a)
}

// refused writes a file, reads it and has an edit refused that must leave it alone.
func (d *desk) refused(code Code, content string, a args) *Error {
	d.t.Helper()
	d.put("f", content)
	d.read(args{"path": "f"})
	a["path"] = "f"
	e := d.fails(code, "edit", a)
	d.want("f", content)
	return e
}

func TestAGENT01(t *testing.T) {
	d := newDesk(t)
	d.edited("one\r\ntwo\r\nthree\r\n", args{"old": "one\ntwo", "new": "one\nTWO\nextra"})
	d.want("f", "one\r\nTWO\r\nextra\r\nthree\r\n")
	d.edited("a\r\nb\nc\r\n", args{"old": "b", "new": "B"})
	d.want("f", "a\r\nB\nc\r\n")
	d.edited("a\r\nb\nc\r\nd\n", args{"old": "a\nb\nc\n", "new": "1\n2\n3\n"})
	d.want("f", "1\r\n2\n3\r\nd\n")
	d.edited("a\nb\n", args{"old": "b", "new": "B\r\nC"})
	d.want("f", "a\nB\nC\n")
	o := d.edited("a\r\nb\r\n", args{"old": "b", "new": "B\nC"})
	d.want("f", "a\r\nB\r\nC\r\n")
	d.has(o.Text(), "line ends of new")
}

func TestAGENT02(t *testing.T) {
	d := newDesk(t)
	d.edited("\xef\xbb\xbfhello\nworld\n", args{"old": "world", "new": "WORLD"})
	d.want("f", "\xef\xbb\xbfhello\nWORLD\n")
	d.edited("caf\xe9 one\ntwo\n", args{"old": "two", "new": "TWO"})
	d.want("f", "caf\xe9 one\nTWO\n")
	d.edited("caf\xe9 one\n", args{"old": "café", "new": "Ärger"})
	d.want("f", "\xc4rger one\n")
	d.refused(BadArgs, "caf\xe9 one\n", args{"old": "one", "new": "日"})
	d.edited("x", args{"old": "x", "new": "y"})
	d.want("f", "y")
	d.edited("\xff\xfea\x00\r\x00\n\x00\x3d\xd8\x00\xde", args{"old": "a\n😀", "new": "b\né"})
	d.want("f", "\xff\xfeb\x00\r\x00\n\x00\xe9\x00")
	// 丂 is 81 40, of which the second byte alone is @.
	d.edited("\x81\x40\xc4\xe3\xba\xc3\xb5\xc4 @ a\n", args{"old": "@", "new": "好"})
	d.want("f", "\x81\x40\xc4\xe3\xba\xc3\xb5\xc4 \xba\xc3 a\n")

	path := d.put("f", "#!/bin/sh\n")
	os.Chmod(path, 0o755)
	unix.Setxattr(path, "user.kept", []byte("value"), 0)
	d.read(args{"path": "f"})
	d.edit(args{"path": "f", "old": "sh", "new": "bash"})
	fi, err := os.Stat(path)
	if err != nil || fi.Mode().Perm() != 0o755 {
		t.Errorf("mode is %v", fi.Mode())
	}
	value := make([]byte, 10)
	if n, err := unix.Getxattr(path, "user.kept", value); err == nil && string(value[:n]) != "value" {
		t.Errorf("attribute is %q", value[:n])
	}
	entries, _ := os.ReadDir(d.dir)
	if len(entries) != 1 {
		t.Errorf("the folder has %v", entries)
	}
}

func TestAGENT03(t *testing.T) {
	d := newDesk(t)
	literal := "$& $1 ${1} \\1 $$ $'y"
	d.edited("A oldtext B\n", args{"old": "oldtext", "new": literal})
	d.want("f", "A "+literal+" B\n")
	e := d.refused(Ambiguous, "foo\nfoo\n", args{"old": "foo", "new": "bar"})
	if e.Count != 2 || len(e.Lines) != 2 || e.Lines[1] != 2 {
		t.Errorf("got %+v", e)
	}
	if o := d.edited("foo\nfoo\n", args{"old": "foo", "new": "bar", "replace_all": true}); o.Replacements != 2 {
		t.Errorf("got %+v", o)
	}
	d.want("f", "bar\nbar\n")
	d.refused(BadArgs, "x", args{"old": "", "new": "y"})
	d.refused(Identical, "x", args{"old": "x", "new": "x"})
	d.refused(Ambiguous, "aaa", args{"old": "aa", "new": "b"}) // which of the two?
	d.edited("abc a.c", args{"old": "a.c", "new": "!"})
	d.want("f", "abc !")
	d.edited("foo\n1\n2\nfoo\n", args{"old": "foo", "new": "bar", "near_line": 3})
	d.want("f", "foo\n1\n2\nbar\n")
	d.refused(Ambiguous, "foo\n1\nfoo\n", args{"old": "foo", "new": "bar", "near_line": 2})
}

func TestEditMatches(t *testing.T) {
	d := newDesk(t)
	o := d.edited("if x {  \n\ty()\t\n}\n", args{"old": "if x {\n\ty()\n}", "new": "z()"})
	d.want("f", "z()\n")
	d.has(o.Text(), "without the blanks")
	d.refused(NoMatch, "a  \nb\na  \nb\n", args{"old": "a\nb\n", "new": "c"})
	d.refused(NoMatch, "\tindented\n", args{"old": "    indented", "new": "c"})
	d.refused(NoMatch, "it’s\n", args{"old": "it's", "new": "c"})
	e := d.refused(NoMatch, "one\ntwo\n\tthree \r\nfour\n", args{"old": "three\nfour!", "new": "c"})
	if e.Line != 3 || e.Closest != "→three·␍\nfour" {
		t.Errorf("line %d: %q", e.Line, e.Closest)
	}
	o = d.edited("a\nb\nc\n", args{"edits": []args{{"old": "a", "new": "1"}, {"old": "1\nb", "new": "2"}}})
	d.want("f", "2\nc\n")
	if o.Replacements != 2 || o.FirstLine != 1 {
		t.Errorf("got %+v", o)
	}
	d.has(d.refused(NoMatch, "a\nb\n", args{"edits": []args{{"old": "a", "new": "1"}, {"old": "zz", "new": "2"}}}).Message, "edit 2 of 2")
	d.refused(BadArgs, "a", args{"old": "a"})
	d.refused(BadArgs, "a", args{"new": "a"})
	d.refused(BadArgs, "a", args{})
	d.refused(BadArgs, "a", args{"old": "a", "new": "b", "edits": []args{{"old": "a", "new": "b"}}})
	if o := d.edit(args{"path": "new/file", "old": "", "new": "x\n"}); o.Status != "created" {
		t.Errorf("got %+v", o)
	}
	d.want("new/file", "x\n")
	d.fails(NotFound, "edit", args{"path": "none", "old": "a", "new": "b"})
	d.put("bin", "a\x00b")
	d.fails(Binary, "read", args{"path": "bin"})
	d.fails(Binary, "edit", args{"path": "bin", "old": "a", "new": "b"})
}

func TestFreshness(t *testing.T) {
	d := newDesk(t)
	d.put("f", "one\n")
	d.fails(NotRead, "edit", args{"path": "f", "old": "one", "new": "two"})
	d.fails(NotRead, "write", args{"path": "f", "content": "two"})
	d.read(args{"path": "f"})
	d.edit(args{"path": "f", "old": "one", "new": "two"})
	d.edit(args{"path": "f", "old": "two", "new": "three"}) // its own change is known
	d.put("f", "changed\n")
	e := d.fails(Stale, "edit", args{"path": "f", "old": "three", "new": "four"})
	d.fails(Stale, "write", args{"path": "f", "content": "x"})
	d.want("f", "changed\n")
	d.write(args{"path": "f", "content": "x", "expect": e.SHA256})
	d.fails(Stale, "write", args{"path": "f", "content": "y", "expect": e.SHA256})
	d.fails(Stale, "write", args{"path": "f", "content": "y", "expect": "absent"})
	// The time alone changes nothing.
	os.Chtimes(filepath.Join(d.dir, "f"), unixEpoch, unixEpoch)
	d.edit(args{"path": "f", "old": "x", "new": "y"})
	other := NewSession(d.dir)
	if _, err := other.Call(t.Context(), d.dir, "write", []byte(`{"path":"f","content":"z"}`)); err == nil || err.(*Error).Code != NotRead {
		t.Errorf("another session: %v", err)
	}
}

func TestWrite(t *testing.T) {
	d := newDesk(t)
	o := d.write(args{"path": "a/b/c", "content": "1\n2\n", "mode": 755})
	if o.Status != "created" || o.Lines != 2 || o.Bytes != 4 || o.Added != 2 {
		t.Errorf("got %+v", o)
	}
	if fi, _ := os.Stat(filepath.Join(d.dir, "a/b/c")); fi.Mode().Perm() != 0o755 {
		t.Errorf("mode is %v", fi.Mode())
	}
	o = d.write(args{"path": "a/b/c", "content": "1\n3\n"})
	d.has(o.Text(), "updated", "-2\n", "+3\n", "(+1 −1)")
	if o := d.write(args{"path": "a/b/c", "content": "1\n3\n"}); o.Status != "unchanged" {
		t.Errorf("got %+v", o)
	}
	d.write(args{"path": "a/b/c", "content": "NA==", "encoding": "base64", "append": true})
	d.want("a/b/c", "1\n3\n4")
	d.edit(args{"path": "a/b/c", "old": "4", "new": "5"})
	d.fails(BadArgs, "write", args{"path": "x", "content": "!", "encoding": "base64"})
	d.fails(BadArgs, "write", args{"path": "x", "content": "", "mode": "rwx"})
	d.fails(TooLarge, "write", args{"path": "x", "content": strings.Repeat("x", maxFile+1)})
	d.fails(IsDirectory, "write", args{"path": "a", "content": ""})
	d.fails(NotFound, "write", args{"path": "a/b/c/d", "content": ""})

	os.Symlink("a/b/c", filepath.Join(d.dir, "link"))
	d.has(d.write(args{"path": "link", "content": "through\n"}).Text(), "is a link")
	d.want("a/b/c", "through\n")
	if fi, _ := os.Lstat(filepath.Join(d.dir, "link")); fi.Mode()&os.ModeSymlink == 0 {
		t.Error("the link is gone")
	}
	os.Symlink("nowhere", filepath.Join(d.dir, "dangling"))
	d.fails(NotFound, "write", args{"path": "dangling", "content": "x"})
	os.Symlink("nowhere", filepath.Join(d.dir, "dangling dir"))
	d.fails(NotFound, "write", args{"path": "dangling dir/x", "content": "x"})
	if _, err := os.Lstat(filepath.Join(d.dir, "nowhere")); err == nil {
		t.Error("a link that led nowhere was followed")
	}

	d.put("hard", "old\n")
	os.Link(filepath.Join(d.dir, "hard"), filepath.Join(d.dir, "other name"))
	d.read(args{"path": "hard"})
	d.has(d.write(args{"path": "hard", "content": "new, longer\n"}).Text(), "2 names")
	d.want("other name", "new, longer\n")
	d.has(d.write(args{"path": "hard", "content": "s\n"}).Text(), "2 names")
	d.want("other name", "s\n")

	d.put("dos", "a\r\nb\r\n")
	d.read(args{"path": "dos"})
	d.has(d.write(args{"path": "dos", "content": "a\nc\n"}).Text(), "CRLF")
	d.write(args{"path": "long", "content": numbered(3000)})
	long := d.write(args{"path": "long", "content": strings.ToUpper(numbered(3000))})
	if len(long.Diff) > maxDiff || long.Added != 3000 {
		t.Errorf("%d bytes of diff, +%d", len(long.Diff), long.Added)
	}
}

// As an ordinary user: what is not allowed is refused with the reason, and a file
// in a folder that is closed is written in place.
func TestPermissions(t *testing.T) {
	if os.Geteuid() == 0 {
		runAsNobody(t)
		return
	}
	d := newDesk(t)
	d.put("closed/f", "one\n")
	d.put("secret", "x")
	os.Chmod(filepath.Join(d.dir, "secret"), 0)
	d.fails(Denied, "read", args{"path": "secret"})
	d.fails(Denied, "write", args{"path": "/usr/sandgate-test", "content": "x"})
	os.Chmod(filepath.Join(d.dir, "closed"), 0o555)
	defer os.Chmod(filepath.Join(d.dir, "closed"), 0o755)
	d.read(args{"path": "closed/f"})
	d.has(d.edit(args{"path": "closed/f", "old": "one", "new": "two"}).Text(), "written in place")
	d.want("closed/f", "two\n")
	d.fails(Denied, "write", args{"path": "closed/new", "content": "x"})
}

// A full disk is an error that says how much is free, and leaves the file alone.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		testneed.Lacking(t, "root, to mount a small disk")
	}
	d := newDesk(t)
	small := filepath.Join(d.dir, "small")
	os.Mkdir(small, 0o755)
	if err := unix.Mount("none", small, "tmpfs", 0, "size=64k"); err != nil {
		testneed.Lacking(t, "leave to mount: "+err.Error())
	}
	defer unix.Unmount(small, unix.MNT_DETACH)
	d.put("small/f", "one\n")
	os.Link(filepath.Join(small, "f"), filepath.Join(small, "g"))
	d.read(args{"path": "small/f"})
	big := strings.Repeat("x", 100_000)
	for _, a := range []args{
		{"path": "small/new", "content": big}, {"path": "small/f", "content": big}, {"path": "small/f", "content": big, "append": true},
	} {
		e := d.fails(Quota, "write", a)
		if e.Free == nil {
			t.Errorf("%v: %+v", a["path"], e)
		}
	}
	d.want("small/f", "one\n")
	if entries, _ := os.ReadDir(small); len(entries) != 2 {
		t.Errorf("left behind: %v", entries)
	}
}

// An edit of a text that is there once changes its bytes and no other.
func FuzzEdit(f *testing.F) {
	for _, s := range []string{
		"a\r\nb\nc\r\n", "\xef\xbb\xbfa\nb", "caf\xe9 one\ntwo\n", "\xc4\xe3\xba\xc3\xb5\xc4\na\n", "\xff\xfea\x00\r\x00\n\x00b\x00", "no end", "a\r\rb\n", "\xff\xff\xff a \xff",
	} {
		f.Add([]byte(s), 2, 3, "$& \\1\n${x}")
	}
	f.Fuzz(func(t *testing.T, content []byte, from, length int, put string) {
		form := sniff(head(content))
		body := content[min(form.bom, len(content)):]
		text := form.charset.decode(body)
		if form.binary != "" || from < 0 || length <= 0 || from >= len(text) || length > len(text)-from || !utf8.ValidString(put) {
			return
		}
		old := string(text[from : from+length])
		if !utf8.ValidString(old) || old == put || len(occurrences(text, []byte(old), false)) != 1 {
			return
		}
		var out EditOutput
		got, err := apply(content, []OneEdit{{Old: old, New: put}}, &out)
		if err != nil {
			return
		}
		at := form.charset.offsets(body, []int{from, from + length})
		before, after := content[:form.bom+at[0]], body[at[1]:]
		if !bytes.HasPrefix(got, before) || !bytes.HasSuffix(got, after) || len(got) < len(before)+len(after) {
			t.Fatalf("%q: %q to %q gave %q", content, old, put, got)
		}
		middle := form.charset.decode(got[len(before) : len(got)-len(after)])
		plain := func(s string) string { return strings.ReplaceAll(s, "\r\n", "\n") }
		if plain(string(middle)) != plain(put) && plain(old+string(middle)) != plain(old+put) {
			t.Fatalf("%q: %q to %q put %q there", content, old, put, middle)
		}
	})
}

// Where old matches but for line ends or blanks, lines that it does not name stay.
func FuzzLooseMatch(f *testing.F) {
	f.Add("a \r\nb\nc\n", "a\nb")
	f.Add("a\r\n\r\nb", "\n\n")
	f.Fuzz(func(t *testing.T, text, old string) {
		if old == "" {
			return
		}
		spans, how := findAll([]byte(text), []byte(old), true)
		last := 0
		for _, s := range spans {
			if s.from < last || s.to < s.from || s.to > len(text) {
				t.Fatalf("spans %v in %d bytes", spans, len(text))
			}
			last = s.to
			got := strings.ReplaceAll(text[s.from:s.to], "\r\n", "\n")
			want := strings.ReplaceAll(old, "\r\n", "\n")
			if how != "" {
				got, want = trimmed(got), trimmed(want)
			}
			if got != want {
				t.Fatalf("%q matched %q", old, text[s.from:s.to])
			}
		}
		if how != "" && len(spans) != 1 {
			t.Fatalf("%d loose matches", len(spans))
		}
	})
}

func trimmed(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " \t\r")
	}
	return strings.Join(lines, "\n")
}
