package gateway

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"sandgate/store"
)

// A deed is something that a caller may want to do: a verb of the lobby by its
// name, or one of the doors of SSH.
type deed string

// The doors of SSH into a sandbox.
const (
	doorShell   deed = "ssh shell"
	doorExec    deed = "ssh exec"
	doorFiles   deed = "ssh sftp"
	doorWrite   deed = "ssh sftp, writing"
	doorForward deed = "ssh forward"
	doorAgent   deed = "ssh forward of an ssh-agent"
	doorPTY     deed = "ssh terminal"
	doorTools   deed = "ssh tools"
)

// copyWrites is what the verb cp does at its other end.
const copyWrites deed = "cp, writing"

// A need is what a deed takes.
type need int

const (
	needOwner   need = iota // of the sandbox. It is the zero value: what nobody has thought about is the owner's
	needNothing             // but to be logged in
	needSelf                // it is about the caller, and changes nothing
	needSee                 // the sandbox is the caller's or shared with them
	needRead                // as needSee, and reads in it
	needUse                 // as needSee, and not for reading only: runs or changes something in it
	needFull                // it changes what belongs to the caller, or a sandbox of theirs: not with a limited key
	needEnrol               // as needFull, and lasts: not with a key or certificate that ends
	needAdmin               // the caller is an admin
)

// needs says of each deed what it takes.
var needs = map[deed]need{
	doorShell: needUse, doorExec: needUse, doorWrite: needUse, doorForward: needUse, doorAgent: needUse, doorPTY: needUse, doorTools: needUse,
	doorFiles: needRead,

	"help": needNothing, "version": needNothing, "completion": needNothing, "complete": needNothing,
	"ls": needSelf, "config": needSelf, "alias ls": needSelf, "who": needSelf, "doctor": needSelf,
	"info": needSee, "setup-log": needRead, "cp": needRead, copyWrites: needUse,
	"start": needUse, "stop": needUse, "pause": needUse,
	"fork": needOwner, "snapshot take": needOwner, "snapshot rm": needFull, "snapshots": needSelf,
	"new": needOwner, "rm": needOwner, "set": needOwner,
	"rename": needFull, "share": needFull, "unshare": needFull, "alias add": needFull, "alias rm": needFull,
	"run": needUse, "exec": needUse, "attach": needUse, "kill": needUse, "job rm": needUse,
	"service add": needUse, "service restart": needUse, "service rm": needUse, "service ls": needSee, "service logs": needRead,
	"jobs": needSee, "sessions": needSee, "logs": needRead, "wait": needRead,
	"secret ls": needSelf, "secret set": needFull, "secret rm": needFull, "secret rotate": needFull,
	"secret give": needFull, "secret take": needFull, "secret rotate-key": needAdmin,
	"audit show": needSelf, "audit verify": needAdmin,
	"rec ls": needSelf, "rec play": needFull, "rec cat": needFull, "rec rm": needFull,
	"usage": needSelf, "quota ls": needSelf, "quota set": needAdmin, "quota rm": needAdmin,
	"agent": needUse, "runs rm": needUse, "cancel": needUse, "approve": needUse, "answer": needUse,
	"runs ls": needSelf, "runs show": needSee, "runs attach": needSee, "export": needSee,
	"key ls": needSelf, "key add": needEnrol, "key set": needEnrol, "key rm": needFull, "key revoke": needAdmin,
	"invite":   needEnrol,
	"user add": needAdmin, "user ls": needAdmin, "user rm": needAdmin, "user set-role": needAdmin,
}

// A relation is that of a caller to a sandbox.
type relation int

const (
	stranger relation = iota
	readOnly          // it is shared with them for reading
	granted           // it is shared with them
	owner
)

// A Scope is what a key is limited to. The zero value is no limit.
type Scope struct {
	Sandboxes []string `json:"sandboxes,omitempty"` // as the key's owner calls them
	ReadOnly  bool     `json:"read_only,omitempty"`

	// Either one limits the key to what both name.
	Verbs    []string `json:"verbs,omitempty"`    // of the lobby
	Commands []string `json:"commands,omitempty"` // whole ones, in sandboxes; sftp is the files
}

// covers says whether the limits leave a sandbox, as the key's owner calls it.
func (s Scope) covers(sandbox string) bool {
	return len(s.Sandboxes) == 0 || slices.Contains(s.Sandboxes, sandbox)
}

func (s Scope) limited() bool {
	return s.ReadOnly || len(s.Sandboxes)+len(s.Verbs)+len(s.Commands) > 0
}

// narrows says whether the limits of s allow less, of whatever there is, than those of
// before.
func (s Scope) narrows(before Scope) bool {
	fewer := func(now, then []string) bool {
		return slices.ContainsFunc(then, func(what string) bool { return !slices.Contains(now, what) })
	}
	listed, wasListed := len(s.Verbs)+len(s.Commands) > 0, len(before.Verbs)+len(before.Commands) > 0
	return s.ReadOnly && !before.ReadOnly ||
		len(s.Sandboxes) > 0 && (len(before.Sandboxes) == 0 || fewer(s.Sandboxes, before.Sandboxes)) ||
		listed && (!wasListed || fewer(s.Verbs, before.Verbs) || fewer(s.Commands, before.Commands))
}

