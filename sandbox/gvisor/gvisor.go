// Package gvisor is the default driver: it runs sandboxes with gVisor, whose
// runtime, runsc, is compiled into our own binary.
//
// Only runsc's command line is used, by running our own binary again (see
// IsRunsc), so gVisor's unstable Go API touches one file, and a crash of runsc
// is not ours. What happens inside a sandbox is the guest's matter; when a
// sandbox lives is the Manager's.
//
// # What a sandbox is made of
//
// With the image "host" its root folder consists of the host's own programs
// under /usr, and of an image that we put together: empty folders, an /etc of
// our own, and copies of those of the host's settings that its programs need
// (hostEtc). Nothing else of the host is there to be found, whatever user asks:
// no home, no /var, no keys. What the owner of the host keeps under /usr is not
// a secret to sandboxes.
//
// With any other image it is what package image has extracted, and nothing of the
// host. All sandboxes of an image share it and none changes it: what is mounted
// into them has a place in every image from the beginning.
//
// # The stage
//
// Nothing is ever mounted where the host could see it. runsc starts in a mount
// namespace of its own, in which a small program, the stage, has put together
// the root folder and then left the host's file system behind (see stage).
// gVisor's file server takes a copy of these mounts with it, and they vanish
// with it. As an ordinary user the namespace is also a user namespace, which is
// the whole difference between the two; gVisor's own flag for ordinary users is
// not used since it forbids much that works.
//
// # The disk
//
// As root, each sandbox has 65536 user ids of its own, and all of the above lies
// under kernel overlays whose writable layers are plain folders: what is written
// is on the disk at once. The owners of the host's files are shifted on the way,
// so that a sandbox's root owns its /usr. Where the kernel cannot do this, or for
// an ordinary user, gVisor's own overlay is used instead. What that holds ends
// with the sandbox, so the driver saves it when a sandbox stops, and every few
// minutes; what was written after the last save is lost if the host crashes.
//
// # Pausing
//
// A paused sandbox is a folder with its memory, beside its disk; no process is left
// of it. It goes on with the same program and the same files, which are therefore kept
// for as long as a paused sandbox was made with them (see launch): another version of
// this program would take its memory for something else. What cannot go on is started
// anew. The folder holds whatever programs had in memory, secrets too, and only the
// gateway's user can read it. How a gateway may be killed at any moment of this is at
// pausedDir.
//
// # Processes
//
// A sandbox is two host processes, the sentry (the kernel that programs in it
// see) and the gofer (its file server). They outlive the gateway, and a new one
// finds them by what runsc wrote into the run folder. Both are held by process
// descriptors, so that their end is seen at once and no recycled process number
// is ever killed.
package gvisor

// Config says where a Driver keeps things. Two drivers must not share a folder.
type Config struct {
	// State is the folder for what must last: the disks of the sandboxes.
	State string

	// Run is the folder for what lasts as long as the host is up. Its path has
	// to be short, since it ends up in the addresses of sockets. Empty means a
	// folder below /run, or below the user's own runtime folder.
	Run string

	// Executable is the program that runs as runsc and as guest. It has to begin
	// as described at Main and to be linked statically (CGO_ENABLED=0). A copy of
	// it is used, so it may be replaced or deleted at any time. Empty means the
	// running program.
	Executable string

	// MaxImage bounds the bytes of an image, unpacked. Zero means as many as
	// image.DefaultLimits has.
	MaxImage int64
}
