package drivertest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sandgate/sandbox"
	"sandgate/sandbox/guest"
)

// What a sandbox may use. Those who exceed it harm nobody else.
var limitCases = cases{
	"Notes":       alone(limitNotes),
	"MemorySeen":  where{memory, alone(limitMemorySeen)},
	"Memory":      where{memory, onHost(limitMemory)},
	"MemoryRoot":  where{memory, alone(limitMemoryTmpfs)},
	"PIDs":        where{pids, alone(limitPIDs)},
	"PIDsOfUser":  alone(limitPIDsOfUser),
	"PIDsOfRoot":  where{pids, alone(limitPIDsOfRoot)},
	"Disk":        where{disk, alone(limitDisk)},
	"DiskRefused": where{noDisk, alone(limitDiskRefused)},
	"Descriptors": check(limitDescriptors),
	"Neighbours":  alone(limitNeighbours),
}

// Of each limit that does not hold here there is a note; of the others none.
func limitNotes(t *testing.T, b *bench) {
	limits := sandbox.Limits{CPUs: 1, Memory: 512 << 20, PIDs: 200}
	if b.Disk {
		limits.Disk = 1 << 30
	}
	id, _ := b.startLimited("notes", limits)
	notes := b.status(id).Notes
	for words, holds := range map[string]bool{"cpu processors": b.CPUs, "memory": b.Memory, "pids processes": b.PIDs, "disk": true} {
		said := false
		for _, note := range notes {
			for word := range strings.FieldsSeq(words) {
				said = said || strings.Contains(strings.ToLower(note), word) && strings.Contains(note, "not enforced")
			}
		}
		if said == holds {
			t.Errorf("the limit on %s holds: %v; the notes are %q", words, holds, notes)
		}
	}
}

// Where the disk cannot be limited no sandbox is made whose disk was to be.
func limitDiskRefused(t *testing.T, b *bench) {
	spec := b.spec(sandbox.NewID(), "disk")
	spec.Limits.Disk = 1 << 30
	b.ids = append(b.ids, spec.ID)
	err := b.Create(t.Context(), spec)
	if _, ok := errors.AsType[*sandbox.UnsupportedError](err); !ok || !strings.Contains(err.Error(), "--disk") {
		t.Errorf("got %v", err)
	}
	b.wantState(spec.ID, "")
}

func limitMemorySeen(t *testing.T, b *bench) {
	_, sh := b.startLimited("memory", sandbox.Limits{Memory: 256 << 20})
	sh.Run("sh", "-c", "head -c 50M /dev/zero | tail -c 50M >/dev/null")
}

// bomb runs what exceeds a limit, and returns how that ended: with an exit, or
// with the end of the sandbox.
func bomb(sh *Shell, text string) (guest.Exit, error) {
	var out lockedBuffer
	return execute(sh.Client, guest.Command{Text: []byte(text)}, nil, &out, &out)
}

// Too much memory ends the program or the sandbox, which can be started again.
func limitMemory(t *testing.T, b *bench) {
	id, sh := b.startLimited("memory", sandbox.Limits{Memory: 192 << 20, PIDs: 500})
	sh.Run("touch", "/root/kept")
	causes := causesOf(t, b, id)
	exit, err := bomb(sh, "tail /dev/zero")
	if err == nil && exit == (guest.Exit{}) {
		t.Error("a sandbox could use more memory than it may")
	}
	if err != nil { // it was not one program that was ended
		select {
		case cause := <-causes:
			if !strings.Contains(cause, "out of memory") {
				t.Errorf("the sandbox is said to have ended because %s", cause)
			}
		case <-time.After(patience):
			t.Error("nobody was told why the sandbox ended")
		}
	}
	sh = revive(t, b, id, sh)
	if !b.SavedDisk {
		sh.Run("test", "-e", "/root/kept")
	}
}

