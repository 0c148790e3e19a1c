//go:build linux

package guest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pkg/sftp"

	"sandgate/sandbox/testneed"
)

// What a driver writes is what the guest reads, and what is not that counts for
// nothing.
func FuzzSettings(f *testing.F) {
	f.Add(`{"env":["A=b"],"user":"web","dir":"/srv"}`)
	f.Add(`{"env":["A=\u0000"]}`)
	f.Add(`{"dir":"relative"}`)
	f.Add(strings.Repeat(" ", maxSettings) + "{}")
	f.Fuzz(func(t *testing.T, text string) {
		s := parseSettings(text)
		if s.Dir != "" && !filepath.IsAbs(s.Dir) {
			t.Errorf("commands begin in %q", s.Dir)
		}
		_, written, _ := strings.Cut(s.Environ(), "=")
		again := parseSettings(written)
		if len(written) <= maxSettings && again.Environ() != s.Environ() {
			t.Errorf("%+v became %+v", s, again)
		}
	})
}

func TestSettings(t *testing.T) {
	dir := t.TempDir()
	os.WriteFile(filepath.Join(dir, "file"), []byte("there"), 0o600)
	s := Settings{Env: []string{"PATH=/usr/bin:/bin:/opt/own", "COLOUR=red", "FRUIT=pear", "COLOUR=green"}, Dir: dir}
	t.Setenv("SANDGATE_GUEST", strings.TrimPrefix(s.Environ(), "SANDGATE_GUEST="))
	c := newWorld(t).connect()
	cmd := command("echo $PATH $COLOUR $FRUIT; pwd; env | grep -c SANDGATE_GUEST")
	cmd.Env = [][]byte{[]byte("FRUIT=plum")}
	if got, want := run(t, c, cmd, nil).stdout, "/usr/bin:/bin:/opt/own green plum\n"+dir+"\n0\n"; got != want {
		t.Errorf("commands print %q, want %q", got, want)
	}
	st, err := c.SFTP("", false)
	if err != nil {
		t.Fatal(err)
	}
	client, err := sftp.NewClientPipe(st, st)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if wd, err := client.Getwd(); err != nil || wd != dir {
		t.Errorf("SFTP begins in %q (%v), want %q", wd, err, dir)
	}
	if _, err := client.Stat("file"); err != nil {
		t.Errorf("a relative name: %v", err)
	}
}

// Settings of another user hold for commands, files and sockets.
func TestSettingsUser(t *testing.T) {
	testneed.Root(t)
	dir := t.TempDir()
	for d := dir; d != os.TempDir(); d = filepath.Dir(d) {
		os.Chmod(d, 0o755)
	}
	s := Settings{User: "54321:54320", Dir: dir}
	t.Setenv("SANDGATE_GUEST", strings.TrimPrefix(s.Environ(), "SANDGATE_GUEST="))
	c := newWorld(t).connect()
	if got, want := run(t, c, command("id -u; id -g; pwd"), nil).stdout, "54321\n54320\n"+dir+"\n"; got != want {
		t.Errorf("commands print %q, want %q", got, want)
	}
	cmd := command("id -u")
	cmd.User = "0"
	if got := run(t, c, cmd, nil).stdout; got != "0\n" {
		t.Errorf("a command that names root runs as %q", got)
	}
}

func TestMalformedSettings(t *testing.T) {
	t.Setenv("SANDGATE_GUEST", `{"env":["A=b"],"dir":7}`)
	c := newWorld(t).connect()
	if got := run(t, c, command("echo $A; env | grep -c SANDGATE_GUEST"), nil).stdout; got != "\n0\n" {
		t.Errorf("commands print %q", got)
	}
}

// Accounts are those of the file as it is now.
func TestAccountsChange(t *testing.T) {
	c := colonFile{path: filepath.Join(t.TempDir(), "passwd")}
	for _, want := range []string{"ada", "bob", ""} {
		os.Remove(c.path)
		if want != "" {
			if err := os.WriteFile(c.path, []byte(want+":x:7:7::/:/bin/sh\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if a, _ := c.account("7"); a.name != want {
			t.Errorf("uid 7 is %q, want %q", a.name, want)
		}
	}
}

// A shell that only says no is none.
func TestShellOf(t *testing.T) {
	for shell, want := range map[string]string{
		"/usr/sbin/nologin": "/bin/sh", "/bin/false": "/bin/sh", "": "/bin/sh", "/no/such": "/bin/sh", "/bin/sh": "/bin/sh",
	} {
		if got := shellOf(account{shell: shell}); got != want {
			t.Errorf("%q: %q, want %q", shell, got, want)
		}
	}
}
