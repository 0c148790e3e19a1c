// Package redact removes the values of secrets from text that is kept or shown:
// logs, audit rows, events, transcripts and recordings.
//
// A value is found raw, in base64 in whichever of its three alignments and either
// alphabet, escaped for URLs in the usual ways and in JSON, and with the line ends of
// a terminal. It does not matter how the text is cut into writes. What is held back in
// between is never more than the longest form of a value. Base64 that is broken into
// lines is not found if the value does not fit into one.
//
// All forms are looked for at once, by an automaton over the bytes (Aho and
// Corasick, 1975), so the cost of a byte does not depend on how many secrets there
// are, nor on how much the text tries to look like one.
package redact

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf16"
)

// MinLength is the length from which on values are redacted. Shorter ones occur in
// any text by chance: replacing them would spoil it, and tell where they are.
const MinLength = 6

// A Redactor knows the values that are to be removed. A nil one removes nothing.
// It may be used by many at the same time.
type Redactor struct {
	nodes  []node
	first  [256]int32 // children of the root, which is node 0
	marker string
}

// A node of the automaton stands for the beginning of a pattern.
type node struct {
	child, sibling int32 // 0: none
	fail           int32 // the longest proper suffix that is a beginning too
	depth          int32
	match          int32 // the length of the longest pattern that ends here; 0: none
	b              byte
}

// New returns a Redactor of values, or nil if there is none that is long enough.
// Space around a value does not belong to it.
func New(values []string) *Redactor {
	patterns := make(map[string]bool)
	for _, v := range values {
		if v = strings.TrimSpace(v); len(v) >= MinLength {
			for _, form := range forms(v) {
				patterns[form] = true
			}
		}
	}
	if len(patterns) == 0 {
		return nil
	}
	r := &Redactor{nodes: make([]node, 1), marker: markerBeside(patterns)}
	for p := range patterns {
		r.add(p)
	}
	r.link()
	return r
}

// forms returns the ways in which a value is written.
func forms(v string) []string {
	all := []string{v, strings.ReplaceAll(v, "\n", "\r\n"), asciiJSON(v)}
	for _, kept := range keptInURLs {
		escaped := percent(v, kept)
		all = append(all, escaped, lowerEscapes(escaped))
		if strings.Contains(escaped, "%20") { // a form writes a space as +
			escaped = strings.ReplaceAll(escaped, "%20", "+")
			all = append(all, escaped, lowerEscapes(escaped))
		}
	}
	for _, html := range []bool{false, true} {
		var b strings.Builder
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(html)
		if e.Encode(v) == nil { // strings cannot fail
			all = append(all, strings.Trim(b.String(), "\n")[1:len(b.String())-2])
		}
	}
	for shift := range 3 {
		encoded := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("\x00", shift) + v))
		// Six bits a character; those at the ends that also hold bits of what
		// stands beside the value are left out.
		from, to := (8*shift+5)/6, 8*(shift+len(v))/6
		core := encoded[from:to]
		all = append(all, core, strings.NewReplacer("+", "-", "/", "_").Replace(core))
	}
	return all
}

const lettersAndDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

// keptInURLs are the characters that one or the other leaves as they are in a URL.
var keptInURLs = []string{
	"",                                        // whoever escapes all
	lettersAndDigits + "-_.",                  // forms of old
	lettersAndDigits + "-_.*",                 // forms of browsers
	lettersAndDigits + "-_.~",                 // RFC 3986, curl, queries in Go
	lettersAndDigits + "-_.~/",                // Python
	lettersAndDigits + "-_.~$&+=:@",           // paths in Go
	lettersAndDigits + "-_.~!'()*",            // encodeURIComponent
	lettersAndDigits + "-_.~!'()*;,/?:@&=+$#", // encodeURI
	lettersAndDigits + "-_.~!$&'()*+,;=:@/?",  // what a query may have
}

