package sandbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sandgate/sandbox/guest"
	"sandgate/store"
)

// keys of log lines
const (
	keySandbox = "sandbox"
	keyDriver  = "driver"
	keyErr     = "err"
	keyTook    = "took"
)

// Time limits of the manager.
const (
	wakeTimeout  = 60 * time.Second // for a guest to be there, from nothing
	adoptTimeout = 15 * time.Second // for the guest of a running sandbox to dial again
	stopTimeout  = 60 * time.Second
	pauseTimeout = 3 * time.Minute // to write all memory to the disk
)

// A Manager decides when sandboxes live. All methods may be called at the same
// time.
type Manager struct {
	cfg     atomic.Pointer[Config]
	db      *store.DB
	drivers map[string]Driver
	log     *slog.Logger
	now     func() time.Time // the clock that sandboxes are charged by

	mu    sync.Mutex
	lives map[ID]*life
	apart map[string]bool // drivers whose engine was found to live apart

	admitting sync.Mutex // of one sandbox after the other, by the quotas
	keeping   sync.WaitGroup
	endKeep   context.CancelFunc

	pulls   pulls
	pulling sync.WaitGroup // one for each pull

	closing  context.Context // ends with Close, errClosing its cause
	close    context.CancelCauseFunc
	onWake   func(context.Context, store.Sandbox, *guest.Client) // see OnWake
	onStart  func(driver string, took time.Duration, err error)  // see OnStart
	setups   sync.WaitGroup                                      // those that run; added to with mu held
	watching sync.WaitGroup                                      // one for each Watcher, and for what it causes
}

// NewManager returns a manager of the sandboxes in db. Adopt is to be called
// before the first Wake.
func NewManager(cfg Config, db *store.DB, drivers map[string]Driver, log *slog.Logger) (*Manager, error) {
	m := &Manager{db: db, drivers: drivers, log: log, now: time.Now, endKeep: func() {},
		lives: make(map[ID]*life), apart: make(map[string]bool), pulls: pulls{byID: make(map[pullID]*pull)}}
	if err := m.SetConfig(cfg); err != nil {
		return nil, err
	}
	m.closing, m.close = context.WithCancelCause(context.Background())
	return m, nil
}

// SetConfig changes, from now on, what new sandboxes are and may be, or nothing if
// that is wrong. Sandboxes that there are stay as they are.
func (m *Manager) SetConfig(cfg Config) error {
	if m.drivers[cfg.Driver] == nil {
		return fmt.Errorf("no driver %q on this host", cfg.Driver)
	}
	if err := cfg.Validate(); err != nil {
		return err
	}
	m.cfg.Store(&cfg)
	return nil
}

// Adopt puts rows and reality together after a start of the gateway: sandboxes
// that nobody owns are removed; those that run are looked for again by their
// guests, and what they ran meanwhile is charged. From then on, until Close, what
// runs is charged all the time, and the engines that drivers have are watched: for
// one that does not answer now, all this is done when it does.
func (m *Manager) Adopt(ctx context.Context) error {
	for name := range m.drivers {
		var lost *UnavailableError
		err := m.adopt(ctx, name)
		if errors.As(err, &lost) {
			m.log.Warn("sandboxes not adopted", keyDriver, name, keyErr, err)
		} else if err != nil {
			return fmt.Errorf("adopt sandboxes of %s: %w", name, err)
		}
	}
	if err := m.charge(ctx); err != nil {
		return err
	}
	keep, end := context.WithCancel(context.Background())
	m.endKeep = end
	m.keeping.Go(func() { m.keep(keep) })
	m.keeping.Go(func() { m.reapOften(keep) })
	m.watch()
	return nil
}

