package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
)

// fromOpenAI marks reasoning that only OpenAI's API can read again.
const fromOpenAI = "openai"

// openAIModel is a model behind OpenAI's Responses API.
type openAIModel struct {
	name string
	at   Endpoint
}

// OpenAI returns a model behind OpenAI's Responses API. Nothing is kept at the
// provider: each request carries the whole conversation.
func OpenAI(name string, at Endpoint) Model { return &openAIModel{name: name, at: at} }

func (m *openAIModel) Name() string { return m.name }

// openAIOptions are those of a service. The environment is not asked.
func openAIOptions(at Endpoint, req Request) []option.RequestOption {
	first := firstByte
	if req.Thinking > 0 {
		first = firstByteThinking
	}
	opts := []option.RequestOption{
		option.WithEnvironmentProduction(),
		option.WithAPIKey(at.Key),
		option.WithMaxRetries(0), // the loop's matter
		option.WithHTTPClient(at.client(first)),
	}
	if at.BaseURL != "" {
		opts = append(opts, option.WithBaseURL(at.BaseURL))
	}
	return opts
}

func (m *openAIModel) Respond(ctx context.Context, req Request, show func(Delta)) (Response, error) {
	params, err := m.params(req)
	if err != nil {
		return Response{}, err
	}
	service := responses.NewResponseService(openAIOptions(m.at, req)...)
	stream := service.NewStreaming(ctx, params)
	defer stream.Close()
	for stream.Next() {
		event := stream.Current()
		switch event.Type {
		case "response.completed", "response.incomplete":
			return openAIResponse(event.Response), nil
		case "response.failed":
			e := event.Response.Error
			return Response{}, refusal(http.StatusOK, nil, string(e.Code), e.Message, nil)
		case "error":
			return Response{}, refusal(http.StatusOK, nil, event.Code, event.Message, nil)
		}
		if d, ok := openAIDelta(event); ok && show != nil {
			show(d)
		}
	}
	if err := stream.Err(); err != nil {
		return Response{}, openAIError(ctx, err)
	}
	return Response{}, &ProviderError{Err: errBrokeOff}
}

func (m *openAIModel) params(req Request) (responses.ResponseNewParams, error) {
	p := responses.ResponseNewParams{
		Model: m.name,
		Store: param.NewOpt(false),
	}
	if req.System != "" {
		p.Instructions = param.NewOpt(req.System)
	}
	if req.MaxOutput > 0 {
		p.MaxOutputTokens = param.NewOpt(req.MaxOutput)
	}
	if req.Thinking > 0 {
		p.Reasoning = shared.ReasoningParam{Effort: effort(req.Thinking), Summary: shared.ReasoningSummaryAuto}
		p.Include = []responses.ResponseIncludable{responses.ResponseIncludableReasoningEncryptedContent}
	}
	for _, t := range req.Tools {
		var schema map[string]any
		if err := json.Unmarshal(t.Schema, &schema); err != nil {
			return p, fmt.Errorf("schema of the tool %s: %w", t.Name, err)
		}
		tool := responses.ToolParamOfFunction(t.Name, schema, false)
		tool.OfFunction.Description = param.NewOpt(t.Description)
		p.Tools = append(p.Tools, tool)
	}
	for _, msg := range req.Messages {
		for _, b := range msg.Content {
			if item, ok := openAIItem(msg.Role, b); ok {
				p.Input.OfInputItemList = append(p.Input.OfInputItemList, item)
			}
		}
	}
	return p, nil
}

// effort turns a number of tokens into OpenAI's words.
func effort(tokens int64) shared.ReasoningEffort {
	switch {
	case tokens <= 2048:
		return shared.ReasoningEffortLow
	case tokens <= 16_384:
		return shared.ReasoningEffortMedium
	}
	return shared.ReasoningEffortHigh
}