// Who is a caller as they are at this moment.
type who struct {
	admin   bool
	scope   Scope
	ends    bool      // what they logged in with is valid for a time only
	until   time.Time // when it ends, if that is known
	invalid string    // it is not valid any more, and why; empty: it is

	// What a certificate takes away.
	forced     string // the only command there is
	noTerminal bool
	noForward  bool
	noAgent    bool
}

// A request is a deed and what it is done to.
type request struct {
	deed     deed
	command  string   // of doorExec
	sandbox  string   // as the caller calls it; empty: it is about none
	relation relation // to that sandbox
}

// errHidden says that the sandbox is, to this caller, not there.
var errHidden = &problem{kind: notFound, sentence: "no such sandbox"}

// permit says whether who may do what r asks for: nil, errHidden, or a *problem
// that says why not. All doors and verbs ask it, and nothing else decides.
func permit(w who, r request) error {
	if w.invalid != "" {
		return &problem{kind: denied, sentence: w.invalid}
	}
	n, known := needs[r.deed]
	switch {
	case n == needNothing:
		return nil
	case !known && w.scope.limited():
		return limitedKey(r.deed, "use one without limits")
	}
	if r.sandbox != "" && (r.relation == stranger || !w.scope.covers(r.sandbox)) {
		return errHidden
	}
	if err := within(w, r); err != nil {
		return err
	}
	switch {
	case n == needAdmin && !w.admin:
		return &problem{kind: denied, sentence: fmt.Sprintf("only an admin may use %s", r.deed)}
	case (n == needFull || n == needEnrol || n == needAdmin) && w.scope.limited():
		return limitedKey(r.deed, "use one without limits")
	case n == needEnrol && w.ends:
		return limitedKey(r.deed, "it would outlive the key or certificate you logged in with; use one that lasts")
	case w.scope.ReadOnly && (n == needUse || n == needOwner):
		return limitedKey(r.deed, "it is for reading only")
	case r.sandbox == "":
		return nil
	case n == needUse && r.relation == readOnly:
		return &problem{kind: denied, sentence: fmt.Sprintf("sandbox %q is shared with you for reading only", r.sandbox),
			hint: "its files: sftp or scp; what it does: ssh gate@HOST info " + r.sandbox}
	case (n == needOwner || n == needFull) && r.relation != owner:
		return &problem{kind: denied, sentence: fmt.Sprintf("only the owner of %q may do that", r.sandbox)}
	}
	return nil
}

// within says whether the limits of a key or certificate leave room for a deed.
func within(w who, r request) error {
	listed := len(w.scope.Verbs)+len(w.scope.Commands) > 0
	switch r.deed {
	case doorPTY:
		if w.noTerminal {
			return limitedKey(r.deed, "your certificate does not permit it")
		}
	case doorForward:
		if listed || w.noForward {
			return limitedKey(r.deed, "it may not forward")
		}
	case doorAgent:
		if listed || w.noAgent {
			return limitedKey(r.deed, "it may not forward an ssh-agent")
		}
	case doorShell:
		if listed {
			return limitedKey(r.deed, "it may only run what it names")
		}
	case doorExec:
		if listed && !slices.Contains(w.scope.Commands, r.command) {
			return limitedKey(r.deed, "it may only run what it names")
		}
	case doorTools:
		if listed || w.forced != "" {
			return limitedKey(r.deed, "it may only run what it names")
		}
	case doorFiles, doorWrite:
		if listed && !slices.Contains(w.scope.Commands, "sftp") || w.forced != "" && w.forced != "internal-sftp" {
			return limitedKey(r.deed, "it may only run what it names")
		}
	default:
		verb, _, _ := strings.Cut(string(r.deed), ",")
		if w.forced != "" || listed && !slices.Contains(w.scope.Verbs, verb) {
			return limitedKey(r.deed, "it may only run what it names")
		}
	}
	return nil
}

func limitedKey(d deed, why string) *problem {
	return &problem{kind: denied, sentence: fmt.Sprintf("your key does not allow %s: %s", d, why)}
}

// whoIs returns what a candidate is who has logged in.
func whoIs(c candidate) who {
	w := who{admin: c.user.Role == store.RoleAdmin, scope: c.scope, ends: !c.expires.IsZero(), until: c.expires}
	if w.ends && !time.Now().Before(c.expires) {
		w.invalid = fmt.Sprintf("your login is not valid any more: it was until %s", c.expires.Format(time.RFC3339))
	}
	if c.cert != nil {
		_, pty := c.cert.Extensions["permit-pty"]
		_, forward := c.cert.Extensions["permit-port-forwarding"]
		_, agent := c.cert.Extensions["permit-agent-forwarding"]
		w.forced, w.noTerminal, w.noForward, w.noAgent = c.cert.CriticalOptions[forceCommand], !pty, !forward, !agent
		w.ends = true
	}
	return w
}
