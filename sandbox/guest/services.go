package guest

import (
	"context"
	"errors"
	"strings"
	"time"
	"unicode"
)

// maxSays bounds what is kept of what a health command says, in bytes.
const maxSays = 300

// oneLine makes a line that can be shown of what a program has printed.
func oneLine(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == ' ' }), " ")
}

// maxServices bounds those of one sandbox.
const maxServices = 32

// A Service is a command that is kept running: a recorded job of KindService and of
// the service's name, started again when it has ended, later and later as long as it
// does not last. One that cannot be started is such a job, too, which has ended.
type Service struct {
	Name string `json:"name"`
	Command
	Health *Health `json:"health,omitempty"` // nil: it is well as long as it runs
}

// A Health is how to find out whether a service is well: a command that is run where
// and as the service is, and exits with 0 if so. Until it has once, it is run every
// second, or at every Interval if that is shorter.
type Health struct {
	Text     []byte        `json:"text"`
	Interval time.Duration `json:"interval"`        // between one run of the command and the next
	Timeout  time.Duration `json:"timeout"`         // after which a run of it has failed
	Failures int           `json:"failures"`        // one after the other, which end the service, to be started again
	Grace    time.Duration `json:"grace,omitempty"` // from the service's start, in which they do not count until it was well
}

// The bounds of a Health.
const (
	MaxHealthTime     = time.Hour // of each time in it
	MaxHealthFailures = 100
)

func (h *Health) valid() bool {
	span := func(d, least time.Duration) bool { return d >= least && d <= MaxHealthTime }
	return len(h.Text) > 0 && span(h.Interval, time.Second) && span(h.Timeout, time.Second) && span(h.Grace, 0) &&
		h.Failures > 0 && h.Failures <= MaxHealthFailures
}

// A HealthState is how a service is.
type HealthState string

// The states of a service that has a Health. Of others it is empty.
const (
	HealthStarting  HealthState = "starting" // it was not well yet
	HealthHealthy   HealthState = "healthy"
	HealthUnhealthy HealthState = "unhealthy" // and is ended for it
)

func (s HealthState) known() bool {
	return s == HealthStarting || s == HealthHealthy || s == HealthUnhealthy
}

// Serve says which services the sandbox is to have: missing ones are started in this
// order, others ended, and those whose command or health has changed start anew. What
// else has changed, such as the environment, holds from their next start on. One after
// a service with a Health waits until that is well, or has turned out not to be. The
// guest keeps them until the sandbox stops, whatever becomes of the client.
func (c *Client) Serve(ctx context.Context, services []Service) error {
	if !validServices(services) {
		return errors.New("invalid services")
	}
	h := header{Kind: kindServe, Services: services}
	if len(appendLine(nil, h)) > maxHeader {
		return ErrTooLong
	}
	return c.tell(ctx, h, replyTimeout)
}

func validServices(services []Service) bool {
	seen := make(map[string]bool)
	for _, s := range services {
		if !jobName.MatchString(s.Name) || seen[s.Name] || s.Terminal != nil || s.Health != nil && !s.Health.valid() {
			return false
		}
		seen[s.Name] = true
	}
	return len(services) <= maxServices
}
