package tool

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
	"golang.org/x/sys/unix"
)

// maxFile bounds what is written or edited in one call.
const maxFile = 10 << 20

// maxDiff bounds the diff of a result.
const maxDiff = 4 << 10

// locate follows links and returns where the file that a path means really is.
// Its last part need not exist, but a link that leads nowhere is an error.
func (c *call) locate(path string) (real string, linked bool, err error) {
	real, err = filepath.EvalSymlinks(path)
	if err == nil {
		fi, err := os.Lstat(path)
		return real, err == nil && fi.Mode()&fs.ModeSymlink != 0, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		if _, statErr := os.Stat(path); statErr != nil { // which knows of loops
			err = statErr
		}
		return "", false, fileError("write", path, err)
	}
	if _, err := os.Lstat(path); err == nil {
		return "", false, c.notThere(path, fs.ErrNotExist)
	}
	// The folder, or the first one above that is there, may be behind a link.
	missing := filepath.Base(path)
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		real, err := filepath.EvalSymlinks(dir)
		if err == nil {
			return filepath.Join(real, missing), false, nil
		}
		if _, lstatErr := os.Lstat(dir); lstatErr == nil || !errors.Is(err, fs.ErrNotExist) {
			return "", false, c.notThere(dir, err)
		}
		missing = filepath.Join(filepath.Base(dir), missing)
	}
}

// A target is a file that is to be written.
type target struct {
	path   string // real
	exists bool
	info   fs.FileInfo // if it exists
	old    []byte      // the content, if it exists and is small enough
	sha256 string      // if it exists and is not too large to be hashed
}

// look reads what there is at the real path.
func (c *call) look(ctx context.Context, path string) (*target, error) {
	t := &target{path: path}
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	f, fi, err := c.openFile(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t.exists, t.info = true, fi
	if fi.Size() > surveyBytes {
		return t, nil
	}
	hash := sha256.New()
	var old bytes.Buffer
	n, err := io.Copy(io.MultiWriter(hash, &limitedBuffer{&old, maxFile}), patientReader{ctx, f})
	if err != nil {
		return nil, fileError("read", path, err)
	}
	if n <= maxFile {
		t.old = old.Bytes()
		if t.old == nil {
			t.old = []byte{}
		}
	}
	t.sha256 = hex.EncodeToString(hash.Sum(nil))
	return t, nil
}

// A limitedBuffer drops what is beyond its limit.
type limitedBuffer struct {
	b    *bytes.Buffer
	room int
}

func (l *limitedBuffer) Write(p []byte) (int, error) {
	n := min(len(p), l.room)
	l.b.Write(p[:n])
	l.room -= n
	return len(p), nil
}

// fresh says whether the session has read the file as it is now.
func (c *call) fresh(t *target) error {
	known, ok := c.session.recall(t.path)
	same := known.sha256 == t.sha256
	if known.sha256 == "" { // too large to be hashed when it was read
		same = known.size == t.info.Size() && known.modTime.Equal(t.info.ModTime())
	}
	switch {
	case !ok:
		e := Errorf(NotRead, "%s exists and was not read in this session", t.path)
		e.Size = t.info.Size()
		return e
	case !same:
		e := Errorf(Stale, "%s has changed since it was read", t.path)
		e.SHA256 = t.sha256
		return e
	}
	return nil
}

// know records the file as it was written.
func (c *call) know(path string, content []byte) string {
	sum := sha256.Sum256(content)
	text := hex.EncodeToString(sum[:])
	r := record{sha256: text, size: int64(len(content))}
	if fi, err := os.Stat(path); err == nil {
		r.modTime = fi.ModTime()
	}
	c.session.remember(path, r)
	return text
}

// save writes a file as a whole: beside it first, then in its place, so that
// nobody ever sees half of it. Where that cannot be done, or would tear a hard
// link apart or change the owner, it is written in place, which the note tells.
func (t *target) save(content []byte, mode fs.FileMode) (note string, err error) {
	if t.exists {
		links, own := uint64(1), true
		if st, ok := statOf(t.info); ok {
			links = uint64(st.Nlink)
			own = int(st.Uid) == os.Geteuid() || os.Geteuid() == 0
		}
		switch {
		case links > 1:
			return fmt.Sprintf("the file has %d names (hard links) and was written in place, so it changed under all of them", links), t.overwrite(content)
		case !own:
			return "the file belongs to somebody else and was written in place, so that it still does", t.overwrite(content)
		}
	}
	dir := filepath.Dir(t.path)
	tmp, err := os.OpenFile(filepath.Join(dir, ".sandgate-"+rand.Text()), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		if t.exists && (errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS)) {
			return "the folder cannot be written to, so the file was written in place", t.overwrite(content)
		}
		return "", err
	}
	defer os.Remove(tmp.Name()) // which fails once it has its real name
	defer tmp.Close()
	if _, err := tmp.Write(content); err != nil {
		return "", err
	}
	if t.exists {
		t.copyAttributes(tmp)
	}
	if err := tmp.Chmod(mode); err != nil {
		return "", err
	}
	if err := tmp.Sync(); err != nil {
		return "", err
	}
	return "", os.Rename(tmp.Name(), t.path)
}

