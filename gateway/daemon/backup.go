package daemon

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"sandgate/gateway"
	"sandgate/sandbox"
	"sandgate/store"
)

// A backup is a compressed tar: first its list, then the files that are on it, which
// are some of those in the state folder.
const (
	listName     = "backup.json"
	databaseName = "sandgate.db"
	vaultKeyName = "vault.key"
)

// backedUp are the files that a backup can have, the database last: where that is,
// the others are.
var backedUp = []string{"host_ed25519", "host_ed25519-cert.pub", gateway.SettingsFile, vaultKeyName, databaseName}

// backupFormat is the version of the above.
const backupFormat = 1

// A backupList is what stands in listName.
type backupList struct {
	Format  int               `json:"format"`
	Made    time.Time         `json:"made"`
	Program string            `json:"program"` // version
	Files   map[string]string `json:"files"`   // SHA-256 in hexadecimal, by name
}

// Backup is the backup command.
type Backup struct {
	place
	File       string `arg:"" help:"File to write; - is standard output."`
	NoVaultKey bool   `help:"Leave out the key that opens the secrets. Keep a copy of it elsewhere."`
}

// Run writes a backup, also of a gateway that serves.
func (b *Backup) Run(p Process) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	settings, err := b.read()
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(b.State, databaseName)); err != nil {
		return fmt.Errorf("backup: %w\nsandgate: hint: name the state folder of the gateway with --state", err)
	}
	dir, err := os.MkdirTemp(b.State, ".backup-")
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	defer os.RemoveAll(dir)
	list, err := b.gather(ctx, dir)
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	list.Program = p.Version
	if b.File == "-" {
		err = packBackup(os.Stdout, dir, list)
	} else {
		err = writeWhole(b.File, func(w io.Writer) error { return packBackup(w, dir, list) })
	}
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	missing := "the disks of sandboxes and recordings are not in it"
	if list.Files[vaultKeyName] == "" {
		missing = "the disks of sandboxes, recordings, and the key that opens the secrets are not in it"
		if settings.VaultKey != "" {
			missing += "; that is in " + settings.VaultKey
		}
	}
	fmt.Fprintf(os.Stderr, "sandgate: backed up %s\nsandgate: %s\n", b.State, missing)
	return nil
}

// gather copies what a backup has to dir. The key of the vault can change meanwhile:
// then it is all done again, as the copied database may need either.
func (b *Backup) gather(ctx context.Context, dir string) (backupList, error) {
	names := backedUp[:len(backedUp)-1]
	if b.NoVaultKey {
		names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == vaultKeyName })
	}
	const most = 5
	for range most {
		before, err := copyFiles(b.State, dir, names)
		if err != nil {
			return backupList{}, err
		}
		if err := store.Copy(ctx, filepath.Join(b.State, databaseName), filepath.Join(dir, databaseName)); err != nil {
			return backupList{}, err
		}
		after, err := copyFiles(b.State, dir, names)
		if err != nil {
			return backupList{}, err
		}
		if maps.Equal(before, after) {
			after[databaseName], err = hashFile(filepath.Join(dir, databaseName))
			return backupList{Format: backupFormat, Made: time.Now().UTC().Truncate(time.Second), Files: after}, err
		}
		if err := os.Remove(filepath.Join(dir, databaseName)); err != nil {
			return backupList{}, err
		}
	}
	return backupList{}, errors.New("the files in the state folder keep changing; try again")
}

// copyFiles copies those of the files that there are, and returns their hashes.
func copyFiles(from, to string, names []string) (map[string]string, error) {
	hashes := make(map[string]string)
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(from, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), data, 0o600)
		}
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(data)
		hashes[name] = hex.EncodeToString(sum[:])
	}
	return hashes, nil
}

func hashFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), err
}

// writeWhole has write write a file that only its owner may read: under its name it is
// there whole, or as it was.
func writeWhole(path string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-") // 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails, as it should, once it is renamed
	if err := errors.Join(write(f), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// packBackup writes a backup of the files in dir.
func packBackup(w io.Writer, dir string, list backupList) error {
	z := gzip.NewWriter(w)
	t := tar.NewWriter(z)
	text, err := json.MarshalIndent(list, "", "\t")
	if err != nil {
		return err
	}
	head := func(name string, size int64) error {
		return t.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: size, ModTime: list.Made})
	}
	if err := head(listName, int64(len(text))); err != nil {
		return err
	}
	if _, err := t.Write(text); err != nil {
		return err
	}
	for _, name := range backedUp {
		if list.Files[name] == "" {
			continue
		}
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		info, err := f.Stat()
		if err == nil {
			err = head(name, info.Size())
		}
		if err == nil {
			_, err = io.Copy(t, f)
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), z.Close())
}

// Restore is the restore command.
type Restore struct {
	File  string `arg:"" help:"File to read; - is standard input."`
	State string `env:"SANDGATE_STATE" type:"path" help:"Folder to restore to (${state})." placeholder:"DIR"`
	Force bool   `help:"Also if the folder is not empty. What is replaced goes to a folder in it."`
}

