package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"time"
)

// holdLockVar names the database file whose write lock this executable, run
// again by a test, takes and keeps for lockHeld.
const (
	holdLockVar = "STORE_TEST_HOLD_LOCK"
	lockHeld    = 3 * time.Second
)

func TestMain(m *testing.M) {
	if path := os.Getenv(holdLockVar); path != "" {
		if err := holdLock(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// holdLock writes a line to stdout when it has the lock.
func holdLock(path string) error {
	db, err := sql.Open("sqlite", dsn(path, url.Values{"_txlock": {"immediate"}}))
	if err != nil {
		return err
	}
	defer db.Close()
	return transact(context.Background(), &pool{DB: db}, func(tx *sql.Tx) error {
		if _, err := tx.Exec("UPDATE users SET created = created"); err != nil {
			return err
		}
		fmt.Println("locked")
		time.Sleep(lockHeld)
		return nil
	})
}

func openTemp(t testing.TB) (*DB, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a db%41?#.sqlite") // nothing in a path means anything to the driver
	return reopen(t, path), path
}

func reopen(t testing.TB, path string) *DB {
	t.Helper()
	db, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func addUser(t testing.TB, db *DB, name string) User {
	t.Helper()
	u, err := db.CreateUser(t.Context(), name, RoleUser)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func wantErr(t testing.TB, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("error %v, want %v", got, want)
	}
}

func wantEqual(t testing.TB, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestOpenIsRepeatable(t *testing.T) {
	db, path := openTemp(t)
	alice := addUser(t, db, "alice")
	again := reopen(t, path)
	got, err := again.UserByName(t.Context(), "alice")
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, got, alice)
}

func TestOpenMakesFilesPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	// A copy put back from a backup is often readable by all.
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	db := reopen(t, path)
	addUser(t, db, "alice")
	for _, suffix := range []string{"", "-wal", "-shm"} {
		info, err := os.Stat(path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if mode := info.Mode().Perm(); mode != 0o600 {
			t.Errorf("mode of db%s is %o, want 600", suffix, mode)
		}
	}
}

func TestOpenRefusesNewer(t *testing.T) {
	db, path := openTemp(t)
	if _, err := db.write.Exec("PRAGMA user_version = 9999"); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), path)
	wantErr(t, err, ErrNewer)
}

func TestOpenRefusesOtherFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	if err := os.WriteFile(path, []byte("this is not a database, and long enough to be sure"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), path); err == nil {
		t.Error("opened a text file")
	}
	if _, err := Open(t.Context(), filepath.Join(t.TempDir(), "missing", "db")); err == nil {
		t.Error("opened a file in a folder that does not exist")
	}
}

// A migration that fails leaves the tables as they were.
func TestMigrationIsOneTransaction(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	db, err := sql.Open("sqlite", dsn(path, url.Values{}))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	// It collides with the last table of the first migration.
	if _, err := db.Exec("CREATE TABLE sandboxes (x)"); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), path); err == nil {
		t.Fatal("migrated over a table of the same name")
	}
	var tables, version int
	if err := db.QueryRow("SELECT count(*) FROM sqlite_schema WHERE type = 'table'").Scan(&tables); err != nil {
		t.Fatal(err)
	}
	if err := db.QueryRow("PRAGMA user_version").Scan(&version); err != nil {
		t.Fatal(err)
	}
	if tables != 1 || version != 0 {
		t.Errorf("%d tables at version %d, want 1 at 0", tables, version)
	}
}

// What was written is there after a crash: the files are copied while they are
// open, so the rows are still in the WAL.
func TestReopenAfterCrash(t *testing.T) {
	db, path := openTemp(t)
	alice := addUser(t, db, "alice")
	crashed := filepath.Join(t.TempDir(), "db")
	for _, suffix := range []string{"", "-wal"} {
		content, err := os.ReadFile(path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(crashed+suffix, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := reopen(t, crashed).UserByName(t.Context(), "alice")
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, got, alice)
}

// A hundred logins and new sandboxes at once, while another process holds the
// file's write lock: all of them wait, none fails, and reads do not even wait.
func TestWritersQueue(t *testing.T) {
	db, path := openTemp(t)
	alice := addUser(t, db, "alice")
	if _, err := db.AddKey(t.Context(), Key{Fingerprint: "SHA256:a", UserID: alice.ID, Blob: []byte("a")}); err != nil {
		t.Fatal(err)
	}

	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	other := exec.CommandContext(t.Context(), self)
	other.Env = append(os.Environ(), holdLockVar+"="+path)
	other.Stderr = os.Stderr
	stdout, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := stdout.Read(make([]byte, 64)); err != nil {
		t.Fatal("the other process did not get the lock: ", err)
	}
	locked := time.Now()

	const writers, readers = 100, 10
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			id := fmt.Sprintf("%016x", i)
			if _, err := db.CreateSandbox(t.Context(), Sandbox{
				ID: id, UserID: alice.ID, Name: id, Spec: []byte("{}"), Desired: DesiredRunning,
			}); err != nil {
				t.Error(err)
			}
			if err := db.TouchKey(t.Context(), "SHA256:a", time.Now()); err != nil {
				t.Error(err)
			}
		})
	}
	for range readers {
		wg.Go(func() {
			if _, _, err := db.UserByKey(t.Context(), "SHA256:a"); err != nil {
				t.Error(err)
			}
			if waited := time.Since(locked); waited > lockHeld/2 {
				t.Errorf("a read took %v", waited)
			}
		})
	}
	wg.Wait()
	if err := other.Wait(); err != nil {
		t.Error("the other process: ", err)
	}
	if waited := time.Since(locked); waited < lockHeld/2 {
		t.Errorf("all was written after %v, though the file was locked", waited)
	}
	all, err := db.SandboxesOf(t.Context(), alice.ID)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != writers {
		t.Errorf("%d sandboxes, want %d", len(all), writers)
	}
}

// The wait for a lock ends with the caller's context.
func TestWriteIsCancelled(t *testing.T) {
	db, path := openTemp(t)
	other, err := sql.Open("sqlite", dsn(path, url.Values{"_txlock": {"immediate"}}))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	tx, err := other.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = db.CreateUser(ctx, "alice", RoleUser)
	wantErr(t, err, context.DeadlineExceeded)
}
