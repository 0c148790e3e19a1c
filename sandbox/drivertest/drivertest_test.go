package drivertest

import (
	"os"
	"testing"

	"sandgate/sandbox"
)

// The test binary is the guest of the local driver.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && (os.Args[1] == "guest" || os.Args[1] == probeName) {
		Guest()
	}
	os.Exit(m.Run())
}

// TestLocal runs what can be tried without walls: quickly, and everywhere.
func TestLocal(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	Run(t, func(t *testing.T) Host {
		dir := t.TempDir()
		return Host{
			Name:    "local",
			NoWalls: true,
			Open:    func() (sandbox.Driver, error) { return NewLocal(dir, self, "guest"), nil },
			Traces:  func(sandbox.ID) []string { return nil },
		}
	})
}
