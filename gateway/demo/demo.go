// Package demo shows what a gateway does: it starts one that is its own, uses it
// with the machine's ssh, scp and sftp as a person would, and removes all of it.
//
// What it prints is not a recording. Each command is shown as it is given to a
// shell, followed by what it really wrote, and what the demo says about it
// ("identical", "out of reach") it has checked. The first thing that is not as it
// should be ends the demo with an error, so it is also a test of a machine.
//
// The gateway is another process of the running program and is reached over SSH
// only: the package needs nothing else of sandgate, and sees what users see.
package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// A show is the demo as it goes on.
type show struct {
	ctx    context.Context
	screen *screen
	dir    string // all that the demo writes, but for the marker in the home folder
	gate   *gateway
	used   map[process]bool // the gateway's and its sandboxes', as far as seen
}

// Run shows the demo on out. When it returns, also because ctx has ended, nothing
// of it is left on the machine, or the error says what is.
func Run(ctx context.Context, out *os.File) (err error) {
	for _, client := range []string{"ssh", "scp", "sftp"} {
		if _, err := exec.LookPath(client); err != nil {
			return fmt.Errorf("the demo uses OpenSSH's ssh, scp and sftp, and %s is not in PATH", client)
		}
	}
	dir, err := os.MkdirTemp("", "sandgate-demo-")
	if err != nil {
		return err
	}
	s := &show{ctx: ctx, screen: newScreen(out), dir: dir, used: make(map[process]bool)}
	defer func() {
		if ctx.Err() != nil {
			err = errors.New("interrupted, so it was cut short")
		}
		err = errors.Join(err, s.end(err == nil))
	}()
	if s.gate, err = startGateway(ctx, dir); err != nil {
		return err
	}
	s.screen.note("A gateway listens on 127.0.0.1:%d, with its state in %s and a key of its own.\n"+
		"In its ssh_config, web is web@127.0.0.1 on that port, and gate is where sandboxes are managed.", s.gate.port, dir)
	for i, scene := range scenes {
		s.screen.heading(fmt.Sprintf("%d. %s", i+1, scene.title))
		err := scene.play(s)
		s.count()
		if err != nil {
			return fmt.Errorf("%q: %w", scene.title, err)
		}
	}
	return nil
}

// count remembers which processes belong to the gateway.
func (s *show) count() {
	for _, p := range family(s.gate.pid()) {
		s.used[p] = true
	}
}

// end removes all that the demo has made, and makes sure of it.
func (s *show) end(well bool) error {
	var errs []error
	if s.gate != nil {
		if well {
			s.screen.heading("The end")
		}
		removed := s.removeAll(well)
		errs = append(errs, removed, s.gate.stop())
		if removed != nil {
			kill(s.used)
		}
	}
	errs = append(errs, os.RemoveAll(s.dir))
	if err := errors.Join(append(errs, nothingLeft(s.used, s.dir))...); err != nil {
		return fmt.Errorf("clean up: %w", err)
	}
	if well {
		s.screen.note("The gateway is stopped and its folder deleted. Looked for and not found: any of its\n"+
			"%d processes, a mount, a file.", len(s.used))
	}
	return nil
}

// removeAll removes all sandboxes, also after the show's context has ended.
func (s *show) removeAll(well bool) error {
	const line = "ssh gate rm --all --force"
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	out, err := s.gate.shell(ctx, s.dir, line).CombinedOutput()
	if well {
		s.screen.command(line)
		s.screen.output(string(out))
	}
	if err != nil {
		return fmt.Errorf("`%s`: %w\n%s", line, err, out)
	}
	return nil
}

// path returns the path of a file in the demo's folder.
func (s *show) path(name string) string { return filepath.Join(s.dir, name) }
