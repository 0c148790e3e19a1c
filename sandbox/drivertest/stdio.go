package drivertest

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"sandgate/sandbox/guest"
)

// The three streams of a command without a terminal.
var stdioCases = cases{
	"STDIN-01/Count":  does{text: "wc -l", stdin: "a\nb\nc\n", out: "3\n"},
	"STDIN-01/Empty":  does{text: "cat; echo eof", out: "eof\n"},
	"STDIN-01/GoesOn": does{text: "cat; sleep 0.2; exit 7", stdin: "x", out: "x", code: 7},
	"Apart":           does{text: `printf 'o\n'; printf 'e\n' >&2`, out: "o\n", err: "e\n"},
	"NoNewline":       does{text: "printf x", out: "x"},
	"EightBit":        does{text: "cat", stdin: allBytes, out: allBytes},
	"ErrorOnly":       does{text: "echo e >&2; exit 1", err: "e\n", code: 1},
	"Closed":          does{text: "exec >&- 2>&-; exit 5", code: 5},
	"ReadsPart":       does{text: "head -c 3", stdin: strings.Repeat("abc", 1000), out: "abc"},
	"STDIN-02":        check(stdioQuiet),
	"STDIN-03/Exit":   does{text: "exit 4", bulk: 8, code: 4},
	"STDIN-03/Late":   does{text: "exec <&-; sleep 0.2; echo late; exit 2", bulk: 8, out: "late\n", code: 2},
	"STDIN-03/Open":   check(stdioOpen),
	"RoundTrip":       check(stdioRoundTrip),
	"OUT-01":          check(stdioNothingLost),
	"OUT-03/Both":     check(stdioBoth),
	"OUT-03/Slow":     check(stdioSlow),
	"CONN-02/Stalled": check(stdioStalled),
	"DISC-02/Pipe":    check(stdioHangup),
	"DISC-02/Keep":    check(stdioSetsid),
	"DISC-02/EOF":     check(stdioEOF),
}

var allBytes = func() string {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return string(b)
}()

func megabytes(n int) string { return strings.Repeat("0123456789abcdef", n<<20/16) }

// noise returns bytes that nobody can guess or compress.
func noise(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{}).Read(b)
	return b
}

func sum(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

func stdioQuiet(s *seat) {
	s.feed("exec >&- 2>&-; wc -c >"+s.folder()+"/n", []byte(megabytes(4)))
	s.want("4194304\n", "cat "+s.folder()+"/n")
}

func stdioOpen(s *seat) { // nobody ends the input
	r := s.begin(guest.Command{Text: []byte("exit 4")})
	r.ends(guest.Exit{Code: 4})
}

func stdioRoundTrip(s *seat) {
	data := noise(4 << 20)
	if got := s.feed("cat", data); got != string(data) {
		s.Errorf("%d bytes came back changed, as %d", len(data), len(got))
	}
}

func stdioNothingLost(s *seat) {
	data := noise(300_000)
	s.feed("cat >"+s.folder()+"/f", data)
	for i := range 30 {
		if got := s.sh("cat " + s.folder() + "/f"); got != string(data) {
			s.Fatalf("run %d: %d bytes of %d", i, len(got), len(data))
		}
	}
}

func stdioBoth(s *seat) {
	got := s.do(guest.Command{Text: []byte("head -c 5000000 /dev/zero >&2 & head -c 5000000 /dev/zero; wait")}, nil)
	if len(got.stdout) != 5_000_000 || len(got.stderr) != 5_000_000 {
		s.Errorf("%d bytes and %d bytes", len(got.stdout), len(got.stderr))
	}
}

// A slow reader slows the program: what it has written is not far ahead of what
// was read.
func stdioSlow(s *seat) {
	const total, most = 64 << 20, 8 << 20
	file := s.folder() + "/written"
	p, err := s.client.Start(guest.Command{Text: []byte(
		`i=0; while [ $i -lt 64 ]; do head -c 1048576 /dev/zero; i=$((i+1)); echo $i >` + file + `; done`)}, false)
	if err != nil {
		s.Fatal(err)
	}
	defer p.Close()
	var read atomic.Int64
	enough, slow := make(chan struct{}), true
	w := writerFunc(func(b []byte) (int, error) {
		if slow {
			<-enough
			slow = false
		}
		read.Add(int64(len(b)))
		return len(b), nil
	})
	ended := make(chan error, 1)
	go func() {
		_, err := p.Wait(s.Context(), w, io.Discard)
		ended <- err
	}()
	time.Sleep(500 * time.Millisecond)
	if n := strings.Count(s.sh("seq $(cat "+file+" 2>/dev/null || echo 0)"), "\n"); n<<20 > most {
		s.Errorf("the program wrote %d MiB that nobody had read", n)
	}
	close(enough)
	if err := <-ended; err != nil || read.Load() != total {
		s.Errorf("%d bytes of %d, %v", read.Load(), total, err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// One that is not read does not hold up another.
func stdioStalled(s *seat) {
	p, err := s.client.Start(guest.Command{Text: []byte("yes")}, false)
	if err != nil {
		s.Fatal(err)
	}
	defer p.Hangup()
	for range 10 {
		s.want("hi\n", "echo hi")
	}
}

// The client goes: a program that writes meets a closed pipe.
func stdioHangup(s *seat) {
	mark := s.folder() + "/mark"
	r := s.begin(guest.Command{Text: []byte("(yes; echo $? >" + mark + ") 2>/dev/null")})
	r.says("y")
	r.Hangup()
	eventually(s, "yes to end", func() bool { return s.sh("cat "+mark+" 2>/dev/null || true") != "" })
}

func stdioSetsid(s *seat) {
	pid := s.folder() + "/pid"
	r := s.begin(guest.Command{Text: []byte("setsid sh -c 'echo $$ >" + pid + "; exec sleep 1000' >/dev/null 2>&1 </dev/null & echo on; cat")})
	r.says("on")
	eventually(s, "the process", func() bool { return s.sh("cat "+pid+" 2>/dev/null || true") != "" })
	r.Hangup()
	time.Sleep(100 * time.Millisecond)
	s.sh("kill $(cat " + pid + ")") // and so it was there
}

func stdioEOF(s *seat) {
	file := s.folder() + "/got"
	r := s.begin(guest.Command{Text: []byte("echo on; cat >/dev/null; echo eof >" + file)})
	r.says("on")
	r.Hangup()
	eventually(s, "the end of the input", func() bool { return s.sh("cat "+file+" 2>/dev/null || true") == "eof\n" })
}
