// Package tool is the six tools that a model works with: exec, read, write, edit,
// glob and grep. They work on the folders of whatever machine they are run on,
// which is the sandbox; models, users and how a call gets here are left to others.
//
// What they are built for is to be called by something that cannot see. So a
// failure says what to do about it, what was left out of a result is counted and
// the way to get it is told, and nothing is changed that the caller has not seen:
// a file is overwritten or edited only after it was read, and not if it has changed
// since. Files are bytes: outside the region of an edit each of them stays what it
// was, whatever the encoding and the line ends.
//
// The files belong to somebody who may be hostile. Pipes, sockets and devices are
// not opened, every result and every wait has a bound, results are valid UTF-8
// without NUL, and what is larger than memory is read in pieces.
package tool

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"
)

// callTimeout bounds a call of any tool but exec, searchTimeout the search of glob
// and grep, which then return what they have.
const (
	callTimeout   = 60 * time.Second
	searchTimeout = 20 * time.Second
)

// maxText bounds the text of a result.
const maxText = 50 << 10

// An Output is what a tool returned. As JSON it is complete.
type Output interface {
	// Text is the output as a model reads it.
	Text() string
}

// Common is what all outputs have.
type Common struct {
	Notes     []string `json:"notes,omitempty" jsonschema:"what else there is to know"`
	Cancelled bool     `json:"cancelled,omitempty" jsonschema:"the caller did not wait for the end, so this is not all"`
}

func (c *Common) note(format string, args ...any) {
	c.Notes = append(c.Notes, clean([]byte(fmt.Sprintf(format, args...))))
}

func (c *Common) common() *Common { return c }

// text ends a text with the notes.
func (c *Common) text(b *strings.Builder) string {
	if c.Cancelled {
		b.WriteString("\n(cancelled before the end)")
	}
	for _, n := range c.Notes {
		fmt.Fprintf(b, "\n(%s)", n)
	}
	return strings.TrimPrefix(b.String(), "\n")
}

// A Session is what the calls of one conversation share: which files were read,
// and as what. Its methods may be called at the same time.
type Session struct {
	home string

	mu      sync.Mutex
	records map[string]record        // by real path
	turns   map[string]chan struct{} // the last writer in line, by real path
}

// NewSession returns a session of a user with that home.
func NewSession(home string) *Session {
	return &Session{home: home, records: make(map[string]record), turns: make(map[string]chan struct{})}
}

// A call is one call of a tool.
type call struct {
	session *Session
	dir     string // where relative paths begin
}

// Call runs a tool that works on files: any but exec, and also Guidance and Recall. dir is where relative paths
// begin. The error is always an *Error.
func (s *Session) Call(ctx context.Context, dir, name string, args json.RawMessage) (Output, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	c := &call{session: s, dir: dir}
	switch name {
	case "read":
		return run(ctx, args, defaultRead, c.read)
	case "write":
		return run(ctx, args, WriteArgs{Encoding: "utf-8"}, c.write)
	case "edit":
		return run(ctx, args, EditArgs{}, c.edit)
	case "glob":
		return run(ctx, args, defaultGlob, c.glob)
	case "grep":
		return run(ctx, args, defaultGrep, c.grep)
	case Guidance:
		return run(ctx, args, GuidanceArgs{}, c.guidance)
	case Recall:
		return run(ctx, args, RecallArgs{}, c.recall)
	}
	return nil, Errorf(BadArgs, "there is no tool %.40q", name).With("the tools are %s", strings.Join(Names, ", "))
}

// run reads a tool's arguments and calls it.
func run[A any, O interface {
	Output
	common() *Common
}](ctx context.Context, raw json.RawMessage, args A, f func(context.Context, A) (O, error)) (Output, error) {
	notes, err := decode(raw, &args)
	if err != nil {
		return nil, err
	}
	out, err := f(ctx, args)
	if err != nil {
		return nil, err
	}
	common := out.common()
	common.Notes = append(notes, common.Notes...)
	return out, nil
}

// A record is what a session knows of a file that it has read or written.
type record struct {
	sha256  string // empty for a file too large to be read whole
	size    int64
	modTime time.Time
}

// maxRecords bounds the records of a session. Which ones are forgotten then does
// not matter: the files are to be read again.
const maxRecords = 10_000

func (s *Session) remember(path string, r record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.records) >= maxRecords {
		for p := range s.records {
			delete(s.records, p)
			break
		}
	}
	s.records[path] = r
}

func (s *Session) recall(path string) (record, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.records[path]
	return r, ok
}

// turn waits until those who came before have done with path, and returns the
// function that says that the caller has.
func (s *Session) turn(path string) func() {
	mine := make(chan struct{})
	s.mu.Lock()
	before := s.turns[path]
	s.turns[path] = mine
	s.mu.Unlock()
	if before != nil {
		<-before
	}
	return func() {
		close(mine)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.turns[path] == mine {
			delete(s.turns, path)
		}
	}
}
