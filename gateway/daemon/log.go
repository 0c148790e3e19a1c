package daemon

import (
	"fmt"
	"io"
	"log/slog"
)

// A logger is a log whose level can change.
type logger struct {
	*slog.Logger
	level *slog.LevelVar
}

// newLogger returns a log in a format, text or json, from a level on.
func newLogger(w io.Writer, format, level string) (*logger, error) {
	l := &logger{level: new(slog.LevelVar)}
	from, err := parseLevel(level)
	if err != nil {
		return nil, err
	}
	l.level.Set(from)
	options := &slog.HandlerOptions{Level: l.level}
	switch format {
	case "text":
		l.Logger = slog.New(slog.NewTextHandler(w, options))
	case "json":
		l.Logger = slog.New(slog.NewJSONHandler(w, options))
	default:
		return nil, fmt.Errorf("log-format is text or json, not %q", format)
	}
	return l, nil
}

func parseLevel(s string) (slog.Level, error) {
	switch s {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, fmt.Errorf("log-level is debug, info, warn or error, not %q", s)
}
