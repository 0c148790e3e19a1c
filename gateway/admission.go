package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// An admission lets in connections on which nobody has logged in yet, no more than it has
// places for: in all, and for each address. When there is no place, the newcomer
// gets that of whoever has been there longest without getting anywhere, if that is
// long enough; else it waits, and the last to come goes first. So those who only
// stand around, however many they are, keep nobody out who means to log in.
//
// An address from which logins fail is shut out for a time that grows.
type admission struct {
	mu        sync.Mutex
	cfg       AdmissionConfig
	inside    map[*arrival]bool
	count     map[netip.Prefix]int // of inside, by address
	waiting   []*arrival           // the newest last
	penalties map[netip.Prefix]time.Time
	given     int64 // penalties, ever
	ended     bool
}

// An AdmissionConfig are the limits on connections on which nobody has logged in.
type AdmissionConfig struct {
	// Places are how many there may be, and PlacesEach how many from one address,
	// which is a /64 of IPv6. 0 are 100 and 10.
	Places, PlacesEach int

	// Exempt are addresses that only Places limits, and that are never shut out.
	// nil is the host itself.
	Exempt []netip.Prefix

	// MaxPenalty is the longest that an address is shut out. 0 is ten minutes.
	MaxPenalty time.Duration

	wait time.Duration // the longest wait for a place; 0 is maxWait
}

// How long a connection keeps its place when others wait for it.
const (
	patienceSilent  = time.Second      // without having made an offer
	patienceUnknown = 2 * time.Second  // without having shown a key of a user
	patienceKnown   = 10 * time.Second // without a signature, for which a FIDO key has to be touched
)

const (
	maxWaiting     = 1000 // for a place
	maxWaitingEach = 100  // from one address
	maxWait        = 15 * time.Second
	maxPenalties   = 4096 // addresses that are remembered
)

// Penalties add up for an address, and count once they come to more than a few.
const (
	penaltyEnforced = 15 * time.Second
	penaltyNothing  = time.Second      // left without offering a key
	penaltyFailed   = 5 * time.Second  // no key was that of a user, or none has signed
	penaltyNoSSH    = 10 * time.Second // spoke something else
	penaltyLate     = 20 * time.Second // kept a place to the end
)

// ParsePrefixes reads addresses and networks, such as 10.0.0.0/8. None are nil.
func ParsePrefixes(words []string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, w := range words {
		p, err := netip.ParsePrefix(w)
		if err != nil {
			ip, ipErr := netip.ParseAddr(w)
			if ipErr != nil {
				return nil, fmt.Errorf("%q is neither an address nor a network", w)
			}
			p = netip.PrefixFrom(ip, ip.BitLen())
		}
		all = append(all, p)
	}
	return all, nil
}

// An arrival is a connection on which nobody has logged in yet.
type arrival struct {
	conn  net.Conn
	from  netip.Prefix // not valid: exempt
	since time.Time    // when it got its place
	stage stageOfLogin
	turn  chan error // what it waits for
}

// A stageOfLogin is how far a connection has got.
type stageOfLogin int

const (
	stageSilent  stageOfLogin = iota
	stageOffered              // has sent its first packet
	stageKnown                // has shown a key of a user, which anybody can
)

var (
	errPenalised = errors.New("the address is shut out for a time, after failed logins")
	errCrowded   = errors.New("too many connections wait to log in")
	errNoKey     = errors.New("no key of a user's was shown")
	errUnsigned  = errors.New("a user's key was shown, but nothing signed with it")
	errNoSSH     = errors.New("that is not SSH")
	errNothing   = errors.New("no login was tried")
)

func newAdmission(cfg AdmissionConfig) *admission {
	return &admission{cfg: cfg.settled(), inside: make(map[*arrival]bool), count: make(map[netip.Prefix]int), penalties: make(map[netip.Prefix]time.Time)}
}

// limit changes the limits. Who has a place keeps it.
func (d *admission) limit(cfg AdmissionConfig) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cfg = cfg.settled()
}

