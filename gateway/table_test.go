package gateway

import (
	"fmt"
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"
)

// A table fits any terminal, and is whole where there is none.
func TestTable(t *testing.T) {
	const text = "NAME\tSTATE\tCOMMAND\nweb\trunning\tmake -j8 all the targets of the project\n世界\tstopped\t-\n"
	show := func(width int) string {
		var b strings.Builder
		table := &table{w: &b, width: width}
		fmt.Fprint(table, text)
		if err := table.Flush(); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	whole := "NAME  STATE    COMMAND\nweb   running  make -j8 all the targets of the project\n世界  stopped  -\n"
	for _, width := range []int{0, 54, 200} {
		if got := show(width); got != whole {
			t.Errorf("width %d:\n%s", width, got)
		}
	}
	if got, want := show(40), "NAME  STATE    COMMAND\nweb   running  make -j8 all the targets…\n世界  stopped  -\n"; got != want {
		t.Errorf("width 40:\n%s", got)
	}
	for width := 1; width < 60; width++ {
		for line := range strings.Lines(show(width)) {
			if got := ansi.StringWidth(strings.TrimSuffix(line, "\n")); got > width {
				t.Errorf("width %d: %d in %q", width, got, line)
			}
		}
	}
}
