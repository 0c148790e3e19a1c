package gateway

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

// Files go from one sandbox to another with their permissions and times, whatever
// they are called. Sandboxes are folders of this host here, both in one tree.
func TestCopy(t *testing.T) {
	s := newStage(t, nil)
	s.must(s.alice, "new web", nil)
	s.must(s.alice, "new api", nil)
	dir := t.TempDir()
	big := make([]byte, 3<<20+7)
	rand.Read(big)
	then := time.Unix(1_700_000_000, 0)
	for name, mode := range map[string]os.FileMode{"run": 0o755, "odd \x01'name": 0o640, "empty": 0o600, "locked/below": 0o444} {
		file := filepath.Join(dir, "src", name)
		text := big
		if name == "empty" {
			text = nil
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, then, then); err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range []error{os.Symlink("run", dir+"/src/link"), os.Chmod(dir+"/src/locked", 0o500), os.Chtimes(dir+"/src/locked", then, then)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		os.Chmod(dir+"/src/locked", 0o700)
		os.Chmod(dir+"/dst/locked", 0o700)
	})

	out := s.must(s.alice, in(dir, "cp -r web:DIR/src api:DIR/dst"), nil)
	if want := fmt.Sprintf("4 files, 2 folders, 1 link copied, %s\n", bytesOf(3*int64(len(big)))); out != want {
		t.Errorf("it says %q, want %q", out, want)
	}
	for _, name := range []string{"run", "odd \x01'name", "empty", "locked/below", "locked", "link"} {
		want, err := os.Lstat(filepath.Join(dir, "src", name))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.Lstat(filepath.Join(dir, "dst", name))
		if err != nil {
			t.Errorf("%q: %v", name, err)
			continue
		}
		if got.Mode() != want.Mode() || name != "link" && !got.ModTime().Equal(then) {
			t.Errorf("%q is %v of %v", name, got.Mode(), got.ModTime())
		}
		if got.Mode().IsRegular() {
			text, _ := os.ReadFile(filepath.Join(dir, "dst", name))
			if name != "empty" && !bytes.Equal(text, big) || name == "empty" && len(text) > 0 {
				t.Errorf("%q has %d other bytes", name, len(text))
			}
		}
	}
	if target, _ := os.Readlink(dir + "/dst/link"); target != "run" {
		t.Errorf("the link is to %q", target)
	}
	// Again, onto what is there: into the folder.
	s.must(s.alice, in(dir, "cp web:DIR/src/run api:DIR/dst"), nil)
	s.must(s.alice, in(dir, "cp -r web:DIR/src/ api:DIR/dst"), nil)
	if _, err := os.Stat(dir + "/dst/src/run"); err != nil {
		t.Error(err)
	}

	// To and from the client.
	if out := s.must(s.alice, in(dir, "cp - api:DIR/in"), big); out != "1 file copied, 3.0MB\n" {
		t.Errorf("it says %q", out)
	}
	if out := s.must(s.alice, in(dir, "cp api:DIR/in -"), nil); out != string(big) {
		t.Errorf("%d bytes came back", len(out))
	}
	if out := s.must(s.alice, in(dir, "cp --json web:DIR/src/empty api:DIR/"), nil); out != `{"files":1,"folders":0,"links":0,"bytes":0}`+"\n" {
		t.Errorf("JSON is %s", out)
	}

	os.Mkdir(dir+"/readable", 0o755)
	os.WriteFile(dir+"/readable/f", nil, 0o644)
	for _, test := range []struct {
		line, says string
		code       kind
	}{
		{"cp web:DIR/nosuch api:", "web:DIR/nosuch: there is no such file or folder", notFound},
		{"cp web:DIR/src/run api:DIR/nosuch/f", "api:DIR/nosuch/f: there is no such file or folder", notFound},
		{"cp web:DIR/src/run api:DIR/nosuch/", "api:DIR/nosuch/: there is no such file or folder", notFound},
		{"cp web:DIR/src api:DIR/other", "web:DIR/src is a folder", usage},
		{"cp -r web:DIR/src api:DIR/in", "api:DIR/in is there, and no folder", conflict},
		{"cp -r web:DIR/src web:DIR/src/new", "web:DIR/src cannot be copied to itself", conflict},
		{"cp web:DIR/src/run web:DIR/src/run", "web:DIR/src/run cannot be copied to itself", conflict},
		{"cp web:DIR/src/run web:DIR/src", "web:DIR/src/run cannot be copied to itself", conflict},
		{"cp DIR api:", "\"DIR\" is no path in a sandbox", usage},
		{"cp - -", "one of the two has to be in a sandbox", usage},
		{"cp web:DIR/src -", "web:DIR/src is a folder", usage},
		{"cp gate:x web:", "\"gate\" is not a sandbox name", usage},
		{"cp nosuch:x web:", "no sandbox named \"nosuch\"", notFound},
	} {
		_, stderr, code := s.verb(s.alice, in(dir, test.line), nil)
		says := in(dir, test.says)
		if code != int(test.code) || !strings.HasPrefix(stderr, "sandgate: "+says+"\n") {
			t.Errorf("%s: %d, %q", test.line, code, stderr)
		}
	}
}

// in is text about a folder, for which DIR stands.
func in(dir, text string) string { return strings.ReplaceAll(text, "DIR", dir) }

// Who may read a sandbox may copy from it, and not to it; a key that names other
// sandboxes or verbs does neither.
func TestCopyPolicy(t *testing.T) {
	s := newStage(t, nil)
	s.must(s.alice, "new web", nil)
	s.must(s.alice, "share web bob --read-only", nil)
	s.must(s.bob, "new own", nil)
	only, verbs := newSigner(t), newSigner(t)
	s.must(s.alice, "key add --name only --sandboxes other", authorized(only))
	s.must(s.alice, "key add --name verbs --verbs cp", authorized(verbs))
	dir := t.TempDir()
	os.WriteFile(dir+"/f", []byte("text"), 0o600)
	for _, test := range []struct {
		key  string
		line string
		code kind
	}{
		{"bob", "cp web.alice:DIR/f -", 0},
		{"bob", "cp web.alice:DIR/f own:DIR/copy", 0},
		{"bob", "cp own:DIR/f web.alice:DIR/new", denied},
		{"bob", "cp - web.alice:DIR/new", denied},
		{"only", "cp web:DIR/f -", notFound},
		{"only", "cp - web:DIR/new", notFound},
		{"verbs", "cp web:DIR/f web:DIR/g", 0},
		{"verbs", "info web", denied},
	} {
		key := map[string]ssh.Signer{"bob": s.bob, "only": only, "verbs": verbs}[test.key]
		if _, stderr, code := s.verb(key, in(dir, test.line), []byte("new")); code != int(test.code) {
			t.Errorf("%s, %s: %d, %s", test.key, test.line, code, stderr)
		}
	}
	if _, err := os.Stat(dir + "/new"); err == nil {
		t.Error("written without leave")
	}
	if text, err := os.ReadFile(dir + "/copy"); err != nil || string(text) != "text" {
		t.Errorf("copied %q, %v", text, err)
	}
}
