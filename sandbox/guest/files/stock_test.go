package files

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandgate/sandbox/testneed"
)

// A stock is OpenSSH's clients in the folder here, and our servers in there.
type stock struct {
	t           *testing.T
	here, there string
	sftpServer  string
	scpShell    string // takes ssh's arguments
}

func newStock(t *testing.T) *stock {
	t.Helper()
	testneed.Programs(t, "sftp", "scp")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := &stock{t: t, here: t.TempDir(), there: t.TempDir()}
	// A program with the race detector sleeps at its end unless told not to.
	t.Setenv("GORACE", "atexit_sleep_ms=0")
	s.sftpServer = script(t, fmt.Sprintf("cd '%s' && %s=sftp exec '%s'\n", s.there, serveEnv, self))
	// The command is ssh's last argument. Its wildcards are left to the program.
	s.scpShell = script(t, fmt.Sprintf(`for last; do :; done
cd '%s' && set -f && case $last in
scp\ *) eval "set -- $last" && shift && %s=scp exec '%s' "$@" ;;
*) exec '%s' ;;
esac
`, s.there, serveEnv, self, s.sftpServer))
	return s
}

// sftp runs commands, and returns what was printed. code is the client's.
func (s *stock) sftp(commands string) (stdout, stderr string, code int) {
	s.t.Helper()
	return run(s.t, s.here, commands, "sftp", "-q", "-b", "-", "-D", s.sftpServer)
}

// do runs commands that must work.
func (s *stock) do(commands string) string {
	s.t.Helper()
	out, errs, code := s.sftp(commands)
	if code != 0 || errs != "" {
		s.t.Fatalf("sftp: exit %d\n%s%s", code, out, errs)
	}
	return out
}

// scp runs the stock client. "box:" in args is the other side.
func (s *stock) scp(args ...string) (stderr string, code int) {
	s.t.Helper()
	_, errs, code := run(s.t, s.here, "", slices.Concat([]string{"scp", "-q", "-S", s.scpShell}, args)...)
	return errs, code
}

func (s *stock) copy(args ...string) {
	s.t.Helper()
	if errs, code := s.scp(args...); code != 0 || errs != "" {
		s.t.Fatalf("scp %q: exit %d\n%s", args, code, errs)
	}
}

func (s *stock) local(name string) string  { return filepath.Join(s.here, name) }
func (s *stock) remote(name string) string { return filepath.Join(s.there, name) }

func random(n int) string {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n)}).Read(b)
	return string(b)
}

func same(t *testing.T, a, b string) {
	t.Helper()
	if read(t, a) != read(t, b) {
		t.Errorf("%s and %s differ", a, b)
	}
}

func TestStockSFTP(t *testing.T) {
	s := newStock(t)
	write(t, s.local("f"), random(20<<20))
	write(t, s.local("empty"), "")
	when := time.Unix(981173106, 0)
	os.Chmod(s.local("f"), 0o751)
	os.Chtimes(s.local("f"), when, when)

	s.do("put -p f\nput empty\nget -p f back\n")
	same(t, s.local("f"), s.remote("f"))
	same(t, s.local("f"), s.local("back"))
	for _, path := range []string{s.remote("f"), s.local("back")} {
		fi, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "mode", fi.Mode(), 0o751)
		equal(t, "mtime", fi.ModTime().Unix(), 981173106)
	}

	os.Truncate(s.remote("f"), 7<<20)
	s.do("reput f\n")
	same(t, s.local("f"), s.remote("f"))
	os.Truncate(s.local("back"), 9<<20)
	s.do("reget f back\n")
	same(t, s.local("f"), s.local("back"))

	s.do("put -f f synced\ncp f copied\nchmod 600 copied\nln f hard\nmkdir d\nrename copied d/moved\nrm synced\n")
	same(t, s.local("f"), s.remote("d/moved"))
	fi, _ := os.Stat(s.remote("d/moved"))
	equal(t, "mode", fi.Mode(), 0o600)
	var st unix.Stat_t
	unix.Stat(s.remote("hard"), &st)
	equal(t, "links", st.Nlink, 2)
	if out := s.do("df -h .\npwd\n"); !strings.Contains(out, "%") || !strings.Contains(out, s.there) {
		t.Errorf("df and pwd: %q", out)
	}
}

