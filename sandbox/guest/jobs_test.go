//go:build linux

package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandgate/sandbox/testneed"
)

func start(t testing.TB, c *Client, run Run) JobInfo {
	t.Helper()
	if run.ID == "" {
		run.ID = NewJobID()
	}
	i, err := c.Run(t.Context(), run)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func wait(t testing.TB, c *Client, job string) JobInfo {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	i, err := c.WaitJob(ctx, job)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// printed is what a job has printed, as its log has it.
func printed(t testing.TB, c *Client, job string, span Span) (stdout, stderr string, last *Output) {
	t.Helper()
	o, err := c.Output(t.Context(), job, span)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	var out, errs strings.Builder
	for {
		p, err := o.Next()
		if err == io.EOF {
			return out.String(), errs.String(), o
		}
		if err != nil {
			t.Fatal(err)
		}
		if p.Stderr {
			errs.Write(p.Data)
		} else {
			out.Write(p.Data)
		}
	}
}

func TestRun(t *testing.T) {
	c := newWorld(t).connect()
	run := Run{ID: NewJobID(), Command: Command{
		Text: []byte("pwd; echo $FRUIT; cat; echo err >&2; echo end; exit 3"), Name: "first", Dir: "/usr",
		Env: [][]byte{[]byte("FRUIT=plum")},
	}}
	began := start(t, c, run)
	if began.ID != run.ID || began.Kind != KindRun || began.Name != "first" {
		t.Errorf("started %+v", began)
	}
	i := wait(t, c, "first")
	if i.Running() || i.Reason != ReasonExit || i.Exit == nil || i.Exit.Code != 3 || i.Ended.Before(i.Started) || i.Left != 0 {
		t.Errorf("ended %+v, exit %+v", i, i.Exit)
	}
	stdout, stderr, o := printed(t, c, run.ID, Span{})
	if stdout != "/usr\nplum\nend\n" || stderr != "err\n" {
		t.Errorf("printed %q, %q", stdout, stderr)
	}
	if o.Offset() != int64(len(stdout+stderr)) || o.Job().Output != o.Offset() {
		t.Errorf("log ends at %d, job %+v", o.Offset(), o.Job())
	}
	if again := start(t, c, run); again.Running() {
		t.Errorf("started twice: %+v", again)
	}
	jobs, err := c.Jobs(t.Context())
	if err != nil || len(jobs) != 1 || jobs[0].ID != run.ID {
		t.Errorf("jobs %+v, %v", jobs, err)
	}
	if err := c.Forget(t.Context(), run.ID); err != nil {
		t.Error(err)
	}
	if _, err := c.Job(t.Context(), run.ID); !errors.Is(err, ErrNoJob) {
		t.Errorf("forgotten: %v", err)
	}
}

func TestRunThatCannotStart(t *testing.T) {
	c := newWorld(t).connect()
	_, err := c.Run(t.Context(), Run{ID: NewJobID(), Command: Command{Text: []byte("true"), Dir: "/nosuch"}})
	if e, ok := errors.AsType[*StartError](err); !ok || e.Code != 126 || e.Reason != "cannot start in /nosuch: No such file or directory" {
		t.Errorf("%v", err)
	}
	if _, err := c.Run(t.Context(), Run{ID: "../../x"}); err == nil {
		t.Error("an id with slashes is taken")
	}
	for name, err := range map[string]error{
		"Kill":   c.Kill(t.Context(), "nosuchjob", "TERM"),
		"End":    c.End(t.Context(), "nosuchjob", ""),
		"Forget": c.Forget(t.Context(), "nosuchjob"),
		"Input":  c.Input(t.Context(), "nosuchjob", nil, true),
	} {
		if !errors.Is(err, ErrNoJob) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := c.Output(t.Context(), "nosuchjob", Span{}); !errors.Is(err, ErrNoJob) {
		t.Errorf("Output: %v", err)
	}
	if jobs, err := c.Jobs(t.Context()); err != nil || len(jobs) != 0 {
		t.Errorf("jobs %+v, %v", jobs, err)
	}
}

func TestInput(t *testing.T) {
	c := newWorld(t).connect()
	i := start(t, c, Run{Command: command("wc -c"), Input: true})
	if err := c.Input(t.Context(), i.ID, bytes.Repeat([]byte("x"), 3_000_000), false); err != nil {
		t.Fatal(err)
	}
	if err := c.Input(t.Context(), i.ID, []byte("last"), true); err != nil {
		t.Fatal(err)
	}
	wait(t, c, i.ID)
	if out, _, _ := printed(t, c, i.ID, Span{}); out != "3000004\n" {
		t.Errorf("wc counts %q", out)
	}
	// A job that does not read holds up nobody for longer than they want.
	i = start(t, c, Run{Command: command("sleep 60"), Input: true})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := c.Input(ctx, i.ID, make([]byte, 3<<20), false); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("input that nobody reads: %v", err)
	}
	if err := c.End(t.Context(), i.ID, ReasonQuota); err != nil {
		t.Fatal(err)
	}
	if i := wait(t, c, i.ID); i.Reason != ReasonQuota || i.Exit == nil || i.Exit.Signal != "TERM" {
		t.Errorf("ended %+v", i)
	}
}

// A log is read from any byte on, while it grows, and tells who said what.
func TestOutputFollows(t *testing.T) {
	c := newWorld(t).connect()
	i := start(t, c, Run{Command: command("for i in $(seq 300); do echo out $i; echo err $i >&2; done; sleep 0.3; echo last")})
	stdout, stderr, o := printed(t, c, i.ID, Span{Follow: true})
	var wantOut, wantErr strings.Builder
	for n := range 300 {
		fmt.Fprintf(&wantOut, "out %d\n", n+1)
		fmt.Fprintf(&wantErr, "err %d\n", n+1)
	}
	wantOut.WriteString("last\n")
	if stdout != wantOut.String() || stderr != wantErr.String() {
		t.Errorf("printed %d and %d bytes, want %d and %d", len(stdout), len(stderr), wantOut.Len(), wantErr.Len())
	}
	if j := o.Job(); j.Running() || j.Exit == nil {
		t.Errorf("after its end: %+v", j)
	}
	all := int(o.Offset())
	for range 50 {
		from := rand.IntN(all + 1)
		out, errs, _ := printed(t, c, i.ID, Span{Offset: int64(from)})
		if len(out)+len(errs) != all-from || !strings.HasSuffix(stdout, out) || !strings.HasSuffix(stderr, errs) {
			t.Errorf("from %d: %d and %d bytes of %d", from, len(out), len(errs), all)
		}
	}
	if out, errs, _ := printed(t, c, i.ID, Span{Tail: 1}); out+errs != "last\n" {
		t.Errorf("the last line is %q", out+errs)
	}
	if out, errs, _ := printed(t, c, i.ID, Span{Tail: 10_000}); len(out+errs) != all {
		t.Errorf("more lines than there are come to %d bytes of %d", len(out+errs), all)
	}
	if out, errs, _ := printed(t, c, i.ID, Span{Offset: 1 << 40}); out+errs != "" {
		t.Errorf("behind the end is %q", out+errs)
	}
}

// A long log keeps its beginning and its end, and says what is missing.
func TestLongLog(t *testing.T) {
	dir := t.TempDir()
	l := openLog(dir, 0)
	const length = 1001
	line := func(n int64) string { return fmt.Sprintf("%*d\n", length-1, n) }
	const lines = 150_000 // 143 MiB
	for n := range int64(lines) {
		l.append(n%30 == 0, []byte(line(n)))
	}
	l.end()
	size, from, to, failed := l.extent()
	if size != lines*length || from != logHead || to <= from || size-to > logPieces*logPiece || size-to < (logPieces-1)*logPiece || failed != nil {
		t.Fatalf("of %d bytes %d to %d are dropped, %v", size, from, to, failed)
	}
	var kept int64
	for n := range l.stored() {
		fi, err := os.Stat(l.path(n))
		if err != nil {
			t.Fatal(err)
		}
		kept += fi.Size()
	}
	if kept != size-(to-from) || kept > 64<<20 {
		t.Errorf("%d bytes are kept", kept)
	}
	for _, again := range []*jobLog{l, openLog(dir, -1)} {
		if got, f, u, _ := again.extent(); got != size || f != from || u != to {
			t.Fatalf("read again: %d bytes, %d to %d are dropped", got, f, u)
		}
		again.end()
		r := &logReader{log: again}
		defer r.close()
		buf := make([]byte, 64<<10)
		var said, skipped int64
		for {
			at := r.offset
			n, _, more, err := r.read(buf)
			if err != nil {
				t.Fatal(err)
			}
			if n == 0 && more == nil {
				break
			}
			begin := r.offset - int64(n)
			skipped += begin - at
			said += int64(n)
			// The line that begins or goes on here.
			if want := line(begin / length)[begin%length:]; n >= length && !strings.HasPrefix(string(buf[:n]), want) {
				t.Fatalf("at %d is %q, want %q", begin, buf[:length], want)
			}
		}
		if said != kept || skipped != to-from {
			t.Errorf("read %d bytes and skipped %d, want %d and %d", said, skipped, kept, to-from)
		}
		if at := again.tail(3); at != size-3*length {
			t.Errorf("the last three lines begin at %d of %d", at, size)
		}
	}
}

// Whatever is said by whom in whatever pieces is read so again from everywhere.
func FuzzLog(f *testing.F) {
	f.Add([]byte("\x03\x84\x01\x81"), uint16(2))
	f.Fuzz(func(t *testing.T, says []byte, from uint16) {
		l := openLog(t.TempDir(), 0)
		var want, who []byte
		for i, b := range says {
			p := bytes.Repeat([]byte{byte(i)}, int(b&0x7f))
			l.append(b >= 0x80, p)
			want = append(want, p...)
			who = append(who, bytes.Repeat([]byte{b >> 7}, len(p))...)
		}
		l.end()
		r := &logReader{log: l, offset: int64(from)}
		defer r.close()
		start := min(int(from), len(want))
		var got, by []byte
		for buf := make([]byte, 50); ; {
			n, stderr, more, err := r.read(buf)
			if err != nil || n == 0 && more != nil {
				t.Fatal(n, err)
			}
			if n == 0 {
				break
			}
			got = append(got, buf[:n]...)
			said := byte(0)
			if stderr {
				said = 1
			}
			by = append(by, bytes.Repeat([]byte{said}, n)...)
		}
		if !bytes.Equal(got, want[start:]) || !bytes.Equal(by, who[start:]) {
			t.Errorf("from %d: %x by %x, want %x by %x", from, got, by, want[start:], who[start:])
		}
	})
}

// A full disk ends the log, not the job.
func TestLogCannotGrow(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	l := openLog(dir, 0)
	l.append(false, []byte("lost"))
	if size, _, _, failed := l.extent(); size != 0 || failed == nil {
		t.Errorf("%d bytes, %v", size, failed)
	}
	r := &logReader{log: l}
	if n, _, more, err := r.read(make([]byte, 10)); n != 0 || more != nil || err != nil {
		t.Errorf("read %d, %v, %v", n, more, err)
	}
}

// JOB-01: ending a job ends all that came from it, whatever it did to get away.
func TestEndReachesAll(t *testing.T) {
	testneed.Programs(t, "python3")
	dir := t.TempDir()
	// A daemon: in a session of its own, twice forked, with nothing in its
	// environment, and deaf to TERM.
	daemon := `import os, signal, sys
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").write(str(os.getpid()))
os.execvpe("sleep", ["sleep", "4242"], {})
`
	script := filepath.Join(dir, "daemon.py")
	os.WriteFile(script, []byte(daemon), 0o600)
	c := newWorld(t).connect()
	text := fmt.Sprintf("env -i python3 %s %s/daemon; setsid sh -c 'echo $$ >%[2]s/session; exec sleep 4243' & (sleep 4244 & echo $! >%[2]s/child); trap '' TERM; echo ready; sleep 4245; sleep 4246", script, dir)
	i := start(t, c, Run{Command: command(text), Timeout: time.Hour})
	pids := make(map[string]int)
	for _, name := range []string{"daemon", "session", "child"} {
		waitFor(t, name, func() bool {
			b, err := os.ReadFile(filepath.Join(dir, name))
			_, scanErr := fmt.Sscan(string(b), new(int))
			return err == nil && scanErr == nil
		})
		var pid int
		b, _ := os.ReadFile(filepath.Join(dir, name))
		fmt.Sscan(string(b), &pid)
		pids[name] = pid
	}
	// A plain command is none of the job's.
	p, err := c.Start(command("exec sleep 4247"), false)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Hangup()
	if err := c.End(t.Context(), i.ID, ReasonTimeout); err != nil {
		t.Fatal(err)
	}
	if i := wait(t, c, i.ID); i.Reason != ReasonTimeout || i.Exit == nil || i.Exit.Code != 124 {
		t.Errorf("ended %+v, %+v", i, i.Exit)
	}
	for name, pid := range pids {
		waitFor(t, "the end of "+name, func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH })
	}
	jobs, err := c.Jobs(t.Context())
	if err != nil || len(jobs) != 2 {
		t.Errorf("jobs %+v, %v", jobs, err)
	}
}

// What a job left running is counted, lives on, and can still be ended.
func TestLeftRunning(t *testing.T) {
	c := newWorld(t).connect()
	i := start(t, c, Run{Command: command("setsid sh -c 'while :; do echo x; sleep 0.05; done' & echo $!; exit 2")})
	ended := wait(t, c, i.ID)
	if ended.Reason != ReasonExit || ended.Exit.Code != 2 || ended.Left < 1 {
		t.Errorf("ended %+v, %+v", ended, ended.Exit)
	}
	out, _, _ := printed(t, c, i.ID, Span{})
	var pid int
	if _, err := fmt.Sscan(out, &pid); err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	if d := ended.Ended.Sub(ended.Started); d > 5*time.Second {
		t.Errorf("the job took %v", d)
	}
	time.Sleep(300 * time.Millisecond) // it writes where nobody reads
	if err := syscall.Kill(pid, 0); err != nil {
		t.Errorf("what was left running: %v", err)
	}
	if err := c.End(t.Context(), i.ID, ""); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "its end", func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH })
	if again, err := c.Job(t.Context(), i.ID); err != nil || again.Reason != ReasonExit {
		t.Errorf("%+v, %v", again, err)
	}
}

