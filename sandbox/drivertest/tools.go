package drivertest

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"sandgate/sandbox/guest"
	"sandgate/sandbox/guest/tool"
)

// The six tools, as a model calls them.
var toolCases = cases{
	"Exec":      check(toolExec),
	"ExecEnds":  check(toolExecEnds),
	"ExecLater": check(toolExecLater),
	"Read":      check(toolRead),
	"Write":     check(toolWrite),
	"Edit":      check(toolEdit),
	"Glob":      check(toolGlob),
	"Grep":      check(toolGrep),
	"Special":   check(toolSpecial),
	"User":      where{walls, check(toolUser)},
	"Bare":      where{walls, alone(toolBare)},
}

// A hand calls tools in one folder.
type hand struct {
	testing.TB
	client *guest.Client
	user   string
	dir    string
}

func (s *seat) hand() *hand { return &hand{TB: s.T, client: s.client, dir: s.folder()} }

// try calls a tool with arguments in JSON, made as by Sprintf.
func (h *hand) try(name, format string, a ...any) (tool.Output, *tool.Error) {
	h.Helper()
	args := json.RawMessage(fmt.Sprintf(format, a...))
	out, err := h.client.Tool(h.Context(), guest.ToolCall{Name: name, Args: args, Session: h.dir, User: h.user, Dir: h.dir}, nil)
	if err != nil {
		e, ok := errors.AsType[*tool.Error](err)
		if !ok || e.Remedy == "" {
			h.Fatalf("%s %s: error without a remedy: %v", name, args, err)
		}
		return nil, e
	}
	return out, nil
}

// call calls a tool that has to succeed, and returns what a model reads.
func (h *hand) call(name, format string, a ...any) string {
	h.Helper()
	out, err := h.try(name, format, a...)
	if err != nil {
		h.Fatalf("%s: %v", name, err)
	}
	return strings.ReplaceAll(out.Text(), h.dir, "DIR")
}

// want calls a tool and compares what a model reads.
func (h *hand) want(want, name, format string, a ...any) {
	h.Helper()
	if got := h.call(name, format, a...); got != want {
		h.Errorf("%s returned %q, want %q", name, got, want)
	}
}

// fails calls a tool that has to fail with a code.
func (h *hand) fails(code tool.Code, name, format string, a ...any) {
	h.Helper()
	if out, err := h.try(name, format, a...); err == nil {
		h.Errorf("%s returned %q, want the error %s", name, out.Text(), code)
	} else if err.Code != code {
		h.Errorf("%s: %v, want the error %s", name, err, code)
	}
}

func (h *hand) exec(format string, a ...any) *tool.ExecOutput {
	h.Helper()
	out, err := h.try("exec", format, a...)
	if err != nil {
		h.Fatal(err)
	}
	o := out.(*tool.ExecOutput)
	if o.Dir != "" {
		h.dir = o.Dir
	}
	return o
}

func toolExec(s *seat) {
	h := s.hand()
	dir := h.dir
	h.want("out\n[stderr]\nerr\n(exit code 3)", "exec", `{"command":"echo out; echo err >&2; exit 3"}`)
	h.exec(`{"command":"mkdir sub && cd sub"}`)
	if h.dir != dir+"/sub" {
		s.Errorf("after cd the folder is %s", h.dir)
	}
	h.want("in\n(exit code 0)", "exec", `{"command":"cat","stdin":"in"}`)
	h.want("(exit code 0)", "exec", `{"command":"cat"}`)
	if o := h.exec(`{"command":"kill -9 $$"}`); o.Signal != "KILL" || o.ExitCode != nil {
		s.Errorf("got %+v", o)
	}
}

// A timeout leaves no process; what is started in the background does not hold up
// the call.
func toolExecEnds(s *seat) {
	h := s.hand()
	o := h.exec(`{"command":"sleep 98765 & setsid sleep 98765 & echo begun; wait","timeout_s":1}`)
	if o.KilledBy != "timeout" || o.ExitCode == nil || *o.ExitCode != 124 || o.Stdout != "begun\n" {
		s.Errorf("got %+v", o)
	}
	h.want("(exit code 0)", "exec", `{"command":"! cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep '[s]leep 98765'"}`)
	o = h.exec(`{"command":"sleep 87654 & setsid sleep 87654 & echo hi"}`)
	if o.Stdout != "hi\n" || o.Left != 2 {
		s.Errorf("got %+v", o)
	}
	h.exec(`{"job":%q,"signal":"KILL"}`, o.Job)
}

// What takes longer than its caller waits goes on.
func toolExecLater(s *seat) {
	h := s.hand()
	o := h.exec(`{"command":"echo one; sleep 1; echo two; exit 5","wait_s":0}`)
	if !o.Running {
		s.Errorf("got %+v", o)
	}
	o = h.exec(`{"job":%q}`, o.Job)
	if o.Stdout != "one\ntwo\n" || o.ExitCode == nil || *o.ExitCode != 5 {
		s.Errorf("got %+v", o)
	}
}