func TestSFTP01StockRenameOverwrites(t *testing.T) {
	s := newStock(t)
	write(t, s.remote("h1"), "1")
	write(t, s.remote("h2"), "2")
	s.do("rename h1 h2\n")
	equal(t, "h2", read(t, s.remote("h2")), "1")
}

func TestSFTP02StockSymlinks(t *testing.T) {
	s := newStock(t)
	out := s.do("ln -s ../rel/./target lnk\nsymlink /abs/t lnk2\nls -l lnk\n")
	text, _ := os.Readlink(s.remote("lnk"))
	equal(t, "lnk", text, "../rel/./target")
	text, _ = os.Readlink(s.remote("lnk2"))
	equal(t, "lnk2", text, "/abs/t")
	if !strings.Contains(out, "lrwxrwxrwx") {
		t.Errorf("ls: %q", out)
	}
}

func TestSFTP04StockExitCodes(t *testing.T) {
	s := newStock(t)
	write(t, s.local("f"), "x")
	s.do("put f\n")
	_, errs, code := s.sftp("rm nope\n")
	equal(t, "exit", code, 1)
	if !strings.Contains(errs, "remote delete "+s.there+"/nope: No such file or directory") {
		t.Errorf("stderr: %q", errs)
	}
	for _, dialect := range []string{"-s", "-O"} {
		errs, code := s.scp(dialect, "f", "box:/nowhere/at/all/zz")
		equal(t, "exit", code, 1)
		if !strings.Contains(errs, "No such file or directory") {
			t.Errorf("scp %s: %q", dialect, errs)
		}
		errs, code = s.scp(dialect, "box:nope", "g")
		equal(t, "exit", code, 1)
		if !strings.Contains(errs, "No such file or directory") {
			t.Errorf("scp %s: %q", dialect, errs)
		}
	}
}

func TestSFTP05StockListsManyEntries(t *testing.T) {
	s := newStock(t)
	os.Mkdir(s.remote("many"), 0o755)
	for i := range 15000 {
		write(t, s.remote(fmt.Sprintf("many/f%010d-padding-padding-padding-padding-padding", i)), "")
	}
	lines := strings.Fields(s.do("ls -1 many\n"))
	slices.Sort(lines)
	equal(t, "names", len(slices.Compact(lines)), 15000+len(strings.Fields("sftp> ls -1 many")))
	if out := s.do("ls -ln many/f0000000007*\n"); !strings.Contains(out, fmt.Sprint(os.Getuid())) {
		t.Errorf("ls -ln: %q", out)
	}
}

// tree makes the tree of TOOL-01 in dir.
func tree(t *testing.T, dir string) {
	t.Helper()
	for _, d := range []string{"empty", "sub/deep"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(dir, "a"), "content of a")
	write(t, filepath.Join(dir, "sp ace"), "")
	write(t, filepath.Join(dir, "b'q"), "quote")
	write(t, filepath.Join(dir, "sub/deep/bin"), random(70_000))
	os.Chmod(filepath.Join(dir, "sub/deep/bin"), 0o751)
	os.Symlink("a", filepath.Join(dir, "lnk"))
	when := time.Unix(981173106, 0)
	os.Chtimes(filepath.Join(dir, "a"), when, when)
	os.Chtimes(filepath.Join(dir, "sub/deep"), when, when)
}

