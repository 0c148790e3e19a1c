package tool

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// ripgrep is the finder where that program is: it knows more of searching than we.
type ripgrep struct {
	*query
	program string
}

func (g *ripgrep) args() []string {
	args := []string{
		"--json", "--no-config", "--hidden", "--no-require-git", "--binary", "--crlf",
		"--sort", "path", "--glob", "!.git",
		"--before-context", strconv.Itoa(g.Before), "--after-context", strconv.Itoa(g.After),
	}
	if !g.single {
		args = append(args, "--max-filesize", strconv.Itoa(grepFile))
	}
	for flag, on := range map[string]bool{
		"--no-ignore": g.Ignored, "--ignore-case": g.IgnoreCase, "--fixed-strings": g.Literal, "--multiline": g.Multiline, "--multiline-dotall": g.Multiline,
	} {
		if on {
			args = append(args, flag)
		}
	}
	// A type, as a glob would bring back what is ignored.
	for _, name := range g.names {
		args = append(args, "--type-add", "wanted:"+name)
	}
	if len(g.names) > 0 {
		args = append(args, "--type", "wanted")
	}
	return append(args, "--regexp", g.Pattern, "--", g.root)
}

func (g *ripgrep) find(ctx context.Context, emit func(hits)) (string, error) {
	if ended(ctx) != nil {
		return "it was cancelled", nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, g.program, g.args()...)
	cmd.Dir = "/"
	cmd.WaitDelay = time.Second
	var said bytes.Buffer
	cmd.Stderr = &limitedBuffer{&said, 8 << 10}
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return "", Errorf(Busy, "ripgrep could not be started: %v", err)
	}
	emitted, err := g.events(stdout, emit)
	if err != nil {
		cancel()
	}
	waitErr := cmd.Wait()
	why := strings.TrimSpace(clean(said.Bytes()))
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return "the time for a search was over", nil
	case ctx.Err() != nil && err == nil:
		return "it was cancelled", nil
	case err != nil:
		return "what ripgrep found could not be read: " + err.Error(), nil
	}
	if exit, ok := errors.AsType[*exec.ExitError](waitErr); !ok || exit.ExitCode() == 1 {
		return "", nil
	}
	if !emitted && (strings.Contains(why, "regex") || strings.Contains(why, "multiline")) {
		return "", badExpression(why)
	}
	first, _, _ := strings.Cut(why, "\n")
	return "not everything could be read (" + cmp.Or(cutRunes(first, 200), "ripgrep was ended") + ")", nil
}

// An event is a line of what ripgrep prints.
type event struct {
	Type string `json:"type"`
	Data struct {
		Path       anyText `json:"path"`
		Lines      anyText `json:"lines"`
		Number     int     `json:"line_number"`
		Binary     *int64  `json:"binary_offset"`
		Submatches []struct {
			Start int `json:"start"`
			End   int `json:"end"`
		} `json:"submatches"`
	} `json:"data"`
}

// anyText is text, or bytes where they are no text.
type anyText struct {
	Text  *string `json:"text"`
	Bytes []byte  `json:"bytes"`
}

func (t anyText) bytes() []byte {
	if t.Text != nil {
		return []byte(*t.Text)
	}
	return t.Bytes
}

// maxEvent bounds a line of what ripgrep prints. A line of a file is in it, in
// which each byte may have become six.
const maxEvent = 6*grepFile + 64<<10

// events reads what ripgrep prints.
func (g *ripgrep) events(r io.Reader, emit func(hits)) (emitted bool, err error) {
	in := bufio.NewReaderSize(r, 256<<10)
	var h hits
	var line []byte
	for {
		line, err = eventLine(in, line[:0])
		if err == io.EOF {
			return emitted, nil
		}
		if err != nil {
			return emitted, err
		}
		// What is only counted need not be understood, and there may be much of it.
		const matched = `{"type":"match"`
		if enough := h.count >= g.lines || g.Mode != "content"; enough && bytes.HasPrefix(line, []byte(matched)) {
			h.count++
			continue
		}
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			return emitted, err
		}
		switch e.Type {
		case "begin":
			h = hits{rel: strings.TrimPrefix(strings.TrimPrefix(string(e.Data.Path.bytes()), g.root), "/")}
		case "match":
			h.count++
			h.shown = append(h.shown, e.hit(true))
		case "context":
			if g.Mode == "content" && h.count <= g.lines {
				h.shown = append(h.shown, e.hit(false))
			}
		case "end":
			h.binary = e.Data.Binary != nil
			emit(h)
			emitted = true
		}
	}
}

// hit returns the lines of an event.
func (e event) hit(match bool) hit {
	h := hit{line: e.Data.Number, match: match}
	from, to := 0, 0
	if len(e.Data.Submatches) > 0 {
		from, to = e.Data.Submatches[0].Start, e.Data.Submatches[0].End
	}
	text := bytes.TrimSuffix(e.Data.Lines.bytes(), []byte("\n"))
	for l := range bytes.SplitSeq(text, []byte("\n")) {
		if len(h.text) == regionLines {
			h.text[regionLines-1] += " …"
			break
		}
		shown := bytes.TrimSuffix(l, []byte("\r"))
		h.text = append(h.text, shorten(shown, max(0, from), min(len(shown), to)))
		from, to = from-len(l)-1, to-len(l)-1
	}
	return h
}

func eventLine(in *bufio.Reader, line []byte) ([]byte, error) {
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > maxEvent:
			return nil, bufio.ErrTooLong
		case err == nil, err == io.EOF && len(line) > 0:
			return line, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}
