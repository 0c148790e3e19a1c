//go:build !linux

package guest

// IsGuest reports false: sandboxes need Linux.
func IsGuest([]string) bool { return false }

// Main is never reached, see IsGuest.
func Main([]string) int { return 1 }
