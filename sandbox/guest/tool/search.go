package tool

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"regexp"
	"sync"

	"golang.org/x/sys/unix"
)

// A walker is our own finder.
type walker struct {
	*query
	re *regexp.Regexp
}

// searchers is how many files are searched at the same time.
const searchers = 4

// A candidate is a file to be searched, and where what it has is wanted.
type candidate struct {
	rel  string
	done chan hits
}

func (s *walker) find(ctx context.Context, emit func(hits)) (string, error) {
	if s.single {
		h, err := s.file(ctx, new(bytes.Buffer), s.root)
		if err != nil {
			return "", fileError("search", s.root, err)
		}
		emit(h)
		return "", nil
	}
	w := &walk{root: s.root, home: s.home, ignored: s.Ignored, hidden: true}
	// Files are searched side by side, and their hits emitted in order.
	files := make(chan candidate, 64)
	results := make(chan chan hits, 64)
	var wg sync.WaitGroup
	defer wg.Wait()
	var walkErr error
	wg.Go(func() {
		defer close(results)
		defer close(files)
		walkErr = w.each(ctx, func(rel string, e fs.DirEntry) error {
			if !e.Type().IsRegular() || !s.accepts(rel) {
				return nil
			}
			c := candidate{rel, make(chan hits, 1)}
			results <- c.done
			files <- c
			return nil
		})
	})
	for range searchers {
		wg.Go(func() {
			var buf bytes.Buffer
			for c := range files {
				// One that cannot be read, or is gone by now, has nothing.
				h, _ := s.file(ctx, &buf, filepath.Join(s.root, c.rel))
				h.rel = c.rel
				c.done <- h
			}
		})
	}
	for done := range results {
		emit(<-done)
	}
	return w.stopped, walkErr
}

// file searches one file.
func (s *walker) file(ctx context.Context, buf *bytes.Buffer, path string) (hits, error) {
	if err := ended(ctx); err != nil {
		return hits{}, err
	}
	err := load(buf, path)
	if err == errLarge {
		return hits{large: true}, nil
	}
	if err != nil {
		return hits{}, err
	}
	text := buf.Bytes()
	if !s.mayMatch(text) {
		return hits{}, nil
	}
	f := sniff(head(text))
	switch {
	case f.binary != "" && s.re.Match(text):
		return hits{count: 1, binary: true}, nil
	case f.binary != "":
		return hits{}, nil
	}
	text = text[f.bom:]
	if f.charset == utf16LE || f.charset == utf16BE {
		text = f.charset.decode(text)
	}
	if bytes.Contains(text, []byte("\r\n")) { // or $ would not be before it
		text = bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))
	}
	return s.search(text), nil
}

// mayMatch is false for a file in which nothing matches, whatever it is: to tell what it
// is takes longer than to search it.
func (s *walker) mayMatch(text []byte) bool {
	if bytes.HasPrefix(text, []byte("\xff\xfe")) || bytes.HasPrefix(text, []byte("\xfe\xff")) || bytes.Contains(text, []byte("\r\n")) {
		return true // it is not searched as it is
	}
	return s.re.Match(bytes.TrimPrefix(text, []byte("\xef\xbb\xbf")))
}

var errLarge = errors.New("file too large")

// load reads a regular file of at most grepFile bytes. It makes as few system calls
// as there can be, for there are many files.
func load(buf *bytes.Buffer, path string) error {
	buf.Reset()
	fd, err := ignoringEINTR(func() (int, error) {
		return unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return fs.ErrInvalid
	case st.Size > grepFile:
		return errLarge
	}
	buf.Grow(int(st.Size) + 512) // for more than it says, as the files of /proc have
	for {
		free := buf.AvailableBuffer()
		if cap(free) == 0 {
			buf.Grow(buf.Len() + 4096)
			continue
		}
		n, err := ignoringEINTR(func() (int, error) { return unix.Read(fd, free[:cap(free)]) })
		if err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
		buf.Write(free[:n])
		if buf.Len() > grepFile {
			return errLarge
		}
		if int64(buf.Len()) == st.Size {
			return nil // what is written to it just now is not waited for
		}
	}
}

func ignoringEINTR(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if err != unix.EINTR {
			return n, err
		}
	}
}

// search finds the matching lines of a text, or the regions where a match may have
// several.
func (s *walker) search(text []byte) hits {
	var h hits
	sc := scene{text: text, query: s.query}
	for at := 0; at < len(text); {
		loc := s.re.FindIndex(text[at:])
		if loc == nil {
			break
		}
		from, to := at+loc[0], at+loc[1]
		start := bytes.LastIndexByte(text[:from], '\n') + 1
		end := lineEnd(text, from)
		if to > end && !s.Multiline {
			// It went over the line's end, which a line by itself has not.
			own := s.re.FindIndex(text[start:end])
			if own == nil {
				at = end + 1
				continue
			}
			from, to = start+own[0], start+own[1]
		}
		if s.Multiline && to > end {
			end = lineEnd(text, to-1)
		}
		h.count++
		if s.Mode == "content" && h.count <= s.lines {
			sc.show(start, end, from, to)
		}
		at = end + 1
	}
	h.shown = sc.finish()
	return h
}

// lineEnd is where the line with text[at] in it ends.
func lineEnd(text []byte, at int) int {
	if i := bytes.IndexByte(text[at:], '\n'); i >= 0 {
		return at + i
	}
	return len(text)
}

// A scene collects the lines that are shown of a text.
type scene struct {
	*query
	text  []byte
	next  int // where the first line that is not shown yet begins
	line  int // its number, less one
	after int // lines still to be shown after the last match
	hits  []hit
}

// regionLines bounds the lines shown of one match.
const regionLines = 50

// show adds the lines from start to end, with those around them.
func (sc *scene) show(start, end, from, to int) {
	sc.showAfter(start)
	first := start
	for range sc.Before {
		if first <= sc.next {
			break
		}
		first = bytes.LastIndexByte(sc.text[:first-1], '\n') + 1
	}
	first = max(first, sc.next)
	sc.line += bytes.Count(sc.text[sc.next:first], []byte("\n"))
	sc.next = first
	for sc.next < start {
		sc.one()
	}
	h := hit{line: sc.line + 1, match: true}
	for _, l := range bytes.Split(sc.text[start:end], []byte("\n")) {
		if len(h.text) == regionLines {
			h.text[regionLines-1] += " …"
			break
		}
		h.text = append(h.text, shorten(l, max(0, from-start), min(len(l), to-start)))
		start += len(l) + 1
	}
	sc.hits = append(sc.hits, h)
	sc.line += 1 + bytes.Count(sc.text[sc.next:end], []byte("\n"))
	sc.next = min(end+1, len(sc.text))
	sc.after = sc.After
}

// one adds the next line as one around a match.
func (sc *scene) one() {
	end := lineEnd(sc.text, sc.next)
	sc.line++
	sc.hits = append(sc.hits, hit{line: sc.line, text: []string{shorten(sc.text[sc.next:end], 0, 0)}})
	sc.next = min(end+1, len(sc.text))
}

// showAfter adds the lines after the last match, up to the next.
func (sc *scene) showAfter(stop int) {
	for sc.after > 0 && sc.next < stop {
		sc.one()
		sc.after--
	}
}

func (sc *scene) finish() []hit {
	sc.showAfter(len(sc.text))
	return sc.hits
}
