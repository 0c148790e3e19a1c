package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"syscall"

	"sandgate/sandbox"
	"sandgate/sandbox/docker"
	"sandgate/sandbox/gvisor"
)

// leastFree is the part of the state folder's disk that is to be free, in percent.
const leastFree = 10

// examine says, for the verb doctor, whether what the gateway stands on works: the
// driver of new sandboxes, which runs one for trial, and the disk.
func (r *running) examine(ctx context.Context) []sandbox.Finding {
	var found []sandbox.Finding
	switch r.driver {
	case "gvisor":
		found, _ = gvisor.Examine(ctx, gvisor.Config{State: r.State}, slog.New(slog.DiscardHandler))
	case "docker":
		found, _ = docker.Examine(ctx, docker.Config{State: filepath.Join(r.State, "docker"), Host: r.DockerHost, Certificates: r.DockerCert})
	}
	// The first is whether it works; the others are what it could do elsewhere, which
	// check tells.
	return append(found[:min(1, len(found))], freeSpace(r.State))
}

func freeSpace(dir string) sandbox.Finding {
	f := sandbox.Finding{Name: "disk"}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		f.Says, f.Remedy = "the state folder "+dir+": "+err.Error(), "see to it that it is there"
		return f
	}
	free := int(100 * fs.Bavail / max(1, fs.Blocks))
	f.Says = fmt.Sprintf("%d %% of the disk with the state folder %s are free, %.1f GB", free, dir, float64(fs.Bavail)*float64(fs.Bsize)/1e9)
	if f.OK = free >= leastFree; !f.OK {
		f.Remedy = "remove sandboxes and images that nobody needs, or make it larger"
	}
	return f
}
