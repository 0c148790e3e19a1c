package agent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
)

// defaultOutput is how many tokens a response may have where nothing else is said;
// Anthropic's API wants a number.
const defaultOutput = 32_000

// anthropicModel is a model behind Anthropic's Messages API.
type anthropicModel struct {
	name string
	at   Endpoint
}

// Anthropic returns a model behind Anthropic's Messages API, or another server
// that speaks it.
func Anthropic(name string, at Endpoint) Model { return &anthropicModel{name: name, at: at} }

func (m *anthropicModel) Name() string { return m.name }

func (m *anthropicModel) Respond(ctx context.Context, req Request, show func(Delta)) (Response, error) {
	first := firstByte
	if req.Thinking > 0 {
		first = firstByteThinking
	}
	opts := []option.RequestOption{
		option.WithoutEnvironmentDefaults(),
		option.WithAPIKey(m.at.Key),
		option.WithMaxRetries(0), // the loop's matter
		option.WithHTTPClient(m.at.client(first)),
	}
	if m.at.BaseURL != "" {
		opts = append(opts, option.WithBaseURL(m.at.BaseURL))
	}
	client := anthropic.NewClient(opts...)
	params, err := m.params(req)
	if err != nil {
		return Response{}, err
	}
	stream := client.Messages.NewStreaming(ctx, params)
	defer stream.Close()
	var msg anthropic.Message
	whole := false
	for stream.Next() {
		event := stream.Current()
		if err := msg.Accumulate(event); err != nil {
			return Response{}, &ProviderError{Message: shorten(err.Error(), 200), Err: errBrokeOff}
		}
		switch event.Type {
		case "message_stop":
			whole = true
		case "content_block_start", "content_block_delta", "content_block_stop":
			if d, ok := anthropicDelta(event); ok && show != nil {
				show(d)
			}
		}
	}
	if err := stream.Err(); err != nil {
		return Response{}, anthropicError(ctx, err)
	}
	if !whole {
		return Response{}, &ProviderError{Err: errBrokeOff}
	}
	return anthropicResponse(msg)
}

// params translates a request. Four points of it are marked for the provider's
// cache: the last tool and the system prompt for an hour, and the last two turns
// of the user for five minutes.
func (m *anthropicModel) params(req Request) (anthropic.MessageNewParams, error) {
	hour := anthropic.NewCacheControlEphemeralParam()
	hour.TTL = anthropic.CacheControlEphemeralTTLTTL1h
	p := anthropic.MessageNewParams{
		Model:     anthropic.Model(m.name),
		MaxTokens: cmp.Or(req.MaxOutput, defaultOutput),
	}
	if req.System != "" {
		p.System = []anthropic.TextBlockParam{{Text: req.System, CacheControl: hour}}
	}
	if req.Thinking > 0 {
		p.Thinking = anthropic.ThinkingConfigParamOfEnabled(req.Thinking)
		p.MaxTokens = max(p.MaxTokens, req.Thinking+4096)
	}
	for i, t := range req.Tools {
		var schema anthropic.ToolInputSchemaParam
		if err := json.Unmarshal(t.Schema, &schema); err != nil {
			return p, fmt.Errorf("schema of the tool %s: %w", t.Name, err)
		}
		tool := &anthropic.ToolParam{Name: t.Name, Description: anthropic.String(t.Description), InputSchema: schema}
		if i == len(req.Tools)-1 {
			tool.CacheControl = hour
		}
		p.Tools = append(p.Tools, anthropic.ToolUnionParam{OfTool: tool})
	}
	marks := 2
	for i := len(req.Messages) - 1; i >= 0; i-- {
		msg := req.Messages[i]
		blocks := make([]anthropic.ContentBlockParamUnion, 0, len(msg.Content))
		for _, b := range msg.Content {
			if u, ok := anthropicBlock(b); ok {
				blocks = append(blocks, u)
			}
		}
		if msg.Role == User && marks > 0 && len(blocks) > 0 {
			if cc := blocks[len(blocks)-1].GetCacheControl(); cc != nil {
				*cc = anthropic.NewCacheControlEphemeralParam()
				marks--
			}
		}
		p.Messages = append(p.Messages, anthropic.MessageParam{Role: anthropic.MessageParamRole(msg.Role), Content: blocks})
	}
	for i, j := 0, len(p.Messages)-1; i < j; i, j = i+1, j-1 {
		p.Messages[i], p.Messages[j] = p.Messages[j], p.Messages[i]
	}
	return p, nil
}