func toolRead(s *seat) {
	h := s.hand()
	h.exec(`{"command":"seq 3 >f; ln -s f link; mkdir sub"}`)
	h.want("DIR/f: 3 lines, 6 bytes, utf-8, lf\n     2\t2\n     3\t3\n", "read", `{"path":"link","offset":2}`)
	h.want("DIR: folder\nsub/\nf\nlink@\n", "read", `{"path":"."}`)
	h.fails(tool.NotFound, "read", `{"path":"g"}`)
}

func toolWrite(s *seat) {
	h := s.hand()
	h.want("DIR/a/f: created, 1 lines, 2 bytes (+1 −0)", "write", `{"path":"a/f","content":"x\n","mode":"0750"}`)
	h.exec(`{"command":"ln a/f a/g; ln -s f a/l"}`)
	if got := h.call("write", `{"path":"a/l","content":"yy\n"}`); !strings.Contains(got, "is a link") || !strings.Contains(got, "2 names") {
		s.Errorf("got %s", got)
	}
	h.want("yy\n750 2\n(exit code 0)", "exec", `{"command":"cat a/g; stat -c '%%a %%h' a/f"}`)
	h.exec(`{"command":"echo z >a/f"}`)
	h.fails(tool.Stale, "write", `{"path":"a/f","content":""}`)
}

func toolEdit(s *seat) {
	h := s.hand()
	h.exec(`{"command":"printf 'one\\r\\ntwo\\nthree' >f"}`)
	h.fails(tool.NotRead, "edit", `{"path":"f","old":"two","new":"2"}`)
	h.call("read", `{"path":"f"}`)
	h.call("edit", `{"path":"f","old":"one\ntwo","new":"1\n$& \\1"}`)
	h.want("1R\n$& \\1\nthree\n(exit code 0)", "exec", `{"command":"tr '\\r' R <f"}`)
	h.fails(tool.NoMatch, "edit", `{"path":"f","old":"two","new":"2"}`)
}

func toolGlob(s *seat) {
	h := s.hand()
	h.exec(`{"command":"mkdir -p a/b '[x]'; ln -s .. a/loop; touch a/b/f.go '[x]/g.go' a/i.go; echo i.go >.gitignore"}`)
	h.want("[x]/g.go\na/b/f.go", "glob", `{"pattern":"**/*.go","sort":"path"}`)
	h.want("[x]/g.go", "glob", `{"pattern":"[x]/g.go"}`)
}

func toolGrep(s *seat) {
	h := s.hand()
	h.exec(`{"command":"mkdir a; printf 'one\\ntwo\\n' >a/f; printf 'a\\0two' >b"}`)
	h.want("a/f\n1-one\n2:two\n(1 matching line in 1 file)\n(1 binary file matches too, not shown)", "grep", `{"pattern":"tw.","before":1}`)
	h.fails(tool.BadPattern, "grep", `{"pattern":"a(b"}`)
}

// Nothing hangs on what is no ordinary file.
func toolSpecial(s *seat) {
	h := s.hand()
	h.exec(`{"command":"mkfifo fifo; ln -s l2 l1; ln -s l1 l2"}`)
	for _, path := range []string{"fifo", "l1", "/dev/zero"} {
		h.fails(tool.NotRegular, "read", `{"path":%q}`, path)
		h.fails(tool.NotRegular, "edit", `{"path":%q,"old":"a","new":"b"}`, path)
		h.fails(tool.NotRegular, "grep", `{"path":%q,"pattern":"x"}`, path)
	}
	h.call("grep", `{"pattern":"x"}`)
	h.call("read", `{"path":"/proc/self/status"}`)
}

// Files belong to the user for whom the tools work, who may no more than that user.
func toolUser(s *seat) {
	h := s.hand()
	h.user = "4321:8765"
	h.call("write", `{"path":"f","content":"x"}`)
	h.want("4321:8765\n(exit code 0)", "exec", `{"command":"stat -c '%%u:%%g' f"}`)
	h.fails(tool.Denied, "write", `{"path":"/etc/f","content":"x"}`)
}

// Without a shell, grep and all that the tools are for files, and exec for commands
// that need none.
func toolBare(t *testing.T, b *bench) {
	_, sh := b.start("bare")
	sh.Run("sh", "-c", "echo needle >/root/f; rm -f /usr/bin/bash /usr/bin/rbash /usr/bin/dash /usr/bin/rg /usr/bin/grep /bin/bash /bin/grep /usr/bin/sh /bin/sh")
	h := &hand{TB: t, client: sh.Client, dir: "/root"}
	h.want("DIR/f: 1 lines, 7 bytes, utf-8, lf\n     1\tneedle\n", "read", `{"path":"f"}`)
	h.call("edit", `{"path":"f","old":"needle","new":"two needles"}`)
	h.call("write", `{"path":"sub/g","content":"needle"}`)
	h.want("f\nsub/g", "glob", `{"pattern":"**/[fg]","sort":"path"}`)
	h.want("f\n1:two needles\n\nsub/g\n1:needle\n(2 matching lines in 2 files)", "grep", `{"pattern":"need.e"}`)
	if o := h.exec(`{"command":"echo $HOME | cat"}`); o.ExitCode == nil || *o.ExitCode != 127 || !strings.Contains(o.Stderr, "no shell") {
		t.Errorf("got %+v", o)
	}
}
