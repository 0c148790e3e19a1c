package drivertest

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"sandgate/sandbox/guest"
)

// What a command is handed, and how it ends. The ids are those of cases/known.md,
// as in the other groups.
var execCases = cases{
	"True":            does{text: "true"},
	"False":           does{text: "false", code: 1},
	"EXIT-02/255":     does{text: "exit 255", code: 255},
	"EXIT-02/256":     does{text: "sh -c 'exit 256' 2>/dev/null; exit 0"},
	"EXIT-02/126":     does{text: "/etc/passwd", code: 126, err: "ermission denied"},
	"EXIT-02/127":     does{text: "no_such_cmd_xyz", code: 127, err: "not found"},
	"EXIT-01/137":     does{text: "exit 137", code: 137},
	"EXIT-01/KILL":    does{text: "kill -KILL $$", signal: "KILL"},
	"EXIT-01/TERM":    does{text: "kill -TERM $$", signal: "TERM"},
	"EXIT-01/SEGV":    does{text: "kill -SEGV $$", signal: "SEGV"},
	"EXIT-01/Inner":   does{text: `exec 2>/dev/null; sh -c 'kill -TERM $$'; echo after=$?`, out: "after=143\n"},
	"SyntaxError":     does{text: "if", code: 2, err: "yntax"},
	"Pipeline":        does{text: "seq 5 | sort -r | head -n 2", out: "5\n4\n"},
	"CMD-01/Quotes":   does{text: `printf '[%s]' 'a  b' "$HOME_" 'it'\''s' '*' ';' '$(id)'`, out: "[a  b][][it's][*][;][$(id)]"},
	"CMD-01/Lines":    does{text: "echo a\necho b # c\ncat <<X\nhere $((1+1))\nX\nexit 3", out: "a\nb\nhere 2\n", code: 3},
	"CMD-01/Dash":     does{text: "printf %s -n", out: "-n"},
	"CMD-01/Bytes":    does{text: "printf %s '\xff\xfe é'", out: "\xff\xfe é"},
	"CMD-01/Plain":    does{text: `case $- in *i*) echo interactive ;; esac; case $0 in -*) echo login ;; esac`},
	"CMD-02/Blank":    does{text: "   "},
	"CMD-02/Comment":  does{text: "# nothing"},
	"NUL":             does{text: "echo a\x00b", code: 126, err: "NUL"},
	"Background":      does{text: "sleep 1000 >/dev/null 2>&1 </dev/null & echo hi; exit 6", out: "hi\n", code: 6},
	"Group":           does{text: "(exit 3) || (exit 4)", code: 4},
	"Umask":           does{text: "umask", out: "0022\n"},
	"NotATerminal":    does{text: "test -t 0 || test -t 1 || test -t 2", code: 1},
	"Descriptors":     where{walls, does{text: "ls /proc/self/fd | sort -n | tr '\\n' ' '", out: "0 1 2 3 "}},
	"Script":          does{text: "sh", stdin: "echo a\nexit 9\n", out: "a\n", code: 9},
	"LongText":        does{text: "printf %s " + strings.Repeat("x", 100_000) + " | wc -c", out: "100000\n"},
	"Default/PIPE":    does{text: "kill -PIPE $$; echo ignored", signal: "PIPE"},
	"Default/HUP":     does{text: "kill -HUP $$; echo ignored", signal: "HUP"},
	"Default/INT":     does{text: "kill -INT $$; echo ignored", signal: "INT"},
	"CMD-02/Login":    where{walls, check(execLogin)}, // others have a profile
	"BG-01":           check(execHolder),
	"CONN-02/Many":    check(execMany),
	"DISC-03/Zombies": check(execZombies),
	"TooLong":         check(execTooLong),
}

func execLogin(s *seat) {
	r := s.begin(guest.Command{})
	r.types("echo from $0\nexit 7\n")
	r.ends(guest.Exit{Code: 7})
	if out := r.out.String(); !strings.HasPrefix(out, "from -") || strings.Count(out, "\n") != 1 {
		s.Errorf("a login shell without a terminal wrote %q", out)
	}
}

// Who holds the output decides when the command is over.
func execHolder(s *seat) {
	began := time.Now()
	got := s.do(guest.Command{Text: []byte("sleep 0.5 & echo hi; exit 6")}, nil)
	if took := time.Since(began); got.stdout != "hi\n" || got.exit.Code != 6 || took < 500*time.Millisecond {
		s.Errorf("%+v after %v", got, took)
	}
}

func execMany(s *seat) {
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			text := fmt.Sprintf("sleep 0.2; echo %d; exit %d", i, i)
			got := s.do(guest.Command{Text: []byte(text)}, nil)
			if got.stdout != fmt.Sprintln(i) || got.exit.Code != i {
				s.Errorf("%q: %+v", text, got)
			}
		})
	}
	wg.Wait()
}

func execZombies(s *seat) {
	for range 20 {
		s.sh("(sleep 0.01 &) ; true")
	}
	eventually(s, "no zombies", func() bool {
		return s.sh(`cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z' || true`) == "0\n"
	})
}

func execTooLong(s *seat) {
	if p, err := s.client.Start(guest.Command{Text: make([]byte, 1<<20)}, false); err == nil {
		p.Close()
		s.Error("a command of 1 MiB was taken")
	}
	s.want("after\n", "echo after")
}
