//go:build linux

package guest

import (
	"bytes"
	"errors"
	"reflect"
	"sync"
	"time"
)

// How long a service that has ended waits to be started again: twice as long each
// time, until it has lasted.
const (
	firstRest = time.Second
	lastRest  = time.Minute
	lasted    = time.Minute
)

// keptRuns is how many runs of a service are recorded, besides the one that goes on.
const keptRuns = 3

// Services are those of a sandbox.
type services struct {
	mu       sync.Mutex
	running  map[string]*supervisor
	stopping bool
}

// A supervisor keeps one service running.
type supervisor struct {
	after  <-chan struct{} // closed when it may start; nil: at once
	stop   chan struct{}   // closed to end it
	ended  chan struct{}   // closed when it has
	up     chan struct{}   // closed when those after it may start
	isUp   func()          // closes up, once
	hasten chan struct{}   // gets something when it is not to wait any more

	mu      sync.Mutex
	service Service
}

func newSupervisor(s Service, after <-chan struct{}) *supervisor {
	up := make(chan struct{})
	return &supervisor{
		after:   after,
		stop:    make(chan struct{}),
		ended:   make(chan struct{}),
		up:      up,
		isUp:    sync.OnceFunc(func() { close(up) }),
		hasten:  make(chan struct{}, 1),
		service: s,
	}
}

func (v *supervisor) is() Service {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.service
}

func (v *supervisor) become(s Service) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.service = s
}

// sameService says whether a service that runs need not be started anew.
func sameService(a, b Service) bool {
	return bytes.Equal(a.Text, b.Text) && a.Dir == b.Dir && a.User == b.User && reflect.DeepEqual(a.Health, b.Health)
}

// serve makes the sandbox's services those that are wanted.
func (g *guest) serve(wanted []Service) error {
	if !validServices(wanted) {
		return errors.New("malformed services")
	}
	s := &g.services
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return errors.New("the sandbox is being stopped")
	}
	keep := make(map[string]bool)
	for _, w := range wanted {
		if v := s.running[w.Name]; v != nil && sameService(v.is(), w) {
			keep[w.Name] = true
			v.become(w)
		}
	}
	for name, v := range s.running {
		if !keep[name] {
			close(v.stop)
		}
	}
	for name, v := range s.running {
		if !keep[name] {
			<-v.ended
			delete(s.running, name)
		}
	}
	var after <-chan struct{}
	for _, w := range wanted {
		v := s.running[w.Name]
		if v == nil {
			v = newSupervisor(w, after)
			s.running[w.Name] = v
			g.begin(v)
		}
		after = v.up
	}
	return nil
}

// begin begins to keep a service running. What need not wait is started by its return.
func (g *guest) begin(v *supervisor) {
	if v.after != nil {
		select {
		case <-v.after:
		default:
			go func() {
				select {
				case <-v.after:
					g.supervise(v, g.startService(v))
				case <-v.stop:
					close(v.ended)
				}
			}()
			return
		}
	}
	first := g.startService(v)
	go g.supervise(v, first)
}

// stopAll lets services end with the sandbox, and none begin.
func (s *services) stopAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopping = true
	for _, v := range s.running {
		close(v.stop)
	}
}

// hasten has a service that has ended, or is about to, started again at once.
func (s *services) hasten(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.running[name]; v != nil {
		select {
		case v.hasten <- struct{}{}:
		default:
		}
	}
}

// startService starts a service. It returns nil if there is no room to record even
// that it cannot be started.
func (g *guest) startService(v *supervisor) *record {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := v.is()
	run := &Run{ID: NewJobID(), Command: s.Command}
	run.Name = s.Name
	j, err := g.startRecorded(run, KindService, false)
	if why, ok := errors.AsType[*startError](err); ok {
		r, err := g.shelf.refuse(run.info(KindService), why)
		if err != nil {
			return nil
		}
		return r
	}
	if err != nil {
		return nil
	}
	if s.Health != nil {
		j.record.feels(HealthStarting, "")
	}
	g.follow(j)
	return j.record
}

// supervise keeps a service running that has just been started, as r.
func (g *guest) supervise(v *supervisor, r *record) {
	defer close(v.ended)
	rest := firstRest
	for {
		began, well := time.Now(), true
		if r != nil {
			var stopped bool
			if stopped, well = g.attend(v, r); stopped {
				return
			}
			r.clear() // what it left running would be in the way of the next
		}
		v.isUp()
		if well && time.Since(began) >= lasted {
			rest = firstRest
		}
		select {
		case <-time.After(rest):
			rest = min(2*rest, lastRest)
		case <-v.hasten:
			rest = firstRest
		case <-v.stop:
			return
		}
		r = g.startService(v)
		g.shelf.prune(v.is().Name)
	}
}

// attend waits until a run of a service has ended, and says whether it was well at any
// time. If the service is to be stopped, it ends the run.
func (g *guest) attend(v *supervisor, r *record) (stopped, well bool) {
	looked := make(chan bool, 1)
	if v.is().Health != nil {
		go func() { looked <- g.watchHealth(v, r) }()
	} else {
		v.isUp()
		looked <- true
	}
	select {
	case <-r.done:
	case <-v.stop:
		r.end("")
		<-r.done
		stopped = true
	}
	return stopped, <-looked
}

// prune deletes the older runs of a service.
func (s *shelf) prune(name string) {
	kept := 0
	all := s.all()
	for i := len(all) - 1; i >= 0; i-- {
		info := all[i].look()
		if info.Kind != KindService || info.Name != name || info.Running() {
			continue
		}
		if kept++; kept > keptRuns {
			s.drop(all[i])
		}
	}
}
