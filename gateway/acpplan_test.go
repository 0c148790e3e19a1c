package gateway

import (
	"fmt"
	"testing"
)

func TestPlanIn(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"I do it.\n", "[]"},
		{"- [ ] one\n", "[]"},
		{"First:\n- [x] look\r\n- [~] mend it\n  - [ ] test  \nThen.", "[{look medium completed} {mend it medium in_progress} {test medium pending}]"},
		{"1. [ ] a\n2. [X] b", "[{a medium pending} {b medium completed}]"},
		{"```\n- [ ] a\n- [ ] b\n```\n- [ ] c\n- [ ] d\n", "[{c medium pending} {d medium pending}]"},
		{"- [ ]\n- [ ] \n- [y] c\n[ ] d\n", "[]"},
	} {
		if got := fmt.Sprint(planIn(tt.text)); got != tt.want {
			t.Errorf("%q: %s", tt.text, got)
		}
	}
}
