//go:build linux

package gvisor

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"sandgate/sandbox"
)

// Read implements sandbox.Meter. It knows what the control groups count, which is
// nothing where there are none.
func (d *Driver) Read(_ context.Context, id sandbox.ID) (sandbox.Reading, error) {
	return d.host.groups.read(id), nil
}

// read returns what the groups of a sandbox have counted, of version 2 or 1.
func (g groups) read(id sandbox.ID) sandbox.Reading {
	var r sandbox.Reading
	for _, dir := range g.find(g.of(id)) {
		if n, ok := readField(filepath.Join(dir, "cpu.stat"), "usage_usec"); ok {
			r.CPU = new(time.Duration(n) * time.Microsecond)
		}
		if n, ok := readField(filepath.Join(dir, "cpuacct.usage"), ""); ok {
			r.CPU = new(time.Duration(n))
		}
		for _, name := range []string{"memory.peak", "memory.max_usage_in_bytes"} {
			if n, ok := readField(filepath.Join(dir, name), ""); ok {
				r.MemoryPeak = new(n)
			}
		}
	}
	return r
}

// readField reads the number after name in a file of lines, or, without a name, the
// one that the file consists of.
func readField(path, name string) (int64, bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	for line := range bytes.Lines(b) {
		words := bytes.Fields(line)
		switch {
		case name == "" && len(words) == 1:
		case name != "" && len(words) == 2 && string(words[0]) == name:
			words = words[1:]
		default:
			continue
		}
		if n, err := strconv.ParseInt(string(words[0]), 10, 64); err == nil && n >= 0 {
			return n, true
		}
	}
	return 0, false
}
