package gateway

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sandgate/agent"
	"sandgate/gateway/redact"
)

// Of much output there are ten pieces a second, none of it is lost, and a secret that is
// cut by pieces is in none.
func TestProgressFeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var shown []string
		f := newProgressFeed(redact.New([]string{"canary-7f3k9q2m"}), func(p agent.Progress) {
			if p.Stream != "stdout" {
				t.Errorf("a piece of %s", p.Stream)
			}
			shown = append(shown, p.Text)
		})
		var said strings.Builder
		for range 1000 {
			for _, piece := range []string{"x", "can", "ary-7f3", "k9q2m", "\n"} {
				f.add(agent.Progress{Stream: "stdout", Text: piece, Bytes: int64(said.Len())})
				said.WriteString(piece)
			}
			time.Sleep(time.Millisecond)
		}
		f.add(agent.Progress{Stream: "stdout", Text: "canary-7f3k"}) // the rest never comes
		f.end()
		f.add(agent.Progress{Stream: "stdout", Text: "late"})
		time.Sleep(time.Second)
		want := strings.ReplaceAll(said.String(), "canary-7f3k9q2m", "[redacted]") + "canary-7f3k"
		if all := strings.Join(shown, ""); all != want {
			t.Errorf("%d bytes were shown, want %d", len(all), len(want))
		}
		if len(shown) < 5 || len(shown) > 13 {
			t.Errorf("%d pieces in a second", len(shown))
		}
	})
}
