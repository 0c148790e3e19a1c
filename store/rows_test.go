package store

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestUsers(t *testing.T) {
	db, _ := openTemp(t)
	ctx := t.Context()
	bob := addUser(t, db, "bob")
	alice, err := db.CreateUser(ctx, "alice", RoleAdmin)
	if err != nil {
		t.Fatal(err)
	}

	_, err = db.CreateUser(ctx, "bob", RoleUser)
	wantErr(t, err, ErrExists)
	_, err = db.UserByName(ctx, "carol")
	wantErr(t, err, ErrNotFound)
	if _, err := db.CreateUser(ctx, "carol", "emperor"); err == nil {
		t.Error("created a user with an unknown role")
	}

	got, err := db.UserByName(ctx, "alice")
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, got, alice)
	all, err := db.Users(ctx)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, all, []User{alice, bob})
	n, err := db.CountUsers(ctx)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, n, 2)
}

func TestKeys(t *testing.T) {
	db, _ := openTemp(t)
	ctx := t.Context()
	alice, bob := addUser(t, db, "alice"), addUser(t, db, "bob")
	laptop, err := db.AddKey(ctx, Key{
		Fingerprint: "SHA256:laptop", UserID: alice.ID, Type: "ssh-ed25519", Blob: []byte{0, 255}, Name: "alice@laptop",
	})
	if err != nil {
		t.Fatal(err)
	}

	_, err = db.AddKey(ctx, Key{Fingerprint: "SHA256:laptop", UserID: bob.ID, Blob: []byte{1}})
	wantErr(t, err, ErrExists)
	_, err = db.AddKey(ctx, Key{Fingerprint: "SHA256:new", UserID: 999, Blob: []byte{1}})
	wantErr(t, err, ErrNotFound)
	_, _, err = db.UserByKey(ctx, "SHA256:new")
	wantErr(t, err, ErrNotFound)
	wantErr(t, db.TouchKey(ctx, "SHA256:new", time.Now()), ErrNotFound)

	user, key, err := db.UserByKey(ctx, "SHA256:laptop")
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, user, alice)
	wantEqual(t, key, laptop)
	wantEqual(t, key.LastUsed, time.Time{})

	laptop.LastUsed = time.Date(2026, 5, 6, 7, 8, 9, 10_000_000, time.UTC)
	for _, used := range []time.Time{laptop.LastUsed, laptop.LastUsed.Add(-time.Hour)} {
		if err := db.TouchKey(ctx, "SHA256:laptop", used.Local()); err != nil {
			t.Fatal(err)
		}
	}
	keys, err := db.Keys(ctx, alice.ID)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, keys, []Key{laptop})
	keys, err = db.Keys(ctx, bob.ID)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, keys, []Key(nil))
}

