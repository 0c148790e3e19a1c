package gateway

import (
	"fmt"
	"strings"
)

// lobbyName is where the management verbs are: gate@host.
const lobbyName = "gate"

// defaultName is the sandbox of those who log in by their own user name.
const defaultName = "default"

// reserved are names that no sandbox and no user can have.
var reserved = map[string]bool{"gate": true, "root": true, "admin": true, "all": true, "help": true}

// maxName is the length of a name: that of a DNS label.
const maxName = 63

// ValidName says whether s has the form of a name, of sandboxes and users:
// [a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?. Reserved names have it too.
func ValidName(s string) bool {
	if len(s) == 0 || len(s) > maxName || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// A target is what the user part of a login, the host of a jump or the argument of
// a verb asks for. Which sandbox it means is decided in this order:
//
//	login, to                 means                                     if
//	gate                      the lobby                                 always
//	any, to a bound address   the sandbox that the address is bound to  the caller has bound it; not in a jump
//	web.alice                 alice's sandbox web                       it is the caller's or shared with them
//	web                       the caller's sandbox web                  there is one
//	web                       what the caller's alias web stands for    there is one
//	web                       the sandbox web that is shared with them  it is one; of several, none
//	alice, by alice herself   what default means to her                 as above
//	web, alice                a new sandbox, web or default             the caller may make it
//
// A part +SESSION says which session in the sandbox. Aliases, sandboxes and
// addresses cannot have each other's names when they are made.
type target struct {
	lobby   bool
	bound   string // id of the sandbox that the address is bound to; name is only what was asked for
	name    string // of the sandbox
	owner   string // empty: the caller
	session string // empty: none
}

func (t target) String() string {
	s := t.name
	if t.lobby {
		s = lobbyName
	}
	if t.owner != "" {
		s += "." + t.owner
	}
	if t.session != "" {
		s += "+" + t.session
	}
	return s
}

// parseTarget reads NAME[.OWNER][+SESSION], folded to lower case. What it returns
// consists of valid names that are not reserved, or is the lobby.
func parseTarget(user string) (target, error) {
	var t target
	rest, session, named := strings.Cut(strings.ToLower(user), "+")
	name, owner, owned := strings.Cut(rest, ".")
	if name == lobbyName && !named && !owned {
		return target{lobby: true}, nil
	}
	t = target{name: name, owner: owner, session: session}
	if !ValidName(name) || owned && !ValidName(owner) || named && !ValidName(session) {
		return target{}, &problem{
			kind:     usage,
			sentence: fmt.Sprintf("%.80q is not a sandbox name", user),
			hint:     "names are made of a-z, 0-9 and -, as in: ssh web@HOST",
		}
	}
	if reserved[name] {
		return target{}, &problem{
			kind:     usage,
			sentence: fmt.Sprintf("%q is a reserved name, not a sandbox", name),
			hint:     "choose a sandbox by its name, as in: ssh web@HOST; the lobby is: ssh gate@HOST help",
		}
	}
	return t, nil
}
