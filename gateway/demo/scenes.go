package demo

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

var scenes = []struct {
	title string
	play  func(*show) error
}{
	{"A shell command in a new sandbox", (*show).newSandbox},
	{"Commands in a sandbox that runs", (*show).warm},
	{"Files, there and back", (*show).files},
	{"20 MB, there and back", (*show).transfer},
	{"A web server in the sandbox, seen from here", (*show).webServer},
	{"Work that outlives its connection", (*show).nohup},
	{"A coding agent at work in the sandbox", (*show).agent},
	{"The host is out of reach", (*show).isolation},
	{"Sandboxes are managed over SSH, too", (*show).lobby},
}

func (s *show) newSandbox() error {
	r, err := s.do(`ssh web 'uname -sr; id; hostname; pwd'`)
	if err != nil {
		return err
	}
	if !strings.Contains(r.text, "gvisor") {
		return errors.New("the kernel is not gVisor's")
	}
	s.screen.note("The first output came after %s. There was no sandbox web: it was made for this login.\n"+
		"Its kernel is gVisor's, a program that knows only the sandbox.", readable(r.first))
	return nil
}

func (s *show) warm() error {
	const line, times = "ssh web true", 9
	r, err := s.do(line)
	if err != nil {
		return err
	}
	took := []time.Duration{r.took}
	for len(took) < times {
		if r, err = s.run(line); err != nil {
			return err
		}
		took = append(took, r.took)
	}
	slices.Sort(took)
	s.screen.note("%s, the median of %d times: connect, log in, run, disconnect.", readable(took[times/2]), times)
	r, err = s.expect(3, `ssh web 'echo hi; exit 3'`)
	if err == nil && r.text != "hi\n" {
		err = fmt.Errorf("it wrote %q", r.text)
	}
	return err
}

func (s *show) files() error {
	if err := makeThings(s.path("things")); err != nil {
		return err
	}
	for _, line := range []string{"ls -l things", "scp -rp things web:", "scp -rp web:things back"} {
		if _, err := s.do(line); err != nil {
			return err
		}
	}
	if err := s.identical("things", "back"); err != nil {
		return err
	}
	if _, err := s.do(`printf 'put things/noise.bin\nls -l noise.bin\nget noise.bin noise.back\n' | sftp -b - web`); err != nil {
		return err
	}
	return s.identical("things/noise.bin", "noise.back")
}

// makeThings makes a folder with files of several kinds.
func makeThings(dir string) error {
	if err := os.MkdirAll(filepath.Join(dir, "folder"), 0o755); err != nil {
		return err
	}
	noise := make([]byte, 1<<20)
	rand.Read(noise)
	for name, f := range map[string]struct {
		data []byte
		mode os.FileMode
	}{
		"hello.txt":         {[]byte("hello from the sandbox\n"), 0o644},
		"run.sh":            {[]byte("#!/bin/sh\necho run\n"), 0o755},
		"noise.bin":         {noise, 0o600},
		"a name, in words":  {[]byte("\x00\xff\r\n"), 0o644},
		"folder/empty file": {nil, 0o644},
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, f.data, f.mode), os.Chmod(path, f.mode)); err != nil {
			return err
		}
	}
	return nil
}

// identical says that what came back is what was sent, if that is so.
func (s *show) identical(sent, back string) error {
	files, size, err := compare(s.path(sent), s.path(back))
	if err != nil {
		return err
	}
	s.screen.note("Compared: %s and %s are identical, %d bytes in %d %s.", sent, back, size, files, plural(files, "file"))
	return nil
}

func plural(n int, noun string) string {
	if n == 1 {
		return noun
	}
	return noun + "s"
}

