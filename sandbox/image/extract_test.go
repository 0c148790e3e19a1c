//go:build linux

package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/klauspost/compress/zstd"

	"sandgate/sandbox/testneed"
)

// extract extracts layers into a folder of the test's own and returns that.
func extract(t testing.TB, x func(*extractor), layers ...[]byte) (string, error) {
	t.Helper()
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	t.Cleanup(func() { removeAll(dir) })
	e := newExtractor(root, false, DefaultLimits)
	if x != nil {
		x(e)
	}
	for _, l := range layers {
		if err := e.layer(bytes.NewReader(l)); err != nil {
			return dir, err
		}
	}
	return dir, e.finish()
}

func TestExtract(t *testing.T) {
	long := strings.Repeat("long/", 40) + strings.Repeat("n", 200)
	for _, test := range []struct {
		name   string
		layers [][]entry
		want   string
	}{
		{"replaced", [][]entry{
			{folder("d"), file("d/f", "1"), file("g", "1"), symlink("l", "g")},
			{file("g", "2"), file("l", "2"), file("d", "2")},
		}, "f 755 d 2 | f 755 g 2 | f 755 l 2"},
		{"a folder stays", [][]entry{
			{folder("d"), file("d/f", "1")},
			{{kind: tar.TypeDir, name: "d/", mode: 0o700}, file("d/g", "2")},
		}, "d 700 d | f 755 d/f 1 | f 755 d/g 2"},
		{"a folder for a link", [][]entry{
			{folder("real"), file("real/f", "1"), symlink("d", "real")},
			{folder("d"), file("d/g", "2")},
		}, "d 755 d | f 755 d/g 2 | d 755 real | f 755 real/f 1"},
		{"whiteouts", [][]entry{
			{file("a", ""), folder("d"), file("d/f", ""), file("d/g", ""), folder("e"), file("e/f", "")},
			{file(".wh.a", ""), file("d/.wh.f", ""), file(".wh.e", ""), file(".wh.none", ""), file("none/.wh.x", "")},
		}, "d 755 d | f 755 d/g "},
		{"whiteouts spare their own layer", [][]entry{
			{folder("d"), file("d/old", ""), file("f", "1")},
			{folder("d"), file("d/new", ""), file(".wh.d", ""), file("f", "2"), file(".wh.f", "")},
		}, "d 755 d | f 755 d/new  | f 755 f 2"},
		{"opaque", [][]entry{
			{folder("d"), file("d/old", ""), folder("d/e"), file("d/e/old", ""), file("f", "")},
			{folder("d"), folder("d/e"), file("d/e/new", ""), file("d/.wh..wh..opq", ""), file("d/last", "")},
		}, "d 755 d | d 755 d/e | f 755 d/e/new  | f 755 d/last  | f 755 f "},
		{"aufs", [][]entry{{file(".wh..wh.plnk", ""), file(".wh..wh.orph/x", ""), file("a", "")}}, "d 755 .wh..wh.orph | f 755 .wh..wh.orph/x  | f 755 a "},
		{"hard links across layers", [][]entry{
			{file("a", "1"), hardlink("b", "a")},
			{hardlink("c", "/b"), file("a", "2")},
		}, "f 755 a 2 | f 755 b 1 | f 755 c 1"},
		{"a link to itself", [][]entry{{file("a", "1"), hardlink("a", "a")}}, "f 755 a 1"},
		{"through links", [][]entry{
			{folder("usr/lib"), symlink("lib", "usr/lib"), symlink("abs", "/usr/lib"), symlink("up", "../../../usr")},
			{file("lib/a", "1"), file("abs/b", "2"), file("up/lib/c", "3"), hardlink("d", "lib/a")},
		}, "l abs /usr/lib | f 755 d 1 | l lib usr/lib | l up ../../../usr | d 755 usr | d 755 usr/lib | f 755 usr/lib/a 1 | f 755 usr/lib/b 2 | f 755 usr/lib/c 3"},
		{"no way out", [][]entry{
			{file("../../a", ""), file("/b", ""), file("./x/../../c", ""), symlink("out", "/.."), symlink("conf", "/etc"), file("conf/passwd", "mine"), file("out/d", "")},
		}, "f 755 a  | f 755 b  | f 755 c  | l conf /etc | f 755 d  | d 755 etc | f 755 etc/passwd mine | l out /.."},
		{"modes", [][]entry{
			{{name: "su", mode: 0o4755, text: "x"}, {name: "sg", mode: 0o2755}, {kind: tar.TypeDir, name: "tmp", mode: 0o1777}, {name: "none", mode: 0o10}, {kind: tar.TypeDir, name: "shut", mode: 0o111}, file("shut/f", "1")},
		}, "f 10 none  | f 2755 sg  | d 111 shut | f 755 shut/f 1 | f 4755 su x | d 1777 tmp"},
		{"devices", [][]entry{
			{{kind: tar.TypeChar, name: "null"}, {kind: tar.TypeBlock, name: "disk"}, {kind: tar.TypeFifo, name: "fifo"}, file("a", "")},
		}, "f 755 a "},
		{"the root folder", [][]entry{{{kind: tar.TypeDir, name: "./", mode: 0o711}, folder("d")}}, "d 755 d"},
		{"long names", [][]entry{{file(long, "1"), symlink("l", "/"+long), hardlink("h", long)}}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			var layers [][]byte
			for _, l := range test.layers {
				layers = append(layers, archive(t, l...))
			}
			dir, err := extract(t, nil, layers...)
			if err != nil {
				t.Fatal(err)
			}
			os.Chmod(filepath.Join(dir, "shut"), 0o111|0o400) // for the ordinary user's look at it
			got := strings.Replace(tree(t, dir), "d 511 shut", "d 111 shut", 1)
			_, got, _ = strings.Cut(got, " | ") // the root folder, see below
			if test.name == "long names" {
				a, err := os.Stat(filepath.Join(dir, long))
				if err != nil {
					t.Fatal(err)
				}
				if b, err := os.Stat(filepath.Join(dir, "h")); err != nil || !os.SameFile(a, b) {
					t.Errorf("no hard link: %v", err)
				}
				return
			}
			if got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			if info, _ := os.Stat(dir); test.name == "the root folder" && info.Mode().Perm() != 0o711 {
				t.Errorf("the root folder has %v", info.Mode())
			}
		})
	}
}

