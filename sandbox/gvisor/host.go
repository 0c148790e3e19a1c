//go:build linux

package gvisor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"sandgate/sandbox/guest"
)

// A mode is a way to make root folders.
type mode struct {
	user    bool // in a user namespace, without which we may not mount anything
	overlay bool // as kernel overlays, with users of each sandbox's own
}

// modes returns the modes that are worth trying, the best first. Root in a
// container may lack the right to mount, or its /usr may itself be a kind of
// overlay.
func modes() []mode {
	if os.Geteuid() != 0 {
		return []mode{{user: true}}
	}
	return []mode{{overlay: true}, {}, {user: true}}
}

// host is what this host lets us do, found out once.
type host struct {
	mode
	why     string   // not a better mode
	folders []string // host folders with programs that sandboxes see
	groups  groups
}

// programFolders are the folders that may hold programs. Where one is only a
// link into another, as most are today, the link is made anew.
var programFolders = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}

// inspect finds out what the host can do, by trying one mode after the other.
func (d *Driver) inspect(modes []mode) (host, error) {
	var h host
	for _, dir := range programFolders {
		if info, err := os.Lstat(dir); err == nil && info.IsDir() {
			h.folders = append(h.folders, dir)
		}
	}
	for _, h.mode = range modes {
		err := d.try(h)
		if err == nil {
			h.groups = findGroups(filepath.Join("/sandgate", shortHash(d.state)))
			return h, nil
		}
		h.why = err.Error()
	}
	return h, fmt.Errorf("this host cannot run sandboxes: %s", h.why)
}

// try puts a stage together without starting anything on it.
func (d *Driver) try(h host) error {
	e := &entry{
		record: record{Saved: !h.overlay, Shared: !h.overlay},
		dir:    filepath.Join(d.state, "try"),
		run:    filepath.Join(d.run, "try"),
		socket: guest.NewSocket(filepath.Join(d.run, "try", "socket"), -1, -1),
	}
	defer removeAll(e.dir)
	defer removeAll(e.run)
	b := base{root: d.image, folders: h.folders}
	if err := e.makeDisk(b); err != nil {
		return err
	}
	for _, dir := range []string{e.runsc(), e.socket.Dir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	trial := &Driver{program: d.program, image: d.image, host: h}
	p := trial.plan(e, b)
	p.Args, p.launch = nil, nil
	return trial.runStage(context.Background(), e, p, nil)
}

// notes says what the host cannot do for a sandbox.
func (d *Driver) notes(r record) []string {
	h := &d.host
	notes := append(h.groups.notes(r.Spec.Limits), d.baseNotes(r)...)
	if r.Saved {
		notes = append(notes, fmt.Sprintf("The disk is saved when the sandbox stops and every %.0f minutes; "+
			"what was written since is lost if the host goes down.", saveEvery.Minutes()))
	}
	if h.user && r.Digest == "" {
		notes = append(notes, "The host's programs seem to belong to nobody, so those that change the user, such as sudo, do not work.")
	}
	if h.why != "" {
		notes = append(notes, "The sandbox has no users of its own on the host: "+h.why+".")
	}
	return notes
}
