package main

import (
	"flag"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"sandgate/gateway/gatetest"
)

// Stories wait more than they work, so more of them are told at a time than there are
// processors, unless -parallel says how many.
func TestMain(m *testing.M) {
	flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0)))
	os.Exit(gatetest.Main(m))
}

// TestImports compares the packages' imports of each other with the arrows that
// the design has. A new arrow is a change of the design.
func TestImports(t *testing.T) {
	arrows := map[string]string{
		"sandgate":                     "gateway gateway/daemon gateway/demo sandbox/guest sandbox/gvisor sandbox/nat",
		"sandgate/agent":               "",
		"sandgate/agent/scripted":      "agent",
		"sandgate/gateway":             "agent gateway/redact sandbox sandbox/guest sandbox/guest/tool store",
		"sandgate/gateway/daemon":      "gateway gateway/packaging sandbox sandbox/docker sandbox/gvisor store",
		"sandgate/gateway/packaging":   "",
		"sandgate/gateway/demo":        "agent agent/scripted",
		"sandgate/gateway/gatetest":    "sandbox/testneed",
		"sandgate/gateway/redact":      "",
		"sandgate/sandbox":             "sandbox/guest store",
		"sandgate/sandbox/gvisor":      "sandbox sandbox/guest sandbox/image sandbox/nat",
		"sandgate/sandbox/image":       "sandbox",
		"sandgate/sandbox/docker":      "sandbox sandbox/guest sandbox/nat",
		"sandgate/sandbox/nat":         "",
		"sandgate/sandbox/drivertest":  "sandbox sandbox/guest sandbox/guest/tool sandbox/testneed",
		"sandgate/sandbox/guest":       "sandbox/guest/files sandbox/guest/tool",
		"sandgate/sandbox/guest/files": "",
		"sandgate/sandbox/guest/tool":  "",
		"sandgate/store":               "",

		"sandgate/sandbox/image/imagetest": "",
		"sandgate/sandbox/testneed":        "",
	}
	out, err := exec.Command("go", "list", "-f", "{{.ImportPath}} {{join .Imports \" \"}}", "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		from, imports, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.Contains(from, "/testdata/") {
			continue
		}
		var to []string
		for _, i := range strings.Fields(imports) {
			if own, ok := strings.CutPrefix(i, "sandgate/"); ok {
				to = append(to, own)
			}
		}
		if got := strings.Join(to, " "); got != arrows[from] {
			t.Errorf("%s imports %q, the design has %q", from, got, arrows[from])
		}
	}
}
