//go:build linux

package guest

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// filesDir is where the files of commands are. Every image has memory mounted at
// /dev/shm.
const filesDir = "/dev/shm/sandgate"

// placeFiles writes files for the user a and returns the variables with their
// paths. What was there is replaced in one step, so that a program that is just
// reading it gets the old or the new.
func placeFiles(dir string, files []File, a account) (env [][]byte, err error) {
	if len(files) == 0 {
		return nil, nil
	}
	if err := ownDir(dir); err != nil {
		return nil, fmt.Errorf("no place for secrets: %w", err)
	}
	for _, f := range files {
		if f.Variable == "" || strings.ContainsAny(f.Variable, "/=\x00") {
			return nil, errors.New("malformed name of a secret")
		}
		path := filepath.Join(dir, strconv.Itoa(int(a.uid))+"."+f.Variable)
		if err := replaceFile(path, f.Data, a); err != nil {
			return nil, fmt.Errorf("secret %s cannot be written: %w", f.Variable, err)
		}
		env = append(env, []byte(f.Variable+"="+path))
	}
	return env, nil
}

// ownDir makes a folder in memory that only the guest's user can change. Any
// process of the sandbox may have made something of its name before.
func ownDir(dir string) error {
	if err := os.Mkdir(dir, 0o711); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	fi, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok || !fi.IsDir() || int(st.Uid) != os.Getuid() {
		return fmt.Errorf("%s is somebody else's", dir)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		return err
	}
	var fsStat unix.Statfs_t
	if err := unix.Statfs(dir, &fsStat); err != nil {
		return err
	}
	if fsStat.Type != unix.TMPFS_MAGIC {
		return fmt.Errorf("%s is not in memory", dir)
	}
	return nil
}

func replaceFile(path string, data []byte, a account) error {
	temp := path + "." + rand.Text()
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer os.Remove(temp) // fails, as it should, once it is renamed
	_, err = f.Write(data)
	if err == nil && int(a.uid) != os.Getuid() {
		err = f.Chown(int(a.uid), int(a.gid))
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(temp, path)
}
