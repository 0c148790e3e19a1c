package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sandgate/gateway/packaging"
)

// Unit is the unit command.
type Unit struct {
	Program string `type:"path" help:"The program that the service runs (this one)." placeholder:"FILE"`
}

// Run prints a unit of systemd that runs this program.
func (u *Unit) Run() error {
	program := u.Program
	if program == "" {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		program = self
	}
	if program, err := filepath.Abs(program); err != nil || strings.ContainsAny(program, " \t\n\"'\\%$;") {
		return fmt.Errorf("%q cannot stand in a unit of systemd; copy the program to where the path has no blanks, quotes, %% or $", program)
	}
	_, err := fmt.Print(strings.ReplaceAll(packaging.Service, "@PROGRAM@", program))
	return err
}
