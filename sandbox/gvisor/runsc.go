//go:build linux

package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
)

// What else is called in the list of processes.
const (
	runscName  = "runsc"        // a command about a sandbox
	stageName  = "runsc-stage"  // the stage, and what starts a sandbox from it
	pinnedName = "runsc-pinned" // the same of the version that a sandbox was started with
)

// IsRunsc reports whether a process with these arguments is to be runsc: one
// that the driver started, one that runsc made of itself, or one that a person
// started as `sandgate runsc`. Only the arguments can tell, since runsc clears
// the environment of the processes that it starts.
func IsRunsc(args []string) bool {
	if len(args) == 0 {
		return false
	}
	return strings.HasPrefix(filepath.Base(args[0]), "runsc") ||
		args[0] == "/proc/self/exe" ||
		len(args) > 1 && args[1] == "runsc"
}

// Main is runsc. It does not return. A program that uses this package begins
// with
//
//	if gvisor.IsRunsc(os.Args) {
//		gvisor.Main(os.Args)
//	}
//
// before it looks at its flags, its environment or anything else.
func Main(args []string) {
	if len(args) > 1 && args[1] == "runsc" {
		args = append([]string{"runsc"}, args[2:]...)
	}
	if args[0] == sentryName || args[0] == goferName {
		// The only name that can still be read when it has ended; see reapStray.
		// A failure is of no consequence but for that.
		os.WriteFile("/proc/self/comm", []byte(args[0]), 0)
	}
	switch args[0] {
	case natName:
		end(serveNetwork(args))
	case cableName:
		end(layCable())
	}
	if args[0] == stageName {
		var err error
		if args, err = stage(os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if len(args) == 0 {
			os.Exit(0)
		}
	}
	os.Args = args
	// A smaller set than runsc's own main has: that one also links a program of
	// 47 MB for checkpoints in a cloud.
	cli.Run(nil, map[util.SubCommand]string{
		new(cmd.Run):          "",
		new(cmd.Kill):         "",
		new(cmd.Pause):        "",
		new(cmd.Resume):       "",
		new(cmd.Checkpoint):   "",
		new(cmd.Restore):      "",
		new(cmd.FSCheckpoint): "",
		// What runsc starts itself.
		new(sentrycmd.Boot):   "",
		new(cmd.Gofer):        "",
		new(sentrycmd.Umount): "",
		// What an engine asks of a runtime; see package docker.
		new(cmd.Create):   "",
		new(cmd.Start):    "",
		new(cmd.Delete):   "",
		new(cmd.Update):   "",
		new(cmd.Features): "",
		// For a person who looks for a fault.
		new(cmd.State):  "",
		new(cmd.List):   "",
		new(cmd.PS):     "",
		new(cmd.Exec):   "",
		new(cmd.Events): "",
	}, nil)
}

// end ends the process.
func end(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}
