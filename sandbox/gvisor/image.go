//go:build linux

package gvisor

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sandgate/sandbox"
	"sandgate/sandbox/guest"
	"sandgate/sandbox/nat"
)

// A node is a file, a folder or a link of an image. Its owner is root.
type node struct {
	path string // absolute
	mode fs.FileMode
	text string // of a file its content, of a link its target
}

// hostEtc are the files and folders of the host's /etc that a sandbox gets a
// copy of: what programs under /usr need to work, and nothing that could hold a
// secret or tell who uses the host.
var hostEtc = []string{
	"ImageMagick-*", "OpenCL", "alternatives", "bash_completion", "bash_completion.d",
	"ca-certificates", "ca-certificates.conf", "crypto-policies", "debian_version",
	"emacs", "ethertypes", "fedora-release", "fonts", "gai.conf", "ghostscript",
	"glvnd", "groff", "host.conf", "inputrc", "java", "java-*", "ld.so.cache",
	"ld.so.conf", "ld.so.conf.d", "locale.alias", "locale.conf", "localtime",
	"login.defs", "lsb-release", "magic", "magic.mime", "manpath.config",
	"maven/logging", "maven/m2.conf", "mime.types", "netconfig", "networks",
	"os-release", "pam.conf", "pam.d", "perl", "pki/ca-trust/extracted",
	"pki/java", "pki/tls/cert.pem", "pki/tls/certs", "pki/tls/openssl.cnf",
	"protocols", "python3", "python3.*", "redhat-release", "rpc", "security/limits.conf",
	"security/pam_env.conf", "services", "sgml", "skel", "ssl/cert.pem", "ssl/certs",
	"ssl/ct_log_list.cnf", "ssl/openssl.cnf", "system-release", "terminfo",
	"texmf", "timezone", "vim", "vulkan", "xml",
}

// Bounds on what is copied from the host's /etc.
const (
	maxCopyFile  = 4 << 20
	maxCopyTotal = 32 << 20
)

// folders are the folders that a sandbox begins with, all parents first.
var folders = []node{
	{"/", fs.ModeDir | 0o755, ""},
	{"/.sandgate", fs.ModeDir | 0o755, ""}, {"/dev", fs.ModeDir | 0o755, ""}, {"/etc", fs.ModeDir | 0o755, ""},
	{"/etc/profile.d", fs.ModeDir | 0o755, ""}, {"/etc/sudoers.d", fs.ModeDir | 0o755, ""}, {"/home", fs.ModeDir | 0o755, ""},
	{"/media", fs.ModeDir | 0o755, ""}, {"/mnt", fs.ModeDir | 0o755, ""}, {"/opt", fs.ModeDir | 0o755, ""}, {"/proc", fs.ModeDir | 0o755, ""},
	{"/root", fs.ModeDir | 0o700, ""}, {"/run", fs.ModeDir | 0o755, ""}, {"/run/lock", fs.ModeDir | fs.ModeSticky | 0o777, ""},
	{guest.SocketDir, fs.ModeDir | 0o755, ""}, {"/srv", fs.ModeDir | 0o755, ""}, {"/sys", fs.ModeDir | 0o755, ""},
	{"/tmp", fs.ModeDir | fs.ModeSticky | 0o777, ""}, {"/var", fs.ModeDir | 0o755, ""}, {"/var/cache", fs.ModeDir | 0o755, ""},
	{"/var/lib", fs.ModeDir | 0o755, ""}, {"/var/lib/dpkg", fs.ModeDir | 0o755, ""}, {"/var/lib/dpkg/info", fs.ModeDir | 0o755, ""},
	{"/var/lib/dpkg/updates", fs.ModeDir | 0o755, ""}, {"/var/local", fs.ModeDir | 0o755, ""}, {"/var/log", fs.ModeDir | 0o755, ""},
	{"/var/mail", fs.ModeDir | 0o755, ""}, {"/var/opt", fs.ModeDir | 0o755, ""}, {"/var/spool", fs.ModeDir | 0o755, ""},
	{"/var/tmp", fs.ModeDir | fs.ModeSticky | 0o777, ""}, {workspaceDir, fs.ModeDir | 0o755, ""},
}

