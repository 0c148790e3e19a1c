package drivertest

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"sandgate/sandbox/guest"
)

// Jobs, over the end of a connection and of the gateway.
var jobCases = cases{
	"Listed":     alone(jobListed),
	"Attach":     alone(jobAttach),
	"AttachNone": alone(jobNone),
	"Named":      alone(jobNamed),
	"Keep":       alone(jobKeep),
	"Restart":    onHost(jobRestart),
	"Many":       alone(jobMany),
	"StopEnds":   alone(jobStop),
}

// job starts a command and waits for its id.
func job(t *testing.T, sh *Shell, cmd guest.Command) *guest.Process {
	t.Helper()
	p, err := sh.Start(cmd, cmd.Text == nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go p.Wait(ctx, io.Discard, io.Discard)
	t.Cleanup(func() { cancel(); p.Close() })
	eventually(t, "the job", func() bool { return p.Job() != "" })
	return p
}

// output waits for a job's next output, and its end.
func output(t *testing.T, p *guest.Process) (string, guest.Exit) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var out lockedBuffer
	exit, err := p.Wait(ctx, &out, &out)
	if err != nil {
		t.Fatalf("%v; it wrote %q", err, out.String())
	}
	return out.String(), exit
}

func jobListed(t *testing.T, b *bench) {
	_, sh := b.start("jobs")
	p := job(t, sh, guest.Command{Text: []byte("exec sleep 1000")})
	jobs, err := sh.Jobs(t.Context())
	if err != nil || len(jobs) != 1 || jobs[0].ID != p.Job() || string(jobs[0].Text) != "exec sleep 1000" {
		t.Errorf("the jobs are %+v, %v", jobs, err)
	}
	p.Signal("TERM")
	eventually(t, "the job's end", func() bool {
		jobs, err := sh.Jobs(t.Context())
		return err == nil && len(jobs) == 0
	})
}

// A connection that is lost, and not closed by its client, leaves the job alone.
func jobAttach(t *testing.T, b *bench) {
	id, sh := b.start("jobs")
	p := job(t, sh, alive)
	sh.Close()
	sh = b.connect(id)
	wantAlive(t, sh, p.Job())
}

// alive is a command that goes on until wantAlive.
var alive = guest.Command{Text: []byte("while ! test -e /tmp/go; do sleep 0.02; done; echo ended; exit 9")}

// wantAlive attaches to a job that is alive, and sees it end.
func wantAlive(t *testing.T, sh *Shell, job string) {
	t.Helper()
	attached, err := sh.Attach(job, guest.Viewing{})
	if err != nil {
		t.Fatal(err)
	}
	defer attached.Close()
	time.Sleep(100 * time.Millisecond)
	sh.Run("touch", "/tmp/go")
	if out, exit := output(t, attached); !strings.Contains(out, "ended\n") || exit.Code != 9 {
		t.Errorf("it ended with %+v and wrote %q", exit, out)
	}
}

func jobNone(t *testing.T, b *bench) {
	_, sh := b.start("jobs")
	p, err := sh.Attach("nonsense", guest.Viewing{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if out, exit := output(t, p); exit.Code != 255 || !strings.Contains(out, "no such job") {
		t.Errorf("it ended with %+v and wrote %q", exit, out)
	}
}

// A shell of a name outlives its client, and is found again by it.
func jobNamed(t *testing.T, b *bench) {
	_, sh := b.start("jobs")
	shell := guest.Command{Name: "build", Terminal: terminal80()}
	p := job(t, sh, shell)
	io.WriteString(p, "mark=here; echo $mark >/tmp/mark\n")
	eventually(t, "the shell", func() bool { _, out, _ := sh.Try("cat", "/tmp/mark"); return out == "here" })
	p.Hangup()
	p = job(t, sh, shell)
	io.WriteString(p, "echo again $mark >/tmp/mark\n")
	eventually(t, "the same shell", func() bool { _, out, _ := sh.Try("cat", "/tmp/mark"); return out == "again here" })
}

func jobKeep(t *testing.T, b *bench) {
	_, sh := b.start("jobs")
	p := job(t, sh, guest.Command{Keep: true, Text: []byte("cat; sleep 0.1; echo kept >/tmp/kept")})
	p.Hangup()
	eventually(t, "the command", func() bool { _, out, _ := sh.Try("cat", "/tmp/kept"); return out == "kept" })
}

// A new gateway finds a job that goes on.
func jobRestart(t *testing.T, b *bench) {
	id, sh := b.start("jobs")
	p := job(t, sh, alive)
	b.reopen()
	sh = b.connect(id)
	jobs, err := sh.Jobs(t.Context())
	if err != nil || len(jobs) != 1 || jobs[0].ID != p.Job() {
		t.Fatalf("the jobs are %+v, %v", jobs, err)
	}
	wantAlive(t, sh, p.Job())
}

func jobMany(t *testing.T, b *bench) {
	_, sh := b.start("jobs")
	for range 30 {
		job(t, sh, guest.Command{Text: []byte("exec sleep 1000")})
	}
	if jobs, err := sh.Jobs(t.Context()); err != nil || len(jobs) != 30 {
		t.Errorf("%d jobs, %v", len(jobs), err)
	}
	sh.Run("true")
}

// Stopping a sandbox ends its jobs: politely, at first.
func jobStop(t *testing.T, b *bench) {
	id, sh := b.start("jobs")
	job(t, sh, guest.Command{Text: []byte("trap 'echo term >/root/term; exit' TERM; while :; do sleep 0.05; done")})
	sh.Run("sleep", "0.2")
	if err := b.Stop(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	sh = b.wake(id)
	if jobs, err := sh.Jobs(t.Context()); err != nil || len(jobs) != 0 {
		t.Errorf("the jobs are %+v, %v", jobs, err)
	}
}
