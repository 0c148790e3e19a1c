package files

import (
	"os"
	"testing"
)

// Of a server for reading only, everything can be read and nothing changes.
func TestReadOnly(t *testing.T) {
	home := t.TempDir()
	c := dialWith(t, Options{Home: home, ReadOnly: true})
	write(t, c.path("f"), "0123")
	os.Mkdir(c.path("d"), 0o755)

	h := c.open("f", openRead)
	equal(t, "read", c.read(h, 1, 2), "12")
	equal(t, "write to a file that is read", c.code(fxpWrite, h, uint64(0), "x"), denied)
	c.close(h)
	equal(t, "stat", c.code(fxpStat, "nope"), noSuchFile)
	for name, code := range map[string]uint32{
		"write":        c.code(fxpOpen, "f", openWrite, noAttrs),
		"read, write":  c.code(fxpOpen, "f", openRead|openWrite, noAttrs),
		"create":       c.code(fxpOpen, "g", openRead|openCreate, noAttrs),
		"truncate":     c.code(fxpOpen, "f", openRead|openTrunc, noAttrs),
		"append":       c.code(fxpOpen, "f", openAppend, noAttrs),
		"no flags":     c.code(fxpOpen, "f", 0, noAttrs),
		"setstat":      c.code(fxpSetstat, "f", noAttrs),
		"remove":       c.code(fxpRemove, "f"),
		"rmdir":        c.code(fxpRmdir, "d"),
		"mkdir":        c.code(fxpMkdir, "e", noAttrs),
		"rename":       c.code(fxpRename, "f", "g"),
		"symlink":      c.code(fxpSymlink, "f", "g"),
		"posix-rename": c.code(fxpExtended, "posix-rename@openssh.com", "f", "g"),
		"hardlink":     c.code(fxpExtended, "hardlink@openssh.com", "f", "g"),
		"lsetstat":     c.code(fxpExtended, "lsetstat@openssh.com", "f", noAttrs),
		"fsync":        c.code(fxpExtended, "fsync@openssh.com", "0"),
		"copy-data":    c.code(fxpExtended, "copy-data", "0", uint64(0), uint64(0), "1", uint64(0)),
	} {
		equal(t, name, code, denied)
	}
	equal(t, "f", read(t, c.path("f")), "0123")
	left, _ := os.ReadDir(home)
	equal(t, "entries", len(left), 2)
}