// Close lets go of all guests. Sandboxes go on running.
func (m *Manager) Close() error {
	m.endKeep()
	m.keeping.Wait()
	m.mu.Lock()
	m.close(errClosing)
	lives := m.lives
	m.lives = make(map[ID]*life)
	m.mu.Unlock()
	m.setups.Wait()
	m.watching.Wait()
	for _, l := range lives {
		l.mu.Lock()
		if l.client != nil {
			l.client.Close()
		}
		l.mu.Unlock()
	}
	m.endPulls()
	var errs []error
	for _, d := range m.drivers {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}

// Create records a new sandbox. It is made and started by the first Wake. The
// error is store.ErrExists when the owner has one of that name, an *OptionError
// when it is not to be what it was asked to be, an *ImageError when its image can
// be none, an *UnsupportedError when its driver cannot make it, and a *QuotaError
// when the owner may not have another.
func (m *Manager) Create(ctx context.Context, owner store.User, name string, o Options) (store.Sandbox, error) {
	cfg := m.cfg.Load()
	o, err := cfg.resolve(owner.Name, o, time.Now())
	if err != nil {
		return store.Sandbox{}, err
	}
	if err := checkImage(o.Image); err != nil {
		return store.Sandbox{}, err
	}
	row := store.Sandbox{
		ID:      string(NewID()),
		UserID:  owner.ID,
		Owner:   owner.Name,
		Name:    name,
		Driver:  cmp.Or(o.Driver, cfg.Driver),
		Desired: store.DesiredStopped,
	}
	if m.drivers[row.Driver] == nil {
		return store.Sandbox{}, &OptionError{
			Fault:  OptionUnknown,
			Reason: fmt.Sprintf("there is no driver %.40q on this gateway", row.Driver),
			Remedy: "one of: " + strings.Join(slices.Sorted(maps.Keys(m.drivers)), " "),
		}
	}
	if err := m.checkIdle(row.Driver, o.Idle); err != nil {
		return store.Sandbox{}, err
	}
	if c, ok := m.drivers[row.Driver].(Checker); ok {
		if err := c.Check(specOf(row, o)); err != nil {
			return store.Sandbox{}, err
		}
	}
	if row.Spec, err = json.Marshal(o); err != nil {
		return store.Sandbox{}, err
	}
	if row, err = m.enrol(ctx, row); err != nil || o.From == "" {
		return row, err
	}
	// At once, as the snapshot may be gone later.
	if err := m.drivers[row.Driver].Create(ctx, specOf(row, o)); err != nil {
		return store.Sandbox{}, errors.Join(fmt.Errorf("create sandbox %q: %w", name, err), m.disown(ctx, m.drivers[row.Driver], row))
	}
	return row, nil
}

// specOf returns what a sandbox is to its driver.
func specOf(row store.Sandbox, o Options) Spec {
	return Spec{
		ID:        ID(row.ID),
		Hostname:  row.Name,
		Image:     o.Image,
		Runtime:   o.Runtime,
		Network:   o.Network,
		Workspace: o.Workspace,
		Env:       o.Env,
		User:      o.User,
		Limits:    o.Limits,
		From:      o.From,
	}
}

// An UnsupportedError says what a sandbox was asked to be and cannot be here.
type UnsupportedError struct{ Reason string }

func (e *UnsupportedError) Error() string { return e.Reason }

// A Lease is the use of a running sandbox. It is to be released.
type Lease struct {
	*guest.Client
	life  *life
	probe bool // it only looks at what goes on
	end   *end
	once  sync.Once
}

// Release ends the use of the sandbox. It may be called again.
func (l *Lease) Release() {
	l.once.Do(func() {
		l.life.mu.Lock()
		l.life.users--
		l.life.activity.used = l.life.activity.used || !l.probe
		l.life.mu.Unlock()
	})
}

// ErrRemoved says that the sandbox was removed in the meantime.
var ErrRemoved = errors.New("sandbox was removed")

// Wake returns the guest of a sandbox, which it makes and starts if need be. Many
// callers at once wake it once. A *SetupError says that its setup command failed.
func (m *Manager) Wake(ctx context.Context, row store.Sandbox) (*Lease, error) {
	return m.WakeShowing(ctx, row, Show{})
}

// A Show is how a caller who waits for a sandbox sees what takes long. What is nil
// is not shown.
type Show struct {
	Pull  func([]Progress) // called now and then with what has changed
	Setup io.Writer        // gets what the setup command writes, if it has to run
	Tell  func(string)     // gets a sentence about what is not as it was
}

// WakeShowing is Wake for a caller who wants to see something meanwhile.
func (m *Manager) WakeShowing(ctx context.Context, row store.Sandbox, show Show) (*Lease, error) {
	lease, err := m.wake(ctx, row, show)
	if errors.Is(err, ErrNoImage) {
		// Nobody has the sandbox's turn meanwhile, so that it can be removed.
		if err = m.pull(ctx, row, false, show.Pull); err == nil {
			lease, err = m.wake(ctx, row, show)
		}
	}
	return lease, err
}

// wake is Wake if the sandbox's image is there.
func (m *Manager) wake(ctx context.Context, row store.Sandbox, show Show) (*Lease, error) {
	l := m.life(ID(row.ID))
	if lease, ok := l.lease(); ok {
		return lease, nil
	}
	failures, _ := l.setupsFailed()
	if show.Setup != nil {
		defer l.setup.show(show.Setup)()
	}
	if err := l.take(ctx); err != nil {
		return nil, err
	}
	defer l.give()
	if lease, ok := l.lease(); ok {
		return lease, nil
	}
	if l.gone() {
		return nil, ErrRemoved
	}
	if n, err := l.setupsFailed(); n > failures {
		return nil, err // what this caller has waited for as well
	}
	return m.bringUp(ctx, row, l, show.Tell)
}

// bringUp makes and starts a sandbox as far as need be. The caller has its turn, and is
// told what is not as it was if tell is not nil.
func (m *Manager) bringUp(ctx context.Context, row store.Sandbox, l *life, tell func(string)) (*Lease, error) {
	began := time.Now()
	// A caller that gives up must not leave a sandbox half started, or the next
	// one would wait for the same again.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wakeTimeout)
	defer cancel()
	if l.isPaused() {
		return m.resume(ctx, row, l)
	}
	needsSetup, err := m.needsSetup(ctx, row)
	if err != nil {
		return nil, err
	}
	if needsSetup {
		// If it runs, then with what is left of a setup that a gateway did not
		// see to its end.
		if err := m.halt(ctx, row); err != nil {
			return nil, err
		}
	}
	client, err := m.start(ctx, row, tell)
	if m.onStart != nil && !errors.Is(err, ErrNoImage) { // which is had, and then this tried again
		m.onStart(row.Driver, time.Since(began), err)
	}
	if err == nil && needsSetup {
		err = m.setUp(l, row, client)
	}
	if err != nil {
		return nil, err
	}
	m.log.Info("sandbox woken", keySandbox, row.ID, keyTook, time.Since(began).Round(time.Millisecond))
	lease, err := m.joined(l, row, client)
	if err == nil && m.onWake != nil {
		m.onWake(ctx, row, client)
	}
	return lease, err
}

// OnWake has f called for each guest that is connected to, of a sandbox that was
// started or found running, before anybody uses it. It is to be called before the first
// Wake.
func (m *Manager) OnWake(f func(context.Context, store.Sandbox, *guest.Client)) { m.onWake = f }

// OnStart has f called whenever a sandbox was started or could not be, with the name
// of its driver. It is to be called before the first Wake.
func (m *Manager) OnStart(f func(driver string, took time.Duration, err error)) { m.onStart = f }

// Usable says whether the driver for new sandboxes answers.
func (m *Manager) Usable(ctx context.Context) error {
	name := m.cfg.Load().Driver
	if _, err := m.drivers[name].List(ctx); err != nil {
		return fmt.Errorf("driver %s: %w", name, err)
	}
	return nil
}

// joined takes the client of a sandbox that runs, and returns the use of it. The
// caller has its turn.
func (m *Manager) joined(l *life, row store.Sandbox, client *guest.Client) (*Lease, error) {
	_, watched := m.drivers[row.Driver].(Watcher)
	m.mu.Lock()
	apart := m.apart[row.Driver]
	m.mu.Unlock()
	l.mu.Lock()
	l.driver, l.client, l.end, l.paused = row.Driver, client, newEnd(watched, apart), false
	l.activity = activity{}
	l.mu.Unlock()
	lease, ok := l.lease()
	if !ok {
		return nil, guest.ErrGone
	}
	return lease, nil
}

// start brings a sandbox up and connects to its guest. The caller has its turn.
func (m *Manager) start(ctx context.Context, row store.Sandbox, tell func(string)) (*guest.Client, error) {
	d, err := m.driverOf(row)
	if err != nil {
		return nil, err
	}
	id := ID(row.ID)
	row, o, err := m.current(ctx, row)
	if err != nil {
		return nil, err
	}
	if err := m.admit(ctx, row); err != nil {
		return nil, err
	}
	if u, ok := d.(Updater); ok {
		err = u.Update(ctx, specOf(row, o))
	}
	if err == nil {
		err = m.run(ctx, d, id, tell)
	}
	if errors.Is(err, ErrNotFound) {
		if err = d.Create(ctx, specOf(row, o)); err == nil {
			err = d.Start(ctx, id)
		}
	}
	if err != nil {
		m.ended(ctx, id, Reading{})
		return nil, fmt.Errorf("start sandbox %q: %w", row.Name, err)
	}
	if err := m.db.SetDesired(ctx, row.ID, store.DesiredRunning); err != nil {
		m.log.Warn("desired state not recorded", keySandbox, id, keyErr, err)
	}
	return m.connect(ctx, d, row)
}

// connect waits for the guest of a sandbox that runs.
func (m *Manager) connect(ctx context.Context, d Driver, row store.Sandbox) (*guest.Client, error) {
	id := ID(row.ID)
	wait, cancel := context.WithTimeoutCause(ctx, adoptTimeout, errNoGuest)
	defer cancel()
	client, err := guest.Connect(wait, func(ctx context.Context) (io.ReadWriteCloser, error) {
		return d.Connect(ctx, id)
	}, m.log.With(keySandbox, id))
	if err != nil {
		return nil, fmt.Errorf("connect to sandbox %q: %w", row.Name, err)
	}
	return client, nil
}

// driverOf returns the driver of a sandbox.
func (m *Manager) driverOf(row store.Sandbox) (Driver, error) {
	if d := m.drivers[row.Driver]; d != nil {
		return d, nil
	}
	return nil, &UnsupportedError{Reason: fmt.Sprintf("sandbox %q needs the driver %q, which this host does not have", row.Name, row.Driver)}
}

// create makes a sandbox on its driver. The caller has its turn.
func (m *Manager) create(ctx context.Context, d Driver, row store.Sandbox) error {
	row, o, err := m.current(ctx, row)
	if err != nil {
		return err
	}
	return d.Create(ctx, specOf(row, o))
}

// current returns a sandbox that is to be made or started as it is now, and not as
// a caller knew it: it may have been changed or removed since.
func (m *Manager) current(ctx context.Context, row store.Sandbox) (store.Sandbox, Options, error) {
	row, err := m.db.Sandbox(ctx, row.ID)
	if errors.Is(err, store.ErrNotFound) {
		err = ErrRemoved
	}
	if err != nil {
		return row, Options{}, err
	}
	o, err := OptionsOf(row)
	if err != nil {
		return row, o, err
	}
	return row, o, m.cfg.Load().checkWorkspace(row, o)
}

var errNoGuest = fmt.Errorf("it runs, but did not answer within %v", adoptTimeout)

// Stop ends all processes of a sandbox and keeps its disk.
func (m *Manager) Stop(ctx context.Context, row store.Sandbox) error {
	return m.stop(ctx, row, nil)
}

// stop is Stop, and tells those who use the sandbox why.
func (m *Manager) stop(ctx context.Context, row store.Sandbox, why error) error {
	l := m.life(ID(row.ID))
	l.interruptSetup()
	if err := l.take(ctx); err != nil {
		return err
	}
	defer l.give()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := m.db.SetDesired(ctx, row.ID, store.DesiredStopped); err != nil {
		return err
	}
	l.announceStop(why)
	if err := m.halt(ctx, row); err != nil {
		return err
	}
	l.disconnect()
	return nil
}

// halt ends what runs in a sandbox, if anything does. The caller has its turn.
func (m *Manager) halt(ctx context.Context, row store.Sandbox) error {
	d := m.drivers[row.Driver]
	if d == nil {
		return nil
	}
	used := m.read(ctx, d, ID(row.ID))
	if err := d.Stop(ctx, ID(row.ID)); err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("stop sandbox %q: %w", row.Name, err)
	}
	m.ended(ctx, ID(row.ID), used)
	return m.db.Unexpose(ctx, row.ID)
}

