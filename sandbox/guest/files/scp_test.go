package files

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// speak runs SCP against a client that says all at once, and returns what it
// was told.
func speak(said string, args ...string) (told string, code int) {
	var out, errs bytes.Buffer
	code = SCP(args, strings.NewReader(said), &out, &errs)
	return out.String() + errs.String(), code
}

func TestSCPSink(t *testing.T) {
	for name, test := range map[string]struct {
		args  string
		said  string
		told  string // DIR stands for the target
		code  int
		files map[string]string
	}{
		"file":              {"-t", "C0644 2 f\nhi\x00", "\x00\x00\x00", 0, map[string]string{"f": "hi"}},
		"flags apart":       {"-v -q -p -t --", "C0644 2 f\nhi\x00", "\x00\x00\x00", 0, map[string]string{"f": "hi"}},
		"nothing":           {"-t", "", "\x00", 0, nil},
		"folder":            {"-rt", "D0755 0 d\nC0600 1 f\nx\x00E\n", "\x00\x00\x00\x00\x00", 0, map[string]string{"d/f": "x"}},
		"times":             {"-pt", "T5 0 6 0\nC0600 1 f\nx\x00", "\x00\x00\x00\x00", 0, map[string]string{"f": "x"}},
		"client's warning":  {"-t", "\x01scp: x: No\nC0600 1 f\nx\x00", "\x00\x00\x00", 1, map[string]string{"f": "x"}},
		"client's bad file": {"-t", "C0600 1 f\nx\x01scp: f: No\nC0600 1 g\ny\x00", "\x00\x00\x00\x00\x00", 1, map[string]string{"f": "x", "g": "y"}},
		"client's end":      {"-t", "\x02gone\nC0600 1 f\nx\x00", "\x00\x01scp: client: gone\n", 1, nil},
		"slash":             {"-t", "C0600 1 ../f\nx\x00", "\x00\x01scp: protocol error: unexpected file name\n", 1, nil},
		"dots":              {"-rt", "D0755 0 ..\nC0600 1 f\nx\x00E\n", "\x00\x01scp: protocol error: unexpected file name\n", 1, nil},
		"no name":           {"-t", "C0600 1 \nx\x00", "\x00\x01scp: protocol error: unexpected file name\n", 1, nil},
		"huge":              {"-t", "C0600 9223372036854775808 f\nx\x00", "\x00\x01scp: protocol error: bad size\n", 1, nil},
		"negative":          {"-t", "C0600 -1 f\nx\x00", "\x00\x01scp: protocol error: bad size\n", 1, nil},
		"bad mode":          {"-t", "C06x0 1 f\nx\x00", "\x00\x01scp: protocol error: bad mode\n", 1, nil},
		"not a line":        {"-t", "hello\n", "\x00\x01scp: protocol error: bad line\n", 1, nil},
		"end of nothing":    {"-t", "E\n", "\x00\x01scp: protocol error: bad line\n", 1, nil},
		"unasked folder":    {"-t", "D0755 0 d\nE\n", "\x00\x01scp: received a directory without -r\n", 1, nil},
		"long line":         {"-t", "C0600 1 " + strings.Repeat("x", 9000) + "\n", "\x00\x01scp: protocol error: line too long\n", 1, nil},
		"longer line":       {"-t", "C0600 1 " + strings.Repeat("x", 900_000), "\x00\x01scp: protocol error: line too long\n", 1, nil},
		"cut off":           {"-t", "C0600 5 f\nx", "\x00\x00\x01scp: lost connection\n", 1, map[string]string{"f": "x"}},
		"cut in a folder":   {"-rt", "D0755 0 d\n", "\x00\x00\x01scp: lost connection\n", 1, nil},
		"name too long":     {"-t", "C0600 1 " + strings.Repeat("x", 300) + "\nC0600 1 g\ny\x00", "\x00\x01scp: DIR/" + strings.Repeat("x", 300) + ": File name too long\n\x00\x00", 1, map[string]string{"g": "y"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			told, code := speak(test.said, append(strings.Fields(test.args), dir)...)
			equal(t, "told", told, strings.ReplaceAll(test.told, "DIR", dir))
			equal(t, "exit", code, test.code)
			for name, content := range test.files {
				equal(t, name, read(t, filepath.Join(dir, name)), content)
			}
		})
	}
}

// A file that the disk does not take is read to its end, and the next is taken.
func TestSCPDiskFull(t *testing.T) {
	dir := t.TempDir()
	os.Symlink("/dev/full", filepath.Join(dir, "f"))
	said := fmt.Sprintf("C0600 300000 f\n%s\x00C0600 1 g\ny\x00", strings.Repeat("x", 300_000))
	told, code := speak(said, "-t", dir)
	equal(t, "told", told, "\x00\x00\x01scp: "+dir+"/f: No space left on device\n\x00\x00")
	equal(t, "exit", code, 1)
	equal(t, "g", read(t, dir+"/g"), "y")
}

