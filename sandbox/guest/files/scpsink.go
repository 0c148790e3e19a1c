package files

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// sink takes what the client sends and puts it into target, if that is a
// directory, or under that name.
func (s *scp) sink(target string) error {
	if s.intoDir && !isDir(target) {
		return about(target, unix.ENOTDIR)
	}
	return s.take(target, isDir(target), false)
}

// take takes entries until the end of the directory that they are in, or at the
// top until the client has no more. into says that target is a directory.
func (s *scp) take(target string, into, nested bool) error {
	s.ack()
	var times *scpTimes // of the next entry
	for {
		if err := s.out.Flush(); err != nil {
			return err
		}
		if _, err := s.in.Peek(1); err != nil && !nested {
			return nil
		}
		line, err := s.line()
		if err != nil {
			return err
		}
		if line == "" {
			return errScpLine
		}
		switch line[0] {
		case 1: // what the client could not send; it has told its user
			s.failed = true
		case 2:
			return fmt.Errorf("client: %s", line[1:])
		case 'E':
			if !nested || line != "E" {
				return errScpLine
			}
			s.ack()
			return nil
		case 'T':
			t, err := parseScpTimes(line)
			if err != nil {
				return err
			}
			times = &t
			s.ack()
		default:
			if err := s.takeEntry(target, into, line, times); err != nil {
				return err
			}
			times = nil
		}
	}
}

func (s *scp) takeEntry(target string, into bool, line string, times *scpTimes) error {
	e, err := parseScpEntry(line)
	if err != nil {
		return err
	}
	if into {
		target += "/" + e.name
	}
	if !s.preserve {
		times = nil
	}
	if !e.dir {
		return s.takeFile(target, e, times)
	}
	if !s.recursive {
		return errors.New("received a directory without -r")
	}
	return s.takeDir(target, e, times)
}

// takeDir takes a directory and what is in it. Its mode and times come last: it
// has to be writable until then, and every entry changes its time.
func (s *scp) takeDir(path string, e scpEntry, times *scpTimes) error {
	err := unix.Mkdir(path, e.mode|0o700)
	made := err == nil
	if err == unix.EEXIST {
		err = nil
		if !isDir(path) {
			err = unix.ENOTDIR
		}
	}
	if err != nil {
		s.fail(about(path, err)) // so the client does not send what is in it
		return nil
	}
	if err := s.take(path, true, true); err != nil {
		return err
	}
	if err := s.finish(byName(path), e.mode, 0o700, made, times); err != nil {
		s.fail(about(path, err))
	}
	return nil
}

// takeFile takes the content of a file. Once it has asked for that, exactly
// size bytes and one answer follow, whatever the disk says.
func (s *scp) takeFile(path string, e scpEntry, times *scpTimes) error {
	f, made, err := createFile(path, e.mode)
	if err != nil {
		s.fail(about(path, err)) // so the client does not send it
		return nil
	}
	defer f.Close()
	s.ack()
	if err := s.out.Flush(); err != nil {
		return err
	}
	writeErr, err := s.copyIn(f, e.size)
	if err != nil {
		return err
	}
	if writeErr == nil {
		writeErr = trim(f, e.size)
	}
	if err := s.finish(byHandle(f.Fd()), e.mode, 0o200, made, times); writeErr == nil {
		writeErr = err
	}
	if err := f.Close(); writeErr == nil {
		writeErr = err
	}
	if _, err := s.answered(); err != nil {
		return err
	}
	if writeErr != nil {
		s.fail(about(path, writeErr))
		return nil
	}
	s.ack()
	return nil
}

// createFile opens a file for writing, and says whether it made it. One that is
// there keeps its content, so that what cannot be opened is not lost, and its
// mode.
func createFile(path string, mode uint32) (f *os.File, made bool, err error) {
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_CLOEXEC | unix.O_NOCTTY | unix.O_NONBLOCK
	fd, err := openAgain(path, flags|unix.O_EXCL, mode|0o200)
	made = err == nil
	if err == unix.EEXIST {
		fd, err = openAgain(path, flags, mode|0o200)
	}
	if err != nil {
		return nil, false, err
	}
	return os.NewFile(uintptr(fd), path), made, nil
}

// copyIn reads size bytes from the client into f. When f takes no more the rest
// is still read, and writeErr says why it was not kept.
func (s *scp) copyIn(f *os.File, size int64) (writeErr, err error) {
	buf := s.buffer()
	for size > 0 {
		n, err := s.in.Read(buf[:min(size, int64(len(buf)))])
		if n > 0 && writeErr == nil {
			_, writeErr = f.Write(buf[:n])
		}
		size -= int64(n)
		if err != nil && size > 0 {
			if err == io.EOF {
				err = errLost
			}
			return writeErr, err
		}
	}
	return writeErr, nil
}

// trim cuts off what the file had before.
func trim(f *os.File, size int64) error {
	fi, err := f.Stat()
	if err != nil || !fi.Mode().IsRegular() || fi.Size() <= size {
		return err
	}
	return f.Truncate(size)
}

// finish gives a file or directory the mode and times that were sent with it.
// Without -p the umask has had its say, and only what was lent for writing is
// taken back.
func (s *scp) finish(t target, mode, lent uint32, made bool, times *scpTimes) error {
	switch {
	case s.preserve:
		if err := t.chmod(mode); err != nil {
			return err
		}
	case made && lent&^mode != 0:
		var st unix.Stat_t
		if err := t.stat(&st); err != nil {
			return err
		}
		if err := t.chmod(st.Mode & 0o7777 &^ (lent &^ mode)); err != nil {
			return err
		}
	}
	if times != nil {
		return t.chtimes(*times)
	}
	return nil
}