// describe lists a tree: names, kinds and content, and with times modes and times.
func describe(t *testing.T, dir string, follow, times bool) string {
	t.Helper()
	var out bytes.Buffer
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		stat := os.Lstat
		if follow {
			stat = os.Stat
		}
		fi, err := stat(path)
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		fmt.Fprintf(&out, "%q %v", rel, fi.Mode().Type())
		if times {
			fmt.Fprintf(&out, " %v %d", fi.Mode().Perm(), fi.ModTime().Unix())
		}
		if fi.Mode().IsRegular() {
			fmt.Fprintf(&out, " %x", read(t, path))
		}
		fmt.Fprintln(&out)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestTOOL01BothDialects(t *testing.T) {
	for name, dialect := range map[string]string{"sftp": "-s", "scp": "-O"} {
		t.Run(name, func(t *testing.T) {
			s := newStock(t)
			src := s.local("src")
			tree(t, src)
			want := describe(t, src, true, true) // links are followed

			s.copy(dialect, "-r", "-p", "src", "box:one")
			equal(t, "out", describe(t, s.remote("one"), false, true), want)
			s.copy(dialect, "-r", "-p", "box:one", "back")
			equal(t, "back", describe(t, s.local("back"), false, true), want)

			os.Mkdir(s.remote("ex"), 0o755)
			s.copy(dialect, "-r", "src", "box:ex")
			equal(t, "into", describe(t, s.remote("ex/src"), false, false), describe(t, src, true, false))

			os.Mkdir(s.remote("g"), 0o755)
			for _, f := range []string{"x1", "x2", ".x3", "y"} {
				write(t, s.remote("g/"+f), f)
			}
			os.Mkdir(s.local("dst"), 0o755)
			s.copy(dialect, "box:g/x*", "dst/")
			got, _ := filepath.Glob(s.local("dst/*"))
			equal(t, "globbed", fmt.Sprint(got), fmt.Sprint([]string{s.local("dst/x1"), s.local("dst/x2")}))

			write(t, s.local("0"), "")
			write(t, s.remote("0"), "was longer")
			s.copy(dialect, "0", "box:0")
			equal(t, "0 bytes", read(t, s.remote("0")), "")
			s.copy(dialect, "box:0", "0back")
			equal(t, "0 bytes back", read(t, s.local("0back")), "")

			write(t, s.local("big"), random(5<<20+1))
			s.copy(dialect, "big", "box:")
			same(t, s.local("big"), s.remote("big"))
			s.copy(dialect, "box:big", "bigback")
			same(t, s.local("big"), s.local("bigback"))

			// One bad file does not stop the others.
			_, code := s.scp(dialect, "box:g/y", "box:nope", "box:g/x1", "dst/")
			equal(t, "exit", code, 1)
			equal(t, "before", read(t, s.local("dst/y")), "y")
			equal(t, "after", read(t, s.local("dst/x1")), "x1")
			errs, code := s.scp(dialect, "box:g", "dst/")
			equal(t, "exit", code, 1)
			if !strings.Contains(errs, "not a regular file") {
				t.Errorf("a folder without -r: %q", errs)
			}
		})
	}
}

// A folder that is read-only once it is there can still be filled.
func TestSCPReadOnlyFolder(t *testing.T) {
	s := newStock(t)
	os.Mkdir(s.local("ro"), 0o755)
	write(t, s.local("ro/f"), "x")
	os.Chmod(s.local("ro/f"), 0o400)
	os.Chmod(s.local("ro"), 0o500)
	for _, dir := range []string{s.local("ro"), s.remote("a"), s.remote("b")} {
		t.Cleanup(func() { os.Chmod(dir, 0o700) })
	}
	s.copy("-O", "-r", "ro", "box:a")
	s.copy("-O", "-r", "-p", "ro", "box:b")
	for _, path := range []string{"a", "b"} {
		fi, _ := os.Stat(s.remote(path))
		equal(t, "folder", fi.Mode().Perm(), 0o500)
		fi, _ = os.Stat(s.remote(path + "/f"))
		equal(t, "file", fi.Mode().Perm(), 0o400)
	}
}
