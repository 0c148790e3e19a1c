//go:build linux

package guest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
)

func TestDial(t *testing.T) {
	c := newWorld(t).connect()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				n, _ := io.Copy(io.Discard, conn)
				fmt.Fprintf(conn, "%d", n)
			}()
		}
	}()
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	for range 20 { // more than there are spare connections
		s, err := c.Dial(t.Context(), Address{Host: "127.0.0.1", Port: port})
		if err != nil {
			t.Fatal(err)
		}
		s.Write(make([]byte, 5_000_000))
		s.CloseWrite()
		got, err := io.ReadAll(s)
		if string(got) != "5000000" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
		s.Close()
	}
	l.Close()
	_, err = c.Dial(t.Context(), Address{Host: "127.0.0.1", Port: port})
	if refused, ok := errors.AsType[*RefusedError](err); !ok || refused.Reason != "Connection refused" {
		t.Errorf("got %v", err)
	}
	_, err = c.Dial(t.Context(), Address{Path: []byte("/no/such")})
	if refused, ok := errors.AsType[*RefusedError](err); !ok || refused.Reason != "No such file or directory" {
		t.Errorf("got %v", err)
	}
}

func TestListen(t *testing.T) {
	c := newWorld(t).connect()
	dir := t.TempDir()
	for _, a := range []Address{
		{Host: "127.0.0.1"},
		{Path: []byte(filepath.Join(dir, "sock"))},
		{Agent: true},
	} {
		l, err := c.Listen(t.Context(), "", a)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for {
				in, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					io.Copy(in.Stream, in.Stream)
					in.Stream.CloseWrite()
					in.Stream.Close()
				}()
			}
		}()
		network, address := l.Address.network()
		if network == "unix" {
			if fi, err := os.Stat(address); err != nil || fi.Mode().Perm() != 0o600 {
				t.Errorf("%v, %v", fi.Mode(), err)
			}
		}
		conn, err := net.Dial(network, address)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			conn.Write(bytes.Repeat([]byte("x"), 2_000_000))
			conn.(halfCloser).CloseWrite()
		}()
		got, err := io.ReadAll(conn)
		if len(got) != 2_000_000 || err != nil {
			t.Errorf("%v: got %d bytes, %v", a, len(got), err)
		}
		conn.Close()
		l.Close()
		waitFor(t, "its end", func() bool {
			conn, err := net.Dial(network, address)
			if err == nil {
				conn.Close()
			}
			return err != nil
		})
		if a.Agent {
			waitFor(t, "its folder's removal", func() bool { return !exists(filepath.Dir(address)) })
		}
	}
	if _, err := c.Listen(t.Context(), "", Address{Path: []byte("/nosuchdir/sock")}); err == nil {
		t.Error("listened in a folder that is not there")
	}
}
