package guest

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// protocolVersion changes when an older guest could misunderstand a newer
// gateway. A guest keeps running while its gateway is upgraded.
const protocolVersion = 1

// The bounds of the protocol.
const (
	maxHello  = 1 << 10   // bytes of a hello or its answer
	maxHeader = 512 << 10 // bytes of a stream's first line: a command and its environment
	maxReply  = 64 << 10  // bytes of a reply line
	maxFrame  = 64 << 10  // bytes of a frame's payload
	maxSpares = 4         // connections that a guest keeps dialled ahead

	maxListeners = 128  // in one sandbox
	maxJobs      = 4096 // running at once in one sandbox

	helloTimeout = 10 * time.Second // for a hello and its answer
	replyTimeout = 60 * time.Second // for a dial's or listen's reply
	joinTimeout  = 10 * time.Second // for a job's two streams to find each other
)

type role string

const (
	roleControl role = "control"
	roleSpare   role = "spare"
)

// hello is the first line on every connection, and answers itself on the control
// connection.
type hello struct {
	Sandgate int    `json:"sandgate"`
	Role     role   `json:"role,omitempty"`
	Instance string `json:"instance,omitempty"`
	Session  string `json:"session,omitempty"`
}

type kind string

const (
	kindExec   kind = "exec"
	kindShell  kind = "shell"
	kindAttach kind = "attach"
	kindData   kind = "data"
	kindSFTP   kind = "sftp"
	kindDial   kind = "dial"
	kindListen kind = "listen"
	kindAccept kind = "accept"
	kindJobs   kind = "jobs"
	kindRun    kind = "run"
	kindLook   kind = "look"
	kindWait   kind = "wait"
	kindLog    kind = "log"
	kindInput  kind = "input"
	kindKill   kind = "kill"
	kindForget kind = "forget"
	kindServe  kind = "serve"
	kindTool   kind = "tool"
	kindAbort  kind = "abort"
)

// header is the first line of a stream.
type header struct {
	Kind     kind      `json:"kind"`
	Token    string    `json:"token,omitempty"`    // data, exec, shell, attach, listen, accept
	Job      string    `json:"job,omitempty"`      // attach, look, wait, log, input, kill, forget: id or name
	Command  *Command  `json:"command,omitempty"`  // exec, shell
	User     string    `json:"user,omitempty"`     // sftp, listen, tool
	Reads    bool      `json:"reads,omitempty"`    // sftp: for reading only
	Address  *Address  `json:"address,omitempty"`  // dial, listen; accept: the peer
	Stream   uint32    `json:"stream,omitempty"`   // abort
	Viewing  *Viewing  `json:"viewing,omitempty"`  // attach
	Run      *Run      `json:"run,omitempty"`      // run, exec
	Span     *Span     `json:"span,omitempty"`     // log
	Services []Service `json:"services,omitempty"` // serve
	Data     []byte    `json:"data,omitempty"`     // input
	End      bool      `json:"end,omitempty"`      // input: no more will come
	Signal   string    `json:"signal,omitempty"`   // kill: to the process group; empty: all of the job is ended
	Reason   Reason    `json:"reason,omitempty"`   // kill without signal: why, if not on somebody's word
	Tool     *useTool  `json:"tool,omitempty"`     // tool
}

// reply answers a header where the kind has an answer.
type reply struct {
	Error   string   `json:"error,omitempty"`   // empty: it worked
	Refused bool     `json:"refused,omitempty"` // with Error: the peer or kernel said no
	Missing bool     `json:"missing,omitempty"` // with Error: there is no such job
	Code    int      `json:"code,omitempty"`    // with Error: run: the exit code of a command that could not be started
	Address *Address `json:"address,omitempty"` // listen: where, with the port chosen
	Job     *JobInfo `json:"job,omitempty"`     // run, look, wait
	Offset  int64    `json:"offset,omitempty"`  // log: of the first byte that follows
}

// frame types
const (
	frameResize  = 'r'
	frameSignal  = 's'
	frameHangup  = 'h'
	frameStarted = 'j'
	frameStderr  = 'e'
	frameExit    = 'x'
	frameOutput  = 'o' // of a log
	frameGap     = 'g' // of a log: eight bytes, where the next output begins
	frameEnd     = 'f' // of a log: the job as it is, at the end of what was asked for
)

// errProtocol marks what no honest peer sends, apart from a broken transport.
var errProtocol = errors.New("protocol violated")

