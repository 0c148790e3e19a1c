package gateway

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"sandgate/store"
)

// However many are turned away, an address has one row in a minute, with their number.
func TestTurnedAwayIsSummedUp(t *testing.T) {
	var d turnedAway
	start := time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)
	first, due := d.add(from("203.0.113.5"), errPenalised, start)
	if want := "turned away: " + errPenalised.Error(); !due || first.Remote != "203.0.113.5" || first.Detail != want || first.Outcome != auditDenied {
		t.Errorf("the first: %t, %+v", due, first)
	}
	for i := range 1000 {
		if row, due := d.add(from("203.0.113.5"), errCrowded, start.Add(time.Duration(i)*time.Millisecond)); due {
			t.Fatalf("within the minute: %+v", row)
		}
	}
	if rows := d.due(start.Add(59*time.Second), false); len(rows) != 0 {
		t.Errorf("before the minute is over: %+v", rows)
	}
	rows := d.due(start.Add(time.Minute), false)
	if want := "turned away 1000 times in 1m0s, the last time: " + errCrowded.Error(); len(rows) != 1 || rows[0].Detail != want {
		t.Errorf("after a minute: %+v", rows)
	}
	if _, due := d.add(from("203.0.113.5"), errCrowded, start.Add(90*time.Second)); due {
		t.Error("a second row within a minute")
	}
	if rows := d.due(start.Add(91*time.Second), true); len(rows) != 1 {
		t.Errorf("at the end: %+v", rows)
	}
	if d.due(start.Add(time.Hour), false); len(d.log) != 0 {
		t.Errorf("%d addresses are remembered", len(d.log))
	}
}

// Those of a network of IPv6 are one, and beyond a number of addresses all are.
func TestTurnedAwayIsBounded(t *testing.T) {
	var d turnedAway
	start := time.Now()
	if row, due := d.add(from("2001:db8::1"), errCrowded, start); !due || row.Remote != "2001:db8::/64" {
		t.Errorf("IPv6: %t, %+v", due, row)
	}
	if _, due := d.add(from("2001:db8::2"), errCrowded, start); due {
		t.Error("two addresses of one network are two")
	}
	rows := 0
	for i := range 10_000 {
		if _, due := d.add(from(fmt.Sprintf("10.1.%d.%d", i/250, i%250)), errCrowded, start); due {
			rows++
		}
	}
	if rows != maxTurnedAway || len(d.log) > maxTurnedAway+1 {
		t.Errorf("%d rows, %d addresses remembered", rows, len(d.log))
	}
	total := 0
	for _, r := range d.due(start.Add(time.Minute), false) {
		var n int
		fmt.Sscanf(r.Detail, "turned away %d times", &n)
		total += n
	}
	if total != 10_000+2-1-maxTurnedAway {
		t.Errorf("%d are in the sums", total)
	}
	if row, due := d.add(&net.UnixAddr{}, errors.New("x"), start); due && row.Remote != "others" {
		t.Errorf("no address: %+v", row)
	}
}

// Who is shut out is in the audit, and once, however often they come.
func TestShutOutIsAudited(t *testing.T) {
	s := newStage(t, func(c *Config) { c.Admission.Exempt = []netip.Prefix{} })
	stranger := newSigner(t)
	refused := func() bool {
		_, err := s.dial("web", ssh.PublicKeys(stranger))
		return err != nil && !strings.Contains(err.Error(), "unable to authenticate")
	}
	waitFor(t, "being shut out", refused)
	for range 20 {
		refused()
	}
	isTurnedAway := func(r store.AuditRow) bool {
		return r.Kind == auditConnection && r.Remote == "127.0.0.1" && strings.HasPrefix(r.Detail, "turned away: "+errPenalised.Error())
	}
	s.audited("who was turned away", isTurnedAway)
	all, err := s.gate.db.Audit(t.Context(), store.AuditFilter{}, 10_000)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, r := range all {
		if isTurnedAway(r) {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d rows", n)
	}
}
