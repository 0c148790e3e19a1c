// Program is what the driver's tests run as guest, and an engine as our runtime.
package main

import (
	"os"

	"sandgate/sandbox/drivertest"
	"sandgate/sandbox/gvisor"
	"sandgate/sandbox/nat"
)

func main() {
	if gvisor.IsRunsc(os.Args) {
		gvisor.Main(os.Args)
	}
	if nat.IsMain(os.Args) {
		os.Exit(nat.Main(os.Args))
	}
	drivertest.Guest()
}
