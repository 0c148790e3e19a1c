package gateway

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"sandgate/sandbox"
	"sandgate/sandbox/guest"
)

func TestPullLog(t *testing.T) {
	var out bytes.Buffer
	show, clear := showPull(&out, nil)
	show([]sandbox.Progress{{Layer: "a", State: sandbox.LayerWaiting}, {Layer: "b", State: sandbox.LayerWaiting}})
	show([]sandbox.Progress{{Layer: "a", State: sandbox.LayerDownloading, Done: 5, Total: 9}})
	show([]sandbox.Progress{{Layer: "a", State: sandbox.LayerDownloading, Done: 7, Total: 9}})
	show([]sandbox.Progress{{Layer: "a", State: sandbox.LayerReady}, {Layer: "b\x1b[2J\n", State: sandbox.LayerReady}})
	clear()
	want := "a: waiting\nb: waiting\na: downloading\na: ready\nb[2J: ready\n"
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

func TestPullBars(t *testing.T) {
	var out bytes.Buffer
	show, clear := showPull(&out, &guest.Terminal{Term: "xterm", Size: guest.Size{Columns: 60, Rows: 3}})
	show([]sandbox.Progress{
		{Layer: "a", State: sandbox.LayerWaiting},
		{Layer: "b", State: sandbox.LayerDownloading, Done: 1e6, Total: 2e6},
	})
	if want := "a            waiting    \x1b[K\nb            downloading [============>           ] 1.0 MB \x1b[K\n\x1b[J"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
	// More layers than fit: what is ready gives way.
	out.Reset()
	show([]sandbox.Progress{{Layer: "a", State: sandbox.LayerReady}, {Layer: "c", State: sandbox.LayerExtracting, Done: 3e6}})
	if got := out.String(); !strings.HasPrefix(got, "\r\x1b[2Ab ") || !strings.Contains(got, "\nc            extracting  3.0 MB\x1b[K\n") {
		t.Errorf("got %q", got)
	}
	out.Reset()
	clear()
	clear()
	if want := "\r\x1b[2A\x1b[J"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

// Each fault is a sentence with an exit code.
func TestImageProblem(t *testing.T) {
	kinds := map[sandbox.ImageFault]kind{
		sandbox.ImageMalformed: usage, sandbox.ImageNotFound: notFound, sandbox.ImageDenied: denied,
		sandbox.ImageUnreachable: failed, sandbox.ImageDiskFull: failed, sandbox.ImagePlatform: failed,
		sandbox.ImageCorrupt: failed, sandbox.ImageTooBig: failed, sandbox.ImageTooMany: failed,
	}
	sentences := make(map[string]bool)
	for fault, kind := range kinds {
		p := imageProblem(&sandbox.ImageError{Image: "a\nb", Fault: fault, Err: errors.New("x")})
		if p.kind != kind || p.hint == "" || strings.Contains(p.sentence, "\n") || !strings.Contains(p.sentence, `"a\nb"`) {
			t.Errorf("fault %d: %+v", fault, p)
		}
		sentences[p.sentence] = true
	}
	if len(sentences) != len(kinds) {
		t.Errorf("%d sentences for %d faults", len(sentences), len(kinds))
	}
}
