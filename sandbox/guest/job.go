//go:build linux

package guest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// What a job's processes get when its last client has gone for good.
const (
	// A plain command has its pipes closed at once; the group is hung up when
	// that has not ended it.
	plainGrace = 8 * time.Second

	// A terminal is hung up at once; then its groups are terminated, and killed.
	terminalGrace = 10 * time.Second
	killGrace     = 5 * time.Second
)

// A job is a command: its process group, its pipes or terminal, and how it ended.
type job struct {
	id      string
	name    string
	keep    bool // the client's going does not end it
	text    []byte
	started time.Time
	pid     int     // of the leader; also its process group and session
	record  *record // nil for a plain command
	mark    uint64  // of its processes

	memoryKills int64 // before it started; only of a recorded job

	terminal *os.File // the master side; nil without a terminal
	stdin    *os.File // the three are nil with a terminal
	stdout   *os.File
	stderr   *os.File
	dir      *os.File // where a script tells the folder that it ends in; nil: it does not

	outputs sync.WaitGroup // the pumps of stdout and stderr
	ended   chan struct{}  // closed when the leader has ended
	ending  ending         // valid then

	mu      sync.Mutex
	viewers []*viewer
	typist  *viewer // whose size the terminal has
	screen  *screen // nil unless it is recorded and has a terminal
	left    bool    // the last client has gone for good
	done    bool    // all output is out and the exit is told

	replies chan []byte  // of the screen
	watched atomic.Int32 // viewers, for who must not wait for mu
}

// launch starts the command as a job. Errors are *startError.
func (g *guest) launch(cmd *Command, login bool, r *record) (*job, error) {
	a, err := g.accounts.lookup(cmd.User)
	if err != nil {
		return nil, &startError{126, err.Error()}
	}
	paths, err := placeFiles(filesDir, cmd.Files, a)
	if err != nil {
		return nil, &startError{126, err.Error()}
	}
	cmd.Env = append(cmd.Env, paths...)
	p, err := resolve(cmd, a, g.settings.Env, login)
	if err != nil {
		return nil, err
	}
	return g.spawn(p, a, cmd, r)
}

// spawn starts a program as a job. One that is recorded is marked, and has no input
// unless it is to get some.
func (g *guest) spawn(p program, a account, cmd *Command, r *record) (*job, error) {
	j := &job{
		id:      token(),
		name:    cmd.Name,
		keep:    r != nil || cmd.Keep && cmd.Terminal == nil,
		text:    cmd.Text[:min(len(cmd.Text), maxJobText)],
		started: time.Now(),
		ended:   make(chan struct{}),
		record:  r,
		mark:    noMark,
	}
	if r != nil {
		j.id = r.info.ID
		j.memoryKills, _ = memoryKills(cgroupDir)
	}
	if r != nil || cmd.marked {
		j.mark = newMark()
	}
	attr := &syscall.ProcAttr{Env: p.env, Sys: &syscall.SysProcAttr{Setsid: true}}
	if int(a.uid) != os.Getuid() {
		attr.Sys.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid, Groups: a.groups}
	}
	var err error
	if cmd.Terminal != nil {
		err = j.openTerminal(cmd.Terminal, a, attr)
	} else {
		err = j.openPipes(attr, r == nil || r.info.Input)
	}
	defer closeDescriptors(attr.Files)
	if err != nil {
		j.closeOurs()
		return nil, startFailure(p.argv[0], err)
	}
	attr.Dir = g.dirOf(a)
	if cmd.Dir != "" {
		if rest, ok := strings.CutPrefix(cmd.Dir, "~"); ok && (rest == "" || rest[0] == '/') {
			attr.Dir = a.home + rest
		} else if attr.Dir = cmd.Dir; !filepath.IsAbs(cmd.Dir) {
			attr.Dir = filepath.Join(g.dirOf(a), cmd.Dir)
		}
	}
	if fi, err := os.Stat(attr.Dir); err != nil || !fi.IsDir() {
		if cmd.Dir != "" {
			j.closeOurs()
			return nil, &startError{126, "cannot start in " + attr.Dir + ": " + chdirReason(err)}
		}
		unix.Write(int(attr.Files[2]), fmt.Appendf(nil, "Could not chdir to %s: %s\n", attr.Dir, chdirReason(err)))
		attr.Dir = "/"
	}
	if cmd.Script && r != nil {
		j.openDir(attr)
	}
	pid, done, err := g.reaper.start(p.path, p.argv, attr, &j.mark)
	if err != nil {
		j.closeOurs()
		return nil, startFailure(p.argv[0], err)
	}
	j.pid = pid
	if r != nil && cmd.Terminal != nil {
		j.replies = make(chan []byte, 16)
		j.screen = newScreen(cmd.Terminal.Size, j.replies)
	}
	go func() {
		j.ending = <-done
		close(j.ended)
	}()
	return j, nil
}

