//go:build linux

package gvisor_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sandgate/sandbox"
	"sandgate/sandbox/drivertest"
	"sandgate/sandbox/gvisor"
	"sandgate/sandbox/image/imagetest"
)

// modes are the ways of this host to make root folders, as far as tests know them.
var modes = map[string]func(gvisor.Config, *slog.Logger) (*gvisor.Driver, error){
	"best": gvisor.New, "saved": gvisor.OpenSaved,
}

// push pushes an image to a registry of the test's own and returns its reference.
func push(t *testing.T, image imagetest.Image) string {
	t.Helper()
	registry := imagetest.Serve("", "")
	t.Cleanup(registry.Close)
	img, err := image.Build()
	if err != nil {
		t.Fatal(err)
	}
	ref, err := registry.Push("people/image:1", img)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// createOf makes a sandbox, as the Manager does, and removes it after the test.
func createOf(t *testing.T, d *gvisor.Driver, spec sandbox.Spec) sandbox.ID {
	t.Helper()
	spec.ID = sandbox.NewID()
	err := d.Create(t.Context(), spec)
	if errors.Is(err, sandbox.ErrNoImage) {
		if err = d.Pull(t.Context(), spec.Image, func(sandbox.Progress) {}); err == nil {
			err = d.Create(t.Context(), spec)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Remove(context.Background(), spec.ID); err != nil {
			t.Error(err)
		}
	})
	return spec.ID
}

func wake(t *testing.T, d *gvisor.Driver, id sandbox.ID) *drivertest.Shell {
	t.Helper()
	if err := d.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	return drivertest.Connect(t, d, id)
}

// stored returns the root folders of the images in a state folder.
func stored(t *testing.T, state string) []string {
	t.Helper()
	roots, err := filepath.Glob(filepath.Join(state, "images*", "*", "rootfs"))
	if err != nil {
		t.Fatal(err)
	}
	return roots
}

// digest describes all that is in a folder.
func digest(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		text, _ := os.ReadFile(path)
		fmt.Fprintf(&b, "%s %v %v %x\n", path, info.Mode(), info.ModTime(), sha256.Sum256(text))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// The files of an image have their owners and modes, whoever runs the gateway; root
// may change them all, each sandbox its own; and what it changes stays.
func TestImage(t *testing.T) {
	id, err := exec.LookPath("id")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(id)
	if err != nil {
		t.Fatal(err)
	}
	ref := push(t, imagetest.Image{
		Programs: []string{"sh", "id", "stat", "cat", "ls", "rm", "touch", "chown", "mv"},
		Layers: [][]imagetest.File{{
			{Name: "etc/", Mode: 0o755},
			{Name: "etc/passwd", Text: "root:x:0:0::/root:/bin/sh\napp:x:1000:1001::/home/app:/bin/sh\n"},
			{Name: "etc/hosts", Text: "whoever built this"}, {Name: "etc/resolv.conf", Target: "/run/elsewhere"},
			{Name: "home/"}, {Name: "home/app/", UID: 1000, GID: 1001, Mode: 0o700},
			{Name: "home/app/mine", Text: "1", UID: 1000, GID: 1001, Mode: 0o600},
			{Name: "home/app/link", Target: "mine", UID: 1000, GID: 1001},
			{Name: "sealed/", Mode: 0o555}, {Name: "sealed/f", Text: "2", Mode: 0o444}, {Name: "sealed/none", Text: "3", Mode: 0o1},
			{Name: "bin/suid", Text: string(text), Mode: 0o4755}, {Name: "gone", Text: "x"},
			{Name: "tmp/", Mode: 0o1777}, {Name: "root/", Mode: 0o700},
		}, {
			{Name: ".wh.gone"}, {Name: "home/app/later", UID: 7},
		}},
		Config: v1.Config{Env: []string{"A=image", "B=image"}, WorkingDir: "/sealed"},
	})
	for name, open := range modes {
		t.Run(name, func(t *testing.T) {
			cfg := gvisor.Config{State: t.TempDir(), Run: shortDir(t), Executable: program}
			d, err := open(cfg, slog.New(slog.NewTextHandler(t.Output(), nil)))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { d.Close() })
			one := createOf(t, d, sandbox.Spec{Hostname: "one", Image: ref, Env: []string{"B=own"}})
			two := createOf(t, d, sandbox.Spec{Hostname: "two", Image: ref, User: "app", Limits: sandbox.Limits{Disk: 64 << 20}})
			roots := stored(t, cfg.State)
			if len(roots) != 1 {
				t.Fatalf("%d images for two sandboxes", len(roots))
			}
			before := digest(t, roots[0])

			sh := wake(t, d, one)
			sh.Want("0:0 755 /\n0:0 755 /etc\n1000:1001 700 /home/app\n1000:1001 600 /home/app/mine\n1000:1001 777 /home/app/link\n"+
				"7:0 644 /home/app/later\n0:0 555 /sealed\n0:0 444 /sealed/f\n0:0 1 /sealed/none\n0:0 4755 /bin/suid\n0:0 700 /root",
				"stat", "-c", "%u:%g %a %n", "/", "/etc", "/home/app", "/home/app/mine", "/home/app/link", "/home/app/later",
				"/sealed", "/sealed/f", "/sealed/none", "/bin/suid", "/root")
			sh.Want("1 2 3", "sh", "-c", "read a </home/app/mine; read b </sealed/f; read c <none; echo $a $b $c")
			sh.Want("image own /sealed", "sh", "-c", "echo $A $B $PWD")
			sh.Want("one", "cat", "/etc/hostname")
			sh.Want("127.0.0.1 localhost one\n::1 localhost ip6-localhost ip6-loopback", "cat", "/etc/hosts")
			sh.Want("", "cat", "/etc/resolv.conf")
			sh.Want("no", "sh", "-c", "test -e /gone || test -e /usr || echo no")
			sh.Run("sh", "-c", "echo new >/sealed/f; echo new >/sealed/g; rm /home/app/mine; chown 5:6 /home/app/later; mv /etc/hosts /etc/was; echo mine >/etc/hostname")

			other := wake(t, d, two)
			other.Want("uid=1000(app) gid=1001 groups=1001", "id")
			other.Want("uid=1000(app) gid=1001 euid=0(root) groups=1001", "suid")
			other.Want("1", "cat", "/home/app/mine")
			other.Want("two", "cat", "/etc/hostname")
			if code, _, err := other.Try("touch", "/sealed/h"); code != 1 || err != nil {
				t.Errorf("a user writes to what is root's: %d, %v", code, err)
			}

			if err := d.Stop(t.Context(), one); err != nil {
				t.Fatal(err)
			}
			sh = wake(t, d, one)
			sh.Want("new\nnew", "cat", "/sealed/f", "/sealed/g")
			sh.Want("5:6 644\n1000:1001 700", "stat", "-c", "%u:%g %a", "/home/app/later", "/home/app")
			sh.Want("later\nlink", "ls", "/home/app")
			if after := digest(t, roots[0]); after != before {
				t.Errorf("sandboxes change their image: before\n%s\nafter\n%s", before, after)
			}
		})
	}
}

// An image goes with the last sandbox that is made of it, and not with the gateway.
func TestImageCollected(t *testing.T) {
	ref := push(t, imagetest.Image{Programs: []string{"sh", "cat"}})
	cfg := gvisor.Config{State: t.TempDir(), Run: shortDir(t), Executable: program}
	open := func() *gvisor.Driver {
		d, err := gvisor.New(cfg, slog.New(slog.NewTextHandler(t.Output(), nil)))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	d := open()
	defer func() { d.Close() }()
	specs := []sandbox.Spec{{ID: sandbox.NewID(), Hostname: "one", Image: ref}, {ID: sandbox.NewID(), Hostname: "two", Image: ref}}
	if err := d.Create(t.Context(), specs[0]); !errors.Is(err, sandbox.ErrNoImage) {
		t.Fatalf("before it was pulled: %v", err)
	}
	if list, err := d.List(t.Context()); len(list) > 0 || err != nil {
		t.Fatalf("left: %v, %v", list, err)
	}
	if err := d.Pull(t.Context(), ref, func(sandbox.Progress) {}); err != nil {
		t.Fatal(err)
	}
	for _, spec := range specs {
		if err := d.Create(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		defer d.Remove(context.Background(), spec.ID)
	}
	sh := wake(t, d, specs[0].ID)
	sh.Run("cat", "/etc/hostname")
	sh.Close() // as the gateway's end does
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = open()
	drivertest.Connect(t, d, specs[0].ID).Want("one", "cat", "/etc/hostname")
	wake(t, d, specs[1].ID).Want("two", "cat", "/etc/hostname")
	for i, left := range []int{1, 0} {
		if err := d.Remove(t.Context(), specs[i].ID); err != nil {
			t.Fatal(err)
		}
		if roots := stored(t, cfg.State); len(roots) != left {
			t.Errorf("%d images for %d sandboxes", len(roots), left)
		}
	}
	if err := d.Create(t.Context(), specs[0]); !errors.Is(err, sandbox.ErrNoImage) {
		t.Errorf("after it is gone: %v", err)
	}
}
