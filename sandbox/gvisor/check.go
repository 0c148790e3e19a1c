//go:build linux

package gvisor

import "sandgate/sandbox"

// Check implements sandbox.Checker.
func (d *Driver) Check(spec sandbox.Spec) error {
	if spec.Runtime != "" {
		return &sandbox.UnsupportedError{Reason: "the gvisor driver has no runtimes to choose from: leave --runtime out, or use --driver docker"}
	}
	if spec.Network == sandbox.NetworkFull {
		if err := d.tryNetwork(); err != nil {
			return &sandbox.UnsupportedError{Reason: "this host gives sandboxes no network but their own loopback: " + oneLine(err)}
		}
	}
	if spec.Workspace != "" {
		return d.checkWorkspace(spec)
	}
	return nil
}