// dirOf returns the folder where an account's commands start.
func (g *guest) dirOf(a account) string {
	if g.settings.Dir != "" {
		return g.settings.Dir
	}
	return a.home
}

func chdirReason(err error) string {
	var errno syscall.Errno
	switch {
	case err == nil:
		return "Not a directory"
	case errors.As(err, &errno) && errno == unix.ENOENT:
		return "No such file or directory"
	case errors.As(err, &errno):
		return errno.Error()
	}
	return err.Error()
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// closeOurs closes the guest's ends of a job.
func (j *job) closeOurs() {
	closeAll([]*os.File{j.terminal, j.stdin, j.stdout, j.stderr, j.dir})
}

// closeDescriptors closes descriptors, of which neighbours may be the same.
func closeDescriptors(fds []uintptr) {
	for _, fd := range slices.Compact(fds) {
		unix.Close(int(fd))
	}
}

func (j *job) openTerminal(t *Terminal, a account, attr *syscall.ProcAttr) error {
	master, slave, name, err := openTerminal(t, a.uid)
	if err != nil {
		return err
	}
	j.terminal = master
	attr.Files = []uintptr{uintptr(slave), uintptr(slave), uintptr(slave)}
	attr.Sys.Setctty = true
	attr.Sys.Ctty = 0
	attr.Env = append(attr.Env, "TERM="+t.Term, "SSH_TTY="+name)
	return nil
}

// openPipes opens the three pipes, of which the first is only needed with input. The
// guest's ends are polled, the job's ends block, as programs expect, and are bare
// descriptors: each call of the kernel saved here is felt in gVisor.
func (j *job) openPipes(attr *syscall.ProcAttr, input bool) error {
	for i, ours := range []**os.File{&j.stdin, &j.stdout, &j.stderr} {
		if i == 0 && !input {
			null, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			attr.Files = append(attr.Files, uintptr(null))
			continue
		}
		var fd [2]int
		if err := unix.Pipe2(fd[:], unix.O_CLOEXEC); err != nil {
			return err
		}
		our, their := fd[0], fd[1]
		if i == 0 {
			our, their = their, our
		}
		if i < 2 {
			unix.FcntlInt(uintptr(our), unix.F_SETPIPE_SZ, 1<<20)
		}
		// A new pipe has no other flag that could be lost.
		unix.FcntlInt(uintptr(our), unix.F_SETFL, unix.O_NONBLOCK)
		*ours = os.NewFile(uintptr(our), "|")
		attr.Files = append(attr.Files, uintptr(their))
	}
	return nil
}

// run moves the job's output until both have ended, tells the clients how it
// ended, and returns.
func (j *job) run() {
	switch {
	case j.screen != nil:
		j.outputs.Go(func() { j.pump(&drainer{file: j.terminal, quiet: drainTimeout}, false) })
		replies := make(chan struct{})
		defer close(replies)
		go j.reply(replies)
	case j.terminal != nil:
		j.outputs.Go(func() { j.pump(&drainer{file: j.terminal, quiet: drainTimeout}, false) })
	case j.record != nil:
		j.outputs.Go(func() { j.pump(&drainer{file: j.stdout, quiet: recordDrain}, false) })
		j.outputs.Go(func() { j.pump(&drainer{file: j.stderr, quiet: recordDrain}, true) })
	default:
		j.outputs.Go(func() { j.pump(j.stdout, false); j.stdout.Close() })
		j.outputs.Go(func() { j.pump(j.stderr, true); j.stderr.Close() })
	}
	<-j.ended
	past := time.Unix(1, 0) // wakes the readers
	if j.terminal != nil {
		// As the kernel does for a session whose leader ends, in case it does not.
		j.hangup()
		j.terminal.SetReadDeadline(past)
	} else if j.record != nil {
		j.stdout.SetReadDeadline(past)
		j.stderr.SetReadDeadline(past)
	}
	j.outputs.Wait()
	j.mu.Lock()
	j.done = true
	viewers := j.viewers
	j.viewers = nil
	j.mu.Unlock()
	exit := exitOf(j.ending.status)
	if j.record != nil {
		var left []int
		if j.terminal == nil { // others have just been hung up, and may be about to end
			left = j.members()
		}
		exit = j.record.ended(j.ending, left)
	}
	for _, v := range viewers {
		if j.screen != nil {
			v.exit = exit
			close(v.queue)
		} else {
			v.finish(exit)
		}
	}
	if j.screen != nil {
		j.mu.Lock()
		j.screen.close()
		j.mu.Unlock()
	}
	if j.terminal == nil && j.record != nil {
		// What it has left running would die of a closed pipe.
		go discard(j.stdout)
		go discard(j.stderr)
		closeAll([]*os.File{j.stdin})
		return
	}
	closeAll([]*os.File{j.terminal, j.stdin})
}

// discard reads f until its end.
func discard(f *os.File) {
	f.SetReadDeadline(time.Time{})
	Copy(io.Discard, f)
	f.Close()
}

func exitOf(s unix.WaitStatus) Exit {
	if s.Signaled() {
		for name, n := range signals {
			if n == int(s.Signal()) {
				return Exit{Signal: name, Core: s.CoreDump()}
			}
		}
		name := unix.SignalName(s.Signal())
		if len(name) > 3 {
			return Exit{Signal: name[3:], Core: s.CoreDump()}
		}
		return Exit{Signal: "RT" + strconv.Itoa(int(s.Signal())), Core: s.CoreDump()}
	}
	return Exit{Code: s.ExitStatus()}
}

// pump moves output to the log and to whoever views the job. With nobody there it
// is read and dropped, so that the job goes on, until the clients are known to be
// gone for good: the pipe is then closed.
func (j *job) pump(r io.Reader, stderr bool) {
	var buf copyBuffer
	for {
		p, err := buf.read(r)
		if len(p) > 0 {
			if j.record != nil {
				j.record.log.append(stderr, p)
			}
			if j.screen != nil {
				j.present(p)
			} else {
				for _, v := range j.watching() {
					if v.output(stderr, p) != nil {
						<-v.gone
					}
				}
			}
		}
		if err != nil {
			return
		}
	}
}

// How long output that other processes still hold may have nothing to read after
// the leader has ended. What the leader wrote is in the terminal or pipe by then.
const (
	drainTimeout = 50 * time.Millisecond  // of a terminal
	recordDrain  = 100 * time.Millisecond // of a recorded job's pipe
)

// maxDrain bounds what is read then, should others keep writing. No pipe holds more.
const maxDrain = 1 << 20

// A drainer reads a terminal or pipe until its other side has closed (which reads as
// EIO of a terminal), or the leader has ended and nothing is left to read.
type drainer struct {
	file     *os.File
	quiet    time.Duration // how long there may be nothing to read while draining
	draining bool
	until    time.Time // when draining waits no more, even if others write on
	drained  int
}

func (t *drainer) Read(p []byte) (int, error) {
	for {
		if t.draining {
			now := time.Now()
			if t.until.IsZero() {
				t.until = now.Add(4 * t.quiet)
			}
			deadline := now.Add(t.quiet)
			if deadline.After(t.until) {
				deadline = t.until
			}
			t.file.SetReadDeadline(deadline)
		}
		n, err := t.file.Read(p)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if !t.draining {
				t.draining = true // the leader has just ended
				continue
			}
			// On a busy host the deadline can pass before anything is tried.
			n, err = t.readNow(p)
		}
		if errors.Is(err, unix.EIO) {
			// The kernel moves output in the background and may say that the other
			// side has closed while a piece is on its way. A read waits for that
			// piece, so the second answer holds.
			n, err = t.readNow(p)
		}
		if t.draining {
			if t.drained += n; t.drained > maxDrain {
				err = io.EOF
			}
		}
		return n, err
	}
}

