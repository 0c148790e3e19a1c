package docker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandgate/sandbox"
	"sandgate/sandbox/docker"
	"sandgate/sandbox/guest"
	"sandgate/sandbox/testneed"
	"sandgate/store"
)

// patience is how long anything may take that is expected to happen at once.
const patience = 30 * time.Second

// A daemon is an engine of one test's own, which can be restarted.
type daemon struct {
	engine
	t      *testing.T
	dir    string
	before string // a shell's commands in the engine's own mount namespace; empty: it has none
	cmd    *exec.Cmd
}

// startDaemon starts an engine with testImage.
func startDaemon(t *testing.T, flags ...string) *daemon {
	t.Helper()
	d := newDaemon(t)
	d.start(flags...)
	d.importImage(t)
	return d
}

// newDaemon returns an engine that is to be started.
func newDaemon(t *testing.T) *daemon {
	t.Helper()
	if _, err := exec.LookPath("dockerd"); err != nil || os.Geteuid() != 0 {
		testneed.Lacking(t, "root and dockerd, to start an engine with")
	}
	dir, err := os.MkdirTemp("", "sg-engine-") // short, for its sockets
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{engine: engine{"unix://" + dir + "/docker.sock"}, t: t, dir: dir}
	t.Cleanup(func() {
		if d.cmd != nil {
			for id := range strings.FieldsSeq(d.docker(t, "ps", "-aq")) {
				d.docker(t, "rm", "-f", id)
			}
			d.stop(syscall.SIGTERM)
		}
		d.unmount()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return d
}

// unmount takes away what an engine with live-restore leaves mounted.
func (d *daemon) unmount() {
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if at := strings.Fields(line)[4]; strings.HasPrefix(at, d.dir+"/") {
			syscall.Unmount(at, syscall.MNT_DETACH)
		}
	}
}

func (d *daemon) start(flags ...string) {
	d.t.Helper()
	log, err := os.OpenFile(filepath.Join(d.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		d.t.Fatal(err)
	}
	defer log.Close()
	argv := append([]string{"dockerd", "--config-file", filepath.Join(d.dir, "none"),
		"--data-root", d.dir + "/data", "--exec-root", d.dir + "/run", "--pidfile", d.dir + "/pid", "-H", d.host,
		"--bridge=none", "--iptables=false", "--ip6tables=false"}, flags...)
	if d.before != "" {
		argv = append([]string{"unshare", "--mount", "--propagation=private", "sh", "-ec", d.before + "\nexec \"$@\"", "sh"}, argv...)
	}
	d.cmd = exec.Command(argv[0], argv[1:]...)
	if err := os.WriteFile(filepath.Join(d.dir, "none"), []byte("{}"), 0o600); err != nil {
		d.t.Fatal(err)
	}
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	for end := time.Now().Add(2 * patience); d.command("version").Run() != nil; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			said, _ := os.ReadFile(filepath.Join(d.dir, "log"))
			d.t.Fatalf("the engine does not start:\n%s", said)
		}
	}
}

func (d *daemon) stop(sig syscall.Signal) {
	d.t.Helper()
	d.cmd.Process.Signal(sig)
	d.cmd.Wait()
	d.cmd = nil
}

// A world is a manager with one docker driver.
type world struct {
	*sandbox.Manager
	t     *testing.T
	owner store.User
}

