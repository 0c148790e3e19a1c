package tool

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/charmap"
	"golang.org/x/text/encoding/simplifiedchinese"
	"golang.org/x/text/encoding/unicode"
)

// clean makes text of any bytes: invalid UTF-8 and NUL become U+FFFD.
func clean(b []byte) string {
	s := strings.ToValidUTF8(string(b), "\uFFFD")
	return strings.ReplaceAll(s, "\x00", "\uFFFD")
}

// dirty says whether clean would change something.
func dirty(b []byte) bool { return !utf8.Valid(b) || bytes.IndexByte(b, 0) >= 0 }

// cutRunes cuts text to at most n runes.
func cutRunes(s string, n int) string {
	for i := range s {
		if n == 0 {
			return s[:i] + "…"
		}
		n--
	}
	return s
}

// cutBytes returns the longest beginning of s of at most n bytes that ends with a
// whole rune.
func cutBytes[T string | []byte](s T, n int) T {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// A charset is how a file's bytes are text.
type charset string

const (
	utf8Text charset = "utf-8" // also where some bytes are invalid
	utf16LE  charset = "utf-16le"
	utf16BE  charset = "utf-16be"
	latin1   charset = "iso-8859-1"
	gbk      charset = "gbk"
)

// A form is what the beginning of a file says of the whole.
type form struct {
	charset charset
	bom     int    // length of the byte order mark
	binary  string // what it is, if it is not text
}

// sniffLen is how much of a file says what it is; binaryLen, whether it is text.
const (
	sniffLen  = 64 << 10
	binaryLen = 8 << 10
)

// sniff tells what a file is from its beginning.
func sniff(b []byte) form {
	switch {
	case bytes.HasPrefix(b, []byte("\xef\xbb\xbf")):
		return form{charset: utf8Text, bom: 3}
	case bytes.HasPrefix(b, []byte("\xff\xfe")):
		return form{charset: utf16LE, bom: 2}
	case bytes.HasPrefix(b, []byte("\xfe\xff")):
		return form{charset: utf16BE, bom: 2}
	}
	head := b[:min(len(b), binaryLen)]
	controls := 0
	for _, c := range head {
		if c < ' ' && !strings.ContainsRune("\t\n\r\f\b\x1b", rune(c)) || c == 0x7f {
			controls++
		}
	}
	if bytes.IndexByte(head, 0) >= 0 || controls*10 > len(head)*3 || bytes.HasPrefix(b, []byte("%PDF-")) {
		return form{charset: utf8Text, binary: magic(b)}
	}
	return form{charset: guess(b)}
}

// guess tells the 8-bit character sets apart. Valid UTF-8 wins, and so does text
// that has some: a few broken bytes do not make it anything else.
func guess(b []byte) charset {
	if len(b) == sniffLen { // do not judge by a rune that is cut
		for i := 1; i < utf8.UTFMax && i < len(b); i++ {
			if utf8.RuneStart(b[len(b)-i]) {
				if !utf8.FullRune(b[len(b)-i:]) {
					b = b[:len(b)-i]
				}
				break
			}
		}
	}
	multi, broken := 0, 0
	for rest := b; len(rest) > 0; {
		r, n := utf8.DecodeRune(rest)
		if r == utf8.RuneError && n == 1 {
			broken++
		} else if n > 1 {
			multi++
		}
		rest = rest[n:]
	}
	switch {
	case broken == 0 || multi >= broken:
		return utf8Text
	case isGBK(b):
		return gbk
	case isLatin1(b):
		return latin1
	}
	return utf8Text
}

// isGBK says whether all that is not ASCII are pairs of GBK, most of them common.
func isGBK(b []byte) bool {
	pairs, common := 0, 0
	for i := 0; i < len(b); i++ {
		if b[i] < 0x80 {
			continue
		}
		if i+1 == len(b) {
			return len(b) == sniffLen && pairs > 0 && common*2 > pairs
		}
		if !gbkPair(b[i], b[i+1]) {
			return false
		}
		pairs++
		if b[i] >= 0xa1 && b[i] <= 0xf7 && b[i+1] >= 0xa1 {
			common++
		}
		i++
	}
	return pairs > 0 && common*2 > pairs
}

func gbkPair(lead, trail byte) bool {
	return lead >= 0x81 && lead <= 0xfe && trail >= 0x40 && trail <= 0xfe && trail != 0x7f
}

// isLatin1 says whether there are none of the bytes that ISO 8859-1 has no
// printable character for.
func isLatin1(b []byte) bool {
	for _, c := range b {
		if c >= 0x80 && c < 0xa0 {
			return false
		}
	}
	return true
}

// magic names what a binary file is.
func magic(b []byte) string {
	switch {
	case bytes.HasPrefix(b, []byte("\x7fELF")):
		return "an ELF program"
	case bytes.HasPrefix(b, []byte("%PDF-")):
		return "a PDF document"
	case bytes.HasPrefix(b, []byte("SQLite format 3\x00")):
		return "an SQLite database"
	}
	kind, _, _ := strings.Cut(http.DetectContentType(b), ";")
	switch {
	case strings.HasPrefix(kind, "text/"), kind == "application/octet-stream":
		return "binary data"
	}
	return kind
}

func (c charset) encoding() encoding.Encoding {
	switch c {
	case utf16LE:
		return unicode.UTF16(unicode.LittleEndian, unicode.IgnoreBOM)
	case utf16BE:
		return unicode.UTF16(unicode.BigEndian, unicode.IgnoreBOM)
	case latin1:
		return charmap.ISO8859_1
	case gbk:
		return simplifiedchinese.GBK
	}
	return nil
}

// reader returns what r has, behind its byte order mark, as UTF-8. UTF-8 itself is
// passed on as it is, valid or not.
func (c charset) reader(r io.Reader) io.Reader {
	if e := c.encoding(); e != nil {
		return e.NewDecoder().Reader(r)
	}
	return r
}

// step returns the first character of b and how many bytes it has.
func (c charset) step(b []byte) (rune, int) {
	switch c {
	case utf16LE, utf16BE:
		var order binary.ByteOrder = binary.LittleEndian
		if c == utf16BE {
			order = binary.BigEndian
		}
		if len(b) < 2 {
			return utf8.RuneError, 1
		}
		r := rune(order.Uint16(b))
		if !utf16.IsSurrogate(r) {
			return r, 2
		}
		if len(b) >= 4 {
			if both := utf16.DecodeRune(r, rune(order.Uint16(b[2:]))); both != utf8.RuneError {
				return both, 4
			}
		}
		return utf8.RuneError, 2
	case latin1:
		return rune(b[0]), 1
	case gbk:
		if b[0] < 0x80 {
			return rune(b[0]), 1
		}
		if len(b) < 2 || !gbkPair(b[0], b[1]) {
			return utf8.RuneError, 1
		}
		var out [utf8.UTFMax]byte
		if n, _, err := simplifiedchinese.GBK.NewDecoder().Transform(out[:], b[:2], true); err == nil {
			r, _ := utf8.DecodeRune(out[:n])
			return r, 2
		}
		return utf8.RuneError, 2
	}
	return utf8.DecodeRune(b)
}

// decode returns bytes of the character set as UTF-8, those of UTF-8 as they are.
func (c charset) decode(b []byte) []byte {
	if c == utf8Text {
		return b
	}
	out := make([]byte, 0, len(b)+len(b)/2)
	for len(b) > 0 {
		r, n := c.step(b)
		out = utf8.AppendRune(out, r)
		b = b[n:]
	}
	return out
}

// encode returns UTF-8 as bytes of the character set. It is an error if they would
// not decode to the same.
func (c charset) encode(s []byte) ([]byte, error) {
	e := c.encoding()
	if e == nil {
		return s, nil
	}
	b, err := e.NewEncoder().Bytes(s)
	if err != nil || !bytes.Equal(c.decode(b), s) {
		return nil, fmt.Errorf("it has characters that %s has not", c)
	}
	return b, nil
}

// offsets returns where in b, bytes of the character set, the given rising offsets
// into decode(b) are.
func (c charset) offsets(b []byte, in []int) []int {
	if c == utf8Text {
		return in
	}
	out := make([]int, 0, len(in))
	at, text := 0, 0
	for _, want := range in {
		for text < want {
			r, n := c.step(b[at:])
			at += n
			text += utf8.RuneLen(r)
		}
		out = append(out, at)
	}
	return out
}

// An eol is how the lines of a file end.
type eol string

const (
	lf    eol = "lf"
	crlf  eol = "crlf"
	mixed eol = "mixed"
	noEOL eol = "none"
)

func eolOf(lfs, crlfs int) eol {
	switch {
	case lfs == 0:
		return noEOL
	case crlfs == 0:
		return lf
	case crlfs == lfs:
		return crlf
	}
	return mixed
}

// eolIn counts the line ends of text.
func eolIn(text []byte) eol {
	return eolOf(bytes.Count(text, []byte("\n")), bytes.Count(text, []byte("\r\n")))
}

// linesIn counts lines; one without an end is one, too.
func linesIn(text []byte) int {
	n := bytes.Count(text, []byte("\n"))
	if len(text) > 0 && text[len(text)-1] != '\n' {
		n++
	}
	return n
}
