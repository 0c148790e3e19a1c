package drivertest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"sandgate/sandbox/guest"
)

// Connections into the sandbox and out of it. The server that is dialled is most
// often a listener of ours inside, so that both directions are tried at once.
var forwardCases = cases{
	"FWD-01/IPv4":      between(guest.Address{Host: "127.0.0.1"}),
	"FWD-01/Name":      between(guest.Address{Host: "localhost"}),
	"FWD-01/All":       check(forwardAll),
	"FWD-04/Unix":      check(forwardUnix),
	"FWD-04/Home":      check(forwardHome),
	"FWD-04/Mode":      check(forwardMode),
	"FWD-04/Again":     check(forwardAgain),
	"FWD-04/File":      check(forwardFile),
	"FWD-01/Refused":   check(forwardRefused),
	"FWD-01/Unknown":   check(forwardUnknown),
	"FWD-02/Request":   check(forwardRequest),
	"FWD-02/Answer":    check(forwardAnswer),
	"FWD-02/Bulk":      check(forwardBulk),
	"FWD-03/PortZero":  check(forwardPortZero),
	"FWD-03/Close":     check(forwardClose),
	"FWD-03/InUse":     check(forwardInUse),
	"Many":             check(forwardMany),
	"Peer":             check(forwardPeer),
	"Program":          check(forwardProgram),
	"ClientGone":       check(forwardClientGone),
	"FWD-03/ManyPorts": check(forwardManyPorts),
}

// inside listens in the sandbox, for the time of the case.
func (s *seat) inside(a guest.Address) *guest.Listening {
	s.Helper()
	l, err := s.client.Listen(s.Context(), "", a)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { l.Close() })
	return l
}

// pair dials a listener, and returns both ends.
func (s *seat) pair(l *guest.Listening, a guest.Address) (client, server guest.Stream) {
	s.Helper()
	type accepted struct {
		guest.Incoming
		error
	}
	got := make(chan accepted, 1)
	go func() {
		in, err := l.Accept()
		got <- accepted{in, err}
	}()
	client, err := s.client.Dial(s.Context(), a)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { client.Close() })
	select {
	case in := <-got:
		if in.error != nil {
			s.Fatal(in.error)
		}
		s.Cleanup(func() { in.Stream.Close() })
		return client, in.Stream
	case <-time.After(patience):
		s.Fatal("the connection did not arrive")
		return nil, nil
	}
}

// carries sends something each way, and its end.
func (s *seat) carries(client, server guest.Stream) {
	s.Helper()
	for _, way := range []struct{ from, to guest.Stream }{{client, server}, {server, client}} {
		go func() {
			way.from.Write([]byte(allBytes))
			way.from.CloseWrite()
		}()
		if got, err := io.ReadAll(way.to); string(got) != allBytes {
			s.Errorf("%q came through, %v", got, err)
		}
	}
}

// between is a testCase: a server and a client on an address.
type between guest.Address

func (b between) run(s *seat) {
	a := guest.Address(b)
	l := s.inside(a)
	a.Port = l.Address.Port
	s.carries(s.pair(l, a))
}

func forwardAll(s *seat) {
	l := s.inside(guest.Address{Host: "0.0.0.0"})
	s.carries(s.pair(l, guest.Address{Host: "127.0.0.1", Port: l.Address.Port}))
}

func forwardUnix(s *seat) {
	a := guest.Address{Path: []byte(s.folder() + "/s")}
	s.carries(s.pair(s.inside(a), a))
}

func forwardHome(s *seat) {
	l := s.inside(guest.Address{Path: []byte(".drivertest.sock")})
	s.carries(s.pair(l, guest.Address{Path: []byte(s.sh("printf %s $HOME/.drivertest.sock"))}))
}

func forwardMode(s *seat) {
	path := s.folder() + "/s"
	l, err := s.client.Listen(s.Context(), "4321", guest.Address{Path: []byte(path)})
	must(s, err)
	defer l.Close()
	s.want("600 4321\n", "stat -c '%a %u' "+path)
}

// The socket that a lost connection has left is replaced.
func forwardAgain(s *seat) {
	a := guest.Address{Path: []byte(s.folder() + "/s")}
	for range 3 {
		l := s.inside(a)
		s.carries(s.pair(l, a))
		l.Close()
	}
}

func forwardFile(s *seat) {
	s.sh("echo kept >" + s.folder() + "/s")
	if l, err := s.client.Listen(s.Context(), "", guest.Address{Path: []byte(s.folder() + "/s")}); err == nil {
		l.Close()
		s.Error("a file was replaced by a socket")
	}
	s.want("kept\n", "cat "+s.folder()+"/s")
}

func (s *seat) wantRefused(a guest.Address, reason string) {
	s.Helper()
	c, err := s.client.Dial(s.Context(), a)
	if err == nil {
		c.Close()
	}
	var refused *guest.RefusedError
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), reason) {
		s.Errorf("error %v, want %q", err, reason)
	}
}

func forwardRefused(s *seat) {
	s.wantRefused(guest.Address{Host: "127.0.0.1", Port: 1}, "refused")
	s.wantRefused(guest.Address{Path: []byte(s.folder() + "/none")}, "o such file")
}

func forwardUnknown(s *seat) {
	s.wantRefused(guest.Address{Host: "nosuch.invalid", Port: 1}, "not known")
}

// The end of the request is not the end of the answer.
func forwardRequest(s *seat) {
	l := s.inside(guest.Address{Host: "127.0.0.1"})
	client, server := s.pair(l, guest.Address{Host: "127.0.0.1", Port: l.Address.Port})
	go func() {
		n, _ := io.Copy(io.Discard, server)
		fmt.Fprint(server, n)
		server.CloseWrite()
	}()
	go func() {
		client.Write(make([]byte, 5_000_000))
		client.CloseWrite()
	}()
	if got, err := io.ReadAll(client); string(got) != "5000000" {
		s.Errorf("the answer is %q, %v", got, err)
	}
}

