package store

import (
	"errors"
	"reflect"
	"testing"
)

func TestSetup(t *testing.T) {
	db, _ := openTemp(t)
	u := addUser(t, db, "alice")
	s, err := db.CreateSandbox(t.Context(), Sandbox{ID: "s1", UserID: u.ID, Name: "web", Driver: "d", Spec: []byte("{}"), Desired: DesiredStopped})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Setup(t.Context(), s.ID); !errors.Is(err, ErrNotFound) {
		t.Errorf("before any: %v", err)
	}
	for _, want := range []Setup{
		{How: "exit code 3", Ended: now(), Log: []byte("no\x00\n")},
		{Done: true, Ended: now(), Log: []byte("yes\n")},
	} {
		if err := db.PutSetup(t.Context(), s.ID, want); err != nil {
			t.Fatal(err)
		}
		if got, err := db.Setup(t.Context(), s.ID); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v; want %+v", got, err, want)
		}
	}
	if err := db.PutSetup(t.Context(), "other", Setup{Log: []byte{}}); !errors.Is(err, ErrNotFound) {
		t.Errorf("of no sandbox: %v", err)
	}
	if err := db.DeleteSandbox(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Setup(t.Context(), s.ID); !errors.Is(err, ErrNotFound) {
		t.Errorf("after the sandbox: %v", err)
	}
}

func TestSetSpec(t *testing.T) {
	db, _ := openTemp(t)
	u := addUser(t, db, "alice")
	s, err := db.CreateSandbox(t.Context(), Sandbox{ID: "s1", UserID: u.ID, Name: "web", Driver: "d", Spec: []byte("{}"), Desired: DesiredStopped})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.SetSpec(t.Context(), s.ID, []byte("new")); err != nil {
		t.Fatal(err)
	}
	if s, err := db.Sandbox(t.Context(), s.ID); err != nil || string(s.Spec) != "new" {
		t.Errorf("got %q, %v", s.Spec, err)
	}
	if err := db.SetSpec(t.Context(), "other", nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("of no sandbox: %v", err)
	}
}
