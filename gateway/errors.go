package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"sandgate/sandbox"
	"sandgate/sandbox/guest"
	"sandgate/store"
)

// A kind of problem decides the exit code of a verb. A session in a sandbox that
// cannot begin or go on always ends with 255.
type kind int

const (
	failed   kind = 1
	usage    kind = 2
	notFound kind = 3
	denied   kind = 4
	quota    kind = 5
	conflict kind = 6

	exitGateway = 255
)

// A problem is what a user reads when something fails: one sentence, and perhaps
// what to do.
type problem struct {
	kind     kind
	sentence string
	hint     string
}

func (p *problem) Error() string { return p.sentence }

// text is what stands on stderr.
func (p *problem) text() string {
	s := "sandgate: " + p.sentence + "\n"
	if p.hint != "" {
		s += "sandgate: hint: " + p.hint + "\n"
	}
	return s
}

// tell is what stands on stderr about an error, with the id under which the log
// and the audit have more.
func (l *Login) tell(err error) (text string, p *problem) {
	p = l.explain(err)
	return p.text() + "sandgate: connection " + l.id + "\n", p
}

// reason is why a channel is not opened.
func (l *Login) reason(err error) string {
	return l.explain(err).sentence + " (connection " + l.id + ")"
}

// explain turns any error into what a user reads, in which no value of a secret is: it
// may be copied to where others read it. The chain of an unforeseen one is in the log,
// under the id of the connection that the sentence names.
func (l *Login) explain(err error) *problem {
	p := l.expelled()
	paused, ok := errors.AsType[*sandbox.PausedError](err)
	switch {
	case p != nil: // whatever went wrong then, it is because of that
	case ok:
		p = l.pausedProblem(paused)
	default:
		p = explain(err, l.log)
	}
	l.gate.counters.problem(err, p)
	l.learnOwn()
	r := l.known.current.Load()
	return &problem{kind: p.kind, sentence: r.String(p.sentence), hint: r.String(p.hint)}
}

// explain turns an error into what users read, and notes in the log what they do not.
func explain(err error, log *slog.Logger) *problem {
	var p *problem
	var unsupported *sandbox.UnsupportedError
	var reached *sandbox.QuotaError
	var image *sandbox.ImageError
	var option *sandbox.OptionError
	var setup *sandbox.SetupError
	var expired *sandbox.ExpiredError
	var unavailable *sandbox.UnavailableError
	var ended *sandbox.EndedError
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &reached):
		return quotaReached(reached)
	case errors.As(err, &unsupported):
		return &problem{kind: failed, sentence: unsupported.Reason}
	case errors.As(err, &image):
		log.Info("image not to be had", keyErr, err)
		return imageProblem(image)
	case errors.As(err, &expired):
		return &problem{kind: failed, sentence: expired.Error()}
	case errors.As(err, &setup):
		return setupProblem(setup)
	case errors.As(err, &option):
		return optionProblem(option)
	case errors.Is(err, sandbox.ErrNoSnapshot):
		return &problem{kind: notFound, sentence: "the snapshot that the sandbox begins with is not there any more", hint: "ssh gate@HOST snapshots"}
	case errors.Is(err, guest.ErrNoJob):
		return &problem{kind: notFound, sentence: "there is no such job any more", hint: "ssh gate@HOST jobs"}
	case errors.As(err, &unavailable):
		log.Warn("engine not available", keyErr, err)
		return &problem{kind: failed, sentence: unavailable.Reason, hint: unavailable.Remedy}
	case errors.As(err, &ended):
		return &problem{kind: failed, sentence: ended.Error(), hint: "log in again to start it; what was on its disk is still there"}
	case errors.Is(err, guest.ErrGone), errors.Is(err, sandbox.ErrRemoved):
		return &problem{kind: failed, sentence: "the sandbox was stopped"}
	case errors.Is(err, errLeaving):
		return &problem{kind: failed, sentence: errLeaving.Error()}
	case errors.Is(err, context.DeadlineExceeded):
		log.Warn("took too long", keyErr, err)
		return &problem{kind: failed, sentence: "the sandbox did not answer in time", hint: "try again; if that does not help: ssh gate@HOST stop NAME"}
	}
	log.Error("unforeseen", keyErr, err)
	return &problem{
		kind:     failed,
		sentence: oneLine(err.Error()),
		hint:     "the gateway's log has more about this connection",
	}
}

// quotaReached is the answer to work beyond a quota.
func quotaReached(q *sandbox.QuotaError) *problem {
	p := &problem{kind: quota, sentence: q.Error(), hint: "ask an admin for more: ssh gate@HOST quota ls shows what there is"}
	if !q.Together {
		switch q.Measure {
		case sandbox.QuotaSandboxes:
			p.hint = "remove one: ssh gate@HOST rm NAME; or ask an admin for more"
		case sandbox.QuotaRunning:
			p.hint = "stop one: ssh gate@HOST stop NAME; or ask an admin for more"
		}
	}
	return p
}

// oneLine makes one line of bounded length of a text that may have several.
func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	const most = 400
	if len(s) > most {
		s = s[:most] + "…"
	}
	return s
}

// noSandbox is the one answer for a sandbox that does not exist and one that the
// caller may not use.
func noSandbox(t target, names []string) *problem {
	p := &problem{kind: notFound, sentence: fmt.Sprintf("no sandbox named %.200q", t.String())}
	switch {
	case len(names) == 0:
		p.hint = "you have none yet; make one: ssh gate@HOST new NAME"
	default:
		const most = 20
		shown := names[:min(len(names), most)]
		p.hint = "you may use: " + strings.Join(shown, " ")
		if len(names) > most {
			p.hint += fmt.Sprintf(" and %d more", len(names)-most)
		}
	}
	return p
}

// exists is the answer to a name that is taken.
func exists(err error, name string) error {
	if errors.Is(err, store.ErrExists) {
		return &problem{kind: conflict, sentence: fmt.Sprintf("you already have a sandbox or an alias named %q", name)}
	}
	return err
}
