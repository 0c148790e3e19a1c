package sandbox

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestStandings(t *testing.T) {
	hour := time.Hour.Milliseconds()
	for _, tt := range []struct {
		name         string
		quotas, used Amounts
		together     bool
		measures     []Measure
		refused      string // the error; empty: none
		near         int    // how many
	}{
		{name: "no quota", used: Amounts{QuotaSandboxes: 1000, QuotaHours: 1 << 60}, measures: Measures},
		{name: "far from it", quotas: Amounts{QuotaSandboxes: 5}, used: Amounts{QuotaSandboxes: 3}, measures: Measures},
		{name: "near", quotas: Amounts{QuotaSandboxes: 5}, used: Amounts{QuotaSandboxes: 4}, measures: Measures, near: 1},
		{name: "just not near", quotas: Amounts{QuotaTokens: 1000}, used: Amounts{QuotaTokens: 799}, measures: Measures},
		{
			name: "reached", quotas: Amounts{QuotaSandboxes: 5}, used: Amounts{QuotaSandboxes: 5}, measures: []Measure{QuotaSandboxes},
			near: 1, refused: "quota sandboxes is reached: 5 of 5 sandboxes are used",
		},
		{name: "reached, and of no matter", quotas: Amounts{QuotaSandboxes: 5}, used: Amounts{QuotaSandboxes: 6}, measures: []Measure{QuotaHours}, near: 1},
		{
			name: "nothing at all", quotas: Amounts{QuotaRunning: 0}, measures: []Measure{QuotaRunning},
			near: 1, refused: "quota running is reached: 0 of 0 running sandboxes are used",
		},
		{
			name: "hours", quotas: Amounts{QuotaHours: 100 * hour}, used: Amounts{QuotaHours: 100*hour + hour/2}, measures: []Measure{QuotaHours},
			near: 1, refused: "quota hours is reached: 100.5 of 100 sandbox-hours this month are used, until 2027-01-01",
		},
		{name: "a millisecond before", quotas: Amounts{QuotaHours: hour}, used: Amounts{QuotaHours: hour - 1}, measures: []Measure{QuotaHours}, near: 1},
		{
			name: "together", together: true, quotas: Amounts{QuotaMoney: 2e6}, used: Amounts{QuotaMoney: 2_500_000}, measures: []Measure{QuotaMoney},
			near: 1, refused: "quota money is reached: 2.5 of 2 US dollars this month are used by all users together, until 2027-01-01",
		},
	} {
		now := time.Date(2026, 12, 31, 23, 59, 59, 0, time.UTC)
		standings := Standings(tt.quotas, tt.used, tt.together, now)
		near := 0
		for _, s := range standings {
			if s.Near() {
				near++
			}
		}
		got := ""
		if err := Refused(standings, tt.measures...); err != nil {
			got = err.Error()
		}
		if got != tt.refused || near != tt.near {
			t.Errorf("%s: refused with %q, %d near; want %q, %d", tt.name, got, near, tt.refused, tt.near)
		}
	}
}

// A quota of a month begins anew with the month of UTC, wherever the gateway is.
func TestStandingsReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // begins at 2000-01-01 00:00:00 UTC
		resets := func() string {
			zone := time.FixedZone("far west", -11*60*60)
			return Standings(Amounts{QuotaHours: 1}, nil, false, time.Now().In(zone))[0].Resets.Format(time.RFC3339)
		}
		for _, tt := range []struct {
			wait time.Duration
			want string
		}{
			{0, "2000-02-01T00:00:00Z"},
			{31*24*time.Hour - time.Nanosecond, "2000-02-01T00:00:00Z"},
			{time.Nanosecond, "2000-03-01T00:00:00Z"},
			{(29 + 31) * 24 * time.Hour, "2000-05-01T00:00:00Z"},
		} {
			time.Sleep(tt.wait)
			if got := resets(); got != tt.want {
				t.Errorf("at %v the quota begins anew at %s, want %s", time.Now(), got, tt.want)
			}
		}
	})
}

func TestMeasureAmounts(t *testing.T) {
	for _, tt := range []struct {
		m     Measure
		in    string
		want  int64
		shown string // empty: refused
	}{
		{QuotaSandboxes, "5", 5, "5"}, {QuotaSandboxes, "0", 0, "0"},
		{QuotaHours, "1.5", 5_400_000, "1.5"}, {QuotaHours, "100", 360_000_000, "100"},
		{QuotaMoney, "20", 20_000_000, "20"}, {QuotaMoney, "0.01", 10_000, "0.01"}, {QuotaMoney, "1.239", 1_239_000, "1.24"},
		{QuotaSandboxes, "1.5", 0, ""}, {QuotaSandboxes, "-1", 0, ""}, {QuotaSandboxes, "", 0, ""}, {QuotaTokens, "99999999999999999999", 0, ""},
		{QuotaHours, "-1", 0, ""}, {QuotaHours, "NaN", 0, ""}, {QuotaHours, "Inf", 0, ""}, {QuotaHours, "1e300", 0, ""},
		{"bananas", "1", 0, ""},
	} {
		n, err := tt.m.Parse(tt.in)
		if (err == nil) != (tt.shown != "") || n != tt.want || err == nil && tt.m.Format(n) != tt.shown {
			t.Errorf("%s %q is %d, shown as %q, %v", tt.m, tt.in, n, tt.m.Format(n), err)
		}
	}
}
