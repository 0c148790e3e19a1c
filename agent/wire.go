package agent

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// An Endpoint says where a provider's API is and how to be let in.
type Endpoint struct {
	BaseURL string // empty: the provider's own
	Key     string
	Client  *http.Client // nil: http.DefaultClient's transport
}

// How long a provider may say nothing. A stream counts as silent only when not even
// its pings come.
const (
	firstByte         = 60 * time.Second
	firstByteThinking = 300 * time.Second
	idle              = 120 * time.Second
)

var (
	errFirstByte = errors.New("the model's provider did not begin to answer in time")
	errIdle      = errors.New("the model's provider fell silent in the middle of an answer")
	errBrokeOff  = errors.New("the answer broke off before its end")
)

// client returns a client that gives up on a provider that falls silent, and does not
// follow redirects, which could carry the key elsewhere.
func (e Endpoint) client(first time.Duration) *http.Client {
	c := http.Client{}
	if e.Client != nil {
		c = *e.Client
	}
	base := c.Transport
	if base == nil {
		base = http.DefaultTransport
	}
	c.Transport = &impatient{base: base, first: first, idle: idle}
	return &c
}

// impatient is a transport that cancels requests on which nothing comes.
type impatient struct {
	base        http.RoundTripper
	first, idle time.Duration
}

func (t *impatient) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	timer := time.AfterFunc(t.first, func() { cancel(errFirstByte) })
	resp, err := t.base.RoundTrip(req.WithContext(ctx))
	if err != nil {
		timer.Stop()
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		cancel(nil)
		return nil, err
	}
	timer.Stop()
	if resp.StatusCode/100 == 3 {
		resp.Body.Close()
		cancel(nil)
		return nil, &ProviderError{Status: resp.StatusCode, Message: "it answered with a redirect, which is not followed"}
	}
	resp.Body = &impatientBody{
		ReadCloser: resp.Body, ctx: ctx, cancel: cancel, idle: t.idle,
		timer: time.AfterFunc(t.idle, func() { cancel(errIdle) }),
	}
	return resp, nil
}

type impatientBody struct {
	io.ReadCloser
	ctx    context.Context
	cancel context.CancelCauseFunc
	idle   time.Duration
	timer  *time.Timer
}

func (b *impatientBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.timer.Reset(b.idle)
	}
	if err != nil && err != io.EOF {
		if cause := context.Cause(b.ctx); cause != nil {
			err = cause
		}
	}
	return n, err
}

func (b *impatientBody) Close() error {
	b.timer.Stop()
	b.cancel(nil)
	return b.ReadCloser.Close()
}

// retryAfter reads how long a provider asks to be left alone, from
// retry-after-ms, or retry-after in seconds or as a date (RFC 9110 section 10.2.3).
func retryAfter(h http.Header, now time.Time) time.Duration {
	if ms, err := strconv.ParseFloat(h.Get("Retry-After-Ms"), 64); err == nil && ms > 0 && ms < 1e10 {
		return time.Duration(ms * float64(time.Millisecond))
	}
	v := h.Get("Retry-After")
	if s, err := strconv.ParseFloat(v, 64); err == nil && s > 0 && s < 1e7 {
		return time.Duration(s * float64(time.Second))
	}
	if at, err := http.ParseTime(v); err == nil && at.After(now) {
		return at.Sub(now)
	}
	return 0
}

// refusal words an HTTP answer that is an error.
func refusal(status int, h http.Header, kind, message string, err error) *ProviderError {
	return &ProviderError{
		Status: status, Kind: shorten(kind, 100), Message: shorten(message, 500),
		RetryAfter: retryAfter(h, time.Now()), Overflow: overflow(message), Err: err,
	}
}

// broken words an error that is not an answer.
func broken(err error) *ProviderError {
	if e, ok := errors.AsType[*ProviderError](err); ok {
		return e
	}
	return &ProviderError{Message: shorten(err.Error(), 300), Err: err}
}

// overflow recognises the words of providers for a conversation that is too long.
func overflow(message string) bool {
	m := strings.ToLower(message)
	for _, s := range []string{
		"prompt is too long", "context length", "context_length_exceeded", "context window",
		"maximum context", "input is too long", "exceed context limit",
	} {
		if strings.Contains(m, s) {
			return true
		}
	}
	return false
}

// shorten cuts a string at a rune, and takes out what does not belong into a line.
func shorten(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most] + "…"
}
