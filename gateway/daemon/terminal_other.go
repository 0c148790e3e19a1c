//go:build !linux

package daemon

import "os"

// isTerminal cannot tell here: every SIGHUP is one to reload.
func isTerminal(*os.File) bool { return false }
