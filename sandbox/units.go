package sandbox

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// A Size is an amount of memory or disk in bytes. As text it is a number and,
// perhaps, K, M, G or T with or without B or iB, all of them powers of 1024.
type Size int64

// ParseSize reads a size, which is more than nothing.
func ParseSize(s string) (Size, error) {
	number, shift := strings.ToUpper(s), 0
	for _, end := range []string{"IB", "B"} {
		if rest, ok := strings.CutSuffix(number, end); ok {
			number = rest
			break
		}
	}
	if number != "" {
		if i := strings.IndexByte("KMGT", number[len(number)-1]); i >= 0 {
			shift, number = 10*(i+1), number[:len(number)-1]
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n <= 0 || number[0] == '+' || n > math.MaxInt64>>shift {
		return 0, fmt.Errorf("%.40q is no size such as 512M or 2G", s)
	}
	return Size(n << shift), nil
}

// String returns the shortest text that ParseSize reads as s.
func (s Size) String() string {
	const units = "KMGT"
	n, unit := int64(s), ""
	for i := 0; i < len(units) && n != 0 && n%1024 == 0; i++ {
		n, unit = n/1024, units[i:i+1]
	}
	return strconv.FormatInt(n, 10) + unit
}

// UnmarshalText is ParseSize.
func (s *Size) UnmarshalText(text []byte) (err error) {
	*s, err = ParseSize(string(text))
	return err
}

// A Duration is a time span of at least a second that can be asked for, asked not
// to be, or not be asked for, which is zero. As text it is what time.Duration has
// as text, or days as in 7d, or off.
type Duration time.Duration

// Off is a Duration that was asked not to be.
const Off Duration = -1

const day = 24 * time.Hour

// ParseDuration reads a duration.
func ParseDuration(s string) (Duration, error) {
	if s == "off" {
		return Off, nil
	}
	d, err := time.ParseDuration(s)
	if days, ok := strings.CutSuffix(s, "d"); ok {
		var n uint64
		if n, err = strconv.ParseUint(days, 10, 16); err == nil {
			d = time.Duration(n) * day
		}
	}
	if err != nil {
		return 0, fmt.Errorf("%.40q is no time span such as 30m, 2h or 7d", s)
	}
	if d < time.Second {
		return 0, fmt.Errorf("%.40q is less than a second", s)
	}
	return Duration(d), nil
}

// On reports whether the duration is one.
func (d Duration) On() bool { return d > 0 }

// String returns text that ParseDuration reads as d.
func (d Duration) String() string {
	switch t := time.Duration(d); {
	case d == 0:
		return ""
	case d == Off:
		return "off"
	case t%day == 0:
		return strconv.FormatInt(int64(t/day), 10) + "d"
	default:
		s := t.String()
		if rest, ok := strings.CutSuffix(s, "m0s"); ok {
			s = rest + "m"
		}
		if rest, ok := strings.CutSuffix(s, "h0m"); ok {
			s = rest + "h"
		}
		return s
	}
}

// MarshalText returns String.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText is ParseDuration, but for the empty text, which is zero.
func (d *Duration) UnmarshalText(text []byte) (err error) {
	if len(text) == 0 {
		*d = 0
		return nil
	}
	*d, err = ParseDuration(string(text))
	return err
}

// Idle is what becomes of a sandbox in which nothing has been going on for a
// while. As text it is stop:DURATION, pause:DURATION or off.
type Idle struct {
	Stop  Duration // it is stopped after that
	Pause Duration // or paused after that
}

// After returns for how long nothing may be going on; not On: for ever.
func (i Idle) After() Duration { return max(i.Stop, i.Pause) }

// ParseIdle reads a rule.
func ParseIdle(s string) (Idle, error) {
	what, after, _ := strings.Cut(s, ":")
	switch what {
	case "off":
		if s == what {
			return Idle{Stop: Off}, nil
		}
	case "stop", "pause":
		d, err := ParseDuration(after)
		if err != nil || d == Off {
			return Idle{}, fmt.Errorf("%.40q is no rule such as %s:30m", s, what)
		}
		if what == "pause" {
			return Idle{Pause: d}, nil
		}
		return Idle{Stop: d}, nil
	}
	return Idle{}, fmt.Errorf("%.40q is no rule such as stop:30m, pause:30m or off", s)
}

// String returns text that ParseIdle reads as i, or nothing for no rule at all.
func (i Idle) String() string {
	switch {
	case i.Stop.On():
		return "stop:" + i.Stop.String()
	case i.Pause.On():
		return "pause:" + i.Pause.String()
	}
	return i.Stop.String()
}

// MarshalText returns String.
func (i Idle) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// UnmarshalText is ParseIdle, but for the empty text, which is no rule.
func (i *Idle) UnmarshalText(text []byte) (err error) {
	if len(text) == 0 {
		*i = Idle{}
		return nil
	}
	*i, err = ParseIdle(string(text))
	return err
}
