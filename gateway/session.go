package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"sandgate/gateway/redact"
	"sandgate/sandbox"
	"sandgate/sandbox/guest"
	"sandgate/store"
)

// A session is one SSH session channel (RFC 4254 section 6).
type session struct {
	login *Login
	ch    ssh.Channel
	ctx   context.Context // ends with the channel
	end   context.CancelCauseFunc

	// What the client asked for before it said what to run.
	env      [][]byte
	envSize  int
	terminal *guest.Terminal
	agent    bool
	next     func() status // what it runs once it has been told that it will

	row     store.Sandbox   // that is open
	metered *meteredChannel // is ch
	record  *castRecorder   // of the terminal; nil: none

	mu    sync.Mutex
	begun bool        // the client has said what to run
	proc  process     // once it runs
	size  *guest.Size // that came before it ran
}

// errClientGone is why a session ends whose client went away.
var errClientGone = errors.New("the client has gone")

// serveSession serves one session channel until it is closed.
func (g *Gateway) serveSession(_ context.Context, login *Login, conn *ssh.ServerConn, newChannel ssh.NewChannel) {
	ch, requests, err := newChannel.Accept()
	if err != nil {
		return
	}
	defer ch.Close()
	login.audit(auditChannel, nil, "session", nil)
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	metered := &meteredChannel{Channel: ch}
	s := &session{login: login, ch: metered, metered: metered, ctx: ctx, end: cancel}
	start := make(chan func() status, 1)
	go func() {
		defer cancel(errClientGone)
		defer close(start)
		for req := range requests {
			s.request(req, conn, start)
		}
	}()
	run, ok := <-start
	if !ok {
		return
	}
	login.beginSession()
	go func() {
		select {
		case <-g.leaving:
			cancel(errLeaving)
		case <-login.ctx.Done():
			cancel(context.Cause(login.ctx))
		case <-ctx.Done():
		}
	}()
	login.earlier.wait(ctx)
	s.finish(run())
}

// beginSession says that the client has got past its login: it now sends without
// waiting.
func (l *Login) beginSession() { l.front.loginDone() }

// request answers one channel request. It never waits for a sandbox: requests
// that are not read hold up the whole connection.
func (s *session) request(req *ssh.Request, conn *ssh.ServerConn, start chan<- func() status) {
	ok := false
	switch req.Type {
	case "env":
		ok = s.setenv(req.Payload)
	case "pty-req":
		if err := permit(whoIs(s.login.as), request{deed: doorPTY}); err != nil {
			s.login.audit(auditChannel, nil, "terminal", err)
		} else {
			ok = s.requestTerminal(req.Payload)
		}
	case "window-change":
		ok = s.resize(req.Payload)
	case "signal":
		ok = s.signal(req.Payload)
	case "auth-agent-req@openssh.com":
		// Whether the sandbox allows it is only known when it is open.
		s.agent, ok = true, true
	case "shell":
		ok = s.begin(func() status { return s.run("", true, conn) })
	case "exec":
		var m struct{ Command string }
		if ssh.Unmarshal(req.Payload, &m) == nil {
			// An empty command is a shell's: OpenSSH's client never sends one.
			ok = s.begin(func() status { return s.run(m.Command, m.Command == "", conn) })
		}
	case "subsystem":
		var m struct{ Name string }
		if ssh.Unmarshal(req.Payload, &m) == nil {
			if run := s.subsystem(m.Name); run != nil {
				ok = s.begin(run)
			}
		}
	}
	if ok && (req.Type == "shell" || req.Type == "exec" || req.Type == "subsystem") {
		s.login.gate.counters.requests.add(req.Type, 1)
	}
	req.Reply(ok, nil)
	if run := s.next; run != nil {
		// Not before the answer, which could not be sent any more once it has ended.
		s.next = nil
		start <- run
	}
}

