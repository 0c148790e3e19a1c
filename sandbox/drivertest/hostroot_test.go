package drivertest_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os/exec"
	"testing"

	"sandgate/sandbox/drivertest"
	"sandgate/sandbox/testneed"
)

func TestHostRoot(t *testing.T) {
	if _, err := exec.LookPath("dpkg-query"); err != nil {
		testneed.Lacking(t, "dpkg-query: an image is made of Debian's packages")
	}
	var b bytes.Buffer
	if err := drivertest.HostRoot(&b, "procps"); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes", b.Len())
	seen := make(map[string]bool)
	for r := tar.NewReader(&b); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if seen[h.Name] {
			t.Errorf("%s is there twice", h.Name)
		}
		seen[h.Name] = true
		if h.Name == "etc/shadow" && h.Size > 0 {
			t.Error("etc/shadow is the host's")
		}
	}
	for _, name := range []string{"bin", "usr/bin/bash", "usr/bin/env", "usr/bin/ps", "etc/passwd", "root/"} {
		if !seen[name] {
			t.Errorf("there is no %s", name)
		}
	}
	if seen["var/lib/dpkg/status"] {
		t.Error("there is a var/lib/dpkg/status")
	}
}
