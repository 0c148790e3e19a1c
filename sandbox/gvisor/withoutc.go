package gvisor

import (
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
)

// WithoutC makes this process one without C in it, if it is not: the program that
// it becomes is the same, built anew. gVisor's kernel is this program too, run in
// an empty root folder and under a filter of system calls, where no C library can
// be loaded; but wherever there is a C compiler, `go run .` links one in.
//
// The new program is run in the place of this one, and not below another go
// command, so that signals meet it.
func WithoutC(args []string) error {
	info, ok := debug.ReadBuildInfo()
	if runtime.GOOS != "linux" || !ok || !builtWithC(info) {
		return nil
	}
	env := append(os.Environ(), "CGO_ENABLED=0")
	module := exec.Command("go", "list", "-m")
	module.Env = env
	if name, err := module.Output(); err != nil || strings.TrimSpace(string(name)) != info.Main.Path {
		return errors.New("this program was built with C code, which gVisor cannot run\nsandgate: hint: build it with CGO_ENABLED=0 go build")
	}
	fmt.Fprintln(os.Stderr, "sandgate: building again without C code, as gVisor needs it; the first time takes a minute or two")
	// The first time, go run builds into a folder that it deletes when it ends;
	// from then on the program is in its cache.
	for range 2 {
		build := exec.Command("go", "run", "-exec", "echo", info.Main.Path)
		build.Env, build.Stderr = env, os.Stderr
		out, err := build.Output()
		if err != nil {
			return fmt.Errorf("build without C code: %w", err)
		}
		path := strings.TrimSpace(string(out))
		if built, err := buildinfo.ReadFile(path); err == nil && !builtWithC(built) {
			return syscall.Exec(path, append([]string{path}, args...), env)
		}
	}
	return errors.New("the program built without C code is not to be found\nsandgate: hint: build it with CGO_ENABLED=0 go build")
}

func builtWithC(info *debug.BuildInfo) bool {
	return slices.Contains(info.Settings, debug.BuildSetting{Key: "CGO_ENABLED", Value: "1"})
}