func openAIItem(role Role, b Block) (responses.ResponseInputItemUnionParam, bool) {
	switch b.Type {
	case TextBlock:
		return responses.ResponseInputItemParamOfMessage(b.Text, responses.EasyInputMessageRole(role)), b.Text != ""
	case ToolUseBlock:
		return responses.ResponseInputItemParamOfFunctionCall(string(object(b.Input)), b.ID, b.Name), true
	case ToolResultBlock:
		item := responses.ResponseInputItemParamOfFunctionCallOutput(resultText(b))
		if len(b.Images) > 0 {
			parts := responses.ResponseFunctionCallOutputItemListParam{responses.ResponseFunctionCallOutputItemParamOfInputText(resultText(b))}
			for _, i := range b.Images {
				parts = append(parts, responses.ResponseFunctionCallOutputItemUnionParam{
					OfInputImage: &responses.ResponseInputImageContentParam{ImageURL: param.NewOpt(i.url())},
				})
			}
			item.OfFunctionCallOutput.Output = responses.ResponseInputItemFunctionCallOutputOutputUnionParam{OfResponseFunctionCallOutputItemArray: parts}
		}
		item.OfFunctionCallOutput.CallID = param.NewOpt(b.ToolUseID)
		return item, true
	case RedactedBlock:
		item := responses.ResponseInputItemParamOfReasoning(b.ID, []responses.ResponseReasoningItemSummaryParam{})
		item.OfReasoning.EncryptedContent = param.NewOpt(b.Data)
		return item, b.Name == fromOpenAI
	}
	return responses.ResponseInputItemUnionParam{}, false
}

// resultText is a result where the API has no field for a failure.
func resultText(b Block) string {
	if b.IsError {
		return "Error: " + b.Result
	}
	return b.Result
}

func openAIDelta(e responses.ResponseStreamEventUnion) (Delta, bool) {
	d := Delta{Type: "content_block_delta", Index: int(e.OutputIndex)}
	switch e.Type {
	case "response.output_item.added":
		d.Type = "content_block_start"
		switch e.Item.Type {
		case "message":
			d.Block = &Block{Type: TextBlock}
		case "reasoning":
			d.Block = &Block{Type: ThinkingBlock}
		case "function_call":
			d.Block = &Block{Type: ToolUseBlock, ID: e.Item.CallID, Name: e.Item.Name}
		default:
			return d, false
		}
	case "response.output_item.done":
		d.Type = "content_block_stop"
	case "response.output_text.delta", "response.refusal.delta":
		d.Delta = &BlockDelta{Type: "text_delta", Text: e.Delta}
	case "response.reasoning_summary_text.delta", "response.reasoning_text.delta":
		d.Delta = &BlockDelta{Type: "thinking_delta", Thinking: e.Delta}
	case "response.function_call_arguments.delta":
		d.Delta = &BlockDelta{Type: "input_json_delta", PartialJSON: e.Delta}
	default:
		return d, false
	}
	return d, true
}

func openAIResponse(r responses.Response) Response {
	out := Response{Model: r.Model, Stop: StopEnd}
	for _, item := range r.Output {
		switch item.Type {
		case "message":
			for _, c := range item.Content {
				if c.Type == "refusal" {
					out.Blocks = append(out.Blocks, Text(c.Refusal))
					out.Stop = StopRefusal
				} else {
					out.Blocks = append(out.Blocks, Text(c.Text))
				}
			}
		case "reasoning":
			var said []string
			for _, s := range item.Summary {
				said = append(said, s.Text)
			}
			if len(said) > 0 {
				out.Blocks = append(out.Blocks, Block{Type: ThinkingBlock, Thinking: strings.Join(said, "\n\n")})
			}
			if item.EncryptedContent != "" {
				out.Blocks = append(out.Blocks, Block{Type: RedactedBlock, ID: item.ID, Name: fromOpenAI, Data: item.EncryptedContent})
			}
		case "function_call":
			out.Blocks = append(out.Blocks, Block{Type: ToolUseBlock, ID: item.CallID, Name: item.Name, Input: object(json.RawMessage(item.Arguments.OfString))})
			out.Stop = StopTools
		}
	}
	switch r.IncompleteDetails.Reason {
	case "max_output_tokens":
		out.Stop = StopLength
	case "content_filter":
		out.Stop = StopRefusal
	}
	u := r.Usage
	out.Usage = Usage{
		Input:        max(u.InputTokens-u.InputTokensDetails.CachedTokens-u.InputTokensDetails.CacheWriteTokens, 0),
		CacheRead:    u.InputTokensDetails.CachedTokens,
		CacheWrite5m: u.InputTokensDetails.CacheWriteTokens,
		Output:       u.OutputTokens,
		Reasoning:    u.OutputTokensDetails.ReasoningTokens,
	}
	return out
}

func openAIError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	api, ok := errors.AsType[*openai.Error](err)
	if !ok {
		return broken(err)
	}
	header := http.Header{}
	status := api.StatusCode
	if api.Response != nil {
		header = api.Response.Header
	}
	kind := api.Code
	if kind == "" {
		kind = api.Type
	}
	return refusal(status, header, kind, api.Message, err)
}
