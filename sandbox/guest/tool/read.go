package tool

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// ReadArgs are the arguments of read.
type ReadArgs struct {
	Path       string `json:"path" jsonschema:"the file or folder, absolute or relative to the working folder"`
	Offset     int    `json:"offset,omitempty" jsonschema:"the first line, counted from 1; a negative number counts from the end; default 1. With raw_base64 the first byte, counted from 0"`
	Limit      int    `json:"limit,omitempty" min:"1" jsonschema:"how many lines at most; default 2000. With raw_base64 bytes; default 262144"`
	ByteOffset *int64 `json:"byte_offset,omitempty" min:"0" jsonschema:"begin at this byte of the text instead of at a line, to go on within a long line"`
	Format     string `json:"format,omitempty" enum:"text,raw_base64" jsonschema:"text (default), or raw_base64 for the bytes themselves"`
}

var defaultRead = ReadArgs{Format: "text"}

// ReadOutput is what read returns.
type ReadOutput struct {
	Path       string `json:"path" jsonschema:"the file without links"`
	Kind       string `json:"kind" jsonschema:"file, directory or image"`
	Content    string `json:"content" jsonschema:"the lines, each with its number and a tab before it; or the entries of a folder"`
	TotalLines *int   `json:"total_lines,omitempty" jsonschema:"lines of the whole file; missing where it is too large to count"`
	Bytes      int64  `json:"bytes" jsonschema:"size of the file"`
	EOL        string `json:"eol,omitempty" jsonschema:"how lines end: lf, crlf, mixed or none"`
	BOM        bool   `json:"bom,omitempty" jsonschema:"the file begins with a byte order mark"`
	Encoding   string `json:"encoding,omitempty" jsonschema:"how the bytes are text"`
	Invalid    bool   `json:"invalid,omitempty" jsonschema:"some bytes are not text; they are shown as U+FFFD"`
	SHA256     string `json:"sha256,omitempty" jsonschema:"of the whole file"`
	Modified   string `json:"mtime,omitempty" jsonschema:"when it was changed last"`
	NextOffset int    `json:"next_offset,omitempty" jsonschema:"the line to go on with"`
	NextByte   int64  `json:"next_byte,omitempty" jsonschema:"the byte_offset to go on with, where a line was cut; with raw_base64 the offset"`
	Truncated  bool   `json:"truncated,omitempty" jsonschema:"there is more"`
	Data       []byte `json:"data,omitempty" jsonschema:"the bytes in base64, for raw_base64 and images"`
	MIME       string `json:"mime,omitempty" jsonschema:"of an image"`
	Common
}

// Text is the output as a model reads it.
func (o *ReadOutput) Text() string {
	var b strings.Builder
	facts := []string{fmt.Sprintf("%d bytes", o.Bytes)}
	if o.TotalLines != nil {
		facts = append([]string{fmt.Sprintf("%d lines", *o.TotalLines)}, facts...)
	}
	if o.Kind == "directory" {
		facts = []string{"folder"}
	}
	for _, fact := range []string{o.MIME, o.Encoding, o.EOL} {
		if fact != "" {
			facts = append(facts, fact)
		}
	}
	if o.BOM {
		facts = append(facts, "byte order mark")
	}
	if o.Invalid {
		facts = append(facts, "some bytes are not text")
	}
	fmt.Fprintf(&b, "%s: %s\n", o.Path, strings.Join(facts, ", "))
	b.WriteString(o.Content)
	if o.Kind == "file" && o.Data != nil {
		b.WriteString(base64.StdEncoding.EncodeToString(o.Data))
	}
	return o.text(&b)
}

// The bounds of read.
const (
	readLines   = 2000
	lineRunes   = 2000
	rawBytes    = 256 << 10
	imageBytes  = 5 << 20
	surveyBytes = 64 << 20  // files above are neither hashed nor counted
	listEntries = 200       // shown of a folder
	listSeen    = 1_000_000 // counted in a folder
)

