//go:build linux

package guest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandgate/sandbox/guest/tool"
	"sandgate/sandbox/testneed"
)

// A hand calls tools in one conversation.
type hand struct {
	t    testing.TB
	c    *Client
	user string
	dir  string
}

func newHand(t testing.TB, c *Client) *hand {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return &hand{t: t, c: c, dir: dir}
}

type args map[string]any

func (h *hand) try(ctx context.Context, name string, a args) (tool.Output, *tool.Error) {
	h.t.Helper()
	raw, err := json.Marshal(a)
	if err != nil {
		h.t.Fatal(err)
	}
	out, err := h.c.Tool(ctx, ToolCall{Name: name, Args: raw, Session: "test", User: h.user, Dir: h.dir}, nil)
	if err != nil {
		e, ok := errors.AsType[*tool.Error](err)
		if !ok || e.Remedy == "" {
			h.t.Fatalf("%s: error without a remedy: %v", name, err)
		}
		return nil, e
	}
	if o, ok := out.(*tool.ExecOutput); ok && o.Dir != "" {
		h.dir = o.Dir
	}
	return out, nil
}

func use[O tool.Output](h *hand, name string, a args) O {
	h.t.Helper()
	out, err := h.try(h.t.Context(), name, a)
	if err != nil {
		h.t.Fatalf("%s %v: %v", name, a, err)
	}
	return out.(O)
}

func (h *hand) exec(a args) *tool.ExecOutput {
	h.t.Helper()
	return use[*tool.ExecOutput](h, "exec", a)
}

// within checks that something took no longer than it may.
func within(t testing.TB, most time.Duration, what string, f func()) {
	t.Helper()
	begun := time.Now()
	f()
	if took := time.Since(begun); took > most {
		t.Errorf("%s took %v", what, took)
	}
}

func exitCode(o *tool.ExecOutput) int {
	if o.ExitCode == nil {
		return -1
	}
	return *o.ExitCode
}

func TestFileTools(t *testing.T) {
	h := newHand(t, newWorld(t).connect())
	use[*tool.WriteOutput](h, "write", args{"path": "a/f.txt", "content": "one\ntwo\n"})
	use[*tool.EditOutput](h, "edit", args{"path": "a/f.txt", "old": "two", "new": "three"})
	if o := use[*tool.ReadOutput](h, "read", args{"path": "a/f.txt"}); o.Content != "     1\tone\n     2\tthree\n" {
		t.Errorf("got %+v", o)
	}
	if o := use[*tool.GlobOutput](h, "glob", args{"pattern": "**/*.txt"}); fmt.Sprint(o.Paths) != "[a/f.txt]" {
		t.Errorf("got %+v", o)
	}
	if o := use[*tool.GrepOutput](h, "grep", args{"pattern": "thr.e"}); o.Matches != 1 {
		t.Errorf("got %+v", o)
	}
	if _, err := h.try(t.Context(), "read", args{"path": "none"}); err == nil || err.Code != tool.NotFound {
		t.Errorf("got %v", err)
	}
	big := strings.Repeat("0123456789\n", 900_000)
	use[*tool.WriteOutput](h, "write", args{"path": "big", "content": big})
	if b, _ := os.ReadFile(filepath.Join(h.dir, "big")); string(b) != big {
		t.Errorf("%d bytes were written", len(b))
	}
	if _, err := h.try(t.Context(), "sudo", nil); err == nil || err.Code != tool.BadArgs {
		t.Errorf("got %v", err)
	}
	h.dir = ""
	if o := use[*tool.ReadOutput](h, "read", args{"path": ""}); o.Path != os.Getenv("HOME") {
		t.Errorf("relative paths begin at %s", o.Path)
	}
}

// Tools work with the permissions of the sandbox's user, whose the files are.
func TestToolsAsUser(t *testing.T) {
	testneed.Root(t)
	h := newHand(t, newWorld(t).connect())
	h.user = "4321:8765"
	if _, err := h.try(t.Context(), "write", args{"path": "f", "content": "x"}); err == nil || err.Code != tool.Denied {
		t.Errorf("got %v", err)
	}
	for dir := h.dir; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		os.Chmod(dir, 0o777)
	}
	use[*tool.WriteOutput](h, "write", args{"path": "f", "content": "x"})
	h.exec(args{"command": "echo >g"})
	for _, name := range []string{"f", "g"} {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(h.dir, name), &st); err != nil || st.Uid != 4321 || st.Gid != 8765 {
			t.Errorf("%s belongs to %d:%d, %v", name, st.Uid, st.Gid, err)
		}
	}
	h.user = "nosuchuser"
	if _, err := h.try(t.Context(), "read", args{"path": "f"}); err == nil || err.Code != tool.Denied {
		t.Errorf("got %v", err)
	}
}

