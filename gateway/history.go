package gateway

import (
	"context"
	"slices"
	"strings"
)

// A history is what was typed at a prompt, now and by the same user before. It
// implements term.History.
type history struct{ lines []string } // the newest last

// Add keeps a line. One that begins with a space is not kept, nor one twice.
func (h *history) Add(line string) {
	line = printable(line)
	if forgettable(line) || len(h.lines) > 0 && h.lines[len(h.lines)-1] == line {
		return
	}
	h.lines = append(h.lines, line)
}

func forgettable(line string) bool { return strings.TrimSpace(line) == "" || line[0] == ' ' }

func (h *history) Len() int { return len(h.lines) }

func (h *history) At(i int) string { return h.lines[len(h.lines)-1-i] }

// loadHistory returns what the caller typed at earlier prompts. A limited key gets
// nothing of what was done with others.
func (l *Login) loadHistory(ctx context.Context) *history {
	h := new(history)
	if w, err := l.who(ctx); err != nil || w.scope.limited() {
		return h
	}
	lines, err := l.gate.db.History(ctx, l.user.ID)
	if err != nil {
		l.log.Warn("history not read", keyErr, err)
	}
	slices.Reverse(lines)
	h.lines = lines
	return h
}

// keepHistory keeps a line for the caller's next prompts: one that was understood, so
// that no value stands where a name belongs, and in which no secret's is.
func (l *Login) keepHistory(ctx context.Context, line string) {
	if w, err := l.who(ctx); err != nil || w.scope.limited() || forgettable(line) {
		return
	}
	l.learnOwn()
	if l.known.current.Load().String(line) != line {
		return
	}
	if err := l.gate.db.AddHistory(ctx, l.user.ID, line); err != nil {
		l.log.Warn("history not kept", keyErr, err)
	}
}
