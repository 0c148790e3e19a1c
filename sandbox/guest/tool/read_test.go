package tool

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"sandgate/sandbox/testneed"
)

func TestRead(t *testing.T) {
	d := newDesk(t)
	d.put("f", numbered(5000))
	o := d.read(args{"path": "f"})
	d.has(o.Content, "     1\tline 1\n", "  2000\tline 2000\n")
	if *o.TotalLines != 5000 || o.NextOffset != 2001 || !o.Truncated || o.EOL != "lf" || o.Encoding != "utf-8" || len(o.SHA256) != 64 {
		t.Errorf("got %+v", o)
	}
	o = d.read(args{"path": "f", "offset": 4999})
	if o.Content != "  4999\tline 4999\n  5000\tline 5000\n" || o.Truncated {
		t.Errorf("got %+v", o)
	}
	o = d.read(args{"path": "f", "offset": -1})
	if o.Content != "  5000\tline 5000\n" {
		t.Errorf("got %+v", o)
	}
	d.put("wide", strings.Repeat(strings.Repeat("x", 1000)+"\n", 200))
	o = d.read(args{"path": "wide"})
	if o.NextOffset < 40 || o.NextOffset > 52 || len(o.Content) > maxText {
		t.Errorf("%d bytes, then line %d", len(o.Content), o.NextOffset)
	}
	d.put("mixed", "\xef\xbb\xbfa\r\nb\nc")
	o = d.read(args{"path": "mixed"})
	if o.Content != "     1\ta\n     2\tb\n     3\tc\n" || o.EOL != "mixed" || !o.BOM || *o.TotalLines != 3 {
		t.Errorf("got %+v", o)
	}
	raw := d.read(args{"path": "mixed", "format": "raw_base64", "offset": 3, "limit": 3})
	if string(raw.Data) != "a\r\n" || raw.NextByte != 6 {
		t.Errorf("got %+v", raw)
	}
	os.Symlink("f", filepath.Join(d.dir, "link"))
	if o := d.read(args{"path": "link", "limit": 1}); o.Path != d.dir+"/f" {
		t.Errorf("path is %s", o.Path)
	}
}

func TestReadEncodings(t *testing.T) {
	d := newDesk(t)
	for name, tt := range map[string]struct{ bytes, encoding, content string }{
		"utf16le": {"\xff\xfea\x00\n\x00\xe9\x00=\xd8\x00\xde", "utf-16le", "     1\ta\n     2\té😀\n"},
		"utf16be": {"\xfe\xff\x00a\x00\r\x00\n", "utf-16be", "     1\ta\n"},
		"latin1":  {"caf\xe9 one\ntwo\n", "iso-8859-1", "     1\tcafé one\n     2\ttwo\n"},
		"gbk":     {"\xc4\xe3\xba\xc3 a\n", "gbk", "     1\t你好 a\n"},
		"broken":  {"naïve \xff\n", "utf-8", "     1\tnaïve \uFFFD\n"},
	} {
		d.put(name, tt.bytes)
		o := d.read(args{"path": name})
		if o.Encoding != tt.encoding || o.Content != tt.content {
			t.Errorf("%s: %s %q", name, o.Encoding, o.Content)
		}
		if o.Invalid != (name == "broken") {
			t.Errorf("%s: invalid is %v", name, o.Invalid)
		}
	}
}

func TestReadFolder(t *testing.T) {
	d := newDesk(t)
	d.put("b/x", "")
	d.put("a.txt", "")
	os.Symlink("nowhere", filepath.Join(d.dir, "c"))
	if o := d.read(args{"path": "."}); o.Content != "b/\na.txt\nc@\n" || o.Kind != "directory" {
		t.Errorf("got %+v", o)
	}
	d.has(d.read(args{"path": "b/.."}).Path, d.dir)
	os.Mkdir(filepath.Join(d.dir, "empty"), 0o755)
	d.has(d.read(args{"path": "empty"}).Text(), "the folder is empty")
}

func TestReadImage(t *testing.T) {
	d := newDesk(t)
	d.put("p.png", "\x89PNG\r\n\x1a\n\x00\x00")
	if o := d.read(args{"path": "p.png"}); o.Kind != "image" || o.MIME != "image/png" || len(o.Data) != 10 {
		t.Errorf("got %+v", o)
	}
	d.put("big.png", "\x89PNG\r\n\x1a\n"+strings.Repeat("\x00", imageBytes))
	d.fails(TooLarge, "read", args{"path": "big.png"})
	d.put("a b.pdf", "%PDF-1.4\nx")
	d.has(d.fails(Binary, "read", args{"path": "a b.pdf"}).Remedy, "pdftotext", "/a b.pdf'")
	d.put("n.ipynb", "{}")
	d.has(d.read(args{"path": "n.ipynb"}).Text(), "nbconvert")
}

