package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sandgate/store"
)

// Config says what sandboxes are made of unless someone asks otherwise, and what
// nobody may ask for.
type Config struct {
	Driver string // name of the driver for new sandboxes

	Defaults  Options
	Templates map[string]Options // by name; over the defaults
	Ceilings  Ceilings

	// Workspaces are the folders of the host below which a sandbox's workspace
	// may lie. {user} in one stands for the name of the sandbox's owner.
	Workspaces []string

	// Images are patterns of which an image's name has to match one. A star
	// stands for anything. None: every image may be used.
	Images []string
}

// Ceilings are the most that a sandbox may be. Zero is no ceiling.
type Ceilings struct {
	Limits
	TTL     Duration
	Network Network
}

// Validate says what is wrong with the settings.
func (c Config) Validate() error {
	if err := c.admit(c.Defaults); err != nil {
		return fmt.Errorf("defaults: %w", err)
	}
	for name, t := range c.Templates {
		if err := c.admit(t); err != nil {
			return fmt.Errorf("template %q: %w", name, err)
		}
	}
	for _, root := range c.Workspaces {
		if !filepath.IsAbs(root) {
			return fmt.Errorf("workspaces: %q is not an absolute path", root)
		}
	}
	for _, pattern := range c.Images {
		if _, err := path.Match(pattern, ""); err != nil {
			return fmt.Errorf("images: %q is no pattern", pattern)
		}
	}
	if err := (Options{Network: c.Ceilings.Network, Limits: c.Ceilings.Limits, TTL: c.Ceilings.TTL}).check(); err != nil {
		return fmt.Errorf("ceilings: %w", err)
	}
	return nil
}

// admit says what is malformed in o, or more than is allowed.
func (c Config) admit(o Options) error {
	if err := o.check(); err != nil {
		return err
	}
	if err := c.Ceilings.admit(o); err != nil {
		return err
	}
	if o.Image != "" && !allowedImage(c.Images, o.Image) {
		return &OptionError{
			Fault:  OptionForbidden,
			Reason: fmt.Sprintf("image %.200q is not allowed by this gateway", o.Image),
			Remedy: "allowed are: " + strings.Join(c.Images, " "),
		}
	}
	return nil
}

// admit says in what o is above the ceilings.
func (c Ceilings) admit(o Options) error {
	above := func(what, asked, most string) error {
		return &OptionError{
			Fault:  OptionTooMuch,
			Reason: fmt.Sprintf("%s %s is above what this gateway allows: %s", what, asked, most),
			Remedy: fmt.Sprintf("ask for at most %s", most),
		}
	}
	switch {
	case c.CPUs > 0 && o.CPUs > c.CPUs:
		return above("cpus", fmt.Sprint(o.CPUs), fmt.Sprint(c.CPUs))
	case c.Memory > 0 && o.Memory > c.Memory:
		return above("memory", Size(o.Memory).String(), Size(c.Memory).String())
	case c.PIDs > 0 && o.PIDs > c.PIDs:
		return above("pids", fmt.Sprint(o.PIDs), fmt.Sprint(c.PIDs))
	case c.Disk > 0 && o.Disk > c.Disk:
		return above("disk", Size(o.Disk).String(), Size(c.Disk).String())
	case c.TTL.On() && (o.TTL > c.TTL || o.TTL == Off):
		return above("ttl", o.TTL.String(), c.TTL.String())
	case c.Network == NetworkNone && o.Network == NetworkFull:
		return above("network", string(o.Network), string(c.Network))
	}
	return nil
}

// limit returns o with what it would have without end set to the ceiling.
func (c Ceilings) limit(o Options) Options {
	o.Limits = o.Limits.or(c.Limits)
	o.TTL = cmp.Or(o.TTL, c.TTL)
	return o
}

// resolve returns all that a new sandbox of owner is to be, from what was asked
// for, its template and the defaults.
func (c Config) resolve(owner string, o Options, now time.Time) (Options, error) {
	if err := c.admit(o); err != nil {
		return o, err
	}
	if o.Template != "" {
		t, ok := c.Templates[o.Template]
		if !ok {
			return o, unknownTemplate(o.Template, c.Templates)
		}
		o = o.Or(t)
	}
	o = o.Or(c.Defaults)
	o.Image = cmp.Or(o.Image, ImageHost)
	o.Network = cmp.Or(o.Network, NetworkNone)
	o = c.Ceilings.limit(o)
	if err := c.admit(o); err != nil {
		return o, err
	}
	if o.Workspace != "" {
		var err error
		if o.Workspace, err = c.workspace(owner, o.Workspace); err != nil {
			return o, err
		}
	}
	o.Expires = expiry(o.TTL, now)
	return o, nil
}