func TestSCPTarget(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "old")
	write(t, file, "longer than before")
	told, code := speak("C0600 2 f\nhi\x00", "-t", file)
	equal(t, "told", told, "\x00\x00\x00")
	equal(t, "exit", code, 0)
	equal(t, "content", read(t, file), "hi")
	fi, _ := os.Stat(file)
	equal(t, "mode is kept", fi.Mode(), 0o644)

	told, code = speak("C0600 2 f\nhi\x00", "-d", "-t", file)
	equal(t, "told", told, "\x01scp: "+file+": Not a directory\n")
	equal(t, "exit", code, 1)

	told, _ = speak("D0755 0 d\nE\n", "-rt", file)
	equal(t, "told", told, "\x00\x01scp: "+file+": Not a directory\n\x01scp: protocol error: bad line\n")
}

func TestSCPSource(t *testing.T) {
	dir := t.TempDir()
	f := filepath.Join(dir, "f")
	write(t, f, "hi")
	os.Chmod(f, 0o640)
	write(t, filepath.Join(dir, "new\nline"), "")
	unix.Mkfifo(filepath.Join(dir, "fifo"), 0o644)

	yes := strings.Repeat("\x00", 9)
	for name, test := range map[string]struct {
		said string
		args []string
		told string
		code int
	}{
		"file":          {yes, []string{"-f", f}, "C0640 2 f\nhi\x00", 0},
		"times":         {yes, []string{"-pf", f}, "T5 0 6 0\nC0640 2 f\nhi\x00", 0},
		"refused":       {"\x00\x01no\n\x00\x00", []string{"-f", f, f}, "C0640 2 f\nC0640 2 f\nhi\x00", 1},
		"ended":         {"\x00\x02no\n", []string{"-f", f, f}, "C0640 2 f\n\x01scp: client: no\n", 1},
		"gone":          {"\x00", []string{"-f", f}, "C0640 2 f\n\x01scp: lost connection\n", 1},
		"missing":       {yes, []string{"-f", dir + "/no", f}, "\x01scp: " + dir + "/no: No such file or directory\nC0640 2 f\nhi\x00", 1},
		"no match":      {yes, []string{"-f", dir + "/no*"}, "\x01scp: " + dir + "/no*: No such file or directory\n", 1},
		"fifo":          {yes, []string{"-f", dir + "/fifo"}, "\x01scp: " + dir + "/fifo: not a regular file\n", 1},
		"new line":      {yes, []string{"-f", dir + "/new\nline"}, "C0644 0 new\\^Jline\n\x00", 0},
		"folder":        {yes, []string{"-f", dir}, "\x01scp: " + dir + ": not a regular file\n", 1},
		"no direction":  {"", []string{f}, "scp: one of -t and -f is needed\n" + scpUsage, 1},
		"no files":      {"", []string{"-f"}, "scp: no files\n" + scpUsage, 1},
		"two targets":   {"", []string{"-t", "a", "b"}, "scp: ambiguous target\n" + scpUsage, 1},
		"unknown":       {"", []string{"-tZ", "a"}, "scp: unknown option -- Z\n" + scpUsage, 1},
		"endless files": {yes, []string{"-f", "/dev/zero"}, "\x01scp: /dev/zero: not a regular file\n", 1},
	} {
		t.Run(name, func(t *testing.T) {
			// Being read has changed the first.
			unix.UtimesNanoAt(unix.AT_FDCWD, f, []unix.Timespec{{Sec: 6}, {Sec: 5}}, 0)
			told, code := speak(test.said, test.args...)
			equal(t, "told", told, test.told)
			equal(t, "exit", code, test.code)
		})
	}
}

// A file of /proc says that it is empty, and so is sent as that.
func TestSCPSourceOfProc(t *testing.T) {
	told, code := speak("\x00\x00\x00", "-f", "/proc/self/status")
	equal(t, "told", told, "C0444 0 status\n\x00")
	equal(t, "exit", code, 0)
}

// A file that has become shorter than announced still has its length, and an error.
func TestSCPSourceShrinks(t *testing.T) {
	f := filepath.Join(t.TempDir(), "f")
	write(t, f, "0123456789")
	answers := 0
	client := readerFunc(func(p []byte) (int, error) {
		if answers++; answers == 2 {
			os.Truncate(f, 4)
		}
		p[0] = 0
		return 1, nil
	})
	var out, errs bytes.Buffer
	code := SCP([]string{"-f", f}, client, &out, &errs)
	equal(t, "told", out.String(), "C0644 10 f\n0123\x00\x00\x00\x00\x00\x00\x01scp: "+f+": file became shorter\n")
	equal(t, "exit", code, 1)
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
