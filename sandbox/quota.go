package sandbox

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Measure is something that a quota can bound.
type Measure string

// The measures. Those of a month begin anew with each month of UTC.
const (
	QuotaSandboxes Measure = "sandboxes"
	QuotaRunning   Measure = "running" // at the same time
	QuotaHours     Measure = "hours"   // of running sandboxes in a month; in milliseconds
	QuotaTokens    Measure = "tokens"  // of models in a month
	QuotaMoney     Measure = "money"   // for models in a month; in millionths of a US dollar
)

// Measures are all of them.
var Measures = []Measure{QuotaSandboxes, QuotaRunning, QuotaHours, QuotaTokens, QuotaMoney}

// unit is how much of a measure is 1 for people.
func (m Measure) unit() int64 {
	switch m {
	case QuotaHours:
		return time.Hour.Milliseconds()
	case QuotaMoney:
		return 1e6
	}
	return 1
}

func (m Measure) monthly() bool { return m != QuotaSandboxes && m != QuotaRunning }

// words are what is measured, after a number.
func (m Measure) words() string {
	return map[Measure]string{
		QuotaSandboxes: "sandboxes",
		QuotaRunning:   "running sandboxes",
		QuotaHours:     "sandbox-hours this month",
		QuotaTokens:    "tokens this month",
		QuotaMoney:     "US dollars this month",
	}[m]
}

// Parse reads an amount as people write it.
func (m Measure) Parse(s string) (int64, error) {
	if !slices.Contains(Measures, m) {
		return 0, fmt.Errorf("%.40q is not something that a quota can bound", string(m))
	}
	if m.unit() == 1 {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < 0 {
			return 0, fmt.Errorf("%.40q is not a whole number", s)
		}
		return n, nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || !(f >= 0) || f > float64(math.MaxInt64/2/m.unit()) {
		return 0, fmt.Errorf("%.40q is not a number", s)
	}
	return int64(math.Round(f * float64(m.unit()))), nil
}

// Format writes an amount as people read it: with as much after the point as
// there is, at most two digits.
func (m Measure) Format(n int64) string {
	if m.unit() == 1 {
		return strconv.FormatInt(n, 10)
	}
	s := strconv.FormatFloat(float64(n)/float64(m.unit()), 'f', 2, 64)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// Amounts are how much of each measure; what is missing as a quota has no bound,
// and as use is none.
type Amounts map[Measure]int64

// A Standing is how much of a quota is used.
type Standing struct {
	Measure     Measure
	Limit, Used int64
	Together    bool      // of all users, and not of one
	Resets      time.Time // zero: not by itself
}

// Standings returns how quotas stand, in the order of Measures.
func Standings(quotas, used Amounts, together bool, now time.Time) []Standing {
	var all []Standing
	for _, m := range Measures {
		limit, bound := quotas[m]
		if !bound {
			continue
		}
		s := Standing{Measure: m, Limit: limit, Used: used[m], Together: together}
		if m.monthly() {
			y, month, _ := now.UTC().Date()
			s.Resets = time.Date(y, month+1, 1, 0, 0, 0, 0, time.UTC)
		}
		all = append(all, s)
	}
	return all
}

// Reached says whether nothing is left.
func (s Standing) Reached() bool { return s.Used >= s.Limit }

// Near says whether it is time for a warning: at 80 %.
func (s Standing) Near() bool { return s.Share() >= 80 }

// Share is how much is used, in percent, rounded down.
func (s Standing) Share() int {
	if s.Limit == 0 {
		return 100
	}
	return int(float64(s.Used) / float64(s.Limit) * 100)
}

// String says how the quota stands, such as "81 of 100 sandbox-hours this month
// are used, until 2026-12-01".
func (s Standing) String() string {
	whose := ""
	if s.Together {
		whose = " by all users together"
	}
	text := fmt.Sprintf("%s of %s %s are used%s", s.Measure.Format(s.Used), s.Measure.Format(s.Limit), s.Measure.words(), whose)
	if !s.Resets.IsZero() {
		text += ", until " + s.Resets.Format(time.DateOnly)
	}
	return text
}

// A QuotaError says that a quota has been reached.
type QuotaError struct{ Standing }

func (e *QuotaError) Error() string {
	return "quota " + string(e.Measure) + " is reached: " + e.String()
}

// Refused returns the first of standings that is reached and of one of measures;
// nil if there is none.
func Refused(standings []Standing, measures ...Measure) *QuotaError {
	for _, s := range standings {
		if s.Reached() && slices.Contains(measures, s.Measure) {
			return &QuotaError{s}
		}
	}
	return nil
}