// What is no layer is refused as such.
func TestCorrupt(t *testing.T) {
	for name, l := range map[string][]byte{
		"no archive":          bytes.Repeat([]byte("no archive"), 100),
		"cut":                 archive(t, file("a", strings.Repeat("x", 5000)))[:1000],
		"bad name":            archive(t, file(strings.Repeat("n", 300), "")),
		"long path":           archive(t, file(strings.Repeat("n/", 3000)+"x", "")),
		"deep":                archive(t, file(strings.Repeat("n/", 300)+"x", "")),
		"in a file":           archive(t, file("a", ""), file("a/b", "")),
		"dangling hard link":  archive(t, hardlink("a", "b")),
		"hard link to folder": archive(t, folder("d"), hardlink("a", "d")),
		"whiteout of ..":      archive(t, folder("d"), file("d/.wh...", "")),
		"whiteout of .":       archive(t, folder("d"), file("d/.wh..", "")),
		"whiteout of nothing": archive(t, folder("d"), file("d/.wh.", "")),
		"links in a ring":     archive(t, symlink("a", "b"), symlink("b", "a"), file("a/x", "")),
		"link to nothing":     archive(t, symlink("a", "")),
		"root is a file":      archive(t, file(".", "x")),
		"on the way":          archive(t, folder("d/b"), symlink("l", "d/b/.."), file("l/b", "x")),
		"type":                archive(t, entry{kind: 'Z', name: "a"}),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := extract(t, nil, l)
			if _, ok := errors.AsType[*corruptError](err); !ok {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestLimits(t *testing.T) {
	limit := func(entries, bytes int64) func(*extractor) {
		return func(x *extractor) { x.entries, x.bytes = entries, bytes }
	}
	l := archive(t, folder("d"), file("d/a", "12345"), file("e/b", "12345"))
	if _, err := extract(t, limit(4, 10), l); err != nil {
		t.Errorf("within limits: %v", err)
	}
	if _, err := extract(t, limit(3, 10), l); !errors.Is(err, errTooBig) {
		t.Errorf("too many entries: %v", err)
	}
	if _, err := extract(t, limit(4, 9), l); !errors.Is(err, errTooBig) {
		t.Errorf("too many bytes: %v", err)
	}
}

// Compressed with gzip or zstd, or not at all.
func TestUncompressed(t *testing.T) {
	var b bytes.Buffer
	z, err := zstd.NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	z.Write([]byte("hello"))
	z.Close()
	for _, in := range [][]byte{b.Bytes(), []byte("hello")} {
		plain, end, err := uncompressed(bytes.NewReader(in))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(plain)
		end()
		if string(got) != "hello" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
	}
}

// As root, files are given to whom the layers say.
func TestChown(t *testing.T) {
	testneed.Root(t)
	dir, err := extract(t, func(x *extractor) { x.chown = true }, archive(t,
		entry{name: "a", uid: 1000, gid: 1001, mode: 0o4755}, entry{kind: tar.TypeDir, name: "d", uid: 1000},
		entry{kind: tar.TypeSymlink, name: "l", link: "a", uid: 7}, entry{name: "far", uid: 1 << 20, gid: 1 << 20}))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"a": "1000:1001 4755", "d": "1000:0 755", "l": "7:0 777", "far": "65534:65534 755"} {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		stat := info.Sys().(*syscall.Stat_t)
		if got := fmt.Sprintf("%d:%d %o", stat.Uid, stat.Gid, permissions(info.Mode())); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// As somebody else, what is not root's is in an archive, with the folders that it
// is in.
func TestOwners(t *testing.T) {
	var owned bytes.Buffer
	var x *extractor
	_, err := extract(t, func(e *extractor) { x = e },
		archive(t, folder("home"), entry{kind: tar.TypeDir, name: "home/app", uid: 1000, gid: 1000, mode: 0o700},
			entry{name: "home/app/f", uid: 1000, gid: 1000, text: "1", mode: 0o4010}, hardlink("home/app/g", "home/app/f"),
			entry{name: "was", uid: 5}, entry{kind: tar.TypeDir, name: "gone", uid: 5}, entry{name: "gone/f", uid: 5}),
		archive(t, file("was", "root's"), file(".wh.gone", ""), entry{kind: tar.TypeSymlink, name: "l", link: "x", gid: 3}))
	if err != nil {
		t.Fatal(err)
	}
	// After finish its root folder is closed; that is what this test began with.
	root, err := os.OpenRoot(x.root.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	x.root = root
	if whole, err := x.writeOwners(&owned); !whole || err != nil {
		t.Fatal(whole, err)
	}
	var got []string
	for r := tar.NewReader(&owned); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(r)
		got = append(got, fmt.Sprintf("%c %s %d:%d %o %s%s", h.Typeflag, h.Name, h.Uid, h.Gid, h.Mode, h.Linkname, text))
	}
	want := []string{
		"5 ./ 0:0 755 ", "5 ./home/ 0:0 755 ", "5 ./home/app/ 1000:1000 700 ", "0 ./home/app/f 1000:1000 4010 1",
		"1 ./home/app/g 1000:1000 4010 ./home/app/f", "2 ./l 0:3 777 x",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	// Too much of it is left to root.
	owned.Reset()
	x.ownedBytes = 10
	if whole, err := x.writeOwners(&owned); whole || err != nil || owned.Len() > 0 {
		t.Errorf("got %v, %v and %d bytes", whole, err, owned.Len())
	}
}

// Whatever layers say, nothing outside the image's folder changes: not a name, a
// content, a mode, a time or a number of links.
func FuzzExtract(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{4, 1, 9, 0, 5, 0, 0})                    // a link out, then a file through it
	f.Add([]byte{4, 0, 12, 0, 7, 0, 12, 1, 0, 2, 3, 200}) // links and hard links
	f.Fuzz(func(t *testing.T, script []byte) {
		top := t.TempDir()
		root := filepath.Join(top, "in", "root")
		for _, dir := range []string{root, filepath.Join(top, "etc"), filepath.Join(top, "in", "a")} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range []string{"a", "etc/a", "in/b", "in/a/b"} {
			if err := os.WriteFile(filepath.Join(top, name), []byte("outside"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		before := outside(t, top, root)
		dir, err := os.OpenRoot(root)
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		defer removeAll(root)
		x := newExtractor(dir, false, Limits{Bytes: 1 << 20, Entries: 1000})
		ok := true
		for layer := range bytes.SplitSeq(script, []byte{255}) {
			ok = ok && x.layer(bytes.NewReader(scripted(layer, top))) == nil
		}
		if ok {
			if err := x.prepare([]Node{{"/a", true}, {"/a/b", false}, {"/etc", true}}); err != nil {
				t.Errorf("prepare: %v", err)
			}
			if err := x.workDir("/b/../etc/" + top); err != nil {
				t.Errorf("work folder: %v", err)
			}
			if whole, err := x.writeOwners(io.Discard); !whole || err != nil {
				t.Errorf("owners: %v, %v", whole, err)
			}
			if err := x.finish(); err != nil {
				t.Errorf("finish: %v", err)
			}
		}
		if after := outside(t, top, root); after != before {
			t.Errorf("before\n%s\nafter\n%s", before, after)
		}
	})
}

// scripted makes a layer of bytes: three make an entry, a type, a name and what is
// linked to. Names are of parts that may lead somewhere.
func scripted(script []byte, top string) []byte {
	names := []string{
		"a", "b", "a/b", "a/a/b", "../a", "/a", "../../a", "a/../../b", "..", ".", "/", top + "/a", "../../etc/a",
		"etc", "etc/a", "b/a", "b/../a", ".wh.a", ".wh.b", "a/.wh.b", "a/.wh..wh..opq", ".wh..wh..opq", ".wh...", "b/.wh.a", "a/.wh..",
	}
	types := []byte{tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink, tar.TypeChar, tar.TypeFifo, tar.TypeBlock, tar.TypeCont}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for ; len(script) >= 3; script = script[3:] {
		h := &tar.Header{
			Typeflag: types[int(script[0])%len(types)],
			Name:     names[int(script[1])%len(names)],
			Linkname: names[int(script[2])%len(names)],
			Mode:     int64(script[0]) << 4,
			Uid:      int(script[2]),
		}
		if h.Typeflag == tar.TypeReg {
			h.Linkname = ""
			h.Size = 4
		}
		if w.WriteHeader(h) == nil {
			w.Write([]byte("bad!"))
		}
	}
	w.Close()
	return b.Bytes()
}

// outside describes all below top that is not below root.
func outside(t *testing.T, top, root string) string {
	var b strings.Builder
	err := filepath.WalkDir(top, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path == root {
			return filepath.SkipDir
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		stat := info.Sys().(*syscall.Stat_t)
		text, _ := os.ReadFile(path)
		fmt.Fprintf(&b, "%s %v %d %d:%d %v %q\n", path, info.Mode(), stat.Nlink, stat.Uid, stat.Gid, stat.Ctim, text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}
