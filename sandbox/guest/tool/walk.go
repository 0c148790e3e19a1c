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
)

// maxEntries bounds the entries that a search looks at.
const maxEntries = 200_000

// A walk goes through a folder in the order of the paths, without following links
// and without what is ignored.
type walk struct {
	root    string // absolute
	home    string
	ignored bool // what is ignored is not left out
	hidden  bool // nor is what begins with a dot

	seen    int
	stopped string // why the walk did not get to its end; empty if it did
}

// errEnough ends a walk that has what it wants.
var errEnough = errors.New("enough")

// each calls f for each entry with its path below the root. It does not enter a
// folder for which f returns fs.SkipDir, and ends at other errors.
func (w *walk) each(ctx context.Context, f func(rel string, e fs.DirEntry) error) error {
	var above *layer
	if !w.ignored {
		above = layersAbove(w.root, w.home)
	}
	err := w.folder(ctx, "", above, f)
	switch {
	case errors.Is(err, errTime):
		w.stopped = "the time for a search was over"
	case errors.Is(err, errCancelled):
		w.stopped = "it was cancelled"
	case errors.Is(err, errEnough):
	default:
		return err
	}
	return nil
}

func (w *walk) folder(ctx context.Context, rel string, above *layer, f func(string, fs.DirEntry) error) error {
	dir := filepath.Join(w.root, rel)
	entries, err := readDir(dir, maxEntries-w.seen+1)
	if err != nil && rel == "" {
		return fileError("read", dir, err)
	}
	rules := above
	if !w.ignored {
		rules = layerOf(dir, above, func(name string) bool {
			_, ok := slices.BinarySearchFunc(entries, name, func(e fs.DirEntry, name string) int {
				return strings.Compare(e.Name(), name)
			})
			return ok
		})
	}
	for _, e := range entries {
		if err := ended(ctx); err != nil {
			return err
		}
		name := e.Name()
		if name == ".git" || !w.hidden && strings.HasPrefix(name, ".") {
			continue
		}
		path := name
		if rel != "" {
			path = rel + "/" + name
		}
		if rules != nil && rules.ignores(dir+"/"+name, e.IsDir()) {
			continue
		}
		if w.seen++; w.seen > maxEntries {
			w.stopped = "there are too many files"
			return errEnough
		}
		err := f(path, e)
		if err == nil && e.IsDir() {
			err = w.folder(ctx, path, rules, f)
		}
		if err != nil && err != fs.SkipDir {
			return err
		}
	}
	return nil
}

// readDir returns at most n entries of a folder, sorted.
func readDir(dir string, n int) ([]fs.DirEntry, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	entries, err := f.ReadDir(n)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, err
}

// searchRoot returns the folder that a search begins in, and how a path below it is
// shown: as the caller would write it.
func (c *call) searchRoot(path string) (root string, show func(rel string) string, err error) {
	root, err = c.resolve(path)
	if err != nil {
		return "", nil, err
	}
	prefix := path
	if strings.HasPrefix(path, "~") {
		prefix = root
	}
	return root, func(rel string) string { return clean([]byte(filepath.Join(prefix, rel))) }, nil
}