// readNow reads what is there, whatever the deadline.
func (t *drainer) readNow(p []byte) (n int, err error) {
	err = lend(t.file, func(fd int) (err error) {
		n, err = unix.Read(fd, p)
		return err
	})
	if n <= 0 && err == nil {
		err = io.EOF
	}
	return max(n, 0), err
}

// hangup sends HUP to the terminal's foreground group and to the leader's.
func (j *job) hangup() {
	j.signalGroups(unix.SIGHUP)
	j.signalGroups(unix.SIGCONT) // one that is stopped could not take it
}

// signalGroups signals the leader's process group and, on a terminal, the
// foreground group.
func (j *job) signalGroups(sig unix.Signal) {
	groups := []int{j.pid}
	if fg := j.foreground(); fg > 1 && fg != j.pid {
		groups = append(groups, fg)
	}
	for _, g := range groups {
		unix.Kill(-g, sig)
	}
}

// foreground returns the foreground process group of the job's terminal, or 0.
func (j *job) foreground() int {
	if j.terminal == nil {
		return 0
	}
	fg := 0
	lend(j.terminal, func(fd int) (err error) {
		fg, err = unix.IoctlGetInt(fd, unix.TIOCGPGRP)
		return err
	})
	return fg
}

// signal sends a signal that a client asked for: to the foreground group of a
// terminal, as its keys do, else to the process group.
func (j *job) signal(sig unix.Signal) {
	if fg := j.foreground(); fg > 1 {
		unix.Kill(-fg, sig)
		return
	}
	unix.Kill(-j.pid, sig)
}

