package drivertest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pkg/sftp"
)

// Files through SFTP, in the sandbox's own view. What the server answers packet by
// packet is tested where it is written; here it is what a driver's file system may
// change.
var filesCases = cases{
	"Home":             check(filesHome),
	"PutGet":           onFolder(filesPutGet),
	"Large":            onFolder(filesLarge),
	"SFTP-01":          onFolder(filesRename),
	"SFTP-02":          onFolder(filesSymlink),
	"SFTP-03/Append":   onFolder(filesAppend),
	"SFTP-03/Patch":    onFolder(filesPatch),
	"SFTP-03/Excl":     onFolder(filesExclusive),
	"SFTP-03/Truncate": onFolder(filesTruncate),
	"SFTP-05":          onFolder(filesMany),
	"SFTP-06/Mode":     onFolder(filesMode),
	"SFTP-06/Times":    onFolder(filesTimes),
	"SFTP-06/Owner":    onFolder(filesOwner),
	"SFTP-07":          onFolder(filesNames),
	"SFTP-08/Beyond":   onFolder(filesBeyond),
	"SFTP-08/Link":     onFolder(filesLink),
	"SFTP-08/Statvfs":  onFolder(filesStatvfs),
	"Folders":          onFolder(filesFolders),
	"Missing":          onFolder(filesMissing),
	"Special":          onFolder(filesSpecial),
	"SeenByCommands":   onFolder(filesSeen),
	"OpenWhileRemoved": onFolder(filesRemoved),
	"AtOnce":           onFolder(filesAtOnce),
}

// onFolder is a testCase that has an SFTP client and a folder.
type onFolder func(s *seat, c *sftp.Client, dir string)

func (o onFolder) run(s *seat) { o(s, s.sftp(""), s.folder()) }

// sftp returns a client of the sandbox's file server.
func (s *seat) sftp(user string) *sftp.Client {
	s.Helper()
	stream, err := s.client.SFTP(user, false)
	if err != nil {
		s.Fatal(err)
	}
	stuck := time.AfterFunc(patience, func() { stream.Close() })
	c, err := sftp.NewClientPipe(stream, stream)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		stuck.Stop()
		c.Close()
		stream.Close()
	})
	return c
}

// put writes a file.
func put(s *seat, c *sftp.Client, name string, data []byte) {
	s.Helper()
	f, err := c.Create(name)
	if err == nil {
		_, err = f.ReadFrom(bytes.NewReader(data))
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		s.Fatal(err)
	}
}

