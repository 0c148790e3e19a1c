package sandbox_test

import (
	"testing"
	"time"

	"sandgate/sandbox"
)

func TestParseSize(t *testing.T) {
	for in, want := range map[string]sandbox.Size{
		"1": 1, "512M": 512 << 20, "2G": 2 << 30, "2g": 2 << 30, "2GiB": 2 << 30, "2gb": 2 << 30, "1T": 1 << 40, "7k": 7 << 10, "10B": 10,
		"": -1, "0": -1, "-1": -1, "+1": -1, "G": -1, "B": -1, "iB": -1, "1BB": -1, "1.5G": -1, "x": -1, "9999999999999G": -1, "1 G": -1, "0x10": -1,
	} {
		got, err := sandbox.ParseSize(in)
		if (err != nil) != (want == -1) || err == nil && got != want {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", in, got, err, want)
		}
	}
}

// What parses prints back as the same.
func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"1", "512M", "2GiB", "1536k", "0", "8T"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		size, err := sandbox.ParseSize(s)
		if err != nil {
			return
		}
		if again, err := sandbox.ParseSize(size.String()); err != nil || again != size || size <= 0 {
			t.Errorf("%q is %d, prints as %q, and that is %d, %v", s, size, size, again, err)
		}
	})
}

func TestParseDuration(t *testing.T) {
	const invalid = 0
	for in, want := range map[string]time.Duration{
		"30m": 30 * time.Minute, "2h": 2 * time.Hour, "7d": 7 * 24 * time.Hour, "1h30m": 90 * time.Minute, "1s": time.Second,
		"off": time.Duration(sandbox.Off),
		"":    invalid, "0": invalid, "0s": invalid, "-1h": invalid, "1": invalid, "1d12h": invalid, "-1d": invalid, "999999999d": invalid,
		"500ms": invalid, "d": invalid, "OFF": invalid,
	} {
		got, err := sandbox.ParseDuration(in)
		if (err != nil) != (want == invalid) || err == nil && time.Duration(got) != want {
			t.Errorf("ParseDuration(%q) = %v, %v; want %v", in, got, err, want)
		}
	}
}

func FuzzParseDuration(f *testing.F) {
	for _, s := range []string{"30m", "2h", "7d", "1h30m", "off", "90s", "1.5h", "1000ms"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := sandbox.ParseDuration(s)
		if err != nil {
			return
		}
		if again, err := sandbox.ParseDuration(d.String()); err != nil || again != d || d == 0 {
			t.Errorf("%q is %d, prints as %q, and that is %d, %v", s, d, d, again, err)
		}
	})
}

func TestParseIdle(t *testing.T) {
	for in, want := range map[string]string{
		"stop:30m": "stop:30m", "pause:90m": "pause:1h30m", "stop:90m": "stop:1h30m", "off": "off",
		"": "", "30m": "", "stop": "", "stop:": "", "stop:off": "", "stop:0s": "", "off:30m": "", "pause": "", "pause:off": "", "kill:30m": "",
	} {
		got, err := sandbox.ParseIdle(in)
		if (err != nil) != (want == "") || err == nil && got.String() != want {
			t.Errorf("ParseIdle(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
}
