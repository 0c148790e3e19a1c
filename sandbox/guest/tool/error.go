package tool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// A Code says what kind of failure an Error is. It is for programs; a model reads
// the message and the remedy.
type Code string

// The codes that there are.
const (
	NotFound       Code = "not_found"
	IsDirectory    Code = "is_directory"
	NotRegular     Code = "not_regular"
	Binary         Code = "binary"
	TooLarge       Code = "too_large"
	NotRead        Code = "not_read"
	Stale          Code = "stale"
	NoMatch        Code = "no_match"
	Ambiguous      Code = "ambiguous"
	Identical      Code = "identical"
	BadPattern     Code = "bad_pattern"
	BadArgs        Code = "bad_args"
	Timeout        Code = "timeout"
	Killed         Code = "killed"
	Quota          Code = "quota"
	Denied         Code = "denied"
	SandboxGone    Code = "sandbox_gone"
	Busy           Code = "busy"
	NotStarted     Code = "not_started"
	OutcomeUnknown Code = "outcome_unknown"
)

// remedies are what to do about a failure where its place has nothing better to say.
var remedies = map[Code]string{
	NotFound:       "check the path with glob, or list the folder with read",
	IsDirectory:    "name a file in it; read lists a folder",
	NotRegular:     "only regular files can be read, searched and changed; use exec for anything else",
	Binary:         "use read with format raw_base64, or look at it with exec",
	TooLarge:       "work on a part of it with exec",
	NotRead:        "read the file first, any part of it, so that nothing unseen is overwritten",
	Stale:          "read the file again and repeat the call on what is there now",
	NoMatch:        "read the file and copy the text exactly, without the line numbers",
	Ambiguous:      "give more lines around it, or near_line, or replace_all",
	Identical:      "old and new are the same, so there is nothing to do; if you meant a change, say it in new",
	BadPattern:     "correct the pattern; what it may have in it is in the description of the tool",
	BadArgs:        "call again with arguments as the schema has them",
	Timeout:        "narrow the call to fewer or smaller files, and try again",
	Killed:         "the tool was ended from outside, most likely for lack of memory; work on smaller files, then try again",
	Quota:          "make room: remove files or end processes that are not needed",
	Denied:         "check owner and mode with exec: ls -ld",
	SandboxGone:    "the sandbox was stopped or has died; the next call starts it again",
	Busy:           "wait for the calls that are running, then try again",
	NotStarted:     "nothing was run; it is safe to try again",
	OutcomeUnknown: "it may have been run; look at what it was to change before running it again",
}

// An Error is why a tool did not do what it was asked to. It never ends a run: the
// model reads it and goes on.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	Remedy  string `json:"remedy"`

	Dir       string   `json:"cwd,omitempty"`       // where relative paths begin
	Near      []string `json:"near,omitempty"`      // names like the one not found
	Count     int      `json:"count,omitempty"`     // matches
	Lines     []int    `json:"lines,omitempty"`     // of the first matches
	Line      int      `json:"line,omitempty"`      // where Closest begins
	Closest   string   `json:"closest,omitempty"`   // lines like the text not found
	Schema    string   `json:"schema,omitempty"`    // the arguments that there are
	Size      int64    `json:"size,omitempty"`      // bytes of the file
	Kind      string   `json:"kind,omitempty"`      // of the file
	Free      *uint64  `json:"free,omitempty"`      // bytes on the disk
	SHA256    string   `json:"sha256,omitempty"`    // of the file as it is now
	Job       string   `json:"job,omitempty"`       // that may tell what became of it
	Cancelled bool     `json:"cancelled,omitempty"` // the caller did not wait for the end
}

func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// Text is the error as a model reads it.
func (e *Error) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "error %s: %s\n", e.Code, e.Message)
	if len(e.Near) > 0 {
		fmt.Fprintf(&b, "Similar names there: %s\n", strings.Join(e.Near, ", "))
	}
	if e.Dir != "" {
		fmt.Fprintf(&b, "Relative paths begin at %s\n", e.Dir)
	}
	if len(e.Lines) > 0 {
		fmt.Fprintf(&b, "At lines %s\n", strings.Trim(strings.ReplaceAll(fmt.Sprint(e.Lines), " ", ", "), "[]"))
	}
	if e.Closest != "" {
		fmt.Fprintf(&b, "The closest is at line %d (→ is a tab, · a blank at a line's end, ␍ a carriage return):\n%s\n", e.Line, e.Closest)
	}
	if e.Schema != "" {
		fmt.Fprintf(&b, "Arguments: %s\n", e.Schema)
	}
	if e.Job != "" {
		fmt.Fprintf(&b, "Job: %s\n", e.Job)
	}
	fmt.Fprintf(&b, "Remedy: %s", e.Remedy)
	return b.String()
}

// Errorf returns an error with the usual remedy of its code.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: clean([]byte(fmt.Sprintf(format, args...))), Remedy: remedies[code]}
}

// With gives an error a remedy of its own.
func (e *Error) With(format string, args ...any) *Error {
	e.Remedy = clean([]byte(fmt.Sprintf(format, args...)))
	return e
}

// fileError is the error for what the system said about path.
func fileError(op, path string, err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	reason := err.Error()
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		reason = errno.Error()
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, errTime):
		return Errorf(Timeout, "%s %s took more than %v", op, path, callTimeout)
	case errors.Is(err, errCancelled):
		e := Errorf(Killed, "%s %s was cancelled", op, path).With("nothing was changed; call again if it is still wanted")
		e.Cancelled = true
		return e
	case errors.Is(err, unix.ELOOP):
		return Errorf(NotRegular, "%s is a loop of symbolic links", path).With("remove the links, or name a file that is not behind them")
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return Errorf(NotFound, "%s: %s", path, reason)
	case errors.Is(err, unix.EISDIR):
		return Errorf(IsDirectory, "%s is a folder", path)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		return Errorf(Denied, "%s %s: %s", op, path, reason)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EFBIG):
		e := Errorf(Quota, "%s %s: %s", op, path, reason)
		if free, ok := freeBytes(filepath.Dir(path)); ok {
			e.Message += fmt.Sprintf("; %d bytes are free", free)
			e.Free = &free
		}
		return e
	case errors.Is(err, unix.ENAMETOOLONG):
		return Errorf(BadArgs, "%.200s…: the name is too long", path).With("choose a shorter name")
	case errors.Is(err, unix.ETXTBSY), errors.Is(err, unix.EBUSY):
		return Errorf(Busy, "%s %s: %s", op, path, reason).With("end the program that uses it, then try again")
	}
	return Errorf(Denied, "%s %s: %s", op, path, reason)
}

// freeBytes says how much may still be written below dir.
func freeBytes(dir string) (uint64, bool) {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return 0, false
	}
	return uint64(st.Bavail) * uint64(st.Bsize), true
}
