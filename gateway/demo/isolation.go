package demo

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// isolation tries to get at the host from inside the sandbox.
func (s *show) isolation() error {
	secrets := []string{s.path("secret")}
	if err := os.WriteFile(secrets[0], []byte("a secret of the host: "+rand.Text()+"\n"), 0o644); err != nil {
		return err
	}
	if home, err := os.UserHomeDir(); err == nil {
		marker := filepath.Join(home, "."+filepath.Base(s.dir))
		if err := os.Link(secrets[0], marker); err == nil {
			secrets = append(secrets, marker)
		} else if data, err := os.ReadFile(secrets[0]); err == nil && os.WriteFile(marker, data, 0o644) == nil {
			secrets = append(secrets, marker)
		}
		defer os.Remove(marker)
	}
	for _, path := range secrets {
		if err := s.outOfReach(path); err != nil {
			return err
		}
	}
	if err := s.ownPasswords(); err != nil {
		return err
	}
	if err := s.ownPrograms(); err != nil {
		return err
	}
	return s.noNetwork()
}

// outOfReach shows a file of the host that the sandbox does not see.
func (s *show) outOfReach(path string) error {
	secret, err := s.do("cat " + quote(path))
	if err != nil {
		return err
	}
	r, err := s.try("ssh web " + quote("cat "+quote(path)))
	if err == nil && (r.code == 0 || strings.Contains(r.text, secret.text)) {
		err = errors.New("the sandbox reads the host's file " + path)
	}
	return err
}

// ownPasswords shows that a sandbox has an /etc/shadow of its own.
func (s *show) ownPasswords() error {
	r, err := s.do(`ssh web 'ls -A /home /mnt /srv; head -n 2 /etc/shadow'`)
	if err != nil {
		return err
	}
	if err := onlyOwn(r.text, "/home", "/mnt", "/srv"); err != nil {
		return err
	}
	all, err := s.run("ssh web cat /etc/shadow")
	if err != nil {
		return err
	}
	if all.code != 0 || hasPassword(all.text) {
		return errors.New("the sandbox's /etc/shadow has a password in it")
	}
	s.screen.note("These are the sandbox's own: nothing in those folders, and no password in /etc/shadow.")
	return nil
}

// onlyOwn says whether a listing of folders shows what the host has in them.
func onlyOwn(listing string, folders ...string) error {
	shown := make(map[string]bool)
	for line := range strings.Lines(listing) {
		shown[strings.TrimSuffix(line, "\n")] = true
	}
	for _, folder := range folders {
		entries, _ := os.ReadDir(folder)
		for _, e := range entries {
			if shown[e.Name()] {
				return fmt.Errorf("the sandbox sees the host's %s", filepath.Join(folder, e.Name()))
			}
		}
	}
	return nil
}

// hasPassword reports whether there is a password in the text of an /etc/shadow.
func hasPassword(shadow string) bool {
	for line := range strings.Lines(shadow) {
		if fields := strings.Split(line, ":"); len(fields) > 1 && strings.Trim(fields[1], "*!") != "" {
			return true
		}
	}
	return false
}

// ownPrograms shows that the host's programs can be changed in a sandbox without
// any effect on the host.
func (s *show) ownPrograms() error {
	path := "/usr/bin/" + filepath.Base(s.dir)
	if _, err := s.do(fmt.Sprintf("ssh web 'echo a program >%s && ls %s'", path, path)); err != nil {
		return err
	}
	r, err := s.try("ls " + path)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(path); r.code == 0 || err == nil {
		return errors.New("the sandbox wrote to the host's " + path)
	}
	s.screen.note("The host's /usr is there to be used, and changed: but what changes is the sandbox's copy.")
	return nil
}

// noNetwork shows that not even the gateway's port can be reached.
func (s *show) noNetwork() error {
	r, err := s.try(fmt.Sprintf("ssh -W 127.0.0.1:%d web", s.gate.port))
	if err != nil {
		return err
	}
	if r.code == 0 || strings.Contains(r.text, "SSH-2.0") {
		return errors.New("the sandbox reaches the host's loopback")
	}
	s.screen.note("That was the gateway's own port, tried from inside: the sandbox's loopback is another one.")
	return nil
}
