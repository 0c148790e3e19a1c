package sandbox_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sandgate/sandbox"
	"sandgate/store"
)

// withSetup makes a sandbox with a setup command.
func (w *world) withSetup(command string) store.Sandbox {
	w.t.Helper()
	row, err := w.Create(w.t.Context(), w.user, "web", sandbox.Options{Setup: command})
	if err != nil {
		w.t.Fatal(err)
	}
	return row
}

func (w *world) wantSetup(row store.Sandbox, state sandbox.SetupState, log string) {
	w.t.Helper()
	s, err := w.Setup(w.t.Context(), row)
	if err != nil || s.State != state || string(s.Log) != log {
		w.t.Errorf("setup is %q with log %q, %v; want %q with %q", s.State, s.Log, err, state, log)
	}
}

func (w *world) wantState(row store.Sandbox, want sandbox.State) {
	w.t.Helper()
	infos, err := w.Infos(w.t.Context(), []store.Sandbox{row})
	if got := infos[sandbox.ID(row.ID)].State; err != nil || got != want {
		w.t.Errorf("the sandbox is %q, %v; want %q", got, err, want)
	}
}

// await waits for a file.
func await(t *testing.T, file string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(file); err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s does not appear", file)
		}
	}
}

// However many are the first, the command runs once, and all see what it writes.
func TestSetupOnce(t *testing.T) {
	w := newWorld(t)
	file := filepath.Join(t.TempDir(), "ran")
	row := w.withSetup("echo begins; echo x >>" + file + "; sleep 0.2; echo ends >&2")
	w.wantSetup(row, sandbox.SetupPending, "")
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			var shown bytes.Buffer
			lease, err := w.WakeShowing(t.Context(), row, sandbox.Show{Setup: &shown})
			if err != nil {
				t.Error(err)
				return
			}
			lease.Release()
			if shown.String() != "begins\nends\n" {
				t.Errorf("shown was %q", shown.String())
			}
		})
	}
	wg.Wait()
	w.wantSetup(row, sandbox.SetupDone, "begins\nends\n")
	if err := w.Stop(t.Context(), row); err != nil {
		t.Fatal(err)
	}
	w.restart()
	var shown bytes.Buffer
	lease, err := w.WakeShowing(t.Context(), row, sandbox.Show{Setup: &shown})
	if err != nil {
		t.Fatal(err)
	}
	lease.Release()
	if ran, _ := os.ReadFile(file); string(ran) != "x\n" || shown.Len() > 0 {
		t.Errorf("the command ran again: %q, shown was %q", ran, shown.String())
	}
}

// A command that fails leaves the sandbox stopped and its output to be read. All
// who waited are told, and the next start tries again.
func TestSetupFails(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	row := w.withSetup(fmt.Sprintf("cd %s; echo x >>ran; echo broken; sleep 0.2; test -e repaired || exit 3", dir))
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			_, err := w.Wake(t.Context(), row)
			if e, ok := errors.AsType[*sandbox.SetupError](err); !ok || e.How != "exit code 3" {
				t.Errorf("got %v", err)
			}
		})
	}
	wg.Wait()
	if ran, _ := os.ReadFile(filepath.Join(dir, "ran")); string(ran) != "x\n" {
		t.Errorf("the command ran %d times", len(ran)/2)
	}
	w.wantState(row, sandbox.Stopped)
	w.wantSetup(row, sandbox.SetupFailed, "broken\n")
	w.restart()
	w.wantSetup(row, sandbox.SetupFailed, "broken\n")
	if err := os.WriteFile(filepath.Join(dir, "repaired"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	w.mustRun(row)
	w.wantSetup(row, sandbox.SetupDone, "broken\n")
	if ran, _ := os.ReadFile(filepath.Join(dir, "ran")); string(ran) != "x\nx\n" {
		t.Errorf("the command ran %d times", len(ran)/2)
	}
}

// Stop, Remove and the end of the gateway do not wait for the command.
func TestSetupInterrupted(t *testing.T) {
	for name, interrupt := range map[string]func(*world, store.Sandbox) error{
		"Stop":   func(w *world, row store.Sandbox) error { return w.Stop(w.t.Context(), row) },
		"Remove": func(w *world, row store.Sandbox) error { return w.Remove(w.t.Context(), row) },
		"Close":  func(w *world, row store.Sandbox) error { return w.Manager.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			dir := t.TempDir()
			row := w.withSetup(fmt.Sprintf("cd %s; test -e again && exit; trap '' HUP; echo begun; touch again begun; sleep 600; touch ended", dir))
			failed := make(chan error, 1)
			go func() {
				_, err := w.Wake(t.Context(), row)
				failed <- err
			}()
			await(t, filepath.Join(dir, "begun"))
			for s := (sandbox.Setup{}); string(s.Log) != "begun\n"; time.Sleep(5 * time.Millisecond) {
				var err error
				if s, err = w.Setup(t.Context(), row); err != nil || s.State != sandbox.SetupRunning {
					t.Fatalf("setup is %q, %v", s.State, err)
				}
			}
			if err := interrupt(w, row); err != nil {
				t.Fatal(err)
			}
			if err := <-failed; err == nil || !strings.Contains(err.Error(), "interrupted") {
				t.Errorf("got %v", err)
			}
			if name == "Remove" {
				return
			}
			w.restart()
			w.mustRun(row)
			w.wantSetup(row, sandbox.SetupDone, "")
		})
	}
}

// Of a long output the last is kept.
func TestSetupLog(t *testing.T) {
	w := newWorld(t)
	row := w.withSetup("yes xxxx | head -c 2000000; echo last")
	w.mustRun(row)
	s, err := w.Setup(t.Context(), row)
	if err != nil || len(s.Log) < 200<<10 || len(s.Log) > 512<<10 || !bytes.HasSuffix(s.Log, []byte("xxxx\nlast\n")) {
		t.Errorf("%d bytes are kept, %v", len(s.Log), err)
	}
}
