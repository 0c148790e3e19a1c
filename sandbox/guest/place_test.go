//go:build linux

package guest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPlaceFiles(t *testing.T) {
	base, err := os.MkdirTemp("/dev/shm", "sandgate-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	dir := filepath.Join(base, "files")
	me := account{uid: uint32(os.Getuid()), gid: uint32(os.Getgid())}
	for _, value := range []string{"old", "new"} {
		env, err := placeFiles(dir, []File{{Variable: "KEY", Data: []byte(value)}}, me)
		if err != nil || len(env) != 1 {
			t.Fatalf("%q, %v", env, err)
		}
		path, ok := strings.CutPrefix(string(env[0]), "KEY=")
		got, err := os.ReadFile(path)
		if !ok || err != nil || string(got) != value {
			t.Fatalf("%s has %q, %v", env[0], got, err)
		}
		if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("mode %v, %v", fi.Mode(), err)
		}
	}
	if found, _ := filepath.Glob(dir + "/*"); len(found) != 1 {
		t.Errorf("left behind: %q", found)
	}
	for _, name := range []string{"", "../x", "A=B"} {
		if _, err := placeFiles(dir, []File{{Variable: name}}, me); err == nil {
			t.Errorf("a file was named %q", name)
		}
	}

	// What somebody put there before is not followed or filled.
	link := filepath.Join(base, "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	if _, err := placeFiles(link, []File{{Variable: "KEY"}}, me); err == nil || !strings.Contains(err.Error(), "somebody else's") {
		t.Errorf("through a link: %v", err)
	}
	if _, err := placeFiles("/proc/sandgate", []File{{Variable: "KEY"}}, me); err == nil {
		t.Error("wrote where nothing can be written")
	}
}