// subsystem returns what serves a subsystem; nil if there is none of that name.
// Options may follow the name.
func (s *session) subsystem(line string) func() status {
	name, _, _ := strings.Cut(line, " ")
	switch name {
	case "sftp":
		return s.sftp
	case "mcp":
		return s.mcp
	case "agent":
		return func() status {
			defer s.login.does(nil, "agent", s.metered)()
			return s.agentSubsystem(line)
		}
	case "acp":
		return func() status {
			defer s.login.does(nil, "acp", s.metered)()
			return s.acpSubsystem()
		}
	}
	return nil
}

// begin takes what the session is to run next. There is one such request to a channel.
func (s *session) begin(run func() status) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.ctx.Done():
		return false
	default:
	}
	if s.begun {
		return false
	}
	s.begun = true
	s.next = run
	return true
}

// What a client may send of environment variables, and how much.
const (
	maxEnv     = 128
	maxEnvSize = 128 << 10
)

// envAllowed says whether a client may set a variable. Names that change what
// runs are refused by not being here.
func envAllowed(name string) bool {
	switch name {
	case "LANG", "TERM", "COLORTERM", "NO_COLOR", "TZ":
		return true
	}
	for _, prefix := range []string{"LC_", "GIT_AUTHOR_", "GIT_COMMITTER_", "SANDGATE_"} {
		if rest, ok := strings.CutPrefix(name, prefix); ok && rest != "" {
			return strings.Trim(rest, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") == ""
		}
	}
	return false
}

func (s *session) setenv(payload []byte) bool {
	var m struct{ Name, Value string }
	if ssh.Unmarshal(payload, &m) != nil || !envAllowed(m.Name) || strings.Contains(m.Value, "\x00") {
		return false
	}
	kv := m.Name + "=" + m.Value
	if len(s.env) >= maxEnv || s.envSize+len(kv) > maxEnvSize {
		return false
	}
	s.env = append(s.env, []byte(kv))
	s.envSize += len(kv)
	return true
}

func (s *session) requestTerminal(payload []byte) bool {
	var m struct {
		Term                         string
		Columns, Rows, Width, Height uint32
		Modes                        string
	}
	if ssh.Unmarshal(payload, &m) != nil || len(m.Modes) > guest.MaxModes || len(m.Term) > 256 ||
		strings.ContainsAny(m.Term, "\x00") || s.terminal != nil {
		return false
	}
	s.terminal = &guest.Terminal{
		Term:  m.Term,
		Size:  guest.Size{Columns: m.Columns, Rows: m.Rows, Width: m.Width, Height: m.Height},
		Modes: []byte(m.Modes),
	}
	return true
}

func (s *session) resize(payload []byte) bool {
	var m struct{ Columns, Rows, Width, Height uint32 }
	if ssh.Unmarshal(payload, &m) != nil {
		return false
	}
	s.resized(guest.Size{Columns: m.Columns, Rows: m.Rows, Width: m.Width, Height: m.Height})
	return true
}

// resized passes a new size of the terminal on.
func (s *session) resized(size guest.Size) {
	s.mu.Lock()
	proc := s.proc
	if proc == nil {
		s.size = &size
	}
	record := s.record
	s.mu.Unlock()
	record.resize(size)
	if proc != nil {
		proc.Resize(size)
	}
}

func (s *session) signal(payload []byte) bool {
	var m struct{ Name string }
	return ssh.Unmarshal(payload, &m) == nil && guest.SignalKnown(m.Name) && s.signalled(m.Name)
}

// signalled passes a signal on, if something runs to get it.
func (s *session) signalled(name string) bool {
	s.mu.Lock()
	proc := s.proc
	s.mu.Unlock()
	if proc == nil {
		return false
	}
	proc.Signal(name)
	return true
}

// A status is how a session ended. With an error, that is told on stderr and the
// code is 255.
type status struct {
	exit guest.Exit
	err  error
}

// finish tells the client how the session ended: the status, then the end of
// output, then the end of the channel. A client that has ended its own side may
// close the channel as soon as the output ends, and nothing can be sent after that.
func (s *session) finish(st status) {
	if errors.Is(st.err, errClientGone) {
		return
	}
	if st.err != nil {
		text, _ := s.login.tell(st.err)
		io.WriteString(s.ch.Stderr(), text)
		st.exit = guest.Exit{Code: exitGateway}
	}
	defer s.login.front.hold()()
	if st.exit.Signal != "" {
		s.ch.SendRequest("exit-signal", false, ssh.Marshal(struct {
			Signal      string
			Core        bool
			Error, Lang string
		}{signalName(st.exit.Signal), st.exit.Core, "", ""}))
	} else {
		s.ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{uint32(st.exit.Code)}))
	}
	s.ch.CloseWrite()
	s.ch.Close()
}

