package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// lockWait is how long a lock may last that nobody means to hold: a child process has
// it from its fork to its exec.
const lockWait = 3 * time.Second

// LockFolder makes sure that no other driver uses a folder. The lock lasts as long as
// the file is open.
func LockFolder(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(lockWait); ; time.Sleep(20 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if err != unix.EWOULDBLOCK || time.Now().After(end) {
			f.Close()
			return nil, fmt.Errorf("folder %s is in use by another gateway: %w", dir, err)
		}
	}
}
