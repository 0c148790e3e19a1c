package agent

import "strings"

// A price is in US dollars for a million tokens.
type price struct{ input, cacheRead, cacheWrite5m, cacheWrite1h, output float64 }

// pricesAsOf is when the table was made from the providers' published list prices.
const pricesAsOf = "2025-12-01"

// prices are by the beginning of a model's name; the longest that fits counts.
// Anthropic: a cache is written at 1.25 (five minutes) or 2 times (an hour) the
// price of input and read at a tenth. OpenAI: writing costs as input does.
var prices = map[string]price{
	"claude-opus-4-5":   {5, 0.5, 6.25, 10, 25},
	"claude-opus-4":     {15, 1.5, 18.75, 30, 75},
	"claude-sonnet-4":   {3, 0.3, 3.75, 6, 15},
	"claude-3-7-sonnet": {3, 0.3, 3.75, 6, 15},
	"claude-haiku-4-5":  {1, 0.1, 1.25, 2, 5},
	"claude-3-5-haiku":  {0.8, 0.08, 1, 1.6, 4},
	"gpt-5":             {1.25, 0.125, 1.25, 1.25, 10},
	"gpt-5-mini":        {0.25, 0.025, 0.25, 0.25, 2},
	"gpt-5-nano":        {0.05, 0.005, 0.05, 0.05, 0.4},
	"gpt-4.1":           {2, 0.5, 2, 2, 8},
	"gpt-4.1-mini":      {0.4, 0.1, 0.4, 0.4, 1.6},
	"gpt-4o":            {2.5, 1.25, 2.5, 2.5, 10},
	"gpt-4o-mini":       {0.15, 0.075, 0.15, 0.15, 0.6},
	"o3":                {2, 0.5, 2, 2, 8},
	"o4-mini":           {1.1, 0.275, 1.1, 1.1, 4.4},
}

// cost returns what a response cost in US dollars, or nil where the price of neither
// of the model's names is known. The name that the response gives counts first.
func cost(answered, asked string, u Usage) *float64 {
	p, ok := priceOf(answered)
	if !ok {
		p, ok = priceOf(asked)
	}
	if !ok {
		return nil
	}
	c := (float64(u.Input)*p.input + float64(u.CacheRead)*p.cacheRead + float64(u.CacheWrite5m)*p.cacheWrite5m +
		float64(u.CacheWrite1h)*p.cacheWrite1h + float64(u.Output)*p.output) / 1e6
	return &c
}

// priceOf finds the price of a model by its name. A name that goes on after the
// table's must do so with a date, as in claude-sonnet-4-5-20250929 or
// gpt-5-2025-08-07, or a minor version: gpt-5-mini is not a gpt-5.
func priceOf(model string) (price, bool) {
	best, found := "", price{}
	for name, p := range prices {
		rest, ok := strings.CutPrefix(model, name)
		if ok && len(name) > len(best) && (rest == "" || rest == "-latest" || strings.HasPrefix(rest, "-") && len(rest) > 1 && rest[1] >= '0' && rest[1] <= '9') {
			best, found = name, p
		}
	}
	return found, best != ""
}
