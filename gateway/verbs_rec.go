package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"sandgate/sandbox"
)

type recVerbs struct {
	Ls   recLsVerb   `cmd:"" help:"List the recordings of your sandboxes. Example: rec ls"`
	Play recPlayVerb `cmd:"" help:"Show a recording in your terminal; q or ^C ends it. Example: rec play ID"`
	Cat  recCatVerb  `cmd:"" help:"Print a recording, as asciicast v2. Example: rec cat ID >web.cast"`
	Rm   recRmVerb   `cmd:"" help:"Delete recordings. Example: rec rm ID"`
}

type recLsVerb struct {
	JSON
	All bool `help:"Those of all users; for admins."`
}

// A recView is a recording as JSON has it.
type recView struct {
	ID      string     `json:"id"`
	Sandbox string     `json:"sandbox"` // NAME.OWNER
	User    string     `json:"user"`
	Conn    string     `json:"conn"`
	Started time.Time  `json:"started"`
	Ended   *time.Time `json:"ended,omitempty"`
	Size    int64      `json:"size"`
}

func (v *recLsVerb) Run(c *verbCall) error {
	all, err := c.login.Recordings(c.ctx, v.All)
	if err != nil {
		return err
	}
	t := c.table()
	fmt.Fprintln(t, "ID\tSANDBOX\tUSER\tSTARTED\tTIME\tSIZE")
	for _, r := range all {
		w := recView{ID: r.ID, Sandbox: r.Sandbox, User: r.User, Conn: r.Conn, Started: r.Started, Size: r.Size}
		took := "-"
		if !r.Ended.IsZero() {
			w.Ended = &r.Ended
			took = r.Ended.Sub(r.Started).Round(time.Second).String()
		}
		if v.JSON.JSON {
			if err := c.print(true, w, ""); err != nil {
				return err
			}
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", w.ID, w.Sandbox, w.User, w.Started.Format(time.RFC3339), took, size(w.Size))
	}
	if v.JSON.JSON {
		return nil
	}
	return t.Flush()
}

type recCatVerb struct {
	ID string `arg:"" help:"Recording."`
	JSON
}

// lasting: it may be large, and the client slow.
func (*recCatVerb) lasting() {}

// Run prints the file; --json changes nothing, as it consists of JSON.
func (v *recCatVerb) Run(c *verbCall) error {
	f, err := c.login.OpenRecording(c.ctx, "rec cat", v.ID)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(c.stdout, f)
	return err
}

type recRmVerb struct {
	JSON
	IDs []string `arg:"" name:"id" help:"Recordings."`
}

func (v *recRmVerb) Run(c *verbCall) error {
	return c.each(v.IDs, v.JSON.JSON, "removed", func(id string) error { return c.login.RemoveRecording(c.ctx, id) })
}

type recPlayVerb struct {
	JSON
	ID       string           `arg:"" help:"Recording."`
	Speed    float64          `default:"1" help:"How many times as fast (${default})."`
	MaxPause sandbox.Duration `default:"2s" help:"At most that long without anything new (${default})."`
}

// lasting: it takes as long as what was recorded.
func (*recPlayVerb) lasting() {}

// maxCastLine bounds a line of a recording: what was shown at once, in JSON.
const maxCastLine = 4 << 20

func (v *recPlayVerb) Run(c *verbCall) error {
	if !(v.Speed > 0) || v.MaxPause < 0 {
		return &problem{kind: usage, sentence: "speed and pause are more than nothing"}
	}
	f, err := c.login.OpenRecording(c.ctx, "rec play", v.ID)
	if err != nil {
		return err
	}
	defer f.Close()
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	out := c.stdout
	if c.onTerminal() {
		out = c.session.ch // a terminal's own bytes, ends of lines and all
		go stopAtKey(c.stdin, cancel)
	}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, maxCastLine)
	lines.Scan() // the header
	last := 0.0
	for lines.Scan() {
		at, code, data, err := parseCastEvent(lines.Bytes())
		if err != nil {
			return fmt.Errorf("recording %s: %w", v.ID, err)
		}
		if code != "o" {
			continue
		}
		pause := time.Duration(min(max(0, (at-last)/v.Speed), time.Duration(v.MaxPause).Seconds()) * float64(time.Second))
		last = at
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
		if _, err := io.WriteString(out, data); err != nil {
			return err
		}
	}
	return lines.Err()
}

// parseCastEvent reads a line of asciicast v2: [seconds, code, data].
func parseCastEvent(line []byte) (at float64, code, data string, err error) {
	var parts []json.RawMessage
	if err := json.Unmarshal(line, &parts); err != nil {
		return 0, "", "", err
	}
	if len(parts) != 3 {
		return 0, "", "", errors.New("malformed event")
	}
	return at, code, data, errors.Join(json.Unmarshal(parts[0], &at), json.Unmarshal(parts[1], &code), json.Unmarshal(parts[2], &data))
}

// stopAtKey calls stop when somebody has had enough.
func stopAtKey(r io.Reader, stop func()) {
	var b [64]byte
	for {
		n, err := r.Read(b[:])
		if strings.ContainsAny(string(b[:n]), "qQ\x03\x04") {
			stop()
		}
		if err != nil {
			return
		}
	}
}
