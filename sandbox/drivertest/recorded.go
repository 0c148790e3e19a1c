package drivertest

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"sandgate/sandbox"
	"sandgate/sandbox/guest"
)

// Recorded jobs, which outlive connection, gateway and sandbox, and sessions with
// their screens.
var recordedCases = cases{
	"Run":     alone(recordedRun),
	"Again":   alone(recordedAgain),
	"Cwd":     alone(recordedDir),
	"Input":   alone(recordedInput),
	"Streams": alone(recordedStreams),
	"Tail":    alone(recordedTail),
	"Timeout": alone(recordedTimeout),
	"End":     alone(recordedEnd),
	"Signal":  alone(recordedSignal),
	"Forget":  alone(recordedForget),
	"Restart": onHost(recordedRestart),
	"Stop":    alone(recordedStop),
	"Repaint": alone(recordedRepaint),
	"Watch":   alone(recordedWatch),
	"Service": alone(recordedService),
	"Memory":  alone(recordedMemory),
	"OOM":     where{memory, onHost(recordedOOM)},
	"Many":    alone(recordedMany),
}

func run(t *testing.T, sh *Shell, r guest.Run) guest.JobInfo {
	t.Helper()
	if r.ID == "" {
		r.ID = guest.NewJobID()
	}
	i, err := sh.Client.Run(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func command(text string) guest.Command { return guest.Command{Text: []byte(text)} }

// ended waits for a job's end.
func ended(t *testing.T, sh *Shell, id string) guest.JobInfo {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	i, err := sh.WaitJob(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// wantExit waits for a job to exit with code.
func wantExit(t *testing.T, sh *Shell, id string, code int) {
	t.Helper()
	if i := ended(t, sh, id); i.Reason != guest.ReasonExit || i.Exit == nil || i.Exit.Code != code {
		t.Errorf("it ended with %+v, %+v, want code %d", i, i.Exit, code)
	}
}

// printed returns what is in a job's log.
func printed(t *testing.T, sh *Shell, id string, span guest.Span) (stdout, stderr string) {
	t.Helper()
	o, err := sh.Output(t.Context(), id, span)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	var out [2]strings.Builder
	for {
		p, err := o.Next()
		if err == io.EOF {
			return out[0].String(), out[1].String()
		}
		if err != nil {
			t.Fatal(err)
		}
		if p.Stderr {
			out[1].Write(p.Data)
		} else {
			out[0].Write(p.Data)
		}
	}
}

func recordedRun(t *testing.T, b *bench) {
	_, sh := b.start("runs")
	i := run(t, sh, guest.Run{Command: command("echo $FRUIT; exit 3")})
	wantExit(t, sh, i.ID, 3)
	if jobs, err := sh.Jobs(t.Context()); err != nil || len(jobs) != 1 || jobs[0].ID != i.ID || jobs[0].Running() {
		t.Errorf("the jobs are %+v, %v", jobs, err)
	}
}

func recordedAgain(t *testing.T, b *bench) {
	_, sh := b.start("runs")
	r := guest.Run{ID: guest.NewJobID(), Command: command("echo once >>/tmp/runs")}
	run(t, sh, r)
	run(t, sh, r)
	wantExit(t, sh, r.ID, 0)
	sh.Want("once", "cat", "/tmp/runs")
}

func recordedDir(t *testing.T, b *bench) {
	_, sh := b.start("runs")
	r := guest.Run{Command: command("pwd")}
	r.Dir = "/tmp"
	i := run(t, sh, r)
	wantExit(t, sh, i.ID, 0)
	if out, _ := printed(t, sh, i.ID, guest.Span{}); out != "/tmp\n" {
		t.Errorf("it starts in %q", out)
	}
	r.ID, r.Dir = guest.NewJobID(), "/nosuch"
	if _, err := sh.Client.Run(t.Context(), r); err == nil || !strings.Contains(err.Error(), "/nosuch") {
		t.Errorf("where there is no folder: %v", err)
	}
}

func recordedInput(t *testing.T, b *bench) {
	_, sh := b.start("runs")
	i := run(t, sh, guest.Run{Command: command("wc -c"), Input: true})
	if err := sh.Input(t.Context(), i.ID, make([]byte, 300_000), true); err != nil {
		t.Fatal(err)
	}
	wantExit(t, sh, i.ID, 0)
	if out, _ := printed(t, sh, i.ID, guest.Span{}); strings.TrimSpace(out) != "300000" {
		t.Errorf("wc counts %q", out)
	}
}

func recordedStreams(t *testing.T, b *bench) {
	_, sh := b.start("runs")
	i := run(t, sh, guest.Run{Command: command("echo out; echo err >&2; sleep 0.2; echo more")})
	if out, errs := printed(t, sh, i.ID, guest.Span{Follow: true}); out != "out\nmore\n" || errs != "err\n" {
		t.Errorf("it printed %q and %q", out, errs)
	}
	if out, errs := printed(t, sh, i.ID, guest.Span{Offset: 9}); out+errs != "ore\n" {
		t.Errorf("from the tenth byte on it printed %q and %q", out, errs)
	}
}

func recordedTail(t *testing.T, b *bench) {
	_, sh := b.start("runs")
	i := run(t, sh, guest.Run{Command: command("seq 100000")})
	wantExit(t, sh, i.ID, 0)
	if out, _ := printed(t, sh, i.ID, guest.Span{Tail: 2}); out != "99999\n100000\n" {
		t.Errorf("the last two lines are %q", out)
	}
}

func recordedTimeout(t *testing.T, b *bench) {
	_, sh := b.start("runs")
	i := run(t, sh, guest.Run{Command: command("setsid sleep 1234 & exec sleep 1234"), Timeout: 300 * time.Millisecond})
	if i := ended(t, sh, i.ID); i.Reason != guest.ReasonTimeout || i.Exit == nil || i.Exit.Code != 124 {
		t.Errorf("it ended with %+v, %+v", i, i.Exit)
	}
	eventually(t, "the end of all", func() bool { code, _, _ := sh.Try("pgrep", "-x", "sleep"); return code == 1 })
}

// Ending a job reaches what has left its group, its session and its parent, and minds
// no politeness.
func recordedEnd(t *testing.T, b *bench) {
	_, sh := b.start("runs")
	i := run(t, sh, guest.Run{Command: command(`trap "" TERM
(setsid env -i /bin/sleep 1235 &)
setsid sh -c 'trap "" TERM; sleep 1235; sleep 1235' &
touch /tmp/ready; sleep 1235; sleep 1235`)})
	eventually(t, "the job", func() bool { code, _, _ := sh.Try("test", "-e", "/tmp/ready"); return code == 0 })
	if err := sh.End(t.Context(), i.ID, ""); err != nil {
		t.Fatal(err)
	}
	ended(t, sh, i.ID)
	eventually(t, "the end of all", func() bool { code, _, _ := sh.Try("pgrep", "-x", "sleep"); return code == 1 })
}

func recordedSignal(t *testing.T, b *bench) {
	_, sh := b.start("runs")
	i := run(t, sh, guest.Run{Command: command(`trap "exit 5" USR1; touch /tmp/ready; while :; do sleep 0.02; done`)})
	eventually(t, "the job", func() bool { code, _, _ := sh.Try("test", "-e", "/tmp/ready"); return code == 0 })
	if err := sh.Kill(t.Context(), i.ID, "USR1"); err != nil {
		t.Fatal(err)
	}
	wantExit(t, sh, i.ID, 5)
}

func recordedForget(t *testing.T, b *bench) {
	_, sh := b.start("runs")
	i := run(t, sh, guest.Run{Command: command("true")})
	wantExit(t, sh, i.ID, 0)
	if err := sh.Forget(t.Context(), i.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := sh.Job(t.Context(), i.ID); !errors.Is(err, guest.ErrNoJob) {
		t.Errorf("a forgotten job: %v", err)
	}
}

// A new gateway reads on where the last one was.
func recordedRestart(t *testing.T, b *bench) {
	id, sh := b.start("runs")
	i := run(t, sh, guest.Run{Command: command("echo one; while ! test -e /tmp/go; do sleep 0.02; done; echo two; exit 9")})
	eventually(t, "output", func() bool { out, _ := printed(t, sh, i.ID, guest.Span{}); return out == "one\n" })
	b.reopen()
	sh = b.connect(id)
	sh.Run("touch", "/tmp/go")
	if out, _ := printed(t, sh, i.ID, guest.Span{Offset: 4, Follow: true}); out != "two\n" {
		t.Errorf("then it printed %q", out)
	}
	wantExit(t, sh, i.ID, 9)
}

// With its sandbox a job is stopped; what it was and printed is there again. Where a
// disk is saved as the stop begins, how the job ended is not on it any more.
func recordedStop(t *testing.T, b *bench) {
	id, sh := b.start("runs")
	i := run(t, sh, guest.Run{Command: command("echo here; exec sleep 1236")})
	eventually(t, "output", func() bool { out, _ := printed(t, sh, i.ID, guest.Span{}); return out == "here\n" })
	if err := b.Stop(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	sh = b.wake(id)
	if i := ended(t, sh, i.ID); i.Reason != guest.ReasonStopped && !(b.SavedDisk && i.Reason == guest.ReasonLost) {
		t.Errorf("it ended with %+v", i)
	}
	if out, _ := printed(t, sh, i.ID, guest.Span{}); out != "here\n" {
		t.Errorf("its log is %q", out)
	}
}

// view attaches to a job's terminal.
func view(t *testing.T, sh *Shell, id string, as guest.Viewing) (*guest.Process, *lockedBuffer) {
	t.Helper()
	p, err := sh.Attach(id, as)
	if err != nil {
		t.Fatal(err)
	}
	out := new(lockedBuffer)
	ctx, cancel := context.WithCancel(context.Background())
	go p.Wait(ctx, out, io.Discard)
	t.Cleanup(func() { cancel(); p.Close() })
	return p, out
}

func recordedRepaint(t *testing.T, b *bench) {
	_, sh := b.start("runs")
	r := guest.Run{Command: command(`printf 'shell\r\n\033[?1049h\033[2J\033[5;5Hedi%s' tor; read x`)}
	r.Terminal = terminal80()
	i := run(t, sh, r)
	eventually(t, "the screen", func() bool { out, _ := printed(t, sh, i.ID, guest.Span{}); return strings.Contains(out, "editor") })
	_, out := view(t, sh, i.ID, guest.Viewing{Size: guest.Size{Columns: 80, Rows: 24}})
	eventually(t, "the same screen", func() bool {
		return strings.Contains(out.String(), "editor") && strings.Contains(out.String(), "\x1b[?1049h")
	})
}

func recordedWatch(t *testing.T, b *bench) {
	_, sh := b.start("runs")
	r := guest.Run{Command: command(`read x; echo "<$x>"; exit 6`)}
	r.Terminal = terminal80()
	i := run(t, sh, r)
	watcher, seen := view(t, sh, i.ID, guest.Viewing{Watch: true})
	io.WriteString(watcher, "watcher\n")
	typist, _ := view(t, sh, i.ID, guest.Viewing{})
	eventually(t, "both", func() bool { i, err := sh.Job(t.Context(), i.ID); return err == nil && i.Attached == 2 })
	io.WriteString(typist, "typist\n")
	wantExit(t, sh, i.ID, 6)
	eventually(t, "what was typed", func() bool { return strings.Contains(seen.String(), "<typist>") })
}

// A service that ends is started again, and not once it is not wanted any more.
func recordedService(t *testing.T, b *bench) {
	_, sh := b.start("runs")
	if err := sh.Serve(t.Context(), []guest.Service{{Name: "api", Command: command("echo run >>/tmp/runs; exec sleep 1237")}}); err != nil {
		t.Fatal(err)
	}
	runs := func() int { _, out, _ := sh.Try("cat", "/tmp/runs"); return strings.Count(out, "run") }
	eventually(t, "the service", func() bool { return runs() == 1 })
	if err := sh.Kill(t.Context(), "api", "KILL"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the service again", func() bool { return runs() == 2 })
	if err := sh.Serve(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if i := ended(t, sh, "api"); i.Kind != guest.KindService {
		t.Errorf("it is %+v", i)
	}
}

// The memory of a job is its own, and not what the guest has.
func recordedMemory(t *testing.T, b *bench) {
	_, sh := b.start("runs")
	i := run(t, sh, guest.Run{Command: command("exec sleep 1239")})
	eventually(t, "a look", func() bool { i, err := sh.Job(t.Context(), i.ID); return err == nil && i.Memory > 0 })
	if err := sh.End(t.Context(), i.ID, ""); err != nil {
		t.Fatal(err)
	}
	if i := ended(t, sh, i.ID); i.Memory == 0 || i.Memory > 20<<20 {
		t.Errorf("sleep had %d bytes", i.Memory)
	}
}

// A job that the kernel ends for want of memory says so, also when that has taken the
// sandbox with it, and then so do those that only were there.
func recordedOOM(t *testing.T, b *bench) {
	id, sh := b.startLimited("memory", sandbox.Limits{Memory: 192 << 20, PIDs: 500})
	quiet := run(t, sh, guest.Run{Command: command("exec sleep 1241")})
	for _, text := range []string{"exec tail /dev/zero", "tail /dev/zero; exit $?"} {
		job := run(t, sh, guest.Run{Command: command(text)})
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		i, err := sh.WaitJob(ctx, job.ID)
		cancel()
		if errors.Is(err, guest.ErrGone) {
			sh = revive(t, b, id, sh)
			for _, id := range []string{job.ID, quiet.ID} {
				i, err := sh.Job(t.Context(), id)
				if !b.SavedDisk && (err != nil || i.Reason != guest.ReasonMemory || i.Exit == nil || i.Exit.Signal != "KILL") {
					t.Errorf("of a sandbox that ran out of memory it is %+v, %v", i, err)
				}
			}
			return
		}
		if err != nil || i.Reason != guest.ReasonMemory {
			t.Errorf("%q ended with %+v, %v", text, i, err)
		}
	}
}

// Of many jobs, ended with what they have left running, nothing remains, zombies least of
// all.
func recordedMany(t *testing.T, b *bench) {
	_, sh := b.start("runs")
	const jobs, atOnce = 120, 20
	slots := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for range jobs {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			r := guest.Run{ID: guest.NewJobID(), Command: command("(setsid sleep 1240 &); sleep 1240 & exit 4")}
			if _, err := sh.Client.Run(t.Context(), r); err != nil {
				t.Error(err)
				return
			}
			wantExit(t, sh, r.ID, 4)
			if err := sh.End(t.Context(), r.ID, ""); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	eventually(t, "the end of all", func() bool { code, _, _ := sh.Try("pgrep", "-x", "sleep"); return code == 1 })
	sh.Want("0", "sh", "-c", "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z ' || true")
}
