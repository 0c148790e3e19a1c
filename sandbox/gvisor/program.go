//go:build linux

package gvisor

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"sandgate/sandbox/guest"
)

// keepProgram puts a copy of the program at path, or of the running one if path
// is empty, into a folder of its own below dir, and returns the copy's path. The
// folder is named after the content, so an upgrade changes nothing for sandboxes
// that run. It is what a sandbox sees as guestDir, and holds beside the program
// the links under which it answers for others.
func keepProgram(dir, path string) (string, error) {
	if path == "" {
		path = "/proc/self/exe"
	}
	src, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer src.Close()
	if err := guest.CheckProgram(src); err != nil {
		return "", fmt.Errorf("%s %w", path, err)
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, src); err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	home := filepath.Join(dir, hex.EncodeToString(hash.Sum(nil)))
	program := filepath.Join(home, filepath.Base(guest.Executable))
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	// Nobody else is at work here, so a folder that is there is half made.
	fresh := filepath.Join(dir, "new")
	if err := os.RemoveAll(fresh); err != nil {
		return "", err
	}
	if err := guest.FillProgram(fresh, src); err != nil {
		return "", fmt.Errorf("copy %s: %w", path, err)
	}
	if err := os.Rename(fresh, home); err != nil {
		return "", err
	}
	return program, nil
}

// dropOthers removes all in dir but what is used.
func dropOthers(dir string, used map[string]bool) error {
	homes, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, h := range homes {
		if path := filepath.Join(dir, h.Name()); !used[path] {
			if err := removeAll(path); err != nil {
				return err
			}
		}
	}
	return nil
}