func TestExec(t *testing.T) {
	h := newHand(t, newWorld(t).connect())
	start := h.dir
	o := h.exec(args{"command": "echo out; echo err >&2; exit 3"})
	if o.Stdout != "out\n" || o.Stderr != "err\n" || exitCode(o) != 3 || o.Running || o.Truncated {
		t.Errorf("got %+v", o)
	}
	os.Mkdir(filepath.Join(start, "sub"), 0o755)
	h.exec(args{"command": "cd sub; false"})
	if h.dir != start+"/sub" {
		t.Errorf("after cd the folder is %s", h.dir)
	}
	if o := h.exec(args{"command": "pwd; cd /nowhere"}); o.Stdout != start+"/sub\n" || h.dir != start+"/sub" {
		t.Errorf("got %+v", o)
	}
	if o := h.exec(args{"command": "pwd", "cwd": ".."}); o.Stdout != start+"\n" {
		t.Errorf("got %+v", o)
	}
	if o := h.exec(args{"command": "pwd", "cwd": "~"}); o.Stdout != os.Getenv("HOME")+"\n" {
		t.Errorf("got %+v", o)
	}
	h.dir = start
	if o := h.exec(args{"command": `echo "$A$B$PAGER$TERM"; B=2`, "env": args{"A": "1"}}); o.Stdout != "1catdumb\n" {
		t.Errorf("got %+v", o)
	}
	if o := h.exec(args{"command": "cat; echo $0", "stdin": "in\n"}); o.Stdout != "in\nbash\n" {
		t.Errorf("got %+v", o)
	}
	if o := h.exec(args{"command": "test -t 0 && stty size", "tty": true}); o.Stdout != "24 80\n" {
		t.Errorf("got %+v", o)
	}
	if o := h.exec(args{"command": "echo $LC_ALL"}); hasLocale() && o.Stdout != "C.UTF-8\n" {
		t.Errorf("got %+v", o)
	}
	o = h.exec(args{"command": "kill -9 $$"})
	if o.ExitCode != nil || o.Signal != "KILL" || !strings.Contains(o.Text(), "memory") {
		t.Errorf("got %+v", o)
	}
	for command, words := range map[string]string{"no_such_cmd": "not found", "/etc/passwd": "cannot be executed"} {
		if o := h.exec(args{"command": command}); !strings.Contains(o.Text(), words) {
			t.Errorf("got %s", o.Text())
		}
	}
	o = h.exec(args{"command": "true", "cwd": "/no/such/folder"})
	if exitCode(o) != 126 || !strings.Contains(o.Stderr, "/no/such/folder: No such file") {
		t.Errorf("got %+v", o)
	}
	for _, bad := range []args{{}, {"command": "true", "job": "x"}, {"command": "true", "signal": "TERM"}, {"command": "a\x00b"}, {"command": "true", "env": args{"A=": "x"}}} {
		if _, err := h.try(t.Context(), "exec", bad); err == nil || err.Code != tool.BadArgs {
			t.Errorf("%v: %v", bad, err)
		}
	}
	if _, err := h.try(t.Context(), "exec", args{"job": "nosuchjob1"}); err == nil || err.Code != tool.NotFound {
		t.Errorf("got %v", err)
	}
	// What one call does to its shell is nothing to the next.
	h.exec(args{"command": "set -e; cat <<X\nopen"})
	if o := h.exec(args{"command": "false; echo on"}); o.Stdout != "on\n" {
		t.Errorf("got %+v", o)
	}
}