// Run restores a backup, all of it or nothing.
func (r *Restore) Run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	in := os.Stdin
	if r.File != "-" {
		f, err := os.Open(r.File)
		if err != nil {
			return fmt.Errorf("restore: %w", err)
		}
		defer f.Close()
		in = f
	}
	list, replaced, err := restore(ctx, in, cmp.Or(r.State, DefaultState()), r.Force)
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	fmt.Fprintf(os.Stderr, "sandgate: restored what was backed up at %s by sandgate %s\n", list.Made.Format(time.RFC3339), list.Program)
	if replaced != "" {
		fmt.Fprintf(os.Stderr, "sandgate: what was there before is in %s\n", replaced)
	}
	if list.Files[vaultKeyName] == "" {
		fmt.Fprintln(os.Stderr, "sandgate: the key that opens the secrets was not in it: put it where it was before you start the gateway")
	}
	fmt.Fprintln(os.Stderr, "sandgate: sandboxes whose disks are not in the folder begin anew; disks that the backup knows nothing of are deleted when the gateway starts")
	return nil
}

// restore is Restore to a folder. It returns where what it replaced is; empty if there
// was nothing.
func restore(ctx context.Context, in io.Reader, state string, force bool) (list backupList, replaced string, err error) {
	if err := os.MkdirAll(state, 0o700); err != nil {
		return list, "", err
	}
	there, err := os.ReadDir(state)
	if err != nil {
		return list, "", err
	}
	there = slices.DeleteFunc(there, func(e fs.DirEntry) bool { return e.Name() == "lock" }) // ours, of a restore that failed
	if len(there) > 0 && !force {
		return list, "", fmt.Errorf("%s is not empty\nsandgate: hint: name another folder with --state, or replace what is there with --force", state)
	}
	lock, err := sandbox.LockFolder(state)
	if err != nil {
		return list, "", err
	}
	defer lock.Close()
	dir, err := os.MkdirTemp(state, ".restore-")
	if err != nil {
		return list, "", err
	}
	defer os.RemoveAll(dir)
	if list, err = unpackBackup(in, dir); err != nil {
		return list, "", err
	}
	if err := store.Verify(ctx, filepath.Join(dir, databaseName)); err != nil {
		return list, "", err
	}
	if _, _, err := gateway.LoadHostKey(filepath.Join(dir, "host_ed25519")); err != nil {
		return list, "", err
	}
	if replaced, err = setAside(state); err != nil {
		return list, replaced, err
	}
	for _, name := range backedUp {
		if list.Files[name] == "" {
			continue
		}
		if err := os.Rename(filepath.Join(dir, name), filepath.Join(state, name)); err != nil {
			return list, replaced, err
		}
	}
	return list, replaced, nil
}

// setAside moves what a backup may replace, and what belongs to it, to a folder of its
// own. The database's log goes first: with it, another database would be damaged.
func setAside(state string) (dir string, err error) {
	for _, name := range slices.Concat([]string{databaseName + "-wal", databaseName + "-shm", databaseName}, backedUp) {
		old := filepath.Join(state, name)
		if _, err := os.Lstat(old); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if dir == "" {
			if dir, err = os.MkdirTemp(state, "before-restore-"); err != nil {
				return "", err
			}
		}
		if err := os.Rename(old, filepath.Join(dir, name)); err != nil {
			return dir, err
		}
	}
	return dir, nil
}

// maxBackedUp bounds a file in a backup other than the database.
const maxBackedUp = 1 << 20

// unpackBackup puts the files of a backup into dir, and checks that they are all there
// and as they were.
func unpackBackup(in io.Reader, dir string) (list backupList, err error) {
	z, err := gzip.NewReader(in)
	if err != nil {
		return list, fmt.Errorf("that is no backup: %w", err)
	}
	t := tar.NewReader(z)
	first, err := t.Next()
	if err != nil || first.Name != listName {
		return list, errors.Join(errors.New("that is no backup of sandgate's"), err)
	}
	if err := json.NewDecoder(io.LimitReader(t, maxBackedUp)).Decode(&list); err != nil {
		return list, fmt.Errorf("%s: %w", listName, err)
	}
	if list.Format != backupFormat {
		return list, fmt.Errorf("its format is %d, this program knows %d; it was made by sandgate %.100q", list.Format, backupFormat, list.Program)
	}
	for _, name := range []string{databaseName, "host_ed25519"} {
		if list.Files[name] == "" {
			return list, fmt.Errorf("there is no %s in it", name)
		}
	}
	got := make(map[string]string)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return list, fmt.Errorf("the backup is damaged: %w", err)
		}
		if !slices.Contains(backedUp, h.Name) || got[h.Name] != "" || h.Name != databaseName && h.Size > maxBackedUp {
			return list, fmt.Errorf("%.100q does not belong into a backup", h.Name)
		}
		sum, err := unpackFile(t, filepath.Join(dir, h.Name))
		if err != nil {
			return list, fmt.Errorf("%s: %w", h.Name, err)
		}
		got[h.Name] = sum
	}
	if !maps.Equal(got, list.Files) {
		return list, errors.New("the backup is damaged: its files are not those that were backed up")
	}
	return list, nil
}

// unpackFile writes a file and returns its hash.
func unpackFile(r io.Reader, path string) (string, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	_, err = io.Copy(io.MultiWriter(f, h), r)
	return hex.EncodeToString(h.Sum(nil)), errors.Join(err, f.Sync(), f.Close())
}