func TestTimeout(t *testing.T) {
	c := newWorld(t).connect()
	i := start(t, c, Run{Command: command("echo begun; sleep 60"), Timeout: 2 * time.Second})
	if i := wait(t, c, i.ID); i.Reason != ReasonTimeout || i.Exit == nil || *i.Exit != (Exit{Code: 124}) {
		t.Errorf("ended %+v, %+v", i, i.Exit)
	}
	if out, _, _ := printed(t, c, i.ID, Span{}); out != "begun\n" {
		t.Errorf("printed %q", out)
	}
}

// Jobs outlive the gateway; with the sandbox they end, and are found again.
func TestRecordsStay(t *testing.T) {
	w := newWorld(t)
	c := w.connect()
	goOn := filepath.Join(t.TempDir(), "go")
	run := Run{ID: NewJobID(), Command: command("echo one; until [ -e " + goOn + " ]; do sleep 0.05; done; echo two; exit 6")}
	start(t, c, run)
	o, err := c.Output(t.Context(), run.ID, Span{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	if p, err := o.Next(); err != nil || string(p.Data) != "one\n" {
		t.Fatalf("%q, %v", p.Data, err)
	}
	c.Close()
	if _, err := o.Next(); !errors.Is(err, ErrGone) {
		t.Errorf("a log whose gateway has gone: %v", err)
	}
	o.Close()
	c = w.connect()
	os.WriteFile(goOn, nil, 0o600)
	out, _, last := printed(t, c, run.ID, Span{Offset: o.Offset(), Follow: true})
	if out != "two\n" || last.Job().Exit == nil || last.Job().Exit.Code != 6 {
		t.Errorf("then %q, %+v", out, last.Job())
	}
	stopped := start(t, c, Run{Command: command("echo here; sleep 60")})
	waitFor(t, "output", func() bool { out, _, _ := printed(t, c, stopped.ID, Span{}); return out == "here\n" })
	c.Close()
	w.restart(syscall.SIGTERM)
	c = w.connect()
	if i := wait(t, c, stopped.ID); i.Reason != ReasonStopped || i.Ended.IsZero() {
		t.Errorf("after a stop: %+v", i)
	}
	lost := start(t, c, Run{Command: command("echo still; exec sleep 61.25")})
	waitFor(t, "output", func() bool { out, _, _ := printed(t, c, lost.ID, Span{}); return out == "still\n" })
	c.Close()
	w.restart(syscall.SIGKILL)
	exec.Command("pkill", "-f", "^sleep 61.25").Run() // which a sandbox would have taken along
	c = w.connect()
	if i := wait(t, c, lost.ID); i.Reason != ReasonLost || i.Exit != nil || i.Ended.IsZero() || i.Output != 6 {
		t.Errorf("after a crash: %+v", i)
	}
	for job, want := range map[string]string{run.ID: "one\ntwo\n", stopped.ID: "here\n", lost.ID: "still\n"} {
		if out, _, _ := printed(t, c, job, Span{}); out != want {
			t.Errorf("printed %q, want %q", out, want)
		}
	}
}

// Jobs without an end were killed if the sandbox ran out of memory; of those that had
// ended by then it is known how.
func TestStarved(t *testing.T) {
	dir := t.TempDir()
	ended := time.Now().Add(-time.Minute)
	for _, job := range []JobInfo{
		{ID: "jobrunning1", Kind: KindRun, Started: ended},
		{ID: "jobended001", Kind: KindRun, Started: ended, Ended: ended, Reason: ReasonExit, Exit: &Exit{Code: 3}},
	} {
		os.Mkdir(filepath.Join(dir, job.ID), 0o755)
		b, _ := json.Marshal(job)
		os.WriteFile(filepath.Join(dir, job.ID, recordName), b, 0o600)
	}
	s := &shelf{dir: dir, records: make(map[string]*record)}
	s.load(true)
	// As a guest finds them that is started without any such news.
	s = &shelf{dir: dir, records: make(map[string]*record)}
	s.load(false)
	if i := s.records["jobrunning1"].info; i.Reason != ReasonMemory || i.Exit == nil || i.Exit.Signal != "KILL" || i.Ended.IsZero() {
		t.Errorf("what ran has ended with %+v", i)
	}
	if i := s.records["jobended001"].info; i.Reason != ReasonExit || i.Exit == nil || i.Exit.Code != 3 {
		t.Errorf("what had ended has ended with %+v", i)
	}
}

// A gateway that is about to restart is looked for five times a second, one that has
// gone for longer once.
func TestNextRetry(t *testing.T) {
	var wait, gone time.Duration
	for gone < 5*restartTime {
		wait = nextRetry(wait, gone)
		if most := soonRetry; wait < firstRetry || wait > lastRetry || gone < restartTime && wait > most {
			t.Errorf("after %v the next attempt is %v later", gone, wait)
		}
		gone += wait
	}
	if wait != lastRetry {
		t.Errorf("at last every %v", wait)
	}
}

// What ended long ago is deleted, and what is too much.
func TestSweep(t *testing.T) {
	c := newWorld(t).connect()
	i := start(t, c, Run{Command: command("true")})
	i = wait(t, c, i.ID)
	dir := t.TempDir()
	for n := range maxEnded + 5 {
		job := i
		job.ID = fmt.Sprintf("job%08d", n)
		job.Started = i.Started.Add(time.Duration(n) * time.Second)
		os.Mkdir(filepath.Join(dir, job.ID), 0o755)
		b, _ := json.Marshal(job)
		os.WriteFile(filepath.Join(dir, job.ID, recordName), b, 0o600)
	}
	os.Mkdir(filepath.Join(dir, "half"), 0o755)
	s := &shelf{dir: dir, records: make(map[string]*record)}
	s.load(false)
	s.sweep(time.Now())
	if n := len(s.all()); n != maxEnded {
		t.Errorf("%d are kept", n)
	}
	if exists(filepath.Join(dir, "job00000000")) || exists(filepath.Join(dir, "half")) {
		t.Error("the oldest and the broken are still there")
	}
	s.sweep(time.Now().Add(keepEnded + time.Minute))
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("%d are left after a day", len(left))
	}
}

// JOB-02: nothing is left of a thousand jobs, and nobody has two ends.
func TestManyJobs(t *testing.T) {
	w := newWorld(t)
	c := w.connect()
	const jobs, atOnce = 1000, 50
	marker := fmt.Sprintf("%d.%d", 3600+rand.IntN(3600), rand.IntN(1_000_000))
	slots := make(chan struct{}, atOnce)
	failed := make(chan error, jobs)
	for n := range jobs {
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			failed <- func() error {
				run := Run{ID: NewJobID(), Command: command("setsid sleep " + marker + " & echo " + fmt.Sprint(n))}
				if _, err := c.Run(t.Context(), run); err != nil {
					return err
				}
				i, err := c.WaitJob(t.Context(), run.ID)
				if err != nil {
					return err
				}
				if i.Exit == nil || i.Exit.Code != 0 || i.Output == 0 {
					return fmt.Errorf("%+v", i)
				}
				return c.End(t.Context(), run.ID, "")
			}()
		}()
	}
	for range jobs {
		if err := <-failed; err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, "the end of all", func() bool {
		for _, p := range processes() {
			if b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid)); bytes.Contains(b, []byte(marker)) {
				return false
			}
		}
		return true
	})
	waitFor(t, "the end of all zombies", func() bool {
		out, _ := exec.Command("ps", "-o", "stat=", "--ppid", fmt.Sprint(w.proc.Pid)).Output()
		return !strings.Contains(string(out), "Z")
	})
	list, err := c.Jobs(t.Context())
	if err != nil || len(list) != jobs {
		t.Errorf("%d jobs are listed, %v", len(list), err)
	}
}

