package store

import (
	"os"
	"slices"
	"testing"
	"time"
)

// A secret whose value cannot be opened is named, and a key that the next start would
// miss is noticed.
func TestVaultCheck(t *testing.T) {
	db, _ := openTemp(t)
	ctx := t.Context()
	v, path := openVaultTemp(t, db)
	user, err := db.CreateUser(ctx, "alice", RoleUser)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"GOOD", "BAD"} {
		if err := v.Set(ctx, Secret{UserID: user.ID, Name: name, Form: SecretEnv}, []byte("value")); err != nil {
			t.Fatal(err)
		}
	}
	if broken, err := v.Unreadable(ctx, 0); err != nil || len(broken) > 0 {
		t.Errorf("unreadable: %q, %v", broken, err)
	}
	if _, err := db.write.ExecContext(ctx, "UPDATE secrets SET sealed = x'00' WHERE name = 'BAD'"); err != nil {
		t.Fatal(err)
	}
	for _, whose := range []int64{0, user.ID} {
		if broken, err := v.Unreadable(ctx, whose); err != nil || !slices.Equal(broken, []string{"BAD"}) {
			t.Errorf("unreadable of %d: %q, %v", whose, broken, err)
		}
	}
	if broken, err := v.Unreadable(ctx, user.ID+1); err != nil || len(broken) > 0 {
		t.Errorf("unreadable of somebody else: %q, %v", broken, err)
	}

	if err := v.CheckKey(); err != nil {
		t.Error(err)
	}
	if err := writeSealKeys(path, []SealKey{NewSealKey()}); err != nil {
		t.Fatal(err)
	}
	if v.CheckKey() == nil {
		t.Error("another key passes")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if v.CheckKey() == nil {
		t.Error("no key passes")
	}
	elsewhere, err := OpenVaultWith(ctx, db, v.keys)
	if err != nil {
		t.Fatal(err)
	}
	if err := elsewhere.CheckKey(); err != nil {
		t.Errorf("a key that is in no file: %v", err)
	}
}

func TestCheck(t *testing.T) {
	db, _ := openTemp(t)
	if wrong, err := db.Check(t.Context()); err != nil || len(wrong) > 0 {
		t.Errorf("a new database: %q, %v", wrong, err)
	}
	at := now()
	if err := db.AddAudit(t.Context(), []AuditRow{
		{Time: at.Add(-48 * time.Hour), Kind: "login", Outcome: "denied"},
		{Time: at, Kind: "login", Outcome: "denied"},
		{Time: at, Kind: "login", Outcome: "ok"},
		{Time: at, Kind: "connection", Outcome: "failed"},
		{Time: at, Kind: "login", Outcome: "denied", UserID: 1},
	}); err != nil {
		t.Fatal(err)
	}
	if n, err := db.FailedLogins(t.Context(), at.Add(-24*time.Hour)); err != nil || n != 1 {
		t.Errorf("%d failed logins, %v", n, err)
	}
}