func (c *call) read(ctx context.Context, a ReadArgs) (*ReadOutput, error) {
	path, err := c.resolve(a.Path)
	if err != nil {
		return nil, err
	}
	if fi, err := os.Stat(path); err == nil && fi.IsDir() {
		return c.list(ctx, path)
	}
	f, fi, err := c.openFile(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, fileError("read", path, err)
	}
	out := &ReadOutput{Path: clean([]byte(real)), Kind: "file", Bytes: fi.Size(), Modified: fi.ModTime().UTC().Format(time.RFC3339)}
	head := make([]byte, sniffLen)
	n, err := io.ReadFull(patientReader{ctx, f}, head)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return nil, fileError("read", path, err)
	}
	head = head[:n]
	s, err := survey(ctx, f, fi.Size(), sniff(head))
	if err != nil {
		return nil, fileError("read", path, err)
	}
	// Before the content is read: what changes in between is then seen as stale.
	c.session.remember(real, record{s.sha256, fi.Size(), fi.ModTime()})
	out.SHA256 = s.sha256
	if a.Format == "raw_base64" {
		return out, out.raw(ctx, f, a)
	}
	if mime := imageType(head); mime != "" {
		return out, out.image(ctx, f, mime)
	}
	if s.binary != "" {
		e := Errorf(Binary, "%s is %s of %d bytes, not text", path, s.binary, fi.Size())
		e.Kind, e.Size = s.binary, fi.Size()
		if s.binary == "a PDF document" {
			e = e.With("turn it into text with exec: pdftotext -layout %s -", shellWord(path))
		}
		return nil, e
	}
	if filepath.Ext(path) == ".ipynb" {
		out.note("this is a notebook; exec: jupyter nbconvert --to markdown --stdout %s shows it as text", shellWord(path))
	}
	out.Encoding, out.BOM, out.Invalid = string(s.charset), s.bom > 0, s.invalid
	if s.counted {
		out.TotalLines = &s.lines
		out.EOL = string(s.eol)
	}
	return out, out.lines(ctx, f, a, s)
}

// A surveyed file was read once as a whole.
type surveyed struct {
	form
	counted bool // what follows is known
	sha256  string
	lines   int
	text    int64 // bytes, as UTF-8
	eol     eol
	invalid bool
}

// survey hashes and counts a file. One that is too large stays uncounted.
func survey(ctx context.Context, f io.ReadSeeker, size int64, form form) (surveyed, error) {
	s := surveyed{form: form}
	if size > surveyBytes {
		return s, nil
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return s, err
	}
	hash := sha256.New()
	// A file may have grown since, or be one of /proc that says it is empty.
	raw := io.TeeReader(io.LimitReader(patientReader{ctx, f}, surveyBytes+1), hash)
	if _, err := io.CopyN(io.Discard, raw, int64(form.bom)); err != nil && err != io.EOF {
		return s, err
	}
	text := form.charset.reader(raw)
	var lfs, crlfs int
	var last byte
	var tail []byte // of a rune that is cut by the buffer's end
	buf := make([]byte, 64<<10)
	for {
		n, err := text.Read(buf)
		p := buf[:n]
		s.text += int64(n)
		for i, at := 0, -1; ; i = at + 1 {
			next := bytes.IndexByte(p[i:], '\n')
			if next < 0 {
				break
			}
			at = i + next
			lfs++
			if at > 0 && p[at-1] == '\r' || at == 0 && last == '\r' {
				crlfs++
			}
		}
		if n > 0 {
			last = p[n-1]
			tail = append(tail, p...)
			keep := len(tail) - cutLen(tail)
			s.invalid = s.invalid || dirty(tail[:len(tail)-keep]) || bytes.Contains(tail, []byte("\uFFFD")) && form.charset != utf8Text
			tail = append(tail[:0], tail[len(tail)-keep:]...)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return s, err
		}
	}
	s.invalid = s.invalid || len(tail) > 0
	if s.text > surveyBytes && form.charset == utf8Text {
		return surveyed{form: form}, nil
	}
	s.counted = true
	s.sha256 = hex.EncodeToString(hash.Sum(nil))
	s.eol = eolOf(lfs, crlfs)
	s.lines = lfs
	if s.text > 0 && last != '\n' {
		s.lines++
	}
	return s, nil
}

// cutLen returns how much of b is there without a rune that is not whole at its
// end.
func cutLen(b []byte) int {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if utf8.RuneStart(b[len(b)-i]) {
			if !utf8.FullRune(b[len(b)-i:]) {
				return len(b) - i
			}
			break
		}
	}
	return len(b)
}

