package store

import (
	"errors"
	"testing"
	"time"
)

func TestRuns(t *testing.T) {
	db, _ := openTemp(t)
	ctx := t.Context()
	u, err := db.CreateUser(ctx, "alice", RoleUser)
	if err != nil {
		t.Fatal(err)
	}
	s, err := db.CreateSandbox(ctx, Sandbox{ID: "0123456789abcdef", UserID: u.ID, Name: "web", Driver: "d", Spec: []byte("{}"), Desired: DesiredStopped})
	if err != nil {
		t.Fatal(err)
	}
	at := time.UnixMilli(1_700_000_000_000)
	r := Run{ID: "run1", UserID: u.ID, SandboxID: s.ID, Title: "do it", Options: []byte("{}"), Created: at}
	if err := db.CreateRun(ctx, r); err != nil {
		t.Fatal(err)
	}
	if err := db.CreateRun(ctx, r); !errors.Is(err, ErrExists) {
		t.Errorf("twice: %v", err)
	}
	for i := range 3 {
		if err := db.AppendRunEvent(ctx, "run1", int64(i+1), []byte{byte('a' + i)}, RunWorking, at.Add(time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.AppendRunEvent(ctx, "run1", 3, []byte("x"), RunIdle, at); !errors.Is(err, ErrExists) {
		t.Errorf("a number twice: %v", err)
	}
	if err := db.AppendRunEvent(ctx, "run2", 1, []byte("x"), RunIdle, at); !errors.Is(err, ErrNotFound) {
		t.Errorf("no such run: %v", err)
	}
	got, err := db.Run(ctx, "run1")
	if err != nil || got.State != RunWorking || got.User != "alice" || got.Sandbox != "web" || !got.Changed.Equal(at.Add(time.Second)) {
		t.Errorf("got %+v, %v", got, err)
	}
	events, err := db.RunEvents(ctx, "run1", 1, 10)
	if err != nil || len(events) != 2 || events[0].Seq != 2 || string(events[1].Event) != "c" {
		t.Errorf("got %v, %v", events, err)
	}
	if all, err := db.RunsAtWork(ctx); err != nil || len(all) != 1 {
		t.Errorf("at work: %v, %v", all, err)
	}
	r.ID, r.Title = "run3", ""
	if err := db.CreateRun(ctx, r); err != nil {
		t.Fatal(err)
	}
	for _, title := range []string{"first", "second"} {
		if err := db.SetRunTitle(ctx, "run3", title); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := db.Run(ctx, "run3"); err != nil || got.Title != "first" {
		t.Errorf("the title is %q, %v", got.Title, err)
	}
	for _, tt := range []struct {
		seq     int64
		job     string
		running bool
		want    error
	}{
		{4, "j1", true, nil},
		{5, "j1", true, ErrExists},
		{5, "j2", true, nil},
		{5, "j1", false, ErrExists}, // the number
		{6, "j1", false, nil},
		{7, "j1", false, ErrExists},
	} {
		if err := db.AppendRunJob(ctx, "run1", tt.seq, []byte("j"), tt.job, tt.running, at); !errors.Is(err, tt.want) {
			t.Errorf("%+v: %v", tt, err)
		}
	}
	if err := db.AppendRunJob(ctx, "run2", 1, []byte("j"), "j1", true, at); !errors.Is(err, ErrNotFound) {
		t.Errorf("a job of no run: %v", err)
	}
	if jobs, err := db.RunJobs(ctx, s.ID); err != nil || len(jobs) != 1 || len(jobs["run1"]) != 1 || jobs["run1"][0] != "j2" {
		t.Errorf("jobs: %v, %v", jobs, err)
	}
	if jobs, err := db.RunJobs(ctx, "another"); err != nil || len(jobs) != 0 {
		t.Errorf("jobs of another sandbox: %v, %v", jobs, err)
	}
	if got, err := db.Run(ctx, "run1"); err != nil || got.State != RunWorking {
		t.Errorf("after a job the run is %+v, %v", got, err)
	}
	if err := db.DeleteSandbox(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	if jobs, err := db.RunJobs(ctx, ""); err != nil || len(jobs) != 0 {
		t.Errorf("jobs of a sandbox that was removed: %v, %v", jobs, err)
	}
	if events, err := db.RunEvents(ctx, "run1", 0, 10); err != nil || len(events) != 0 {
		t.Errorf("a sandbox was removed, and its run has %v, %v", events, err)
	}
}
