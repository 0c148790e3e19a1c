//go:build linux

package guest

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/yamux"
	"golang.org/x/sys/unix"

	"sandgate/sandbox/guest/tool"
)

// A workshop is the process in which an account's tools run, as this guest sees it.
type workshop struct {
	link *link
	done chan struct{} // closed when it has gone
}

// useTools passes a tool stream on to the account's workshop, which is opened when it
// is first needed and stays.
func (g *guest) useTools(st *stream, h header) {
	defer st.Close()
	if h.Tool == nil {
		return
	}
	a, err := g.accounts.lookup(h.User)
	if err != nil {
		refuseTool(st, tool.Errorf(tool.Denied, "%v", err).With("choose a user that there is"))
		return
	}
	if h.Tool.Dir == "" {
		h.Tool.Dir = g.dirOf(a)
	}
	w, err := g.workshop(a)
	if err != nil {
		refuseTool(st, tool.Errorf(tool.Busy, "the tools could not be started: %v", err).With("end processes that are not needed, then try again"))
		return
	}
	in, err := w.link.open(h)
	if err != nil {
		refuseTool(st, tool.Errorf(tool.Busy, "too many calls at once"))
		return
	}
	defer in.Close()
	go func() {
		Copy(in, st)
		in.CloseWrite()
	}()
	Copy(st, in)
	st.CloseWrite()
}

// refuseTool answers a call that cannot be made. What was asked is read first: or it
// might be thought that nobody listens.
func refuseTool(st *stream, e *tool.Error) {
	var args json.RawMessage
	if readLine(st.r, maxToolArgs, &args) == nil {
		answerTool(st, nil, e)
	}
}

// workshop returns the account's workshop.
func (g *guest) workshop(a account) (*workshop, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if w := g.workshops[a.name]; w != nil {
		select {
		case <-w.done:
		default:
			return w, nil
		}
	}
	w, err := g.openWorkshop(a)
	if err == nil {
		g.workshops[a.name] = w
	}
	return w, err
}

func (g *guest) openWorkshop(a account) (*workshop, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	theirs := os.NewFile(uintptr(fds[1]), "tools")
	defer theirs.Close()
	ours := os.NewFile(uintptr(fds[0]), "tools")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, err
	}
	const none = ^uintptr(0)
	attr := &syscall.ProcAttr{
		Dir:   "/",
		Env:   environment(a, shellOf(a), g.settings.Env, nil),
		Files: []uintptr{theirs.Fd(), none, none},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	}
	if int(a.uid) != os.Getuid() {
		attr.Sys.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid, Groups: a.groups}
	}
	mark := noMark
	if _, _, err = g.reaper.start("/proc/self/exe", []string{"sandgate", "guest", "tools"}, attr, &mark); err != nil {
		conn.Close()
		return nil, err
	}
	mux, err := yamux.Client(conn, muxConfig())
	if err != nil {
		conn.Close()
		return nil, err
	}
	w := &workshop{link: newLink(mux), done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.link.accept(func(s *stream, _ header) { s.Close() }) // it opens none
		mux.Close()
	}()
	return w, nil
}

// maxToolSessions bounds the conversations that a workshop remembers.
const maxToolSessions = 256

// A toolbench is a workshop from within.
type toolbench struct {
	home string

	mu       sync.Mutex
	sessions map[string]*toolSession
}

type toolSession struct {
	*tool.Session
	used time.Time
}

// serveToolsOnStdin is the workshop's process. It ends with the guest.
func serveToolsOnStdin() int {
	unix.Umask(0o022)
	conn, err := net.FileConn(os.Stdin)
	if err != nil {
		return 1
	}
	os.Stdin.Close()
	mux, err := yamux.Server(conn, muxConfig())
	if err != nil {
		return 1
	}
	b := &toolbench{home: os.Getenv("HOME"), sessions: make(map[string]*toolSession)}
	newLink(mux).accept(b.serve)
	return 0
}

// session returns what is remembered of a conversation. The one that was not used for
// the longest time is forgotten, if there are too many.
func (b *toolbench) session(name string) *tool.Session {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.sessions[name]
	if s == nil {
		s = &toolSession{Session: tool.NewSession(b.home)}
		b.sessions[name] = s
	}
	s.used = time.Now()
	if len(b.sessions) > maxToolSessions {
		oldest := name
		for n, other := range b.sessions {
			if other.used.Before(b.sessions[oldest].used) {
				oldest = n
			}
		}
		delete(b.sessions, oldest)
	}
	return s.Session
}

// serve answers one call.
func (b *toolbench) serve(st *stream, h header) {
	defer st.Close()
	if h.Kind != kindTool || h.Tool == nil {
		return
	}
	var args json.RawMessage
	if err := readLine(st.r, maxToolArgs, &args); err != nil {
		answerTool(st, nil, tool.Errorf(tool.BadArgs, "the arguments could not be read: %v", err))
		return
	}
	ctx, cancel := untilEnd(st)
	defer cancel()
	out, err := b.call(ctx, h.Tool, args)
	answerTool(st, out, err)
	st.CloseWrite()
	<-ctx.Done()
}

// call makes a call. A tool that panics must not take those of others with it.
func (b *toolbench) call(ctx context.Context, use *useTool, args json.RawMessage) (out tool.Output, err error) {
	defer func() {
		if p := recover(); p != nil {
			out, err = nil, tool.Errorf(tool.Killed, "%s broke: %v", use.Name, p)
		}
	}()
	return b.session(use.Session).Call(ctx, use.Dir, use.Name, args)
}

// answerTool writes the reply, in pieces that let others speak as well.
func answerTool(st io.Writer, out tool.Output, err error) {
	var r toolReply
	if err != nil {
		r.Error, _ = json.Marshal(err)
	} else {
		r.Output, _ = json.Marshal(out)
	}
	w := bufio.NewWriterSize(st, maxFrame)
	if writeLine(w, r) == nil {
		w.Flush()
	}
}