// readLine reads one line of JSON of at most limit bytes from r into v. It takes
// nothing from r beyond the line's end.
func readLine(r *bufio.Reader, limit int, v any) error {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > limit {
			return fmt.Errorf("%w: line of more than %d bytes", errProtocol, limit)
		}
		line = append(line, part...)
		if err == nil {
			break
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			if errors.Is(err, io.EOF) && len(line) > 0 {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	if err := json.Unmarshal(line, v); err != nil {
		return fmt.Errorf("%w: malformed line: %v", errProtocol, err)
	}
	return nil
}

// appendLine appends v as a line to b.
func appendLine(b []byte, v any) []byte {
	j, err := json.Marshal(v)
	if err != nil {
		panic(err) // only our own types, which have no way to fail
	}
	return append(append(b, j...), '\n')
}

func writeLine(w io.Writer, v any) error {
	_, err := w.Write(appendLine(nil, v))
	return err
}

// frameHeaderLen is the length of a frame's type and length.
const frameHeaderLen = 5

func putFrameHeader(b []byte, typ byte, length int) {
	b[0] = typ
	binary.BigEndian.PutUint32(b[1:frameHeaderLen], uint32(length))
}

// writeFrame writes one frame in one write. The payload has at most maxFrame bytes.
func writeFrame(w io.Writer, typ byte, payload []byte) error {
	b := make([]byte, frameHeaderLen+len(payload))
	putFrameHeader(b, typ, len(payload))
	copy(b[frameHeaderLen:], payload)
	_, err := w.Write(b)
	return err
}

// A frameBuffer reads frames. It grows to the largest that has come.
type frameBuffer struct{ bytes.Buffer }

// read reads one frame from r. The payload is valid until the next read.
func (b *frameBuffer) read(r io.Reader) (typ byte, payload []byte, err error) {
	var h [frameHeaderLen]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(h[1:])
	if n > maxFrame {
		return 0, nil, fmt.Errorf("%w: frame of %d bytes", errProtocol, n)
	}
	b.Reset()
	if _, err := io.CopyN(b, r, int64(n)); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return h[0], b.Bytes(), nil
}

// Size is a terminal's size in character cells and, where known, in pixels.
type Size struct {
	Columns, Rows, Width, Height uint32
}

const sizeLen = 16

func (s Size) encode() []byte {
	b := make([]byte, 0, sizeLen)
	for _, n := range []uint32{s.Columns, s.Rows, s.Width, s.Height} {
		b = binary.BigEndian.AppendUint32(b, n)
	}
	return b
}

func decodeSize(b []byte) (Size, error) {
	if len(b) != sizeLen {
		return Size{}, fmt.Errorf("%w: terminal size of %d bytes", errProtocol, len(b))
	}
	n := func(i int) uint32 { return binary.BigEndian.Uint32(b[4*i:]) }
	return Size{Columns: n(0), Rows: n(1), Width: n(2), Height: n(3)}, nil
}

// Terminal asks for a terminal. Modes is the encoded list of RFC 4254 section 8,
// at most MaxModes bytes, and may be empty.
type Terminal struct {
	Term  string `json:"term"`
	Size  Size   `json:"size"`
	Modes []byte `json:"modes,omitempty"`
}

// Viewing says how a client attaches to a job.
type Viewing struct {
	Size  Size `json:"size"`            // of its terminal
	Watch bool `json:"watch,omitempty"` // it only looks
}

// MaxModes bounds Terminal.Modes; opcodes are one byte each, so more is nonsense.
const MaxModes = 256 * 5

// Command says what a job runs. Text is handed whole to the user's shell; for a
// login shell it is empty.
type Command struct {
	Text     []byte    `json:"text,omitempty"`
	Env      [][]byte  `json:"env,omitempty"`  // KEY=VALUE, over the user's own
	User     string    `json:"user,omitempty"` // name or uid[:gid]; empty: the one of the sandbox's settings, else root
	Dir      string    `json:"dir,omitempty"`  // where it starts; relative to, or if empty, where commands start; ~ is the home
	Terminal *Terminal `json:"terminal,omitempty"`

	// Files are there in memory before the command starts, for its user alone.
	Files []File `json:"files,omitempty"`

	// Name makes the job a named session: it outlives its clients, and a shell
	// of the same name that is running is attached to instead.
	Name string `json:"name,omitempty"`

	// Script has bash run the text, or sh where there is none, whatever the user's
	// shell is. Of a recorded job JobInfo then has the folder that it ended in.
	Script bool `json:"script,omitempty"`

	// Keep lets a command without a terminal go on when its client has gone for
	// good; its input ends and its output is dropped.
	Keep bool `json:"keep,omitempty"`

	marked bool // in the guest alone: what it leaves running is known by a mark
}

// A File is what a command is to read and no disk to keep. The variable that it is
// named after has its path.
type File struct {
	Variable string `json:"variable"`
	Data     []byte `json:"data"`
}

// Address is an end of a connection inside the sandbox: host and port, or the
// path of a unix socket.
type Address struct {
	Host string `json:"host,omitempty"`
	Port uint16 `json:"port,omitempty"`
	Path []byte `json:"path,omitempty"`

	// Agent asks listen for a unix socket in a private folder of its own, for
	// an ssh-agent; the reply has its path.
	Agent bool `json:"agent,omitempty"`
}

// Exit is how a job ended.
type Exit struct {
	Code   int    `json:"code"`             // 0 to 255; if Signal is empty
	Signal string `json:"signal,omitempty"` // without SIG, as in RFC 4254 section 6.10
	Core   bool   `json:"core,omitempty"`   // with Signal: core dumped
}

// signals are those that RFC 4254 section 6.10 names, and the two of OpenSSH's
// that programs are known to use, by number on Linux.
var signals = map[string]int{
	"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "ABRT": 6, "FPE": 8, "KILL": 9,
	"USR1": 10, "SEGV": 11, "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15,
}

// SignalKnown says whether name, without SIG, is a signal that can be sent.
func SignalKnown(name string) bool {
	_, ok := signals[name]
	return ok
}

// SignalNumber returns the number of a signal, named without SIG, on Linux; 0 if the
// name is not known.
func SignalNumber(name string) int { return signals[name] }

// decodeExit checks what a guest says about an exit.
func decodeExit(b []byte) (Exit, error) {
	var e Exit
	if err := json.Unmarshal(b, &e); err != nil {
		return Exit{}, fmt.Errorf("%w: malformed exit: %v", errProtocol, err)
	}
	if err := e.check(); err != nil {
		return Exit{}, err
	}
	return e, nil
}

func (e *Exit) check() error {
	if e.Code < 0 || e.Code > 255 || len(e.Signal) > 16 || (e.Signal != "" && e.Code != 0) {
		return fmt.Errorf("%w: impossible exit %+v", errProtocol, *e)
	}
	for _, c := range e.Signal {
		if (c < 'A' || c > 'Z') && (c < '0' || c > '9') {
			return fmt.Errorf("%w: impossible signal %q", errProtocol, e.Signal)
		}
	}
	return nil
}
