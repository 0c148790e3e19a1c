package files

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestSFTP01RenameTwoMeanings(t *testing.T) {
	c := dial(t)
	write(t, c.path("a"), "A")
	write(t, c.path("b"), "B")
	os.Mkdir(c.path("dir"), 0o755)
	os.Mkdir(c.path("dir2"), 0o755)

	code, text := c.status(fxpRename, "a", "b")
	equal(t, "rename over a file", code, failed)
	equal(t, "reason", text, "File exists")
	equal(t, "a", read(t, c.path("a")), "A")
	equal(t, "b", read(t, c.path("b")), "B")
	equal(t, "rename a folder over one", c.code(fxpRename, "dir", "dir2"), failed)

	equal(t, "posix-rename", c.code(fxpExtended, "posix-rename@openssh.com", "a", "b"), fine)
	equal(t, "b", read(t, c.path("b")), "A")
	equal(t, "a", c.code(fxpLstat, "a"), noSuchFile)
	equal(t, "onto a folder", c.code(fxpExtended, "posix-rename@openssh.com", "b", "dir"), failed)
	equal(t, "rename", c.code(fxpRename, "b", "c"), fine)
	equal(t, "rename a folder", c.code(fxpRename, "dir", "dir3"), fine)
	equal(t, "rename nothing", c.code(fxpRename, "nope", "x"), noSuchFile)
}

// Kernels such as gVisor's may not know RENAME_NOREPLACE.
func TestSFTP01RenameByLink(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	write(t, path("a"), "A")
	write(t, path("b"), "B")
	os.Mkdir(path("d"), 0o755)
	os.Mkdir(path("e"), 0o755)
	for _, test := range []struct {
		from, to string
		want     error
	}{
		{"a", "b", unix.EEXIST}, {"a", "c", nil}, {"a", "c", unix.ENOENT},
		{"d", "e", unix.EEXIST}, {"d", "f", nil}, {"d", "f", unix.ENOENT},
	} {
		equal(t, test.from+" to "+test.to, renameByLink(path(test.from), path(test.to)), test.want)
	}
	equal(t, "c", read(t, path("c")), "A")
	equal(t, "b", read(t, path("b")), "B")
}

func TestSFTP02SymlinkText(t *testing.T) {
	c := dial(t)
	equal(t, "symlink", c.code(fxpSymlink, "../rel/./target", "lnk"), fine)
	got, _ := os.Readlink(c.path("lnk"))
	equal(t, "text on disk", got, "../rel/./target")
	equal(t, "text", c.name(fxpReadlink, "lnk"), "../rel/./target")
	equal(t, "mode", c.stat(fxpLstat, "lnk").mode&unix.S_IFMT, unix.S_IFLNK)
	equal(t, "stat", c.code(fxpStat, "lnk"), noSuchFile)
	equal(t, "readlink of a file", c.code(fxpReadlink, "."), badMessage)
	equal(t, "again", c.code(fxpSymlink, "x", "lnk"), failed)
}

// A path is not cleaned: link/.. is the parent of what the link leads to.
func TestPathsAreTheKernels(t *testing.T) {
	c := dial(t)
	os.MkdirAll(c.path("deep/er"), 0o755)
	os.Symlink("deep/er", c.path("link"))
	write(t, c.path("deep/f"), "in deep")
	write(t, c.path("f"), "in home, longer")

	equal(t, "size", c.stat(fxpStat, "link/../f").size, 7)
	equal(t, "absolute", c.stat(fxpStat, c.path("link/../f")).size, 7)
	equal(t, "realpath", c.name(fxpRealpath, "link/.."), c.path("deep"))
	equal(t, "realpath of nothing", c.name(fxpRealpath, ""), c.home)
	equal(t, "realpath .", c.name(fxpRealpath, "."), c.home)
	equal(t, "realpath /", c.name(fxpRealpath, "/"), "/")
	equal(t, "realpath ..", c.name(fxpRealpath, ".."), filepath.Dir(c.home))
	equal(t, "realpath of a new name", c.name(fxpRealpath, "link/new"), c.path("deep/er/new"))
	equal(t, "realpath too far", c.code(fxpRealpath, "no/new"), noSuchFile)
	equal(t, "under a file", c.code(fxpStat, "f/x"), noSuchFile)
	equal(t, "the home stays", c.code(fxpRmdir, ""), badMessage)
	equal(t, "NUL", c.code(fxpStat, "f\x00x"), failed)
	equal(t, "long", c.code(fxpStat, strings.Repeat("x", 300)), badMessage)
	equal(t, "very long", c.code(fxpStat, strings.Repeat("x", 200_000)), badMessage)
	equal(t, "still there", c.stat(fxpStat, "f").size, 15)
}

