package daemon_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sandgate/agent"
	"sandgate/agent/scripted"
	"sandgate/gateway/gatetest"
)

// How many runs TestAgentKilled has, and how many of them go on at the same time.
const (
	clientsKilled  = 100
	gatewaysKilled = 50
	together       = 5
)

// killedCalls is how many calls each run makes.
const killedCalls = 5

// TestAgentKilled kills with SIGKILL the client of a run, or the gateway, at a random
// moment: who comes back is told every event once and in order, no call is made twice,
// and each run has one result.
func TestAgentKilled(t *testing.T) {
	// The n-th run has a model of its own at /n, and its calls are lines of calls-n.
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		var turns [][]agent.Block
		for i := range killedCalls {
			turns = append(turns, []agent.Block{scripted.Call(fmt.Sprint("call", i), "exec", map[string]any{
				"command": fmt.Sprintf("echo %d >>calls-%s; sleep 0.02; exit %d", i, n, i),
			})})
		}
		scripted.New(append(turns, []agent.Block{agent.Text("Done.")})...).ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	g := gatetest.Run(t)
	k := &killing{t: t, gate: g, url: server.URL}
	for n := 0; n < clientsKilled; n += together {
		k.each(n, func(r *killedRun) error {
			if err := r.start(); err != nil {
				return err
			}
			r.read(rand.N(4*killedCalls + 4))
			r.client.Process.Kill()
			return r.end()
		})
		k.each(n, (*killedRun).goOn)
	}
	for n := clientsKilled; n < clientsKilled+gatewaysKilled; n += together {
		k.each(n, (*killedRun).start)
		var reading sync.WaitGroup
		moment := k.runs[n+rand.N(together)] // which the others need not have come to
		for _, r := range k.runs[n : n+together] {
			lines := 1000 // to its end
			if r == moment {
				lines = rand.N(4*killedCalls + 4)
			}
			reading.Go(func() {
				r.read(lines)
				if r == moment {
					syscall.Kill(g.PID, syscall.SIGKILL)
				}
			})
		}
		reading.Wait()
		g.Signal(syscall.SIGKILL) // which waits for its end
		k.each(n, (*killedRun).end)
		if err := g.Start(); err != nil {
			t.Fatal(err)
		}
		k.each(n, (*killedRun).goOn)
	}
	out, err := exec.Command("ssh", g.SSHArgs("box", "cd; for i in calls-*; do echo $i $(cat $i); done")...).Output()
	if err != nil {
		t.Fatal(err)
	}
	made := make(map[string]bool)
	for line := range strings.Lines(string(out)) {
		made[strings.TrimSpace(line)] = true
	}
	for n := range k.runs {
		if want := fmt.Sprintf("calls-%d 0 1 2 3 4", n); !made[want] || len(made) != len(k.runs) {
			t.Errorf("%q is not among the %d lines of calls:\n%s", want, len(made), out)
			break
		}
	}
}

// A killing is what the runs of TestAgentKilled have in common.
type killing struct {
	t    *testing.T
	gate *gatetest.Gateway
	url  string
	runs []*killedRun
}

// each does something with the runs from the n-th on, at the same time.
func (k *killing) each(n int, do func(*killedRun) error) {
	k.t.Helper()
	for len(k.runs) < n+together {
		k.runs = append(k.runs, &killedRun{killing: k, n: len(k.runs)})
	}
	errs := make([]error, together)
	var wg sync.WaitGroup
	for i, r := range k.runs[n : n+together] {
		wg.Go(func() { errs[i] = do(r) })
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			k.t.Fatalf("run %d: %v", n+i, err)
		}
	}
}

// A killedRun is one of them, and its first client.
type killedRun struct {
	*killing
	n      int
	client *exec.Cmd
	out    *bufio.Reader
	told   bytes.Buffer
	errors bytes.Buffer
}

// start starts the run, and returns once it has begun.
func (r *killedRun) start() error {
	r.client = exec.Command("ssh", r.gate.SSHArgs("box", "-s", "agent --base-url "+r.url+"/"+strconv.Itoa(r.n))...)
	r.client.Stdin, r.client.Stderr = strings.NewReader("go"), &r.errors
	out, err := r.client.StdoutPipe()
	if err != nil {
		return err
	}
	if err := r.client.Start(); err != nil {
		return err
	}
	r.out = bufio.NewReader(out)
	if r.read(1); r.told.Len() == 0 {
		return errors.Join(fmt.Errorf("it has not begun: %s", r.errors.String()), r.end())
	}
	return nil
}

// read reads so many lines, or to the end.
func (r *killedRun) read(lines int) {
	for range lines {
		line, err := r.out.ReadString('\n')
		r.told.WriteString(line)
		if err != nil {
			return
		}
	}
}

// end reads the rest of what the client was told. How it ended does not matter.
func (r *killedRun) end() error {
	_, err := io.Copy(&r.told, r.out)
	r.client.Wait()
	return err
}

// goOn follows the run from where its client was, and checks what both were told.
func (r *killedRun) goOn() error {
	events, err := eventsOf(r.told.Bytes())
	if err != nil {
		return err
	}
	run, after := events[0].Run, int64(0)
	for _, e := range events {
		after = max(after, e.Seq) // pieces of output have none
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), 2*time.Minute) // then it hangs
	defer cancel()
	cmd := exec.CommandContext(ctx, "ssh", r.gate.SSHArgs("box", "-s", fmt.Sprintf("agent --resume %s --after %d", run, after))...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("resumed after event %d: %v: %s%s", after, err, stderr.String(), out)
	}
	more, err := eventsOf(out)
	if err != nil {
		return err
	}
	results, seq := 0, int64(0)
	for _, e := range append(events, more...) {
		if e.Type == agent.TypeResult {
			results++
		}
		if e.Seq == 0 {
			continue // it is not of the log
		}
		if seq++; e.Seq != seq {
			return fmt.Errorf("event %d where %d was due, resumed after %d", e.Seq, seq, after)
		}
	}
	if results != 1 {
		return fmt.Errorf("%d results, resumed after event %d", results, after)
	}
	return nil
}

// A runEvent is what a test wants of an event.
type runEvent struct {
	Type string
	Seq  int64
	Run  string `json:"session_id"`
}

// eventsOf reads lines of events. The last may be cut off.
func eventsOf(lines []byte) (events []runEvent, err error) {
	for line := range bytes.Lines(lines) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break
		}
		var e runEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("%w in %q", err, line)
		}
		events = append(events, e)
	}
	return events, nil
}
