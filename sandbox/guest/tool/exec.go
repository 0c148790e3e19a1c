package tool

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// ExecArgs are the arguments of exec.
type ExecArgs struct {
	Command     string            `json:"command,omitempty" jsonschema:"what bash is to run; needed unless job is given"`
	Dir         string            `json:"cwd,omitempty" jsonschema:"the folder to run it in; default the working folder"`
	Env         map[string]string `json:"env,omitempty" jsonschema:"further variables"`
	Stdin       *string           `json:"stdin,omitempty" jsonschema:"its standard input, then end of file; with job more input"`
	TTY         bool              `json:"tty,omitempty" jsonschema:"run it on a terminal of 80x24, for programs that insist"`
	Wait        int               `json:"wait_s,omitempty" min:"0" max:"600" jsonschema:"how many seconds to wait for its end before returning with running=true; default 60"`
	Timeout     int               `json:"timeout_s,omitempty" min:"1" max:"86400" jsonschema:"after how many seconds it is ended; default 600"`
	Background  bool              `json:"background,omitempty" jsonschema:"return at once, such as for a server"`
	Description string            `json:"description,omitempty" jsonschema:"what it is for, in a few words"`
	Job         string            `json:"job,omitempty" jsonschema:"attend to this job instead of running a command"`
	Signal      string            `json:"signal,omitempty" jsonschema:"with job: send INT, TERM, KILL, HUP or another signal; TERM and KILL end all that it started"`
	Cursor      int64             `json:"cursor,omitempty" min:"0" jsonschema:"with job: where its output goes on"`

	most int // seconds that Timeout can be; 0: as above
}

// Cap bounds the timeout, and tells it in o if more was asked for. Zero is no bound.
func (a *ExecArgs) Cap(o *ExecOutput, most time.Duration) {
	seconds := int(most / time.Second)
	if seconds <= 0 {
		return
	}
	if a.most = seconds; a.Timeout > seconds {
		if a.Timeout != execDefaults.Timeout {
			o.note("timeout_s is at most %d here", seconds)
		}
		a.Timeout = seconds
	}
}

// execDefaults are what exec does when it is not told.
var execDefaults = ExecArgs{Wait: 60, Timeout: 600}

// ExecOutput is what exec returns.
type ExecOutput struct {
	Job         string `json:"job" jsonschema:"to attend to it again"`
	Running     bool   `json:"running" jsonschema:"it has not ended yet"`
	ExitCode    *int   `json:"exit_code" jsonschema:"null while it runs, after a signal, or where it is not known"`
	Signal      string `json:"signal,omitempty" jsonschema:"that ended it"`
	KilledBy    string `json:"killed_by,omitempty" jsonschema:"who ended it: timeout, user, quota, oom (memory ran out) or sandbox_stop"`
	Duration    int64  `json:"duration_ms" jsonschema:"how long it has run"`
	Stdout      string `json:"stdout" jsonschema:"its output, cut in the middle if long"`
	Stderr      string `json:"stderr" jsonschema:"its errors, cut in the middle if long"`
	StdoutBytes int64  `json:"stdout_bytes" jsonschema:"bytes of output in all, since cursor"`
	StderrBytes int64  `json:"stderr_bytes" jsonschema:"bytes of errors in all, since cursor"`
	Truncated   bool   `json:"truncated,omitempty" jsonschema:"some is left out here"`
	OutputPath  string `json:"output_path,omitempty" jsonschema:"file in the sandbox with all of it"`
	Cursor      int64  `json:"cursor" jsonschema:"where the output goes on"`
	Dir         string `json:"cwd,omitempty" jsonschema:"the working folder after it"`
	Left        int    `json:"background_processes,omitempty" jsonschema:"processes that it has left running"`
	LeftPIDs    []int  `json:"background_pids,omitempty" jsonschema:"of the first of these"`
	Common
}

// Text is the output as a model reads it.
func (o *ExecOutput) Text() string {
	var b strings.Builder
	b.WriteString(o.Stdout)
	if o.Stderr != "" {
		if o.Stdout != "" && !strings.HasSuffix(o.Stdout, "\n") {
			b.WriteByte('\n')
		}
		b.WriteString("[stderr]\n" + o.Stderr)
	}
	text := strings.TrimSuffix(b.String(), "\n")
	b.Reset()
	b.WriteString(text + "\n(")
	switch {
	case o.Running:
		fmt.Fprintf(&b, "running for %.1f s as job %s", float64(o.Duration)/1000, o.Job)
	case o.KilledBy != "":
		fmt.Fprintf(&b, "ended by %s after %.1f s", o.KilledBy, float64(o.Duration)/1000)
	case o.Signal != "":
		fmt.Fprintf(&b, "ended by signal %s", o.Signal)
	}
	if o.ExitCode != nil {
		if o.KilledBy != "" {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "exit code %d", *o.ExitCode)
	} else if !o.Running && o.Signal == "" && o.KilledBy == "" {
		b.WriteString("exit code unknown")
	}
	b.WriteString(")")
	return o.text(&b)
}

