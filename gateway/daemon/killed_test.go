package daemon_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"sandgate/gateway/gatetest"
)

func TestMain(m *testing.M) { os.Exit(gatetest.Main(m)) }

// TestKilled kills the gateway with SIGKILL at random moments, in the middle of
// logins, of sandboxes that are made and removed, of secrets that are set and of
// time that is charged. Each time the next gateway opens the database; in the end
// nothing that was confirmed is lost, nothing is there twice, no more was counted
// than was done, and the sandbox that ran all the time is charged for that time,
// once. It is 200 times, or as many as fit into a minute and a half;
// SANDGATE_TEST_KILLS sets how many, however long that takes.
func TestKilled(t *testing.T) {
	times, until := 200, time.Now().Add(90*time.Second)
	if n, err := strconv.Atoi(os.Getenv("SANDGATE_TEST_KILLS")); err == nil {
		times, until = n, time.Now().Add(24*time.Hour)
	}
	g, err := gatetest.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Start(); err != nil {
		t.Fatal(err)
	}
	onDisk := func() []string {
		found, _ := filepath.Glob(filepath.Join(g.State, "sandboxes", "*"))
		return found
	}
	t.Cleanup(func() {
		before := len(onDisk()) // web, at least
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
		if after := onDisk(); before == 0 || len(after) > 0 {
			t.Errorf("%d sandboxes were on the disk; orphans: %q", before, after)
		}
	})
	before := time.Now()
	busy := &busyUser{t: t, g: g, sandboxes: make(map[string]state)}
	if _, err := busy.do("web", "true", ""); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	killed := 0
	for ; killed < times && time.Now().Before(until); killed++ {
		var wg sync.WaitGroup
		stop := make(chan struct{})
		for i, work := range []func(int){busy.login, busy.makeAndRemove, busy.setSecret} {
			wg.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					default:
						work(killed*1000 + n*3 + i)
					}
				}
			})
		}
		time.Sleep(rand.N(300 * time.Millisecond))
		g.Signal(syscall.SIGKILL)
		close(stop)
		wg.Wait()
		if err := g.Start(); err != nil {
			t.Fatalf("after %d kills: %v", killed+1, err)
		}
	}
	t.Logf("killed %d times, %d commands were run", killed, busy.ran)
	busy.check()

	// The audit that was written is whole.
	if out, err := busy.do("gate", "audit verify", ""); err != nil {
		t.Errorf("audit verify: %v: %s", err, out)
	}
	// Up to the last beat, all the time is charged, and no more than there was.
	least := time.Since(began).Seconds() - 10
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		u := busy.usage()
		most := time.Since(before).Seconds()
		if u.Seconds > most || u.Sessions > busy.tried || u.Jobs > busy.tried {
			t.Errorf("%.1f s, %d sessions and %d jobs were charged for %.1f s and %d commands", u.Seconds, u.Sessions, u.Jobs, most, busy.tried)
		}
		if u.Seconds >= least {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%.1f s were charged of %.1f s", u.Seconds, least)
		}
	}
}

// state is what is known of a sandbox.
type state int

const (
	unknown state = iota // the gateway was killed before it had answered
	made
	removed
)

// A busyUser works while the gateway is killed, and remembers what was confirmed.
type busyUser struct {
	t *testing.T
	g *gatetest.Gateway

	mu        sync.Mutex
	tried     int // commands in web
	ran       int // of which that ended well
	sandboxes map[string]state
	confirmed string          // the value of the secret that was last confirmed
	possible  map[string]bool // values that came later and may or may not be in force
}

// do runs a command on a connection of its own, with something on its stdin. An error
// that is no *ssh.ExitError says that the gateway was gone before it had answered.
func (b *busyUser) do(login, command, stdin string) (string, error) {
	if login == "web" {
		b.mu.Lock()
		b.tried++
		b.mu.Unlock()
	}
	key, err := os.ReadFile(b.g.Key)
	if err != nil {
		return "", err
	}
	signer, err := ssh.ParsePrivateKey(key)
	if err != nil {
		return "", err
	}
	c, err := ssh.Dial("tcp", "127.0.0.1:"+strconv.Itoa(b.g.Port), &ssh.ClientConfig{
		User: login, Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
	})
	if err != nil {
		return "", err
	}
	defer c.Close()
	session, err := c.NewSession()
	if err != nil {
		return "", err
	}
	defer session.Close()
	session.Stdin = strings.NewReader(stdin)
	out, err := session.Output(command)
	return string(out), err
}

func (b *busyUser) login(int) {
	if _, err := b.do("web", "true", ""); err == nil {
		b.mu.Lock()
		b.ran++
		b.mu.Unlock()
	}
}

// note records what an answer says of a sandbox. One that is no answer, as the
// gateway was gone, says nothing.
func (b *busyUser) note(name string, s state, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, answered := errors.AsType[*ssh.ExitError](err)
	switch {
	case err == nil:
		b.sandboxes[name] = s
	case answered:
		b.t.Errorf("%s: %v", name, err)
	default:
		b.sandboxes[name] = unknown
	}
}

// makeAndRemove leaves few sandboxes: the next gateway looks at all that there are.
func (b *busyUser) makeAndRemove(n int) {
	name := fmt.Sprintf("s%d", n)
	_, err := b.do("gate", "new "+name, "")
	b.note(name, made, err)
	if err != nil || n%7 == 1 {
		return
	}
	if n%6 == 0 {
		b.do(name, "true", "") // so that there is something to remove
	}
	_, err = b.do("gate", "rm --force "+name, "")
	b.note(name, removed, err)
}

// A charge is what was counted of a sandbox.
type charge struct {
	Sandbox        string
	Seconds        float64 `json:"sandbox_seconds"`
	Sessions, Jobs int
}

// usage returns what was counted of web.
func (b *busyUser) usage() charge {
	out, err := b.do("gate", "usage --json", "")
	if err != nil {
		b.t.Fatal(err)
	}
	for line := range strings.Lines(out) {
		var c charge
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			b.t.Fatal(err)
		}
		if c.Sandbox == "web" {
			return c
		}
	}
	return charge{}
}

func (b *busyUser) setSecret(n int) {
	value := fmt.Sprintf("value-%d", n)
	_, err := b.do("gate", "secret set TOKEN --sandbox web", value)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		b.confirmed, b.possible = value, nil
		return
	}
	if b.possible == nil {
		b.possible = make(map[string]bool)
	}
	b.possible[value] = true
}

// check compares what was confirmed with what there is.
func (b *busyUser) check() {
	out, err := b.do("gate", "ls --json", "")
	if err != nil {
		b.t.Fatal(err)
	}
	there := make(map[string]int)
	for line := range strings.Lines(out) {
		var v struct{ Name string }
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			b.t.Fatal(err)
		}
		there[v.Name]++
	}
	confirmed := 0
	for name, s := range b.sandboxes {
		switch n := there[name]; {
		case n > 1:
			b.t.Errorf("%s is there %d times", name, n)
		case s == made && n == 0:
			b.t.Errorf("%s is lost", name)
		case s == removed && n == 1:
			b.t.Errorf("%s is back", name)
		case s != unknown:
			confirmed++
		}
	}
	b.t.Logf("%d sandboxes were confirmed, of %d", confirmed, len(b.sandboxes))
	out, err = b.do("web", "printenv TOKEN", "")
	if value := strings.TrimSpace(out); err != nil || value != b.confirmed && !b.possible[value] {
		b.t.Errorf("the secret is %q, %v; it was %q", value, err, b.confirmed)
	}
}