// signalName is a signal's name on the wire: RFC 4254 section 6.10 has a list,
// others carry a domain.
func signalName(name string) string {
	if guest.SignalKnown(name) {
		return name
	}
	return name + "@openssh.com"
}

// open opens the sandbox that the connection asked for, for what r asks for.
func (s *session) open(r request) (*sandbox.Lease, sandbox.Options, target, error) {
	t, err := s.login.target()
	if err != nil {
		return nil, sandbox.Options{}, target{}, err
	}
	show := sandbox.Show{Setup: s.ch.Stderr()}
	if s.terminal != nil {
		show.Setup = crlfWriter{s.ch.Stderr()}
	}
	show.Tell = tellOn(show.Setup)
	if s.terminal != nil {
		var clear func()
		show.Pull, clear = showPull(show.Setup, s.terminal)
		defer clear()
	}
	lease, row, err := s.login.OpenShowing(s.ctx, t, r, show)
	if err != nil {
		return nil, sandbox.Options{}, target{}, err
	}
	s.row = row
	s.metered.counts = s.login.gate.meter.of(row.ID)
	s.metered.counts.sessions.Add(1)
	context.AfterFunc(s.ctx, s.login.does(&row, whatOf(r, t), s.metered))
	o, err := sandbox.OptionsOf(row)
	if err != nil {
		lease.Release()
		return nil, sandbox.Options{}, target{}, err
	}
	return lease, o, t, nil
}

// run runs a command, or a login shell, in the sandbox or the lobby.
func (s *session) run(command string, login bool, conn *ssh.ServerConn) status {
	if t, err := s.login.target(); err == nil && t.lobby {
		return s.lobby(command)
	}
	if s.login.as.invite != nil {
		return s.welcome()
	}
	r := request{deed: doorExec, command: command}
	if login {
		r.deed = doorShell
	}
	var forced [][]byte
	if c := whoIs(s.login.as).forced; c != "" {
		if !login {
			forced = [][]byte{[]byte("SSH_ORIGINAL_COMMAND=" + command)}
		}
		r, command, login = request{deed: doorExec, command: c}, c, false
	}
	lease, options, t, err := s.open(r)
	if err != nil {
		return status{err: err}
	}
	defer lease.Release()
	if s.terminal != nil {
		io.WriteString(crlfWriter{s.ch.Stderr()}, expiryNotice(s.row.Name, options, time.Now()))
	}
	cmd := guest.Command{Text: []byte(command), Terminal: s.terminal, Env: append(s.environment(), forced...), Keep: options.KeepsCommands()}
	if login && s.terminal != nil {
		cmd.Name = t.session
	}
	if s.agent && options.ForwardsAgent() && permit(whoIs(s.login.as), request{deed: doorAgent}) == nil {
		if path, stop, err := s.login.forwardAgent(s.ctx, s.row, lease.Client, conn); err == nil {
			defer stop()
			cmd.Env = append(cmd.Env, []byte("SSH_AUTH_SOCK="+path))
		} else {
			s.login.log.Warn("ssh-agent not forwarded", keyErr, err)
		}
	}
	secrets, err := s.login.equip(s.ctx, s.row, &cmd)
	if err != nil {
		return status{err: err}
	}
	if s.terminal != nil {
		s.login.warn(s.ctx, s.row.UserID, crlfWriter{s.ch.Stderr()})
	}
	if login && s.terminal != nil {
		s.tellRunning(lease.Client, cmd.Name)
	}
	defer s.recorded(s.row, options, secrets)()
	proc, err := lease.Start(cmd, login)
	if err != nil {
		return status{err: err}
	}
	st := s.accompany(proc, lease)
	if errors.Is(st.err, errLeaving) {
		st.err = detached(st.err, cmd, s.login.nameOf(s.row))
	}
	return st
}

