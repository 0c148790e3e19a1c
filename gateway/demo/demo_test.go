package demo

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sandgate/sandbox/testneed"
)

func TestReadPort(t *testing.T) {
	for said, want := range map[string]int{
		"sandgate v1\n\n  state       /s\n  listens on  127.0.0.1:40123\n\nmore": 40123,
		"sandgate v1\n":                  0,
		"  listens on  127.0.0.1:40123":  0, // may go on
		"  listens on  127.0.0.1:99x9\n": 0,
		"":                               0,
	} {
		got, err := readPort(bufio.NewReader(strings.NewReader(said)))
		if got != want || (err == nil) != (want > 0) {
			t.Errorf("readPort(%q) = %d, %v", said, got, err)
		}
	}
}

func TestCompare(t *testing.T) {
	things := func() string {
		dir := filepath.Join(t.TempDir(), "things")
		if err := makeThings(dir); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	a, b := things(), things()
	if _, _, err := compare(a, b); err == nil || !strings.Contains(err.Error(), "noise.bin differ") {
		t.Errorf("noise compares with other noise: %v", err)
	}
	if err := os.WriteFile(filepath.Join(b, "noise.bin"), read(t, filepath.Join(a, "noise.bin")), 0o600); err != nil {
		t.Fatal(err)
	}
	files, size, err := compare(a, b)
	if err != nil || files != 5 || size != 1<<20+46 {
		t.Errorf("%d files of %d bytes, %v", files, size, err)
	}
	for what, change := range map[string]func(dir string) error{
		"a file less":   func(dir string) error { return os.Remove(filepath.Join(dir, "run.sh")) },
		"a file more":   func(dir string) error { return os.WriteFile(filepath.Join(dir, "folder/x"), nil, 0o600) },
		"a shorter one": func(dir string) error { return os.Truncate(filepath.Join(dir, "noise.bin"), 1<<20-1) },
		"another kind": func(dir string) error {
			path := filepath.Join(dir, "folder/empty file")
			return errors.Join(os.Remove(path), os.Mkdir(path, 0o755))
		},
	} {
		c := filepath.Join(t.TempDir(), "copy")
		if err := errors.Join(os.CopyFS(c, os.DirFS(a)), change(c)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := compare(a, c); err == nil {
			t.Errorf("%s: no difference", what)
		}
	}
}

func read(t *testing.T, path string) []byte {
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestHasPassword(t *testing.T) {
	for text, want := range map[string]bool{
		"":                                   false,
		"root:*:20000:0:99999:7:::\n":        false,
		"root:!:1::::::\ndaemon:!*:1::::::":  false,
		"root::1::::::\n":                    false, // no password, and so none to be found out
		"root:*:1::::::\nal:$y$j9T$x:1:::\n": true,
		"al:!$6$salt$hash:1::::::\n":         true, // locked, but there
	} {
		if got := hasPassword(text); got != want {
			t.Errorf("hasPassword(%q) = %t", text, got)
		}
	}
}

func TestQuote(t *testing.T) {
	for _, word := range []string{"", "plain", "/a/b-c_d.e", "two words", "it's", "$HOME `id` \"x\" \\", "*", "a\nb"} {
		out, err := exec.Command("sh", "-c", "printf %s "+quote(word)).Output()
		if err != nil || string(out) != word {
			t.Errorf("%q becomes %q, %v", word, out, err)
		}
	}
}

func TestOutputIsFitForATerminal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	s := newScreen(out)
	s.output("plain\tï\r\n\x1b]0;title\x07\u009b1m\x7f\n")
	s.output("")
	s.note("two\nlines %d", 2)
	if got, want := string(read(t, path)), "plain\tï\n?]0;title??1m?\n# two\n# lines 2\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A child is in its parent's family, and is known to be gone once it is.
func TestFamily(t *testing.T) {
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		testneed.Lacking(t, "/proc")
	}
	child := exec.Command("sleep", "1000")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	var found *process
	for _, p := range family(os.Getpid()) {
		if p.pid == child.Process.Pid {
			found = &p
		}
	}
	if found == nil || !found.lives() {
		t.Errorf("child %d is not found, or does not live: %v", child.Process.Pid, found)
	}
	child.Process.Kill()
	child.Wait()
	if found.lives() {
		t.Error("the child lives on")
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add(12, "sleep", 3, "S", "4711")
	f.Add(1, "a) S 9 (", 0, "Z", "0")
	f.Fuzz(func(t *testing.T, pid int, name string, parent int, state, start string) {
		p, gotParent, ok := parseStat(fmt.Sprintf("%d (%s) %s %d", pid, name, state, parent))
		if ok {
			t.Errorf("fields are missing, but %v, %d", p, gotParent)
		}
		if len(strings.Fields(state)) != 1 || strings.Contains(state+start, ")") || len(strings.Fields(start)) != 1 {
			return
		}
		stat := fmt.Sprintf("%d (%s) %s %d%s %s 0 0\n", pid, name, state, parent, strings.Repeat(" 0", 17), start)
		p, gotParent, ok = parseStat(stat)
		state, start = strings.TrimSpace(state), strings.TrimSpace(start)
		if p != (process{pid, start}) || gotParent != parent || ok != (state != "Z" && state != "X") {
			t.Errorf("%q: %v, %d, %t", stat, p, gotParent, ok)
		}
	})
}
