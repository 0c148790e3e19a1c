package tool

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// resolve returns the absolute path that a model means by path, for whom relative
// ones begin at dir and ~ is home.
func (c *call) resolve(path string) (string, error) {
	switch {
	case path == "":
		return c.dir, nil
	case strings.Contains(path, "\x00"):
		return "", Errorf(BadArgs, "the path has a NUL byte in it").With("give a path without it")
	case path == "~" || strings.HasPrefix(path, "~/"):
		path = c.session.home + path[1:]
	case !filepath.IsAbs(path):
		path = filepath.Join(c.dir, path)
	}
	return filepath.Clean(path), nil
}

// kindOfFile names what a mode says a file is.
func kindOfFile(m fs.FileMode) string {
	switch {
	case m.IsRegular():
		return "file"
	case m.IsDir():
		return "directory"
	case m&fs.ModeSymlink != 0:
		return "symbolic link"
	case m&fs.ModeNamedPipe != 0:
		return "named pipe (FIFO)"
	case m&fs.ModeSocket != 0:
		return "socket"
	case m&fs.ModeDevice != 0:
		return "device"
	}
	return "special file"
}

// openFile opens a regular file to be read. Anything else is an error that says
// what it is, found out without opening it: a pipe would hang, a device may do
// anything. What is in the way afterwards, by a race, is not read either.
func (c *call) openFile(path string) (*os.File, fs.FileInfo, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return nil, nil, c.notThere(path, err)
	}
	if err := regular(path, fi); err != nil {
		return nil, nil, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, fileError("open", path, err)
	}
	if fi, err = f.Stat(); err == nil {
		err = regular(path, fi)
	}
	if err != nil {
		f.Close()
		return nil, nil, fileError("open", path, err)
	}
	return f, fi, nil
}

// regular returns an error if a file is not one that can be read and changed.
func regular(path string, fi fs.FileInfo) error {
	switch {
	case fi.Mode().IsRegular():
		return nil
	case fi.IsDir():
		return Errorf(IsDirectory, "%s is a folder", path)
	}
	e := Errorf(NotRegular, "%s is a %s, not a regular file", path, kindOfFile(fi.Mode()))
	e.Kind = kindOfFile(fi.Mode())
	return e
}

// notThere is the error for a path that could not be looked at, with names that
// are like it.
func (c *call) notThere(path string, err error) error {
	e := fileError("look at", path, err)
	if e.Code != NotFound {
		return e
	}
	e.Dir = c.dir
	if target, linkErr := os.Readlink(path); linkErr == nil {
		e.Message = clean([]byte(path + " is a link to " + target + ", which does not exist"))
		return e.With("make what it points to, or remove the link")
	}
	e.Near = near(filepath.Dir(path), filepath.Base(path))
	return e
}

// near returns the names in dir that are most like name, at most three.
func near(dir, name string) []string {
	f, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	const most = 10_000 // names looked at
	names, _ := f.Readdirnames(most)
	type candidate struct {
		name string
		far  int
	}
	var found []candidate
	low := strings.ToLower(name)
	closest := max(2, len(low)/3)
	for _, n := range names {
		l := strings.ToLower(n)
		far := max(len(l), len(low))
		if diff := len(l) - len(low); -closest <= diff && diff <= closest {
			far = distance(low, l)
		}
		if strings.Contains(l, low) || strings.Contains(low, l) {
			far = min(far, 1)
		}
		if far <= closest {
			found = append(found, candidate{n, far})
		}
	}
	slices.SortFunc(found, func(a, b candidate) int {
		if a.far != b.far {
			return a.far - b.far
		}
		return strings.Compare(a.name, b.name)
	})
	var like []string
	for _, c := range found[:min(len(found), 3)] {
		like = append(like, clean([]byte(c.name)))
	}
	return like
}

// distance is how many bytes have to be changed to get from a to b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}

// A patientReader reads until its context ends.
type patientReader struct {
	ctx context.Context
	r   io.Reader
}

// What ended a context, see fileError.
var (
	errTime      = errors.New("out of time")
	errCancelled = errors.New("cancelled")
)

func (p patientReader) Read(b []byte) (int, error) {
	if err := ended(p.ctx); err != nil {
		return 0, err
	}
	return p.r.Read(b)
}

// ended returns why ctx has ended, or nil.
func ended(ctx context.Context) error {
	switch {
	case ctx.Err() == nil:
		return nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return errTime
	}
	return errCancelled
}
