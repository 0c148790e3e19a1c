package files

import (
	"strings"

	"github.com/pkg/sftp"
)

// expandPath is expand-path@openssh.com: REALPATH that knows "~".
func (r *responder) expandPath(id uint32, p *packet) error {
	name := p.text()
	if p.err != nil {
		return p.err
	}
	if rest, ok := strings.CutPrefix(name, "~"); ok {
		user, rest, _ := strings.Cut(rest, "/")
		home, err := r.homeOf(user)
		if err != nil {
			return err
		}
		name = home + "/" + rest
	}
	return r.sendRealpath(id, r.absolute(name))
}

// homeDirectory is home-directory: no user means the client's own.
func (r *responder) homeDirectory(id uint32, p *packet) error {
	user := p.text()
	if p.err != nil {
		return p.err
	}
	home, err := r.homeOf(user)
	if err != nil {
		return err
	}
	r.reply.name(id, home)
	return nil
}

func (r *responder) homeOf(user string) (string, error) {
	if user == "" {
		return r.Home, nil
	}
	if r.LookupHome != nil {
		if home, ok := r.LookupHome(user); ok {
			return home, nil
		}
	}
	return "", failure(sftp.ErrSSHFxNoSuchFile, "No such user")
}