func TestAGENT07(t *testing.T) {
	d := newDesk(t)
	if _, err := os.Stat("/dev/zero"); err == nil {
		d.has(d.fails(NotRegular, "read", args{"path": "/dev/zero"}).Message, "device")
	}
	if err := unix.Mkfifo(filepath.Join(d.dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, a := range map[string]args{
		"read": {"path": "fifo"}, "edit": {"path": "fifo", "old": "a", "new": "b"}, "write": {"path": "fifo", "content": ""}, "grep": {"path": "fifo", "pattern": "x"},
	} {
		d.has(d.fails(NotRegular, name, a).Message, "FIFO")
	}
	if _, err := os.Stat("/proc/self/status"); err == nil {
		d.has(d.read(args{"path": "/proc/self/status"}).Content, "Name:")
	}
	d.put("empty", "")
	d.has(d.read(args{"path": "empty"}).Text(), "the file is empty")
	d.fails(NotRegular, "grep", args{"path": "fifo", "pattern": "x"})
	os.Symlink("gone", filepath.Join(d.dir, "dangling"))
	d.has(d.fails(NotFound, "read", args{"path": "dangling"}).Message, "is a link to gone, which does not exist")

	// One long line is read piece by piece.
	line := strings.Repeat("0123456789", 4000)
	d.put("long", line)
	o := d.read(args{"path": "long"})
	got := strings.TrimSuffix(strings.TrimPrefix(o.Content, "     1\t"), "…\n")
	d.has(o.Text(), "line 1 was cut; go on in it with byte_offset=2000")
	for o.NextByte > 0 {
		o = d.read(args{"path": "long", "byte_offset": o.NextByte})
		got += o.Content
	}
	if got != line {
		t.Errorf("%d bytes of %d were read", len(got), len(line))
	}

	d.put("ten", numbered(10))
	d.has(d.read(args{"path": "ten", "offset": 1200}).Text(), "the file has 10 lines")
	d.put("runes", "a"+strings.Repeat("日", 666)+"\n")
	if o := d.read(args{"path": "runes"}); o.Invalid || !strings.Contains(o.Content, "日日") {
		t.Errorf("got %+v", o)
	}
	d.put("big runes", "a"+strings.Repeat("日", sniffLen))
	if o := d.read(args{"path": "big runes"}); o.Encoding != "utf-8" || o.Invalid {
		t.Errorf("encoding is %s", o.Encoding)
	}
	d.put("nul", "a\x00b")
	d.has(d.fails(Binary, "read", args{"path": "nul"}).Message, "of 3 bytes")
}

func TestNear(t *testing.T) {
	d := newDesk(t)
	for _, n := range []string{"main.go", "Main_test.go", "mian.go", "other.txt", "readme"} {
		d.put(n, "")
	}
	e := d.fails(NotFound, "read", args{"path": "man.go"})
	if fmt.Sprint(e.Near) != "[main.go mian.go]" || e.Dir != d.dir {
		t.Errorf("near %q, in %s", e.Near, e.Dir)
	}
	if e := d.fails(NotFound, "read", args{"path": "README.md"}); fmt.Sprint(e.Near) != "[readme]" {
		t.Errorf("near %q", e.Near)
	}
}

// Whatever lies about, no tool hangs or swells.
func TestHostileFiles(t *testing.T) {
	d := newDesk(t)
	l, err := net.Listen("unix", filepath.Join(d.dir, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	unix.Mkfifo(filepath.Join(d.dir, "fifo"), 0o600)
	os.Symlink("loop2", filepath.Join(d.dir, "loop1"))
	os.Symlink("loop1", filepath.Join(d.dir, "loop2"))
	os.Symlink("..", filepath.Join(d.dir, "up"))
	os.Mkdir(filepath.Join(d.dir, "sub"), 0o755)
	os.Symlink("..", filepath.Join(d.dir, "sub", "up"))
	sparse := filepath.Join(d.dir, "sparse")
	if err := os.WriteFile(sparse, []byte(numbered(20_000)), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(sparse, 10<<30); err != nil {
		testneed.Lacking(t, "a file system with sparse files: "+err.Error())
	}
	for _, name := range []string{"socket", "fifo", "loop1"} {
		d.fails(NotRegular, "read", args{"path": name})
		d.fails(NotRegular, "edit", args{"path": name, "old": "x", "new": "y"})
		d.fails(NotRegular, "write", args{"path": name, "content": "x"})
		d.fails(NotRegular, "grep", args{"path": name, "pattern": "x"})
	}
	o := d.read(args{"path": "sparse"})
	if o.TotalLines != nil || o.NextOffset != 2001 {
		t.Errorf("got %+v", o)
	}
	o = d.read(args{"path": "sparse", "offset": 19_999})
	d.has(o.Text(), "line 20001 was cut")
	d.fails(TooLarge, "read", args{"path": "sparse", "offset": 20_002})
	d.read(args{"path": "sparse", "byte_offset": 5 << 30})
	d.read(args{"path": "sparse", "format": "raw_base64", "offset": -5})
	d.fails(TooLarge, "read", args{"path": "sparse", "offset": -5})
	d.fails(TooLarge, "edit", args{"path": "sparse", "old": "line 1\n", "new": "x"})
	if g := d.grep(args{"pattern": "line"}); g.Files != 0 || g.Partial {
		t.Errorf("got %+v", g)
	}
	if g := d.glob(args{"pattern": "**"}); g.Total != 8 {
		t.Errorf("got %+v", g)
	}
}

func TestHugeFolder(t *testing.T) {
	d := newDesk(t)
	if dir, err := os.MkdirTemp("/dev/shm", "sandgate-test-"); err == nil { // a disk would need minutes
		t.Cleanup(func() { os.RemoveAll(dir) })
		d.dir = dir
	}
	many := filepath.Join(d.dir, "many")
	os.Mkdir(many, 0o755)
	dir, err := unix.Open(many, unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(dir)
	for i := range 200_000 {
		if err := unix.Mknodat(dir, fmt.Sprintf("f%06d", i), unix.S_IFREG|0o644, 0); err != nil {
			t.Fatal(err)
		}
	}
	o := d.read(args{"path": "many"})
	d.has(o.Text(), "f000000\nf000001\n", "200 of 200000 entries")
	g := d.glob(args{"pattern": "many/*7", "sort": "path", "limit": 3})
	if g.Total == 0 || g.Paths[0] != "many/f000007" || !g.More {
		t.Errorf("got %+v", g)
	}
	if g := d.grep(args{"pattern": "x", "path": "many"}); g.Matches != 0 {
		t.Errorf("got %+v", g)
	}
}

// Whatever is on the disk, what is read of it is text, within its limits, and going
// on comes to the end.
func FuzzRead(f *testing.F) {
	for _, s := range []string{"a\nb\r\n", "\xff\xfea\x00\x3d\xd8", "\xfe\xff\x00", "\xef\xbb\xbf\xff", "caf\xe9\n", "\xc4\xe3\xba\xc3\xb0", "a\x00", "\xed\xa0\x80", "\x81\x30\x81\x30"} {
		f.Add([]byte(s), 1, int64(0))
	}
	f.Add(bytes.Repeat([]byte("日本"), 30000), -3, int64(7))
	f.Fuzz(func(t *testing.T, content []byte, offset int, at int64) {
		d := newDesk(t)
		d.put("f", string(content))
		d.try("read", args{"path": "f", "offset": offset})
		d.try("read", args{"path": "f", "byte_offset": at})
		d.try("read", args{"path": "f", "format": "raw_base64", "offset": offset})
		d.try("grep", args{"path": "f", "pattern": "."})
		for next := int64(0); ; {
			out, err := d.try("read", args{"path": "f", "byte_offset": next})
			if err != nil {
				break
			}
			o := out.(*ReadOutput)
			if o.NextByte == 0 {
				break
			}
			if o.NextByte <= next {
				t.Fatalf("at byte %d it says to go on with %d", next, o.NextByte)
			}
			next = o.NextByte
		}
	})
}

func FuzzCharsets(f *testing.F) {
	f.Add([]byte("\x00\xd8\x00"), 0)
	f.Add([]byte("\xc4\xe3\xba"), 3)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		all := []charset{utf16LE, utf16BE, latin1, gbk}
		c := all[uint(n)%uint(len(all))]
		text := c.decode(b)
		if !utf8.Valid(text) {
			t.Errorf("%s of %q is %q", c, b, text)
		}
		if at := c.offsets(b, []int{0, len(text)}); at[0] != 0 || at[1] != len(b) {
			t.Errorf("%s of %q is from %d to %d", c, b, at[0], at[1])
		}
		if back, err := c.encode(text); err == nil && !bytes.Equal(c.decode(back), text) {
			t.Errorf("%s of %q went back to %q", c, b, back)
		}
		sniff(b)
		j, _ := json.Marshal(clean(b))
		if bytes.Contains(j, []byte(`\u0000`)) {
			t.Errorf("%s", j)
		}
	})
}
