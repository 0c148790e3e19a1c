package gateway

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandgate/gateway/redact"
	"sandgate/sandbox/guest"
	"sandgate/store"
)

// newCast returns a recorder and a function that ends it and returns its lines.
func newCast(t *testing.T, secrets ...string) (*castRecorder, func() [][]any) {
	t.Helper()
	dir := t.TempDir()
	db, err := store.Open(t.Context(), filepath.Join(dir, "db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	l := &Login{gate: &Gateway{db: db, cfg: Fixed{Recordings: filepath.Join(dir, "rec")}}, log: slog.New(slog.DiscardHandler)}
	var said bytes.Buffer
	r := l.record(t.Context(), store.Sandbox{Name: "web", Owner: "alice", UserID: 1}, &guest.Terminal{Term: "xterm"}, redact.New(secrets), &said)
	if r == nil {
		t.Fatal(said.String())
	}
	return r, func() [][]any {
		t.Helper()
		r.end()
		b, err := os.ReadFile(recordingFile(l.gate.cfg.Recordings, r.id))
		if err != nil {
			t.Fatal(err)
		}
		row, err := db.Recording(t.Context(), r.id)
		if err != nil || row.Size != int64(len(b)) || row.Ended.IsZero() {
			t.Errorf("the row is %+v, %v; the file has %d bytes", row, err, len(b))
		}
		head, rest, _ := strings.Cut(string(b), "\n")
		var header struct{ Version, Width, Height int }
		if err := json.Unmarshal([]byte(head), &header); err != nil || header.Version != 2 || header.Width != 80 || header.Height != 24 {
			t.Errorf("header %s: %v", head, err)
		}
		var events [][]any
		for line := range strings.Lines(rest) {
			at, code, data, err := parseCastEvent([]byte(line))
			if err != nil || at < 0 {
				t.Fatalf("%q: %v", line, err)
			}
			events = append(events, []any{code, data})
		}
		return events
	}
}

func shown(events [][]any) string {
	var b strings.Builder
	for _, e := range events {
		if e[0] == "o" {
			b.WriteString(e[1].(string))
		}
	}
	return b.String()
}

func TestRecording(t *testing.T) {
	r, end := newCast(t, "s3cr3tvalue")
	text := "héllo 世界 s3cr3tvalue\r\n"
	for _, b := range []byte(text) { // characters and secrets are cut anywhere
		r.output([]byte{b})
	}
	r.resize(guest.Size{Columns: 100, Rows: 50})
	r.output([]byte("s3cr3t"))
	r.output([]byte("\xe4\xb8")) // never completed
	events := end()
	if got, want := shown(events), "héllo 世界 [redacted]\r\ns3cr3t\uFFFD\uFFFD"; got != want {
		t.Errorf("shown %q, want %q", got, want)
	}
	resized := false
	for _, e := range events {
		resized = resized || e[0] == "r" && e[1] == "100x50"
	}
	if !resized {
		t.Errorf("no new size in %v", events)
	}
	r.output([]byte("late"))
	r.resize(guest.Size{})
	r.end()
}

func TestRecordingIsBounded(t *testing.T) {
	r, end := newCast(t)
	chunk := []byte(strings.Repeat("x", 256<<10))
	for range maxRecording/len(chunk) + 10 {
		r.output(chunk)
	}
	if r.size > maxRecording+1<<10 {
		t.Errorf("%d bytes", r.size)
	}
	if got := shown(end()); !strings.HasSuffix(got, "[the recording ends here, at 32 MiB]\r\n") {
		t.Errorf("ends with %q", got[len(got)-60:])
	}
}

func TestNoRecording(t *testing.T) {
	var r *castRecorder
	r.resize(guest.Size{})
	r.end()
	var b strings.Builder
	if n, err := (recordedWriter{&b, r}).Write([]byte("x")); n != 1 || err != nil || b.String() != "x" {
		t.Errorf("%d, %v, %q", n, err, b.String())
	}
}

func FuzzParseCastEvent(f *testing.F) {
	f.Add(`[1.5,"o","x"]`)
	f.Add(`["o"]`)
	f.Add(`[1e999,"o","x"]`)
	f.Fuzz(func(t *testing.T, line string) {
		at, code, data, err := parseCastEvent([]byte(line))
		if err != nil {
			return
		}
		again, err := json.Marshal([]any{at, code, data})
		if err != nil {
			t.Fatal(err)
		}
		at2, code2, data2, err := parseCastEvent(again)
		if err != nil || at2 != at || code2 != code || data2 != data {
			t.Errorf("%q became %q, %v", line, again, err)
		}
	})
}
