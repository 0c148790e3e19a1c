//go:build !linux

package nat

// IsMain reports false: the network needs Linux.
func IsMain([]string) bool { return false }

// Main is never reached, see IsMain.
func Main([]string) int { return 2 }