// settled returns the limits with what they lack.
func (cfg AdmissionConfig) settled() AdmissionConfig {
	if cfg.Places == 0 {
		cfg.Places = 100
	}
	if cfg.PlacesEach == 0 {
		cfg.PlacesEach = 10
	}
	if cfg.Exempt == nil {
		cfg.Exempt = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	}
	if cfg.MaxPenalty == 0 {
		cfg.MaxPenalty = 10 * time.Minute
	}
	if cfg.wait == 0 {
		cfg.wait = maxWait
	}
	return cfg
}

// source returns what the limits of a connection's address are kept under: not
// valid for one that has none. The caller holds mu.
func (d *admission) source(a net.Addr) netip.Prefix {
	ip := addrOf(a)
	if contains(d.cfg.Exempt, ip) {
		return netip.Prefix{}
	}
	return prefixOf(ip)
}

// addrOf returns the address of a client without its port. Not valid if it has none.
func addrOf(a net.Addr) netip.Addr {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	ip, _ := netip.AddrFromSlice(tcp.IP)
	return ip.Unmap()
}

// prefixOf returns what counts as one address: of IPv6 a network, of which one client has
// all. Not valid for none.
func prefixOf(ip netip.Addr) netip.Prefix {
	bits := 32
	if ip.Is6() {
		bits = 64
	}
	prefix, _ := ip.Prefix(bits)
	return prefix
}

func contains(prefixes []netip.Prefix, ip netip.Addr) bool {
	for _, p := range prefixes {
		if p.Contains(ip) {
			return true
		}
	}
	return false
}

// enter waits for a place for a connection from an address.
func (d *admission) enter(conn net.Conn, from net.Addr) (*arrival, error) {
	a := &arrival{conn: conn, turn: make(chan error, 1)}
	d.mu.Lock()
	a.from = d.source(from)
	if err := d.shut(a.from, time.Now()); err != nil || d.ended {
		d.mu.Unlock()
		return nil, cmp.Or(err, errLeaving)
	}
	if d.place(a, time.Now()) {
		d.mu.Unlock()
		return a, nil
	}
	d.queue(a)
	wait := d.cfg.wait
	d.mu.Unlock()
	tick := time.AfterFunc(patienceSilent, d.tend)
	defer tick.Stop()
	tock := time.AfterFunc(patienceUnknown, d.tend)
	defer tock.Stop()
	last := time.AfterFunc(patienceKnown, d.tend)
	defer last.Stop()
	select {
	case err := <-a.turn:
		if err != nil {
			return nil, err
		}
		return a, nil
	case <-time.After(wait):
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if i := slices.Index(d.waiting, a); i >= 0 {
		d.waiting = slices.Delete(d.waiting, i, i+1)
		return nil, errCrowded
	}
	if err := <-a.turn; err != nil { // which came at the last moment
		return nil, err
	}
	return a, nil
}

// place gives a connection a place if it can have one.
func (d *admission) place(a *arrival, now time.Time) bool {
	full := len(d.inside) >= d.cfg.Places
	fullEach := a.from.IsValid() && d.count[a.from] >= d.cfg.PlacesEach
	if full || fullEach {
		victim := d.victim(a.from, fullEach, now)
		if victim == nil {
			return false
		}
		victim.conn.Close()
		d.remove(victim)
	}
	a.since = now
	d.inside[a] = true
	if a.from.IsValid() {
		d.count[a.from]++
	}
	return true
}

// victim returns the connection that has to give up its place to one from that
// address, and only to one from there if own.
func (d *admission) victim(from netip.Prefix, own bool, now time.Time) *arrival {
	var worst *arrival
	for a := range d.inside {
		patience := [...]time.Duration{stageSilent: patienceSilent, stageOffered: patienceUnknown, stageKnown: patienceKnown}[a.stage]
		if now.Sub(a.since) < patience || own && a.from != from {
			continue
		}
		if worst == nil || a.stage < worst.stage || a.stage == worst.stage && a.since.Before(worst.since) {
			worst = a
		}
	}
	return worst
}

// queue adds a connection to those that wait. When there are too many, that which
// has waited longest is sent away.
func (d *admission) queue(a *arrival) {
	d.waiting = append(d.waiting, a)
	n := 0
	for _, other := range d.waiting {
		if other.from == a.from {
			n++
		}
	}
	each := a.from.IsValid() && n > maxWaitingEach
	if !each && len(d.waiting) <= maxWaiting {
		return
	}
	for i, other := range d.waiting {
		if !each || other.from == a.from {
			d.waiting = slices.Delete(d.waiting, i, i+1)
			other.turn <- errCrowded
			return
		}
	}
}

// tend gives places to those that wait.
func (d *admission) tend() {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	const most = 32 // as far as it looks: the others' time comes, or has passed
	for i := len(d.waiting) - 1; i >= max(0, len(d.waiting)-most); i-- {
		a := d.waiting[i]
		if d.place(a, now) {
			d.waiting = slices.Delete(d.waiting, i, i+1)
			a.turn <- nil
		}
	}
}

// end sends away all that wait, and lets nobody in any more.
func (d *admission) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	for _, a := range d.waiting {
		a.turn <- errLeaving
	}
	d.waiting = nil
}

