package gateway

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// live are the logins whose connections are open.
type live struct {
	mu     sync.Mutex
	logins map[*Login]bool
}

// add adds a login, unless its user has as many as they may.
func (v *live) add(l *Login, most int) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	n := 0
	for other := range v.logins {
		if other.user.ID == l.user.ID {
			n++
		}
	}
	if n >= most {
		return false
	}
	if v.logins == nil {
		v.logins = make(map[*Login]bool)
	}
	v.logins[l] = true
	return true
}

func (v *live) remove(l *Login) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.logins, l)
}

// expel ends all logins that match, and those that came through them.
func (v *live) expel(why string, match func(*Login) bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for l := range v.logins {
		for by := l; by != nil; by = by.outer {
			if match(by) {
				l.expel(why)
				break
			}
		}
	}
}

// renew has all logins that match end when what they were made with now expires.
func (v *live) renew(ctx context.Context, match func(*Login) bool) error {
	var errs []error
	for _, l := range v.all() {
		if !match(l) {
			continue
		}
		err := l.renew(ctx)
		if p, ended := errors.AsType[*problem](err); ended {
			v.expel(p.sentence, func(other *Login) bool { return other == l })
			err = nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// A notice is why a session ends, for its user to read.
type notice string

func (n notice) Error() string { return string(n) }

// farewellTime is how long sessions have to tell their users why they end.
const farewellTime = time.Second

// expel ends the login: its channels, of which sessions tell their users why, and
// then its connection. The caller holds the lock of those that are live.
func (l *Login) expel(why string) {
	if l.ctx.Err() != nil {
		return // already, or the connection is closed
	}
	l.log.Info("expelled", "why", why)
	l.end(notice(why))
	time.AfterFunc(l.gate.cfg.farewell, func() { l.front.Close() })
	go func() {
		for range maxChannels {
			l.channels <- struct{}{} // when none is left open; and none is opened after it
		}
		if l.front.CloseWrite() != nil {
			l.front.Close()
		}
	}()
}

// expelled returns what those read whose login was ended; nil if it was not.
func (l *Login) expelled() *problem {
	if n, ok := errors.AsType[notice](context.Cause(l.ctx)); ok {
		return &problem{kind: denied, sentence: string(n)}
	}
	return nil
}

// closed is called when the login's connection has been closed.
func (l *Login) closed() {
	l.gate.live.remove(l)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.expiry != nil {
		l.expiry.Stop()
	}
	l.end(errClientGone)
}

// renew says whether the login is still valid, and ends it when what it was made with
// now expires.
func (l *Login) renew(ctx context.Context) error {
	l.renewing.Lock() // the last to read decides
	defer l.renewing.Unlock()
	w, err := l.who(ctx)
	if err == nil {
		l.endAt(w.until)
	}
	return err
}

// endAt ends the login at that time, and no more at an earlier one. Zero is never.
func (l *Login) endAt(t time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.expiry != nil {
		l.expiry.Stop()
		l.expiry = nil
	}
	if t.IsZero() || l.ctx.Err() != nil {
		return
	}
	l.expiry = time.AfterFunc(time.Until(t), func() {
		why := fmt.Sprintf("your login ended: it was valid until %s", t.Format(time.RFC3339))
		l.gate.live.expel(why, func(other *Login) bool { return other == l })
	})
}
