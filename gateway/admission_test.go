package gateway

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"
)

// A closeable is a connection that remembers whether it was closed.
type closeable struct {
	net.Conn
	closed atomic.Bool
}

func (c *closeable) Close() error { c.closed.Store(true); return nil }

func from(address string) net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(address), 1234))
}

// enter lets somebody in who has to find a place at once.
func enter(t *testing.T, d *admission, address string) (*arrival, *closeable) {
	t.Helper()
	c := new(closeable)
	a, err := d.enter(c, from(address))
	if err != nil {
		t.Fatalf("from %s: %v", address, err)
	}
	return a, c
}

// Who gets nowhere makes room for who comes, and nobody else does.
func TestAdmissionEvicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newAdmission(AdmissionConfig{Places: 6, PlacesEach: 3})
		known, knownConn := enter(t, d, "10.0.0.1")
		d.reach(known, stageKnown)
		offered, offeredConn := enter(t, d, "10.0.0.1")
		d.reach(offered, stageOffered)
		_, silent := enter(t, d, "10.0.0.1")
		_, other := enter(t, d, "10.0.0.2")

		began := time.Now()
		second, _ := enter(t, d, "10.0.0.1")
		d.reach(second, stageKnown)
		if waited := time.Since(began); waited != patienceSilent || !silent.closed.Load() {
			t.Errorf("waited %v, the silent one gone: %t", waited, silent.closed.Load())
		}
		enter(t, d, "10.0.0.1") // none is silent: the one that offered has had its time
		if !offeredConn.closed.Load() || knownConn.closed.Load() || other.closed.Load() {
			t.Errorf("offered %t, known %t, another address %t", offeredConn.closed.Load(), knownConn.closed.Load(), other.closed.Load())
		}

		// In all, whatever the address.
		enter(t, d, "10.0.0.3")
		enter(t, d, "10.0.0.4")
		time.Sleep(time.Minute)
		enter(t, d, "10.0.0.5")
		if !other.closed.Load() || knownConn.closed.Load() {
			t.Errorf("the oldest silent one gone: %t; the known one: %t", other.closed.Load(), knownConn.closed.Load())
		}
		if len(d.inside) != 6 {
			t.Errorf("%d inside", len(d.inside))
		}
		// Those that have shown a user's key, which anybody can, have the longest time.
		d = newAdmission(AdmissionConfig{Places: 2})
		for range 2 {
			a, _ := enter(t, d, "10.0.0.1")
			d.reach(a, stageKnown)
		}
		began = time.Now()
		enter(t, d, "10.0.0.2")
		if waited := time.Since(began); waited != patienceKnown {
			t.Errorf("waited %v for a place", waited)
		}
	})
}

// Of those that wait the newest is first, and a place that is given back is taken.
func TestAdmissionQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newAdmission(AdmissionConfig{Places: 1})
		first, _ := enter(t, d, "10.0.0.1")
		d.reach(first, stageKnown)
		var order []int
		var mu sync.Mutex
		results := make(chan error, maxWaiting+1)
		for i := range maxWaiting + 1 { // one too many: that which waited longest is sent away
			go func() {
				a, err := d.enter(new(closeable), from(fmt.Sprintf("10.0.%d.%d", 1+i/200, i%200)))
				if err == nil {
					mu.Lock()
					order = append(order, i)
					mu.Unlock()
					d.leave(a)
				}
				results <- err
			}()
			synctest.Wait()
		}
		if err := <-results; !errors.Is(err, errCrowded) {
			t.Errorf("one too many: %v", err)
		}
		d.leave(first)
		synctest.Wait()
		if len(order) < 2 || order[0] != maxWaiting || order[1] != maxWaiting-1 {
			t.Errorf("the order begins with %v", order[:min(2, len(order))])
		}
		time.Sleep(maxWait)
		synctest.Wait()
		if len(d.waiting) != 0 {
			t.Errorf("%d still wait", len(d.waiting))
		}
	})
}

// An admission that has ended sends everybody away at once.
func TestAdmissionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newAdmission(AdmissionConfig{Places: 1})
		a, _ := enter(t, d, "10.0.0.1")
		d.reach(a, stageKnown)
		waited := make(chan error)
		go func() {
			_, err := d.enter(new(closeable), from("10.0.0.2"))
			waited <- err
		}()
		synctest.Wait()
		d.end()
		if err := <-waited; !errors.Is(err, errLeaving) {
			t.Errorf("the one that waited: %v", err)
		}
		if _, err := d.enter(new(closeable), from("10.0.0.2")); !errors.Is(err, errLeaving) {
			t.Errorf("a late one: %v", err)
		}
	})
}

