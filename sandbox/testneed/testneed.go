// Package testneed is for tests that need something of their host: a program, root,
// a device. Without it they are skipped and say what they lack; where nothing may be
// skipped, in continuous integration, they fail.
package testneed

import (
	"os"
	"os/exec"
	"testing"
)

// All reports whether nothing may be skipped.
func All() bool { return os.Getenv("SANDGATE_TEST_REQUIRE") == "all" }

// Lacking ends a test that cannot run here, as it lacks what is named.
func Lacking(t testing.TB, what string) {
	t.Helper()
	if All() {
		t.Fatal("needs " + what)
	}
	t.Skip("needs " + what)
}

// Root ends a test that is not run by root.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		Lacking(t, "root")
	}
}

// Programs ends a test unless each of the programs is there, in PATH or at its path.
func Programs(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			Lacking(t, name)
		}
	}
}