// hostImage returns what the root folder of a sandbox with the image "host" has
// beside the host's programs.
func hostImage() ([]node, error) {
	image := slices.Clone(folders)
	for _, dir := range programFolders {
		if info, err := os.Lstat(dir); err != nil {
			continue
		} else if info.IsDir() {
			image = append(image, node{dir, fs.ModeDir | 0o755, ""})
		} else if target, err := os.Readlink(dir); err == nil {
			image = append(image, node{dir, fs.ModeSymlink, target})
		}
	}
	c := copier{top: "/etc", left: maxCopyTotal}
	for _, pattern := range hostEtc {
		if err := c.add(filepath.Join(c.top, pattern)); err != nil {
			return nil, fmt.Errorf("copy from the host's /etc: %w", err)
		}
	}
	image = append(image, c.nodes...)
	return append(image, ownFiles()...), nil
}

// A copier collects files below a folder of the host that anybody may read. It
// takes links as links, so that none leads it elsewhere.
type copier struct {
	top   string
	nodes []node
	left  int64 // bytes that may still be copied
}

// add collects all that matches pattern, with the folders on the way to it.
func (c *copier) add(pattern string) error {
	matches, err := filepath.Glob(pattern)
	if err != nil {
		return err
	}
	for _, path := range matches {
		if !c.addParents(filepath.Dir(path)) {
			continue
		}
		if err := filepath.WalkDir(path, c.visit); err != nil {
			return err
		}
	}
	return nil
}

// addParents collects the folder dir and those it is in, below the top. It
// returns false if not everybody may go there, or one of them is a link.
func (c *copier) addParents(dir string) bool {
	if dir == c.top {
		return true
	}
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() || info.Mode()&0o001 == 0 || !c.addParents(filepath.Dir(dir)) {
		return false
	}
	c.nodes = append(c.nodes, node{dir, fs.ModeDir | 0o755, ""})
	return true
}

// visit collects one file. What vanishes under its hands, or is not for
// everybody, it passes by.
func (c *copier) visit(path string, _ fs.DirEntry, err error) error {
	if err != nil {
		return nil
	}
	info, err := os.Lstat(path)
	if err != nil {
		return nil
	}
	switch mode := info.Mode(); {
	case mode.IsDir():
		if mode&0o005 != 0o005 {
			return filepath.SkipDir
		}
		c.nodes = append(c.nodes, node{path, fs.ModeDir | 0o755, ""})
	case mode.Type() == fs.ModeSymlink:
		if target, err := os.Readlink(path); err == nil {
			c.nodes = append(c.nodes, node{path, fs.ModeSymlink, target})
		}
	case mode.IsRegular() && mode&0o004 != 0 && info.Size() <= min(maxCopyFile, c.left):
		c.left -= info.Size()
		if text, err := readNoFollow(path, info.Size()); err == nil {
			c.nodes = append(c.nodes, node{path, mode.Perm()&0o755 | 0o600, text})
		}
	}
	return nil
}

// readNoFollow returns at most size bytes of a file that is no link.
func readNoFollow(path string, size int64) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, size))
	return string(text), err
}

// keepImage writes the image into a folder of its own below dir, named after its
// content, and returns that folder's path. It is shared by all sandboxes and
// never written to. It follows the host's /etc at each start of the gateway, as
// the host's programs need it.
func keepImage(dir string, image []node) (string, error) {
	hash := sha256.New()
	for _, n := range image {
		fmt.Fprintf(hash, "%q %o %q\n", n.path, n.mode, n.text)
	}
	home := filepath.Join(dir, hex.EncodeToString(hash.Sum(nil)))
	if _, err := os.Stat(home); err == nil {
		return home, nil
	}
	fresh := filepath.Join(dir, "new")
	if err := removeAll(fresh); err != nil {
		return "", err
	}
	if err := os.MkdirAll(fresh, 0o755); err != nil {
		return "", err
	}
	for _, n := range image {
		if err := n.write(fresh); err != nil {
			return "", err
		}
	}
	// As a rename must not come to the disk before what is renamed.
	if err := syncFilesystem(fresh); err != nil {
		return "", err
	}
	return home, os.Rename(fresh, home)
}

// write makes the node below root. One that is there already is replaced, if it
// is a file, or given the right mode, if it is a folder.
func (n node) write(root string) error {
	path := filepath.Join(root, n.path)
	if n.mode.Type() == fs.ModeSymlink {
		return os.Symlink(n.text, path)
	}
	var err error
	if n.mode.IsDir() {
		err = os.MkdirAll(path, 0o755)
	} else {
		err = os.WriteFile(path, []byte(n.text), 0o600)
	}
	if err != nil {
		return err
	}
	// Not subject to our umask.
	return os.Chmod(path, n.mode)
}

