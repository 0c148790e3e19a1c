package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pkg/sftp"

	"sandgate/sandbox"
	"sandgate/sandbox/guest"
	"sandgate/store"
)

// A place is one end of a copy: a path in a sandbox, which is reached through the
// guest's file server, so that the image needs no program for it.
type place struct {
	login *Login
	row   store.Sandbox
	lease *sandbox.Lease
	files *sftp.Client
	wire  *placeStream
	path  string // as the guest has it; empty: where sessions begin
	stop  func() bool
}

// openPlace opens a place that is written as SANDBOX:PATH, for reading or for
// writing. A sandbox that is written to is made if need be. It is to be closed.
func (l *Login) openPlace(ctx context.Context, s string, writes bool) (*place, error) {
	name, file, ok := strings.Cut(s, ":")
	if !ok || strings.Contains(file, "\x00") {
		return nil, &problem{kind: usage, sentence: fmt.Sprintf("%.200q is no path in a sandbox", s), hint: "such as web:src/main.go, or - for the standard input or output"}
	}
	t, err := parseTarget(name)
	if err != nil {
		return nil, err
	}
	if t.lobby || t.session != "" {
		return nil, &problem{kind: usage, sentence: fmt.Sprintf("%.80q is not a sandbox name", name)}
	}
	p := &place{login: l, path: file}
	if writes {
		p.lease, p.row, err = l.Open(ctx, t, request{deed: copyWrites})
	} else if p.row, err = l.reach(ctx, t, request{deed: "cp"}); err == nil {
		p.lease, err = l.gate.sandboxes.Wake(ctx, p.row)
	}
	if err != nil {
		return nil, err
	}
	stream, err := p.lease.SFTP("", !writes)
	if err != nil {
		p.lease.Release()
		return nil, err
	}
	p.wire = &placeStream{Stream: stream, counts: l.gate.meter.of(p.row.ID)}
	p.wire.left.Store(unlimited)
	p.stop = context.AfterFunc(ctx, func() { stream.Close() })
	if p.files, err = sftp.NewClientPipe(p.wire, p.wire, sftp.UseConcurrentWrites(true)); err != nil {
		p.close()
		return nil, p.failed(ctx, "", err)
	}
	return p, nil
}

func (p *place) close() {
	p.stop()
	p.wire.Close()
	if p.files != nil {
		p.files.Close()
	}
	p.lease.Release()
}

// A placeStream is the stream of a place. It counts what passes, and ends a guest
// that tells more than it is to.
type placeStream struct {
	guest.Stream
	counts *counts
	left   atomic.Int64 // bytes that may still be read
}

const unlimited = 1 << 62

func (s *placeStream) Read(b []byte) (int, error) {
	n, err := s.Stream.Read(b)
	s.counts.out.Add(int64(n))
	if s.left.Add(-int64(n)) < 0 {
		return 0, errTooMuchListed
	}
	return n, err
}

func (s *placeStream) Write(b []byte) (int, error) {
	n, err := s.Stream.Write(b)
	s.counts.in.Add(int64(n))
	return n, err
}

var errTooMuchListed = errors.New("its folders have too many files")

// called is what users call a file in the place.
func (p *place) called(file string) string { return p.login.nameOf(p.row) + ":" + file }

// failed words what went wrong with a file.
func (p *place) failed(ctx context.Context, file string, err error) error {
	if _, ok := errors.AsType[*problem](err); ok {
		return err
	}
	says := &problem{kind: failed, sentence: fmt.Sprintf("%s: %s", printable(p.called(file)), oneLine(printable(err.Error())))}
	status, isStatus := errors.AsType[*sftp.StatusError](err)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, fs.ErrNotExist):
		says.kind, says.sentence = notFound, printable(p.called(file))+": there is no such file or folder"
	case errors.Is(err, fs.ErrPermission):
		says.kind, says.sentence = denied, printable(p.called(file))+": the sandbox's user may not do that"
	case isStatus && status.FxCode() != sftp.ErrSSHFxConnectionLost:
		_, text, _ := strings.Cut(status.Error(), `"`)
		if text, _, ok := strings.Cut(text, `"`); ok && text != "" {
			says.sentence = fmt.Sprintf("%s: %s", printable(p.called(file)), oneLine(printable(text)))
		}
	case p.wire.left.Load() < 0:
		says.sentence = printable(p.called(file)) + ": " + errTooMuchListed.Error()
	case errors.Is(err, sftp.ErrSSHFxConnectionLost), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, guest.ErrGone):
		return p.lease.Gone()
	}
	return says
}

