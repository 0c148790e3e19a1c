package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"

	"sandgate/sandbox"
	"sandgate/sandbox/guest"
	"sandgate/store"
)

// Make makes a sandbox that Create has just returned, on its driver, and pulls its
// image. If that fails the sandbox is gone again, so that its name is free.
func (l *Login) Make(ctx context.Context, row store.Sandbox, policy sandbox.PullPolicy, show func([]sandbox.Progress)) error {
	err := l.gate.sandboxes.Make(ctx, row, policy, show)
	if err == nil || errors.Is(err, sandbox.ErrRemoved) {
		return err
	}
	return errors.Join(err, l.gate.sandboxes.Remove(context.WithoutCancel(ctx), row))
}

// pull makes a new sandbox and shows the pull of its image.
func (c *verbCall) pull(row store.Sandbox, policy sandbox.PullPolicy) error {
	show, clear := showPull(c.stderr, c.session.terminal)
	defer clear()
	return c.login.Make(c.ctx, row, policy, show)
}

// showPull returns what shows a pull on w: bars where there is a terminal that can
// show them, else lines. clear takes the bars away again.
func showPull(w io.Writer, t *guest.Terminal) (show func([]sandbox.Progress), clear func()) {
	if t == nil || t.Term == "" || t.Term == "dumb" {
		p := pullLog{w, make(map[string]sandbox.LayerState)}
		return p.show, func() {}
	}
	p := &pullBars{w: w, width: 80, height: 24}
	if t.Size.Columns > 0 && t.Size.Rows > 0 {
		p.width, p.height = int(min(t.Size.Columns, 200)), int(min(t.Size.Rows, 200))
	}
	return p.show, p.clear
}

// A pullLog writes a line for each change of a layer's state.
type pullLog struct {
	w      io.Writer
	states map[string]sandbox.LayerState
}

func (p pullLog) show(changed []sandbox.Progress) {
	var b strings.Builder
	for _, step := range changed {
		if p.states[step.Layer] != step.State {
			p.states[step.Layer] = step.State
			fmt.Fprintf(&b, "%s: %s\n", layerName(step), step.State)
		}
	}
	io.WriteString(p.w, b.String())
}

// A pullBars has a line for each layer and rewrites them in place.
type pullBars struct {
	w             io.Writer
	width, height int
	layers        []sandbox.Progress
	drawn         int // lines
}

func (p *pullBars) show(changed []sandbox.Progress) {
	for _, step := range changed {
		i := slices.IndexFunc(p.layers, func(l sandbox.Progress) bool { return l.Layer == step.Layer })
		if i < 0 {
			p.layers = append(p.layers, step)
		} else {
			p.layers[i] = step
		}
	}
	// More lines than there are rows could not be rewritten: those that are ready
	// give way.
	layers := slices.Clone(p.layers)
	for len(layers) >= p.height {
		i := max(slices.IndexFunc(layers, func(l sandbox.Progress) bool { return l.State == sandbox.LayerReady }), 0)
		layers = slices.Delete(layers, i, i+1)
	}
	var b strings.Builder
	b.WriteString(p.home())
	for _, l := range layers {
		line := barLine(l)
		fmt.Fprintf(&b, "%s\x1b[K\n", line[:min(len(line), p.width-1)])
	}
	io.WriteString(p.w, b.String()+"\x1b[J")
	p.drawn = len(layers)
}

// home moves to where the first line is.
func (p *pullBars) home() string {
	if p.drawn == 0 {
		return ""
	}
	return fmt.Sprintf("\r\x1b[%dA", p.drawn)
}

// clear leaves the screen as if nothing had been shown.
func (p *pullBars) clear() {
	if p.drawn > 0 {
		io.WriteString(p.w, p.home()+"\x1b[J")
		p.drawn = 0
	}
}

// barLine is a layer's line: its name, its state and how far that has come.
func barLine(l sandbox.Progress) string {
	line := fmt.Sprintf("%-12s %-11s", layerName(l), l.State)
	switch {
	case l.State != sandbox.LayerDownloading && l.State != sandbox.LayerExtracting || l.Done <= 0:
	case l.Total > 0:
		const width = 24
		full := int(width * min(l.Done, l.Total) / l.Total)
		bar := strings.Repeat("=", full)
		if full < width {
			bar += ">"
		}
		line += fmt.Sprintf(" [%-*s] %s of %s", width, bar, megabytes(l.Done), megabytes(l.Total))
	default:
		line += " " + megabytes(l.Done)
	}
	return line
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

// layerName is a layer's name without whatever a terminal might act on.
func layerName(l sandbox.Progress) string {
	name := strings.Map(func(r rune) rune {
		if r > ' ' && r < 0x7f {
			return r
		}
		return -1
	}, l.Layer)
	return name[:min(len(name), 12)]
}

// imageProblem says why an image cannot be had.
func imageProblem(e *sandbox.ImageError) *problem {
	p := &problem{kind: failed}
	says := ""
	switch e.Fault {
	case sandbox.ImageMalformed:
		return &problem{kind: usage, sentence: fmt.Sprintf("%.200q is not the name of an image", e.Image),
			hint: "such as debian:12, ghcr.io/owner/name or NAME@sha256:DIGEST"}
	case sandbox.ImageNotFound:
		p.kind, says, p.hint = notFound, "was not found in its registry", "check its name and tag"
	case sandbox.ImageDenied:
		p.kind, says, p.hint = denied, "was denied by its registry: there is none of that name, or it is private and the gateway has no login there that may read it",
			"check its name; the operator logs the gateway's user in with: docker login REGISTRY"
	case sandbox.ImageUnreachable:
		says, p.hint = "cannot be pulled, as its registry does not answer as one", "check the registry's name and the gateway's network, then try again"
	case sandbox.ImageDiskFull:
		says, p.hint = "cannot be pulled, as the gateway's disk is full", "remove sandboxes that use other images, or ask the operator for room"
	case sandbox.ImagePlatform:
		says, p.hint = "is not there for this gateway's kind of machine", "look for one that is for "+runtime.GOARCH
	case sandbox.ImageCorrupt:
		says, p.hint = "is damaged: a part of it is not what its digest says, or no layer of an image", "try again; if that does not help, tell who published it"
	case sandbox.ImageTooBig:
		says, p.hint = "is bigger than this gateway takes", "use a smaller one, or ask the operator for more"
	case sandbox.ImageTooMany:
		says, p.hint = "cannot be pulled now, as its registry allows the gateway no more pulls for a while", "try again later; a login there may allow more"
	}
	p.sentence = fmt.Sprintf("image %.200q %s", e.Image, says)
	return p
}