// Failures add up, are remembered for a time that grows, and are forgiven.
func TestAdmissionPenalties(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newAdmission(AdmissionConfig{})
		fail := func(address string, why error, times int) {
			for range times {
				a, _ := enter(t, d, address)
				d.part(a, why)
			}
		}
		shut := func(address string) bool {
			a, err := d.enter(new(closeable), from(address))
			if err == nil {
				d.leave(a)
			}
			return errors.Is(err, errPenalised)
		}
		fail("10.0.0.1", errNoKey, 4)
		if !shut("10.0.0.1") || shut("10.0.0.2") {
			t.Error("four failures do not shut out that address alone")
		}
		time.Sleep(5*time.Second + 1)
		if shut("10.0.0.1") {
			t.Error("shut out for longer than it has earned")
		}
		fail("10.0.0.1", errNoKey, 1)
		if !shut("10.0.0.1") {
			t.Error("forgotten at once")
		}
		fail("10.0.0.3", errNothing, 10)
		fail("10.0.0.4", errLoginGrace, 1)
		fail("10.0.0.5", errNoSSH, 2)
		if shut("10.0.0.3") || !shut("10.0.0.4") || !shut("10.0.0.5") {
			t.Error("the kinds of failure weigh otherwise")
		}
		// A whole network of IPv6 is one.
		fail("2001:db8::1", errLoginGrace, 1)
		if !shut("2001:db8::ffff:1") || shut("2001:db8:1::1") {
			t.Error("not by /64")
		}
		// The host itself is exempt.
		fail("127.0.0.1", errNoKey, 100)
		fail("::1", errNoKey, 100)
		// A login ends it, and nothing lasts for more than ten minutes.
		fail("10.0.0.6", errNoKey, 3)
		a, _ := enter(t, d, "10.0.0.6")
		d.admit(a)
		fail("10.0.0.6", errNoKey, 3)
		d.penalise(d.source(from("10.0.0.7")), time.Hour)
		time.Sleep(10*time.Minute - penaltyEnforced)
		if shut("10.0.0.7") {
			t.Error("more than ten minutes")
		}
		// And what is remembered is bounded.
		for i := range maxPenalties + 100 {
			d.penalise(d.source(from(fmt.Sprintf("10.%d.%d.1", 1+i/200, i%200))), time.Minute)
		}
		if len(d.penalties) > maxPenalties {
			t.Errorf("%d addresses are remembered", len(d.penalties))
		}
	})
}

// Clients that stand around, by the thousand and in each way there is, leave others
// served and nothing behind.
func TestAUTH04ConnectionsThatNeverAuthenticate(t *testing.T) {
	s := newStage(t, func(c *Config) { c.Admission.wait = 2 * time.Second })
	s.must(s.alice, "version", nil)
	before := runtime.NumGoroutine()
	var heap runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&heap)
	heapBefore := heap.HeapAlloc

	stop := make(chan struct{})
	var idle sync.WaitGroup
	var conns []net.Conn
	dial := func() net.Conn {
		c, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		return c
	}
	for range 500 { // silent
		dial()
	}
	for range 100 { // a byte at a time
		c := dial()
		idle.Go(func() {
			for _, b := range []byte("SSH-2.0-slow" + strings.Repeat("o", 200)) {
				select {
				case <-stop:
					return
				case <-time.After(100 * time.Millisecond):
				}
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
			}
		})
	}
	for range 100 { // key exchange, and then nothing
		c := dial()
		idle.Go(func() {
			conn, _, _, err := ssh.NewClientConn(c, "", &ssh.ClientConfig{
				User: "web", HostKeyCallback: ssh.InsecureIgnoreHostKey(),
				Auth: []ssh.AuthMethod{ssh.PublicKeysCallback(func() ([]ssh.Signer, error) {
					<-stop
					return nil, io.EOF
				})},
			})
			if err == nil {
				conn.Close()
			}
		})
	}
	for range 300 { // not SSH at all
		io.WriteString(dial(), "GET / HTTP/1.1\r\n\r\n")
	}
	// While they come, a login may be too slow to keep its place. Who tries again gets in.
	for began := time.Now(); ; {
		c, err := s.dial("gate", ssh.PublicKeys(s.alice))
		if err == nil {
			c.Close()
			break
		}
		if time.Since(began) > hang {
			t.Fatalf("nobody can log in while they come: %v", err)
		}
	}
	// Once they are there, nobody has to: they have had their time.
	waitFor(t, "the end of the queue", func() bool {
		s.gate.admission.mu.Lock()
		defer s.gate.admission.mu.Unlock()
		for a := range s.gate.admission.inside {
			if time.Since(a.since) < patienceKnown && a.stage == stageKnown || time.Since(a.since) < patienceUnknown {
				return false
			}
		}
		return len(s.gate.admission.waiting) == 0
	})
	for range 5 {
		s.login("gate", s.alice).Close()
	}
	var failed atomic.Int32
	var logins sync.WaitGroup
	for range 50 {
		logins.Go(func() {
			c, err := s.dial("gate", ssh.PublicKeys(s.alice))
			if err != nil {
				failed.Add(1)
				return
			}
			c.Close()
		})
	}
	logins.Wait()
	if n := failed.Load(); n > 0 {
		t.Errorf("%d of 50 logins at once failed", n)
	}
	waitFor(t, "less than 64 MiB for a thousand idle clients, theirs included", func() bool {
		runtime.GC()
		runtime.ReadMemStats(&heap)
		return int64(heap.HeapAlloc)-int64(heapBefore) < 64<<20
	})
	close(stop)
	for _, c := range conns {
		c.Close()
	}
	idle.Wait()
	waitFor(t, "the goroutines of before", func() bool { return runtime.NumGoroutine() <= before+5 })
	waitFor(t, "the places of all", func() bool {
		s.gate.admission.mu.Lock()
		defer s.gate.admission.mu.Unlock()
		return len(s.gate.admission.inside) == 0
	})
}