// audit records an operation on a file.
func (p *place) audit(op, file string, err error) {
	p.login.audit(auditFile, &p.row, fmt.Sprintf("%s %.400q", op, file), err)
}

// joinPath is the path of a file in a folder.
func joinPath(dir, name string) string {
	switch {
	case dir == "" || name == "":
		return dir + name
	case strings.HasSuffix(dir, "/"):
		return dir + name
	}
	return dir + "/" + name
}

// Copied is what a copy has moved.
type Copied struct {
	Files   int   `json:"files"`
	Folders int   `json:"folders"`
	Links   int   `json:"links"`
	Bytes   int64 `json:"bytes"`
}

// A copier copies from one place to another. Nothing is kept in memory but a few
// packets, and the listings of the folders that it is in.
type copier struct {
	ctx       context.Context
	from, to  *place
	recursive bool
	failed    func(error)       // is told of what is left out
	shows     func(file string) // what comes next
	bytes     atomic.Int64      // so far

	done   Copied
	listed int64 // bytes of listings
}

// The bounds of a tree: what a guest may say of it.
const (
	maxListing   = 64 << 20 // bytes of the listings of nested folders
	maxTreeDepth = 256
)

// copy copies one file or, if that was asked for, one folder.
func (c *copier) copy() error {
	info, err := c.from.files.Stat(statable(c.from.path))
	if err != nil {
		return c.from.failed(c.ctx, c.from.path, err)
	}
	if info.IsDir() && !c.recursive {
		return &problem{kind: usage, sentence: printable(c.from.called(c.from.path)) + " is a folder", hint: "copy it with all that is in it: cp -r"}
	}
	source, err := c.from.files.RealPath(statable(c.from.path))
	if err != nil {
		return c.from.failed(c.ctx, c.from.path, err)
	}
	dest := c.to.path
	there, err := c.to.files.Stat(statable(dest))
	switch {
	case err == nil && there.IsDir():
		if base := path.Base(source); base != "/" && base != "." {
			dest = joinPath(dest, base)
		}
	case err == nil && info.IsDir():
		return &problem{kind: conflict, sentence: printable(c.to.called(dest)) + " is there, and no folder"}
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return c.to.failed(c.ctx, dest, err)
	case err != nil && strings.HasSuffix(dest, "/") && !info.IsDir():
		return c.to.failed(c.ctx, dest, err)
	}
	if c.from.row.ID == c.to.row.ID {
		into, err := c.to.files.RealPath(statable(dest))
		if err != nil {
			return c.to.failed(c.ctx, dest, err)
		}
		if into == source || info.IsDir() && strings.HasPrefix(into, strings.TrimSuffix(source, "/")+"/") {
			return &problem{kind: conflict, sentence: fmt.Sprintf("%s cannot be copied to itself", printable(c.from.called(c.from.path)))}
		}
	}
	if info.IsDir() {
		return c.folder(source, dest, info, 0)
	}
	return c.file(source, dest, info)
}

// statable is a path for requests that need one.
func statable(p string) string {
	if p == "" {
		return "."
	}
	return p
}

// file copies a regular file, with its permissions and times.
func (c *copier) file(from, to string, info os.FileInfo) error {
	if !info.Mode().IsRegular() {
		return &problem{kind: failed, sentence: printable(c.from.called(from)) + ": it is neither a file nor a folder, and is left out"}
	}
	c.shows(from)
	src, err := c.from.files.Open(from)
	c.from.audit("read", from, err)
	if err != nil {
		return c.from.failed(c.ctx, from, err)
	}
	defer src.Close()
	dst, err := c.to.files.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
	c.to.audit("write", to, err)
	if err != nil {
		return c.to.failed(c.ctx, to, err)
	}
	defer dst.Close()
	r, w := io.Pipe()
	read := make(chan error, 1)
	go func() {
		_, err := src.WriteTo(w)
		w.CloseWithError(err)
		read <- err
	}()
	_, err = dst.ReadFromWithConcurrency(countedReader{r, &c.bytes}, 0)
	r.CloseWithError(errWriteFailed)
	if readErr := <-read; readErr != nil && !errors.Is(readErr, errWriteFailed) {
		return c.from.failed(c.ctx, from, readErr)
	}
	if err == nil {
		err = dst.Close()
	}
	if err == nil {
		err = c.attributes(to, info)
	}
	if err != nil {
		return c.to.failed(c.ctx, to, err)
	}
	c.done.Files++
	return nil
}

// errWriteFailed ends the reading of what cannot be written.
var errWriteFailed = errors.New("cannot be written")

