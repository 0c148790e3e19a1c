package store

import (
	"bytes"
	"testing"
	"time"
)

// Whatever takes away the last admin's last way in is undone as a whole.
func TestLastAdmin(t *testing.T) {
	db, _ := openTemp(t)
	ctx := t.Context()
	alice, err := db.CreateUserWithKeys(ctx, "alice", RoleAdmin, []Key{{Fingerprint: "SHA256:a", Blob: []byte{1}}})
	if err != nil {
		t.Fatal(err)
	}
	bob := addUser(t, db, "bob")
	for _, k := range []Key{
		{Fingerprint: "SHA256:limited", UserID: alice.ID, Blob: []byte{2}, Scope: "{}"},
		{Fingerprint: "SHA256:short", UserID: alice.ID, Blob: []byte{3}, Expires: time.Now().Add(time.Hour)},
		{Fingerprint: "SHA256:b", UserID: bob.ID, Blob: []byte{4}},
	} {
		if _, err := db.AddKey(ctx, k); err != nil {
			t.Fatal(err)
		}
	}
	try := map[string]func() error{
		"DeleteKey":  func() error { return db.DeleteKey(ctx, alice.ID, "SHA256:a") },
		"DeleteKeys": func() error { return db.DeleteKeys(ctx, alice.ID) },
		"DeleteUser": func() error { return db.DeleteUser(ctx, alice.ID) },
		"SetRole":    func() error { return db.SetRole(ctx, alice.ID, RoleUser) },
		"Revoke":     func() error { return db.Revoke(ctx, "SHA256:a") },
	}
	for name, f := range try {
		wantErr(t, f(), ErrLastAdmin)
		if user, _, err := db.UserByKey(ctx, "SHA256:a"); err != nil || user != alice {
			t.Errorf("%s left %+v, %v", name, user, err)
		}
	}
	if err := db.SetRole(ctx, bob.ID, RoleAdmin); err != nil {
		t.Fatal(err)
	}
	if err := try["Revoke"](); err != nil {
		t.Error(err)
	}
	_, _, err = db.UserByKey(ctx, "SHA256:a")
	wantErr(t, err, ErrNotFound)
}

func TestInvites(t *testing.T) {
	db, _ := openTemp(t)
	ctx := t.Context()
	bob := addUser(t, db, "bob")
	hash, late := []byte("hash"), []byte("late")
	for _, h := range []struct {
		hash []byte
		at   time.Time
	}{{hash, time.Now().Add(time.Hour)}, {late, time.Now().Add(-time.Second)}} {
		if err := db.CreateInvite(ctx, h.hash, bob.ID, h.at); err != nil {
			t.Fatal(err)
		}
	}
	user, err := db.UserByInvite(ctx, hash)
	if err != nil || user != bob {
		t.Fatalf("%+v, %v", user, err)
	}
	_, err = db.UserByInvite(ctx, late)
	wantErr(t, err, ErrNotFound)
	wantErr(t, db.UseInvite(ctx, late, Key{Fingerprint: "SHA256:x", Blob: []byte{1}}), ErrNotFound)
	if _, err := db.AddKey(ctx, Key{Fingerprint: "SHA256:known", UserID: bob.ID, Blob: []byte{1}}); err != nil {
		t.Fatal(err)
	}
	wantErr(t, db.UseInvite(ctx, hash, Key{Fingerprint: "SHA256:known", Blob: []byte{1}}), ErrExists)
	if err := db.UseInvite(ctx, hash, Key{Fingerprint: "SHA256:x", Blob: []byte{1}}); err != nil {
		t.Fatal(err) // a key that was known already has not used it up
	}
	wantErr(t, db.UseInvite(ctx, hash, Key{Fingerprint: "SHA256:y", Blob: []byte{1}}), ErrNotFound)
	wantErr(t, db.CreateInvite(ctx, bytes.Repeat(hash, 2), 999, time.Now()), ErrNotFound)
}

// What is shared or has an alias goes with its sandbox and with either user.
func TestGrantsAndAliases(t *testing.T) {
	db, _ := openTemp(t)
	ctx := t.Context()
	alice, bob := addUser(t, db, "alice"), addUser(t, db, "bob")
	web, err := db.CreateSandbox(ctx, Sandbox{ID: "1", UserID: alice.ID, Name: "web", Spec: []byte("{}"), Desired: DesiredStopped})
	if err != nil {
		t.Fatal(err)
	}
	for _, readOnly := range []bool{true, false} {
		if err := db.Share(ctx, web.ID, bob.ID, readOnly); err != nil {
			t.Fatal(err)
		}
		shared, err := db.SharedWith(ctx, bob.ID)
		if err != nil {
			t.Fatal(err)
		}
		wantEqual(t, shared, []Shared{{web, readOnly}})
	}
	wantErr(t, db.Share(ctx, web.ID, 999, false), ErrNotFound)
	wantErr(t, db.Share(ctx, "9", bob.ID, false), ErrNotFound)
	if err := db.AddAlias(ctx, bob.ID, "hers", web.ID); err != nil {
		t.Fatal(err)
	}
	wantErr(t, db.AddAlias(ctx, bob.ID, "hers", web.ID), ErrExists)
	a, err := db.Alias(ctx, bob.ID, "hers")
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, a, Alias{"hers", web})
	if err := db.RenameSandbox(ctx, web, "site"); err != nil {
		t.Fatal(err)
	}
	wantErr(t, db.DeleteUser(ctx, alice.ID), ErrHasSandboxes)
	if err := db.DeleteSandbox(ctx, web.ID); err != nil {
		t.Fatal(err)
	}
	grants, err := db.GrantsOf(ctx, web.ID)
	if err != nil {
		t.Fatal(err)
	}
	aliases, err := db.Aliases(ctx, bob.ID)
	if err != nil {
		t.Fatal(err)
	}
	if len(grants)+len(aliases) != 0 {
		t.Errorf("left over: %v, %v", grants, aliases)
	}
	wantErr(t, db.Unshare(ctx, web.ID, bob.ID), ErrNotFound)
	if err := db.DeleteUser(ctx, bob.ID); err != nil {
		t.Fatal(err)
	}
}
