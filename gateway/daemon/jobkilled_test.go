package daemon_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sandgate/gateway/gatetest"
)

// TestJobKilled starts jobs that print 50,000 numbered lines, and kills their clients,
// or the gateway, at random moments: whoever comes back with as many bytes as they have
// gets every line once, in order, and the exit code at the end. Several go on at the
// same time; of ten groups of them, three lose the gateway. SANDGATE_TEST_ROUNDS says
// how many there are in all.
func TestJobKilled(t *testing.T) {
	rounds := 100
	if n, err := strconv.Atoi(os.Getenv("SANDGATE_TEST_ROUNDS")); err == nil {
		rounds = n
	}
	const together = 10
	g := gatetest.Run(t)
	if _, err := g.SSH("web", "true"); err != nil {
		t.Fatal(err)
	}
	for first := 0; first < rounds; first += together {
		losesGateway := first/together%10%3 == 1
		killed := make(chan struct{}) // closed when the gateway is there again
		var jobs sync.WaitGroup
		for i := first; i < min(first+together, rounds); i++ {
			j := &lostJob{t: t, g: g, name: fmt.Sprintf("r%d", i)}
			if losesGateway {
				j.killed = killed
			}
			jobs.Go(j.follow)
		}
		if losesGateway {
			time.Sleep(rand.N(2 * time.Second))
			g.Signal(syscall.SIGKILL)
			began := time.Now()
			if err := g.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := g.SSH("gate", "jobs", "web"); err != nil {
				t.Errorf("jobs after the gateway was killed: %v", err)
			}
			t.Logf("the jobs were there %v after the gateway was killed", time.Since(began).Round(time.Millisecond))
		}
		close(killed)
		jobs.Wait()
		if t.Failed() {
			return
		}
	}
}

// TestUpgraded puts another program in the gateway's place: what runs in a sandbox goes
// on, with the guest that it has, and is found by the new one.
func TestUpgraded(t *testing.T) {
	g := gatetest.Run(t)
	say := func(login string, words ...string) string {
		t.Helper()
		out, err := g.SSH(login, words...)
		if err != nil {
			t.Fatalf("%s %q: %v", login, words, err)
		}
		return out
	}
	say("gate", "run", "--name", "build", "web", "--", "echo one; until test -e go; do sleep 0.1; done; echo two; exit 9")
	say("gate", "service", "add", "--name", "api", "web", "--", "exec sleep 7551")
	before := say("web", "pgrep -xf 'sleep 7551'")

	old, err := gatetest.Program()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(old)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	g.Program = filepath.Join(t.TempDir(), "newer")
	if err := os.WriteFile(g.Program, append(text, "newer"...), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := g.Start(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	say("web", "touch go")
	t.Logf("the sandbox answered %v after the new gateway had begun to listen", time.Since(began).Round(time.Millisecond))
	if out := say("gate", "logs", "-f", "--since", "4", "web/build"); out != "two\n" {
		t.Errorf("then the job printed %q", out)
	}
	var exit *exec.ExitError
	if _, err := g.SSH("gate", "wait", "web/build"); !errors.As(err, &exit) || exit.ExitCode() != 9 {
		t.Errorf("the job ended with %v", err)
	}
	if after := say("web", "pgrep -xf 'sleep 7551'"); after != before {
		t.Errorf("the service was process %q, and is %q", before, after)
	}
	say("other", "true") // a sandbox of the newer program
}

// manyLines prints 50,000 lines in somewhat more than a second.
const manyLines = "for i in 0 1 2 3 4 5 6 7 8 9; do seq $((i*5000+1)) $((i*5000+5000)); sleep 0.1; done; exit 7"

// A lostJob is a job whose client is lost.
type lostJob struct {
	t      *testing.T
	g      *gatetest.Gateway
	name   string
	killed chan struct{} // nil: the client is killed; closed when the gateway that was is there again

	seen bytes.Buffer
}

// follow runs the job to its end and checks what was seen of it.
func (j *lostJob) follow() {
	limit := time.Minute
	if j.killed == nil {
		limit = rand.N(2 * time.Second)
	}
	code, err := j.ssh(limit, "exec", "--name", j.name, "web", "--", manyLines)
	if j.killed != nil {
		<-j.killed
	}
	for tries := 0; err != nil || code == 255; tries++ { // the client, or its connection, was lost
		if tries == 10 {
			j.t.Errorf("%s: lost again and again", j.name)
			return
		}
		code, err = j.ssh(time.Minute, "logs", "-f", "--since", strconv.Itoa(j.seen.Len()), "web/"+j.name)
		if err == nil && code == 3 && j.seen.Len() == 0 { // lost before the job was there
			code, err = j.ssh(time.Minute, "exec", "--name", j.name, "web", "--", manyLines)
		}
	}
	want := manyLinesPrinted()
	if got := j.seen.String(); got != want {
		at := 0
		for at < min(len(got), len(want)) && got[at] == want[at] {
			at++
		}
		j.t.Errorf("%s: %d bytes where %d were printed; they differ at %d: %.60q", j.name, len(got), len(want), at, got[at:])
	}
	if code, err := j.ssh(time.Minute, "wait", "web/"+j.name); err != nil || code != 7 {
		j.t.Errorf("%s: wait ends with %d, %v", j.name, code, err)
	}
}

// ssh runs a verb and keeps what it prints. The client is killed after limit, which is
// an error.
func (j *lostJob) ssh(limit time.Duration, words ...string) (code int, err error) {
	ctx, cancel := context.WithTimeout(j.t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "ssh", j.g.SSHArgs("gate", words...)...)
	cmd.Stdout = &j.seen
	err = cmd.Run()
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), nil
	}
	return 0, err
}

var manyLinesPrinted = sync.OnceValue(func() string {
	var b strings.Builder
	for i := range 50_000 {
		fmt.Fprintln(&b, i+1)
	}
	return b.String()
})
