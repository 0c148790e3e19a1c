package store

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func openVaultTemp(t *testing.T, db *DB) (*Vault, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "vault.key")
	v, err := OpenVault(t.Context(), db, path)
	if err != nil {
		t.Fatal(err)
	}
	return v, path
}

func addSandbox(t *testing.T, db *DB, u User, name string) Sandbox {
	t.Helper()
	s, err := db.CreateSandbox(t.Context(), Sandbox{
		ID: u.Name + "-" + name, UserID: u.ID, Name: name, Driver: "d", Spec: []byte("{}"), Desired: DesiredStopped,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func set(t *testing.T, v *Vault, u User, sandboxID, name, value string) {
	t.Helper()
	if err := v.Set(t.Context(), Secret{UserID: u.ID, SandboxID: sandboxID, Name: name, Form: SecretEnv}, []byte(value)); err != nil {
		t.Fatal(err)
	}
}

// values are the names and values of the sandbox's secrets.
func values(t *testing.T, v *Vault, sandboxID string) string {
	t.Helper()
	all, err := v.Reveal(t.Context(), sandboxID)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, r := range all {
		fmt.Fprintf(&b, "%s=%s ", r.Name, r.Value)
	}
	return b.String()
}

func TestSecrets(t *testing.T) {
	db, _ := openTemp(t)
	ctx := t.Context()
	v, _ := openVaultTemp(t, db)
	alice, bob := addUser(t, db, "alice"), addUser(t, db, "bob")
	web, api := addSandbox(t, db, alice, "web"), addSandbox(t, db, alice, "api")
	set(t, v, alice, "", "TOKEN", "the vault's")
	set(t, v, alice, web.ID, "KEY", "web's")
	set(t, v, bob, "", "TOKEN", "bob's")

	wantEqual(t, values(t, v, web.ID), "KEY=web's ")
	token, err := v.Secret(ctx, alice.ID, "", "TOKEN")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // may be repeated
		if err := v.Give(ctx, token.ID, web.ID); err != nil {
			t.Fatal(err)
		}
	}
	wantEqual(t, values(t, v, web.ID), "KEY=web's TOKEN=the vault's ")
	wantEqual(t, values(t, v, api.ID), "")

	// A sandbox's own comes before the vault's, and a new value before the old.
	set(t, v, alice, web.ID, "TOKEN", "own")
	set(t, v, alice, web.ID, "TOKEN", "newer")
	wantEqual(t, values(t, v, web.ID), "KEY=web's TOKEN=newer ")

	all, err := v.SecretsOf(ctx, alice.ID)
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, s := range all {
		listed = append(listed, fmt.Sprintf("%s/%s %d", s.Sandbox, s.Name, s.GivenTo))
	}
	wantEqual(t, listed, []string{"/TOKEN 1", "web/KEY 0", "web/TOKEN 0"})

	own, err := v.Secret(ctx, alice.ID, web.ID, "TOKEN")
	if err != nil {
		t.Fatal(err)
	}
	if err := db.TouchSecret(ctx, own.ID, now()); err != nil {
		t.Fatal(err)
	}
	if own, err = v.Secret(ctx, alice.ID, web.ID, "TOKEN"); err != nil || own.LastUsed.IsZero() {
		t.Errorf("last used %v, %v", own.LastUsed, err)
	}
	if err := v.Delete(ctx, own.ID); err != nil {
		t.Fatal(err)
	}
	wantErr(t, v.Delete(ctx, own.ID), ErrNotFound)
	wantEqual(t, values(t, v, web.ID), "KEY=web's TOKEN=the vault's ")
	if err := v.Take(ctx, token.ID, web.ID); err != nil {
		t.Fatal(err)
	}
	wantErr(t, v.Take(ctx, token.ID, web.ID), ErrNotFound)

	// What belongs to a sandbox goes with it.
	if err := db.DeleteSandbox(ctx, web.ID); err != nil {
		t.Fatal(err)
	}
	_, err = v.Secret(ctx, alice.ID, web.ID, "KEY")
	wantErr(t, err, ErrNotFound)
}

// A sealed value is of no use under another name, owner, sandbox or key.
func TestSealedValueIsBound(t *testing.T) {
	db, _ := openTemp(t)
	v, _ := openVaultTemp(t, db)
	alice, bob := addUser(t, db, "alice"), addUser(t, db, "bob")
	web, api := addSandbox(t, db, alice, "web"), addSandbox(t, db, alice, "api")
	for _, change := range []string{
		"UPDATE secrets SET name = 'OTHER'",
		fmt.Sprintf("UPDATE secrets SET user_id = %d", bob.ID),
		fmt.Sprintf("UPDATE secrets SET sandbox_id = '%s'", api.ID),
		"UPDATE secrets SET sealed = substr(sealed, 1, length(sealed) - 1)",
		"UPDATE secrets SET sealed = x''",
		"UPDATE secrets SET key_id = 'another'",
	} {
		set(t, v, alice, web.ID, "KEY", "value")
		if _, err := db.write.Exec(change); err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{web.ID, api.ID} {
			if all, err := v.Reveal(t.Context(), id); err == nil && len(all) > 0 {
				t.Errorf("after %q sandbox %s has %q", change, id, all[0].Value)
			}
		}
		if _, err := db.write.Exec("DELETE FROM secrets"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRotate(t *testing.T) {
	db, _ := openTemp(t)
	ctx := t.Context()
	v, path := openVaultTemp(t, db)
	alice := addUser(t, db, "alice")
	web := addSandbox(t, db, alice, "web")
	for i := range 3*resealBatch/2 + 1 {
		set(t, v, alice, "", fmt.Sprintf("S%d", i), "value")
	}
	before, _ := os.ReadFile(path)

	// Secrets are set and read, and other rotations come, in the meantime.
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for j := range 10 {
				set(t, v, alice, web.ID, fmt.Sprintf("W%d", i), fmt.Sprint(j))
				if all, err := v.Reveal(ctx, web.ID); err != nil || len(all) == 0 {
					t.Errorf("in a rotation: %d secrets, %v", len(all), err)
				}
			}
		})
	}
	for range 2 {
		wg.Go(func() {
			if _, _, err := v.Rotate(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	wantEqual(t, values(t, v, web.ID), "W0=9 W1=9 W2=9 W3=9 ")
	after, _ := os.ReadFile(path)
	if bytes.Equal(before, after) {
		t.Error("the key is still the old one")
	}

	// A crash after any step leaves keys that open all.
	old, err := ParseSealKeys(after)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, len(old), 1)
	if err := v.add(NewSealKey()); err != nil {
		t.Fatal(err)
	}
	if _, err := v.resealSome(ctx); err != nil {
		t.Fatal(err)
	}
	v, err = OpenVault(ctx, db, path)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, len(v.keys), 1)
	if v.keys[0].ID() == old[0].ID() {
		t.Error("the rotation was undone")
	}
	all, err := v.RevealAll(ctx, alice.ID)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, len(all), 3*resealBatch/2+1+4)
}

func TestOpenVault(t *testing.T) {
	db, _ := openTemp(t)
	ctx := t.Context()
	v, path := openVaultTemp(t, db)
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("the file of keys: %v, %v", fi.Mode(), err)
	}
	alice := addUser(t, db, "alice")
	set(t, v, alice, "", "KEY", "value")

	// A key that is lost is not replaced: it would hide that it is lost.
	if _, err := OpenVault(ctx, db, filepath.Join(t.TempDir(), "none")); err == nil || !strings.Contains(err.Error(), "restore it") {
		t.Errorf("without its key: %v", err)
	}
	if _, err := OpenVaultWith(ctx, db, []SealKey{NewSealKey()}); err == nil || !strings.Contains(err.Error(), "which is not here") {
		t.Errorf("with another key: %v", err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenVault(ctx, db, path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("with a key that all can read: %v", err)
	}

	// A key from elsewhere takes over from those behind it.
	v2, err := OpenVaultWith(ctx, db, append([]SealKey{NewSealKey()}, v.keys...))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenVaultWith(ctx, db, v2.keys[:1]); err != nil {
		t.Errorf("sealed anew at the start: %v", err)
	}
	_, _, err = v2.Rotate(ctx)
	if !errors.Is(err, ErrKeyElsewhere) {
		t.Errorf("rotate a key from elsewhere: %v", err)
	}
}

func TestParseSealKeys(t *testing.T) {
	const key = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
	for text, n := range map[string]int{
		key: 1, "# one\n" + key + "\n\n" + key + "\n": 2, "": 0, "# none": 0, key + "A": 0, key[4:]: 0, "not base64": 0,
	} {
		keys, err := ParseSealKeys([]byte(text))
		if len(keys) != n || (err == nil) != (n > 0) {
			t.Errorf("%q: %d keys, %v", text, len(keys), err)
		}
		if err != nil && len(text) > 2 && strings.Contains(err.Error(), text[2:]) {
			t.Errorf("the error repeats the key: %v", err)
		}
	}
}
