//go:build linux

package guest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// The shape of a log. Its first bytes are one file and what follows comes in pieces,
// so that the middle can be dropped with whole files; which bytes are in which file
// is arithmetic. An ordinary log is one file with just the output in it.
const (
	logHead   = 16 << 20
	logPiece  = 8 << 20
	logPieces = 6 // that are kept, the last one growing

	// Who said what is a file beside them: for each change between stdout and
	// stderr eight bytes, the offset times two, plus one for stderr. After so many
	// changes all that follows counts as said by the last.
	maxSwitches = 1 << 20
	switchLen   = 8
)

// A jobLog is all that a job prints, as far as it is kept. One writes, any number
// read.
type jobLog struct {
	dir string

	mu       sync.Mutex
	size     int64 // of all output
	stderr   bool  // who said the last byte
	switches int64
	out      *os.File      // the piece that grows; nil: none open
	index    *os.File      // of switches; nil: none open
	failed   error         // why nothing is kept any more
	ended    bool          // nothing will come any more
	changed  chan struct{} // closed, and replaced, when one of them changes
}

// openLog opens the log in dir, of which size bytes are known to be good; negative:
// as many as there are.
func openLog(dir string, size int64) *jobLog {
	l := &jobLog{dir: dir, size: size, changed: make(chan struct{})}
	if size < 0 {
		l.size = 0
		for n := range l.stored() {
			if fi, err := os.Lstat(l.path(n)); err == nil {
				l.size = max(l.size, pieceStart(n)+fi.Size())
			}
		}
	}
	if fi, err := os.Lstat(filepath.Join(dir, indexName)); err == nil {
		l.switches = min(fi.Size()/switchLen, maxSwitches)
	}
	return l
}

const indexName = "switches"

// pieceOf returns the number of the piece that has a byte: 0 is the head.
func pieceOf(offset int64) int64 {
	if offset < logHead {
		return 0
	}
	return 1 + (offset-logHead)/logPiece
}

func pieceStart(n int64) int64 {
	if n == 0 {
		return 0
	}
	return logHead + (n-1)*logPiece
}

func (l *jobLog) path(n int64) string {
	if n == 0 {
		return filepath.Join(l.dir, "output")
	}
	return filepath.Join(l.dir, "output."+strconv.FormatInt(n, 10))
}

// stored returns the numbers of the pieces on disk.
func (l *jobLog) stored() map[int64]bool {
	found := make(map[int64]bool)
	entries, _ := os.ReadDir(l.dir)
	for _, e := range entries {
		if e.Name() == "output" {
			found[0] = true
		} else if n, ok := bytes.CutPrefix([]byte(e.Name()), []byte("output.")); ok {
			if n, err := strconv.ParseInt(string(n), 10, 40); err == nil && n > 0 {
				found[n] = true
			}
		}
	}
	return found
}

// create opens a file of the log for writing. The folder is the guest's alone, and
// whoever finds another way into it gains nothing by a link.
func (l *jobLog) create(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW, 0o644)
}

// append adds output. What cannot be kept is dropped, so that the job goes on.
func (l *jobLog) append(stderr bool, p []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed != nil || l.ended || len(p) == 0 {
		return
	}
	if stderr != l.stderr && l.switches < maxSwitches {
		if l.failed = l.note(stderr); l.failed == nil {
			l.stderr = stderr
			l.switches++
		}
	}
	for len(p) > 0 && l.failed == nil {
		n := pieceOf(l.size)
		if l.out == nil {
			l.out, l.failed = l.create(l.path(n))
			continue
		}
		wrote, err := l.out.Write(p[:min(int64(len(p)), pieceStart(n+1)-l.size)])
		if old := n - logPieces; wrote > 0 && l.size == pieceStart(n) && old >= 1 {
			os.Remove(l.path(old))
		}
		p = p[wrote:]
		l.size += int64(wrote)
		l.failed = err
		if l.size == pieceStart(n+1) {
			l.out.Close()
			l.out = nil
		}
	}
	l.announce()
}

// note records that from here on the other one speaks.
func (l *jobLog) note(stderr bool) (err error) {
	if l.index == nil {
		if l.index, err = l.create(filepath.Join(l.dir, indexName)); err != nil {
			return err
		}
	}
	entry := uint64(l.size) << 1
	if stderr {
		entry |= 1
	}
	_, err = l.index.Write(binary.BigEndian.AppendUint64(nil, entry))
	return err
}

// announce wakes those who wait for a change. The caller holds mu.
func (l *jobLog) announce() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// end says that no more will come.
func (l *jobLog) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	closeAll([]*os.File{l.out, l.index})
	l.out, l.index = nil, nil
	l.announce()
}

// extent returns how much there was, and which part of it is not kept.
func (l *jobLog) extent() (size, droppedFrom, droppedTo int64, failed error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	from, to := l.dropped()
	return l.size, from, to, l.failed
}

