// Package docker is the driver that runs sandboxes on an engine with Docker's
// API: Docker itself or Podman, on this host or another one, with whatever
// runtimes that engine has. When a sandbox lives is the Manager's matter, what
// happens inside one the guest's.
//
// # What a sandbox is made of
//
// A sandbox is one container. Its first process is the guest, as root; the image's
// own settings (environment, user, folder) reach the guest as guest.Settings, and
// its entry point and health check are not used. The container is named and
// labelled after the gateway and the sandbox, so that a new gateway finds those of
// the one before and touches nobody else's. Labels are also the driver's only
// records of a sandbox, beside an empty folder in the state folder: what the
// engine has is what there is.
//
// # The way to the guest
//
// With an engine on this host the guest dials out, as under the other drivers:
// the sandbox's socket folder and our own program are mounted read-only. An engine
// on another host cannot mount them, so the program is copied into the container
// before it starts, and the guest's connection is carried over one exec of `guest
// connect` (see package guest): one at a time, opened again by the next Connect.
// No exec runs anything else; bulk then shares the one stream. The same goes for an
// engine on this host that was started with --userns-remap: root in a sandbox is then
// nobody here, who may neither open our socket nor own the files of a workspace.
//
// # Hardening
//
// A container has the capabilities that package managers need and no more, may not
// gain privileges (sudo and other setuid programs stay what they are), has the
// engine's own filter of system calls, no swap beyond its memory, and none of the
// host's folders but its workspace. What the engine cannot enforce of a sandbox's
// limits is said in its notes; but a limit on the disk, which nobody gets without
// asking, is refused.
//
// # The network
//
// A sandbox has no network but its loopback, or with NetworkFull that of package
// nat, which two more containers make beside it. An engine's own bridges are never
// used: from there a sandbox would reach the engine's host, and others.
//
// # When the engine goes away
//
// The driver opens without an engine, and asks for one only when it has made a
// sandbox. A call that finds none fails with a *sandbox.UnavailableError; nothing
// is remembered of that, so the next one works when the engine is back. Watch
// follows the engine's events, to tell why a sandbox ended that nobody here ended.
package docker

// Config says which engine a Driver uses and where it keeps things. Two drivers
// must not share a state folder.
type Config struct {
	// State is the folder for what must last.
	State string

	// Host is the engine's address, as in DOCKER_HOST: unix://, tcp:// or ssh://.
	// Empty means Docker's usual socket.
	Host string

	// Certificates is a folder with ca.pem, cert.pem and key.pem, for a tcp
	// address; empty: none, and no TLS.
	Certificates string

	// Copy makes an engine on this host be used like one on another, where no
	// folder can be shared: for an engine that sees other folders than we do.
	Copy bool

	// Executable is the program that runs as the guest, linked statically
	// (CGO_ENABLED=0) for the engine's platform. Empty means the running one.
	Executable string
}
