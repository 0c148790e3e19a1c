package redact

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
)

func TestHandler(t *testing.T) {
	const v = "s3cr3tvalue"
	var b strings.Builder
	var current *Redactor
	log := slog.New(NewHandler(slog.NewTextHandler(&b, nil), func() *Redactor { return current })).With("a", "kept")
	log.Info("before", "k", v)
	if !strings.Contains(b.String(), v) {
		t.Fatal("redacted what is not known yet")
	}
	b.Reset()
	current = New([]string{v})
	log.With("k", v).WithGroup("g").Info("said "+v, "err", errors.New("x "+v), "n", 7,
		slog.Group("h", "k", v), "list", []string{v}, "m", map[string]int{v: 1})
	got := b.String()
	if strings.Contains(got, v) || strings.Count(got, "[redacted]") != 6 || !strings.Contains(got, "g.n=7") || !strings.Contains(got, "a=kept") {
		t.Errorf("logged %s", got)
	}
}
