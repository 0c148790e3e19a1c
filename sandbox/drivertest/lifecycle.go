package drivertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"sandgate/sandbox"
	"sandgate/sandbox/guest"
)

// What the Manager asks of a driver.
var lifecycleCases = cases{
	"Lifecycle":    onHost(testLifecycle),
	"Repeat":       onHost(testRepeat),
	"NotFound":     onHost(testNotFound),
	"Connect":      onHost(testConnect),
	"Disk":         onHost(testDisk),
	"Adopt":        onHost(testAdopt),
	"BACK-01/Kill": onHost(testCrash),
	"EndsItself":   onHost(testEndsItself),
	"Remove":       onHost(testRemove),
	"Many":         onHost(testMany),
	"StopStubborn": onHost(testStopStubborn),
	"Cycle":        alone(testCycle),
	"CutShort":     onHost(testCutShort),
	"SameID":       alone(testSameID),
	"RemoveAtOnce": alone(testRemoveAtOnce),
	"RemoveRaces":  alone(testRemoveRaces),
	"Hostname":     alone(testHostname),
	"HostnameKept": alone(testHostnameKept),
	"BadID":        alone(testBadID),
	"ManyTurns":    onHost(testManyTurns),
	"StopEndsAll":  alone(testStopEndsAll),
	"Channels":     alone(testChannels),
	"List":         onHost(testList),
	"Gone":         onHost(testGone),
}

func testLifecycle(t *testing.T, b *bench) {
	id := b.create("ada")
	b.wantState(id, sandbox.Stopped)
	sh := b.wake(id)
	b.wantState(id, sandbox.Running)
	sh.Want("ada", "uname", "-n")
	sh.Want("0", "id", "-u")
	sh.Want("/root", "sh", "-c", "cd && pwd")
	if err := b.Stop(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	b.wantState(id, sandbox.Stopped)
	b.wake(id).Want("ada", "uname", "-n")
	if err := b.Remove(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	b.wantState(id, "")
}

// Asking for what is already so is not an error.
func testRepeat(t *testing.T, b *bench) {
	id := b.create("twice")
	spec := b.spec(id, "twice")
	sh := b.wake(id)
	sh.Run("touch", "/root/kept")
	for name, call := range map[string]func() error{
		"Create": func() error { return b.Create(t.Context(), spec) },
		"Start":  func() error { return b.Start(t.Context(), id) },
	} {
		if err := call(); err != nil {
			t.Errorf("%s again: %v", name, err)
		}
	}
	sh.Run("test", "-e", "/root/kept")
	for range 2 {
		if err := b.Stop(t.Context(), id); err != nil {
			t.Errorf("Stop: %v", err)
		}
	}
	b.wake(id).Run("test", "-e", "/root/kept")
	for range 2 {
		if err := b.Remove(t.Context(), id); err != nil {
			t.Errorf("Remove: %v", err)
		}
	}
	b.wantState(id, "")
}

func testNotFound(t *testing.T, b *bench) {
	id := sandbox.NewID()
	_, connect := b.Connect(t.Context(), id)
	for name, err := range map[string]error{
		"Start":   b.Start(t.Context(), id),
		"Stop":    b.Stop(t.Context(), id),
		"Connect": connect,
	} {
		if !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("%s: %v, want ErrNotFound", name, err)
		}
	}
	if err := b.Remove(t.Context(), id); err != nil {
		t.Errorf("Remove: %v", err)
	}
}

func testConnect(t *testing.T, b *bench) {
	id := b.create("dial")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := b.Connect(ctx, id); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Connect to a stopped sandbox: %v, want a timeout", err)
	}

	// One may wait for a sandbox before it runs.
	waiting := make(chan error, 1)
	go func() {
		conn, err := b.Connect(t.Context(), id)
		if err == nil {
			conn.Close()
		}
		waiting <- err
	}()
	if err := b.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; err != nil {
		t.Error(err)
	}
	// The guest opens another when one is closed.
	b.connect(id).Run("true")

	// Removing a sandbox ends the waiting. Until then the guest may open more.
	go func() {
		for {
			conn, err := b.Connect(context.Background(), id)
			if err != nil {
				waiting <- err
				return
			}
			defer conn.Close()
		}
	}()
	if err := b.Remove(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("Connect, then Remove: %v, want ErrNotFound", err)
	}
}