func anthropicBlock(b Block) (anthropic.ContentBlockParamUnion, bool) {
	switch b.Type {
	case TextBlock:
		return anthropic.NewTextBlock(b.Text), b.Text != "" // the API refuses empty ones
	case ThinkingBlock:
		return anthropic.NewThinkingBlock(b.Signature, b.Thinking), b.Signature != ""
	case RedactedBlock:
		return anthropic.NewRedactedThinkingBlock(b.Data), b.Name == "" // not another provider's
	case ToolUseBlock:
		return anthropic.NewToolUseBlock(b.ID, object(b.Input), b.Name), true
	case ToolResultBlock:
		text := b.Result
		if text == "" {
			text = "(empty)"
		}
		u := anthropic.NewToolResultBlock(b.ToolUseID, text, b.IsError)
		for _, i := range b.Images {
			u.OfToolResult.Content = append(u.OfToolResult.Content, anthropic.ToolResultBlockParamContentUnion{
				OfImage: &anthropic.ImageBlockParam{Source: anthropic.ImageBlockParamSourceUnion{OfBase64: &anthropic.Base64ImageSourceParam{
					MediaType: anthropic.Base64ImageSourceMediaType(i.MIME), Data: i.base64(),
				}}},
			})
		}
		return u, true
	}
	return anthropic.ContentBlockParamUnion{}, false
}

// object returns raw if it is a JSON object, else an empty one: a model can break
// its own input off.
func object(raw json.RawMessage) json.RawMessage {
	if trimmed := bytes.TrimSpace(raw); len(trimmed) > 0 && trimmed[0] == '{' && json.Valid(trimmed) {
		return trimmed
	}
	return json.RawMessage("{}")
}

func anthropicDelta(e anthropic.MessageStreamEventUnion) (Delta, bool) {
	d := Delta{Type: e.Type, Index: int(e.Index)}
	switch e.Type {
	case "content_block_start":
		d.Block = &Block{Type: BlockType(e.ContentBlock.Type), ID: e.ContentBlock.ID, Name: e.ContentBlock.Name}
	case "content_block_delta":
		switch e.Delta.Type {
		case "text_delta", "thinking_delta", "input_json_delta":
			d.Delta = &BlockDelta{Type: e.Delta.Type, Text: e.Delta.Text, Thinking: e.Delta.Thinking, PartialJSON: e.Delta.PartialJSON}
		default: // signatures are for the provider
			return d, false
		}
	}
	return d, true
}

func anthropicResponse(msg anthropic.Message) (Response, error) {
	r := Response{Model: string(msg.Model), Stop: StopReason(msg.StopReason)}
	for _, b := range msg.Content {
		switch BlockType(b.Type) {
		case TextBlock:
			r.Blocks = append(r.Blocks, Text(b.Text))
		case ThinkingBlock:
			r.Blocks = append(r.Blocks, Block{Type: ThinkingBlock, Thinking: b.Thinking, Signature: b.Signature})
		case RedactedBlock:
			r.Blocks = append(r.Blocks, Block{Type: RedactedBlock, Data: b.Data})
		case ToolUseBlock:
			r.Blocks = append(r.Blocks, Block{Type: ToolUseBlock, ID: b.ID, Name: b.Name, Input: object(b.Input)})
		}
	}
	u := msg.Usage
	r.Usage = Usage{
		Input: u.InputTokens, CacheRead: u.CacheReadInputTokens, Output: u.OutputTokens,
		CacheWrite5m: u.CacheCreation.Ephemeral5mInputTokens, CacheWrite1h: u.CacheCreation.Ephemeral1hInputTokens,
		Reasoning: u.OutputTokensDetails.ThinkingTokens,
	}
	if rest := u.CacheCreationInputTokens - r.Usage.CacheWrite5m - r.Usage.CacheWrite1h; rest > 0 {
		r.Usage.CacheWrite5m += rest // servers that do not tell them apart
	}
	return r, nil
}

func anthropicError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	api, ok := errors.AsType[*anthropic.Error](err)
	if !ok {
		return broken(err)
	}
	var body struct {
		Error struct{ Message string }
	}
	json.Unmarshal([]byte(api.RawJSON()), &body)
	header := http.Header{}
	if api.Response != nil {
		header = api.Response.Header
	}
	return refusal(api.StatusCode, header, string(api.Type()), body.Error.Message, err)
}