// From an address that is not exempt there are ten at once, and failures shut it
// out with a word.
func TestAddressIsShutOut(t *testing.T) {
	s := newStage(t, func(c *Config) { c.Admission.Exempt = []netip.Prefix{} })
	stranger := newSigner(t)
	for range 4 {
		if _, err := s.dial("web", ssh.PublicKeys(stranger)); err == nil {
			t.Fatal("let in")
		}
	}
	waitFor(t, "being shut out", func() bool {
		c, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		said := make([]byte, 100)
		n, _ := c.Read(said)
		return strings.HasPrefix(string(said[:n]), "Not allowed at this time")
	})
	if !strings.Contains(s.log.String(), ssh.FingerprintSHA256(stranger.PublicKey())) {
		t.Error("the log does not name the key that was tried")
	}
}

// A client that does not answer any more is let go.
func TestKeepAlive(t *testing.T) {
	s := newStage(t, func(c *Config) { c.KeepAlive = 100 * time.Millisecond })
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	deaf := &deafConn{Conn: conn}
	c, channels, requests, err := ssh.NewClientConn(deaf, "", &ssh.ClientConfig{
		User: "gate", Auth: []ssh.AuthMethod{ssh.PublicKeys(s.alice)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
	})
	if err != nil {
		t.Fatal(err)
	}
	client := ssh.NewClient(c, channels, requests)
	defer client.Close()
	s.run(client, "version")
	time.Sleep(time.Second)
	if n := s.gate.live.count(t, "alice"); n != 1 {
		t.Fatalf("a client that answers: %d connections", n)
	}
	deaf.deaf.Store(true)
	waitFor(t, "the end of a client that does not answer", func() bool { return s.gate.live.count(t, "alice") == 0 })
}

// A deafConn stops reading.
type deafConn struct {
	net.Conn
	deaf atomic.Bool
}

func (c *deafConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	for err == nil && c.deaf.Load() {
		if n, err = c.Conn.Read(p); err != nil {
			return 0, err
		}
	}
	return n, err
}

// OpenSSH's clients are told of the host keys, and get proof of them.
func TestHostKeys(t *testing.T) {
	s := newStage(t, nil)
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	c, channels, requests, err := ssh.NewClientConn(conn, "", &ssh.ClientConfig{
		User: "gate", Auth: []ssh.AuthMethod{ssh.PublicKeys(s.alice)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
		ClientVersion: "SSH-2.0-OpenSSH_9.9",
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	go func() {
		for ch := range channels {
			ch.Reject(ssh.Prohibited, "")
		}
	}()
	if ok, _, err := c.SendRequest("no-more-sessions@openssh.com", true, nil); !ok || err != nil {
		t.Errorf("no-more-sessions: %t, %v", ok, err)
	}
	told := <-requests
	public := s.gate.cfg.HostKeys[0].PublicKey()
	want := ssh.Marshal(struct{ Key []byte }{public.Marshal()})
	if told.Type != "hostkeys-00@openssh.com" || string(told.Payload) != string(want) {
		t.Fatalf("told %s, %x", told.Type, told.Payload)
	}
	go ssh.DiscardRequests(requests)
	ok, answer, err := c.SendRequest("hostkeys-prove-00@openssh.com", true, want)
	var m struct{ Signature []byte }
	if !ok || err != nil || ssh.Unmarshal(answer, &m) != nil {
		t.Fatalf("proof: %t, %v", ok, err)
	}
	var signature ssh.Signature
	if err := ssh.Unmarshal(m.Signature, &signature); err != nil {
		t.Fatal(err)
	}
	signed := ssh.Marshal(struct {
		Name      string
		SessionID []byte
		Key       []byte
	}{"hostkeys-prove-00@openssh.com", c.SessionID(), public.Marshal()})
	if err := public.Verify(signed, &signature); err != nil {
		t.Error(err)
	}
	other := ssh.Marshal(struct{ Key []byte }{newSigner(t).PublicKey().Marshal()})
	for _, payload := range [][]byte{other, []byte("x"), append(want, 1)} {
		if ok, _, _ := c.SendRequest("hostkeys-prove-00@openssh.com", true, payload); ok {
			t.Errorf("proof of %x", payload)
		}
	}
}

// A connection has so many channels at once, and a closed one makes room.
func TestChannelsAreBounded(t *testing.T) {
	s := newStage(t, nil)
	c := s.login("gate", s.bob)
	var open []ssh.Channel
	for range maxChannels {
		ch, requests, err := c.OpenChannel("session", nil)
		if err != nil {
			t.Fatalf("channel %d: %v", len(open), err)
		}
		go ssh.DiscardRequests(requests)
		open = append(open, ch)
	}
	if _, _, err := c.OpenChannel("session", nil); err == nil || !strings.Contains(err.Error(), "too many channels") {
		t.Errorf("one more: %v", err)
	}
	if out, _, _ := s.run(s.login("gate", s.bob), "version"); out == "" {
		t.Error("another connection of the same user is not served")
	}
	open[7].Close()
	waitFor(t, "room for another channel", func() bool {
		ch, requests, err := c.OpenChannel("session", nil)
		if err != nil {
			return false
		}
		go ssh.DiscardRequests(requests)
		return ch.Close() == nil
	})
}

// Who offers a user's key and never signs is a failure like another, and keeps no
// place for long.
func TestKeysThatNeverSign(t *testing.T) {
	s := newStage(t, func(c *Config) { c.Admission.Exempt = []netip.Prefix{} })
	for range 4 {
		if _, err := s.dial("web", ssh.PublicKeys(unsigned{s.alice})); err == nil {
			t.Fatal("let in")
		}
	}
	waitFor(t, "being shut out", func() bool {
		_, err := s.dial("web", ssh.PublicKeys(s.alice))
		return err != nil
	})
}

// unsigned is a signer that only shows its key.
type unsigned struct{ ssh.Signer }

func (unsigned) Sign(io.Reader, []byte) (*ssh.Signature, error) { return nil, io.EOF }

// A key that is revoked between being shown and signing logs nobody in, and the
// connection leaves nothing behind.
func TestRevokedWhileLoggingIn(t *testing.T) {
	s := newStage(t, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	go ssh.NewClientConn(client, "", &ssh.ClientConfig{HostKeyCallback: ssh.InsecureIgnoreHostKey()})
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if !s.gate.arrivals.add(conn) {
		t.Fatal("the gateway has ended")
	}
	front, o, err := s.gate.receive(conn)
	if err != nil {
		t.Fatal(err)
	}
	cfg := s.gate.serverConfig(contextWith{frontKey: front, offerKey: o})
	perms, err := cfg.PublicKeyCallback(connMeta{front}, s.bob.PublicKey())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.gate.db.Revoke(t.Context(), ssh.FingerprintSHA256(s.bob.PublicKey())); err != nil {
		t.Fatal(err)
	}
	if _, err := cfg.VerifiedPublicKeyCallback(connMeta{front}, s.bob.PublicKey(), perms, ssh.KeyAlgoED25519); err == nil {
		t.Error("logged in")
	}
	front.Close()
	s.gate.admission.mu.Lock()
	defer s.gate.admission.mu.Unlock()
	if n := len(s.gate.admission.inside); n != 0 || s.gate.live.count(t, "bob") != 0 {
		t.Errorf("%d places and %d logins are left", n, s.gate.live.count(t, "bob"))
	}
}
