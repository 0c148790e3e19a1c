package docker

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"
	"github.com/docker/docker/pkg/jsonmessage"
)

// An imageConfig is what commands begin with in an image.
type imageConfig struct {
	env  []string
	user string
	dir  string

	command []string // what it runs by itself
}

// image returns the configuration of an image that the engine has, or errNoImage.
func (e *engine) image(ctx context.Context, ref string) (imageConfig, error) {
	var c imageConfig
	err := e.within(ctx, callTimeout, func(ctx context.Context) error {
		image, err := e.client.ImageInspect(ctx, ref)
		if cerrdefs.IsNotFound(err) {
			return errNoImage
		}
		if err == nil && image.Config != nil {
			c = imageConfig{image.Config.Env, image.Config.User, image.Config.WorkingDir,
				slices.Concat(image.Config.Entrypoint, image.Config.Cmd)}
		}
		return err
	})
	return c, err
}

// commitTimeout bounds the copy of a container's disk.
const commitTimeout = 10 * time.Minute

// commit makes an image of a container, or returns sandbox.ErrNotFound.
func (e *engine) commit(ctx context.Context, name, ref string) error {
	return e.within(ctx, commitTimeout, func(ctx context.Context) error {
		_, err := e.client.ContainerCommit(ctx, name, container.CommitOptions{Reference: ref, Pause: true})
		return err
	})
}

// tag gives an image another name, or returns errNoImage.
func (e *engine) tag(ctx context.Context, ref, other string) error {
	return e.within(ctx, callTimeout, func(ctx context.Context) error {
		err := e.client.ImageTag(ctx, ref, other)
		if cerrdefs.IsNotFound(err) {
			return errNoImage
		}
		return err
	})
}

// tags returns the tags that there are of a repository.
func (e *engine) tags(ctx context.Context, repository string) (tags []string, err error) {
	err = e.within(ctx, callTimeout, func(ctx context.Context) error {
		images, err := e.client.ImageList(ctx, image.ListOptions{Filters: filters.NewArgs(filters.Arg("reference", repository))})
		for _, i := range images {
			for _, ref := range i.RepoTags {
				if tag, ok := strings.CutPrefix(ref, repository+":"); ok {
					tags = append(tags, tag)
				}
			}
		}
		return err
	})
	return tags, err
}

// removeImage takes a name from an image, which goes with its last one, if it is
// there.
func (e *engine) removeImage(ctx context.Context, ref string) error {
	return e.within(ctx, startTimeout, func(ctx context.Context) error {
		_, err := e.client.ImageRemove(ctx, ref, image.RemoveOptions{Force: true, PruneChildren: true})
		if cerrdefs.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// A pullStep is what the engine says while it pulls an image.
type pullStep struct {
	layer       string // empty: about the image as a whole
	status      string
	done, total int64
}

// pull pulls an image. What it fails with is for imageFault to read.
func (e *engine) pull(ctx context.Context, ref string, c credentials, report func(pullStep)) error {
	auth, err := json.Marshal(c)
	if err != nil {
		return err
	}
	body, err := e.client.ImagePull(ctx, ref, image.PullOptions{RegistryAuth: base64.URLEncoding.EncodeToString(auth)})
	if client.IsErrConnectionFailed(err) {
		return e.unavailable(err)
	}
	if err != nil {
		return err
	}
	defer body.Close()
	for lines := json.NewDecoder(body); ; {
		var m jsonmessage.JSONMessage
		if err := lines.Decode(&m); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return e.unavailable(err)
		}
		if m.Error != nil {
			return errors.New(m.Error.Message)
		}
		step := pullStep{layer: m.ID, status: m.Status}
		if m.Progress != nil {
			step.done, step.total = m.Progress.Current, m.Progress.Total
		}
		report(step)
	}
}
