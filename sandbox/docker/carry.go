package docker

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sandgate/sandbox"
	"sandgate/sandbox/guest"
)

// Back-off between attempts to reach the guest of a sandbox that does not run yet.
const (
	firstTry = 50 * time.Millisecond
	lastTry  = time.Second
)

// carry waits for the guest's connection on an exec in the container. There is one
// at a time: the next call waits until this one's stream is closed.
func (d *Driver) carry(ctx context.Context, e *entry) (io.ReadWriteCloser, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(d.closing, func() { cancel(net.ErrClosed) })()
	go func() {
		select {
		case <-e.gone:
			cancel(sandbox.ErrNotFound)
		case <-ctx.Done():
		}
	}()
	select {
	case e.line <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	free := func() { <-e.line }
	for wait := firstTry; ; wait = min(2*wait, lastTry) {
		s, err := d.dial(ctx, e)
		if err == nil {
			s.over = free
			e.carry(s)
			return s, nil
		}
		var lost *sandbox.UnavailableError
		final := errors.As(err, &lost) || errors.Is(err, sandbox.ErrNotFound)
		if errors.Is(err, errNotRunning) {
			if ended := d.look(ctx, e); ended != nil {
				err, final = ended, true
			}
		}
		if final {
			free()
			return nil, err
		}
		d.log.Debug("guest not reached", "sandbox", e.id, "err", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			free()
			return nil, context.Cause(ctx)
		}
	}
}

// carry remembers the stream, so that it can be closed with what it leads to. Its
// reader may not be there to learn that.
func (e *entry) carry(s *execStream) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.carried = s
}

// hangUp closes the stream to a container that does not run.
func (e *entry) hangUp() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.carried != nil {
		e.carried.Close()
		e.carried = nil
	}
}

// dial runs `guest connect` in the container and waits for the guest.
func (d *Driver) dial(ctx context.Context, e *entry) (*execStream, error) {
	s, err := d.engine.exec(ctx, d.name(e.id), guest.ConnectArgs())
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { s.Close() })
	err = guest.AwaitConnected(s.out)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		s.Close()
		if said := strings.TrimSpace(s.stderr.String()); said != "" {
			err = fmt.Errorf("%w: %q", err, said)
		}
		return nil, err
	}
	return s, nil
}

// copyProgram puts our program into a container that does not run, if it is not
// there already. It is known by its size and time: who changes it in a sandbox
// changes nothing but that sandbox.
func (d *Driver) copyProgram(ctx context.Context, name string) error {
	program, err := os.Open(filepath.Join(d.programs(), filepath.Base(guest.Executable)))
	if err != nil {
		return err
	}
	defer program.Close()
	info, err := program.Stat()
	if err != nil {
		return err
	}
	size, modified, err := d.engine.stat(ctx, name, guest.Executable)
	if err == nil && size == info.Size() && modified.Unix() == info.ModTime().Unix() {
		return nil
	}
	if err != nil && !errors.Is(err, sandbox.ErrNotFound) {
		return err
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(writeArchive(w, program, info)) }()
	defer r.Close()
	return d.engine.copyIn(ctx, name, r)
}

// archNames are what engines call the platforms of Go.
var archNames = map[string][]string{
	"amd64": {"x86_64", "amd64"},
	"arm64": {"aarch64", "arm64"},
}

// writeArchive writes the folder of guest.Executable as an archive to be unpacked
// in a root folder.
func writeArchive(w io.Writer, program io.Reader, info os.FileInfo) error {
	buffered := bufio.NewWriterSize(w, 256<<10)
	archive := tar.NewWriter(buffered)
	root := strings.TrimPrefix(filepath.Dir(guest.Executable), "/")
	links := guest.ProgramLinks()
	headers := []*tar.Header{{Typeflag: tar.TypeDir, Name: root + "/", Mode: 0o755}}
	for _, name := range slices.Sorted(maps.Keys(links)) {
		headers = append(headers,
			&tar.Header{Typeflag: tar.TypeDir, Name: filepath.Join(root, filepath.Dir(name)) + "/", Mode: 0o755},
			&tar.Header{Typeflag: tar.TypeSymlink, Name: filepath.Join(root, name), Linkname: links[name], Mode: 0o777})
	}
	headers = append(headers, &tar.Header{
		Typeflag: tar.TypeReg,
		Name:     strings.TrimPrefix(guest.Executable, "/"),
		Mode:     0o555,
		Size:     info.Size(),
		ModTime:  info.ModTime(),
	})
	for _, h := range headers {
		if err := archive.WriteHeader(h); err != nil {
			return err
		}
	}
	if _, err := io.Copy(archive, program); err != nil {
		return err
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return buffered.Flush()
}
