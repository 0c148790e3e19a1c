package gateway

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"sandgate/sandbox"
	"sandgate/store"
)

// entrypointService is the service that runs what a sandbox's image does by itself.
const entrypointService = "entrypoint"

// imageFlags say what the verb new does with an image.
type imageFlags struct {
	Pull       sandbox.PullPolicy `placeholder:"always|missing|never" help:"When to pull the image: always, to have it as it is by now; missing, the default; never."`
	Entrypoint bool               `help:"Run the image's own command, too: its ENTRYPOINT and CMD, as the service 'entrypoint'. See: service logs NAME/entrypoint."`
}

// check says what is wrong with the flags of a sandbox that begins with that snapshot,
// or with none.
func (f imageFlags) check(snapshot string) error {
	switch f.Pull {
	case "", sandbox.PullAlways, sandbox.PullMissing, sandbox.PullNever:
	default:
		return &problem{kind: usage, sentence: fmt.Sprintf("--pull is always, missing or never, not %.40q", string(f.Pull))}
	}
	if snapshot != "" && (f.Entrypoint || f.Pull != "") {
		return &problem{kind: usage, sentence: "--from has the image of the snapshot: --pull and --entrypoint are for a new one"}
	}
	return nil
}

// entrypoint returns the command line of what the image of a new sandbox runs by
// itself. If there is none the sandbox is gone again, as after Make.
func (l *Login) entrypoint(ctx context.Context, row store.Sandbox, image string) (line string, err error) {
	var argv []string
	if image != sandbox.ImageHost {
		argv, err = l.gate.sandboxes.Entrypoint(ctx, row)
		line = quoteArgs(argv)
	}
	if err == nil && len(argv) == 0 {
		err = &problem{kind: failed, sentence: "the image has no command of its own, neither ENTRYPOINT nor CMD", hint: "leave --entrypoint out, and add one with: ssh gate@HOST service add"}
	}
	if err == nil && len(line) > maxServiceCommand {
		err = tooLong("the image's own command")
	}
	if err != nil {
		return "", errors.Join(err, l.gate.sandboxes.Remove(context.WithoutCancel(ctx), row))
	}
	return line, nil
}

// quoteArgs makes a line of a shell's of what is to be run as it is.
func quoteArgs(argv []string) string {
	words := make([]string, len(argv))
	for i, arg := range argv {
		words[i] = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
	}
	return strings.Join(words, " ")
}
