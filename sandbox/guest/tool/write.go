package tool

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// WriteArgs are the arguments of write.
type WriteArgs struct {
	Path     string `json:"path" jsonschema:"the file; folders above it are made"`
	Content  string `json:"content" jsonschema:"all that the file is to have, at most 10 MiB"`
	Encoding string `json:"encoding,omitempty" enum:"utf-8,base64" jsonschema:"how content is written here: utf-8 (default) or base64"`
	Mode     string `json:"mode,omitempty" jsonschema:"permissions in octal, such as 0755"`
	Expect   string `json:"expect,omitempty" jsonschema:"write only if the file has this sha256, or with absent if there is none"`
	Append   bool   `json:"append,omitempty" jsonschema:"add to the end of the file"`
}

// WriteOutput is what write returns.
type WriteOutput struct {
	Path   string `json:"path" jsonschema:"the file without links"`
	Status string `json:"status" jsonschema:"created, updated or unchanged"`
	Bytes  int64  `json:"bytes" jsonschema:"size of the file now"`
	Lines  int    `json:"lines" jsonschema:"lines of what was written"`
	SHA256 string `json:"sha256,omitempty" jsonschema:"of the file now"`
	Change
	Common
}

// Text is the output as a model reads it.
func (o *WriteOutput) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s, %d lines, %d bytes", o.Path, o.Status, o.Lines, o.Bytes)
	if o.Added+o.Removed > 0 {
		fmt.Fprintf(&b, " (+%d −%d)", o.Added, o.Removed)
	}
	if o.Status == "updated" && o.Diff != "" {
		b.WriteString("\n" + o.Diff)
	}
	return o.text(&b)
}

func (c *call) write(ctx context.Context, a WriteArgs) (*WriteOutput, error) {
	path, err := c.resolve(a.Path)
	if err != nil {
		return nil, err
	}
	content, mode, err := a.parse()
	if err != nil {
		return nil, err
	}
	real, linked, err := c.locate(path)
	if err != nil {
		return nil, err
	}
	defer c.session.turn(real)()
	t, err := c.look(ctx, real)
	if err != nil {
		return nil, err
	}
	out := &WriteOutput{Path: clean([]byte(real)), Lines: linesIn(content)}
	if linked {
		out.note("%s is a link; what it points to was written", path)
	}
	switch {
	case a.Expect == "absent" && t.exists, a.Expect != "" && a.Expect != "absent" && !strings.EqualFold(a.Expect, t.sha256):
		e := Errorf(Stale, "%s is not as expected: it %s", real, t.state())
		e.SHA256 = t.sha256
		return nil, e
	case a.Append && t.exists:
		return out, c.append(t, content, mode, out)
	case t.exists && t.old != nil && bytes.Equal(t.old, content):
		out.Status = "unchanged"
		if mode != nil {
			if err := os.Chmod(real, *mode); err != nil {
				return nil, fileError("change the mode of", real, err)
			}
		}
	default:
		if t.exists && a.Expect == "" {
			if err := c.fresh(t); err != nil {
				return nil, err
			}
		}
		if err := c.replace(t, content, mode, &out.Common); err != nil {
			return nil, err
		}
		out.Status = "created"
		if t.exists {
			out.Status = "updated"
			if t.old != nil {
				out.Change = changed(filepath.Base(real), t.old, content)
				if eolIn(t.old) == crlf && eolIn(content) == lf {
					out.note("the lines of the old file ended in CRLF, those of the new one end in LF")
				}
			}
		} else {
			out.Added = out.Lines
		}
	}
	out.Bytes = int64(len(content))
	out.SHA256 = c.know(real, content)
	return out, nil
}

// parse returns what is to be written, and the mode if one was given.
func (a WriteArgs) parse() ([]byte, *fs.FileMode, error) {
	content := []byte(a.Content)
	if a.Encoding == "base64" {
		var err error
		if content, err = base64.StdEncoding.DecodeString(strings.Join(strings.Fields(a.Content), "")); err != nil {
			return nil, nil, Errorf(BadArgs, "content is not base64: %v", err).With("encode it again, or leave encoding out for plain text")
		}
	}
	if len(content) > maxFile {
		e := Errorf(TooLarge, "the content has %d bytes; %d can be written in one call", len(content), maxFile)
		e.Size = int64(len(content))
		return nil, nil, e.With("write the first part, then the others with append")
	}
	if a.Mode == "" {
		return content, nil, nil
	}
	n, err := strconv.ParseUint(strings.TrimPrefix(a.Mode, "0o"), 8, 16)
	if err != nil || n > 0o7777 {
		return nil, nil, Errorf(BadArgs, "mode %.20q is no octal number from 0 to 7777", a.Mode).With("give it like 0644 or 0755")
	}
	mode := fs.FileMode(n & 0o777)
	for bit, m := range map[uint64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if n&bit != 0 {
			mode |= m
		}
	}
	return content, &mode, nil
}

func (t *target) state() string {
	if !t.exists {
		return "does not exist"
	}
	return "has the sha256 " + t.sha256
}

// replace gives a file its new content.
func (c *call) replace(t *target, content []byte, mode *fs.FileMode, notes *Common) error {
	if !t.exists {
		if err := os.MkdirAll(filepath.Dir(t.path), 0o755); err != nil {
			return fileError("make the folder of", t.path, err)
		}
	}
	m := fs.FileMode(0o644)
	if t.exists {
		m = t.info.Mode()
	}
	if mode != nil {
		m = *mode
	}
	note, err := t.save(content, m)
	if err != nil {
		return fileError("write", t.path, err)
	}
	if note == "" {
		return nil
	}
	notes.note("%s", note)
	if mode != nil {
		if err := os.Chmod(t.path, *mode); err != nil {
			return fileError("change the mode of", t.path, err)
		}
	}
	return nil
}

// append adds to a file. If there is no room for all of it, nothing is added.
func (c *call) append(t *target, content []byte, mode *fs.FileMode, out *WriteOutput) error {
	f, err := os.OpenFile(t.path, os.O_WRONLY|os.O_APPEND|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fileError("write", t.path, err)
	}
	defer f.Close()
	if _, err := f.Write(content); err != nil {
		f.Truncate(t.info.Size())
		return fileError("write", t.path, err)
	}
	if mode != nil {
		if err := f.Chmod(*mode); err != nil {
			return fileError("change the mode of", t.path, err)
		}
	}
	if err := f.Sync(); err != nil {
		return fileError("write", t.path, err)
	}
	out.Status, out.Bytes, out.Added = "updated", t.info.Size()+int64(len(content)), out.Lines
	if t.old != nil {
		whole := append(bytes.Clone(t.old), content...)
		if _, known := c.session.recall(t.path); known && c.fresh(t) == nil {
			out.SHA256 = c.know(t.path, whole)
		}
		out.Change = changed(filepath.Base(t.path), t.old, whole)
	}
	return nil
}
