package gateway

import (
	"io"
	"strings"
	"sync"
	"time"

	"sandgate/agent"
	"sandgate/gateway/redact"
)

// maxProgressText bounds the output that waits to be shown, of one stream.
const maxProgressText = 64 << 10

// A progressFeed shows the output of one call as it comes: at most ten times a second,
// and without secrets, wherever a piece cuts one.
type progressFeed struct {
	show   func(agent.Progress)
	secret *redact.Redactor
	begun  time.Time

	mu      sync.Mutex
	streams map[string]*progressStream
	bytes   int64
	job     string
	last    time.Time
	timer   *time.Timer // nil: nothing waits
	ended   bool
}

// A progressStream is a stream's output that was not shown yet.
type progressStream struct {
	text  strings.Builder
	clean *redact.Writer // into text
}

func newProgressFeed(secret *redact.Redactor, show func(agent.Progress)) *progressFeed {
	return &progressFeed{show: show, secret: secret, begun: time.Now(), streams: make(map[string]*progressStream)}
}

// add takes a piece.
func (f *progressFeed) add(p agent.Progress) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return
	}
	s := f.streams[p.Stream]
	if s == nil {
		s = &progressStream{}
		s.clean = f.secret.Writer(&s.text)
		f.streams[p.Stream] = s
	}
	f.bytes, f.job = p.Bytes, p.Job
	io.WriteString(s.clean, p.Text)
	switch wait := progressEvery - time.Since(f.last); {
	case f.timer != nil:
	case wait <= 0:
		f.flush()
	default:
		f.timer = time.AfterFunc(wait, func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.timer = nil; !f.ended {
				f.flush()
			}
		})
	}
}

// flush shows what waits. The caller holds mu.
func (f *progressFeed) flush() {
	for name, s := range f.streams {
		text := s.text.String()
		if text == "" {
			continue
		}
		s.text.Reset()
		if over := len(text) - maxProgressText; over > 0 {
			text = strings.ToValidUTF8(text[over:], "")
		}
		f.last = time.Now()
		f.show(agent.Progress{Job: f.job, Stream: name, Text: text, Bytes: f.bytes, Elapsed: time.Since(f.begun)})
	}
}

// end shows the rest.
func (f *progressFeed) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.timer != nil {
		f.timer.Stop()
	}
	for _, s := range f.streams {
		s.clean.Close()
	}
	f.flush()
	f.ended = true
}