// raw reads a range of bytes.
func (o *ReadOutput) raw(ctx context.Context, f *os.File, a ReadArgs) error {
	at, limit := int64(a.Offset), rawBytes
	if a.ByteOffset != nil {
		at = *a.ByteOffset
	}
	if a.Limit > 0 {
		limit = min(a.Limit, rawBytes)
	}
	if at < 0 {
		at = max(0, o.Bytes+at)
	}
	if _, err := f.Seek(at, io.SeekStart); err != nil {
		return fileError("read", o.Path, err)
	}
	data, err := io.ReadAll(io.LimitReader(patientReader{ctx, f}, int64(limit)))
	if err != nil {
		return fileError("read", o.Path, err)
	}
	o.Data = data
	if next := at + int64(len(data)); len(data) > 0 && next < o.Bytes {
		o.Truncated, o.NextByte = true, next
		o.note("bytes %d to %d of %d; go on with offset=%d", at, next, o.Bytes, next)
	}
	if len(data) == 0 {
		o.note("there is nothing at byte %d; the file has %d bytes", at, o.Bytes)
	}
	return nil
}

// imageType names the images that models take, by how they begin.
func imageType(b []byte) string {
	switch {
	case bytes.HasPrefix(b, []byte("\x89PNG\r\n\x1a\n")):
		return "image/png"
	case bytes.HasPrefix(b, []byte("\xff\xd8\xff")):
		return "image/jpeg"
	case bytes.HasPrefix(b, []byte("GIF87a")), bytes.HasPrefix(b, []byte("GIF89a")):
		return "image/gif"
	case len(b) > 12 && string(b[:4]) == "RIFF" && string(b[8:12]) == "WEBP":
		return "image/webp"
	}
	return ""
}

func (o *ReadOutput) image(ctx context.Context, f *os.File, mime string) error {
	if o.Bytes > imageBytes {
		e := Errorf(TooLarge, "%s is an image of %d bytes; the limit is %d", o.Path, o.Bytes, imageBytes)
		e.Kind, e.Size = mime, o.Bytes
		return e.With("make it smaller with exec, such as: convert %s -resize 1500x1500 /tmp/small.png", shellWord(o.Path))
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return fileError("read", o.Path, err)
	}
	data, err := io.ReadAll(io.LimitReader(patientReader{ctx, f}, imageBytes))
	if err != nil {
		return fileError("read", o.Path, err)
	}
	o.Kind, o.MIME, o.Data = "image", mime, data
	return nil
}

// lines reads lines, or from a byte on.
func (o *ReadOutput) lines(ctx context.Context, f *os.File, a ReadArgs, s surveyed) error {
	at := int64(s.bom)
	within := a.ByteOffset != nil
	if within && s.charset == utf8Text {
		at += *a.ByteOffset
	}
	if _, err := f.Seek(at, io.SeekStart); err != nil {
		return fileError("read", o.Path, err)
	}
	in := bufio.NewReaderSize(s.charset.reader(patientReader{ctx, f}), 64<<10)
	if within {
		return o.piece(in, *a.ByteOffset, s)
	}
	first := a.Offset
	switch {
	case first == 0:
		first = 1
	case first < 0 && !s.counted:
		return Errorf(TooLarge, "%s has %d bytes, too many to count its lines from the end", o.Path, o.Bytes).
			With("use exec: tail -n %d %s", -first, shellWord(o.Path))
	case first < 0:
		first = max(1, s.lines+first+1)
	}
	limit := readLines
	if a.Limit > 0 {
		limit = min(a.Limit, readLines)
	}
	var b strings.Builder
	var position int64 // of the line's first byte in the text
	number, shown := 0, 0
	for {
		line, length, err := readLine(in)
		if err != nil && err != io.EOF && err != errEndless {
			return fileError("read", o.Path, err)
		}
		if length == 0 {
			break
		}
		number++
		if err == errEndless && number < first {
			return Errorf(TooLarge, "line %d of %s has more than %d bytes, so what follows has no number", number, o.Path, endless).
				With("read a part of it by byte_offset; it begins at %d", position)
		}
		if number >= first {
			text, next := showLine(line, length)
			if shown == limit || b.Len()+len(text)+16 > maxText {
				o.Truncated, o.NextOffset = true, number
				break
			}
			fmt.Fprintf(&b, "%6d\t%s\n", number, text)
			shown++
			if next > 0 {
				o.Truncated = true
				if o.NextByte == 0 {
					o.NextByte = position + next
					o.note("line %d was cut; go on in it with byte_offset=%d", number, o.NextByte)
				}
			}
		}
		position += length
		if err == errEndless {
			break
		}
	}
	o.Content = b.String()
	switch {
	case number == 0:
		o.note("the file is empty")
	case shown == 0:
		o.note("line %d is behind the end; the file has %d lines", first, number)
	case o.NextOffset > 0:
		o.note("lines %d to %d of %s; go on with offset=%d", first, number-1, o.total(), o.NextOffset)
	}
	return nil
}

