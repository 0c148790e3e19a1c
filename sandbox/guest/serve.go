//go:build linux

package guest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/hashicorp/yamux"
	"golang.org/x/sys/unix"

	"sandgate/sandbox/guest/files"
)

// IsGuest says whether the program was started as one of those that run inside a
// sandbox: as `guest`, or by the name of scp. args are all its arguments.
func IsGuest(args []string) bool {
	return filepath.Base(args[0]) == "scp" || len(args) > 1 && args[1] == "guest"
}

// Main is what runs inside a sandbox, where IsGuest(args). It returns the exit
// code of the process.
func Main(args []string) int {
	if filepath.Base(args[0]) == "scp" {
		return files.SCP(args[1:], os.Stdin, os.Stdout, os.Stderr)
	}
	args = args[2:]
	if len(args) > 1 && args[0] == "sftp" {
		return serveFilesOnStdio(args[1], len(args) > 2 && args[2] == readOnlyWord)
	}
	if len(args) > 0 && args[0] == "tools" {
		return serveToolsOnStdin()
	}
	if len(args) > 0 && args[0] == "connect" {
		return connectOnStdio(SocketDir, os.Stdin, os.Stdout, os.Stderr)
	}
	unix.Umask(0o022)
	keepToOurselves()
	keepThreads(spareThreads)
	dropHandlers()
	dir, records := SocketDir, recordsDir
	if len(args) > 0 { // not in a sandbox
		dir, records = args[0], filepath.Join(args[0], "jobs")
	}
	settings := parseSettings(os.Getenv(SettingsVariable))
	os.Unsetenv(SettingsVariable) // commands get what it says
	g := &guest{
		socket:   filepath.Join(dir, SocketName),
		instance: token(),
		settings: settings,
		accounts: newAccounts(settings.User),
		reaper:   newReaper(),
		shelf:    openShelf(records, settings.Starved),
		services: services{running: make(map[string]*supervisor)},
		gauging:  make(chan struct{}, 1),
		jobs:     make(map[string]*job),

		workshops: make(map[string]*workshop),
		listeners: make(map[string]int),
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGTERM, unix.SIGINT)
	// Not Ignore: what is ignored here would be ignored in every command.
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP)
	severed := make(chan os.Signal, 1)
	signal.Notify(severed, unix.SIGUSR1)
	go g.gauge(g.gauging)
	go g.dialForever()
	go g.redial(severed)
	<-stop
	g.stop()
	return 0
}

// keepToOurselves closes to commands what this process has inherited, and what
// packages have opened before main began.
func keepToOurselves() {
	if unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	for fd := 3; fd < 256; fd++ { // before Linux 5.11
		unix.CloseOnExec(fd)
	}
}

// dropHandlers gives back to the kernel the signals that this program has no use for:
// Go handles them all, and a child that it forks puts each back to its default by a
// call of the kernel of its own, before it runs its program. In gVisor that is a third
// of the time that a start takes. What is dropped has been ignored so far, and is so by
// default, but for the real-time signals: those are sent on purpose only, and by root.
func dropHandlers() {
	drop := []unix.Signal{unix.SIGCHLD, unix.SIGWINCH}
	for s := unix.Signal(firstRealTime); s <= lastRealTime; s++ {
		drop = append(drop, s)
	}
	for _, s := range drop {
		signal.Ignore(s) // Go forgets its handler
		// All zero is the default. What is ignored would be ignored in commands.
		var action [4]uint64
		unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&action)), 0, unsafe.Sizeof(action[3]), 0, 0)
	}
}

// The real-time signals that Go has handlers for.
const (
	firstRealTime = 35
	lastRealTime  = 64
)

// spareThreads are as many as commands at the same time may make the guest need.
const spareThreads = 16

// keepThreads has n threads made, which Go then keeps. A Go program that needs one
// and cannot have it ends, as can be when commands have used up the processes that a
// sandbox may have; and with the guest ends its sandbox.
func keepThreads(n int) {
	var made sync.WaitGroup
	made.Add(n)
	over := make(chan struct{})
	for range n {
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			made.Done()
			<-over
		}()
	}
	made.Wait()
	close(over)
}

