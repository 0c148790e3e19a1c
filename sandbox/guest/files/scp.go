package files

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// scpChunk is how much is read and written at once.
const scpChunk = 256 << 10

const scpUsage = "usage: scp [-pqrv] [-d] -t target\n       scp [-pqrv] -f file ...\n"

// SCP is the remote side of the old scp protocol, which has no other description
// than OpenSSH's scp.c: `scp -t` takes files from the client, `scp -f` gives it
// some. args are those after the program's name; paths are relative to the
// process's working folder. What goes wrong with one file is told to the client,
// which prints it, and the others go on. The result is the exit status.
func SCP(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	s := &scp{
		in:  bufio.NewReaderSize(stdin, scpChunk),
		out: bufio.NewWriterSize(stdout, scpChunk),
	}
	take, paths, err := s.parse(args)
	if err != nil {
		fmt.Fprintf(stderr, "scp: %v\n%s", err, scpUsage)
		return 1
	}
	if take {
		err = s.sink(paths[0])
	} else {
		err = s.source(paths)
	}
	if err != nil {
		s.fail(err)
	}
	if s.out.Flush() != nil || s.failed {
		return 1
	}
	return 0
}

// An scp is one run of the program. The errors of its methods end the run; those
// of single files go through fail.
type scp struct {
	in  *bufio.Reader
	out *bufio.Writer

	recursive, preserve, intoDir bool

	failed bool // something: the exit status is 1
	buf    []byte
}

// errLost means that the client has gone in the middle.
var errLost = errors.New("lost connection")

// parse reads the command line. take is for -t, and then there is one path.
func (s *scp) parse(args []string) (take bool, paths []string, err error) {
	var give bool
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		arg := args[0]
		args = args[1:]
		if arg == "--" {
			break
		}
		for _, c := range arg[1:] {
			switch c {
			case 't':
				take = true
			case 'f':
				give = true
			case 'r':
				s.recursive = true
			case 'p':
				s.preserve = true
			case 'd':
				s.intoDir = true
			case 'v', 'q':
			default:
				return false, nil, fmt.Errorf("unknown option -- %c", c)
			}
		}
	}
	switch {
	case take == give:
		return false, nil, errors.New("one of -t and -f is needed")
	case take && len(args) != 1:
		return false, nil, errors.New("ambiguous target")
	case len(args) == 0:
		return false, nil, errors.New("no files")
	}
	return take, args, nil
}

// fail tells the client that something has gone wrong.
func (s *scp) fail(err error) {
	s.failed = true
	fmt.Fprintf(s.out, "\x01scp: %s\n", strings.ReplaceAll(err.Error(), "\n", "?"))
}

// about words an error of the system as scp does: the path, then the reason.
func about(path string, err error) error {
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return fmt.Errorf("%s: %s", path, errnoText(errno))
	}
	return fmt.Errorf("%s: %v", path, err)
}

// ack tells the client to go on.
func (s *scp) ack() { s.out.WriteByte(0) }

// answered sends what is buffered and waits for the client's answer. It reports
// whether that was to go on: if not, the client has told its user why.
func (s *scp) answered() (bool, error) {
	if err := s.out.Flush(); err != nil {
		return false, err
	}
	c, err := s.in.ReadByte()
	if err != nil {
		return false, errLost
	}
	if c == 0 {
		return true, nil
	}
	s.failed = true
	why, err := s.line()
	if err == nil && c == 2 {
		err = fmt.Errorf("client: %s", why)
	}
	return false, err
}

// maxLine bounds a line of the protocol: a name and three numbers.
const maxLine = 8 << 10

// line reads the rest of a line, without its end. It is valid until the next read.
func (s *scp) line() (string, error) {
	b, err := s.in.ReadSlice('\n')
	if len(b) > maxLine || err == bufio.ErrBufferFull {
		return "", errors.New("protocol error: line too long")
	}
	if err != nil {
		return "", errLost
	}
	return string(b[:len(b)-1]), nil
}

// buffer is for file data. There is one, as one file moves at a time.
func (s *scp) buffer() []byte {
	if s.buf == nil {
		s.buf = make([]byte, scpChunk)
	}
	return s.buf
}

// isDir follows links.
func isDir(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.IsDir()
}
