package daemon

import (
	"bytes"
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandgate/gateway"
	"sandgate/store"
)

// stateWith makes a state folder with one user, and returns it with its open store.
func stateWith(t *testing.T) (string, *store.DB) {
	t.Helper()
	dir := t.TempDir()
	db, err := store.Open(t.Context(), filepath.Join(dir, databaseName))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	if _, err := db.CreateUserWithKeys(t.Context(), "alice", store.RoleAdmin, nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := gateway.LoadHostKey(filepath.Join(dir, "host_ed25519")); err != nil {
		t.Fatal(err)
	}
	if _, err := store.OpenVault(t.Context(), db, filepath.Join(dir, vaultKeyName)); err != nil {
		t.Fatal(err)
	}
	return dir, db
}

func backedUpFrom(t *testing.T, state string, b Backup) []byte {
	t.Helper()
	b.State, b.File = state, filepath.Join(t.TempDir(), "backup")
	if err := b.Run(Process{Version: "test"}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(b.File); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(state, ".backup-*")); left != nil {
		t.Errorf("left: %q", left)
	}
	data, err := os.ReadFile(b.File)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestBackup backs up while rows are written, and restores what was there.
func TestBackup(t *testing.T) {
	state, db := stateWith(t)
	ctx, cancel := context.WithCancel(t.Context())
	written := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			if err := db.SetQuota(context.Background(), store.Quota{Subject: store.AllUsers, Measure: "tokens", Value: 1}); err != nil {
				written <- err
				return
			}
		}
		written <- nil
	}()
	data := backedUpFrom(t, state, Backup{})
	cancel()
	if err := <-written; err != nil {
		t.Error(err)
	}
	to := filepath.Join(t.TempDir(), "new")
	list, replaced, err := restore(t.Context(), bytes.NewReader(data), to, false)
	if err != nil || replaced != "" || list.Program != "test" {
		t.Fatalf("%+v, %q, %v", list, replaced, err)
	}
	for _, name := range []string{"host_ed25519", vaultKeyName} {
		was, _ := os.ReadFile(filepath.Join(state, name))
		is, _ := os.ReadFile(filepath.Join(to, name))
		if len(was) == 0 || !bytes.Equal(was, is) {
			t.Errorf("%s is not what it was", name)
		}
	}
	restored, err := store.Open(t.Context(), filepath.Join(to, databaseName))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := restored.UserByName(t.Context(), "alice"); err != nil {
		t.Error(err)
	}
	restored.Close()

	if _, _, err := restore(t.Context(), bytes.NewReader(data), to, false); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("over another: %v", err)
	}
	if err := os.WriteFile(filepath.Join(to, databaseName+"-wal"), []byte("of before"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, replaced, err = restore(t.Context(), bytes.NewReader(data), to, true)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(replaced, databaseName+"-wal")); err != nil {
		t.Errorf("what was replaced: %v", err)
	}
	if _, err := os.Stat(filepath.Join(to, databaseName+"-wal")); !os.IsNotExist(err) {
		t.Errorf("the old log is still there: %v", err)
	}
}

// TestRestoreRefuses shows that what is no whole backup changes nothing.
func TestRestoreRefuses(t *testing.T) {
	state, _ := stateWith(t)
	data := backedUpFrom(t, state, Backup{NoVaultKey: true})
	if list, err := unpackBackup(bytes.NewReader(data), t.TempDir()); err != nil || list.Files[vaultKeyName] != "" {
		t.Errorf("the key of the vault is in it: %v, %v", list, err)
	}
	damaged := bytes.Clone(data)
	damaged[len(damaged)/2] ^= 0xff
	for what, data := range map[string][]byte{"empty": nil, "text": []byte("hello"), "cut": data[:len(data)/2], "damaged": damaged} {
		to := t.TempDir()
		if _, _, err := restore(t.Context(), bytes.NewReader(data), to, false); err == nil {
			t.Errorf("%s: restored", what)
		}
		for _, name := range backedUp {
			if _, err := os.Stat(filepath.Join(to, name)); !os.IsNotExist(err) {
				t.Errorf("%s: %s is there", what, name)
			}
		}
	}
	raw, err := sql.Open("sqlite", filepath.Join(state, databaseName)) // the driver is package store's
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	if _, err := raw.Exec("PRAGMA user_version = 9999"); err != nil {
		t.Fatal(err)
	}
	newer := backedUpFrom(t, state, Backup{})
	if _, _, err := restore(t.Context(), bytes.NewReader(newer), t.TempDir(), false); err == nil || !strings.Contains(err.Error(), "newer version") {
		t.Errorf("newer: %v", err)
	}
}
