package store

import (
	"errors"
	"slices"
	"testing"
)

func TestSnapshots(t *testing.T) {
	db, _ := openTemp(t)
	ctx := t.Context()
	alice, err := db.CreateUser(ctx, "alice", RoleUser)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []Snapshot{{ID: "1", Name: "b"}, {ID: "2", Name: "a"}} {
		s.UserID, s.Driver, s.Spec, s.Sandbox = alice.ID, "x", []byte(`{"cpus":1}`), "web"
		if _, err := db.CreateSnapshot(ctx, s); err != nil {
			t.Fatal(err)
		}
		s.ID += "again"
		if _, err := db.CreateSnapshot(ctx, s); !errors.Is(err, ErrExists) {
			t.Errorf("a second %q: %v", s.Name, err)
		}
	}
	if _, err := db.CreateSnapshot(ctx, Snapshot{ID: "3", UserID: 99, Name: "c", Spec: []byte("{}")}); !errors.Is(err, ErrNotFound) {
		t.Errorf("of nobody: %v", err)
	}
	got, err := db.SnapshotByName(ctx, alice.ID, "b")
	if err != nil || got.ID != "1" || string(got.Spec) != `{"cpus":1}` || got.Sandbox != "web" || got.Created.IsZero() {
		t.Errorf("it is %+v, %v", got, err)
	}
	for user, want := range map[int64]int{alice.ID: 2, 0: 2, 99: 0} {
		if all, err := db.SnapshotsOf(ctx, user); err != nil || len(all) != want || want > 0 && all[0].Name != "a" {
			t.Errorf("user %d has %v, %v", user, all, err)
		}
	}
	if err := db.DeleteSnapshot(ctx, "1"); err != nil {
		t.Error(err)
	}
	if err := db.DeleteSnapshot(ctx, "1"); !errors.Is(err, ErrNotFound) {
		t.Errorf("deleted twice: %v", err)
	}
	if _, err := db.SnapshotByName(ctx, alice.ID, "b"); !errors.Is(err, ErrNotFound) {
		t.Errorf("deleted: %v", err)
	}
}

func TestExposures(t *testing.T) {
	db, _ := openTemp(t)
	ctx := t.Context()
	alice, err := db.CreateUser(ctx, "alice", RoleUser)
	if err == nil {
		_, err = db.CreateSandbox(ctx, Sandbox{ID: "1", UserID: alice.ID, Name: "web", Spec: []byte("{}"), Desired: DesiredStopped})
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"TOKEN", "KEY", "TOKEN"} {
		if err := db.Expose(ctx, "1", secret); err != nil {
			t.Error(err)
		}
	}
	if got, err := db.Exposed(ctx, "1"); err != nil || !slices.Equal(got, []string{"KEY", "TOKEN"}) {
		t.Errorf("exposed are %v, %v", got, err)
	}
	if err := db.Unexpose(ctx, "1"); err != nil {
		t.Error(err)
	}
	if got, err := db.Exposed(ctx, "1"); err != nil || len(got) > 0 {
		t.Errorf("exposed are %v, %v", got, err)
	}
	if err := db.Expose(ctx, "2", "TOKEN"); !errors.Is(err, ErrNotFound) {
		t.Errorf("of no sandbox: %v", err)
	}
}