func (o *ReadOutput) total() string {
	if o.TotalLines == nil {
		return "a file too large to count them"
	}
	return fmt.Sprint(*o.TotalLines)
}

// endless is the length from which a line's end is not looked for.
const endless = 64 << 20

var errEndless = errors.New("line without an end")

// readLine reads a line with its end. What is returned of it is enough for
// showLine; length is what it really has, or more than endless with errEndless.
func readLine(in *bufio.Reader) (line []byte, length int64, err error) {
	const enough = lineRunes*utf8.UTFMax + 2
	for {
		part, err := in.ReadSlice('\n')
		length += int64(len(part))
		if room := enough - len(line); room > 0 {
			line = append(line, part[:min(len(part), room)]...)
		}
		if err == nil || !errors.Is(err, bufio.ErrBufferFull) {
			return line, length, err
		}
		if length > endless {
			return line, length, errEndless
		}
	}
}

// showLine returns a line as text without its end. If it was cut, next is where in
// the line its rest begins.
func showLine(line []byte, length int64) (text string, next int64) {
	whole := int64(len(line)) == length
	if whole {
		line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
	}
	runes, at := 0, 0
	for at < len(line) && runes < lineRunes {
		_, n := utf8.DecodeRune(line[at:])
		at += n
		runes++
	}
	if whole && at == len(line) {
		return clean(line), 0
	}
	return clean(line[:at]) + "…", int64(at)
}

// piece reads on from a byte, whatever the lines are.
func (o *ReadOutput) piece(in *bufio.Reader, at int64, s surveyed) error {
	if s.charset != utf8Text {
		if _, err := io.CopyN(io.Discard, in, at); err != nil && err != io.EOF {
			return fileError("read", o.Path, err)
		}
	}
	b := make([]byte, maxText-1024)
	n, err := io.ReadFull(in, b)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return fileError("read", o.Path, err)
	}
	b = b[:n]
	if n == 0 {
		o.note("there is nothing at byte %d of the text", at)
		return nil
	}
	if err == nil { // there may be more
		b = b[:cutLen(b)]
		o.Truncated, o.NextByte = true, at+int64(len(b))
		o.note("bytes %d to %d of the text; go on with byte_offset=%d", at, o.NextByte, o.NextByte)
	}
	o.Content = cutBytes(clean(b), maxText)
	return nil
}

// list reads a folder: folders first, then by name.
func (c *call) list(ctx context.Context, path string) (*ReadOutput, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fileError("read", path, err)
	}
	defer f.Close()
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, fileError("read", path, err)
	}
	out := &ReadOutput{Path: clean([]byte(real)), Kind: "directory"}
	var folders, others []string
	seen := 0
	for seen < listSeen {
		entries, err := f.ReadDir(1000)
		for _, e := range entries {
			if seen++; e.IsDir() {
				folders = append(folders, e.Name()+"/")
			} else {
				others = append(others, e.Name()+suffix(e.Type()))
			}
		}
		folders, others = firstNames(folders), firstNames(others)
		if err == io.EOF || len(entries) == 0 {
			break
		}
		if err == nil {
			err = ended(ctx)
		}
		if err != nil {
			return nil, fileError("read", path, err)
		}
	}
	names := slices.Concat(folders, others)
	names = names[:min(len(names), listEntries)]
	var b strings.Builder
	for i, n := range names {
		if b.Len()+len(n) > maxText-1024 {
			names = names[:i]
			break
		}
		b.WriteString(clean([]byte(n)) + "\n")
	}
	out.Content = b.String()
	switch {
	case seen == 0:
		out.note("the folder is empty")
	case seen > len(names):
		out.Truncated = true
		out.note("%d of %d entries; glob finds those that you name", len(names), seen)
	}
	return out, nil
}

// firstNames keeps as many of the names as are ever shown.
func firstNames(names []string) []string {
	slices.Sort(names)
	return names[:min(len(names), listEntries)]
}

// shellWord quotes a path for a command line.
func shellWord(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
