//go:build linux

package guest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// answer sends the one line that answers a stream, and waits for its end.
func answer(st *stream, r reply) {
	defer st.Close()
	if writeLine(st, r) != nil {
		return
	}
	st.CloseWrite()
	io.Copy(io.Discard, st)
}

// errReply is the answer to what did not work.
func errReply(err error) reply {
	r := reply{Error: err.Error(), Missing: errors.Is(err, ErrNoJob)}
	if e, ok := errors.AsType[*startError](err); ok {
		r.Code = e.code
	}
	return r
}

func doneReply(err error) reply {
	if err != nil {
		return errReply(err)
	}
	return reply{}
}

func jobReply(i JobInfo, err error) reply {
	if err != nil {
		return errReply(err)
	}
	return reply{Job: &i}
}

// untilEnd returns a context that ends when the peer has ended its direction of st.
func untilEnd(st *stream) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer cancel()
		io.Copy(io.Discard, st)
	}()
	return ctx, cancel
}

// info describes the job that is about to be.
func (r *Run) info(kind JobKind) JobInfo {
	return JobInfo{
		ID: r.ID, Kind: kind, Name: r.Name, Text: r.Text[:min(len(r.Text), maxJobText)],
		Terminal: r.Terminal != nil, Input: r.Input || r.Terminal != nil,
		Started: time.Now(), Timeout: r.Timeout, Owner: r.Owner,
	}
}

// startRecorded starts a command as a recorded job. The caller holds mu.
func (g *guest) startRecorded(run *Run, kind JobKind, login bool) (*job, error) {
	if n := len(g.shelf.running()); n >= maxRecorded {
		return nil, &startError{126, fmt.Sprintf("too many jobs are running in this sandbox: %d, which is the most", n)}
	}
	if run.Owner != "" && g.shelf.owned(run.Owner) >= MaxOwned {
		return nil, &startError{126, fmt.Sprintf("too many commands of this conversation are running: %d, which is the most", MaxOwned)}
	}
	r, err := g.shelf.create(run.info(kind))
	if err != nil {
		return nil, &startError{126, err.Error()}
	}
	j, err := g.launch(&run.Command, login, r)
	if err != nil {
		g.shelf.drop(r)
		return nil, err
	}
	r.mu.Lock()
	r.job, r.last = j, j
	r.mu.Unlock()
	select {
	case g.gauging <- struct{}{}:
	default:
	}
	if run.Timeout > 0 {
		late := time.AfterFunc(run.Timeout, func() { r.end(ReasonTimeout) })
		go func() {
			<-r.done
			late.Stop()
		}()
	}
	return j, nil
}

