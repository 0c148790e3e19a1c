// Package files moves files in and out of a sandbox: the SFTP server and the
// remote side of the old scp protocol, both run by the guest as the sandbox's
// user, in the sandbox's own view of its file system. It logs in nobody, forbids
// nothing and prints nothing: what the user may touch is for the kernel to say.
//
// # Who answers what
//
// SFTP is version 3 of draft-ietf-secsh-filexfer-02 with the extensions of
// OpenSSH's PROTOCOL, and where the two differ it does as OpenSSH's sftp-server,
// because clients are tested against that.
//
// github.com/pkg/sftp has a server, whose RequestServer was used here for the data.
// It answers much of the rest wrongly: it cleans paths, so that `link/..` loses its
// meaning; FSTAT and FSETSTAT by handle go to the path that was opened; access times
// and modes are lost; a malformed packet ends the session; and most extensions are
// missing. What was left to it, READ and WRITE, it hands to goroutines of its own, which
// in gVisor doubles the time that a small file takes. So a [responder] answers all,
// request by request, as OpenSSH's does, and the order that the draft's section 6.1
// asks for comes by itself. The library's codes are used, and in tests its client.
package files

import "io"

// Options say as whom and where files are served.
type Options struct {
	// Home is an absolute path. It is what "~" means.
	Home string

	// Dir is an absolute path. It is where relative paths begin and what the empty
	// path means; if it is empty, that is Home.
	Dir string

	// ReadOnly refuses whatever would change something.
	ReadOnly bool

	// LookupHome returns the home of another user, for "~user". It may be nil:
	// then there are no other users.
	LookupHome func(user string) (home string, ok bool)

	// UserName and GroupName return the name that goes with a numeric id, or ""
	// if there is none. Each may be nil: then listings show numbers. A listing
	// asks whenever the owner is not that of the file before.
	UserName, GroupName func(id string) string
}

// ServeSFTP serves SFTP on rw until the client ends or breaks the protocol. The
// error is nil if the client's stream ended between two packets. By then each
// request has been answered and each file closed. Closing rw is left to the
// caller, who may have an exit status to send first; closing it earlier, from
// elsewhere, ends the session.
func ServeSFTP(rw io.ReadWriter, o Options) error {
	if o.Dir == "" {
		o.Dir = o.Home
	}
	r := newResponder(rw, o)
	defer r.close()
	return r.serve()
}