// Remove stops a sandbox and deletes all that is left of it, its row last: what
// fails can be tried again.
func (m *Manager) Remove(ctx context.Context, row store.Sandbox) error {
	return m.remove(ctx, row, nil)
}

// remove is Remove, and tells those who use the sandbox why.
func (m *Manager) remove(ctx context.Context, row store.Sandbox, why error) error {
	l := m.life(ID(row.ID))
	l.interruptSetup()
	if err := l.take(ctx); err != nil {
		return err
	}
	defer l.give()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	l.announceStop(why)
	if d := m.drivers[row.Driver]; d != nil {
		used := m.read(ctx, d, ID(row.ID))
		if err := d.Remove(ctx, ID(row.ID)); err != nil {
			return fmt.Errorf("remove sandbox %q: %w", row.Name, err)
		}
		if err := m.dropOwn(ctx, d, row); err != nil {
			return fmt.Errorf("remove sandbox %q: %w", row.Name, err)
		}
		m.ended(ctx, ID(row.ID), used)
	}
	l.mu.Lock()
	l.removed = true
	l.mu.Unlock()
	l.disconnect()
	if err := m.db.DeleteSandbox(ctx, row.ID); err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	m.mu.Lock()
	delete(m.lives, ID(row.ID))
	m.mu.Unlock()
	return nil
}

