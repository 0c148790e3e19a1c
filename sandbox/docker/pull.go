package docker

import (
	"context"
	"errors"
	"fmt"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"

	"sandgate/sandbox"
)

// credentials are what an engine shows a registry, in the form in which its API
// takes them.
type credentials struct {
	Username      string `json:"username,omitempty"`
	Password      string `json:"password,omitempty"`
	IdentityToken string `json:"identitytoken,omitempty"`
	RegistryToken string `json:"registrytoken,omitempty"`
	ServerAddress string `json:"serveraddress,omitempty"`
}

// Pull implements sandbox.Puller. Credentials are the gateway's, from the usual
// file: the engine has none of its own.
func (d *Driver) Pull(ctx context.Context, ref string, report func(sandbox.Progress)) error {
	if err := d.pull(ctx, ref, report); err != nil {
		return fmt.Errorf("pull %q: %w", ref, err)
	}
	return nil
}

// Refresh implements sandbox.Puller.
func (d *Driver) Refresh(ctx context.Context, ref string, report func(sandbox.Progress)) error {
	if err := d.refresh(ctx, ref, report); err != nil {
		return fmt.Errorf("pull %q: %w", ref, err)
	}
	return nil
}

// Entrypoint implements sandbox.Entrypointer.
func (d *Driver) Entrypoint(ctx context.Context, id sandbox.ID) ([]string, error) {
	e := d.find(id)
	if e == nil {
		return nil, sandbox.ErrNotFound
	}
	b, err := d.engine.inspect(ctx, d.name(id))
	if err != nil {
		return nil, err
	}
	image, err := d.engine.image(ctx, b.image)
	return image.command, err
}

func (d *Driver) pull(ctx context.Context, ref string, report func(sandbox.Progress)) error {
	if _, err := d.engine.image(ctx, ref); !errors.Is(err, errNoImage) {
		return err
	}
	return d.refresh(ctx, ref, report)
}

func (d *Driver) refresh(ctx context.Context, ref string, report func(sandbox.Progress)) error {
	parsed, err := name.ParseReference(ref)
	if err != nil {
		return &sandbox.ImageError{Image: ref, Fault: sandbox.ImageMalformed, Err: err}
	}
	c, err := credentialsFor(parsed.Context())
	if err != nil {
		return &sandbox.ImageError{Image: ref, Fault: sandbox.ImageDenied, Err: err}
	}
	err = d.engine.pull(ctx, ref, c, func(s pullStep) {
		if state, ok := layerState(s.status); ok && s.layer != "" {
			report(sandbox.Progress{Layer: s.layer, State: state, Done: s.done, Total: s.total})
		}
	})
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if fault := imageFault(err); fault != 0 {
		return &sandbox.ImageError{Image: ref, Fault: fault, Err: err}
	}
	return err
}

func credentialsFor(repository name.Repository) (credentials, error) {
	who, err := authn.DefaultKeychain.Resolve(repository)
	if err != nil {
		return credentials{}, fmt.Errorf("credentials for %s: %w", repository.RegistryStr(), err)
	}
	auth, err := who.Authorization()
	if err != nil {
		return credentials{}, fmt.Errorf("credentials for %s: %w", repository.RegistryStr(), err)
	}
	c := credentials{
		Username:      auth.Username,
		Password:      auth.Password,
		IdentityToken: auth.IdentityToken,
		RegistryToken: auth.RegistryToken,
	}
	if c != (credentials{}) {
		c.ServerAddress = repository.RegistryStr()
	}
	return c, nil
}

// layerState is what an engine's words about a layer mean; not ok for those that
// are about something else.
func layerState(status string) (state sandbox.LayerState, ok bool) {
	switch status {
	case "Pulling fs layer", "Waiting":
		return sandbox.LayerWaiting, true
	case "Downloading", "Verifying Checksum", "Download complete":
		return sandbox.LayerDownloading, true
	case "Extracting":
		return sandbox.LayerExtracting, true
	case "Pull complete", "Already exists":
		return sandbox.LayerReady, true
	}
	return sandbox.LayerRetrying, strings.HasPrefix(status, "Retrying in ")
}

// faultWords are the words by which an engine's errors are known, which come from
// the registry, the network and the disk alike. The first that fits decides.
var faultWords = []struct {
	words string
	fault sandbox.ImageFault
}{
	{"no space left on device", sandbox.ImageDiskFull},
	{"no matching manifest", sandbox.ImagePlatform},
	{"does not match the specified platform", sandbox.ImagePlatform},
	{"pull access denied", sandbox.ImageDenied},
	{"unauthorized", sandbox.ImageDenied},
	{"authentication required", sandbox.ImageDenied},
	{"no basic auth credentials", sandbox.ImageDenied},
	{"denied", sandbox.ImageDenied},
	{"forbidden", sandbox.ImageDenied},
	{"manifest unknown", sandbox.ImageNotFound},
	{"name unknown", sandbox.ImageNotFound},
	{"not found", sandbox.ImageNotFound},
	{"invalid reference format", sandbox.ImageMalformed},
	{"no such host", sandbox.ImageUnreachable},
	{"connection refused", sandbox.ImageUnreachable},
	{"connection reset", sandbox.ImageUnreachable},
	{"network is unreachable", sandbox.ImageUnreachable},
	{"no route to host", sandbox.ImageUnreachable},
	{"timeout", sandbox.ImageUnreachable},
	{"deadline exceeded", sandbox.ImageUnreachable},
	{"request canceled while waiting for connection", sandbox.ImageUnreachable},
	{"tls:", sandbox.ImageUnreachable},
	{"x509:", sandbox.ImageUnreachable},
	{"server gave http response to https client", sandbox.ImageUnreachable},
	{"digest", sandbox.ImageCorrupt},
}

// imageFault is what is wrong with an image according to the engine's error, or 0
// if the error is about something else.
func imageFault(err error) sandbox.ImageFault {
	var lost *sandbox.UnavailableError
	if err == nil || errors.As(err, &lost) {
		return 0
	}
	text := strings.ToLower(err.Error())
	for _, f := range faultWords {
		if strings.Contains(text, f.words) {
			return f.fault
		}
	}
	switch {
	case cerrdefs.IsNotFound(err):
		return sandbox.ImageNotFound
	case cerrdefs.IsUnauthorized(err), cerrdefs.IsPermissionDenied(err):
		return sandbox.ImageDenied
	}
	return 0
}