// ParseExec reads the arguments of exec.
func ParseExec(raw json.RawMessage) (ExecArgs, []string, error) {
	a := execDefaults
	notes, err := decode(raw, &a)
	if err != nil {
		return a, nil, err
	}
	bad := func(format string, args ...any) *Error { return Errorf(BadArgs, format, args...) }
	a.Signal = strings.TrimPrefix(strings.ToUpper(a.Signal), "SIG")
	switch {
	case a.Job == "" && strings.TrimSpace(a.Command) == "":
		return a, nil, bad("there is neither command nor job")
	case a.Job != "" && a.Command != "":
		return a, nil, bad("there are both command and job").With("leave job out to run a command, or command to attend to a job")
	case a.Job == "" && (a.Signal != "" || a.Cursor != 0):
		return a, nil, bad("signal and cursor are for a job").With("say which job, or leave them out")
	case strings.Contains(a.Command+a.Dir, "\x00"):
		return a, nil, bad("the command has a NUL byte in it").With(`write it as \0 within $'…' or printf`)
	}
	for name, value := range a.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
			return a, nil, bad("%.40q is no name for a variable, or has a value that it cannot have", name)
		}
	}
	return a, notes, nil
}

// Environ returns the variables of a command, over those of the sandbox: programs
// are not to ask, not to page and not to paint.
func (a ExecArgs) Environ() [][]byte {
	env := [][]byte{
		[]byte("NO_COLOR=1"), []byte("PAGER=cat"), []byte("GIT_PAGER=cat"), []byte("GH_PAGER=cat"),
		[]byte("GIT_TERMINAL_PROMPT=0"), []byte("DEBIAN_FRONTEND=noninteractive"),
	}
	if !a.TTY {
		env = append(env, []byte("TERM=dumb"))
	}
	for _, name := range slices.Sorted(maps.Keys(a.Env)) {
		env = append(env, []byte(name+"="+a.Env[name]))
	}
	return env
}

// The shape of what is shown of a command's output.
const (
	execText = 30_000 // bytes of both streams
	execHead = execText / 5
	execTail = execText - execHead
)

// A Transcript takes a command's output, however much there is, and keeps what is
// shown of it. Its zero value is ready for use.
type Transcript struct {
	stdout, stderr ends
}

// Add adds what was written to one of the streams.
func (t *Transcript) Add(stderr bool, p []byte) { t.of(stderr).add(p) }

// Skip says that so many bytes of output are not known.
func (t *Transcript) Skip(n int64) { t.stdout.skip(n) }

func (t *Transcript) of(stderr bool) *ends {
	if stderr {
		return &t.stderr
	}
	return &t.stdout
}

// Show puts the output into o, for which path has all of it.
func (t *Transcript) Show(o *ExecOutput, path string) {
	o.StdoutBytes, o.StderrBytes = t.stdout.total, t.stderr.total
	// Half of the room is for each, and what one does not need is the other's.
	half := execText / 2
	room := max(half, execText-int(min(t.stderr.total, int64(half))))
	o.Stdout = t.stdout.show(room, path)
	room = max(half, execText-int(min(t.stdout.total, int64(half))))
	o.Stderr = t.stderr.show(room, path)
	o.Truncated = t.stdout.total+t.stderr.total > execText || t.stdout.gone > 0
	if o.Truncated {
		o.OutputPath = path
	}
}

// The ends of a stream are what it begins and ends with.
type ends struct {
	head, tail   []byte
	total, lines int64
	gone         int64 // of total, never seen
}

func (e *ends) add(p []byte) {
	e.total += int64(len(p))
	e.lines += int64(bytes.Count(p, []byte("\n")))
	if room := execHead - len(e.head); room > 0 && e.gone == 0 {
		n := min(room, len(p))
		e.head = append(e.head, p[:n]...)
		p = p[n:]
	}
	if len(p) > execTail {
		p = p[len(p)-execTail:]
	}
	if len(e.tail)+len(p) > 2*execTail {
		e.tail = append(e.tail[:0], e.tail[len(e.tail)-execTail+len(p):]...)
	}
	e.tail = append(e.tail, p...)
}

func (e *ends) skip(n int64) {
	e.total += n
	e.gone += n
	e.tail = e.tail[:0]
}