func TestCreateUserWithKeys(t *testing.T) {
	db, _ := openTemp(t)
	ctx := t.Context()
	alice, err := db.CreateUserWithKeys(ctx, "alice", RoleAdmin, []Key{
		{Fingerprint: "SHA256:1", Blob: []byte{1}}, {Fingerprint: "SHA256:2", Blob: []byte{2}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, fingerprint := range []string{"SHA256:1", "SHA256:2"} {
		user, _, err := db.UserByKey(ctx, fingerprint)
		if err != nil {
			t.Fatal(err)
		}
		wantEqual(t, user, alice)
	}

	_, err = db.CreateUserWithKeys(ctx, "bob", RoleUser, []Key{
		{Fingerprint: "SHA256:3", Blob: []byte{3}}, {Fingerprint: "SHA256:2", Blob: []byte{2}},
	})
	wantErr(t, err, ErrExists)
	_, err = db.UserByName(ctx, "bob")
	wantErr(t, err, ErrNotFound)
	_, _, err = db.UserByKey(ctx, "SHA256:3")
	wantErr(t, err, ErrNotFound)
}

func TestSandboxes(t *testing.T) {
	db, _ := openTemp(t)
	ctx := t.Context()
	alice, bob := addUser(t, db, "alice"), addUser(t, db, "bob")
	create := func(id string, owner User, name string) Sandbox {
		t.Helper()
		s, err := db.CreateSandbox(ctx, Sandbox{
			ID: id, UserID: owner.ID, Name: name, Driver: "local", Spec: []byte(`{"cpus":2}`), Desired: DesiredRunning,
		})
		if err != nil {
			t.Fatal(err)
		}
		wantEqual(t, s.Owner, owner.Name)
		wantEqual(t, s.LastUsed, s.Created)
		return s
	}
	bobWeb := create("1", bob, "web")
	web := create("2", alice, "web")
	api := create("3", alice, "api")

	_, err := db.CreateSandbox(ctx, Sandbox{ID: "4", UserID: alice.ID, Name: "web", Spec: []byte{}, Desired: DesiredRunning})
	wantErr(t, err, ErrExists)
	_, err = db.CreateSandbox(ctx, Sandbox{ID: "1", UserID: alice.ID, Name: "new", Spec: []byte{}, Desired: DesiredRunning})
	wantErr(t, err, ErrExists)
	_, err = db.CreateSandbox(ctx, Sandbox{ID: "4", UserID: 999, Name: "new", Spec: []byte{}, Desired: DesiredRunning})
	wantErr(t, err, ErrNotFound)
	_, err = db.Sandbox(ctx, "4")
	wantErr(t, err, ErrNotFound)
	_, err = db.SandboxByName(ctx, bob.ID, "api")
	wantErr(t, err, ErrNotFound)
	wantErr(t, db.SetDesired(ctx, "4", DesiredStopped), ErrNotFound)
	wantErr(t, db.TouchSandbox(ctx, "4", time.Now()), ErrNotFound)
	wantErr(t, db.DeleteSandbox(ctx, "4"), ErrNotFound)

	if err := db.SetDesired(ctx, web.ID, DesiredStopped); err != nil {
		t.Fatal(err)
	}
	web.Desired = DesiredStopped
	web.LastUsed = web.Created.Add(time.Minute)
	for _, used := range []time.Time{web.LastUsed, web.Created} {
		if err := db.TouchSandbox(ctx, web.ID, used); err != nil {
			t.Fatal(err)
		}
	}

	got, err := db.Sandbox(ctx, web.ID)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, got, web)
	got, err = db.SandboxByName(ctx, bob.ID, "web")
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, got, bobWeb)
	of, err := db.SandboxesOf(ctx, alice.ID)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, of, []Sandbox{api, web})
	all, err := db.Sandboxes(ctx)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, all, []Sandbox{api, web, bobWeb})

	if err := db.DeleteSandbox(ctx, web.ID); err != nil {
		t.Fatal(err)
	}
	create("5", alice, "web")
}

// Two first connections at the same instant make one sandbox.
func TestCreateSandboxRace(t *testing.T) {
	db, _ := openTemp(t)
	alice := addUser(t, db, "alice")
	var made atomic.Int32
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			_, err := db.CreateSandbox(t.Context(), Sandbox{
				ID: fmt.Sprint(i), UserID: alice.ID, Name: "web", Spec: []byte{}, Desired: DesiredRunning,
			})
			switch {
			case err == nil:
				made.Add(1)
			case !errors.Is(err, ErrExists):
				t.Error(err)
				return
			}
			// The losers find what the winner made.
			if _, err := db.SandboxByName(t.Context(), alice.ID, "web"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := made.Load(); n != 1 {
		t.Errorf("%d sandboxes were made, want 1", n)
	}
}

func BenchmarkUserByKey(b *testing.B) {
	db, _ := openTemp(b)
	const users, keysEach = 100, 100
	fingerprint := func(i int) string { return fmt.Sprintf("SHA256:%043d", i) }
	for i := range users {
		var keys []Key
		for j := range keysEach {
			keys = append(keys, Key{Fingerprint: fingerprint(i*keysEach + j), Type: "ssh-ed25519", Blob: make([]byte, 51)})
		}
		if _, err := db.CreateUserWithKeys(b.Context(), fmt.Sprint("user", i), RoleUser, keys); err != nil {
			b.Fatal(err)
		}
	}
	var n atomic.Int64
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, _, err := db.UserByKey(b.Context(), fingerprint(int(n.Add(7919)%(users*keysEach)))); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