// All that was written is there again, wherever and by whomever.
func testDisk(t *testing.T, b *bench) {
	id, sh := b.start("disk")
	sh.Run("sh", "-ec", `
		for dir in /root /home /etc /var/lib /usr/local /usr/lib /opt /srv; do
			echo $dir >$dir/mine
		done
		rm /etc/services
		mkdir -p /usr/lib/deep/er /home/ada
		chown 1000:1001 /home/ada
		chmod 2750 /home/ada
		ln -s mine /root/link
		ln /root/mine /root/hard
	`)
	if err := b.Stop(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	sh = b.wake(id)
	for _, dir := range []string{"/root", "/home", "/etc", "/var/lib", "/usr/local", "/usr/lib", "/opt", "/srv"} {
		sh.Want(dir, "cat", dir+"/mine")
	}
	sh.Want("1000:1001 2750", "stat", "-c", "%u:%g %a", "/home/ada")
	sh.Want("/root", "cat", "/root/link")
	sh.Want("2", "stat", "-c", "%h", "/root/hard")
	sh.Run("test", "-d", "/usr/lib/deep/er")
	sh.Run("test", "!", "-e", "/etc/services")
}

// A new gateway finds the sandboxes of the one before, and their guests find it.
func testAdopt(t *testing.T, b *bench) {
	running, sh := b.start("running")
	stopped := b.create("stopped")
	sh.Run("sh", "-c", "echo kept >/run/kept")
	b.reopen()
	b.wantState(running, sandbox.Running)
	b.wantState(stopped, sandbox.Stopped)
	b.connect(running).Want("kept", "cat", "/run/kept")
	if err := b.Start(t.Context(), running); err != nil {
		t.Error(err)
	}
	b.wake(stopped)
	b.reopen()
	if err := b.Stop(t.Context(), running); err != nil {
		t.Error(err)
	}
	b.wantState(running, sandbox.Stopped)
	b.reopen()
	b.wantState(running, sandbox.Stopped)
	b.wantState(stopped, sandbox.Running)
}

func testCrash(t *testing.T, b *bench) {
	id, _ := b.start("crash")
	if err := b.Crash(id); err != nil {
		t.Fatal(err)
	}
	b.awaitState(id, sandbox.Stopped)
	b.wake(id).Want("crash", "uname", "-n")
	b.wantState(id, sandbox.Running)

	// The same while no gateway is there to see it.
	b.hangUp()
	err := b.Crash(id)
	b.open()
	if err != nil {
		t.Fatal(err)
	}
	b.awaitState(id, sandbox.Stopped)
	b.wake(id)
}

// A sandbox whose first process has ended is stopped.
func testEndsItself(t *testing.T, b *bench) {
	id, sh := b.start("brief")
	sh.Try("sh", "-c", "kill -TERM 1")
	b.awaitState(id, sandbox.Stopped)
	b.wake(id)
}

func testRemove(t *testing.T, b *bench) {
	id, sh := b.start("gone")
	sh.Run("sh", "-c", "mkdir -p /usr/a/b /srv/a/b && chmod 0 /usr/a /srv/a && touch /usr/x && chmod 0 /usr/x")
	if len(b.Traces(id)) == 0 {
		t.Error("a running sandbox leaves no traces: they cannot be told from those of a removed one")
	}
	if err := b.Remove(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if traces := b.Traces(id); len(traces) > 0 {
		t.Errorf("left:\n%s", strings.Join(traces, "\n"))
	}
	b.reopen()
	b.wantState(id, "")
}

func testMany(t *testing.T, b *bench) {
	const n = 8
	var ids []sandbox.ID
	for i := range n {
		ids = append(ids, b.create(fmt.Sprintf("many%d", i)))
	}
	var wg sync.WaitGroup
	for i, id := range ids {
		wg.Go(func() {
			if err := b.Start(t.Context(), id); err != nil {
				t.Error(err)
				return
			}
			sh := Connect(t, b.Driver, id)
			if _, out, err := sh.Try("uname", "-n"); err != nil || out != fmt.Sprintf("many%d", i) {
				t.Errorf("sandbox %d: %q, %v", i, out, err)
			}
			if err := b.Stop(t.Context(), id); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, id := range ids {
		b.wantState(id, sandbox.Stopped)
	}
}

// Stop does not wait for a guest that does not listen, once its context ends.
func testStopStubborn(t *testing.T, b *bench) {
	id, sh := b.start("stubborn")
	sh.Run("sh", "-c", "(sleep 0.1; kill -STOP 1) >/dev/null 2>&1 &")
	time.Sleep(200 * time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := b.Stop(ctx, id); err != nil {
		// It may also give up, but then it has to manage when asked again.
		if err := b.Stop(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	b.wantState(id, sandbox.Stopped)
}

// The disk lasts, however often a sandbox is stopped and started.
func testCycle(t *testing.T, b *bench) {
	id := b.create("cycle")
	for i := range 6 {
		sh := b.wake(id)
		sh.Run("sh", "-c", "echo x >>/root/turns")
		sh.Want(fmt.Sprint(i+1), "sh", "-c", "wc -l </root/turns | tr -d ' '")
		if err := b.Stop(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
}

// A Create that was cut short can be repeated, and leaves nothing that a Remove
// does not take away.
func testCutShort(t *testing.T, b *bench) {
	for i := range 6 {
		spec := b.spec(sandbox.NewID(), "cut")
		b.ids = append(b.ids, spec.ID)
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i*i)*time.Millisecond)
		b.Create(ctx, spec) // or not
		cancel()
		if i%2 == 1 {
			b.reopen()
		}
		if i%3 == 0 {
			continue // clean sees that nothing is left
		}
		if err := b.Create(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		b.wake(spec.ID).Want("cut", "uname", "-n")
	}
}

// An id that is used again, which the Manager does not do, shows nothing of before.
func testSameID(t *testing.T, b *bench) {
	id, sh := b.start("first")
	sh.Run("touch", "/root/old", "/tmp/old", "/usr/old")
	if err := b.Remove(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	b.createWith(b.spec(id, "second"))
	sh = b.wake(id)
	sh.Want("second", "uname", "-n")
	sh.Run("test", "!", "-e", "/root/old", "-a", "!", "-e", "/tmp/old", "-a", "!", "-e", "/usr/old")
}

// What is asked of a sandbox that is being removed comes too late, and harms nothing.
func testRemoveRaces(t *testing.T, b *bench) {
	spec := b.spec(sandbox.NewID(), "brief")
	b.wake(b.createWith(spec))
	removed := make(chan error, 1)
	go func() { removed <- b.Remove(context.Background(), spec.ID) }()
	spec.Limits.CPUs = 1
	for err := error(nil); !errors.Is(err, sandbox.ErrNotFound); {
		if err = b.Driver.(sandbox.Updater).Update(t.Context(), spec); err != nil && !errors.Is(err, sandbox.ErrNotFound) {
			t.Fatal(err)
		}
	}
	if err := <-removed; err != nil {
		t.Error(err)
	}
	b.wantState(spec.ID, "")
}

// A sandbox may be removed at any time.
func testRemoveAtOnce(t *testing.T, b *bench) {
	for _, after := range []time.Duration{0, 10 * time.Millisecond, 100 * time.Millisecond} {
		id := b.create("brief")
		if err := b.Start(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		time.Sleep(after)
		if err := b.Remove(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		b.wantState(id, "")
	}
}

// What root writes there is root's, although the driver put it there.
func testHostnameKept(t *testing.T, b *bench) {
	id, sh := b.start("kept")
	sh.Run("sh", "-c", "echo changed >/etc/hostname")
	if err := b.Stop(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	b.wake(id).Want("changed", "cat", "/etc/hostname")
}

func testHostname(t *testing.T, b *bench) {
	for _, name := range []string{"a", "a-b-0", strings.Repeat("h", 63)} {
		_, sh := b.start(name)
		sh.Want(name, "uname", "-n")
		sh.Want(name, "cat", "/etc/hostname")
		sh.Run("grep", "-qw", name, "/etc/hosts")
	}
}

// An id is part of paths and names: only what has its form is taken.
func testBadID(t *testing.T, b *bench) {
	for _, id := range []sandbox.ID{"", "x", "../../../../tmp/x", "0123456789abcdeF", "0123456789abcdef0", "-123456789abcdef"} {
		if err := b.Create(t.Context(), b.spec(id, "bad")); err == nil {
			b.Remove(t.Context(), id)
			t.Errorf("a sandbox %q was made", id)
		}
	}
}

// Different sandboxes in different states at the same time.
func testManyTurns(t *testing.T, b *bench) {
	var wg sync.WaitGroup
	for i := range 4 {
		id := b.create(fmt.Sprintf("turn%d", i))
		wg.Go(func() {
			for range 3 {
				for what, call := range map[string]func(context.Context, sandbox.ID) error{"start": b.Start, "stop": b.Stop} {
					if err := call(t.Context(), id); err != nil {
						t.Errorf("%s: %v", what, err)
					}
				}
				b.List(t.Context())
			}
			if err := b.Remove(t.Context(), id); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// No process outlives its sandbox, whatever it does with signals and sessions.
func testStopEndsAll(t *testing.T, b *bench) {
	id, sh := b.start("tenacious")
	sh.Run("sh", "-c", "for i in 1 2 3; do setsid sh -c \"trap '' TERM HUP INT; while :; do sleep 0.05; done\" >/dev/null 2>&1 </dev/null & done")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := b.Stop(ctx, id); err != nil {
		if err := b.Stop(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	b.wantState(id, sandbox.Stopped)
	sh = b.wake(id)
	sh.Run("sh", "-c", "! cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep 'trap .. TERM HUP' | grep -v grep")
}

// All that is open to a sandbox that ends is told so, and nothing of it looks as
// if it had been done.
func testChannels(t *testing.T, b *bench) {
	for what, end := range map[string]func(sandbox.ID) error{
		"BACK-01": b.Crash,
		"Stop":    func(id sandbox.ID) error { return b.Stop(context.Background(), id) },
		"Remove":  func(id sandbox.ID) error { return b.Remove(context.Background(), id) },
	} {
		id, sh := b.start("ends")
		ends := make(chan error, 4)
		for _, terminal := range []*guest.Terminal{nil, terminal80()} {
			p, err := sh.Start(guest.Command{Text: []byte("trap '' TERM HUP; sleep 1000"), Terminal: terminal}, false)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			go func() {
				exit, err := p.Wait(context.Background(), io.Discard, io.Discard)
				if err == nil && exit == (guest.Exit{}) {
					ends <- errors.New("a command looks like a success")
					return
				}
				ends <- nil
			}()
		}
		upload, err := sh.SFTP("", false)
		if err != nil {
			t.Fatal(err)
		}
		defer upload.Close()
		l, err := sh.Listen(t.Context(), "", guest.Address{Host: "127.0.0.1"})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		forward, err := sh.Dial(t.Context(), guest.Address{Host: "127.0.0.1", Port: l.Address.Port})
		if err != nil {
			t.Fatal(err)
		}
		defer forward.Close()
		for _, stream := range []guest.Stream{upload, forward} {
			go func() {
				io.Copy(io.Discard, stream)
				ends <- nil
			}()
		}
		if err := end(id); err != nil {
			t.Fatal(err)
		}
		for range cap(ends) {
			select {
			case err := <-ends:
				if err != nil {
					t.Errorf("%s: %v", what, err)
				}
			case <-time.After(patience):
				t.Fatalf("%s: something goes on", what)
			}
		}
		select {
		case <-sh.Done():
		case <-time.After(patience):
			t.Errorf("%s: the connection goes on", what)
		}
	}
}

func testList(t *testing.T, b *bench) {
	if list, err := b.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("a new host lists %v, %v", list, err)
	}
	one, two := b.create("one"), b.create("two")
	list, err := b.List(t.Context())
	if err != nil || len(list) != 2 {
		t.Fatalf("listed are %v, %v", list, err)
	}
	for _, s := range list {
		if s.ID != one && s.ID != two || s.State != sandbox.Stopped {
			t.Errorf("listed is %+v", s)
		}
	}
}

// Calls for a sandbox that was removed, by this gateway or one before.
func testGone(t *testing.T, b *bench) {
	id, _ := b.start("gone")
	if err := b.Remove(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := b.Start(t.Context(), id); !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("Start: %v", err)
		}
		if err := b.Stop(t.Context(), id); !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("Stop: %v", err)
		}
		if err := b.Remove(t.Context(), id); err != nil {
			t.Errorf("Remove: %v", err)
		}
		b.reopen()
	}
}