// show returns at most room bytes of the stream as text. What is left out is told.
func (e *ends) show(room int, path string) string {
	tail := e.tail[max(0, len(e.tail)-execTail):]
	if e.gone == 0 && e.total <= int64(room) {
		return Plain(slices.Concat(e.head, tail))
	}
	head := e.head[:min(len(e.head), room/5)]
	tail = tail[max(0, len(tail)-(room-room/5)):]
	// Whole lines, if there are any, else whole runes.
	if i := bytes.LastIndexByte(head, '\n'); i >= 0 {
		head = head[:i+1]
	} else {
		head = head[:cutLen(head)]
	}
	if i := bytes.IndexByte(tail, '\n'); i >= 0 && i+1 < len(tail) {
		tail = tail[i+1:]
	} else {
		for len(tail) > 0 && !utf8.RuneStart(tail[0]) {
			tail = tail[1:]
		}
	}
	lines := e.lines - int64(bytes.Count(head, []byte("\n"))+bytes.Count(tail, []byte("\n")))
	left := e.total - int64(len(head)+len(tail))
	begin := Plain(head)
	if begin != "" && !strings.HasSuffix(begin, "\n") {
		begin += "\n"
	}
	return fmt.Sprintf("%s[… %d lines, %d bytes left out; all of it is in %s …]\n%s", begin, max(0, lines), left, path, Plain(tail))
}

// Plain returns what a terminal would show as text: without its control sequences,
// and of a line that is overwritten the last that was written.
func Plain(b []byte) string {
	var out []byte
	for line := range bytes.Lines(b) {
		line, end := cutEnd(line)
		line = bytes.TrimRight(withoutEscapes(line), "\r")
		if i := bytes.LastIndexByte(line, '\r'); i >= 0 {
			line = line[i+1:]
		}
		out = append(append(out, line...), end...)
	}
	return clean(out)
}

func cutEnd(line []byte) (body, end []byte) {
	body = bytes.TrimSuffix(line, []byte("\n"))
	return body, line[len(body):]
}

// withoutEscapes leaves out the control sequences of ECMA-48.
func withoutEscapes(b []byte) []byte {
	const esc, bell = 0x1b, 0x07
	if bytes.IndexByte(b, esc) < 0 {
		return b
	}
	out := make([]byte, 0, len(b))
	for len(b) > 0 {
		if b[0] != esc {
			out = append(out, b[0])
			b = b[1:]
			continue
		}
		b = b[1:]
		if len(b) == 0 {
			break
		}
		kind := b[0]
		b = b[1:]
		switch kind {
		case '[': // parameters, then one byte from @ to ~
			n := 0
			for n < len(b) && b[n] >= 0x20 && b[n] <= 0x3f {
				n++
			}
			b = b[min(n+1, len(b)):]
		case ']', 'P', '_', '^', 'X': // a string up to BEL or ESC \
			n := bytes.IndexAny(b, string(rune(bell))+string(rune(esc)))
			switch {
			case n < 0:
				b = nil
			case b[n] == esc && n+1 < len(b) && b[n+1] == '\\':
				b = b[n+2:]
			case b[n] == esc:
				b = b[n:]
			default:
				b = b[n+1:]
			}
		case '(', ')', '#', '%': // one more byte
			b = b[min(1, len(b)):]
		}
	}
	return out
}

// Explain notes what an exit code or signal by itself does not say. memory is what the
// command had at its peak, limit what the sandbox may have, in bytes; zero: unknown.
func (o *ExecOutput) Explain(a ExecArgs, memory, limit int64) {
	code := -1
	if o.ExitCode != nil {
		code = *o.ExitCode
	}
	timeout := cmp.Or(a.Timeout, execDefaults.Timeout)
	more := "do it in smaller steps, as more cannot be had here"
	if most := cmp.Or(a.most, 86400); timeout < most {
		more = fmt.Sprintf("give more, up to %d, or do it in smaller steps", most)
	}
	switch {
	case o.Running && a.Background:
		o.note("it runs in the background; exec with job=%q shows its output, and ends it with signal=TERM", o.Job)
	case o.Running:
		o.note("it goes on; exec with job=%q and cursor=%d waits for more, signal=TERM ends it", o.Job, o.Cursor)
	case o.KilledBy == "timeout":
		o.note("it was ended with all its processes as timeout_s=%d had passed; %s", timeout, more)
	case o.KilledBy == "oom" && limit > 0:
		o.note("memory ran out: the sandbox may have %d MiB; have it use less, such as by smaller pieces or fewer processes at once", limit>>20)
	case o.KilledBy == "oom":
		o.note("memory ran out; have it use less, such as by smaller pieces or fewer processes at once")
	case code == 127:
		o.note("127: a program was not found; look with: command -v NAME")
	case code == 126:
		o.note("126: a file is there but cannot be executed; look at its mode with: ls -l")
	case (o.Signal == "KILL" || code == 137) && o.KilledBy == "":
		o.note("killed from outside, most likely as memory ran out; it had %d MiB at its peak", memory>>20)
	}
	if o.Left > 0 && !o.Running {
		which := ""
		if len(o.LeftPIDs) > 0 {
			which = " (pid " + strings.Trim(strings.ReplaceAll(fmt.Sprint(o.LeftPIDs), " ", ", "), "[]") + ")"
		}
		o.note("%s still running%s; end them with exec: job=%q, signal=TERM", summary(o.Left, "background process is", "background processes are"), which, o.Job)
	}
}

// Note adds a note.
func (o *ExecOutput) Note(format string, args ...any) { o.note(format, args...) }
