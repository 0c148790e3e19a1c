package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// A result is what became of a command.
type result struct {
	text  string // all that it wrote
	code  int
	took  time.Duration
	first time.Duration // until it wrote something; 0 if it never did
}

// do shows a command and what it writes. It is an error if it fails.
func (s *show) do(line string) (result, error) { return s.expect(0, line) }

// expect is do for a command that ends with the exit code want.
func (s *show) expect(want int, line string) (result, error) {
	r, err := s.try(line)
	if err == nil && r.code != want {
		err = fmt.Errorf("`%s` ended with exit code %d", line, r.code)
	}
	return r, err
}

// try is do for a command that may end with any exit code.
func (s *show) try(line string) (result, error) {
	s.screen.command(line)
	r, err := s.run(line)
	s.screen.output(r.text)
	if err == nil && r.code != 0 {
		s.screen.note("exit code %d", r.code)
	}
	return r, err
}

// run runs a command without showing it.
func (s *show) run(line string) (result, error) {
	ctx, cancel := context.WithTimeout(s.ctx, commandTimeout)
	defer cancel()
	cmd := s.gate.shell(ctx, s.dir, line)
	out := &stopwatch{start: time.Now()}
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	r := result{text: out.buf.String(), took: time.Since(out.start), first: out.first}
	if cause := ctx.Err(); cause != nil {
		return r, fmt.Errorf("`%s`: %w", line, cause)
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		r.code = exit.ExitCode()
		return r, nil
	}
	if err != nil {
		return r, fmt.Errorf("`%s`: %w", line, err)
	}
	return r, nil
}

// A stopwatch notes when the first byte arrives.
type stopwatch struct {
	start time.Time
	first time.Duration
	buf   bytes.Buffer
}

func (w *stopwatch) Write(p []byte) (int, error) {
	if w.buf.Len() == 0 {
		w.first = time.Since(w.start)
	}
	return w.buf.Write(p)
}

// background starts a command that is to run until stop is called.
func (s *show) background(line string) (stop func(), err error) {
	s.screen.command(line + " &")
	cmd := s.gate.shell(s.ctx, s.dir, line)
	cmd.Stdout, cmd.Stderr = io.Discard, io.Discard
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("`%s`: %w", line, err)
	}
	return func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		cmd.Wait()
	}, nil
}

// readable writes a duration as people read it.
func readable(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// speed says how fast size bytes were that took d.
func speed(size int64, d time.Duration) string {
	return fmt.Sprintf("%d MB in %s, %.0f MB/s", size/1e6, readable(d), float64(size)/1e6/d.Seconds())
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9/._-]+$`)

// quote makes a word for the shell out of any text.
func quote(s string) string {
	if plainWord.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