var errEnded = errors.New("the job has ended")

// add adds a client. It has seen nothing of the output before, but what a named
// session remembers.
func (j *job) add(v *viewer) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.done {
		return errEnded
	}
	v.frame(frameStarted, appendLine(nil, started{Job: j.id}))
	if j.screen != nil {
		j.show(v)
	}
	j.viewers = append(j.viewers, v)
	j.watched.Store(int32(len(j.viewers)))
	return nil
}

// serve serves a client that was added, until it goes.
func (j *job) serve(v *viewer) {
	go j.input(v)
	j.control(v)
}

// input moves a client's input to the job. What the job does not read any more
// is thrown away, so that the client never waits for it. The stream is closed
// when the client has gone.
func (j *job) input(v *viewer) {
	defer v.data.Close()
	var writeErr error
	if j.screen != nil {
		writeErr = j.typing(v)
	} else if j.terminal != nil {
		_, writeErr = Copy(j.terminal, v.data)
	} else {
		_, writeErr = Copy(j.stdin, v.data)
		j.stdin.Close()
	}
	if writeErr != nil {
		Copy(io.Discard, v.data)
	}
	<-v.gone
}

// control follows a client's control stream, and then the client's going.
func (j *job) control(v *viewer) {
	defer v.control.Close()
	var buf frameBuffer
	for {
		typ, payload, err := buf.read(v.control)
		if err != nil {
			break
		}
		switch typ {
		case frameResize:
			if s, err := decodeSize(payload); err == nil && j.terminal != nil {
				j.resize(v, s)
			}
		case frameSignal:
			if n, ok := signals[string(payload)]; ok {
				j.signal(unix.Signal(n))
			}
		case frameHangup:
			v.hungup = true
		}
	}
	close(v.gone)
	j.detach(v)
}

// detach takes a client away. When the last one has gone for good and the job is
// not one to keep, it is ended.
func (j *job) detach(v *viewer) {
	j.mu.Lock()
	for i, other := range j.viewers {
		if other == v {
			j.viewers = append(j.viewers[:i], j.viewers[i+1:]...)
			break
		}
	}
	j.watched.Store(int32(len(j.viewers)))
	end := v.hungup && len(j.viewers) == 0 && !j.keep && !j.left && !j.done
	j.left = j.left || end
	j.mu.Unlock()
	if !end {
		return
	}
	if j.terminal != nil {
		j.hangup()
		j.later(terminalGrace, unix.SIGTERM)
		j.later(terminalGrace+killGrace, unix.SIGKILL)
		return
	}
	// A program that writes gets SIGPIPE, one that reads end of file.
	closeAll([]*os.File{j.stdin, j.stdout, j.stderr})
	time.AfterFunc(plainGrace, func() {
		// What is left of a group keeps its number, but once the group has ended
		// too, a stranger may have got it. That one shows: its leader lives.
		if !j.over() || unix.Kill(j.pid, 0) == unix.ESRCH {
			j.hangup()
		}
	})
}

// later signals the job's groups after a while, if the leader still runs.
func (j *job) later(after time.Duration, sig unix.Signal) {
	time.AfterFunc(after, func() {
		if !j.over() {
			j.signalGroups(sig)
		}
	})
}

// over says whether the leader has ended.
func (j *job) over() bool {
	select {
	case <-j.ended:
		return true
	default:
		return false
	}
}

func (j *job) attached() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.viewers)
}

// info describes a plain command.
func (j *job) info() JobInfo {
	return JobInfo{
		ID: j.id, Kind: KindExec, Text: j.text, Terminal: j.terminal != nil,
		Started: j.started, Attached: j.attached(),
	}
}
