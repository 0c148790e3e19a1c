// Package packaging has what an operator needs beside the program to run it as a
// service, so that one file is all there is to install.
package packaging

import _ "embed"

// Service is a unit of systemd. @PROGRAM@ in it stands for the program's path.
//
//go:embed sandgate.service
var Service string
