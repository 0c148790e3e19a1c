package store

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

// The newest lines of each user are kept, and go with the user.
func TestHistory(t *testing.T) {
	db, _ := openTemp(t)
	ctx := t.Context()
	alice, err := db.CreateUser(ctx, "alice", RoleUser)
	if err != nil {
		t.Fatal(err)
	}
	bob, err := db.CreateUser(ctx, "bob", RoleUser)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.AddHistory(ctx, bob.ID, "ls"); err != nil {
		t.Fatal(err)
	}
	for i := range MaxHistory + 3 {
		if err := db.AddHistory(ctx, alice.ID, fmt.Sprint("info s", i)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := db.History(ctx, alice.ID)
	if err != nil || len(got) != MaxHistory || got[0] != fmt.Sprint("info s", MaxHistory+2) || got[MaxHistory-1] != "info s3" {
		t.Errorf("%d lines, %q to %q, %v", len(got), got[0], got[len(got)-1], err)
	}
	if got, err := db.History(ctx, bob.ID); err != nil || !slices.Equal(got, []string{"ls"}) {
		t.Errorf("bob's: %q, %v", got, err)
	}
	if err := db.DeleteUser(ctx, bob.ID); err != nil {
		t.Fatal(err)
	}
	if got, err := db.History(ctx, bob.ID); err != nil || len(got) > 0 {
		t.Errorf("of a user who is gone: %q, %v", got, err)
	}
	if err := db.AddHistory(ctx, bob.ID, "ls"); !errors.Is(err, ErrNotFound) {
		t.Errorf("of a user who is gone: %v", err)
	}
}