// admit is called when somebody has logged in. a may be nil.
func (d *admission) admit(a *arrival) {
	if a == nil {
		return
	}
	d.leave(a)
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.penalties, a.from)
}

// part is called when a connection has ended without a login, for that reason. a
// may be nil.
func (d *admission) part(a *arrival, why error) {
	if a == nil {
		return
	}
	d.leave(a)
	by := penaltyNothing
	switch {
	case errors.Is(why, errNoKey), errors.Is(why, errUnsigned):
		by = penaltyFailed
	case errors.Is(why, errLoginGrace):
		by = penaltyLate
	case errors.Is(why, errNoSSH):
		by = penaltyNoSSH
	}
	d.penalise(a.from, by)
}

// leave gives a connection's place back: somebody has logged in, or it has ended.
func (d *admission) leave(a *arrival) {
	d.mu.Lock()
	d.remove(a)
	some := len(d.waiting) > 0
	d.mu.Unlock()
	if some {
		d.tend()
	}
}

func (d *admission) remove(a *arrival) {
	if !d.inside[a] {
		return
	}
	delete(d.inside, a)
	if a.from.IsValid() {
		if d.count[a.from]--; d.count[a.from] == 0 {
			delete(d.count, a.from)
		}
	}
}

// reach records how far a connection has got. a may be nil.
func (d *admission) reach(a *arrival, s stageOfLogin) {
	if a == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	a.stage = max(a.stage, s)
}

// shut says whether an address is shut out.
func (d *admission) shut(from netip.Prefix, now time.Time) error {
	if from.IsValid() && d.penalties[from].Sub(now) > penaltyEnforced {
		return errPenalised
	}
	return nil
}

// penalised returns how many penalties were given, and how many addresses are shut
// out.
func (d *admission) penalised() (given int64, shut int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	for from := range d.penalties {
		if d.shut(from, now) != nil {
			shut++
		}
	}
	return d.given, shut
}

// penalise adds to an address's penalties.
func (d *admission) penalise(from netip.Prefix, by time.Duration) {
	if !from.IsValid() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.given++
	now := time.Now()
	until := d.penalties[from]
	if until.Before(now) {
		until = now
	}
	if until = until.Add(by); until.After(now.Add(d.cfg.MaxPenalty)) {
		until = now.Add(d.cfg.MaxPenalty)
	}
	if _, ok := d.penalties[from]; !ok && len(d.penalties) >= maxPenalties {
		d.forget(now)
	}
	d.penalties[from] = until
}

// forget drops penalties that have passed, or the one that ends first.
func (d *admission) forget(now time.Time) {
	var first netip.Prefix
	for p, until := range d.penalties {
		if until.Before(now) {
			delete(d.penalties, p)
		} else if !first.IsValid() || until.Before(d.penalties[first]) {
			first = p
		}
	}
	if len(d.penalties) >= maxPenalties {
		delete(d.penalties, first)
	}
}
