//go:build linux

package gvisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"sandgate/sandbox/guest"
)

// An entry is one sandbox in the driver's books.
type entry struct {
	record        // its Spec changes with op and mu held
	dir    string // in the state folder
	run    string // in the run folder
	made   bool   // guarded by Driver.mu: Create has finished

	op     sync.Mutex // held while it is started, stopped, saved, paused or removed
	launch *launch    // how it was started; nil: not known, or it does not run

	socket *guest.Socket

	mu     sync.Mutex // guards the fields below; taken after op and Driver.mu
	kernel *process   // the sentry; nil if it does not run
	files  *process   // the gofer
	nat    *process   // natName; nil: there is no network
	paused bool
	image  int64  // bytes of disk that its memory takes, being paused
	loss   string // why it could not go on where it had been paused
}

func (d *Driver) newEntry(r record) *entry {
	id := string(r.Spec.ID)
	run := filepath.Join(d.run, id)
	owner := r.shift()
	if owner == 0 {
		owner = -1
	}
	return &entry{
		record: r,
		dir:    filepath.Join(d.state, "sandboxes", id),
		run:    run,
		socket: guest.NewSocket(filepath.Join(run, "socket"), owner, owner),
	}
}

// remembered returns the record for those who do not hold op.
func (e *entry) remembered() record {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.record
}

// runsc returns the folder in which runsc keeps what it knows of the sandbox. It
// is the sandbox's own, so that it can be wiped whatever is in it.
func (e *entry) runsc() string { return filepath.Join(e.run, "runsc") }

// hold keeps the processes of the sandbox, either of which may be nil, and
// reports whether it runs.
func (e *entry) hold(sentry, gofer *process) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.kernel, e.files = sentry, gofer
	return sentry != nil
}

// sentry returns the sandbox's kernel, or nil if it does not run.
func (e *entry) sentry() *process {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.kernel == nil || e.kernel.doomed() {
		return nil
	}
	return e.kernel
}

func (e *entry) running() bool { return e.sentry() != nil }

// endedAlone says that the sandbox's kernel, if there was one, has ended or is about
// to, and not by this driver.
func (e *entry) endedAlone() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.kernel == nil || e.kernel.doomed() && !e.kernel.ours.Load()
}

// kill kills the sandbox's processes and waits for their end. The caller holds
// op. The lock of the fields is not held meanwhile, since List needs it.
func (e *entry) kill() error {
	e.mu.Lock()
	held := []*process{e.kernel, e.files, e.nat}
	e.mu.Unlock()
	for _, p := range held {
		if p == nil {
			continue
		}
		if err := p.kill(); err != nil {
			return err
		}
	}
	e.release()
	return nil
}

// release gives up the processes. What runs goes on running.
func (e *entry) release() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range []*process{e.kernel, e.files, e.nat} {
		if p != nil {
			p.release()
		}
	}
	e.kernel, e.files, e.nat = nil, nil, nil
}

// writeRecord writes the record so that it is there whole, or not at all, even
// after a crash of the host.
func (e *entry) writeRecord() error { return e.record.write(e.dir) }

// write is writeRecord for the folder dir.
func (r record) write(dir string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, recordName)
	f, err := os.Create(path + ".new")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	return os.Rename(path+".new", path)
}