// run starts a recorded job, unless there is one of that id.
func (g *guest) run(run *Run) (JobInfo, error) {
	if run == nil || !run.valid() {
		return JobInfo{}, &startError{126, "malformed job"}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if r := g.shelf.find(run.ID); r != nil && r.look().ID == run.ID {
		return r.look(), nil
	}
	if len(g.jobs) >= maxJobs {
		return JobInfo{}, &startError{126, fmt.Sprintf("too many commands are running in this sandbox: %d, which is the most", len(g.jobs))}
	}
	j, err := g.startRecorded(run, KindRun, false)
	if err != nil {
		return JobInfo{}, err
	}
	g.follow(j)
	return j.record.look(), nil
}

// follow moves a job's output until its end. The caller holds mu.
func (g *guest) follow(j *job) {
	g.jobs[j.id] = j
	go func() {
		j.run()
		g.mu.Lock()
		delete(g.jobs, j.id)
		g.mu.Unlock()
	}()
}

// look describes a recorded job.
func (g *guest) look(job string) (JobInfo, error) {
	r := g.shelf.find(job)
	if r == nil {
		return JobInfo{}, ErrNoJob
	}
	return r.look(), nil
}

// wait answers once the job has ended, if there is still somebody to hear it.
func (g *guest) wait(st *stream, job string) {
	r := g.shelf.find(job)
	if r == nil {
		answer(st, errReply(ErrNoJob))
		return
	}
	ctx, cancel := untilEnd(st)
	defer cancel()
	select {
	case <-r.done:
		i := r.look()
		writeLine(st, reply{Job: &i})
		st.CloseWrite()
		<-ctx.Done()
	case <-ctx.Done():
	}
	st.Close()
}

// input writes to the standard input of a job.
func (g *guest) input(st *stream, h header) {
	r := g.shelf.find(h.Job)
	if r == nil {
		answer(st, errReply(ErrNoJob))
		return
	}
	ctx, cancel := untilEnd(st)
	defer cancel()
	var re reply
	if err := r.feed(ctx, h.Data, h.End); err != nil {
		re = errReply(err)
	}
	writeLine(st, re)
	st.CloseWrite()
	<-ctx.Done()
	st.Close()
}

var errNoInput = errors.New("the job takes no input")

// feed writes to the job's standard input until ctx ends.
func (r *record) feed(ctx context.Context, data []byte, end bool) error {
	r.input.Lock()
	defer r.input.Unlock()
	j := r.runs()
	if j == nil {
		return errEnded
	}
	in := j.stdin
	if j.terminal != nil {
		in = j.terminal
		if end {
			data = append(data, 4) // ^D
		}
	}
	if in == nil {
		return errNoInput
	}
	stop := context.AfterFunc(ctx, func() { in.SetWriteDeadline(time.Unix(1, 0)) })
	_, err := in.Write(data)
	if !stop() {
		in.SetWriteDeadline(time.Time{})
	}
	if err == nil && end && j.terminal == nil {
		err = in.Close()
	}
	if err != nil {
		return errNoInput // not any more
	}
	return nil
}

// kill signals a job or ends it.
func (g *guest) kill(h header) error {
	if h.Signal == "" {
		r := g.shelf.find(h.Job)
		if r == nil {
			return ErrNoJob
		}
		if h.Reason != "" && h.Reason != ReasonTimeout && h.Reason != ReasonQuota {
			return errors.New("no such reason")
		}
		r.end(h.Reason)
		if i := r.look(); i.Kind == KindService && h.Reason == "" {
			g.services.hasten(i.Name)
		}
		return nil
	}
	n, ok := signals[h.Signal]
	if !ok {
		return errors.New("no such signal")
	}
	if r := g.shelf.find(h.Job); r == nil {
		return ErrNoJob
	} else if j := r.runs(); j != nil {
		j.signal(unix.Signal(n))
	}
	return nil
}

// forget deletes the record of a job that has ended.
func (g *guest) forget(job string) error {
	r := g.shelf.find(job)
	if r == nil {
		return ErrNoJob
	}
	if r.runs() != nil {
		return errors.New("the job runs")
	}
	g.shelf.drop(r)
	return nil
}

// list writes a line for each job: the recorded ones, and plain commands.
func (g *guest) list(st *stream) {
	defer st.Close()
	var infos []JobInfo
	for _, r := range g.shelf.all() {
		infos = append(infos, r.look())
	}
	g.mu.Lock()
	for _, j := range g.jobs {
		if j.record == nil {
			infos = append(infos, j.info())
		}
	}
	g.mu.Unlock()
	// The newest, if there are too many; and those the oldest first.
	slices.SortFunc(infos, func(a, b JobInfo) int { return a.Started.Compare(b.Started) })
	for _, i := range infos[max(0, len(infos)-maxListed+1):] {
		if writeLine(st, i) != nil {
			return
		}
	}
	st.CloseWrite()
	io.Copy(io.Discard, st)
}

// log sends a part of a job's log.
func (g *guest) log(st *stream, h header) {
	r := g.shelf.find(h.Job)
	switch {
	case r == nil:
		answer(st, errReply(ErrNoJob))
		return
	case h.Span == nil || h.Span.Offset < 0:
		answer(st, errReply(errors.New("no such part of a log")))
		return
	}
	ctx, cancel := untilEnd(st)
	defer cancel()
	defer st.Close()
	reader := &logReader{log: r.log, offset: h.Span.Offset}
	defer reader.close()
	if h.Span.Tail > 0 {
		reader.offset = r.log.tail(h.Span.Tail)
	}
	if writeLine(st, reply{Offset: reader.offset}) != nil {
		return
	}
	if sendLog(ctx, st, r, reader, h.Span.Follow) == nil {
		st.CloseWrite()
		<-ctx.Done()
	}
}

// sendLog sends what reader reads, as frames.
func sendLog(ctx context.Context, st io.Writer, r *record, reader *logReader, follow bool) error {
	buf := make([]byte, frameHeaderLen+maxFrame)
	for {
		at := reader.offset
		n, stderr, more, err := reader.read(buf[frameHeaderLen:])
		if err != nil {
			return err
		}
		if begins := reader.offset - int64(n); begins > at {
			if err := writeFrame(st, frameGap, binary.BigEndian.AppendUint64(nil, uint64(begins))); err != nil {
				return err
			}
		}
		if n > 0 {
			typ := byte(frameOutput)
			if stderr {
				typ = frameStderr
			}
			putFrameHeader(buf, typ, n)
			if _, err := st.Write(buf[:frameHeaderLen+n]); err != nil {
				return err
			}
			continue
		}
		if more != nil && follow {
			select {
			case <-more:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if follow { // the log ends a little before the job
			select {
			case <-r.done:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		i := r.look()
		return writeFrame(st, frameEnd, appendLine(nil, i))
	}
}
