package store

import (
	"errors"
	"slices"
	"testing"
)

func TestServices(t *testing.T) {
	ctx := t.Context()
	db, _ := openTemp(t)
	u, err := db.CreateUser(ctx, "ada", RoleUser)
	if err != nil {
		t.Fatal(err)
	}
	box, err := db.CreateSandbox(ctx, Sandbox{ID: "0123456789abcdef", UserID: u.ID, Name: "web", Driver: "x", Spec: []byte("{}"), Desired: DesiredStopped})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"second", "first"} { // the order is that of adding
		if err := db.AddService(ctx, box.ID, Service{Name: name, Command: "run " + name, Dir: "/srv", Env: []string{"A=b"}, Health: []byte(`{"text":"x"}`)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.AddService(ctx, box.ID, Service{Name: "first"}); !errors.Is(err, ErrExists) {
		t.Errorf("a name twice: %v", err)
	}
	if err := db.AddService(ctx, "nosuch", Service{Name: "first"}); !errors.Is(err, ErrNotFound) {
		t.Errorf("in no sandbox: %v", err)
	}
	all, err := db.Services(ctx, box.ID)
	if err != nil || len(all) != 2 || all[0].Name != "second" || all[0].Command != "run second" || all[0].Dir != "/srv" ||
		!slices.Equal(all[0].Env, []string{"A=b"}) || string(all[0].Health) != `{"text":"x"}` || all[0].Created.IsZero() || all[1].Name != "first" {
		t.Errorf("services %+v, %v", all, err)
	}
	serving := func() int {
		all, err := db.Serving(ctx)
		if err != nil {
			t.Error(err)
		}
		return len(all)
	}
	if n := serving(); n != 0 {
		t.Errorf("%d stopped sandboxes are serving", n)
	}
	if _, err := db.CreateSandbox(ctx, Sandbox{ID: "fedcba9876543210", UserID: u.ID, Name: "none", Driver: "x", Spec: []byte("{}"), Desired: DesiredRunning}); err != nil {
		t.Fatal(err)
	}
	if err := db.SetDesired(ctx, box.ID, DesiredRunning); err != nil {
		t.Fatal(err)
	}
	if n := serving(); n != 1 {
		t.Errorf("%d sandboxes are serving", n)
	}
	if err := db.DeleteService(ctx, box.ID, "second"); err != nil {
		t.Error(err)
	}
	if err := db.DeleteService(ctx, box.ID, "second"); !errors.Is(err, ErrNotFound) {
		t.Errorf("deleted twice: %v", err)
	}
	if err := db.DeleteSandbox(ctx, box.ID); err != nil {
		t.Fatal(err)
	}
	if all, err := db.Services(ctx, box.ID); err != nil || len(all) != 0 {
		t.Errorf("of a deleted sandbox: %+v, %v", all, err)
	}
}
