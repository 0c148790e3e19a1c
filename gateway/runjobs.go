package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"sandgate/agent"
	"sandgate/sandbox"
	"sandgate/sandbox/guest"
	"sandgate/store"
)

// A command of a run that goes on when its call has returned is a job of the run. The
// run's log says that it began so, and when and how it ended: in the turn, after it, or
// in the life of a later gateway.

// The states of a job in a run's log.
const (
	jobStarted = "started"
	jobExited  = "exited"
	jobKilled  = "killed"
)

// killedByStop is who ended a job whose sandbox was stopped, as exec has it, too.
const killedByStop = "sandbox_stop"

// A jobEvent is what the log says of a job.
type jobEvent struct {
	Job      string `json:"job"`
	State    string `json:"state"`
	ExitCode *int   `json:"exit_code"` // null: it goes on, was killed, or it is not known
	Signal   string `json:"signal,omitempty"`
	KilledBy string `json:"killed_by,omitempty"`
	Bytes    int64  `json:"bytes"` // of output
}

func isJob(e agent.Event) bool {
	return e.Type == agent.TypeSystem && e.Subtype == agent.SubtypeJob
}

// noteJob puts into the log that the command of a call goes on by itself, if it does,
// and has its end put there as well. detail is what the call returned.
func (l *liveRun) noteJob(row store.Sandbox, call string, detail json.RawMessage) {
	var d struct {
		Job     string
		Running bool
		Stdout  int64 `json:"stdout_bytes"`
		Stderr  int64 `json:"stderr_bytes"`
	}
	if json.Unmarshal(detail, &d) != nil || !d.Running || d.Job != jobOf(l.row.ID, call) {
		return // also what attends to a job that another call began
	}
	err := l.appendJob(jobEvent{Job: d.Job, State: jobStarted, Bytes: d.Stdout + d.Stderr})
	if err == nil {
		l.watchJob(row, d.Job)
	} else if !errors.Is(err, store.ErrExists) {
		l.runs.gate.log.Error("job not recorded", keyRun, l.row.ID, keyErr, err)
	}
}

// appendJob puts an event of a job into the log. ErrExists if it is there.
func (l *liveRun) appendJob(j jobEvent) error {
	ctx, cancel := context.WithTimeout(context.Background(), touchTimeout)
	defer cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.working { // nobody else counts
		last, err := l.runs.gate.db.LastRunEvent(ctx, l.row.ID)
		if err != nil {
			return err
		}
		l.seq = last
	}
	e := agent.Event{Time: time.Now(), Type: agent.TypeSystem, Subtype: agent.SubtypeJob, Fields: map[string]any{
		"session_id": l.row.ID, "job": j.Job, "state": j.State, "exit_code": j.ExitCode, "bytes": j.Bytes,
	}}
	if j.Signal != "" {
		e.Fields["signal"] = j.Signal
	}
	if j.KilledBy != "" {
		e.Fields["killed_by"] = j.KilledBy
	}
	_, err := l.put(e, func(seq int64, line []byte) error {
		return l.runs.gate.db.AppendRunJob(ctx, l.row.ID, seq, line, j.Job, j.State == jobStarted, e.Time)
	})
	return err
}

// watchJob waits for the end of a job, without keeping its sandbox from being idle, and
// puts it into the log. If the sandbox goes away by itself, whoever wakes it goes on.
func (l *liveRun) watchJob(row store.Sandbox, job string) {
	if l.runs.ctx.Err() != nil {
		return
	}
	l.runs.mu.Lock()
	l.holders++
	l.runs.mu.Unlock()
	l.runs.wg.Go(func() {
		defer l.runs.release(l)
		end, err := l.runs.jobEnd(row, job)
		if err == nil {
			err = l.appendJob(end)
		}
		switch {
		case err == nil, errors.Is(err, store.ErrExists), errors.Is(err, store.ErrNotFound), l.runs.ctx.Err() != nil:
		default:
			l.runs.gate.log.Debug("end of job not seen", keyRun, l.row.ID, keyErr, err)
		}
	})
}

// jobEnd returns how a job ended, once it has.
func (r *runs) jobEnd(row store.Sandbox, job string) (jobEvent, error) {
	lease, err := r.gate.sandboxes.Look(r.ctx, row)
	if err != nil {
		return jobEvent{}, err
	}
	defer lease.Release()
	info, err := lease.WaitJob(r.ctx, job)
	switch {
	case errors.Is(err, guest.ErrNoJob): // it is long ago
		return jobEvent{Job: job, State: jobKilled, KilledBy: string(guest.ReasonLost)}, nil
	case errors.Is(err, guest.ErrGone) && lease.Stopping():
		if _, paused := errors.AsType[*sandbox.PausedError](lease.Gone()); paused {
			return jobEvent{}, err
		}
		return jobEvent{Job: job, State: jobKilled, KilledBy: killedByStop}, nil
	case err != nil:
		return jobEvent{}, err
	}
	e := jobEvent{Job: job, State: jobKilled, Bytes: info.Output}
	if info.Exit != nil && info.Exit.Signal == "" {
		e.ExitCode = &info.Exit.Code
	} else if info.Exit != nil {
		e.Signal = info.Exit.Signal
	}
	switch info.Reason {
	case guest.ReasonExit:
		e.State = jobExited
	case guest.ReasonSignal:
	case guest.ReasonStopped:
		e.KilledBy = killedByStop
	default:
		e.KilledBy = string(info.Reason)
	}
	return e, nil
}

// watchJobs watches the jobs of a sandbox's runs, or with an empty id of all, that are
// not known to have ended. Those of a sandbox that does not run are looked at when it
// does.
func (r *runs) watchJobs(ctx context.Context, sandboxID string) error {
	jobs, err := r.gate.db.RunJobs(ctx, sandboxID)
	if err != nil {
		return err
	}
	for id, ids := range jobs {
		run, err := r.gate.db.Run(ctx, id)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		row, err := r.gate.db.Sandbox(ctx, run.SandboxID)
		if err != nil {
			return fmt.Errorf("jobs of run %s: %w", id, err)
		}
		l := r.open(run)
		for _, job := range ids {
			l.watchJob(row, job)
		}
		r.release(l)
	}
	return nil
}
