package drivertest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"sandgate/sandbox"
	"sandgate/sandbox/guest"
	"sandgate/sandbox/testneed"
)

// Sandboxes that stand still for a while.
var pauseCases = cases{
	"GoesOn":     where{pauses, onHost(pauseGoesOn)},
	"Again":      where{pauses, alone(pauseAgain)},
	"Stop":       where{pauses, alone(pauseStop)},
	"NotRunning": where{pauses, alone(pauseNotRunning)},
	"Session":    where{pauses, alone(pauseSession)},
	"Channels":   where{pauses, alone(pauseChannels)},
	"Tmux":       where{func(h Host) bool { return h.Pauses && h.Image == "" }, alone(pauseTmux)},
	"Many":       where{pauses, alone(pauseMany)},
	"Fork":       where{checkpoints, onHost(forkRunning)},
	"ForkAgain":  where{checkpoints, alone(forkAgain)},
	"Snapshot":   where{pauses, onHost(testSnapshot)},
}

func pauses(h Host) bool      { return h.Pauses }
func checkpoints(h Host) bool { return h.Checkpoints }

// pause makes a sandbox stand still.
func (b *bench) pause(id sandbox.ID) {
	b.t.Helper()
	if err := b.Driver.(sandbox.Pauser).Pause(b.t.Context(), id); err != nil {
		b.t.Fatal(err)
	}
	b.wantState(id, sandbox.Paused)
	if !b.Checkpoints {
		b.leave()
		return
	}
	for _, trace := range b.Traces(id) {
		if strings.HasPrefix(trace, "process") {
			b.t.Errorf("a paused sandbox has still a %s", trace)
		}
	}
	if b.status(id).Image == 0 {
		b.t.Error("the memory of a paused sandbox takes no disk")
	}
}

// leave closes all connections, as the Manager does to a sandbox that it has paused.
func (b *bench) leave() {
	for _, sh := range b.shells {
		sh.Close()
	}
}

// counterPort is where probeCount listens.
const counterPort = 7070

// probeCount is a process that has something to lose: a name that it alone knows, a
// number that grows with time, and a socket on which it tells both.
func probeCount([]string) error {
	l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", counterPort))
	if err != nil {
		return err
	}
	name := rand.Text()
	ticks := make(chan int)
	go func() {
		ticker := time.Tick(10 * time.Millisecond)
		for n := 0; ; {
			select {
			case <-ticker:
				n++
			case ticks <- n:
			}
		}
	}()
	fmt.Println("counting")
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		fmt.Fprintln(c, name, <-ticks)
		c.Close()
	}
}

// startCounter starts probeCount as a recorded job.
func startCounter(t *testing.T, b *bench, sh *Shell) {
	t.Helper()
	i := run(t, sh, guest.Run{Command: command("exec " + b.probe() + " count")})
	eventually(t, "the counter to count", func() bool {
		out, _ := printed(t, sh, i.ID, guest.Span{})
		return out != ""
	})
}

// counter asks probeCount.
func counter(t *testing.T, sh *Shell) (name string, n int) {
	t.Helper()
	s, err := sh.Dial(t.Context(), guest.Address{Host: "127.0.0.1", Port: counterPort})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	said, err := io.ReadAll(s)
	if err == nil {
		_, err = fmt.Sscan(string(said), &name, &n)
	}
	if err != nil {
		t.Fatalf("the counter says %q: %v", said, err)
	}
	return name, n
}