// detached says, where the gateway leaves and the client did not, what goes on.
func detached(err error, cmd guest.Command, sandboxName string) error {
	if cmd.Name == "" {
		return err // which says so of all that runs
	}
	return &problem{
		kind:     failed,
		sentence: err.Error(),
		hint:     fmt.Sprintf("session %[1]q goes on; come back with: ssh -t %[2]s+%[1]s@HOST", cmd.Name, sandboxName),
	}
}

// recorded begins to record the session's terminal, if it has one and its sandbox
// is to be recorded. The function that it returns ends that.
func (s *session) recorded(row store.Sandbox, o sandbox.Options, secrets *redact.Redactor) (end func()) {
	if s.terminal == nil || !o.Records() {
		return func() {}
	}
	record := s.login.record(s.ctx, row, s.terminal, secrets, crlfWriter{s.ch.Stderr()})
	s.mu.Lock()
	s.record = record
	s.mu.Unlock()
	return record.end
}

// A process is what a client's requests go to while something runs for it.
type process interface {
	Resize(guest.Size)
	Signal(name string)
}

// setProc says what runs for the client.
func (s *session) setProc(p process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proc = p
	if s.size != nil {
		p.Resize(*s.size)
	}
}

// accompany joins the client and a job until the job has ended or the client has
// gone.
func (s *session) accompany(proc *guest.Process, lease *sandbox.Lease) status {
	s.setProc(proc)
	go func() {
		guest.Copy(proc, s.ch)
		proc.CloseWrite()
	}()
	exit, err := proc.Wait(s.ctx, recordedWriter{s.ch, s.record}, s.ch.Stderr())
	switch {
	case err == nil || errors.Is(err, errLeaving) || errors.Is(err, guest.ErrGone):
		proc.Close()
	default:
		proc.Hangup()
	}
	switch {
	case guest.OutputFailed(err):
		err = errClientGone
	case errors.Is(err, guest.ErrGone),
		err == nil && lease.Stopping() && (exit.Signal != "" || exit.Code != 0 && s.login.expelled() != nil):
		err = lease.Gone() // and not by a signal out of the blue
	}
	return status{exit: exit, err: err}
}

// environment returns what the session's programs get beyond the account's own.
func (s *session) environment() [][]byte {
	env := append([][]byte{[]byte("IS_SANDBOX=1")}, s.env...)
	remote, ok1 := s.login.remote.(*net.TCPAddr)
	local, ok2 := s.login.local.(*net.TCPAddr)
	if ok1 && ok2 {
		env = append(env,
			fmt.Appendf(nil, "SSH_CLIENT=%s %d %d", remote.IP, remote.Port, local.Port),
			fmt.Appendf(nil, "SSH_CONNECTION=%s %d %s %d", remote.IP, remote.Port, local.IP, local.Port))
	}
	return env
}

// sftp serves files from the sandbox.
func (s *session) sftp() status {
	lease, _, t, err := s.open(request{deed: doorFiles})
	if err != nil {
		return status{err: err}
	}
	defer lease.Release()
	_, cannot := s.login.reach(s.ctx, t, request{deed: doorWrite})
	stream, err := lease.SFTP("", cannot != nil)
	if err != nil {
		return status{err: err}
	}
	defer stream.Close()
	s.login.audit(auditExec, &s.row, "sftp", nil)
	watch := newSFTPWatch(func(op, outcome string) { s.login.auditAs(auditFile, &s.row, op, outcome) })
	defer watch.end()
	_, err = join(s.ctx, watchSFTP(s.ch, watch), stream)
	if errors.Is(err, guest.ErrGone) {
		err = lease.Gone()
	}
	return status{err: err}
}