// A guest is what runs in the sandbox.
type guest struct {
	socket   string
	instance string
	settings Settings
	accounts *accounts
	reaper   *reaper
	shelf    *shelf
	services services
	gauging  chan struct{} // gets something when a recorded job has started

	mu        sync.Mutex
	jobs      map[string]*job      // running ones
	listeners map[string]int       // how many, by address
	workshops map[string]*workshop // by the account's name
	gateway   net.Conn             // the control connection, or what is to become it; nil: none
}

// stopGrace is how long the sandbox's processes have to end by themselves.
const stopGrace = 5 * time.Second

// stopRecords is how long jobs whose processes have ended have to be recorded.
const stopRecords = 500 * time.Millisecond

// stop ends all processes of the sandbox.
func (g *guest) stop() {
	running := g.shelf.running()
	for _, r := range running {
		r.stopping()
	}
	g.services.stopAll()
	// What ends now is told how, as far as time allows.
	defer func() {
		enough := time.After(stopRecords)
		for _, r := range running {
			select {
			case <-r.done:
			case <-enough:
				return
			}
		}
	}()
	if os.Getpid() != 1 {
		for _, r := range running {
			r.last.endAll(0)
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, j := range g.jobs {
			j.signalGroups(unix.SIGKILL)
		}
		return
	}
	g.reaper.terminate(func() bool {
		deadline := time.Now().Add(stopGrace)
		for time.Now().Before(deadline) {
			if unix.Kill(-1, 0) == unix.ESRCH {
				return true
			}
			time.Sleep(10 * time.Millisecond)
		}
		return false
	})
}

// Back-off between attempts to reach the gateway: quick as long as it may be about to
// restart, so that it has its sandboxes back at once; slow later, since each attempt
// costs.
const (
	firstRetry = 20 * time.Millisecond
	soonRetry  = 200 * time.Millisecond
	lastRetry  = time.Second

	restartTime = 30 * time.Second // of a gateway, at most
)

// dialForever keeps a control connection to the gateway.
func (g *guest) dialForever() {
	var wait time.Duration
	gone := time.Now()
	for {
		began := time.Now()
		connected, _ := g.session()
		switch {
		case !connected:
			wait = nextRetry(wait, time.Since(gone))
		case time.Since(began) < firstRetry:
			gone, wait = time.Now(), firstRetry // a gateway that hangs up at once
		default:
			// It may only have been cut, as by a pause.
			gone, wait = time.Now(), 0
		}
		time.Sleep(wait)
	}
}

// nextRetry is how long to wait after an attempt that failed, before which the last
// wait was, with the gateway gone for that long.
func nextRetry(last, gone time.Duration) time.Duration {
	most := lastRetry
	if gone < restartTime {
		most = soonRetry
	}
	return min(max(2*last, firstRetry), most)
}

// redial ends the connection to the gateway whenever a signal comes in on severed, so
// that another is dialled: a kernel that was about to be put on the disk, and was not,
// has cut it without a word to us.
func (g *guest) redial(severed <-chan os.Signal) {
	for range severed {
		g.mu.Lock()
		if g.gateway != nil {
			g.gateway.Close()
		}
		g.mu.Unlock()
	}
}

// session opens a control connection and serves it until it ends.
func (g *guest) session() (connected bool, err error) {
	conn, err := net.Dial("unix", g.socket)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	g.mu.Lock()
	g.gateway = conn
	g.mu.Unlock()
	s := connStream(conn.(*net.UnixConn), bufio.NewReader(conn))
	if err := writeLine(conn, hello{Sandgate: protocolVersion, Role: roleControl, Instance: g.instance}); err != nil {
		return false, err
	}
	var h hello
	if err := s.readLine(maxHello, helloTimeout, &h); err != nil {
		return false, err
	}
	mux, err := yamux.Server(struct {
		io.Reader
		io.Writer
		io.Closer
	}{s, &muxWriter{w: s}, s}, muxConfig())
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ses := &session{guest: g, link: newLink(mux), id: h.Session, joins: make(map[string]*rendezvous)}
	for range maxSpares {
		go ses.keepSpare(ctx)
	}
	return true, ses.link.accept(ses.handle)
}

// A session is the time of one control connection.
type session struct {
	guest *guest
	link  *link
	id    string

	spares atomic.Int32 // dialled and not used yet

	mu    sync.Mutex
	joins map[string]*rendezvous
}

// spareDelay is how long the replacement of a spare connection waits while there
// are others: dialling at once would take time from what the spare was used for.
const spareDelay = 30 * time.Millisecond

// keepSpare keeps one spare connection dialled and serves what comes on it.
func (s *session) keepSpare(ctx context.Context) {
	wait := firstRetry
	for ctx.Err() == nil {
		if s.spare(ctx) {
			wait = firstRetry
			if s.spares.Load() > 0 {
				time.Sleep(spareDelay)
			}
			continue
		}
		time.Sleep(wait)
		wait = min(2*wait, lastRetry)
	}
}

// spare dials one connection and waits until it is used.
func (s *session) spare(ctx context.Context) (used bool) {
	conn, err := dialBlocking(s.guest.socket)
	if err != nil {
		return false
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	st := connStream(conn, bufio.NewReader(conn))
	err = writeLine(conn, hello{Sandgate: protocolVersion, Role: roleSpare, Instance: s.guest.instance, Session: s.id})
	var h header
	if err == nil {
		s.spares.Add(1)
		err = readLine(st.r, maxHeader, &h) // for as long as it takes
		s.spares.Add(-1)
	}
	if !stop() || err != nil {
		conn.Close()
		return false
	}
	go s.handle(st, h)
	return true
}

// handle serves one stream that the gateway opened.
func (s *session) handle(st *stream, h header) {
	switch h.Kind {
	case kindExec, kindShell, kindAttach:
		s.job(st, h)
	case kindData:
		s.meet(h.Token).data <- st
	case kindSFTP:
		s.guest.serveFiles(st, h.User, h.Reads)
	case kindDial:
		dial(st, h.Address)
	case kindListen:
		s.listen(st, h)
	case kindJobs:
		s.guest.list(st)
	case kindRun:
		answer(st, jobReply(s.guest.run(h.Run)))
	case kindLook:
		answer(st, jobReply(s.guest.look(h.Job)))
	case kindWait:
		s.guest.wait(st, h.Job)
	case kindLog:
		s.guest.log(st, h)
	case kindInput:
		s.guest.input(st, h)
	case kindKill:
		answer(st, doneReply(s.guest.kill(h)))
	case kindServe:
		answer(st, doneReply(s.guest.serve(h.Services)))
	case kindForget:
		answer(st, doneReply(s.guest.forget(h.Job)))
	case kindTool:
		s.guest.useTools(st, h)
	default:
		st.Close()
	}
}

// A rendezvous is where the two streams of a job find each other: they may come
// on different connections, in any order.
type rendezvous struct{ data chan *stream }

func (s *session) meet(token string) *rendezvous {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.joins[token]
	if r == nil {
		r = &rendezvous{data: make(chan *stream, 1)}
		s.joins[token] = r
		time.AfterFunc(joinTimeout, func() { s.part(token) })
	}
	return r
}

// part forgets a rendezvous, and closes a stream that nobody came to meet.
func (s *session) part(token string) {
	s.mu.Lock()
	r := s.joins[token]
	delete(s.joins, token)
	s.mu.Unlock()
	if r == nil {
		return
	}
	select {
	case st := <-r.data:
		st.Close()
	default:
	}
}

// job starts a job, or finds one, and serves this client of it.
func (s *session) job(control *stream, h header) {
	var data *stream
	select {
	case data = <-s.meet(h.Token).data:
		s.part(h.Token)
	case <-time.After(joinTimeout):
		control.Close()
		return
	}
	v := newViewer(control, data)
	switch {
	case h.Viewing != nil:
		v.size, v.watch = h.Viewing.Size, h.Viewing.Watch
	case h.Run != nil && h.Run.Terminal != nil:
		v.size = h.Run.Terminal.Size
	case h.Command != nil && h.Command.Terminal != nil:
		v.size = h.Command.Terminal.Size
	}
	j, err := s.guest.join(h, v)
	if err != nil {
		code := 255
		if e, ok := errors.AsType[*startError](err); ok {
			code = e.code
		}
		v.fail(code, err.Error())
		// Closing before the gateway has read the answer could lose it.
		Copy(io.Discard, data)
		Copy(io.Discard, control)
		data.Close()
		control.Close()
		return
	}
	j.serve(v)
}

// join adds a client to the job that a header names, or to a new one.
func (g *guest) join(h header, v *viewer) (*job, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if h.Kind == kindAttach {
		j := g.jobs[h.Job]
		switch {
		case j == nil:
			return nil, errors.New("no such job")
		case j.record != nil && j.terminal == nil:
			return nil, errors.New("the job has no terminal: its output is in its log")
		}
		return j, j.add(v)
	}
	if h.Run != nil {
		if !h.Run.valid() || h.Run.Terminal == nil || g.shelf.find(h.Run.ID) != nil {
			return nil, &startError{255, "malformed job"}
		}
		j, err := g.startRecorded(h.Run, KindRun, false)
		if err != nil {
			return nil, err
		}
		err = j.add(v)
		g.follow(j)
		return j, err
	}
	if h.Command == nil {
		return nil, &startError{255, "no command"}
	}
	login := h.Kind == kindShell
	if login && h.Command.Name != "" {
		for _, j := range g.jobs {
			if j.name == h.Command.Name && !j.over() {
				return j, j.add(v)
			}
		}
	}
	if len(g.jobs) >= maxJobs {
		return nil, &startError{255, fmt.Sprintf("too many commands are running in this sandbox: %d, which is the most", len(g.jobs))}
	}
	var j *job
	var err error
	if login && h.Command.Name != "" && h.Command.Terminal != nil {
		run := &Run{ID: NewJobID(), Command: *h.Command}
		if !run.valid() {
			return nil, &startError{255, "malformed name of a session"}
		}
		j, err = g.startRecorded(run, KindSession, true)
	} else {
		j, err = g.launch(h.Command, login, nil)
	}
	if err != nil {
		return nil, err
	}
	err = j.add(v)
	g.follow(j) // from here on output is moved
	return j, err
}

// fileOptions are those for a file server of a's that begins in dir.
func (as *accounts) fileOptions(a account, dir string) files.Options {
	return files.Options{
		Home: a.home,
		Dir:  dir,
		LookupHome: func(user string) (string, bool) {
			a, err := as.lookup(user)
			return a.home, err == nil
		},
		UserName:  as.passwd.nameOf,
		GroupName: as.groups.nameOf,
	}
}

// serveFiles serves SFTP as user: here where that is the guest's own, else in a
// process of the user's.
func (g *guest) serveFiles(st *stream, user string, readOnly bool) {
	defer st.Close()
	a, err := g.accounts.lookup(user)
	if err != nil {
		return
	}
	if int(a.uid) == os.Getuid() {
		o := g.accounts.fileOptions(a, g.dirOf(a))
		o.ReadOnly = readOnly
		files.ServeSFTP(st, o)
		return
	}
	argv := []string{"sandgate", "guest", "sftp", g.dirOf(a)}
	if readOnly {
		argv = append(argv, readOnlyWord)
	}
	j, err := g.spawn(program{
		path: "/proc/self/exe",
		argv: argv,
		env:  environment(a, "", nil, nil),
	}, a, &Command{Text: []byte("sftp")}, nil)
	if err != nil {
		return
	}
	go Copy(io.Discard, j.stderr)
	go func() {
		Copy(j.stdin, st)
		j.stdin.Close()
	}()
	Copy(st, j.stdout)
	closeAll([]*os.File{j.stdin, j.stdout, j.stderr})
}

// readOnlyWord tells that process to serve for reading only.
const readOnlyWord = "read-only"

// serveFilesOnStdio is that process. It begins in dir.
func serveFilesOnStdio(dir string, readOnly bool) int {
	unix.Umask(0o022)
	as := newAccounts("")
	a, err := as.lookup(os.Getenv("USER"))
	if err != nil {
		return 1
	}
	o := as.fileOptions(a, dir)
	o.ReadOnly = readOnly
	if files.ServeSFTP(struct {
		io.Reader
		io.WriteCloser
	}{os.Stdin, os.Stdout}, o) != nil {
		return 1
	}
	return 0
}
