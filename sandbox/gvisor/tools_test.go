//go:build linux

package gvisor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"sandgate/sandbox"
	"sandgate/sandbox/drivertest"
	"sandgate/sandbox/guest"
	"sandgate/sandbox/guest/tool"
)

// leaving is a command whose children hold its output.
const leaving = "sleep 1e5 & setsid sleep 1e5 & echo hi"

func execTool(ctx context.Context, sh *drivertest.Shell, args map[string]any) (*tool.ExecOutput, error) {
	raw, err := json.Marshal(args)
	if err != nil {
		return nil, err
	}
	out, err := sh.Tool(ctx, guest.ToolCall{Name: "exec", Args: raw, Session: "test"}, nil)
	if err != nil {
		return nil, err
	}
	return out.(*tool.ExecOutput), nil
}

// The agent's exec in gVisor's kernel: what a command leaves behind does not hold it
// up, a timeout leaves no process, and a thousand commands leave no zombie.
func TestAGENT04(t *testing.T) {
	_, sh := drivertest.Start(t, open(t), sandbox.Spec{})
	count := func(state, name string) int {
		o, err := execTool(t.Context(), sh, map[string]any{"command": `cat /proc/[0-9]*/stat 2>/dev/null`})
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for line := range strings.Lines(o.Stdout) {
			if _, rest, _ := strings.Cut(line, "("); strings.HasPrefix(rest, name) && strings.Contains(rest, ") "+state) {
				n++
			}
		}
		return n
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // it would wait for a day
	defer cancel()
	o, err := execTool(ctx, sh, map[string]any{"command": leaving, "timeout_s": 86400})
	if err != nil || o.Stdout != "hi\n" || o.ExitCode == nil || *o.ExitCode != 0 || o.Left != 2 {
		t.Fatalf("got %+v, %v", o, err)
	}
	if n := count("", "sleep"); n != 2 {
		t.Errorf("%d of 2 go on", n)
	}
	if _, err := execTool(t.Context(), sh, map[string]any{"job": o.Job, "signal": "KILL"}); err != nil {
		t.Error(err)
	}
	o, err = execTool(t.Context(), sh, map[string]any{"command": leaving + "; sleep 1e5", "timeout_s": 1})
	if err != nil || o.KilledBy != "timeout" || o.ExitCode == nil || *o.ExitCode != 124 {
		t.Errorf("got %+v, %v", o, err)
	}
	gone := func(state, name string) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); count(state, name) > 0; time.Sleep(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("there are still processes (%s %s)", state, name)
			}
		}
	}
	gone("", "sleep")

	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for k := range 125 {
				want := (i + k) % 100
				o, err := execTool(t.Context(), sh, map[string]any{"command": fmt.Sprintf("(true &); true & exit %d", want)})
				if err != nil || o.ExitCode == nil || *o.ExitCode != want {
					t.Errorf("command %d of %d ended as %+v, %v", k, i, o, err)
					return
				}
			}
		})
	}
	wg.Wait()
	gone("Z", "")
}

// BenchmarkExecLeaving is how long a command takes whose children hold its output; it
// is to be under 300 ms.
func BenchmarkExecLeaving(b *testing.B) {
	_, sh := drivertest.Start(b, open(b), sandbox.Spec{})
	for b.Loop() {
		o, err := execTool(b.Context(), sh, map[string]any{"command": leaving})
		if err != nil || o.Stdout != "hi\n" {
			b.Fatal(o, err)
		}
		b.StopTimer()
		if _, err := execTool(b.Context(), sh, map[string]any{"job": o.Job, "signal": "KILL"}); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkTools is how long the tools take in a warm sandbox; each is to be under 5 ms.
func BenchmarkTools(b *testing.B) {
	_, sh := drivertest.Start(b, open(b), sandbox.Spec{})
	for _, call := range []struct{ name, args string }{
		{"write", `{"path":"f","content":"one\ntwo\n","expect":""}`}, {"read", `{"path":"f"}`},
		{"glob", `{"pattern":"*","path":"/etc"}`}, {"grep", `{"pattern":"two","path":"f"}`}, {"exec", `{"command":":"}`},
	} {
		b.Run(call.name, func(b *testing.B) {
			for b.Loop() {
				if _, err := sh.Tool(b.Context(), guest.ToolCall{Name: call.name, Args: json.RawMessage(call.args), Session: "test"}, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
