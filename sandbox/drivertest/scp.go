package drivertest

import (
	"strings"

	"sandgate/sandbox/guest"
)

// The old dialect of scp: the sandbox's side of it, whether the image has one or
// the guest serves it.
var scpCases = cases{
	"TOOL-01/To":      check(scpTo),
	"TOOL-01/From":    check(scpFrom),
	"TOOL-01/Empty":   check(scpEmpty),
	"TOOL-01/Folder":  check(scpFolder),
	"TOOL-01/Times":   check(scpTimes),
	"TOOL-01/Glob":    check(scpGlob),
	"SFTP-04/Missing": check(scpMissing),
}

// scp talks to the sandbox's scp, and returns what it said.
func (s *seat) scp(args, input string) outcome {
	s.Helper()
	return s.do(guest.Command{Text: []byte("scp " + args)}, []byte(input))
}

func scpTo(s *seat) {
	name := s.folder() + "/f"
	got := s.scp("-t "+name, "C0751 5 f\nhello\x00")
	if got.exit != (guest.Exit{}) || got.stdout != "\x00\x00\x00" {
		s.Errorf("%+v", got)
	}
	s.want("hello751\n", "cat "+name+"; stat -c %a "+name)
}

func scpFrom(s *seat) {
	s.sh("printf hello >" + s.folder() + "/f; chmod 640 " + s.folder() + "/f")
	got := s.scp("-f "+s.folder()+"/f", "\x00\x00\x00")
	if got.exit != (guest.Exit{}) || got.stdout != "C0640 5 f\nhello\x00" {
		s.Errorf("%+v", got)
	}
}

func scpEmpty(s *seat) {
	got := s.scp("-t "+s.folder(), "C0644 0 f\n\x00")
	if got.exit != (guest.Exit{}) {
		s.Errorf("%+v", got)
	}
	s.want("0\n", "stat -c %s "+s.folder()+"/f")
}

func scpFolder(s *seat) {
	got := s.scp("-r -t "+s.folder(), "D0755 0 d\nD0700 0 e\nC0600 1 f\nx\x00E\nE\n")
	if got.exit != (guest.Exit{}) {
		s.Errorf("%+v", got)
	}
	s.want("700 600 x", "cd "+s.folder()+"/d && printf '%s %s ' $(stat -c %a e e/f) && cat e/f")
	got = s.scp("-r -f "+s.folder()+"/d", strings.Repeat("\x00", 10))
	if got.exit != (guest.Exit{}) || got.stdout != "D0755 0 d\nD0700 0 e\nC0600 1 f\nx\x00E\nE\n" {
		s.Errorf("back came %+v", got)
	}
}

func scpTimes(s *seat) {
	got := s.scp("-p -t "+s.folder(), "T981173106 0 981173107 0\nC0644 1 f\nx\x00")
	if got.exit != (guest.Exit{}) {
		s.Errorf("%+v", got)
	}
	s.want("981173106\n", "stat -c %Y "+s.folder()+"/f")
}

func scpGlob(s *seat) {
	s.sh("cd " + s.folder() + " && echo 1 >x1 && echo 2 >x2 && echo 3 >y")
	got := s.scp("-f "+s.folder()+"/x*", strings.Repeat("\x00", 8))
	if got.stdout != "C0644 2 x1\n1\n\x00C0644 2 x2\n2\n\x00" {
		s.Errorf("%+v", got)
	}
}

func scpMissing(s *seat) {
	got := s.scp("-f "+s.folder()+"/missing", "\x00")
	if got.exit.Code != 1 || !strings.Contains(got.stdout, "No such file") {
		s.Errorf("%+v", got)
	}
}