func TestSFTP03OpenFlags(t *testing.T) {
	c := dial(t)
	write(t, c.path("f"), "0123456789")

	h := c.open("f", openWrite|openAppend)
	c.write(h, 0, "XY")
	c.close(h)
	equal(t, "append wins over the offset", read(t, c.path("f")), "0123456789XY")

	write(t, c.path("f"), "0123456789XY")
	h = c.open("f", openWrite|openCreate)
	c.write(h, 2, "zz")
	c.close(h)
	equal(t, "no TRUNC", read(t, c.path("f")), "01zz456789XY")

	equal(t, "EXCL", c.code(fxpOpen, "f", openWrite|openCreate|openExcl, noAttrs), failed)
	h = c.open("f", openWrite|openCreate|openTrunc)
	c.close(h)
	equal(t, "TRUNC", read(t, c.path("f")), "")

	equal(t, "missing", c.code(fxpOpen, "g", openWrite, noAttrs), noSuchFile)
	h = c.open("g", openRead|openWrite|openCreate)
	c.write(h, 0, "both")
	equal(t, "read back", c.read(h, 1, 10), "oth")
	equal(t, "at the end", c.code(fxpRead, h, uint64(4), 10), atEnd)
	equal(t, "no such offset", c.code(fxpRead, h, uint64(math.MaxUint64), 10), badMessage)
	equal(t, "nor here", c.code(fxpWrite, h, uint64(math.MaxUint64), "x"), badMessage)
	c.close(h)
	equal(t, "closed", c.code(fxpRead, h, uint64(0), 10), failed)
	equal(t, "closed twice", c.code(fxpClose, h), failed)
}

// Appends are pipelined, and must not overtake each other.
func TestSFTP03AppendsStayInOrder(t *testing.T) {
	c := dial(t)
	h := c.open("log", openWrite|openAppend|openCreate)
	var want strings.Builder
	for i := range 500 {
		line := fmt.Sprintf("line %d\n", i)
		want.WriteString(line)
		c.send(fxpWrite, h, uint64(0), line)
	}
	for range 500 {
		equal(t, "write", c.recv().uint32(), fine)
	}
	equal(t, "log", read(t, c.path("log")), want.String())
}

// What is sent without waiting takes effect in its turn.
func TestRequestsTakeEffectInOrder(t *testing.T) {
	c := dial(t)
	big := bytes.Repeat([]byte("0123456789abcdef"), 8<<10)
	for i := range 100 {
		name := fmt.Sprint("f", i)
		h := c.open(name, openRead|openWrite|openCreate)
		c.send(fxpWrite, h, uint64(0), string(big))
		c.send(fxpWrite, h, uint64(len(big)), string(big))
		c.send(fxpWrite, h, uint64(0), "first")
		c.send(fxpWrite, h, uint64(0), "FIRST")
		c.send(fxpRead, h, uint64(0), 5)
		c.send(fxpFstat, h)
		c.send(fxpWrite, h, uint64(0), "third")
		c.send(fxpClose, h)
		c.send(fxpStat, name)
		for _, want := range []byte{fxpStatus, fxpStatus, fxpStatus, fxpStatus} {
			equal(t, "write", c.recv().kind, want)
		}
		equal(t, "read", string(c.recv().bytes()), "FIRST")
		fstat := c.recv().attrs()
		equal(t, "fstat", fstat.size, uint64(2*len(big)))
		equal(t, "write", c.recv().uint32(), fine)
		equal(t, "close", c.recv().uint32(), fine)
		stat := c.recv().attrs()
		equal(t, "stat", stat.size, uint64(2*len(big)))
		equal(t, "content", read(t, c.path(name))[:5], "third")
	}
}

