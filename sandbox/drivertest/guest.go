package drivertest

import (
	"os"

	"sandgate/sandbox/guest"
)

// Guest is what programs that drivers run as guest in these tests call. It is the
// real guest, and the probe that cases run inside. It does not return.
func Guest() {
	if len(os.Args) > 2 && os.Args[1] == probeName {
		os.Exit(probe(os.Args[2:]))
	}
	os.Exit(guest.Main(os.Args))
}