// dropped returns the part that is not kept. The caller holds mu.
func (l *jobLog) dropped() (from, to int64) {
	if l.size == 0 {
		return 0, 0
	}
	if oldest := pieceOf(l.size-1) - logPieces + 1; oldest > 1 {
		return logHead, pieceStart(oldest)
	}
	return 0, 0
}

// A logReader reads a log from some offset on.
type logReader struct {
	log    *jobLog
	offset int64

	piece int64 // that file is
	file  *os.File
	index *os.File
	next  int64 // the number of the first switch behind offset
	found bool  // next has been looked for
	said  bool  // by stderr, what is at offset
}

func (r *logReader) close() { closeAll([]*os.File{r.file, r.index}) }

// read reads what one of the two has said at offset, as far as it fits in p, and
// moves on. With nothing there it returns 0, and a channel that is closed when that
// changes; nil if it never will. A part that is not kept is skipped: see offset.
func (r *logReader) read(p []byte) (n int, stderr bool, more <-chan struct{}, err error) {
	l := r.log
again:
	l.mu.Lock()
	size, switches, ended, changed := l.size, l.switches, l.ended || l.failed != nil, l.changed
	if from, to := l.dropped(); r.offset >= from && r.offset < to {
		r.offset = to
	}
	l.mu.Unlock()
	if r.offset >= size {
		if ended {
			return 0, false, nil, nil
		}
		return 0, false, changed, nil
	}
	until, err := r.turn(switches, size)
	if err != nil {
		return 0, false, nil, err
	}
	number := pieceOf(r.offset)
	if r.file == nil || r.piece != number {
		closeAll([]*os.File{r.file})
		r.file, err = os.OpenFile(l.path(number), os.O_RDONLY|unix.O_NOFOLLOW, 0)
		if errors.Is(err, os.ErrNotExist) {
			select {
			case <-changed: // dropped just now
				goto again
			default:
			}
		}
		if err != nil {
			return 0, false, nil, err
		}
		r.piece = number
	}
	want := min(int64(len(p)), until-r.offset, pieceStart(number+1)-r.offset)
	n, err = r.file.ReadAt(p[:want], r.offset-pieceStart(number))
	if n > 0 || err == io.EOF {
		err = nil
	}
	if n == 0 && err == nil { // shorter than it should be: somebody cut it
		return 0, false, nil, io.ErrUnexpectedEOF
	}
	r.offset += int64(n)
	return n, r.said, changed, err
}

// turn finds out who says the byte at offset, and up to where.
func (r *logReader) turn(switches, size int64) (until int64, err error) {
	if switches == 0 {
		return size, nil
	}
	if r.index == nil {
		if r.index, err = os.OpenFile(filepath.Join(r.log.dir, indexName), os.O_RDONLY|unix.O_NOFOLLOW, 0); err != nil {
			return 0, err
		}
	}
	if !r.found { // by halves
		low, high := int64(0), switches
		for low < high {
			middle := (low + high) / 2
			at, _, err := r.entry(middle)
			if err != nil {
				return 0, err
			}
			if at <= r.offset {
				low = middle + 1
			} else {
				high = middle
			}
		}
		r.next, r.found = low, true
		if low > 0 {
			if _, r.said, err = r.entry(low - 1); err != nil {
				return 0, err
			}
		}
	}
	for ; r.next < switches; r.next++ {
		at, stderr, err := r.entry(r.next)
		if err != nil {
			return 0, err
		}
		if at > r.offset {
			return min(at, size), nil
		}
		r.said = stderr
	}
	return size, nil
}

func (r *logReader) entry(n int64) (offset int64, stderr bool, err error) {
	var b [switchLen]byte
	if _, err := r.index.ReadAt(b[:], n*switchLen); err != nil {
		return 0, false, err
	}
	e := binary.BigEndian.Uint64(b[:])
	return int64(e >> 1), e&1 == 1, nil
}

// tail returns the offset at which the last n lines begin, within what is kept at
// the end.
func (l *jobLog) tail(n int) int64 {
	size, _, oldest, _ := l.extent()
	end := size
	buf := make([]byte, 64<<10)
	for end > oldest {
		start := max(end-int64(len(buf)), oldest, pieceStart(pieceOf(end-1)))
		f, err := os.OpenFile(l.path(pieceOf(start)), os.O_RDONLY|unix.O_NOFOLLOW, 0)
		if err != nil {
			return end
		}
		p := buf[:end-start]
		_, err = f.ReadAt(p, start-pieceStart(pieceOf(start)))
		f.Close()
		if err != nil {
			return end
		}
		for len(p) > 0 {
			i := bytes.LastIndexByte(p, '\n')
			if i < 0 {
				break
			}
			// The newline that ends the last line begins no other.
			if at := start + int64(i) + 1; at < size {
				if n--; n == 0 {
					return at
				}
			}
			p = p[:i]
		}
		end = start
	}
	return oldest
}
