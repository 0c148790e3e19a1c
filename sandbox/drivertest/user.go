package drivertest

import (
	"strings"
	"testing"

	"sandgate/sandbox/guest"
)

// Commands and files of other users than root.
var userCases = cases{
	"Root":              does{text: "id -u; id -g", out: "0\n0\n"},
	"BACK-04/Number":    does{text: "id -u; id -g", user: "4321", out: "4321\n0\n", err: ""},
	"BACK-04/Group":     does{text: "id -u; id -g", user: "4321:4322", out: "4321\n4322\n"},
	"BACK-04/Home":      does{text: "echo $HOME; pwd", user: "4321", out: "/\n/\n"},
	"Unknown":           does{text: "id", user: "no-such-user", code: 126, err: `no user "no-such-user"`},
	"NotRoot":           does{text: "cat /etc/shadow", user: "4321", code: 1, err: "ermission denied"},
	"NoCapabilities":    does{text: "grep -E '^Cap(Eff|Prm|Amb)' /proc/self/status | grep -vc 0000000000000000", user: "4321", out: "0\n", code: 1},
	"OthersTmp":         check(userTmp),
	"BACK-04/Files":     check(userFiles),
	"BACK-04/Terminal":  check(userTerminal),
	"BACK-04/Secondary": alone(userGroups),
	"ProcessesOfRoot":   does{text: "kill -0 1", user: "4321", code: 1, err: "ermitted"},
	"FWD-05/Agent":      check(userAgent),
}

// The sticky bit of /tmp holds.
func userTmp(s *seat) {
	file := s.sh("mktemp /tmp/mine.XXXXXX | tr -d '\\n'")
	defer s.sh("rm -f " + file)
	if got := s.do(guest.Command{Text: []byte("rm -f " + file), User: "4321"}, nil); got.exit.Code == 0 {
		s.Errorf("a user removed root's file: %+v", got)
	}
}

// All ways to make a file make it the user's.
func userFiles(s *seat) {
	dir := s.folder()
	s.do(guest.Command{Text: []byte("echo x >" + dir + "/exec"), User: "4321:4322"}, nil)
	c := s.sftp("4321:4322")
	f, err := c.Create(dir + "/sftp")
	if err != nil {
		s.Fatal(err)
	}
	f.Close()
	s.want("4321:4322\n4321:4322\n", "stat -c %u:%g "+dir+"/exec "+dir+"/sftp")
	if _, err := c.Create("/etc/new"); err == nil {
		s.Error("a user made a file in /etc")
	}
}

func userTerminal(s *seat) {
	r := s.begin(guest.Command{Text: []byte("id -u; stat -c %u $(tty)"), User: "4321", Terminal: terminal80()})
	r.ends(guest.Exit{})
	if out := r.out.String(); out != "4321\r\n4321\r\n" {
		s.Errorf("wrote %q", out)
	}
}

func userAgent(s *seat) {
	l, err := s.client.Listen(s.Context(), "4321", guest.Address{Agent: true})
	if err != nil {
		s.Fatal(err)
	}
	path := string(l.Address.Path)
	s.want("700 4321\n600 4321\n", "stat -c '%a %u' $(dirname "+path+") "+path)
	l.Close()
	eventually(s, "the socket's folder to be gone", func() bool {
		return strings.TrimSpace(s.sh("test -e $(dirname "+path+") && echo there || true")) == ""
	})
}

// A user of the image has its home, shell and groups, and no more.
func userGroups(t *testing.T, b *bench) {
	_, sh := b.start("groups")
	sh.Run("sh", "-ec", `
		echo 'app:x:1234:1235::/home/app:/bin/sh' >>/etc/passwd
		echo 'app:x:1235:' >>/etc/group
		echo 'extra:x:1236:app' >>/etc/group
		mkdir -p /home/app
		chown 1234:1235 /home/app
	`)
	for _, user := range []string{"app", "1234"} {
		var out lockedBuffer
		cmd := guest.Command{Text: []byte("id -u; id -g; id -G; echo $HOME $USER; pwd; touch x && stat -c %U x"), User: user}
		exit, err := execute(sh.Client, cmd, nil, &out, &out)
		if want := "1234\n1235\n1235 1236\n/home/app app\n/home/app\napp\n"; err != nil || exit.Code != 0 || out.String() != want {
			t.Errorf("as %q: %+v, %v, wrote %q, want %q", user, exit, err, out.String(), want)
		}
	}
	cmd := guest.Command{Text: []byte("scp -t /etc/zz"), User: "app"}
	var out lockedBuffer
	exit, err := execute(sh.Client, cmd, []byte("C0644 1 zz\nx\x00"), &out, &out)
	if err != nil || exit.Code != 1 || !strings.Contains(out.String(), "ermission denied") {
		t.Errorf("SFTP-04: scp to /etc as a user: %+v, %v, %q", exit, err, out.String())
	}
}