// A process, its memory, its socket and a log go on, whatever gateway comes next.
func pauseGoesOn(t *testing.T, b *bench) {
	id, sh := b.start("later")
	startCounter(t, b, sh)
	lines := run(t, sh, guest.Run{Command: command("i=0; while [ ! -e /tmp/enough ]; do i=$((i+1)); echo $i; sleep 0.01; done; exit 7")})
	sh.Run("sh", "-c", "echo kept >/root/kept")
	name, n := counter(t, sh)
	b.pause(id)
	b.reopen()
	b.wantState(id, sandbox.Paused)
	sh = b.wake(id)
	b.wantState(id, sandbox.Running)
	if again, more := counter(t, sh); again != name || more < n {
		t.Errorf("the counter was %s at %d, and is %s at %d", name, n, again, more)
	}
	sh.Want("kept", "cat", "/root/kept")
	out, _ := printed(t, sh, lines.ID, guest.Span{})
	seen := int64(len(out))
	sh.Run("touch", "/tmp/enough")
	wantExit(t, sh, lines.ID, 7)
	rest, _ := printed(t, sh, lines.ID, guest.Span{Offset: seen})
	for i, line := range strings.Fields(out + rest) {
		if line != fmt.Sprint(i+1) {
			t.Fatalf("line %d is %q", i+1, line)
		}
	}
}

