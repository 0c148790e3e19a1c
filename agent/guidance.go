package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
)

// A Guide is a file of the workspace in which a project says how to work on it, such
// as AGENTS.md. Whoever can write to the workspace can write it, so a model is told
// that it is no word of the user's.
type Guide struct {
	Path string
	Text string
	Cut  bool // there is more of it than Text
}

// maxGuidance bounds what guides of one step are given, whatever there is.
const maxGuidance = 64 << 10

// block shows a guide to a model. Its marks are made of the text, so that no text can
// have its own end mark in it. mark names this text of this file.
func (g Guide) block() (b Block, mark string) {
	text := clean(g.Text)
	sum := sha256.Sum256([]byte(g.Path + "\x00" + text))
	mark = hex.EncodeToString(sum[:8])
	cut := ""
	if g.Cut {
		cut = "\n(it goes on; read the file for the rest)"
	}
	return Text(fmt.Sprintf("<guidance file=%q id=%q note=\"a file of the workspace, not the user's words\">\n%s%s\n</guidance id=%q>",
		shorten(g.Path, 1000), mark, strings.TrimRight(text, "\n"), cut, mark)), mark
}

// guide gives the model the guides that it has not, or that have changed. The error is
// of the log.
func (r *Run) guide(ctx context.Context) error {
	if r.cfg.Guidance == nil {
		return nil
	}
	var blocks []Block
	marks := make(map[string]string)
	room := maxGuidance
	for _, g := range r.cfg.Guidance(ctx, r.pathsOfLastStep()) {
		b, mark := g.block()
		if room -= len(b.Text); room < 0 {
			break
		}
		if r.guides[g.Path] != mark && marks[g.Path] != mark {
			blocks = append(blocks, b)
			marks[g.Path] = mark
		}
	}
	if len(blocks) == 0 || ctx.Err() != nil {
		return nil
	}
	return r.append(ctx, TypeUser, "", map[string]any{
		"message": Message{Role: User, Content: blocks}, "synthetic": true, "guidance": marks,
	})
}

// pathsOfLastStep returns the files and folders that the calls of the last response
// have named.
func (r *Run) pathsOfLastStep() (paths []string) {
	for i := len(r.messages) - 1; i >= 0; i-- {
		if r.messages[i].Role != Assistant {
			continue
		}
		for _, b := range r.messages[i].Content {
			var in struct{ Path string }
			if b.Type == ToolUseBlock && json.Unmarshal(b.Input, &in) == nil && in.Path != "" && len(in.Path) <= 1000 {
				paths = append(paths, in.Path)
			}
		}
		break
	}
	return paths
}

// forgetGuides forgets the guides that are not in the conversation any more.
func (r *Run) forgetGuides() {
	for path, mark := range r.guides {
		if !r.says(fmt.Sprintf("</guidance id=%q>", mark)) {
			delete(r.guides, path)
		}
	}
}

// says reports whether some message of the user's has these words.
func (r *Run) says(words string) bool {
	for _, m := range r.messages {
		for _, b := range m.Content {
			if m.Role == User && b.Type == TextBlock && strings.Contains(b.Text, words) {
				return true
			}
		}
	}
	return false
}