// What /proc/PID/stat says is read right, whatever a process calls itself.
func FuzzStat(f *testing.F) {
	f.Add([]byte("7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 100 1000 10 18446744073709551615 1 1"))
	f.Add([]byte("7 (a) Z 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 100 1000 10 5 1 1"))
	f.Add([]byte("1 ("))
	f.Fuzz(func(t *testing.T, b []byte) { parseStat(b) })
}

func TestStat(t *testing.T) {
	p, ok := parseStat([]byte("7 (a) b) S 1 8 9 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 100 1000 10 18446744073709551615 1 1"))
	if want := (process{7, 1, 8, 9, noMark, 10 * int64(os.Getpagesize())}); !ok || p != want {
		t.Errorf("%+v, %v, want %+v", p, ok, want)
	}
	if _, ok := parseStat([]byte("7 (a) Z 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 100 1000 10 5 1 1")); ok {
		t.Error("a zombie counts")
	}
}

// What a guest may say of a job is what comes out of decoding it.
func FuzzJob(f *testing.F) {
	f.Add([]byte(`{"id":"abcdefgh","kind":"run","started":"2026-01-01T00:00:00Z","output":5,"ended":"2026-01-01T00:00:01Z","reason":"exit","exit":{"code":3}}`))
	f.Add([]byte(`{"id":"\u001b[31m","kind":"exec"}`))
	f.Add([]byte(`{"id":"abcdefgh","kind":"service","name":"api","health":"starting","health_says":"exit 1: \u001b[31m"}`))
	f.Add([]byte(`{"id":"abcdefgh","kind":"run","exit":{"code":300},"reason":"exit"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		i, err := decodeJob(b)
		if err != nil {
			return
		}
		for _, s := range []string{i.ID, i.Name, i.LogError, i.HealthSays, string(i.Health), string(i.Reason)} {
			if strings.ContainsFunc(s, func(r rune) bool { return r < ' ' }) {
				t.Errorf("control characters in %+v", i)
			}
		}
		if i.Exit != nil && (i.Exit.Code < 0 || i.Exit.Code > 255) || i.Running() != i.Ended.IsZero() {
			t.Errorf("%+v", i)
		}
	})
}