// percent escapes all of s but what is kept.
func percent(s, kept string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if strings.IndexByte(kept, c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// lowerEscapes writes %2F as %2f.
func lowerEscapes(s string) string {
	b := []byte(s)
	for i := 0; i+2 < len(b); i++ {
		if b[i] == '%' {
			copy(b[i:], strings.ToLower(s[i:i+3]))
			i += 2
		}
	}
	return string(b)
}

// asciiJSON writes a string in JSON as those do that keep to ASCII.
func asciiJSON(s string) string {
	short := map[rune]string{'"': `\"`, '\\': `\\`, '\n': `\n`, '\r': `\r`, '\t': `\t`, '\b': `\b`, '\f': `\f`}
	var b strings.Builder
	for _, c := range s {
		switch {
		case short[c] != "":
			b.WriteString(short[c])
		case c >= ' ' && c < 0x7f:
			b.WriteRune(c)
		case c > 0xffff:
			hi, lo := utf16.EncodeRune(c)
			fmt.Fprintf(&b, `\u%04x\u%04x`, hi, lo)
		default:
			fmt.Fprintf(&b, `\u%04x`, c)
		}
	}
	return b.String()
}

// markerBeside returns what stands for a value that was removed. No pattern can
// begin or end in it, so that none comes about by the replacement.
func markerBeside(patterns map[string]bool) string {
	var used [256]bool
	word := "redacted"
	for p := range patterns {
		for _, b := range []byte(p) {
			used[b] = true
		}
		if strings.Contains(word, p) {
			word = "***" // shorter than any pattern
		}
	}
	free := func(candidates string) string {
		for _, b := range []byte(candidates) {
			if !used[b] {
				return string([]byte{b})
			}
		}
		return ""
	}
	// The last is in no text that is UTF-8, and all values are.
	open, closing := free("[<{(|*~^#!\xff"), free("]>})|*~^#!\xff")
	return open + word + closing
}

func (r *Redactor) child(n int32, b byte) int32 {
	if n == 0 {
		return r.first[b]
	}
	for c := r.nodes[n].child; c != 0; c = r.nodes[c].sibling {
		if r.nodes[c].b == b {
			return c
		}
	}
	return 0
}

func (r *Redactor) add(pattern string) {
	n := int32(0)
	for i, b := range []byte(pattern) {
		c := r.child(n, b)
		if c == 0 {
			c = int32(len(r.nodes))
			r.nodes = append(r.nodes, node{b: b, depth: int32(i + 1), sibling: r.nodes[n].child})
			r.nodes[n].child = c
			if n == 0 {
				r.first[b] = c
			}
		}
		n = c
	}
	r.nodes[n].match = r.nodes[n].depth
}

// link finds for each node where to go on when nothing fits any more, those near
// the root first.
func (r *Redactor) link() {
	queue := make([]int32, 0, len(r.nodes))
	for c := r.nodes[0].child; c != 0; c = r.nodes[c].sibling {
		queue = append(queue, c)
	}
	for i := 0; i < len(queue); i++ {
		n := queue[i]
		for c := r.nodes[n].child; c != 0; c = r.nodes[c].sibling {
			r.nodes[c].fail = r.step(r.nodes[n].fail, r.nodes[c].b)
			if r.nodes[c].match == 0 {
				r.nodes[c].match = r.nodes[r.nodes[c].fail].match
			}
			queue = append(queue, c)
		}
	}
}

// step returns where the automaton goes from n with b.
func (r *Redactor) step(n int32, b byte) int32 {
	for {
		if c := r.child(n, b); c != 0 || n == 0 {
			return c
		}
		n = r.nodes[n].fail
	}
}

// String returns s without the values.
func (r *Redactor) String(s string) string {
	if r == nil {
		return s
	}
	var b strings.Builder
	w := r.Writer(&b)
	io.WriteString(w, s) // a strings.Builder cannot fail
	w.Close()
	return b.String()
}

// A Writer passes on what is written to it without the values. Close passes on
// what was held back; it does not close what is below.
type Writer struct {
	r   *Redactor
	to  io.Writer
	out []byte

	state   int32
	held    []byte // the end of what has come
	done    int    // of held: passed on, or left out
	covered int    // of held: up to here it belongs to a value whose marker is out
	values  []span // further back in held, in order and apart
}

type span struct{ from, to int } // in held

// Writer returns a Writer to w. It is not safe for use by several at once.
func (r *Redactor) Writer(w io.Writer) *Writer { return &Writer{r: r, to: w} }

// Write takes all of p, or fails as what is below does.
func (w *Writer) Write(p []byte) (int, error) {
	if w.r == nil {
		return w.to.Write(p)
	}
	w.out = w.out[:0]
	for _, b := range p {
		if w.state == 0 && len(w.held) == 0 && w.r.first[b] == 0 {
			w.out = append(w.out, b)
			continue
		}
		w.state = w.r.step(w.state, b)
		w.held = append(w.held, b)
		n := &w.r.nodes[w.state]
		if n.match > 0 {
			w.found(span{len(w.held) - int(n.match), len(w.held)})
		}
		w.release(len(w.held) - int(n.depth))
	}
	return len(p), w.flush()
}

// found marks a value that ends where held does. What overlaps is one.
func (w *Writer) found(s span) {
	if s.from < w.covered {
		w.covered, w.values = s.to, w.values[:0]
		return
	}
	for i := len(w.values) - 1; i >= 0 && w.values[i].to > s.from; i-- {
		s.from = min(s.from, w.values[i].from)
		w.values = w.values[:i]
	}
	w.values = append(w.values, s)
}

// release passes on held up to n, before which no further value begins.
func (w *Writer) release(n int) {
	w.done = max(w.done, min(n, w.covered))
	for len(w.values) > 0 && w.values[0].from < n {
		v := w.values[0]
		w.values = w.values[1:]
		w.out = append(w.out, w.held[w.done:v.from]...)
		w.out = append(w.out, w.r.marker...)
		w.covered = v.to
		w.done = min(n, v.to)
	}
	w.out = append(w.out, w.held[w.done:n]...)
	w.done = n
	// All at once, or when it is worth it: moving what is left for each byte
	// would cost its length each time.
	if w.done == len(w.held) {
		w.held, w.done, w.covered, w.values = w.held[:0], 0, 0, nil
	} else if w.done >= max(1<<10, len(w.held)/2) {
		by := w.done
		w.held = append(w.held[:0], w.held[by:]...)
		w.done, w.covered = 0, max(0, w.covered-by)
		for i := range w.values {
			w.values[i].from -= by
			w.values[i].to -= by
		}
	}
}

func (w *Writer) flush() error {
	if len(w.out) == 0 {
		return nil
	}
	_, err := w.to.Write(w.out)
	return err
}

// Close passes on what was held back.
func (w *Writer) Close() error {
	if w.r == nil {
		return nil
	}
	w.out = w.out[:0]
	w.release(len(w.held))
	w.state = 0
	return w.flush()
}
