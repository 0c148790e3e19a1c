// Package sandbox decides when sandboxes live: they are made and started on
// first use, shared by all connections of their owner, stopped, removed, and
// found again after a restart of the gateway.
//
// How a host runs one is a Driver's matter; what happens inside one is the
// guest's (package guest).
package sandbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
)

// ErrNotFound says that a driver knows no sandbox of that id.
var ErrNotFound = errors.New("no such sandbox")

// An ID names one sandbox for ever: 16 lower-case hexadecimal digits. All ids
// have the same length, since runsc resolves ids by prefix.
type ID string

// NewID returns a random id.
func NewID() ID {
	var b [8]byte
	rand.Read(b[:])
	return ID(hex.EncodeToString(b[:]))
}

// ParseID returns s as an ID, or an error when s does not have the form of one.
func ParseID(s string) (ID, error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != 8 || hex.EncodeToString(b) != s {
		return "", fmt.Errorf("%q is not a sandbox id", s)
	}
	return ID(s), nil
}

// ImageHost is the image that consists of the gateway host's own programs.
const ImageHost = "host"

// A Spec says what a sandbox is made of. After Create only an Updater changes it.
type Spec struct {
	ID       ID
	Hostname string  // what the sandbox calls itself: the sandbox's name
	Image    string  // ImageHost, or a reference to an OCI image: NAME[:TAG|@DIGEST]
	Runtime  string  // the driver's name for what runs it (docker: runc, runsc, …); empty: its default
	Network  Network // empty: NetworkNone

	// Workspace is a folder of the gateway's host that is mounted at /workspace,
	// absolute and free of symbolic links; empty: none. That the operator allows
	// it was checked.
	Workspace string

	// From is a Snapshotter's snapshot that the disk begins with; empty: none. It is
	// of the same image.
	From ID

	// What commands begin with, over what the image says (guest.Settings).
	Env  []string
	User string

	Limits Limits
}

// A Network says what a sandbox can reach.
type Network string

// The networks of a sandbox.
const (
	NetworkNone Network = "none" // its own loopback only
	NetworkFull Network = "full" // what the host can reach, but the host itself and link-local addresses
)

// Limits bound what one sandbox may use. Zero means no limit.
type Limits struct {
	CPUs   float64 // processors' worth of time
	Memory int64   // bytes
	PIDs   int64   // processes and threads
	Disk   int64   // bytes of the writable layer, where the driver can
}

// or returns l with its zero fields taken from other.
func (l Limits) or(other Limits) Limits {
	return Limits{
		CPUs:   cmp.Or(l.CPUs, other.CPUs),
		Memory: cmp.Or(l.Memory, other.Memory),
		PIDs:   cmp.Or(l.PIDs, other.PIDs),
		Disk:   cmp.Or(l.Disk, other.Disk),
	}
}

// A State is what a sandbox is doing as far as its driver knows.
type State string

// The states of a sandbox.
const (
	Stopped State = "stopped" // made, and not running
	Running State = "running" // its guest is, or soon will be, connected
	Paused  State = "paused"  // it stands still until the next Start; see Pauser
	Unknown State = "unknown" // its engine does not answer; no driver says this
)

// A Status is one sandbox as its driver sees it.
type Status struct {
	ID    ID
	State State

	// Notes are sentences about what this host cannot do for the sandbox, such
	// as a limit that it cannot enforce. Empty when all is as asked.
	Notes []string

	// Init is the init that the image would start by itself, see InitOf. It is not
	// started.
	Init string

	// Image is how many bytes of disk the memory of a paused sandbox takes.
	Image int64
}

// A Driver runs sandboxes on one kind of host. After a crash of the gateway any
// call may be repeated, so asking for a state that is already reached is not an
// error. All methods may be called at the same time for different sandboxes;
// the Manager never runs two of Create, Start, Stop and Remove at once for one.
type Driver interface {
	// Create makes the sandbox, stopped, with an empty disk. A Create that was
	// cut short by a crash may be repeated.
	Create(ctx context.Context, spec Spec) error

	// Start runs the sandbox's guest. It returns when the guest has been
	// started, which may be before it has connected. ErrNotFound if there is no
	// such sandbox. See Pauser for one that is paused.
	Start(ctx context.Context, id ID) error

	// Stop ends all processes in the sandbox, politely first, and keeps its
	// disk. ErrNotFound if there is no such sandbox.
	Stop(ctx context.Context, id ID) error

	// Remove stops the sandbox and deletes all that is left of it. Removing
	// what is not there is not an error.
	Remove(ctx context.Context, id ID) error

	// List returns the sandboxes that this driver has on this host, including
	// those made by an earlier gateway with the same state folder.
	List(ctx context.Context) ([]Status, error)

	// Connect waits for the next connection that the sandbox's guest opens and
	// returns it. It may be called again and again: the guest opens one
	// connection that lasts and some more to carry bulk (see package guest).
	// The stream has a CloseWrite method where the transport can half-close.
	// ErrNotFound if there is no such sandbox; it need not be running yet.
	Connect(ctx context.Context, id ID) (io.ReadWriteCloser, error)

	// Close gives up what the driver holds in this process, such as listening
	// sockets. Sandboxes go on running.
	Close() error
}

// A Checker is a Driver that cannot make all that a Spec can ask for, and says so
// before anything is made.
type Checker interface {
	// Check returns an *UnsupportedError that names what of spec this driver on
	// this host cannot make. The sandbox need not be there, nor its image.
	Check(spec Spec) error
}

// An Updater is a Driver that can change sandboxes which are there.
type Updater interface {
	// Update changes Env and Limits of a sandbox, from its next start on, to what
	// spec has; all else in spec, Limits.Disk too, is as it was at Create.
	// ErrNotFound if there is no such sandbox.
	Update(ctx context.Context, spec Spec) error
}

// A LiveUpdater is an Updater for which a sandbox need not be started again.
type LiveUpdater interface {
	// UpdateNow is Update, but what it changes of Limits holds at once. The error is
	// an *UnsupportedError if something cannot be changed.
	UpdateNow(ctx context.Context, spec Spec) error
}
