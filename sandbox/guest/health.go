//go:build linux

package guest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"
)

// firstLooks is how often it is looked whether a service that starts is well yet.
const firstLooks = time.Second

// watchHealth looks after the health of a service's run until the run has ended, which
// it sees to if that is not well. It says whether the run was well at any time.
func (g *guest) watchHealth(v *supervisor, r *record) (well bool) {
	s, began, failed := v.is(), time.Now(), 0
	for pause := min(firstLooks, s.Health.Interval); ; {
		select {
		case <-time.After(pause):
		case <-r.done:
			return well
		}
		err := g.examine(s, r)
		switch {
		case r.runs() == nil:
			return well
		case err == nil:
			failed, well, pause = 0, true, s.Health.Interval
			r.feels(HealthHealthy, "")
			v.isUp()
			continue
		case !well && time.Since(began) < s.Health.Grace:
			r.feels(HealthStarting, err.Error())
			continue
		}
		pause = s.Health.Interval
		if failed++; failed >= s.Health.Failures {
			r.feels(HealthUnhealthy, err.Error())
			r.end(ReasonUnhealthy)
			<-r.done
			return well
		}
		r.feels("", err.Error())
	}
}

// examine runs a service's health command, and says what it has to say if it fails. It
// ends with the run of the service at the latest.
func (g *guest) examine(s Service, r *record) error {
	cmd := s.Command
	cmd.Text, cmd.Env, cmd.marked = s.Health.Text, slices.Clone(s.Env), true
	j, err := g.launch(&cmd, false, nil)
	if err != nil {
		return err
	}
	j.stdin.Close()
	var said lastWords
	var readers sync.WaitGroup
	for _, f := range []*os.File{j.stdout, j.stderr} {
		readers.Go(func() {
			io.Copy(&said, &drainer{file: f, quiet: recordDrain})
			f.Close()
		})
	}
	late := false
	timeout := time.NewTimer(s.Health.Timeout)
	defer timeout.Stop()
	select {
	case <-j.ended:
	case <-timeout.C:
		late = true
	case <-r.done:
	}
	j.endAll(0) // also what it would leave running, each time anew
	<-j.ended
	past := time.Unix(1, 0) // wakes the readers
	j.stdout.SetReadDeadline(past)
	j.stderr.SetReadDeadline(past)
	readers.Wait()
	exit := exitOf(j.ending.status)
	switch {
	case late:
		return said.after(fmt.Sprintf("no answer within %v", s.Health.Timeout))
	case exit.Signal != "":
		return said.after("signal " + exit.Signal)
	case exit.Code != 0:
		return said.after(fmt.Sprintf("exit %d", exit.Code))
	}
	return nil
}

// lastWords keeps the last of what is written to it.
type lastWords struct {
	mu   sync.Mutex
	text []byte
}

func (l *lastWords) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p[max(0, len(p)-maxSays):]...)
	l.text = l.text[max(0, len(l.text)-maxSays):]
	return len(p), nil
}

// after is the error of a command that has ended in some way, with its last words.
func (l *lastWords) after(how string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if words := oneLine(string(l.text)); words != "" {
		how += ": " + words
	}
	return errors.New(how)
}

// feels notes how a service is, and why it is not well. An empty state is the same as
// before.
func (r *record) feels(state HealthState, says string) {
	says = oneLine(says)
	if len(says) > maxSays {
		says = oneLine(says[:maxSays-len("\uFFFD")])
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if state != "" {
		r.info.Health = state
	}
	r.info.HealthSays = says
}