// attributes gives a copy its permissions and times. Set-user-ID and the like are
// left out: the copy may belong to somebody else.
func (c *copier) attributes(to string, info os.FileInfo) error {
	if err := c.to.files.Chmod(to, info.Mode().Perm()); err != nil {
		return err
	}
	accessed := info.ModTime()
	if stat, ok := info.Sys().(*sftp.FileStat); ok {
		accessed = time.Unix(int64(stat.Atime), 0)
	}
	return c.to.files.Chtimes(to, accessed, info.ModTime())
}

// folder copies a folder. What of it cannot be copied is told and left out.
func (c *copier) folder(from, to string, info os.FileInfo, depth int) error {
	if depth > maxTreeDepth {
		return &problem{kind: failed, sentence: printable(c.from.called(from)) + ": folders are nested too deeply"}
	}
	c.from.wire.left.Store(maxListing - c.listed)
	list, err := c.from.files.ReadDir(from)
	size := maxListing - c.listed - c.from.wire.left.Load()
	c.from.audit("list", from, err)
	if err != nil {
		return c.from.failed(c.ctx, from, err)
	}
	c.from.wire.left.Store(unlimited)
	c.listed += size
	defer func() { c.listed -= size }()
	// It has to be writable until all is in it.
	if err := c.to.files.Mkdir(to); err != nil {
		if there, statErr := c.to.files.Stat(to); statErr != nil || !there.IsDir() {
			return c.to.failed(c.ctx, to, err)
		}
	} else {
		c.to.audit("mkdir", to, nil)
	}
	for _, entry := range list {
		name := entry.Name()
		if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
			continue // no file has such a name
		}
		var err error
		switch {
		case entry.IsDir():
			err = c.folder(joinPath(from, name), joinPath(to, name), entry, depth+1)
		case entry.Mode()&fs.ModeSymlink != 0:
			err = c.link(joinPath(from, name), joinPath(to, name))
		default:
			err = c.file(joinPath(from, name), joinPath(to, name), entry)
		}
		if p, ok := errors.AsType[*problem](err); ok && c.ctx.Err() == nil {
			c.failed(p)
		} else if err != nil {
			return err
		}
	}
	if err := c.attributes(to, info); err != nil {
		return c.to.failed(c.ctx, to, err)
	}
	c.done.Folders++
	return nil
}

// link copies a symbolic link as it is.
func (c *copier) link(from, to string) error {
	target, err := c.from.files.ReadLink(from)
	if err != nil {
		return c.from.failed(c.ctx, from, err)
	}
	err = c.to.files.Symlink(target, to)
	if err != nil {
		if there, statErr := c.to.files.Lstat(to); statErr == nil && there.Mode()&fs.ModeSymlink != 0 && c.to.files.Remove(to) == nil {
			err = c.to.files.Symlink(target, to)
		}
	}
	c.to.audit("symlink", to, err)
	if err != nil {
		return c.to.failed(c.ctx, to, err)
	}
	c.done.Links++
	return nil
}

// A countedReader counts what is read.
type countedReader struct {
	io.Reader
	n *atomic.Int64
}

func (r countedReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.n.Add(int64(n))
	return n, err
}

// readFile moves a file to w.
func (p *place) readFile(ctx context.Context, w io.Writer) error {
	if info, err := p.files.Stat(statable(p.path)); err == nil && info.IsDir() {
		return &problem{kind: usage, sentence: printable(p.called(p.path)) + " is a folder"}
	}
	f, err := p.files.Open(statable(p.path))
	p.audit("read", p.path, err)
	if err != nil {
		return p.failed(ctx, p.path, err)
	}
	defer f.Close()
	if _, err := f.WriteTo(w); err != nil {
		return p.failed(ctx, p.path, err)
	}
	return nil
}

// writeFile makes a file of what is read from r.
func (p *place) writeFile(ctx context.Context, r io.Reader) (int64, error) {
	f, err := p.files.OpenFile(statable(p.path), os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
	p.audit("write", p.path, err)
	if err != nil {
		return 0, p.failed(ctx, p.path, err)
	}
	defer f.Close()
	// Whoever reads from a client may wait for long; the sandbox may be gone first.
	piped, w := io.Pipe()
	defer piped.Close()
	go func() {
		_, err := io.Copy(w, r)
		w.CloseWithError(err)
	}()
	go func() {
		p.files.Wait()
		w.CloseWithError(guest.ErrGone)
	}()
	n, err := f.ReadFromWithConcurrency(piped, 0)
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return n, p.failed(ctx, p.path, err)
	}
	return n, nil
}
