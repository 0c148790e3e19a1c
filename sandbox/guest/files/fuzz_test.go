package files

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// FuzzPacket gives a server any bytes after the greeting. It ends, and all that
// it says is whole packets of types that a server sends, none longer than allowed
// and no more than there were requests.
func FuzzPacket(f *testing.F) {
	request := func(kind byte, fields ...any) []byte {
		var r reply
		r.begin(kind, 7)
		for _, field := range fields {
			switch field := field.(type) {
			case string:
				r.text(field)
			case int:
				r.uint32(uint32(field))
			case uint64:
				r.uint64(field)
			}
		}
		return bytes.Clone(r.packet())
	}
	var all []byte
	for _, seed := range [][]byte{
		request(fxpOpen, "f", openRead|openWrite|openCreate, 0),
		request(fxpWrite, "1", uint64(0), "data"),
		request(fxpRead, "1", uint64(0), 4),
		request(fxpFstat, "1"),
		request(fxpFsetstat, "1", attrSize|attrTimes, uint64(3), 1, 2),
		request(fxpOpendir, "."),
		request(fxpReaddir, "d1"),
		request(fxpStat, "f"),
		request(fxpRename, "f", "g"),
		request(fxpSymlink, "g", "l"),
		request(fxpReadlink, "l"),
		request(fxpRealpath, "l"),
		request(fxpExtended, "statvfs@openssh.com", "."),
		request(fxpExtended, "copy-data", "1", uint64(0), uint64(0), "2", uint64(0)),
		request(fxpExtended, "users-groups-by-id@openssh.com", "\x00\x00\x00\x00", ""),
		request(fxpSetstat, "g", attrExtended, 2, "a", "b", "c", "d"),
		request(fxpClose, "1"),
	} {
		f.Add(seed)
		all = append(all, seed...)
	}
	f.Add(all)
	f.Fuzz(func(t *testing.T, sent []byte) {
		if escapes(sent) {
			return // it names a file outside
		}
		home := t.TempDir()
		var out bytes.Buffer
		in := io.MultiReader(bytes.NewReader([]byte{0, 0, 0, 5, fxpInit, 0, 0, 0, 3}), bytes.NewReader(sent))
		ServeSFTP(duplex{in, &out}, Options{Home: home})
		got, asked := 0, 1+packets(sent)
		for b := out.Bytes(); len(b) > 0; got++ {
			if len(b) < 5 || uint64(binary.BigEndian.Uint32(b)) > uint64(min(maxPacket, len(b)-4)) {
				t.Fatalf("reply %d is not a packet: %q", got, b)
			}
			switch b[4] {
			case fxpVersion, fxpStatus, fxpHandle, fxpData, fxpName, fxpAttrs, fxpExtendedReply:
			default:
				t.Fatalf("reply %d is of type %d", got, b[4])
			}
			b = b[4+binary.BigEndian.Uint32(b):]
		}
		if got > asked {
			t.Fatalf("%d replies to %d requests", got, asked)
		}
	})
}

// packets counts the whole packets that b begins with.
func packets(b []byte) int {
	for n := 0; ; n++ {
		if len(b) < 4 || uint64(len(b)-4) < uint64(binary.BigEndian.Uint32(b)) {
			return n
		}
		b = b[4+binary.BigEndian.Uint32(b):]
	}
}

// escapes is whether b could name something outside of the home: a server does
// what its user may do, and that is the fuzzing user here.
func escapes(b []byte) bool {
	return bytes.Contains(b, []byte("/")) || bytes.Contains(b, []byte("..")) || bytes.Contains(b, []byte("~"))
}

var scpAnswers = regexp.MustCompile(`^(\x00|\x01scp: [^\n]*\n)*$`)

// FuzzSCPSink has a client send any bytes. SCP ends, speaks the protocol, and
// makes nothing outside of the target.
func FuzzSCPSink(f *testing.F) {
	f.Add([]byte("C0644 2 f\nhi\x00"), true)
	f.Add([]byte("T5 0 6 0\nD0755 0 d\nT1 2 3 4\nC0600 1 f\nx\x00E\n"), true)
	f.Add([]byte("D0755 0 d\nD0000 0 e\nE\nE\nC7777 0 ..\n\x00"), true)
	f.Add([]byte("\x01warning\nC0644 9223372036854775807 f\nhi"), false)
	f.Fuzz(func(t *testing.T, said []byte, recursive bool) {
		outer := t.TempDir()
		target := filepath.Join(outer, "target")
		if err := os.Mkdir(target, 0o755); err != nil {
			t.Fatal(err)
		}
		flags := "-pt"
		if recursive {
			flags = "-prt"
		}
		var out, errs bytes.Buffer
		code := SCP([]string{flags, target}, bytes.NewReader(said), &out, &errs)
		if code != 0 && code != 1 || errs.Len() > 0 || !scpAnswers.Match(out.Bytes()) {
			t.Errorf("exit %d, answers %q, stderr %q", code, &out, &errs)
		}
		entries, err := os.ReadDir(outer)
		if err != nil || len(entries) != 1 {
			t.Errorf("beside the target: %v, %v", entries, err)
		}
		// What has been made without permissions has to be removable.
		filepath.WalkDir(target, func(path string, d os.DirEntry, _ error) error {
			if d != nil && d.IsDir() {
				os.Chmod(path, 0o700)
			}
			return nil
		})
	})
}

// FuzzSCPLine: what parses prints as a line that means the same.
func FuzzSCPLine(f *testing.F) {
	for _, line := range []string{"C0644 12 name", "D0755 0 a b", "C7777 9223372036854775807 \xff", "T1 2 3 4", "T-1 0 9 999999"} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		if e, err := parseScpEntry(line); err == nil {
			again, err := parseScpEntry(e.String())
			if err != nil || again != e {
				t.Errorf("%q: %+v became %+v, %v", line, e, again, err)
			}
		}
		if times, err := parseScpTimes(line); err == nil {
			again, err := parseScpTimes(times.String())
			if err != nil || again != times {
				t.Errorf("%q: %+v became %+v, %v", line, times, again, err)
			}
		}
	})
}