func TestModesOfNewFiles(t *testing.T) {
	c := dial(t)
	mask := umask(t)
	mode := func(name string) uint32 { return c.stat(fxpStat, name).mode & 0o7777 }

	c.close(c.open("plain", openWrite|openCreate))
	equal(t, "no mode sent", mode("plain"), 0o666&^mask)
	c.close(string(c.expect(fxpHandle, fxpOpen, "exec", openWrite|openCreate, modeAttrs(0o100751)).bytes()))
	equal(t, "mode sent", mode("exec"), 0o751&^mask)
	equal(t, "mkdir", c.code(fxpMkdir, "d", noAttrs), fine)
	equal(t, "folder", mode("d"), 0o777&^mask)
	equal(t, "mkdir", c.code(fxpMkdir, "e", modeAttrs(0o700)), fine)
	equal(t, "folder with mode", mode("e"), 0o700)
	equal(t, "mkdir again", c.code(fxpMkdir, "e", noAttrs), failed)
}

// umask is the process's. Reading it is only possible by setting it.
func umask(t *testing.T) uint32 {
	t.Helper()
	mask := syscall.Umask(0o22)
	syscall.Umask(mask)
	return uint32(mask)
}

func TestSpecialFilesDoNotHang(t *testing.T) {
	c := dial(t)
	if err := unix.Mkfifo(c.path("fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	os.Mkdir(c.path("dir"), 0o755)
	write(t, c.path("f"), "data")
	h := c.open("f", openRead)
	code, text := c.status(fxpOpen, "fifo", openRead, noAttrs)
	equal(t, "fifo", code, failed)
	equal(t, "reason", text, "Not a regular file")
	equal(t, "fifo for writing", c.code(fxpOpen, "fifo", openWrite, noAttrs), failed)
	equal(t, "fifo for both", c.code(fxpOpen, "fifo", openRead|openWrite, noAttrs), failed)
	code, text = c.status(fxpOpen, "dir", openRead, noAttrs)
	equal(t, "folder", code, failed)
	equal(t, "reason", text, "Is a directory")
	equal(t, "opendir of a file", c.code(fxpOpendir, "f"), noSuchFile)
	equal(t, "opendir of a fifo", c.code(fxpOpendir, "fifo"), noSuchFile)
	equal(t, "the other handle", c.read(h, 0, 9), "data")
	null := c.open("/dev/null", openRead|openWrite)
	c.write(null, 0, "gone")
	equal(t, "null", c.code(fxpRead, null, uint64(0), 9), atEnd)
	zero := c.open("/dev/zero", openRead)
	equal(t, "zero", c.read(zero, 0, 3), "\x00\x00\x00")
}

func TestDiskFull(t *testing.T) {
	c := dial(t)
	h := c.open("/dev/full", openWrite)
	code, text := c.status(fxpWrite, h, uint64(0), "x")
	equal(t, "code", code, failed)
	equal(t, "reason", text, "No space left on device")
	c.close(h)
}

func TestSFTP05ManyEntries(t *testing.T) {
	c := dial(t)
	os.Mkdir(c.path("many"), 0o755)
	const n = 15000
	for i := range n {
		name := fmt.Sprintf("f%010d-padding-padding-padding-padding-padding-padding", i)
		f, err := os.Create(c.path("many/" + name))
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	list := func(during func()) map[string]bool {
		h := string(c.expect(fxpHandle, fxpOpendir, "many").bytes())
		names := make(map[string]bool)
		for {
			a := c.call(fxpReaddir, h)
			if a.kind == fxpStatus {
				equal(t, "end", a.uint32(), atEnd)
				break
			}
			for range a.uint32() {
				name := a.text()
				if names[name] {
					t.Fatalf("%q listed twice", name)
				}
				names[name] = true
				if line := a.text(); !strings.HasSuffix(line, " "+name) {
					t.Fatalf("long name %q", line)
				}
				a.attrs()
			}
			if a.err != nil {
				t.Fatal(a.err)
			}
			during()
		}
		equal(t, "end again", c.code(fxpReaddir, h), atEnd)
		c.close(h)
		return names
	}
	start := time.Now()
	names := list(func() {})
	t.Logf("listed in %v", time.Since(start))
	equal(t, "names", len(names), n+2)
	equal(t, "dot", names["."] && names[".."], true)

	list(func() { // deleting while listing
		left, _ := os.ReadDir(c.path("many"))
		for _, e := range left[:min(500, len(left))] {
			os.Remove(c.path("many/" + e.Name()))
		}
	})
}

func TestSFTP06AttributesStick(t *testing.T) {
	c := dial(t)
	// As WinSCP does: empty attributes, and the times before the close.
	h := c.open("w", openWrite|openCreate|openTrunc)
	c.write(h, 0, "data")
	equal(t, "fsetstat", c.code(fxpFsetstat, h, timeAttrs(981173105, 981173106)), fine)
	c.close(h)
	a := c.stat(fxpStat, "w")
	equal(t, "mtime", a.mtime, 981173106)
	equal(t, "atime", a.atime, 981173105)
	equal(t, "mode", a.mode, unix.S_IFREG|0o666&^umask(t))

	equal(t, "chmod", c.code(fxpSetstat, "w", modeAttrs(0o4751)), fine)
	equal(t, "mode", c.stat(fxpStat, "w").mode, unix.S_IFREG|0o4751)
	equal(t, "mtime is kept", c.stat(fxpStat, "w").mtime, 981173106)
	equal(t, "utime", c.code(fxpSetstat, "w", timeAttrs(1, 2)), fine)
	equal(t, "mtime", c.stat(fxpStat, "w").mtime, 2)
	equal(t, "utime", c.code(fxpSetstat, "w", timeAttrs(math.MaxUint32, math.MaxUint32)), fine)
	equal(t, "mtime", c.stat(fxpStat, "w").mtime, math.MaxUint32)
	fi, _ := os.Stat(c.path("w"))
	equal(t, "year", fi.ModTime().UTC().Year(), 2106)
	equal(t, "nothing to set", c.code(fxpSetstat, "w", noAttrs), fine)
	equal(t, "truncate", c.code(fxpSetstat, "w", sizeAttrs(2)), fine)
	equal(t, "content", read(t, c.path("w")), "da")
	equal(t, "of nothing", c.code(fxpSetstat, "nope", modeAttrs(0o600)), noSuchFile)
}

// By handle is the open file, not what is now at the path it was opened by.
func TestSFTP06ByHandle(t *testing.T) {
	c := dial(t)
	write(t, c.path("f"), "old")
	h := c.open("f", openRead|openWrite)
	os.Rename(c.path("f"), c.path("moved"))
	write(t, c.path("f"), "another file")
	equal(t, "size", c.expect(fxpAttrs, fxpFstat, h).attrs().size, 3)
	equal(t, "fsetstat", c.code(fxpFsetstat, h, modeAttrs(0o600)), fine)
	equal(t, "truncate", c.code(fxpFsetstat, h, sizeAttrs(1)), fine)
	equal(t, "fsync", c.code(fxpExtended, "fsync@openssh.com", h), fine)
	equal(t, "moved", read(t, c.path("moved")), "o")
	equal(t, "mode", c.stat(fxpStat, "moved").mode&0o777, 0o600)
	equal(t, "untouched", read(t, c.path("f")), "another file")
	os.Remove(c.path("moved"))
	equal(t, "size", c.expect(fxpAttrs, fxpFstat, h).attrs().size, 1)
	d := string(c.expect(fxpHandle, fxpOpendir, ".").bytes())
	equal(t, "folder", c.expect(fxpAttrs, fxpFstat, d).attrs().mode&unix.S_IFMT, unix.S_IFDIR)
	equal(t, "read a folder", c.code(fxpRead, d, uint64(0), 9), failed)
	equal(t, "list a file", c.code(fxpReaddir, h), failed)
}

func TestSFTP06ChownDenied(t *testing.T) {
	if os.Getuid() == 0 { // who may give files away: somebody else has to try
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestSFTP06ChownDenied$")
		cmd.Dir = "/"
		cmd.Env = []string{"TMPDIR=/tmp"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if out, err := cmd.CombinedOutput(); err != nil || !bytes.HasPrefix(out, []byte("PASS")) {
			t.Errorf("as nobody: %v\n%s", err, out)
		}
		return
	}
	c := dial(t)
	write(t, c.path("m"), "")
	before := c.stat(fxpStat, "m")
	owner := append(append(be32(attrOwner), be32(0)...), be32(0)...)
	equal(t, "chown", c.code(fxpSetstat, "m", owner), 3)
	equal(t, "nothing changed", c.stat(fxpStat, "m"), before)
}

func TestLsetstat(t *testing.T) {
	c := dial(t)
	write(t, c.path("f"), "")
	os.Symlink("f", c.path("l"))
	before := c.stat(fxpStat, "f")
	equal(t, "times", c.code(fxpExtended, "lsetstat@openssh.com", "l", timeAttrs(5, 6)), fine)
	equal(t, "of the link", c.stat(fxpLstat, "l").mtime, 6)
	equal(t, "of the file", c.stat(fxpStat, "f"), before)
	equal(t, "mode", c.code(fxpExtended, "lsetstat@openssh.com", "l", modeAttrs(0o600)), unsupported)
	equal(t, "size", c.code(fxpExtended, "lsetstat@openssh.com", "l", sizeAttrs(0)), badMessage)
	equal(t, "mode of a file", c.code(fxpExtended, "lsetstat@openssh.com", "f", modeAttrs(0o600)), fine)
	equal(t, "mode", c.stat(fxpStat, "f").mode&0o777, 0o600)
}

var oddNames = []string{
	"sp ace", "-dash", "new\nline", "\xff\xfe", "quote'\"$`", "*star?[x]", "tab\t",
	"\u00e9", "e\u0301", " lead trail ", `back\slash`,
}

func TestSFTP07AnyBytesAreAName(t *testing.T) {
	c := dial(t)
	for _, name := range oddNames {
		h := c.open(name, openWrite|openCreate|openExcl)
		c.write(h, 0, name)
		c.close(h)
	}
	d := string(c.expect(fxpHandle, fxpOpendir, "").bytes())
	var listed []string
	for {
		a := c.call(fxpReaddir, d)
		if a.kind == fxpStatus {
			break
		}
		for range a.uint32() {
			listed = append(listed, a.text())
			a.bytes()
			a.attrs()
		}
	}
	want := append([]string{".", ".."}, oddNames...)
	slices.Sort(want)
	slices.Sort(listed)
	equal(t, "names", strings.Join(listed, "\x00"), strings.Join(want, "\x00"))
	for _, name := range oddNames {
		h := c.open(name, openRead)
		equal(t, "content", c.read(h, 0, 100), name)
		c.close(h)
		equal(t, "remove", c.code(fxpRemove, name), fine)
	}
	equal(t, "remove a folder", c.code(fxpRemove, c.home), failed)
}

func TestSFTP08Beyond4GiB(t *testing.T) {
	const gib = uint64(1) << 30
	c := dial(t)
	h := c.open("big", openRead|openWrite|openCreate)
	c.write(h, 5*gib, "END")
	equal(t, "size", c.stat(fxpStat, "big").size, 5368709123)
	equal(t, "read", c.read(h, 5*gib, 10), "END")
	equal(t, "zeros", c.read(h, 4*gib-2, 4), "\x00\x00\x00\x00")
	var st unix.Stat_t
	if err := unix.Stat(c.path("big"), &st); err != nil {
		t.Fatal(err)
	}
	if st.Blocks > 64 {
		t.Errorf("%d blocks: not sparse", st.Blocks)
	}
	equal(t, "truncate", c.code(fxpFsetstat, h, sizeAttrs(4*gib+1)), fine)
	equal(t, "size", c.stat(fxpStat, "big").size, 4294967297)
}

func TestSFTP08Extensions(t *testing.T) {
	c := dialWith(t, Options{
		Home: t.TempDir(),
		LookupHome: func(user string) (string, bool) {
			return "/home/" + user, user == "bob"
		},
		UserName:  func(id string) string { return map[string]string{"0": "root", "7": "seven"}[id] },
		GroupName: func(id string) string { return map[string]string{"7": "wheel"}[id] },
	})
	equal(t, "offers", len(c.offers), len(extensions))
	equal(t, "statvfs", c.offers["statvfs@openssh.com"], "2")

	equal(t, "unknown", c.code(fxpExtended, "foo@bar.com", "x"), unsupported)
	equal(t, "unknown type", c.code(99, "x"), unsupported)
	equal(t, "malformed", c.code(fxpStat, be32(4)), badMessage)
	equal(t, "malformed write", c.code(fxpWrite, "1", uint64(0), be32(99)), badMessage)
	equal(t, "next stat", c.stat(fxpStat, ".").mode&unix.S_IFMT, unix.S_IFDIR)

	a := c.expect(fxpExtendedReply, fxpExtended, "limits@openssh.com")
	equal(t, "packet", a.uint64(), maxPacket)
	equal(t, "read", a.uint64(), maxData)
	equal(t, "write", a.uint64(), maxData)
	equal(t, "handles", a.uint64(), maxHandles)

	write(t, c.path("h1"), "x")
	equal(t, "hardlink", c.code(fxpExtended, "hardlink@openssh.com", "h1", "h2"), fine)
	fi1, _ := os.Stat(c.path("h1"))
	fi2, _ := os.Stat(c.path("h2"))
	equal(t, "same file", os.SameFile(fi1, fi2), true)

	var st unix.Statfs_t
	if err := unix.Statfs(c.home, &st); err != nil {
		t.Fatal(err)
	}
	h := c.open("h1", openRead)
	for _, a := range []*answer{
		c.expect(fxpExtendedReply, fxpExtended, "statvfs@openssh.com", "."),
		c.expect(fxpExtendedReply, fxpExtended, "fstatvfs@openssh.com", h),
	} {
		equal(t, "bsize", a.uint64(), uint64(st.Bsize))
		a.uint64()
		equal(t, "blocks", a.uint64(), st.Blocks)
		a.take(7 * 8)
		equal(t, "namemax", a.uint64(), uint64(st.Namelen))
		equal(t, "rest", len(a.rest), 0)
	}

	const expand = "expand-path@openssh.com"
	equal(t, "~", c.name(fxpExtended, expand, "~"), c.home)
	equal(t, "~/x", c.name(fxpExtended, expand, "~/x"), c.home+"/x")
	equal(t, "relative", c.name(fxpExtended, expand, "x"), c.home+"/x")
	equal(t, "absolute", c.name(fxpExtended, expand, "/"), "/")
	equal(t, "~nobody", c.code(fxpExtended, expand, "~nobody"), noSuchFile)
	equal(t, "home-directory", c.name(fxpExtended, "home-directory", ""), c.home)
	equal(t, "home-directory bob", c.name(fxpExtended, "home-directory", "bob"), "/home/bob")
	equal(t, "home-directory nobody", c.code(fxpExtended, "home-directory", "nobody"), noSuchFile)

	ids := func(ids ...uint32) string {
		b, _ := binary.Append(nil, binary.BigEndian, ids)
		return string(b)
	}
	a = c.expect(fxpExtendedReply, fxpExtended, "users-groups-by-id@openssh.com", ids(0, 7, 9), ids(7))
	users, groups := packet{rest: a.bytes()}, packet{rest: a.bytes()}
	equal(t, "root", users.text(), "root")
	equal(t, "seven", users.text(), "seven")
	equal(t, "unknown", users.text(), "")
	equal(t, "wheel", groups.text(), "wheel")
	many := strings.Repeat(ids(7), 50_000)
	equal(t, "too many", c.code(fxpExtended, "users-groups-by-id@openssh.com", many, ""), failed)
}

func TestCopyData(t *testing.T) {
	c := dial(t)
	content := strings.Repeat("0123456789", 100_000)
	write(t, c.path("a"), content)
	write(t, c.path("log"), "log:")
	from := c.open("a", openRead|openWrite)
	to := c.open("b", openWrite|openCreate)
	logs := c.open("log", openWrite|openAppend)
	copyData := func(from string, fromAt, length uint64, to string, toAt uint64) uint32 {
		return c.code(fxpExtended, "copy-data", from, fromAt, length, to, toAt)
	}
	equal(t, "to the end", copyData(from, 0, 0, to, 0), fine)
	equal(t, "same", read(t, c.path("b")) == content, true)
	equal(t, "a part", copyData(from, 3, 4, to, 1), fine)
	equal(t, "b", read(t, c.path("b"))[:8], "03456567")
	equal(t, "append", copyData(from, 1, 3, logs, 0), fine)
	equal(t, "log", read(t, c.path("log")), "log:123")
	equal(t, "overlap", copyData(from, 0, 10, from, 5), failed)
	equal(t, "onto itself", copyData(from, 0, 0, from, 20), failed)
	equal(t, "apart", copyData(from, 0, 3, from, 5), fine)
	equal(t, "a", read(t, c.path("a"))[:10], "0123401289")
	equal(t, "no handle", copyData("x", 0, 0, to, 0), failed)
	equal(t, "too far", copyData(from, math.MaxUint64, 0, to, 0), badMessage)
	equal(t, "past the end", copyData(from, 5_000_000, 0, to, 0), fine)
	endless := c.open("/dev/zero", openRead)
	equal(t, "endless", copyData(endless, 0, 0, to, 0), failed)
	status := c.open("/proc/self/status", openRead)
	made := c.open("status", openWrite|openCreate)
	equal(t, "proc", copyData(status, 0, 0, made, 0), fine)
	equal(t, "proc copied", strings.HasPrefix(read(t, c.path("status")), "Name:"), true)
}

func TestTooManyHandles(t *testing.T) {
	c := dial(t)
	write(t, c.path("f"), "x")
	var last string
	for range maxHandles {
		last = c.open("f", openRead)
	}
	code, text := c.status(fxpOpen, "f", openRead, noAttrs)
	equal(t, "code", code, failed)
	equal(t, "reason", text, "Too many open files")
	equal(t, "folder", c.code(fxpOpendir, "."), failed)
	c.close(last)
	c.open("f", openRead)
}

func TestBrokenProtocol(t *testing.T) {
	init := []byte{0, 0, 0, 5, fxpInit, 0, 0, 0, 3}
	for name, sent := range map[string][]byte{
		"too long":         append(slices.Clone(init), 0, 4, 0, 1, fxpStat),
		"empty":            append(slices.Clone(init), 0, 0, 0, 0, 0),
		"cut off":          append(slices.Clone(init), 0, 0, 0, 9, fxpStat, 0),
		"cut in a length":  append(slices.Clone(init), 0, 0),
		"no id":            append(slices.Clone(init), 0, 0, 0, 1, fxpStat),
		"no greeting":      {0, 0, 0, 5, fxpStat, 0, 0, 0, 1},
		"greeting cut off": {0, 0, 0, 5, fxpInit},
	} {
		t.Run(name, func(t *testing.T) {
			c, done := connect(t, Options{Home: t.TempDir()})
			c.w.Write(sent)
			c.w.Close()
			if err := <-done; err == nil {
				t.Error("no error")
			}
		})
	}
}

// The client's end comes with a WRITE half sent, and the file is closed.
func TestClientGoneInTheMiddle(t *testing.T) {
	c, done := connect(t, Options{Home: t.TempDir()})
	c.sendRaw(fxpInit, be32(version))
	c.recv()
	h := c.open("f", openWrite|openCreate)
	c.write(h, 0, "whole")
	var r reply
	r.begin(fxpWrite, 9)
	r.text(h)
	r.uint64(5)
	r.text(strings.Repeat("x", 100_000))
	c.w.Write(r.packet()[:50_000])
	c.w.Close()
	if err := <-done; err != io.ErrUnexpectedEOF {
		t.Errorf("error %v", err)
	}
	equal(t, "content", read(t, c.path("f")), "whole")
}

func TestLongName(t *testing.T) {
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	for _, test := range []struct {
		at   time.Time
		want string
	}{
		{now.Add(-time.Hour), "Mar  4 04:06"},
		{now.AddDate(0, -7, 0), "Aug  4  2025"},
		{now.Add(time.Hour), "Mar  4  2026"},
	} {
		equal(t, "date", dateText(test.at, now), test.want)
	}
	for mode, want := range map[uint32]string{
		unix.S_IFREG | 0o4755: "-rwsr-xr-x",
		unix.S_IFREG | 0o6644: "-rwSr-Sr--",
		unix.S_IFDIR | 0o1777: "drwxrwxrwt",
		unix.S_IFDIR | 0o1776: "drwxrwxrwT",
		unix.S_IFLNK | 0o777:  "lrwxrwxrwx",
		0o600:                 "?rw-------",
	} {
		equal(t, "mode", modeText(mode), want)
	}
}
