package sandbox_test

import (
	"testing"

	"sandgate/sandbox"
)

func TestInitOf(t *testing.T) {
	for _, c := range []struct {
		command []string
		want    string
	}{
		{nil, ""},
		{[]string{"/sbin/init"}, "/sbin/init"},
		{[]string{"/lib/systemd/systemd", "--system"}, "/lib/systemd/systemd"},
		{[]string{"/usr/bin/tini", "--", "/sbin/init"}, ""},
		{[]string{"bash"}, ""},
	} {
		if got := sandbox.InitOf(c.command); got != c.want {
			t.Errorf("of %q: %q, want %q", c.command, got, c.want)
		}
	}
}
