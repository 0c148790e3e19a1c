package story

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/rogpeppe/go-internal/testscript"
)

// nowhere is the story's command nowhere: none of the values in a file, one to a line,
// may stand in what is named: files, folders, stdout, stderr; nor on the command line
// of any process. After ! one has to be there.
func nowhere(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: nowhere VALUES WHERE...")
	}
	var found []string
	forms := writings(strings.Fields(ts.ReadFile(args[0])))
	look := func(where string, text []byte) {
		for form, what := range forms {
			if bytes.Contains(text, []byte(form)) {
				found = append(found, where+" has "+what)
			}
		}
	}
	for _, where := range args[1:] {
		if where == "stdout" || where == "stderr" {
			look(where, []byte(ts.ReadFile(where)))
			continue
		}
		files, err := filesBelow(ts.MkAbs(where))
		ts.Check(err)
		for _, name := range files {
			text, err := os.ReadFile(name)
			if !os.IsNotExist(err) { // which a database's files may come to be
				ts.Check(err)
			}
			look(name, text)
		}
	}
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	ts.Check(err)
	for _, name := range lines {
		text, _ := os.ReadFile(name) // it may have ended
		look(name, text)
	}
	if neg != (len(found) > 0) {
		ts.Fatalf("%d places: %s", len(found), strings.Join(found, "\n"))
	}
}

// writings returns how values may be written, each with what it is. Of base64 it is what
// does not depend on what stands beside the value.
func writings(values []string) map[string]string {
	forms := make(map[string]string)
	for i, v := range values {
		add := func(form, what string) { forms[form] = fmt.Sprintf("value %d, %s", i+1, what) }
		for shift, skip := range []int{0, 2, 3} {
			encoded := base64.RawStdEncoding.EncodeToString([]byte("??"[:shift] + v))
			encoded = encoded[skip : (shift+len(v))*8/6]
			add(encoded, fmt.Sprint("in base64 after ", shift))
			add(strings.NewReplacer("+", "-", "/", "_").Replace(encoded), fmt.Sprint("in base64 of URLs after ", shift))
		}
		every := "%" + strings.ReplaceAll(fmt.Sprintf("% x", v), " ", "%")
		for _, escaped := range []string{
			url.QueryEscape(v), url.PathEscape(v), every,
			strings.ReplaceAll(url.QueryEscape(v), "%2F", "/"),
			strings.ReplaceAll(url.QueryEscape(v), "%21", "!"),
		} {
			add(escaped, "escaped for a URL")
			add(strings.NewReplacer("%2F", "%2f", "%2B", "%2b", "%3D", "%3d", "%3F", "%3f").Replace(escaped), "escaped for a URL")
		}
		add(v, "as it is")
	}
	return forms
}

// filesBelow returns the regular files in a folder, or the one file. What sandboxes have
// on their disks and in memory, which is mounted there, is theirs.
func filesBelow(root string) (files []string, err error) {
	device := func(info fs.FileInfo) uint64 { return uint64(info.Sys().(*syscall.Stat_t).Dev) }
	top, err := os.Lstat(root)
	if err != nil {
		return nil, err
	}
	err = filepath.Walk(root, func(name string, info fs.FileInfo, err error) error {
		switch {
		case os.IsNotExist(err):
			return nil
		case err != nil:
			return err
		case info.IsDir() && (device(info) != device(top) || strings.HasPrefix(info.Name(), "disk")):
			return fs.SkipDir
		case info.Mode().IsRegular():
			files = append(files, name)
		}
		return nil
	})
	return files, err
}
