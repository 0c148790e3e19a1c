package guest

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// FillProgram puts a copy of a program into the folder dir, which is made if need
// be, as what a sandbox sees as the folder of Executable. Beside the program are
// the links under which it answers for others. A copy that is there is replaced
// whole, so that who runs it is not disturbed.
func FillProgram(dir string, program *os.File) error {
	// Every sandbox's users are to read it, whatever our umask is.
	bin := filepath.Join(dir, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	for _, d := range []string{dir, bin} {
		if err := os.Chmod(d, 0o755); err != nil {
			return err
		}
	}
	for name, target := range ProgramLinks() {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	if _, err := program.Seek(0, io.SeekStart); err != nil {
		return err
	}
	path := filepath.Join(dir, filepath.Base(Executable))
	dst, err := os.Create(path + ".new")
	if err != nil {
		return err
	}
	defer dst.Close()
	if _, err := io.Copy(dst, program); err != nil {
		return err
	}
	if err := dst.Chmod(0o555); err != nil {
		return err
	}
	if err := dst.Sync(); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// ProgramLinks returns the links beside Executable, by their names in its folder.
func ProgramLinks() map[string]string {
	return map[string]string{"bin/scp": "../" + filepath.Base(Executable)}
}

// CheckProgram says what is wrong if a program needs others to be loaded: in a
// sandbox they may not be there.
func CheckProgram(program io.ReaderAt) error {
	f, err := elf.NewFile(program)
	if err != nil {
		return fmt.Errorf("is no program: %w", err)
	}
	for _, part := range f.Progs {
		if part.Type == elf.PT_INTERP {
			return errors.New("is linked dynamically: build or run it with CGO_ENABLED=0")
		}
	}
	return nil
}
