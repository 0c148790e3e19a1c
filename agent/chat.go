package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/shared"
)

// chatModel is a model behind the Chat Completions API.
type chatModel struct {
	name string
	at   Endpoint
}

// Chat returns a model behind OpenAI's older API, Chat Completions, which most other
// servers speak.
func Chat(name string, at Endpoint) Model { return &chatModel{name: name, at: at} }

func (m *chatModel) Name() string { return m.name }

func (m *chatModel) Respond(ctx context.Context, req Request, show func(Delta)) (Response, error) {
	params, err := m.params(req)
	if err != nil {
		return Response{}, err
	}
	service := openai.NewChatCompletionService(openAIOptions(m.at, req)...)
	stream := service.NewStreaming(ctx, params)
	defer stream.Close()
	c := chatCollector{show: show, open: -1}
	for stream.Next() {
		if err := c.add(stream.Current()); err != nil {
			return Response{}, err
		}
	}
	if err := stream.Err(); err != nil {
		return Response{}, openAIError(ctx, err)
	}
	return c.response()
}

func (m *chatModel) params(req Request) (openai.ChatCompletionNewParams, error) {
	p := openai.ChatCompletionNewParams{
		Model:         m.name,
		StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: param.NewOpt(true)},
	}
	if req.MaxOutput > 0 {
		p.MaxTokens = param.NewOpt(req.MaxOutput) // the name that other servers know
	}
	for _, t := range req.Tools {
		var schema map[string]any
		if err := json.Unmarshal(t.Schema, &schema); err != nil {
			return p, fmt.Errorf("schema of the tool %s: %w", t.Name, err)
		}
		p.Tools = append(p.Tools, openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{
			Name: t.Name, Description: param.NewOpt(t.Description), Parameters: schema,
		}))
	}
	if req.System != "" {
		p.Messages = append(p.Messages, openai.SystemMessage(req.System))
	}
	for _, msg := range req.Messages {
		p.Messages = append(p.Messages, chatMessages(msg)...)
	}
	return p, nil
}

// chatMessages translates a message. Results of tools are messages of their own and
// come before what the user says. Those can only be text, so their images are put into
// the user's mouth.
func chatMessages(msg Message) []openai.ChatCompletionMessageParamUnion {
	var out []openai.ChatCompletionMessageParamUnion
	var text []string
	var images []openai.ChatCompletionContentPartUnionParam
	var own openai.ChatCompletionAssistantMessageParam
	for _, b := range msg.Content {
		switch b.Type {
		case TextBlock:
			text = append(text, b.Text)
		case ToolUseBlock:
			own.ToolCalls = append(own.ToolCalls, openai.ChatCompletionMessageToolCallUnionParam{
				OfFunction: &openai.ChatCompletionMessageFunctionToolCallParam{
					ID:       b.ID,
					Function: openai.ChatCompletionMessageFunctionToolCallFunctionParam{Name: b.Name, Arguments: string(object(b.Input))},
				},
			})
		case ToolResultBlock:
			out = append(out, openai.ToolMessage(resultText(b), b.ToolUseID))
			for _, i := range b.Images {
				images = append(images, openai.TextContentPart("The image of the call "+b.ToolUseID+":"),
					openai.ImageContentPart(openai.ChatCompletionContentPartImageImageURLParam{URL: i.url()}))
			}
		}
	}
	said := strings.Join(text, "\n\n")
	switch {
	case len(images) > 0:
		if said != "" {
			images = append(images, openai.TextContentPart(said))
		}
		out = append(out, openai.UserMessage(images))
	case msg.Role == User && said != "":
		out = append(out, openai.UserMessage(said))
	case msg.Role == Assistant && (said != "" || len(own.ToolCalls) > 0):
		if said != "" {
			own.Content.OfString = param.NewOpt(said)
		}
		out = append(out, openai.ChatCompletionMessageParamUnion{OfAssistant: &own})
	}
	return out
}

// maxCalls bounds the tool calls of one response.
const maxCalls = 128

// A chatCollector puts the chunks of a streamed response together.
type chatCollector struct {
	show   func(Delta)
	text   strings.Builder
	calls  []*chatCall
	index  map[int64]int
	open   int // index of the block that is being shown; -1: none
	shown  int // blocks so far
	model  string
	finish string
	usage  Usage
}

type chatCall struct {
	id, name string
	input    strings.Builder
}

func (c *chatCollector) add(chunk openai.ChatCompletionChunk) error {
	if chunk.Model != "" {
		c.model = chunk.Model
	}
	if chunk.JSON.Usage.Valid() {
		u := chunk.Usage
		c.usage = Usage{
			Input:     max(u.PromptTokens-u.PromptTokensDetails.CachedTokens, 0),
			CacheRead: u.PromptTokensDetails.CachedTokens,
			Output:    u.CompletionTokens,
			Reasoning: u.CompletionTokensDetails.ReasoningTokens,
		}
	}
	if len(chunk.Choices) == 0 {
		return nil
	}
	choice := chunk.Choices[0]
	if choice.FinishReason != "" {
		c.finish = choice.FinishReason
	}
	if s := choice.Delta.Content + choice.Delta.Refusal; s != "" {
		if c.text.Len() == 0 {
			c.begin(Block{Type: TextBlock})
		}
		c.text.WriteString(s)
		c.piece(BlockDelta{Type: "text_delta", Text: s})
	}
	for _, t := range choice.Delta.ToolCalls {
		i, ok := c.index[t.Index]
		if !ok {
			if len(c.calls) == maxCalls {
				return &ProviderError{Status: 400, Message: "too many tool calls in one response"}
			}
			if c.index == nil {
				c.index = make(map[int64]int)
			}
			i = len(c.calls)
			c.index[t.Index] = i
			c.calls = append(c.calls, &chatCall{id: t.ID, name: t.Function.Name})
			c.begin(Block{Type: ToolUseBlock, ID: t.ID, Name: t.Function.Name})
		}
		c.calls[i].input.WriteString(t.Function.Arguments)
		if t.Function.Arguments != "" {
			c.piece(BlockDelta{Type: "input_json_delta", PartialJSON: t.Function.Arguments})
		}
	}
	return nil
}

func (c *chatCollector) begin(b Block) {
	c.end()
	c.open = c.shown
	c.shown++
	if c.show != nil {
		c.show(Delta{Type: "content_block_start", Index: c.open, Block: &b})
	}
}

func (c *chatCollector) piece(d BlockDelta) {
	if c.show != nil {
		c.show(Delta{Type: "content_block_delta", Index: c.open, Delta: &d})
	}
}

func (c *chatCollector) end() {
	if c.open >= 0 && c.show != nil {
		c.show(Delta{Type: "content_block_stop", Index: c.open})
	}
	c.open = -1
}

func (c *chatCollector) response() (Response, error) {
	c.end()
	if c.finish == "" {
		return Response{}, &ProviderError{Err: errBrokeOff}
	}
	r := Response{Model: c.model, Usage: c.usage, Stop: StopEnd}
	if c.text.Len() > 0 {
		r.Blocks = append(r.Blocks, Text(c.text.String()))
	}
	for i, call := range c.calls {
		if call.id == "" { // some servers give none
			call.id = fmt.Sprintf("call_%d", i)
		}
		r.Blocks = append(r.Blocks, Block{Type: ToolUseBlock, ID: call.id, Name: call.name, Input: object(json.RawMessage(call.input.String()))})
	}
	switch {
	case len(c.calls) > 0:
		r.Stop = StopTools
	case c.finish == "length":
		r.Stop = StopLength
	case c.finish == "content_filter":
		r.Stop = StopRefusal
	}
	return r, nil
}
