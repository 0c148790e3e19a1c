package docker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"sandgate/sandbox"
)

// envMark stands for variables that a container was made with.
func envMark(env []string) string {
	sum := sha256.Sum256([]byte(strings.Join(env, "\x00")))
	return hex.EncodeToString(sum[:8])
}

// Update implements sandbox.Updater. What it changes holds at once; the variables
// of a container, on the other hand, are what they were when it was made.
func (d *Driver) Update(ctx context.Context, spec sandbox.Spec) error {
	return d.do("update", spec.ID, func(*entry) error { return d.update(ctx, spec) })
}

// UpdateNow implements sandbox.LiveUpdater.
func (d *Driver) UpdateNow(ctx context.Context, spec sandbox.Spec) error { return d.Update(ctx, spec) }

func (d *Driver) update(ctx context.Context, spec sandbox.Spec) error {
	name := d.name(spec.ID)
	b, err := d.engine.inspect(ctx, name)
	if err != nil {
		return err
	}
	if mark, ok := b.labels[labelEnv]; ok && mark != envMark(spec.Env) {
		return &sandbox.UnsupportedError{Reason: "the docker driver cannot change the variables of a sandbox that is there: " +
			"set them in ~/.profile, or make another sandbox with: new --env"}
	}
	now, then := b.limits, spec.Limits
	if then.CPUs == now.CPUs && then.Memory == now.Memory && then.PIDs == now.PIDs {
		return nil
	}
	if isGVisor(b.runtime) {
		// The limit that counts is gVisor's own, of which the engine knows nothing.
		if then.PIDs != now.PIDs {
			return &sandbox.UnsupportedError{Reason: fmt.Sprintf("the runtime %s cannot change the limit of processes of a sandbox that is there", b.runtime)}
		}
		then.PIDs = 0
	}
	return d.engine.update(ctx, name, then)
}

// Read implements sandbox.Meter.
func (d *Driver) Read(ctx context.Context, id sandbox.ID) (sandbox.Reading, error) {
	e := d.find(id)
	if e == nil {
		return sandbox.Reading{}, sandbox.ErrNotFound
	}
	return d.engine.stats(ctx, d.name(e.id))
}