func TestAGENT04(t *testing.T) {
	h := newHand(t, newWorld(t).connect())
	// Numbers that no other process has: these run on the test's own host.
	first, second := fmt.Sprintf("9%d.5", os.Getpid()), fmt.Sprintf("8%d.5", os.Getpid())
	runs := func(number string) bool {
		for _, p := range processes() {
			if b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid)); string(b) == "sleep\x00"+number+"\x00" {
				return true
			}
		}
		return false
	}
	var o *tool.ExecOutput
	within(t, 8*time.Second, "the timeout", func() {
		o = h.exec(args{"command": "(while :; do echo child; sleep 1; done) & setsid sleep " + first + " & sleep " + first, "timeout_s": 2})
	})
	if o.KilledBy != "timeout" || exitCode(o) != 124 || !strings.Contains(o.Stdout, "child") || !strings.Contains(o.Text(), "timeout_s=2") {
		t.Errorf("got %+v", o)
	}
	waitFor(t, "the end of all processes", func() bool { return !runs(first) })
	within(t, 2*time.Second, "a command that leaves others behind", func() {
		o = h.exec(args{"command": "sleep " + second + " & setsid sleep " + second + " & echo hi"})
	})
	if o.Stdout != "hi\n" || exitCode(o) != 0 || o.Left != 2 || len(o.LeftPIDs) != 2 || !strings.Contains(o.Text(), fmt.Sprintf("2 background processes are still running (pid %d, %d)", o.LeftPIDs[0], o.LeftPIDs[1])) {
		t.Errorf("got %+v", o)
	}
	if !runs(second) {
		t.Error("what was left running does not run")
	}
	o = h.exec(args{"job": o.Job, "signal": "TERM"})
	if exitCode(o) != 0 || o.KilledBy != "" || o.Left != 0 {
		t.Errorf("got %+v", o)
	}
	waitFor(t, "the end of what was left", func() bool { return !runs(second) })
	within(t, 2*time.Second, "a command that disowns another", func() {
		o = h.exec(args{"command": "sleep " + second + " & disown; exit 0"})
	})
	h.exec(args{"job": o.Job, "signal": "KILL"})
	waitFor(t, "the end of what was left", func() bool { return !runs(second) })
}

func TestAGENT05(t *testing.T) {
	h := newHand(t, newWorld(t).connect())
	o := h.exec(args{"command": "echo first; head -c 100000000 /dev/zero | tr '\\0' x | fold -w 100; echo; echo last"})
	if exitCode(o) != 0 || o.StdoutBytes != 100_000_000+1_000_000+11 || !o.Truncated || len(o.Stdout) > 31_000 {
		t.Errorf("%d bytes, %d shown, exit %d", o.StdoutBytes, len(o.Stdout), exitCode(o))
	}
	for _, want := range []string{"first\nxxx", "left out; all of it is in ", "xxx\nlast\n"} {
		if !strings.Contains(o.Stdout, want) {
			t.Errorf("%q is not in the output", want)
		}
	}
	if o := h.exec(args{"command": `printf 'a\0b\xff\xfec\033[31mred\033[0m 1%%\r 99%%\n'`}); o.Stdout != " 99%\n" {
		t.Errorf("got %q", o.Stdout)
	}
	if o := h.exec(args{"command": `printf 'a\0b\xff\xfec\033[31mred\033[0m\n'`}); o.Stdout != "a\uFFFDb\uFFFDcred\n" {
		t.Errorf("got %q", o.Stdout)
	}
	within(t, 5*time.Second, "commands that read", func() {
		if o := h.exec(args{"command": "cat"}); o.Stdout != "" || exitCode(o) != 0 {
			t.Errorf("got %+v", o)
		}
		if o := h.exec(args{"command": `read -p "sure? " x; echo "[$x]"`}); o.Stdout != "[]\n" {
			t.Errorf("got %+v", o)
		}
	})
}

// A command that takes longer than its caller waits goes on as a job.
func TestExecJob(t *testing.T) {
	h := newHand(t, newWorld(t).connect())
	o := h.exec(args{"command": "echo one; sleep 1.5; echo two; exit 5", "wait_s": 1})
	if !o.Running || o.Stdout != "one\n" || o.ExitCode != nil || o.Cursor != 4 {
		t.Fatalf("got %+v", o)
	}
	o = h.exec(args{"job": o.Job, "cursor": o.Cursor})
	if o.Running || o.Stdout != "two\n" || exitCode(o) != 5 {
		t.Errorf("got %+v", o)
	}
	o = h.exec(args{"command": "trap 'echo got INT' INT; while :; do sleep 0.1; done", "background": true})
	if !o.Running || !strings.Contains(o.Text(), "background") {
		t.Errorf("got %+v", o)
	}
	h.exec(args{"job": o.Job, "signal": "SIGINT", "wait_s": 1})
	o = h.exec(args{"job": o.Job, "signal": "KILL"})
	if o.Running || o.KilledBy != "user" || !strings.Contains(o.Stdout, "got INT") {
		t.Errorf("got %+v", o)
	}
	o = h.exec(args{"command": "read a; read b; echo $a-$b", "stdin": "1\n", "background": true})
	o = h.exec(args{"job": o.Job, "stdin": "2\n"})
	if o.Stdout != "1-2\n" {
		t.Errorf("got %+v", o)
	}
}