// causesOf returns why a sandbox ends, as the driver reports it.
func causesOf(t *testing.T, b *bench, id sandbox.ID) <-chan string {
	causes := make(chan string, 8)
	w, ok := b.Driver.(sandbox.Watcher)
	if !ok {
		t.Fatal("the driver reports no ends")
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		w.Watch(ctx, func(e sandbox.Event) {
			if e.ID == id && e.Kind == sandbox.Ended {
				causes <- e.Cause
			}
		})
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return causes
}

// Files in memory count, too.
func limitMemoryTmpfs(t *testing.T, b *bench) {
	id, sh := b.startLimited("memory", sandbox.Limits{Memory: 192 << 20, PIDs: 500})
	exit, err := bomb(sh, "head -c 1G /dev/zero >/dev/shm/x")
	if err == nil && exit == (guest.Exit{}) {
		t.Error("a sandbox could use more memory than it may")
	}
	revive(t, b, id, sh).Run("true")
}

// revive returns a shell of a sandbox that may have ended: sh if it has not.
func revive(t *testing.T, b *bench, id sandbox.ID, sh *Shell) *Shell {
	t.Helper()
	if _, _, err := sh.Try("true"); err == nil {
		return sh
	}
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		if err := b.Start(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		client, err := dial(b.Driver, id)
		if err == nil {
			sh := &Shell{client, t}
			b.shells = append(b.shells, sh)
			if _, _, err = sh.Try("true"); err == nil {
				return sh
			}
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// A fork bomb of root's is refused more processes, or ends the sandbox. Stopping
// ends it in any case.
func limitPIDs(t *testing.T, b *bench) {
	id, sh := b.startLimited("forks", sandbox.Limits{PIDs: 64, Memory: 512 << 20})
	p, err := sh.Start(guest.Command{Text: []byte(b.probe() + " forks")}, false)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	time.Sleep(2 * time.Second)
	if err := b.Stop(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	b.wake(id).Run("true")
}

// One of a user's is refused, and root can still do something about it.
func limitPIDsOfUser(t *testing.T, b *bench) {
	_, sh := b.startLimited("forks", sandbox.Limits{PIDs: 100})
	var out lockedBuffer
	cmd := guest.Command{User: "4321", Text: []byte(`i=0; while [ $i -lt 300 ]; do sleep 1000 >/dev/null 2>&1 & i=$((i+1)); done; exit 3`)}
	exit, err := execute(sh.Client, cmd, nil, &out, &out)
	if err != nil {
		t.Fatal(err)
	}
	if exit.Code == 3 && !strings.Contains(out.String(), "fork") {
		t.Errorf("300 processes were made where 100 are allowed: %+v %q", exit, out.String())
	}
	sh.Run("true")
	n, err := strconv.Atoi(sh.Run("sh", "-c", "grep -l '^Uid:.*4321' /proc/[0-9]*/status 2>/dev/null | wc -l"))
	if err != nil || n > 100 {
		t.Errorf("the user has %d processes, %v", n, err)
	}
}

// A full disk is an error, and room again when something is deleted.
func limitDisk(t *testing.T, b *bench) {
	const most = 64 << 20
	_, sh := b.startLimited("disk", sandbox.Limits{Disk: most})
	for _, dir := range []string{"/root", "/var/tmp"} {
		code, out, err := sh.Try("sh", "-c", fmt.Sprintf("%s fill %s/fill %d", b.probe(), dir, 4*most))
		if err != nil {
			t.Fatal(err)
		}
		if code != 1 || !strings.Contains(out, "no space left") && !strings.Contains(out, "quota") {
			t.Errorf("filling the disk of %d bytes: code %d, %q", most, code, out)
		}
		sh.Run("rm", dir+"/fill")
		sh.Run("sh", "-c", "head -c 1M /dev/zero >"+dir+"/again")
	}
}

// One of root's is refused too, and does not take the guest with it.
func limitPIDsOfRoot(t *testing.T, b *bench) {
	_, sh := b.startLimited("forks", sandbox.Limits{PIDs: 100})
	for range 3 {
		exit, err := bomb(sh, b.probe()+" spawn 300")
		if err != nil || exit == (guest.Exit{}) {
			t.Fatalf("300 processes where 100 are allowed: %+v, %v", exit, err)
		}
		eventually(t, "another command", func() bool { code, _, err := sh.Try("true"); return code == 0 && err == nil })
	}
}

func limitDescriptors(s *seat) {
	n, err := strconv.Atoi(strings.TrimSpace(s.sh("ulimit -n")))
	if err != nil || n < 1024 {
		s.Errorf("a command may open %d files, %v", n, err)
	}
}

// While one sandbox does its worst, another answers.
func limitNeighbours(t *testing.T, b *bench) {
	_, calm := b.start("calm")
	bombs := map[string]string{"descriptors": "exec 2>/dev/null; while :; do exec 9<>/dev/null; yes >/dev/null & sleep 0.3; kill $!; done"}
	if b.PIDs {
		bombs["forks"] = b.probe() + " forks"
	}
	if b.Memory {
		bombs["memory"] = "while :; do tail /dev/zero; done"
	}
	if b.Disk {
		bombs["disk"] = "while :; do dd if=/dev/zero of=/root/fill bs=1M 2>/dev/null; rm /root/fill; done"
	}
	limits := sandbox.Limits{CPUs: 1, Memory: 192 << 20, PIDs: 64}
	if b.Disk {
		limits.Disk = 64 << 20
	}
	for what, text := range bombs {
		id, sh := b.startLimited("bad", limits)
		p, err := sh.Start(guest.Command{Text: []byte(text)}, false)
		if err != nil {
			t.Fatal(err)
		}
		worst := time.Duration(0)
		for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); {
			began := time.Now()
			calm.Run("true")
			worst = max(worst, time.Since(began))
		}
		// A second on a host of its own; here it must only not hang.
		if worst > patience {
			t.Errorf("beside a bomb of %s a command took %v", what, worst)
		}
		t.Logf("beside a bomb of %s a command took at most %v", what, worst)
		p.Close()
		if err := b.Remove(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
}