// overwrite writes over the old content. If there is no room for it, the old
// content is put back.
func (t *target) overwrite(content []byte) error {
	f, err := os.OpenFile(t.path, os.O_WRONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Write(content)
	if err != nil {
		if t.old != nil {
			if _, back := f.WriteAt(t.old, 0); back == nil {
				f.Truncate(int64(len(t.old)))
			}
		}
		return err
	}
	if err := f.Truncate(int64(len(content))); err != nil {
		return err
	}
	return f.Sync()
}

// copyAttributes gives a new file the owner and extended attributes of the old
// one, as far as that is allowed.
func (t *target) copyAttributes(f *os.File) {
	if st, ok := statOf(t.info); ok {
		f.Chown(int(st.Uid), int(st.Gid))
	}
	names := make([]byte, 64<<10)
	n, err := unix.Listxattr(t.path, names)
	if err != nil {
		return
	}
	value := make([]byte, 64<<10)
	for name := range strings.SplitSeq(string(names[:n]), "\x00") {
		if name == "" {
			continue
		}
		if n, err := unix.Getxattr(t.path, name, value); err == nil {
			unix.Fsetxattr(int(f.Fd()), name, value[:n], 0)
		}
	}
}

// A Change is what a call has made of a file.
type Change struct {
	Added   int    `json:"added" jsonschema:"lines"`
	Removed int    `json:"removed" jsonschema:"lines"`
	Diff    string `json:"diff,omitempty" jsonschema:"unified diff, cut if long"`
}

// changed compares two contents of a file. What is not text has no diff.
func changed(name string, old, new []byte) Change {
	var c Change
	if f := sniff(head(old)); f.binary != "" || sniff(head(new)).binary != "" {
		return c
	} else if f.charset != utf8Text {
		old, new = f.charset.decode(old), f.charset.decode(new)
	}
	text := diff.Diff("a/"+name, old, "b/"+name, new)
	_, text, _ = bytes.Cut(text, []byte("\n")) // the line that only names the files
	for line := range bytes.Lines(text) {
		switch {
		case bytes.HasPrefix(line, []byte("+++ ")), bytes.HasPrefix(line, []byte("--- ")):
		case line[0] == '+':
			c.Added++
		case line[0] == '-':
			c.Removed++
		}
	}
	c.Diff = clean(text)
	if len(c.Diff) > maxDiff {
		c.Diff = cutBytes(c.Diff, maxDiff-64)
		if end := strings.LastIndexByte(c.Diff, '\n'); end > 0 {
			c.Diff = c.Diff[:end+1]
		}
		c.Diff += "… the diff goes on\n"
	}
	return c
}

func head(b []byte) []byte { return b[:min(len(b), sniffLen)] }