// Info is a sandbox's state and what its driver has to say about it.
type Info struct {
	Status
	Users int // of leases: sessions and forwards of all connections
}

// Infos returns the state of each of rows.
func (m *Manager) Infos(ctx context.Context, rows []store.Sandbox) (map[ID]Info, error) {
	infos := make(map[ID]Info, len(rows))
	wanted := make(map[string]bool)
	for _, r := range rows {
		wanted[r.Driver] = true
		infos[ID(r.ID)] = Info{Status: Status{ID: ID(r.ID), State: Stopped}}
	}
	for name, d := range m.drivers {
		if !wanted[name] {
			continue
		}
		found, err := d.List(ctx)
		var lost *UnavailableError
		if errors.As(err, &lost) {
			for _, r := range rows {
				if r.Driver == name {
					infos[ID(r.ID)] = Info{Status: Status{ID: ID(r.ID), State: Unknown, Notes: []string{lost.Reason}}}
				}
			}
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list sandboxes of %s: %w", name, err)
		}
		there := make(map[ID]bool, len(found))
		for _, s := range found {
			there[s.ID] = true
			if _, ok := infos[s.ID]; ok {
				infos[s.ID] = Info{Status: s, Users: m.users(s.ID)}
			}
		}
		for _, r := range rows {
			if r.Driver == name && !there[ID(r.ID)] && wasThere(r) {
				infos[ID(r.ID)] = Info{Status: Status{ID: ID(r.ID), State: Stopped, Notes: []string{noteLost}}}
			}
		}
	}
	return infos, nil
}

func (m *Manager) users(id ID) int {
	l := m.known(id)
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.users
}

// known returns what the manager knows of a sandbox, or nil.
func (m *Manager) known(id ID) *life {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lives[id]
}

func (m *Manager) life(id ID) *life {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.lives[id]
	if l == nil {
		l = &life{turn: make(chan struct{}, 1)}
		m.lives[id] = l
	}
	return l
}
