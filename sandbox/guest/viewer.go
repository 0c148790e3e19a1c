//go:build linux

package guest

import (
	"bytes"
	"io"
	"slices"
	"sync"
	"time"
)

// A viewer is one client of a job.
type viewer struct {
	control, data *stream

	writing sync.Mutex    // frames from the job's parts do not mix
	gone    chan struct{} // closed when the control stream has ended
	hungup  bool          // valid then: the client has gone for good

	// Of a job with a screen.
	watch bool        // it sees, and says nothing
	queue chan []byte // what it is to be shown; closed when the job has ended
	exit  Exit        // valid then
	stale bool        // guarded by the job's mu: it did not keep up, and is to be shown the screen anew
	size  Size        // guarded by the job's mu: of its own terminal
}

func newViewer(control, data *stream) *viewer {
	return &viewer{control: control, data: data, gone: make(chan struct{})}
}

// frame writes one frame of any length of payload, cut as needed.
func (v *viewer) frame(typ byte, payload []byte) error {
	v.writing.Lock()
	defer v.writing.Unlock()
	for len(payload) > maxFrame {
		if err := writeFrame(v.control, typ, payload[:maxFrame]); err != nil {
			return err
		}
		payload = payload[maxFrame:]
	}
	return writeFrame(v.control, typ, payload)
}

// finish tells how the job ended, as the last word.
func (v *viewer) finish(e Exit) {
	v.data.CloseWrite()
	v.frame(frameExit, appendLine(nil, e))
	v.control.CloseWrite()
}

// fail tells that there is no job, and why.
func (v *viewer) fail(code int, reason string) {
	v.frame(frameStderr, []byte("sandgate: "+reason+"\n"))
	v.finish(Exit{Code: code})
}

// output writes what the job printed.
func (v *viewer) output(stderr bool, p []byte) error {
	if stderr {
		return v.frame(frameStderr, p)
	}
	_, err := v.data.Write(p)
	return err
}

// watching returns who views the job.
func (j *job) watching() []*viewer {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.viewers)
}

// A viewer of a screen that does not keep up holds up the job for a moment only: a
// closed laptop must not stop what it has left behind. It is shown the screen as it
// is then, when it reads again.
const (
	queueLength  = 32 // pieces of output
	stallTimeout = 2 * time.Second

	screenLag = 20 * time.Millisecond // of the emulator behind the output
)

// present shows what the job has printed to all who view its screen.
func (j *job) present(p []byte) {
	j.mu.Lock()
	if j.screen.write(p) {
		time.AfterFunc(screenLag, func() {
			j.mu.Lock()
			defer j.mu.Unlock()
			j.screen.flush()
		})
	}
	var slow []*viewer
	p = bytes.Clone(p)
	for _, v := range j.viewers {
		if v.stale {
			continue
		}
		select {
		case v.queue <- p:
		default:
			slow = append(slow, v)
		}
	}
	j.mu.Unlock()
	for _, v := range slow {
		late := time.NewTimer(stallTimeout)
		select {
		case v.queue <- p:
		case <-v.gone:
		case <-late.C:
			j.mu.Lock()
			v.stale = true
			j.mu.Unlock()
		}
		late.Stop()
	}
}

// show begins to show the screen to v. The caller holds mu.
func (j *job) show(v *viewer) {
	v.queue = make(chan []byte, queueLength)
	if !v.watch {
		j.typist = v
		j.fit(v.size)
	}
	if size, _, _, _ := j.record.log.extent(); size > 0 {
		v.queue <- j.screen.repaint()
	}
	go func() {
		for {
			select {
			case p, ok := <-v.queue:
				if !ok {
					v.finish(v.exit)
					return
				}
				if _, err := v.data.Write(p); err != nil {
					<-v.gone
					return
				}
			case <-v.gone:
				return
			}
			if len(v.queue) > 0 {
				continue
			}
			j.mu.Lock()
			var p []byte
			if v.stale {
				v.stale = false
				p = j.screen.repaint()
			}
			j.mu.Unlock()
			v.data.Write(p)
		}
	}()
}

// typing moves what a viewer types to the job. Whoever types has the terminal's size.
func (j *job) typing(v *viewer) error {
	if v.watch {
		Copy(io.Discard, v.data)
		return nil
	}
	var buf copyBuffer
	for {
		p, err := buf.read(v.data)
		if len(p) > 0 {
			j.mu.Lock()
			if j.typist != v {
				j.typist = v
				j.fit(v.size)
			}
			j.mu.Unlock()
			if _, err := j.terminal.Write(p); err != nil {
				return err
			}
		}
		if err != nil {
			return nil
		}
	}
}

// resize gives the terminal the size of v's, or only notes it where another viewer
// decides.
func (j *job) resize(v *viewer, s Size) {
	if j.screen == nil {
		setSize(j.terminal, s)
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	v.size = s
	if j.typist == v {
		j.fit(s)
	}
}

// fit gives terminal and screen a size. The caller holds mu.
func (j *job) fit(s Size) {
	if s.Columns == 0 && s.Rows == 0 {
		return
	}
	setSize(j.terminal, s)
	j.screen.resize(s)
}

// reply gives the job the answers of the emulator, as far as nobody's terminal is
// there to answer, until stop is closed.
func (j *job) reply(stop <-chan struct{}) {
	for {
		select {
		case p := <-j.replies:
			if j.watched.Load() == 0 {
				j.terminal.Write(p)
			}
		case <-stop:
			return
		}
	}
}
