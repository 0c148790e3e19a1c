package redact

import (
	"context"
	"fmt"
	"log/slog"
)

// A Handler is a slog.Handler whose lines are without the values that current
// knows at the time.
type Handler struct {
	next    slog.Handler
	current func() *Redactor
}

// NewHandler returns a Handler on top of next. current may return nil.
func NewHandler(next slog.Handler, current func() *Redactor) *Handler {
	return &Handler{next: next, current: current}
}

// Enabled is part of slog.Handler.
func (h *Handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

// Handle is part of slog.Handler.
func (h *Handler) Handle(ctx context.Context, record slog.Record) error {
	r := h.current()
	if r == nil {
		return h.next.Handle(ctx, record)
	}
	clean := slog.NewRecord(record.Time, record.Level, r.String(record.Message), record.PC)
	record.Attrs(func(a slog.Attr) bool {
		clean.AddAttrs(r.attr(a))
		return true
	})
	return h.next.Handle(ctx, clean)
}

// WithAttrs is part of slog.Handler.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	r := h.current()
	clean := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		clean[i] = r.attr(a)
	}
	return &Handler{next: h.next.WithAttrs(clean), current: h.current}
}

// WithGroup is part of slog.Handler.
func (h *Handler) WithGroup(name string) slog.Handler {
	return &Handler{next: h.next.WithGroup(name), current: h.current}
}

// attr returns a without the values. What is more than text or a number becomes
// text if it has one in it.
func (r *Redactor) attr(a slog.Attr) slog.Attr {
	if r == nil {
		return a
	}
	v := a.Value.Resolve()
	switch v.Kind() {
	case slog.KindString:
		return slog.String(a.Key, r.String(v.String()))
	case slog.KindGroup:
		members := v.Group()
		clean := make([]slog.Attr, len(members))
		for i, m := range members {
			clean[i] = r.attr(m)
		}
		return slog.Attr{Key: a.Key, Value: slog.GroupValue(clean...)}
	case slog.KindAny:
		if text := fmt.Sprintf("%+v", v.Any()); r.String(text) != text {
			return slog.String(a.Key, r.String(text))
		}
	}
	return a
}