func newWorld(t *testing.T, e engine, cfg docker.Config) *world {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	cfg.State, cfg.Executable, cfg.Host = e.state(t), program, e.host
	d, err := docker.New(cfg, log)
	if err != nil {
		t.Fatal(err)
	}
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	owner, err := db.CreateUser(t.Context(), "ada", store.RoleUser)
	if err != nil {
		t.Fatal(err)
	}
	m, err := sandbox.NewManager(sandbox.Config{Driver: "docker"}, db, map[string]sandbox.Driver{"docker": d}, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	if err := m.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &world{m, t, owner}
}

// create records a sandbox of testImage.
func (w *world) create(name string, o sandbox.Options) store.Sandbox {
	w.t.Helper()
	o.Image = testImage
	row, err := w.Create(w.t.Context(), w.owner, name, o)
	if err != nil {
		w.t.Fatal(err)
	}
	return row
}

func (w *world) wake(row store.Sandbox) *sandbox.Lease {
	w.t.Helper()
	lease, err := w.Wake(w.t.Context(), row)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(lease.Release)
	return lease
}

// runIn runs a command to its end.
func runIn(lease *sandbox.Lease, text string) (string, guest.Exit, error) {
	var out strings.Builder
	p, err := lease.Start(guest.Command{Text: []byte(text)}, false)
	if err != nil {
		return "", guest.Exit{}, err
	}
	defer p.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	exit, err := p.Wait(ctx, &out, io.Discard)
	return out.String(), exit, err
}

// ended is what a session says of a command that ended so: the same cases as in
// package gateway.
func ended(lease *sandbox.Lease, exit guest.Exit, err error) error {
	if errors.Is(err, guest.ErrGone) || err == nil && exit.Signal != "" && lease.Stopping() {
		return lease.Gone()
	}
	return err
}

// BACK-05: the engine is restarted under ten live sandboxes. What ran in them ends
// with a sentence, or with live-restore goes on; they can be used again at once,
// with what was on their disks, and nothing of them is left in the end.
func TestBACK05(t *testing.T) {
	for name, flags := range map[string][]string{"Stops": nil, "LiveRestore": {"--live-restore"}} {
		t.Run(name, func(t *testing.T) {
			d := startDaemon(t, flags...)
			w := newWorld(t, d.engine, docker.Config{})
			const n = 10
			var rows []store.Sandbox
			results := make(chan error, n)
			for i := range n {
				row := w.create("box"+strconv.Itoa(i), sandbox.Options{})
				rows = append(rows, row)
				lease := w.wake(row)
				if _, exit, err := runIn(lease, "echo kept >/root/kept"); err != nil || exit.Code != 0 {
					t.Fatal(exit, err)
				}
				go func() {
					out, exit, err := runIn(lease, "until test -e /root/go; do sleep 0.2; done; echo done")
					if err = ended(lease, exit, err); err == nil && (exit != guest.Exit{} || out != "done\n") {
						err = fmt.Errorf("%+v %q", exit, out)
					}
					results <- err
				}()
			}
			d.stop(syscall.SIGTERM)

			_, err := w.Wake(t.Context(), w.create("other", sandbox.Options{}))
			if lost, ok := errors.AsType[*sandbox.UnavailableError](err); !ok || !strings.Contains(lost.Reason, "does not answer") {
				t.Errorf("without an engine: %v", err)
			}
			infos, err := w.Infos(t.Context(), rows)
			if err != nil || infos[sandbox.ID(rows[0].ID)].State != sandbox.Unknown {
				t.Errorf("without an engine: %+v, %v", infos, err)
			}

			d.start(flags...)
			for _, row := range rows {
				lease := w.wake(row)
				if out, _, err := runIn(lease, "cat /root/kept; touch /root/go"); err != nil || out != "kept\n" {
					t.Errorf("%q %v", out, err)
				}
			}
			for range n {
				err := <-results
				if flags != nil {
					if err != nil {
						t.Errorf("a command did not go on: %v", err)
					}
				} else if e, ok := errors.AsType[*sandbox.EndedError](err); !ok || !strings.Contains(e.Cause, "the Docker engine") {
					t.Errorf("a command ended with: %v", err)
				}
			}
			for _, row := range rows {
				if err := w.Remove(t.Context(), row); err != nil {
					t.Error(err)
				}
			}
			if left := d.docker(t, "ps", "-aq"); left != "" {
				t.Errorf("left: %s", left)
			}
		})
	}
}

// A gateway that is started before its engine finds its sandboxes, and removes
// those that nobody owns, when the engine comes.
func TestEngineComesLate(t *testing.T) {
	d := startDaemon(t)
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	cfg := docker.Config{State: t.TempDir(), Executable: program, Host: d.host}
	before, err := docker.New(cfg, log)
	if err != nil {
		t.Fatal(err)
	}
	if err := before.Create(t.Context(), sandbox.Spec{ID: sandbox.NewID(), Hostname: "orphan", Image: testImage}); err != nil {
		t.Fatal(err)
	}
	before.Close()
	d.stop(syscall.SIGTERM)

	driver, err := docker.New(cfg, log)
	if err != nil {
		t.Fatal(err)
	}
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	m, err := sandbox.NewManager(sandbox.Config{Driver: "docker"}, db, map[string]sandbox.Driver{"docker": driver}, log)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.start()
	for end := time.Now().Add(patience); d.docker(t, "ps", "-aq") != ""; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the orphan is still there")
		}
	}
}