// Of a thousand commands that leave others behind no zombie is left.
func TestExecNoZombies(t *testing.T) {
	h := newHand(t, newWorld(t).connect())
	pid := h.guestPID()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 125 {
				raw := json.RawMessage(`{"command":"(sleep 0.01 &) ; true & setsid true &"}`)
				if _, err := h.c.Tool(t.Context(), ToolCall{Name: "exec", Args: raw, Session: "test", Dir: h.dir}, nil); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	waitFor(t, "the children's end", func() bool {
		files, _ := filepath.Glob("/proc/[0-9]*/stat")
		for _, file := range files {
			stat, _ := os.ReadFile(file)
			if _, rest, _ := strings.Cut(string(stat), ") "); strings.HasPrefix(rest, fmt.Sprintf("Z %d ", pid)) {
				return false
			}
		}
		return true
	})
}

// A conversation has so many commands running and no more; another has its own.
func TestExecJobsOfSession(t *testing.T) {
	h := newHand(t, newWorld(t).connect())
	background := args{"command": "sleep 600.75", "background": true, "wait_s": 0}
	var last *tool.ExecOutput
	for range MaxOwned {
		last = h.exec(background)
	}
	_, err := h.try(t.Context(), "exec", background)
	if err == nil || err.Code != tool.Quota || !strings.Contains(err.Message, "of this conversation are running: 64") || !strings.Contains(err.Remedy, "signal=TERM") {
		t.Errorf("got %v", err)
	}
	if _, err := h.c.Tool(t.Context(), ToolCall{Name: "exec", Args: json.RawMessage(`{"command":"true"}`), Session: "other", Dir: h.dir}, nil); err != nil {
		t.Errorf("another conversation: %v", err)
	}
	h.exec(args{"job": last.Job, "signal": "KILL"})
	if o := h.exec(args{"command": "true"}); exitCode(o) != 0 {
		t.Errorf("after one was ended: %+v", o)
	}
}

// A command that the kernel kills for lack of memory is told from one that another
// process has killed.
func TestMemoryKills(t *testing.T) {
	dir := t.TempDir()
	if kills, limit := memoryKills(dir); kills != 0 || limit != 0 {
		t.Errorf("without files: %d, %d", kills, limit)
	}
	os.Mkdir(filepath.Join(dir, "memory"), 0o755)
	for _, tt := range []struct {
		name, content string
		kills, limit  int64
	}{
		{"memory/memory.limit_in_bytes", "9223372036854771712\n", 0, 0},
		{"memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", 3, 0},
		{"memory.events", "low 0\noom 7\noom_kill 5\noom_group_kill 1\n", 5, 0},
		{"memory.max", "max\n", 5, 0},
		{"memory.max", "201326592\n", 5, 192 << 20},
	} {
		if err := os.WriteFile(filepath.Join(dir, tt.name), []byte(tt.content), 0o644); err != nil {
			t.Fatal(err)
		}
		if kills, limit := memoryKills(dir); kills != tt.kills || limit != tt.limit {
			t.Errorf("with %s %q: %d, %d", tt.name, tt.content, kills, limit)
		}
	}
	x := &execution{job: JobInfo{ID: "j", Reason: ReasonMemory, Exit: &Exit{Signal: "KILL"}, MemoryLimit: 192 << 20}}
	x.describe()
	x.out.Explain(x.args, 0, x.job.MemoryLimit)
	if x.out.KilledBy != "oom" || !strings.Contains(x.out.Text(), "the sandbox may have 192 MiB") {
		t.Errorf("got %+v", x.out)
	}
}

// A call that is made again with its job's id gets what the command gave, and does
// not run it again: also when the gateway is another by then.
func TestExecAgain(t *testing.T) {
	w := newWorld(t)
	c := w.connect()
	file := filepath.Join(t.TempDir(), "runs")
	call := ToolCall{Name: "exec", Job: NewJobID(), Session: "s", Args: json.RawMessage(`{"command":"cat; echo x >>` + file + `; sleep 1; echo done","stdin":"in "}`)}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		waitFor(t, "the command", func() bool { _, err := os.Stat(file); return err == nil })
		c.Close()
		cancel()
	}()
	if _, err := c.Tool(ctx, call, nil); err == nil {
		t.Error("the call returned an output though the gateway had gone")
	} else if e := err.(*tool.Error); e.Code != tool.OutcomeUnknown || e.Job != call.Job {
		t.Errorf("got %+v", e)
	}
	c = w.connect()
	for range 2 {
		out, err := c.Tool(t.Context(), call, nil)
		if err != nil {
			t.Fatal(err)
		}
		if o := out.(*tool.ExecOutput); o.Stdout != "in done\n" || exitCode(o) != 0 {
			t.Errorf("got %+v", o)
		}
	}
	if b, _ := os.ReadFile(file); string(b) != "x\n" {
		t.Errorf("the command ran %d times", strings.Count(string(b), "x"))
	}
}

