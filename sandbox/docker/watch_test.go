package docker_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"sandgate/sandbox"
	"sandgate/sandbox/docker"
	"sandgate/sandbox/drivertest"
)

// Of a sandbox that ends by itself nothing goes on running, whether somebody has
// followed the engine's events at the time or comes later.
func TestHelpersEnd(t *testing.T) {
	e := theEngine(t)
	for name, followed := range map[string]bool{"Followed": true, "Missed": false} {
		t.Run(name, func(t *testing.T) {
			d := open(t, docker.Config{Host: e.host})
			id, _ := drivertest.Start(t, d, sandbox.Spec{Image: testImage, Network: sandbox.NetworkFull})
			running := func() []string {
				return strings.Fields(e.docker(t, "ps", "--filter", "name="+string(id), "--format", "{{.Names}}"))
			}
			if names := running(); len(names) != 3 {
				t.Fatalf("what runs for the sandbox: %q", names)
			}
			found, once := make(chan struct{}), sync.Once{}
			ctx, cancel := context.WithCancel(t.Context())
			var watching sync.WaitGroup
			defer watching.Wait()
			defer cancel()
			watch := func() {
				watching.Go(func() {
					d.Watch(ctx, func(ev sandbox.Event) {
						if ev.Kind == sandbox.EngineFound {
							once.Do(func() { close(found) })
						}
					})
				})
			}
			if followed {
				watch()
				<-found
			}
			box, err := e.container(id)
			if err != nil {
				t.Fatal(err)
			}
			e.docker(t, "kill", box)
			if !followed {
				watch()
			}
			for end := time.Now().Add(patience); len(running()) > 0; time.Sleep(50 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("still running: %q", running())
				}
			}
			if err := d.Start(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			drivertest.Connect(t, d, id).Want("nameserver 192.0.0.1", "grep", "^nameserver", "/etc/resolv.conf")
		})
	}
}

// A network whose container somebody has removed is said to be gone. The sandbox is
// not, and a fork of it has its disk.
func TestHelperRemoved(t *testing.T) {
	e := theEngine(t)
	d := open(t, docker.Config{Host: e.host})
	id, sh := drivertest.Start(t, d, sandbox.Spec{Image: testImage, Network: sandbox.NetworkFull})
	sh.Run("sh", "-c", "echo kept >/root/file")
	sh.Close()
	if err := d.Stop(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	holder := e.docker(t, "ps", "--all", "--filter", "name="+string(id)+"-cable", "--format", "{{.Names}}")
	e.docker(t, "rm", "--force", holder)
	for range 2 {
		err := d.Start(t.Context(), id)
		if err == nil || errors.Is(err, sandbox.ErrNotFound) || !strings.Contains(err.Error(), "removed the container "+holder) {
			t.Fatalf("start: %v", err)
		}
	}
	disk := sandbox.NewID()
	if _, err := d.Snapshot(t.Context(), id, disk); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.DropSnapshot(context.WithoutCancel(t.Context()), disk) })
	_, copied := drivertest.Start(t, d, sandbox.Spec{Image: testImage, From: disk, Network: sandbox.NetworkFull})
	copied.Want("kept", "cat", "/root/file")
}