// Nor the other way round: a server that sends and closes at once.
func forwardAnswer(s *seat) {
	l := s.inside(guest.Address{Host: "127.0.0.1"})
	client, server := s.pair(l, guest.Address{Host: "127.0.0.1", Port: l.Address.Port})
	data := noise(5_000_000)
	go func() {
		server.Write(data)
		server.CloseWrite()
	}()
	if got, err := io.ReadAll(client); string(got) != string(data) {
		s.Errorf("%d bytes of %d came through, %v", len(got), len(data), err)
	}
	client.Write([]byte("late"))
	client.CloseWrite()
	if got, err := io.ReadAll(server); string(got) != "late" {
		s.Errorf("after that %q came back, %v", got, err)
	}
}

func forwardBulk(s *seat) {
	l := s.inside(guest.Address{Host: "127.0.0.1"})
	client, server := s.pair(l, guest.Address{Host: "127.0.0.1", Port: l.Address.Port})
	data := noise(4 << 20)
	var wg sync.WaitGroup
	for _, end := range []guest.Stream{client, server} {
		wg.Go(func() {
			end.Write(data)
			end.CloseWrite()
		})
		wg.Go(func() {
			if got, err := io.ReadAll(end); string(got) != string(data) {
				s.Errorf("%d bytes of %d came through, %v", len(got), len(data), err)
			}
		})
	}
	wg.Wait()
}

func forwardPortZero(s *seat) {
	one, two := s.inside(guest.Address{Host: "127.0.0.1"}), s.inside(guest.Address{Host: "127.0.0.1"})
	if one.Address.Port == two.Address.Port || one.Address.Port == 0 {
		s.Fatalf("the ports are %d and %d", one.Address.Port, two.Address.Port)
	}
	two.Close()
	s.carries(s.pair(one, guest.Address{Host: "127.0.0.1", Port: one.Address.Port}))
}

func forwardClose(s *seat) {
	l := s.inside(guest.Address{Host: "127.0.0.1"})
	a := guest.Address{Host: "127.0.0.1", Port: l.Address.Port}
	client, server := s.pair(l, a)
	l.Close()
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		s.Errorf("Accept after Close: %v", err)
	}
	s.carries(client, server) // what is open stays so
	eventually(s, "the port to be free", func() bool {
		again, err := s.client.Listen(s.Context(), "", a)
		if err == nil {
			again.Close()
		}
		return err == nil
	})
}

func forwardInUse(s *seat) {
	l := s.inside(guest.Address{Host: "127.0.0.1"})
	again, err := s.client.Listen(s.Context(), "", guest.Address{Host: "127.0.0.1", Port: l.Address.Port})
	if err == nil {
		again.Close()
		s.Fatal("two listen on one port")
	}
	if !strings.Contains(err.Error(), "in use") {
		s.Error(err)
	}
}

func forwardMany(s *seat) {
	l := s.inside(guest.Address{Host: "127.0.0.1"})
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				io.Copy(in.Stream, in.Stream)
				in.Stream.Close()
			}()
		}
	}()
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			c, err := s.client.Dial(s.Context(), guest.Address{Host: "127.0.0.1", Port: l.Address.Port})
			if err != nil {
				s.Error(err)
				return
			}
			defer c.Close()
			fmt.Fprint(c, i)
			c.CloseWrite()
			if got, err := io.ReadAll(c); string(got) != fmt.Sprint(i) {
				s.Errorf("%d came back as %q, %v", i, got, err)
			}
		})
	}
	wg.Wait()
}

func forwardPeer(s *seat) {
	l := s.inside(guest.Address{Host: "127.0.0.1"})
	c, err := s.client.Dial(s.Context(), guest.Address{Host: "127.0.0.1", Port: l.Address.Port})
	must(s, err)
	defer c.Close()
	in, err := l.Accept()
	must(s, err)
	defer in.Stream.Close()
	if in.PeerHost != "127.0.0.1" || in.PeerPort == 0 {
		s.Errorf("the peer is %q port %d", in.PeerHost, in.PeerPort)
	}
}

// A program inside finds the listener.
func forwardProgram(s *seat) {
	l := s.inside(guest.Address{Host: "127.0.0.1"})
	r := s.begin(guest.Command{Text: fmt.Appendf(nil, "%s connect 127.0.0.1:%d", s.bench.probe(), l.Address.Port)})
	in, err := l.Accept()
	must(s, err)
	fmt.Fprint(in.Stream, "welcome")
	in.Stream.CloseWrite()
	if got, err := io.ReadAll(in.Stream); string(got) != "hello" {
		s.Errorf("it said %q, %v", got, err)
	}
	r.ends(guest.Exit{})
	if out := r.out.String(); out != "welcome" {
		s.Errorf("it heard %q", out)
	}
}

// A dialler that goes away ends the connection at the server.
func forwardClientGone(s *seat) {
	l := s.inside(guest.Address{Host: "127.0.0.1"})
	client, server := s.pair(l, guest.Address{Host: "127.0.0.1", Port: l.Address.Port})
	client.Close()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		io.Copy(io.Discard, server)
	}()
	select {
	case <-ended:
	case <-time.After(patience):
		s.Error("the server was not told")
	}
}

func forwardManyPorts(s *seat) {
	for range 40 {
		s.inside(guest.Address{Host: "127.0.0.1"})
	}
	s.want("after\n", "echo after")
}
