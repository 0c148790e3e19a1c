// Program is what the driver's tests run as runsc and as guest.
package main

import (
	"os"

	"sandgate/sandbox/drivertest"
	"sandgate/sandbox/gvisor"
)

func main() {
	if gvisor.IsRunsc(os.Args) {
		gvisor.Main(os.Args)
	}
	drivertest.Guest()
}