// It can be done again and again, and memory and disk stay of the same moment.
func pauseAgain(t *testing.T, b *bench) {
	id, sh := b.start("turns")
	startCounter(t, b, sh)
	name, _ := counter(t, sh)
	for i := range 3 {
		sh.Run("sh", "-c", fmt.Sprintf("echo %d >>/root/turns", i))
		b.pause(id)
		b.pause(id)
		sh = b.wake(id)
		if again, _ := counter(t, sh); again != name {
			t.Fatalf("turn %d: it is another counter", i)
		}
	}
	sh.Want("0\n1\n2", "cat", "/root/turns")
	if err := b.Stop(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	b.wake(id).Want("0\n1\n2", "cat", "/root/turns")
}

// Stopping what is paused drops its processes and keeps its disk.
func pauseStop(t *testing.T, b *bench) {
	id, sh := b.start("stopped")
	sh.Run("sh", "-c", "echo kept >/root/kept; echo >/dev/shm/memory; mkdir -p /run && echo >/dev/shm/other")
	b.pause(id)
	for range 2 {
		if err := b.Stop(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		b.wantState(id, sandbox.Stopped)
	}
	sh = b.wake(id)
	sh.Want("kept", "cat", "/root/kept")
	sh.Run("test", "!", "-e", "/dev/shm/memory")
}

func pauseNotRunning(t *testing.T, b *bench) {
	p := b.Driver.(sandbox.Pauser)
	if err := p.Pause(t.Context(), sandbox.NewID()); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("one that is not there: %v", err)
	}
	id := b.create("still")
	if err := p.Pause(t.Context(), id); !errors.Is(err, sandbox.ErrNotRunning) {
		t.Errorf("one that is stopped: %v", err)
	}
	b.wantState(id, sandbox.Stopped)
}

// A named session is found again with what its shell knows.
func pauseSession(t *testing.T, b *bench) {
	id, sh := b.start("session")
	open := func(sh *Shell) (*guest.Process, *lockedBuffer) {
		p, err := sh.Start(guest.Command{Name: "build", Terminal: terminal80()}, true)
		if err != nil {
			t.Fatal(err)
		}
		var out lockedBuffer
		go p.Wait(context.Background(), &out, io.Discard)
		return p, &out
	}
	shows := func(out *lockedBuffer, what string) {
		t.Helper()
		eventually(t, "the session to show "+what, func() bool { return strings.Contains(out.String(), what) })
	}
	p, out := open(sh)
	io.WriteString(p, "word=remembered; echo is $((6*7))\n")
	shows(out, "is 42")
	b.pause(id)
	p.Close()
	p, out = open(b.wake(id))
	defer p.Close()
	shows(out, "is 42") // painted
	io.WriteString(p, "echo \"<$word>\"\n")
	shows(out, "<remembered>")
}

// Who uses a sandbox that is paused is told so by the end of the connection.
func pauseChannels(t *testing.T, b *bench) {
	id, sh := b.start("leave")
	p, err := sh.Start(command("sleep 1000"), false)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	b.pause(id)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if exit, err := p.Wait(ctx, io.Discard, io.Discard); !errors.Is(err, guest.ErrGone) {
		t.Errorf("the command ended with %+v, %v", exit, err)
	}
	b.wake(id).Run("sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep 'sleep 1000'")
}

func pauseTmux(t *testing.T, b *bench) {
	id, sh := b.start("tmux")
	if code, _, _ := sh.Try("sh", "-c", "command -v tmux"); code != 0 {
		testneed.Lacking(t, "tmux on the host")
	}
	sh.Run("tmux", "new-session", "-d", "-s", "work", "n=0; while :; do n=$((n+1)); echo n=$n; sleep 0.05; done")
	b.pause(id)
	sh = b.wake(id)
	sh.Run("tmux", "has-session", "-t", "work")
	before := sh.Run("tmux", "capture-pane", "-p", "-t", "work")
	eventually(t, "the window to show more", func() bool { return sh.Run("tmux", "capture-pane", "-p", "-t", "work") != before })
}

// Many that are woken at the same moment are all there.
func pauseMany(t *testing.T, b *bench) {
	const many = 6
	var ids []sandbox.ID
	for i := range many {
		id, sh := b.start(fmt.Sprint("many", i))
		sh.Run("sh", "-c", fmt.Sprintf("echo %d >/dev/shm/number", i))
		b.pause(id)
		ids = append(ids, id)
	}
	errs := make(chan error)
	for _, id := range ids {
		go func() { errs <- b.Start(t.Context(), id) }()
	}
	for range ids {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	for i, id := range ids {
		b.connect(id).Want(fmt.Sprint(i), "cat", "/dev/shm/number")
	}
}

// fork makes a copy of a sandbox.
func (b *bench) fork(from sandbox.ID, hostname string) (id sandbox.ID, memory bool) {
	b.t.Helper()
	spec := b.spec(sandbox.NewID(), hostname)
	b.ids = append(b.ids, spec.ID)
	memory, err := b.Driver.(sandbox.Forker).Fork(b.t.Context(), from, spec)
	if err != nil {
		b.t.Fatal(err)
	}
	return spec.ID, memory
}

// A fork has all that its parent has, and nothing of what either does later.
func forkRunning(t *testing.T, b *bench) {
	parent, sh := b.start("parent")
	startCounter(t, b, sh)
	name, n := counter(t, sh)
	sh.Run("sh", "-ec", "cd /root; echo both >f; chown 12:34 f; chmod 640 f; mkdir d; echo old >d/g; rm /etc/services; echo mine >/usr/local/mine; touch /usr/local/gone")
	child, memory := b.fork(parent, "child")
	if !memory {
		t.Error("what runs was not copied")
	}
	b.wantState(parent, sandbox.Running)
	b.wantState(child, sandbox.Paused)
	b.reopen()
	b.wantState(child, sandbox.Paused)
	in := map[string]*Shell{"parent": b.connect(parent), "child": b.wake(child)}
	for hostname, sh := range in {
		if again, more := counter(t, sh); again != name || more < n {
			t.Errorf("%s: the counter was %s at %d, and is %s at %d", hostname, name, n, again, more)
		}
		sh.Want(hostname, "uname", "-n")
		sh.Want("both", "cat", "/root/f")
		sh.Want("12:34 640", "stat", "-c", "%u:%g %a", "/root/f")
		sh.Want("mine", "cat", "/usr/local/mine")
		sh.Run("test", "!", "-e", "/etc/services")
		sh.Run("sh", "-ec", "echo "+hostname+" >>/root/f; echo "+hostname+" >/root/d/g; rm /usr/local/gone; echo "+hostname+" >/usr/local/"+hostname)
	}
	for hostname, sh := range in {
		sh.Want("both\n"+hostname, "cat", "/root/f")
		sh.Want(hostname, "cat", "/root/d/g")
		sh.Want("mine\n"+hostname, "sh", "-c", "cd /usr/local; cat mine; cat parent child gone 2>/dev/null || true")
	}
	// Each goes its own way, whatever becomes of the other.
	b.pause(child)
	if err := b.Remove(t.Context(), parent); err != nil {
		t.Fatal(err)
	}
	b.reopen()
	sh = b.wake(child)
	if again, _ := counter(t, sh); again != name {
		t.Error("without its parent it has another counter")
	}
	if err := b.Stop(t.Context(), child); err != nil {
		t.Fatal(err)
	}
	sh = b.wake(child)
	sh.Want("both\nchild", "cat", "/root/f")
	sh.Want("child", "cat", "/etc/hostname")
	sh.Run("grep", "-w", "child", "/etc/hosts")
}

// Of a sandbox that is stopped, or paused, there can be many copies, and copies of
// those.
func forkAgain(t *testing.T, b *bench) {
	id, sh := b.start("origin")
	sh.Run("sh", "-c", "echo 0 >>/root/f")
	if err := b.Stop(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	want := "0"
	for i := range 3 {
		child, memory := b.fork(id, fmt.Sprint("child", i+1))
		if memory {
			t.Error("of a stopped sandbox there is memory")
		}
		b.wantState(child, sandbox.Stopped)
		sh := b.wake(child)
		sh.Want(want, "cat", "/root/f")
		sh.Run("sh", "-c", fmt.Sprintf("echo %d >>/root/f", i+1))
		want += fmt.Sprint("\n", i+1)
		if err := b.Stop(t.Context(), child); err != nil {
			t.Fatal(err)
		}
		id = child
	}
	sh = b.wake(id)
	sh.Run("sh", "-c", "echo known >/dev/shm/known")
	b.pause(id)
	child, memory := b.fork(id, "last")
	if !memory {
		t.Error("of a paused sandbox there is no memory")
	}
	b.wantState(id, sandbox.Paused)
	for _, id := range []sandbox.ID{id, child} {
		sh := b.wake(id)
		sh.Want("known", "cat", "/dev/shm/known")
		sh.Want(want, "cat", "/root/f")
	}
}

// A snapshot is the disk as it was, for any number of sandboxes, whatever becomes of
// the one that it is of.
func testSnapshot(t *testing.T, b *bench) {
	s := b.Driver.(sandbox.Snapshotter)
	id, sh := b.start("source")
	startCounter(t, b, sh)
	name, _ := counter(t, sh)
	sh.Run("sh", "-ec", "cd /root; echo then >f; chown 12:34 f; echo mine >/usr/local/mine")
	snap := sandbox.NewID()
	if _, err := s.Snapshot(t.Context(), id, snap); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Driver.(sandbox.Snapshotter).DropSnapshot(context.Background(), snap); err != nil {
			t.Error(err)
		}
	})
	b.wantState(id, sandbox.Running)
	b.leave()
	sh = b.connect(id)
	if again, _ := counter(t, sh); again != name {
		t.Error("what ran does not go on")
	}
	sh.Run("sh", "-c", "echo now >/root/f")
	b.reopen()
	s = b.Driver.(sandbox.Snapshotter)
	if all, err := s.Snapshots(t.Context()); err != nil || len(all) != 1 || all[0] != snap {
		t.Errorf("there are the snapshots %v, %v", all, err)
	}
	if err := b.Remove(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	for _, hostname := range []string{"one", "two"} {
		spec := b.spec(sandbox.NewID(), hostname)
		spec.From = snap
		id := b.createWith(spec)
		b.wantState(id, sandbox.Stopped)
		sh := b.wake(id)
		sh.Want("then", "cat", "/root/f")
		sh.Want("12:34", "stat", "-c", "%u:%g", "/root/f")
		sh.Want("mine", "cat", "/usr/local/mine")
		sh.Want(hostname, "cat", "/etc/hostname")
		sh.Run("sh", "-c", "echo "+hostname+" >/root/f")
	}
	if err := s.DropSnapshot(t.Context(), snap); err != nil {
		t.Fatal(err)
	}
	last := b.ids[len(b.ids)-1]
	if err := b.Stop(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	b.wake(last).Want("two", "cat", "/root/f")
	spec := b.spec(sandbox.NewID(), "late")
	spec.From = snap
	if err := b.Create(t.Context(), spec); !errors.Is(err, sandbox.ErrNoSnapshot) {
		t.Errorf("from one that is not there any more: %v", err)
	}
}