func (s *show) transfer() error {
	const size = 20e6
	big, err := os.Create(s.path("big"))
	if err != nil {
		return err
	}
	_, err = io.CopyN(big, rand.Reader, size)
	if err := errors.Join(err, big.Close()); err != nil {
		return err
	}
	for _, line := range []string{"scp big web:", "scp web:big big.back"} {
		r, err := s.do(line)
		if err != nil {
			return err
		}
		s.screen.note("%s, connecting included", speed(size, r.took))
	}
	return s.identical("big", "big.back")
}

// webServers are ways to serve hello.txt, the best first.
var webServers = []struct{ program, line string }{
	{"python3", `cd things && python3 -m http.server --bind 127.0.0.1 8000`},
	{"perl", `perl -MIO::Socket::INET -e '$l=IO::Socket::INET->new(LocalAddr=>"127.0.0.1:8000",Listen=>5);` +
		`while($c=$l->accept){$_=<$c>;print $c "HTTP/1.0 200 OK\n\n",qx(cat things/hello.txt);close $c}'`},
}

func (s *show) webServer() error {
	for _, server := range webServers {
		there, err := s.run("ssh web command -v " + server.program)
		if err != nil {
			return err
		}
		if there.code == 0 {
			return s.serve(server.line)
		}
	}
	s.screen.note("Left out: this host has neither python3 nor perl to serve with.")
	return nil
}

func (s *show) serve(server string) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	stop, err := s.background(fmt.Sprintf("ssh -L %d:127.0.0.1:8000 web %s", port, quote(server)))
	if err != nil {
		return err
	}
	defer stop()
	var page string
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if page, err = get(port, "/hello.txt"); err == nil {
			break
		}
		if s.ctx.Err() != nil || time.Now().After(deadline) {
			return fmt.Errorf("the web server does not answer: %w", err)
		}
	}
	if here, err := s.run("command -v curl"); err != nil {
		return err
	} else if here.code == 0 {
		r, err := s.do(fmt.Sprintf("curl -s http://127.0.0.1:%d/hello.txt", port))
		if err != nil {
			return err
		}
		page = r.text
	} else {
		s.screen.note("The demo asks for http://127.0.0.1:%d/hello.txt itself, since there is no curl:", port)
		s.screen.output(page)
	}
	if page != "hello from the sandbox\n" {
		return errors.New("that is not the page")
	}
	return nil
}

// freePort returns a port of the loopback on which nothing listens.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// get fetches a page in the simplest way there is.
func get(port int, path string) (string, error) {
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(5 * time.Second))
	fmt.Fprintf(conn, "GET %s HTTP/1.0\r\n\r\n", path)
	answer, err := io.ReadAll(conn)
	if err != nil {
		return "", err
	}
	head, page, ok := strings.Cut(strings.ReplaceAll(string(answer), "\r", ""), "\n\n")
	if !ok || !strings.Contains(head, " 200 OK") {
		return "", fmt.Errorf("the answer is %.80q", answer)
	}
	return page, nil
}

func (s *show) nohup() error {
	if _, err := s.do(`ssh web 'nohup sleep 1000 >/dev/null 2>&1 & echo $! >pid'`); err != nil {
		return err
	}
	r, err := s.do(`ssh web 'kill -0 $(cat pid) && tr "\0" " " </proc/$(cat pid)/cmdline; echo'`)
	if err == nil && !strings.Contains(r.text, "sleep 1000") {
		err = errors.New("it has ended")
	}
	return err
}

func (s *show) lobby() error {
	for _, line := range []string{
		"ssh gate new api --memory 512M",
		"ssh gate ls",
		"ssh gate info api",
		"ssh gate rm api",
		"ssh web 'echo written before the stop >note'",
		"ssh gate stop web",
		"ssh gate ls",
	} {
		if _, err := s.do(line); err != nil {
			return err
		}
	}
	r, err := s.do("ssh web cat note")
	if err != nil {
		return err
	}
	if r.text != "written before the stop\n" {
		return errors.New("the note is not what was written")
	}
	s.screen.note("A stopped sandbox keeps its files and starts at the next login: after %s here.", readable(r.first))
	return nil
}
