package tool

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Besides the six tools there are two calls that no model is told of: Guidance reads
// what a project says to agents, and Recall reminds a session of what was read in it.
const (
	Guidance = "guidance"
	Recall   = "recall"
)

// The bounds of guidance.
const (
	guidanceBytes = 32 << 10 // of all files together
	guidanceFiles = 16
	guidancePaths = 64
	guidanceDepth = 32 // folders above one that are looked into
)

// guidanceNames are what a project calls what it says to agents. In a folder that has
// several the first counts: the others tend to be links to it, or to refer to it.
var guidanceNames = []string{"AGENTS.md", "CLAUDE.md"}

// GuidanceArgs are the arguments of Guidance.
type GuidanceArgs struct {
	Paths []string `json:"paths,omitempty"` // files and folders that are worked on, besides the working folder
}

// GuidanceOutput is what Guidance returns.
type GuidanceOutput struct {
	Files []GuidanceFile `json:"files"` // the outer folder's before the inner one's
	Common
}

// A GuidanceFile is one file of guidance. It is meant for all that is below its folder.
type GuidanceFile struct {
	Path    string `json:"path"` // without links
	Content string `json:"content"`
	SHA256  string `json:"sha256"` // of Content
	Cut     bool   `json:"cut,omitempty"`
}

// Text implements Output.
func (o *GuidanceOutput) Text() string {
	var b strings.Builder
	for _, f := range o.Files {
		b.WriteString(f.Path + "\n" + f.Content + "\n")
	}
	return o.text(&b)
}

// guidance reads the guidance for the working folder and for other paths: what is in
// their folders, and in those above up to the project's.
func (c *call) guidance(ctx context.Context, a GuidanceArgs) (*GuidanceOutput, error) {
	out := &GuidanceOutput{Files: []GuidanceFile{}}
	room := guidanceBytes
	var seen []string
	for _, p := range append([]string{""}, a.Paths[:min(len(a.Paths), guidancePaths)]...) {
		for _, dir := range c.foldersOf(p) {
			if slices.Contains(seen, dir) {
				continue
			}
			seen = append(seen, dir)
			if err := ended(ctx); err != nil {
				return nil, fileError("read the guidance in", dir, err)
			}
			if f, ok := c.guidanceIn(ctx, dir, room); ok && len(out.Files) < guidanceFiles {
				out.Files = append(out.Files, f)
				room -= len(f.Content)
			}
		}
	}
	return out, nil
}

// foldersOf returns the folders whose guidance is for a path, the outermost first:
// from the root of its repository on; outside of one from the working folder on, or
// else its own folder alone.
func (c *call) foldersOf(path string) []string {
	path, err := c.resolve(path)
	if err != nil {
		return nil
	}
	if fi, err := os.Stat(path); err != nil || !fi.IsDir() {
		path = filepath.Dir(path)
	}
	dir, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil // it is not there yet
	}
	base, err := filepath.EvalSymlinks(c.dir)
	if err != nil {
		base = c.dir
	}
	dirs, within := []string{dir}, 1
	for d := dir; len(dirs) < guidanceDepth; {
		if _, err := os.Lstat(filepath.Join(d, ".git")); err == nil {
			within = len(dirs)
			break
		}
		if d == base {
			within = len(dirs)
		}
		up := filepath.Dir(d)
		if up == d {
			break
		}
		d, dirs = up, append(dirs, up)
	}
	dirs = dirs[:within]
	slices.Reverse(dirs)
	return dirs
}

// guidanceIn reads the guidance in a folder, at most room bytes of it.
func (c *call) guidanceIn(ctx context.Context, dir string, room int) (GuidanceFile, bool) {
	for _, name := range guidanceNames {
		path := filepath.Join(dir, name)
		f, _, err := c.openFile(path)
		if err != nil {
			continue
		}
		b, err := io.ReadAll(io.LimitReader(patientReader{ctx, f}, guidanceBytes+1))
		f.Close()
		if err != nil || len(bytes.TrimSpace(b)) == 0 || sniff(head(b)).binary != "" {
			continue
		}
		text := clean(b)
		g := GuidanceFile{Path: clean([]byte(path)), Content: cutBytes(text, room)}
		g.Cut = len(g.Content) < len(text)
		if g.Content == "" {
			return g, false
		}
		sum := sha256.Sum256([]byte(g.Content))
		g.SHA256 = hex.EncodeToString(sum[:])
		return g, true
	}
	return GuidanceFile{}, false
}

// RecallArgs are the arguments of Recall.
type RecallArgs struct {
	Files map[string]string `json:"files"` // the sha256 of each when it was last read or written, by real path
}

// RecallOutput is what Recall returns.
type RecallOutput struct{ Common }

// Text implements Output.
func (o *RecallOutput) Text() string { return o.text(new(strings.Builder)) }

// recall takes up what was read in the session before its process was another. What
// has been read since counts more; and what has changed meanwhile is stale, as ever.
func (c *call) recall(_ context.Context, a RecallArgs) (*RecallOutput, error) {
	for path, sum := range a.Files {
		if _, err := hex.DecodeString(sum); err != nil || len(sum) != hex.EncodedLen(sha256.Size) || !filepath.IsAbs(path) {
			return nil, Errorf(BadArgs, "%.100q with %.80q is no file that was read", path, sum)
		}
		if _, known := c.session.recall(path); !known {
			c.session.remember(path, record{sha256: sum})
		}
	}
	return &RecallOutput{}, nil
}
