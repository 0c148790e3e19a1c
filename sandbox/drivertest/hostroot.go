package drivertest

import (
	"archive/tar"
	"bufio"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// HostRoot writes the root folder of a small Debian system as an archive, made of
// the files of this host's own essential packages and of more, named packages: an
// image to test with where none can be pulled. It has no /etc of the host's but
// what the packages brought, and no package database.
func HostRoot(w io.Writer, more ...string) error {
	files, err := packageFiles(more)
	if err != nil {
		return err
	}
	buffered := bufio.NewWriterSize(w, 1<<20)
	r := &hostRoot{tar: tar.NewWriter(buffered), done: make(map[string]bool)}
	if err := r.skeleton(); err != nil {
		return err
	}
	for _, file := range files {
		if err := r.add(file); err != nil {
			return fmt.Errorf("archive of %s: %w", file, err)
		}
	}
	libraries, err := librariesOf(r.programs)
	if err != nil {
		return err
	}
	for _, file := range libraries {
		if err := r.add(file); err != nil {
			return fmt.Errorf("archive of %s: %w", file, err)
		}
	}
	if err := r.tar.Close(); err != nil {
		return err
	}
	return buffered.Flush()
}

// packageFiles lists the files of the essential packages and of more.
func packageFiles(more []string) ([]string, error) {
	out, err := exec.Command("dpkg-query", "-W", "-f=${Essential} ${Package}\n").Output()
	if err != nil {
		return nil, fmt.Errorf("list packages: %w", err)
	}
	packages := slices.Clone(more)
	for line := range strings.Lines(string(out)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "yes "); ok {
			packages = append(packages, name)
		}
	}
	out, err = exec.Command("dpkg-query", append([]string{"-L"}, packages...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("list files of %q: %w", packages, err)
	}
	files := strings.Split(strings.TrimSpace(string(out)), "\n")
	return slices.DeleteFunc(files, func(file string) bool {
		return !strings.HasPrefix(file, "/") || isLeftOut.MatchString(file)
	}), nil
}

// isLeftOut matches what only people read, and the package database.
var isLeftOut = regexp.MustCompile(`^/(usr/share/(doc|man|info|locale|lintian|bug|zoneinfo)|var/lib/dpkg)/|^/(boot|dev|proc|sys|run)(/|$)`)

// librariesOf lists what the dynamic loader would load for the programs.
func librariesOf(programs []string) ([]string, error) {
	out, err := exec.Command("ldd", programs...).CombinedOutput()
	if len(out) == 0 && err != nil {
		return nil, fmt.Errorf("list libraries: %w", err)
	}
	var found []string
	for _, m := range regexp.MustCompile(`(?m)(/\S+) \(0x`).FindAllSubmatch(out, -1) {
		found = append(found, string(m[1]))
	}
	slices.Sort(found)
	return slices.Compact(found), nil
}

// A hostRoot is a root folder that is being written.
type hostRoot struct {
	tar      *tar.Writer
	done     map[string]bool
	programs []string // that need libraries
}

func (r *hostRoot) skeleton() error {
	for _, dir := range strings.Fields("dev etc home mnt opt proc run srv sys usr usr/bin usr/lib usr/lib64 usr/sbin usr/local var var/lib var/log") {
		if err := r.write(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}, nil); err != nil {
			return err
		}
	}
	for name, mode := range map[string]int64{"root/": 0o700, "tmp/": 0o1777, "var/tmp/": 0o1777} {
		if err := r.write(&tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode}, nil); err != nil {
			return err
		}
	}
	for _, name := range []string{"bin", "lib", "lib64", "sbin"} {
		if err := r.write(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: "usr/" + name, Mode: 0o777}, nil); err != nil {
			return err
		}
	}
	for name, path := range map[string]string{
		"etc/passwd":   "/usr/share/base-passwd/passwd.master",
		"etc/group":    "/usr/share/base-passwd/group.master",
		"etc/services": "/etc/services",
		"etc/shadow":   "", // an empty file
	} {
		text, err := os.ReadFile(path)
		if err != nil && path != "" {
			return err
		}
		mode := int64(0o644)
		if path == "" {
			mode = 0o600
		}
		text = bytes.ReplaceAll(text, []byte(":*:"), []byte(":x:"))
		if err := r.write(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(text))}, bytes.NewReader(text)); err != nil {
			return err
		}
	}
	return nil
}

// add adds a file and, if that is a link, what it leads to.
func (r *hostRoot) add(path string) error {
	// Where the host's /bin is a link to /usr/bin, so is the image's.
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return nil // a file that was diverted or deleted
	}
	path = filepath.Join(dir, filepath.Base(path))
	info, err := os.Lstat(path)
	if err != nil || r.done[path[1:]] || r.done[path[1:]+"/"] {
		return nil
	}
	switch info.Mode().Type() {
	case fs.ModeDir:
		h, err := tar.FileInfoHeader(info, "")
		if err != nil {
			return err
		}
		h.Name = path[1:] + "/"
		return r.write(h, nil)
	case fs.ModeSymlink:
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		if err := r.write(&tar.Header{Typeflag: tar.TypeSymlink, Name: path[1:], Linkname: target, Mode: 0o777}, nil); err != nil {
			return err
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(dir, target)
		}
		return r.add(target)
	case 0:
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		h, err := tar.FileInfoHeader(info, "")
		if err != nil {
			return err
		}
		h.Name = path[1:]
		if info.Mode()&0o111 != 0 || strings.Contains(path, ".so") {
			r.programs = append(r.programs, path)
		}
		return r.write(h, f)
	}
	return nil
}

func (r *hostRoot) write(h *tar.Header, content io.Reader) error {
	if r.done[h.Name] {
		return nil
	}
	r.done[h.Name] = true
	h.Uname, h.Gname, h.Format = "", "", tar.FormatPAX
	if err := r.tar.WriteHeader(h); err != nil {
		return err
	}
	if content == nil {
		return nil
	}
	_, err := io.Copy(r.tar, content)
	return err
}