// get reads a file.
func get(s *seat, c *sftp.Client, name string) string {
	s.Helper()
	f, err := c.Open(name)
	if err != nil {
		s.Fatal(err)
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	if err != nil {
		s.Fatal(err)
	}
	return string(data)
}

// must fails the case for an error.
func must(s *seat, err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func filesHome(s *seat) {
	dir, err := s.sftp("").Getwd()
	must(s, err)
	if home := s.sh("cd && pwd -P | tr -d '\\n'"); dir != home {
		s.Errorf("the client starts in %q, the home is %q", dir, home)
	}
}

func filesPutGet(s *seat, c *sftp.Client, dir string) {
	for _, data := range []string{"", "x", allBytes} {
		put(s, c, dir+"/f", []byte(data))
		if got := get(s, c, dir+"/f"); got != data {
			s.Errorf("%q came back as %q", data, got)
		}
	}
}

func filesLarge(s *seat, c *sftp.Client, dir string) {
	data := noise(8<<20 + 1)
	put(s, c, dir+"/f", data)
	s.want(sum(data), "sha256sum "+dir+"/f | cut -c1-64 | tr -d '\\n'")
	if get(s, c, dir+"/f") != string(data) {
		s.Error("the file came back changed")
	}
}

func filesRename(s *seat, c *sftp.Client, dir string) {
	put(s, c, dir+"/a", []byte("A"))
	put(s, c, dir+"/b", []byte("B"))
	if err := c.Rename(dir+"/a", dir+"/b"); err == nil {
		s.Error("rename replaced a file")
	}
	if a, b := get(s, c, dir+"/a"), get(s, c, dir+"/b"); a != "A" || b != "B" {
		s.Errorf("then they are %q and %q", a, b)
	}
	must(s, c.PosixRename(dir+"/a", dir+"/b"))
	if b := get(s, c, dir+"/b"); b != "A" {
		s.Errorf("after posix-rename it is %q", b)
	}
	must(s, c.Mkdir(dir+"/d"))
	if err := c.PosixRename(dir+"/b", dir+"/d"); err == nil {
		s.Error("a file replaced a folder")
	}
}

func filesSymlink(s *seat, c *sftp.Client, dir string) {
	for _, target := range []string{"../rel/./target", "/abs/t", "x y"} {
		must(s, c.Symlink(target, dir+"/link"))
		got, err := c.ReadLink(dir + "/link")
		if err != nil || got != target {
			s.Errorf("%q reads %q, %v", target, got, err)
		}
		s.want(target+"\n", "readlink "+dir+"/link")
		if _, err := c.Lstat(dir + "/link"); err != nil {
			s.Error(err)
		}
		if _, err := c.Stat(dir + "/link"); !errors.Is(err, fs.ErrNotExist) {
			s.Errorf("stat of a dangling link: %v", err)
		}
		must(s, c.Remove(dir+"/link"))
	}
}

// write opens a file with flags and writes at an offset.
func write(s *seat, c *sftp.Client, name string, flags int, data string, at int64) error {
	s.Helper()
	f, err := c.OpenFile(name, flags)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(data), at)
	return errors.Join(err, f.Close())
}

func filesAppend(s *seat, c *sftp.Client, dir string) {
	put(s, c, dir+"/f", []byte("0123456789"))
	must(s, write(s, c, dir+"/f", os.O_WRONLY|os.O_APPEND, "XY", 0))
	s.want("0123456789XY", "cat "+dir+"/f")
}

func filesPatch(s *seat, c *sftp.Client, dir string) {
	put(s, c, dir+"/f", []byte("0123456789"))
	must(s, write(s, c, dir+"/f", os.O_WRONLY|os.O_CREATE, "zz", 2))
	s.want("01zz456789", "cat "+dir+"/f")
}

func filesExclusive(s *seat, c *sftp.Client, dir string) {
	must(s, write(s, c, dir+"/f", os.O_WRONLY|os.O_CREATE|os.O_EXCL, "a", 0))
	if err := write(s, c, dir+"/f", os.O_WRONLY|os.O_CREATE|os.O_EXCL, "b", 0); err == nil {
		s.Error("a file was made twice")
	}
	s.want("a", "cat "+dir+"/f")
}

func filesTruncate(s *seat, c *sftp.Client, dir string) {
	put(s, c, dir+"/f", []byte("0123456789"))
	must(s, c.Truncate(dir+"/f", 3))
	s.want("012", "cat "+dir+"/f")
	must(s, c.Truncate(dir+"/f", 5))
	s.want("012\x00\x00", "cat "+dir+"/f")
	put(s, c, dir+"/f", nil)
	s.want("", "cat "+dir+"/f")
}

func filesMany(s *seat, c *sftp.Client, dir string) {
	const n = 3000
	s.sh(fmt.Sprintf("cd %s && seq -f 'f%%010g-padding-padding-padding-padding-padding' 1 %d | xargs touch", dir, n))
	for range 2 {
		list, err := c.ReadDir(dir)
		must(s, err)
		names := make(map[string]bool)
		for _, fi := range list {
			names[fi.Name()] = true
		}
		if len(list) != n || len(names) != n {
			s.Errorf("%d entries, %d names of %d", len(list), len(names), n)
		}
	}
}

func filesMode(s *seat, c *sftp.Client, dir string) {
	put(s, c, dir+"/f", nil)
	s.want("644\n", "stat -c %a "+dir+"/f")
	must(s, c.Chmod(dir+"/f", 0o751))
	s.want("751\n", "stat -c %a "+dir+"/f")
	must(s, c.Chmod(dir+"/f", 0o4751))
	fi, err := c.Stat(dir + "/f")
	if err != nil || fi.Mode()&fs.ModeSetuid == 0 {
		s.Errorf("the mode is %v, %v", fi, err)
	}
}

func filesTimes(s *seat, c *sftp.Client, dir string) {
	put(s, c, dir+"/f", nil)
	for _, at := range []int64{981173106, 2, 4294967295} {
		must(s, c.Chtimes(dir+"/f", time.Unix(at, 0), time.Unix(at, 0)))
		s.want(fmt.Sprintf("%d\n", at), "stat -c %Y "+dir+"/f")
	}
}

func filesOwner(s *seat, c *sftp.Client, dir string) {
	put(s, c, dir+"/f", nil)
	must(s, c.Chown(dir+"/f", 4321, 4322))
	s.want("4321:4322\n", "stat -c %u:%g "+dir+"/f")
	if err := s.sftp("4321").Chown(dir+"/f", 0, 0); !errors.Is(err, fs.ErrPermission) {
		s.Errorf("a user gave a file to root: %v", err)
	}
	s.want("4321:4322\n", "stat -c %u:%g "+dir+"/f")
}

func filesNames(s *seat, c *sftp.Client, dir string) {
	names := []string{"sp ace", "-dash", "new\nline", "\xff\xfe", "quote'\"`$", "*star?[x]", "tab\t", "é", "e\u0301", " lead trail ", `back\slash`, "...", strings.Repeat("n", 255)}
	for _, name := range names {
		put(s, c, dir+"/"+name, []byte(name))
	}
	list, err := c.ReadDir(dir)
	must(s, err)
	var got []string
	for _, fi := range list {
		got = append(got, fi.Name())
		if content := get(s, c, dir+"/"+fi.Name()); content != fi.Name() {
			s.Errorf("%q holds %q", fi.Name(), content)
		}
	}
	slices.Sort(names)
	slices.Sort(got)
	if !slices.Equal(got, names) {
		s.Errorf("listed are %q", got)
	}
	for _, name := range names {
		must(s, c.Remove(dir+"/"+name))
	}
	s.want("", "ls -A "+dir)
}

func filesBeyond(s *seat, c *sftp.Client, dir string) {
	must(s, write(s, c, dir+"/f", os.O_WRONLY|os.O_CREATE, "END", 5<<30))
	s.want("5368709123\n", "stat -c %s "+dir+"/f")
	f, err := c.Open(dir + "/f")
	must(s, err)
	defer f.Close()
	b := make([]byte, 3)
	if _, err := f.ReadAt(b, 5<<30); string(b) != "END" {
		s.Errorf("read %q, %v", b, err)
	}
	must(s, c.Truncate(dir+"/f", 4<<30+1))
	s.want("4294967297\n", "stat -c %s "+dir+"/f")
}

func filesLink(s *seat, c *sftp.Client, dir string) {
	put(s, c, dir+"/a", []byte("x"))
	must(s, c.Link(dir+"/a", dir+"/b"))
	s.want("2\n", "stat -c %h "+dir+"/b")
	must(s, c.Remove(dir+"/a"))
	s.want("x", "cat "+dir+"/b")
}

func filesStatvfs(s *seat, c *sftp.Client, dir string) {
	v, err := c.StatVFS(dir)
	must(s, err)
	if v.TotalSpace() == 0 || v.FreeSpace() > v.TotalSpace() {
		s.Errorf("%d bytes free of %d", v.FreeSpace(), v.TotalSpace())
	}
}

func filesFolders(s *seat, c *sftp.Client, dir string) {
	must(s, c.MkdirAll(dir+"/a/b/c"))
	if err := c.RemoveDirectory(dir + "/a"); err == nil {
		s.Error("a folder that is not empty was removed")
	}
	if err := c.Mkdir(dir + "/a"); err == nil {
		s.Error("a folder was made twice")
	}
	must(s, c.RemoveDirectory(dir+"/a/b/c"))
	s.want("b\n", "ls -A "+dir+"/a")
	if real, err := c.RealPath(dir + "/a/../a/./b"); err != nil || real != path.Join(dir, "a/b") {
		s.Errorf("the real path is %q, %v", real, err)
	}
}

func filesMissing(s *seat, c *sftp.Client, dir string) {
	for what, call := range map[string]func(string) error{
		"open":   func(p string) error { _, err := c.Open(p); return err },
		"stat":   func(p string) error { _, err := c.Stat(p); return err },
		"list":   func(p string) error { _, err := c.ReadDir(p); return err },
		"remove": c.Remove,
	} {
		if err := call(dir + "/missing"); !errors.Is(err, fs.ErrNotExist) {
			s.Errorf("%s: %v", what, err)
		}
	}
}

// Nobody waits for a named pipe or gets /dev/zero for ever.
func filesSpecial(s *seat, c *sftp.Client, dir string) {
	s.sh("mkfifo " + dir + "/pipe")
	if fi, err := c.Stat(dir + "/pipe"); err != nil || fi.Mode()&fs.ModeNamedPipe == 0 {
		s.Errorf("the pipe is %v, %v", fi, err)
	}
	if fi, err := c.Stat("/dev/null"); err != nil || fi.Mode()&fs.ModeCharDevice == 0 {
		s.Errorf("/dev/null is %v, %v", fi, err)
	}
	f, err := c.Open("/proc/self/status")
	must(s, err)
	defer f.Close()
	b := make([]byte, 5)
	if _, err := f.ReadAt(b, 0); string(b) != "Name:" {
		s.Errorf("read %q, %v", b, err)
	}
}

// Files and commands see the same, at once.
func filesSeen(s *seat, c *sftp.Client, dir string) {
	for i := range 20 {
		want := fmt.Sprintln(i)
		put(s, c, dir+"/f", []byte(want))
		s.want(want, "cat "+dir+"/f")
		s.sh("echo back " + want[:len(want)-1] + " >" + dir + "/f")
		if got := get(s, c, dir+"/f"); got != "back "+want {
			s.Fatalf("read %q", got)
		}
	}
}

func filesRemoved(s *seat, c *sftp.Client, dir string) {
	put(s, c, dir+"/f", []byte("still"))
	f, err := c.Open(dir + "/f")
	must(s, err)
	defer f.Close()
	s.sh("rm " + dir + "/f")
	if data, err := io.ReadAll(f); string(data) != "still" {
		s.Errorf("read %q, %v", data, err)
	}
}

func filesAtOnce(s *seat, _ *sftp.Client, dir string) {
	var wg sync.WaitGroup
	for i := range 5 {
		c := s.sftp("")
		wg.Go(func() {
			name := fmt.Sprintf("%s/%d", dir, i)
			data := bytes.Repeat([]byte{byte('a' + i)}, 1<<20)
			put(s, c, name, data)
			if get(s, c, name) != string(data) {
				s.Errorf("file %d came back changed", i)
			}
		})
	}
	wg.Wait()
}