// BACK-01: killed, or stopped, from outside. What was open ends at once and says why.
func TestBACK01(t *testing.T) {
	e := theEngine(t)
	for name, cfg := range map[string]docker.Config{"Shared": {}, "Copy": {Copy: true}} {
		for _, how := range []string{"kill", "stop"} {
			t.Run(name+"/"+how, func(t *testing.T) {
				w := newWorld(t, e, cfg)
				row := w.create("box", sandbox.Options{})
				defer w.Remove(context.Background(), row)
				lease := w.wake(row)
				result := make(chan error, 1)
				go func() {
					_, exit, err := runIn(lease, "sleep 300")
					result <- ended(lease, exit, err)
				}()
				name, err := e.container(sandbox.ID(row.ID))
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second) // for the events to be followed, and the command to run
				e.docker(t, how, name)
				select {
				case err := <-result:
					if end, ok := errors.AsType[*sandbox.EndedError](err); !ok || !strings.Contains(end.Cause, "from outside") {
						t.Errorf("it ended with: %v", err)
					}
				case <-time.After(patience):
					t.Fatal("the command did not end")
				}
				if out, _, err := runIn(w.wake(row), "echo again"); err != nil || out != "again\n" {
					t.Errorf("%q %v", out, err)
				}
			})
		}
	}
}

// BACK-02: a sandbox that somebody has paused goes on when it is used, and what ran
// in it has lost nothing.
func TestBACK02(t *testing.T) {
	e := theEngine(t)
	w := newWorld(t, e, docker.Config{})
	row := w.create("box", sandbox.Options{})
	defer w.Remove(context.Background(), row)
	lease := w.wake(row)
	name, err := e.container(sandbox.ID(row.ID))
	if err != nil {
		t.Fatal(err)
	}
	loop := make(chan string, 1)
	go func() {
		out, _, err := runIn(lease, "for i in 1 2 3 4 5; do echo $i; sleep 0.4; done")
		loop <- fmt.Sprint(out, err)
	}()
	time.Sleep(time.Second)
	e.docker(t, "pause", name)
	time.Sleep(time.Second) // for the event
	if out, _, err := runIn(w.wake(row), "echo resumed"); err != nil || out != "resumed\n" {
		t.Errorf("%q %v", out, err)
	}
	if got := <-loop; got != "1\n2\n3\n4\n5\n<nil>" {
		t.Errorf("the loop wrote %q", got)
	}
	e.docker(t, "pause", name)
	if err := w.Stop(t.Context(), row); err != nil {
		t.Error(err)
	}
}

// A sandbox that uses too much memory says so. Under our runtime it is the sandbox
// as a whole that ends.
func TestOutOfMemory(t *testing.T) {
	e := theEngine(t)
	e.needsOurRuntime(t)
	w := newWorld(t, e, docker.Config{})
	row := w.create("box", sandbox.Options{Runtime: ourRuntime, Limits: sandbox.Limits{Memory: 192 << 20}})
	defer w.Remove(context.Background(), row)
	lease := w.wake(row)
	time.Sleep(time.Second) // for the events to be followed
	_, exit, err := runIn(lease, "tail /dev/zero")
	if end, ok := errors.AsType[*sandbox.EndedError](ended(lease, exit, err)); !ok || !strings.Contains(end.Cause, "192 MiB") {
		t.Errorf("it ended with: %v %v", exit, ended(lease, exit, err))
	}
}