// nameFiles returns the files of a sandbox that hold its name, and who knows those
// of others.
func nameFiles(hostname string, network sandbox.Network) []node {
	resolver := ""
	if network == sandbox.NetworkFull {
		resolver = "nameserver " + nat.Gateway.String() + "\n"
	}
	return []node{
		{"/etc/hostname", 0o644, hostname + "\n"},
		{"/etc/hosts", 0o644, "127.0.0.1 localhost " + hostname + "\n::1 localhost ip6-localhost ip6-loopback\n"},
		{"/etc/resolv.conf", 0o644, resolver},
	}
}

// ownFiles returns the files that are ours and not the host's.
func ownFiles() []node {
	shell := "/bin/sh"
	if _, err := os.Stat("/bin/bash"); err == nil {
		shell = "/bin/bash"
	}
	var shadow strings.Builder
	for line := range strings.Lines(passwd) {
		name, _, _ := strings.Cut(line, ":")
		fmt.Fprintf(&shadow, "%s:*:20000:0:99999:7:::\n", name)
	}
	return append(nameFiles("localhost", sandbox.NetworkNone), []node{
		{"/etc/passwd", 0o644, fmt.Sprintf(passwd, shell)},
		{"/etc/group", 0o644, group},
		{"/etc/shadow", 0o600, shadow.String()},
		{"/etc/environment", 0o644, ""},
		{"/etc/fstab", 0o644, ""},
		{"/etc/nsswitch.conf", 0o644, nsswitch},
		{"/etc/shells", 0o644, "/bin/sh\n" + shell + "\n"},
		{"/etc/profile", 0o644, profile},
		{"/etc/bash.bashrc", 0o644, bashrc},
		{"/etc/sudoers", 0o440, sudoers},
		{"/etc/mtab", fs.ModeSymlink, "/proc/self/mounts"},
		{"/var/run", fs.ModeSymlink, "/run"},
		{"/var/lib/dpkg/status", 0o644, ""},
	}...)
}

const sudoers = `root ALL=(ALL:ALL) ALL
%sudo ALL=(ALL:ALL) ALL
@includedir /etc/sudoers.d
`

// The users and groups that a sandbox begins with have the numbers that Debian
// gives them for ever.
const passwd = `root:x:0:0:root:/root:%s
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
bin:x:2:2:bin:/bin:/usr/sbin/nologin
sys:x:3:3:sys:/dev:/usr/sbin/nologin
sync:x:4:65534:sync:/bin:/bin/sync
games:x:5:60:games:/usr/games:/usr/sbin/nologin
man:x:6:12:man:/var/cache/man:/usr/sbin/nologin
lp:x:7:7:lp:/var/spool/lpd:/usr/sbin/nologin
mail:x:8:8:mail:/var/mail:/usr/sbin/nologin
news:x:9:9:news:/var/spool/news:/usr/sbin/nologin
proxy:x:13:13:proxy:/bin:/usr/sbin/nologin
www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin
backup:x:34:34:backup:/var/backups:/usr/sbin/nologin
list:x:38:38:list:/var/list:/usr/sbin/nologin
_apt:x:42:65534::/nonexistent:/usr/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
`

const group = `root:x:0:
daemon:x:1:
bin:x:2:
sys:x:3:
adm:x:4:
tty:x:5:
disk:x:6:
lp:x:7:
mail:x:8:
news:x:9:
man:x:12:
proxy:x:13:
kmem:x:15:
dialout:x:20:
cdrom:x:24:
floppy:x:25:
tape:x:26:
sudo:x:27:
audio:x:29:
www-data:x:33:
backup:x:34:
operator:x:37:
list:x:38:
src:x:40:
shadow:x:42:
utmp:x:43:
video:x:44:
plugdev:x:46:
staff:x:50:
games:x:60:
users:x:100:
nogroup:x:65534:
`

const nsswitch = `passwd: files
group: files
shadow: files
hosts: files dns
networks: files
protocols: files
services: files
`

const profile = `export PATH=` + Path + `
for script in /etc/profile.d/*.sh; do
	[ -r "$script" ] && . "$script"
done
unset script
if [ -n "$BASH_VERSION" ] && [ -r /etc/bash.bashrc ]; then
	. /etc/bash.bashrc
fi
`

const bashrc = `case $- in
*i*) PS1='\u@\h:\w\$ ' ;;
esac
`