// expiry returns when a sandbox with that time to live from now on is removed;
// zero: never.
func expiry(ttl Duration, now time.Time) time.Time {
	if !ttl.On() {
		return time.Time{}
	}
	return now.Add(time.Duration(ttl)).UTC().Truncate(time.Second)
}

func unknownTemplate(name string, there map[string]Options) error {
	e := &OptionError{Fault: OptionUnknown, Reason: fmt.Sprintf("there is no template named %.80q", name)}
	if e.Remedy = "this gateway has none"; len(there) > 0 {
		e.Remedy = "there are: " + strings.Join(slices.Sorted(maps.Keys(there)), " ")
	}
	return e
}

// workspace returns the host folder dir without symbolic links, if owner's
// sandboxes may have it as their workspace.
func (c Config) workspace(owner, dir string) (string, error) {
	var roots []string
	for _, root := range c.Workspaces {
		roots = append(roots, filepath.Clean(strings.ReplaceAll(root, "{user}", owner)))
	}
	forbidden := &OptionError{
		Fault:  OptionForbidden,
		Reason: fmt.Sprintf("workspace %.200q is not below a folder that this gateway allows", dir),
		Remedy: "allowed are folders below: " + strings.Join(roots, " "),
	}
	if len(roots) == 0 {
		forbidden.Reason, forbidden.Remedy = "this gateway allows no workspaces", `the operator allows them with: workspaces = ["/srv/work"] in sandgate.toml`
	}
	if !filepath.IsAbs(dir) {
		if len(roots) == 0 {
			return "", forbidden
		}
		return "", malformed("such as "+filepath.Join(roots[0], "project"), "workspace %.200q is not an absolute path", dir)
	}
	dir = filepath.Clean(dir)
	// Before anything is looked up: what else there is on the host is not told.
	if !slices.ContainsFunc(append(roots, resolved(roots)...), func(root string) bool { return below(root, dir) }) {
		return "", forbidden
	}
	real, err := filepath.EvalSymlinks(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", &OptionError{Fault: OptionUnknown, Reason: fmt.Sprintf("workspace %.200q does not exist on the gateway's host", dir)}
	case err != nil:
		return "", &OptionError{Fault: OptionForbidden, Reason: fmt.Sprintf("workspace %.200q cannot be opened by the gateway", dir)}
	case !slices.ContainsFunc(resolved(roots), func(root string) bool { return below(root, real) }):
		forbidden.Reason = fmt.Sprintf("workspace %.200q leads out of the folders that this gateway allows", dir)
		return "", forbidden
	}
	if info, err := os.Lstat(real); err != nil || !info.IsDir() {
		return "", malformed("", "workspace %.200q is no folder", dir)
	}
	return real, nil
}

// resolved returns folders without symbolic links, and without those that are not
// there.
func resolved(dirs []string) []string {
	var real []string
	for _, dir := range dirs {
		if r, err := filepath.EvalSymlinks(dir); err == nil {
			real = append(real, r)
		}
	}
	return real
}

// below reports whether dir is root or below it. Both are clean.
func below(root, dir string) bool {
	rel, err := filepath.Rel(root, dir)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

// allowedImage reports whether one of the patterns allows an image. One without a
// tag allows all tags and digests.
func allowedImage(patterns []string, image string) bool {
	if len(patterns) == 0 {
		return true
	}
	image = shortImage(image)
	names := []string{image, imageName(image)}
	return slices.ContainsFunc(patterns, func(p string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return matchImage(shortImage(p), name) })
	})
}

// matchImage is path.Match in which a star goes across slashes.
func matchImage(pattern, name string) bool {
	flat := strings.NewReplacer("/", "\x00")
	ok, err := path.Match(flat.Replace(pattern), flat.Replace(name))
	return err == nil && ok
}

// shortImage returns an image's name without what Docker's own registry may be
// written as.
func shortImage(image string) string {
	for _, registry := range []string{"index.docker.io/", "docker.io/"} {
		if rest, ok := strings.CutPrefix(image, registry); ok {
			image = rest
			break
		}
	}
	return strings.TrimPrefix(image, "library/")
}

// imageName returns an image's name without tag and digest.
func imageName(image string) string {
	image, _, _ = strings.Cut(image, "@")
	if i := strings.LastIndexByte(image, ':'); i > strings.LastIndexByte(image, '/') {
		image = image[:i]
	}
	return image
}

// checkWorkspace says whether a sandbox may still have the workspace that it was made
// with: the operator's settings and the host's folders may have changed.
func (c Config) checkWorkspace(row store.Sandbox, o Options) error {
	if o.Workspace == "" {
		return nil
	}
	real, err := c.workspace(row.Owner, o.Workspace)
	if err == nil && real != o.Workspace {
		err = &OptionError{Fault: OptionForbidden, Reason: fmt.Sprintf("workspace %.200q is not the folder any more that the sandbox was made with", o.Workspace)}
	}
	return err
}
