package gateway

import (
	"io"
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// A table lays out lines whose cells are separated by tabs. Where its reader has a
// terminal no line is wider than that: the widest columns are cut. Without one
// nothing is, as a program may read it.
type table struct {
	w     io.Writer
	width int // of the terminal; 0: there is none, or it does not say
	text  strings.Builder
}

// table returns a table on the verb's standard output.
func (c *verbCall) table() *table { return &table{w: c.stdout, width: c.session.columns()} }

// onTerminal says whether the verb's output is shown on a terminal.
func (c *verbCall) onTerminal() bool { return c.session != nil && c.session.terminal != nil }

// columns is the width of the client's terminal; 0 if it has none, or does not say.
func (s *session) columns() int {
	if s == nil || s.terminal == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.size != nil {
		return int(min(s.size.Columns, maxColumns))
	}
	return int(min(s.terminal.Size.Columns, maxColumns))
}

// maxColumns is more than any terminal has.
const maxColumns = 1 << 12

// columnGap is what stands between columns, and leastColumn is as narrow as one gets.
const (
	columnGap   = 2
	leastColumn = 4
)

func (t *table) Write(p []byte) (int, error) { return t.text.Write(p) }

// Flush writes the table.
func (t *table) Flush() error {
	var rows [][]string
	columns := 0
	for line := range strings.Lines(t.text.String()) {
		cells := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		rows = append(rows, cells)
		columns = max(columns, len(cells))
	}
	widths := make([]int, columns)
	for _, cells := range rows {
		for i, cell := range cells {
			if i < len(cells)-1 || i == columns-1 { // or nothing stands beside it
				widths[i] = max(widths[i], ansi.StringWidth(cell))
			}
		}
	}
	if t.width > 0 {
		fit(widths, t.width)
	}
	var out strings.Builder
	for _, cells := range rows {
		var line strings.Builder
		for i, cell := range cells {
			if i == len(cells)-1 {
				line.WriteString(cell)
				break
			}
			if t.width > 0 {
				cell = ansi.Truncate(cell, widths[i], "…")
			}
			line.WriteString(cell + strings.Repeat(" ", widths[i]-ansi.StringWidth(cell)+columnGap))
		}
		s := line.String()
		if t.width > 0 {
			s = ansi.Truncate(s, t.width, "…")
		}
		out.WriteString(s + "\n")
	}
	_, err := io.WriteString(t.w, out.String())
	return err
}

// fit takes from the widest columns until all together are no wider than that.
func fit(widths []int, width int) {
	all := columnGap * (len(widths) - 1)
	for _, w := range widths {
		all += w
	}
	for ; all > width; all-- {
		i := slices.Index(widths, slices.Max(widths))
		if widths[i] <= leastColumn {
			return
		}
		widths[i]--
	}
}
