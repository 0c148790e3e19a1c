package gateway

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/charmbracelet/x/ansi"
)

// CopyVerbs are those that move files.
type CopyVerbs struct {
	Cp cpVerb `cmd:"" help:"Copy files between sandboxes, or from the standard input or to the standard output. Example: cp -r web:src api:"`
}

type cpVerb struct {
	JSON
	Recursive bool   `short:"r" help:"Copy a folder with all that is in it."`
	From      string `arg:"" help:"Path of what to copy, as in web:src/main.go, or - for the standard input."`
	To        string `arg:"" help:"Path of where to copy it to, or - for the standard output."`
}

// lasting: a copy takes as long as it takes.
func (*cpVerb) lasting() {}

func (v *cpVerb) Run(c *verbCall) error {
	switch {
	case v.From == "-" && v.To == "-":
		return &problem{kind: usage, sentence: "one of the two has to be in a sandbox", hint: "ssh gate@HOST cp web:src/main.go -"}
	case v.To == "-" && v.JSON.JSON:
		return &problem{kind: usage, sentence: "what goes to the standard output is the file, and no JSON"}
	case v.From == "-" && c.onTerminal():
		return &problem{kind: usage, sentence: "the standard input is a terminal", hint: "without one: ssh gate@HOST cp - web:notes <notes"}
	case v.From == "-":
		to, err := c.login.openPlace(c.ctx, v.To, true)
		if err != nil {
			return err
		}
		defer to.close()
		n, err := to.writeFile(c.ctx, c.stdin)
		if err != nil {
			return err
		}
		return c.copied(v, Copied{Files: 1, Bytes: n})
	}
	from, err := c.login.openPlace(c.ctx, v.From, false)
	if err != nil {
		return err
	}
	defer from.close()
	if v.To == "-" {
		return from.readFile(c.ctx, c.stdout)
	}
	to, err := c.login.openPlace(c.ctx, v.To, true)
	if err != nil {
		return err
	}
	defer to.close()
	left := 0
	cp := &copier{ctx: c.ctx, from: from, to: to, recursive: v.Recursive}
	progress, end := c.showCopy(cp)
	defer end()
	cp.shows = progress
	cp.failed = func(err error) {
		end()
		c.complain(err)
		left++
	}
	if err := cp.copy(); err != nil {
		return err
	}
	end()
	cp.done.Bytes = cp.bytes.Load()
	if err := c.copied(v, cp.done); err != nil || left == 0 {
		return err
	}
	return exitCode(failed)
}

// copied says what was copied.
func (c *verbCall) copied(v *cpVerb, n Copied) error {
	parts := []string{plural(n.Files, "file")}
	if n.Folders > 0 {
		parts = append(parts, plural(n.Folders, "folder"))
	}
	if n.Links > 0 {
		parts = append(parts, plural(n.Links, "link"))
	}
	return c.print(v.JSON.JSON, n, fmt.Sprintf("%s copied, %s\n", strings.Join(parts, ", "), bytesOf(n.Bytes)))
}

func bytesOf(n int64) string {
	if n < 1<<10 {
		return plural(int(n), "byte")
	}
	return size(n) + "B"
}

// copyInterval is how often the progress of a copy is shown.
const copyInterval = 200 * time.Millisecond

// showCopy shows on a terminal how a copy gets on, until end is called.
func (c *verbCall) showCopy(cp *copier) (next func(file string), end func()) {
	if !c.onTerminal() || c.session.terminal.Term == "dumb" {
		return func(string) {}, func() {}
	}
	var current atomic.Pointer[string]
	quit := make(chan struct{})
	var shown sync.WaitGroup
	began := time.Now()
	shown.Go(func() {
		tick := time.NewTicker(copyInterval)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				io.WriteString(c.stderr, "\r\x1b[K")
				return
			case <-tick.C:
			}
			n := cp.bytes.Load()
			line := fmt.Sprintf("%s  %s/s", bytesOf(n), bytesOf(int64(float64(n)/time.Since(began).Seconds())))
			if file := current.Load(); file != nil {
				line += "  " + printable(*file)
			}
			if width := c.session.columns(); width > 1 {
				line = ansi.Truncate(line, width-1, "…")
			}
			io.WriteString(c.stderr, "\r"+line+"\x1b[K")
		}
	})
	return func(file string) { current.Store(&file) }, sync.OnceFunc(func() {
		close(quit)
		shown.Wait()
	})
}