func TestExecCancelled(t *testing.T) {
	c := newWorld(t).connect()
	for _, end := range []bool{true, false} {
		ctx, cancel := context.WithCancelCause(t.Context())
		call := ToolCall{Name: "exec", Job: NewJobID(), Args: json.RawMessage(`{"command":"echo begun; sleep 600.5"}`)}
		leave := errors.New("leave")
		cause := errors.New("stop")
		if !end {
			call.EndOn, cause = func(c error) bool { return c != leave }, leave
		}
		out, err := c.Tool(ctx, call, func(p ToolProgress) {
			if p.Text == "begun\n" && !p.Stderr && p.Bytes == 6 {
				cancel(cause)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if o := out.(*tool.ExecOutput); !o.Cancelled || o.Stdout != "begun\n" || o.Running == end {
			t.Errorf("got %+v", o)
		}
		job, err := c.Job(t.Context(), call.Job)
		if err != nil || job.Running() == end {
			t.Errorf("the job is %+v, %v", job, err)
		}
		if err := c.End(t.Context(), call.Job, ""); err != nil {
			t.Error(err)
		}
		if _, err := c.WaitJob(t.Context(), call.Job); err != nil {
			t.Error(err)
		}
	}
}

// The tools' process comes back when it was killed.
func TestWorkshopKilled(t *testing.T) {
	h := newHand(t, newWorld(t).connect())
	h.exec(args{"command": "echo x >f"})
	use[*tool.ReadOutput](h, "read", args{"path": "f"})
	out := h.exec(args{"command": `for p in /proc/[0-9]*; do case "$(tr '\0' ' ' <$p/cmdline 2>/dev/null)" in "sandgate guest tools "*) echo ${p#/proc/}; esac; done`})
	mine := 0
	for _, word := range strings.Fields(out.Stdout) {
		pid, _ := strconv.Atoi(word)
		if parentOf(pid) == h.guestPID() {
			mine++
			unix.Kill(pid, unix.SIGKILL)
		}
	}
	if mine != 1 {
		t.Fatalf("%d processes of %q", mine, out.Stdout)
	}
	waitFor(t, "the tools", func() bool {
		_, err := h.try(t.Context(), "read", args{"path": "f"})
		if err != nil && err.Code != tool.Killed && err.Code != tool.Busy {
			t.Errorf("got %v", err)
		}
		return err == nil
	})
}

// guestPID is the process that commands of the world are children of.
func (h *hand) guestPID() int {
	h.t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(h.exec(args{"command": "echo $PPID"}).Stdout))
	if err != nil {
		h.t.Fatal(err)
	}
	return n
}

func parentOf(pid int) int {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	p, _ := parseStat(b)
	return p.parent
}

// Whatever comes on a tool stream, there is an answer or an end.
func FuzzToolStream(f *testing.F) {
	f.Add("read", []byte(`{"path":"x"}`+"\n"))
	f.Add("grep", []byte(`{"pattern":"("}`+"\nmore"))
	f.Add("x", []byte("[[[[[\n"))
	f.Fuzz(func(t *testing.T, name string, line []byte) {
		if name == "write" || name == "edit" || name == "glob" || name == "grep" {
			return // which would look about here
		}
		b := &toolbench{home: "/nonexistent", sessions: make(map[string]*toolSession)}
		var answer strings.Builder
		b.serve(memoryStream(line, &answer), header{Kind: kindTool, Tool: &useTool{Name: name, Dir: "/nonexistent"}})
		var r toolReply
		if err := json.Unmarshal([]byte(answer.String()), &r); err != nil || (r.Output == nil) == (r.Error == nil) {
			t.Errorf("answered %q, %v", answer.String(), err)
		}
	})
}

func BenchmarkTool(b *testing.B) {
	h := newHand(b, newWorld(b).connect())
	os.WriteFile(filepath.Join(h.dir, "f"), []byte(strings.Repeat("line\n", 100)), 0o644)
	for name, a := range map[string]args{
		"read": {"path": "f"}, "glob": {"pattern": "*"}, "grep": {"pattern": "x"}, "write": {"path": "g", "content": "x"}, "exec": {"command": ":"},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := h.try(b.Context(), name, a); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// memoryStream is a stream that has in on it and keeps what is written.
func memoryStream(in []byte, out io.Writer) *stream {
	nothing := func() error { return nil }
	return &stream{r: bufio.NewReader(bytes.NewReader(in)), w: out, close: nothing, end: nothing}
}
