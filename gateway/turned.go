package gateway

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"sandgate/store"
)

// turnedAway sums up for the audit the connections that were turned away at the door:
// of an address the first leaves a row, and what follows within a minute is one more, at
// the end of it. So no flood fills the disk, nor the memory: beyond maxTurnedAway
// addresses in a minute all others are one. The zero value is ready.
type turnedAway struct {
	mu  sync.Mutex
	log map[netip.Prefix]*turned
}

// turned is what came from an address. The addresses beyond the bound are the zero one.
type turned struct {
	since time.Time // of the last row
	more  int64     // since then
	why   error     // of the last
}

const (
	maxTurnedAway   = 256
	turnedAwayEvery = time.Minute
)

// add takes a connection that was turned away, and returns the row that is due at once.
func (d *turnedAway) add(from net.Addr, why error, now time.Time) (row store.AuditRow, due bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.log == nil {
		d.log = make(map[netip.Prefix]*turned)
	}
	source := prefixOf(addrOf(from))
	if d.log[source] == nil && len(d.log) >= maxTurnedAway {
		source = netip.Prefix{}
	}
	t := d.log[source]
	if t == nil {
		d.log[source] = &turned{since: now}
		return turnedAwayRow(source, "turned away: "+why.Error()), true
	}
	t.more++
	t.why = why
	return store.AuditRow{}, false
}

// due returns the rows whose minute is over, or all that there are, and forgets the
// addresses from which nothing has come.
func (d *turnedAway) due(now time.Time, all bool) (rows []store.AuditRow) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for source, t := range d.log {
		over := now.Sub(t.since)
		switch {
		case over < turnedAwayEvery && !all:
		case t.more == 0:
			delete(d.log, source)
		default:
			rows = append(rows, turnedAwayRow(source, fmt.Sprintf("turned away %d times in %v, the last time: %v", t.more, over.Round(time.Second), t.why)))
			*t = turned{since: now}
		}
	}
	return rows
}

func turnedAwayRow(source netip.Prefix, detail string) store.AuditRow {
	remote := "others"
	switch {
	case source.IsSingleIP():
		remote = source.Addr().String()
	case source.IsValid():
		remote = source.String()
	}
	return store.AuditRow{Remote: remote, Kind: auditConnection, Outcome: auditDenied, Detail: auditDetail(detail)}
}
