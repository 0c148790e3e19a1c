package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// What a compaction leaves, in tokens.
const (
	reserve    = 16_000 // room for the next response
	keepRecent = 20_000 // of the end of the conversation, word for word
	maxShrunk  = 2      // compactions in a row that may be of little help
)

// oldOutput stands for the result of a call that is long past.
const oldOutput = "(this output was dropped to make room; make the call again if you need it)"

// estimate guesses the tokens of a conversation: providers count, but only what they
// were sent.
func estimate(messages []Message) int64 {
	n := 0
	for _, m := range messages {
		n += size(m)
	}
	return int64(n / 4)
}

// size is a message's length in bytes, more or less.
func size(m Message) int {
	n := 16
	for _, b := range m.Content {
		n += len(b.Text) + len(b.Thinking) + len(b.Data) + len(b.Input) + len(b.Result) + 4*imageTokens*len(b.Images) + 32
	}
	return n
}

// compactIfNeeded makes the conversation smaller when the next response might not
// find room any more.
func (r *Run) compactIfNeeded(ctx context.Context) (Outcome, error) {
	room := max(reserve, r.cfg.MaxOutput)
	if r.turn.context < r.cfg.Window-room || r.cfg.Window <= room {
		return Outcome{}, nil
	}
	return r.compact(ctx, "auto")
}

// compact first drops old outputs of tools, and where that is too little has the
// model sum up all but the end of the conversation.
func (r *Run) compact(ctx context.Context, trigger string) (Outcome, error) {
	before := max(estimate(r.messages), r.turn.context)
	cut := r.cutAt()
	kept := dropOutputs(r.messages, cut)
	after := estimate(kept)
	if after > before*6/10 {
		summary, err := r.summarise(ctx, kept)
		if err != nil {
			if out, stop := r.stop(ctx); stop && ctx.Err() != nil {
				return out, nil
			}
			return Outcome{Subtype: Failed, Text: fmt.Sprintf("the conversation is too long and could not be summed up: %v", err)}, nil
		}
		kept = append([]Message{{Role: User, Content: []Block{Text(summary)}}}, kept[cut:]...)
		after = estimate(kept)
	}
	if after > before*8/10 {
		if r.turn.shrunk++; r.turn.shrunk >= maxShrunk {
			return Outcome{Subtype: Failed, Text: "the conversation is too long for the model, and what is left of it cannot be made shorter"}, nil
		}
	} else {
		r.turn.shrunk = 0
	}
	return Outcome{}, r.append(ctx, TypeSystem, SubtypeCompact, map[string]any{
		"trigger": trigger, "pre_tokens": before, "post_tokens": after, "messages": kept,
	})
}

// cutAt returns where the end of the conversation begins that is kept: at a message
// of the model's, so that calls and their results stay together. At least the last
// one is kept.
func (r *Run) cutAt() int {
	cut, n := len(r.messages), 0
	for i, m := range slices.Backward(r.messages) {
		n += size(m) / 4
		if m.Role == Assistant {
			if n > keepRecent && cut < len(r.messages) {
				break
			}
			cut = i
		}
	}
	return cut
}

// dropOutputs returns the conversation with the longer results before cut dropped.
func dropOutputs(messages []Message, cut int) []Message {
	out := slices.Clone(messages)
	for i, m := range out[:cut] {
		content := slices.Clone(m.Content)
		for k, b := range content {
			content[k] = b.WithoutImages("it was dropped to make room")
			if b.Type == ToolResultBlock && len(b.Result) > 2*len(oldOutput) {
				content[k].Result = oldOutput
			}
		}
		out[i].Content = content
	}
	return out
}

const sumUp = `Sum up this conversation for yourself: you will go on with the work from your summary and the last few messages alone. Say what was asked for, word for word where the words matter; what was done and found out, with names of files, commands and errors; what was decided and why; what is left to do, and what the next step is. Write nothing else and call no tools.`

func (r *Run) summarise(ctx context.Context, messages []Message) (string, error) {
	req := r.request()
	req.Messages = slices.Clone(messages)
	ask := Text(sumUp)
	if n := len(req.Messages); n > 0 && req.Messages[n-1].Role == User {
		req.Messages[n-1].Content = append(slices.Clip(req.Messages[n-1].Content), ask)
	} else {
		req.Messages = append(req.Messages, Message{Role: User, Content: []Block{ask}})
	}
	resp, err := r.cfg.Model.Respond(ctx, req, nil)
	if err != nil {
		return "", err
	}
	if r.cfg.Spent != nil {
		r.cfg.Spent(resp.Usage, cost(resp.Model, r.cfg.Model.Name(), resp.Usage))
	}
	text := textOf(resp.Blocks)
	if text == "" {
		return "", errors.New("the model gave no summary")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "This conversation was shortened. A summary of what came before:\n\n%s\n", text)
	list := func(what string, paths []string) {
		if len(paths) > 0 {
			fmt.Fprintf(&b, "\nFiles %s so far: %s\n", what, strings.Join(paths, ", "))
		}
	}
	list("read", r.files.read)
	list("changed", r.files.changed)
	if len(r.jobs) > 0 {
		fmt.Fprintf(&b, "\nJobs that may still run: %s\n", strings.Join(r.jobs, ", "))
	}
	return b.String(), nil
}
