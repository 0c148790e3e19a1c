package sandbox

import "path"

// InitOf returns the first word of what an image runs by itself, if that is an init,
// such as systemd; otherwise it is empty. No driver starts it. As the first process of a
// sandbox it would stand where the guest does, and systemd wants more than a sandbox
// gets: control groups that it may write to, and in gVisor a kernel that it knows.
func InitOf(command []string) string {
	if len(command) == 0 {
		return ""
	}
	switch path.Base(command[0]) {
	case "init", "systemd":
		return command[0][:min(len(command[0]), 200)]
	}
	return ""
}
