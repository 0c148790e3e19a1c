package gateway

import (
	"testing"
	"testing/synctest"
	"time"
)

// What a channel runs waits for all requests before it, also between two of them.
func TestEarlierRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e earlier
		e.wait(t.Context()) // for nothing
		began := time.Now()
		e.begin()
		go func() {
			time.Sleep(time.Second)
			e.end()
			time.Sleep(requestGap / 2)
			e.begin()
			time.Sleep(time.Second)
			e.end()
		}()
		e.wait(t.Context())
		if took, want := time.Since(began), 2*time.Second+requestGap/2+requestGap; took != want {
			t.Errorf("waited for %v, not %v", took, want)
		}
		e.wait(t.Context())
	})
}
