package files

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// source gives the client files, once it is ready.
func (s *scp) source(paths []string) error {
	if _, err := s.answered(); err != nil {
		return err
	}
	for _, path := range paths {
		for _, path := range expand(path) {
			if err := s.give(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// expand does what a shell would have done, for images that have none. What
// matches nothing stays as it is, to be reported.
func expand(path string) []string {
	if _, err := os.Lstat(path); err == nil || !strings.ContainsAny(path, "*?[") {
		return []string{path}
	}
	matches, err := filepath.Glob(path)
	if err != nil {
		return []string{path}
	}
	if hidden := strings.HasPrefix(filepath.Base(path), "."); !hidden {
		kept := matches[:0]
		for _, m := range matches {
			if !strings.HasPrefix(filepath.Base(m), ".") {
				kept = append(kept, m)
			}
		}
		matches = kept
	}
	if len(matches) == 0 {
		return []string{path}
	}
	return matches
}

// give sends the file or directory at path. Links are followed, as in scp.
func (s *scp) give(path string) error {
	fd, err := openAgain(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		s.fail(about(path, err))
		return nil
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		s.fail(about(path, err))
		return nil
	}
	e := scpEntry{
		dir:  st.Mode&unix.S_IFMT == unix.S_IFDIR,
		mode: st.Mode & 0o7777,
		name: lineName(path),
	}
	switch {
	case e.dir && s.recursive:
		return s.giveDir(f, path, e, &st)
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		s.fail(about(path, errors.New("not a regular file")))
		return nil
	}
	e.size = st.Size
	return s.giveFile(f, path, e, &st)
}

// lineName returns the last component of path as a line can carry it: a new
// line becomes what vis(3) makes of it, as in OpenSSH.
func lineName(path string) string {
	path = strings.TrimRight(path, "/")
	return strings.ReplaceAll(path[strings.LastIndexByte(path, '/')+1:], "\n", `\^J`)
}

// announce sends an entry's lines. It reports whether the client wants it.
func (s *scp) announce(e scpEntry, st *unix.Stat_t) (bool, error) {
	if s.preserve {
		times := scpTimes{{Sec: max(0, st.Atim.Sec)}, {Sec: max(0, st.Mtim.Sec)}}
		s.out.WriteString(times.String() + "\n")
		if ok, err := s.answered(); !ok {
			return false, err
		}
	}
	s.out.WriteString(e.String() + "\n")
	return s.answered()
}

// giveFile sends a file. Its size has been promised, so one that cannot be read
// to there is filled with zeros and then reported.
func (s *scp) giveFile(f *os.File, path string, e scpEntry, st *unix.Stat_t) error {
	if ok, err := s.announce(e, st); !ok {
		return err
	}
	var readErr error
	buf := s.buffer()
	for left := e.size; left > 0; {
		chunk := buf[:min(left, int64(len(buf)))]
		n := 0
		if readErr == nil {
			n, readErr = io.ReadFull(f, chunk)
		}
		clear(chunk[n:])
		if _, err := s.out.Write(chunk); err != nil {
			return err
		}
		left -= int64(len(chunk))
	}
	switch {
	case readErr == io.EOF, readErr == io.ErrUnexpectedEOF:
		s.fail(about(path, errors.New("file became shorter")))
	case readErr != nil:
		s.fail(about(path, readErr))
	default:
		s.ack()
	}
	_, err := s.answered()
	return err
}

func (s *scp) giveDir(f *os.File, path string, e scpEntry, st *unix.Stat_t) error {
	if ok, err := s.announce(e, st); !ok {
		return err
	}
	for {
		names, err := f.Readdirnames(dirBatch)
		if err == io.EOF {
			break
		}
		if err != nil {
			s.fail(about(path, err))
			break
		}
		for _, name := range names {
			if err := s.give(path + "/" + name); err != nil {
				return err
			}
		}
	}
	s.out.WriteString("E\n")
	_, err := s.answered()
	return err
}
