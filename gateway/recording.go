package gateway

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"sandgate/gateway/redact"
	"sandgate/sandbox"
	"sandgate/sandbox/guest"
	"sandgate/store"
)

// The bounds of recordings.
const (
	maxRecording       = 32 << 20 // bytes of one
	maxRecordings      = 500      // of one owner; the oldest go
	maxRecordingsTotal = 1 << 30  // bytes of one owner's; the oldest go
)

// A castRecorder writes what a terminal shows to a file in the format asciicast v2,
// without the values of secrets. What the user types is not recorded, but where
// the terminal shows it. One that is nil records nothing; one that cannot
// write any more does not hold up the session.
type castRecorder struct {
	db  *store.DB
	log *slog.Logger
	id  string

	mu    sync.Mutex
	file  *os.File // nil: it has ended
	clean *redact.Writer
	began time.Time
	size  int64
	rest  []byte // the beginning of a character
}

// record begins to record a terminal of a sandbox. If that cannot be, it says so on
// w and returns nil.
func (l *Login) record(ctx context.Context, row store.Sandbox, t *guest.Terminal, secrets *redact.Redactor, w io.Writer) *castRecorder {
	r := &castRecorder{db: l.gate.db, log: l.log, id: strings.ToLower(rand.Text()[:10]), began: time.Now()}
	r.clean = secrets.Writer(castWriter{r})
	err := r.begin(ctx, l.gate.cfg.Recordings, store.Recording{
		ID: r.id, OwnerID: row.UserID, Sandbox: row.Name + "." + row.Owner, User: l.user.Name, Conn: l.id, Started: r.began,
	}, t)
	if err != nil {
		l.log.Error("recording not begun", keySandbox, row.ID, keyErr, err)
		fmt.Fprintf(w, "sandgate: this session is not recorded: %s\n", oneLine(err.Error()))
		return nil
	}
	return r
}

// recordedJob is session.recorded for a job that the caller is at.
func (c *verbCall) recordedJob(u *JobUse) (end func(), err error) {
	row, err := c.login.named(c.ctx, "info", u.job.Sandbox)
	if err != nil {
		return nil, err
	}
	o, err := sandbox.OptionsOf(row)
	if err != nil {
		return nil, err
	}
	var values []string
	if vault := c.login.gate.cfg.Vault; vault != nil && o.Records() {
		secrets, err := vault.Reveal(c.ctx, row.ID)
		if err != nil {
			return nil, err
		}
		for _, s := range secrets {
			values = append(values, string(s.Value))
		}
	}
	return c.session.recorded(row, o, redact.New(values)), nil
}

// begin makes room, the row and the file.
func (r *castRecorder) begin(ctx context.Context, dir string, row store.Recording, t *guest.Terminal) error {
	if dir == "" {
		return errors.New("this gateway keeps no recordings")
	}
	if err := makeRoom(ctx, r.db, dir, row.OwnerID); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := r.db.AddRecording(ctx, row); err != nil {
		return err
	}
	f, err := os.OpenFile(recordingFile(dir, row.ID), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		r.db.DeleteRecording(ctx, row.ID)
		return err
	}
	r.file = f
	size := guest.Size{Columns: 80, Rows: 24}
	if t.Size.Columns > 0 && t.Size.Rows > 0 {
		size = t.Size
	}
	return r.line(map[string]any{
		"version": 2, "width": size.Columns, "height": size.Rows, "timestamp": row.Started.Unix(),
		"title": row.Sandbox + " by " + row.User, "env": map[string]string{"TERM": auditDetail(t.Term)},
	})
}

func recordingFile(dir, id string) string { return filepath.Join(dir, id+".cast") }

// makeRoom deletes an owner's oldest recordings until there is room for another.
func makeRoom(ctx context.Context, db *store.DB, dir string, ownerID int64) error {
	all, err := db.Recordings(ctx, ownerID)
	if err != nil {
		return err
	}
	var total int64
	for _, r := range all {
		total += r.Size
	}
	for len(all) >= maxRecordings || len(all) > 0 && total > maxRecordingsTotal-maxRecording {
		if err := deleteRecording(ctx, db, dir, all[0].ID); err != nil {
			return err
		}
		total -= all[0].Size
		all = all[1:]
	}
	return nil
}

func deleteRecording(ctx context.Context, db *store.DB, dir, id string) error {
	if err := os.Remove(recordingFile(dir, id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := db.DeleteRecording(ctx, id); err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	return nil
}

// line writes one line of the file. The caller holds mu, or is the only one.
func (r *castRecorder) line(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	n, err := r.file.Write(append(b, '\n'))
	r.size += int64(n)
	return err
}

// event writes an event now, if the recording goes on. The caller holds mu.
func (r *castRecorder) event(code, data string) {
	if r.file == nil {
		return
	}
	// Text in JSON is at most six times as long.
	if r.size+int64(6*len(data)) > maxRecording {
		r.line([]any{time.Since(r.began).Seconds(), "o", fmt.Sprintf("\r\n[the recording ends here, at %d MiB]\r\n", maxRecording>>20)})
		r.close()
		return
	}
	if err := r.line([]any{time.Since(r.began).Seconds(), code, data}); err != nil {
		r.log.Error("recording cut short", "recording", r.id, keyErr, err)
		r.close()
	}
}

// output records what the terminal shows.
func (r *castRecorder) output(p []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file != nil {
		r.clean.Write(p) // a castWriter cannot fail
	}
}

// A castWriter writes events of output; the recorder's mu is held.
type castWriter struct{ r *castRecorder }

func (c castWriter) Write(p []byte) (int, error) {
	text := append(c.r.rest, p...)
	// A character may be cut in two, also by what is held back for secrets.
	end := len(text)
	for i := max(0, end-utf8.UTFMax+1); i < end; i++ {
		if utf8.RuneStart(text[i]) && !utf8.FullRune(text[i:]) {
			end = i
		}
	}
	if end > 0 {
		c.r.event("o", string(text[:end])) // what is no UTF-8 becomes U+FFFD in JSON
	}
	c.r.rest = append([]byte(nil), text[end:]...)
	return len(p), nil
}

// resize records that the terminal has another size.
func (r *castRecorder) resize(s guest.Size) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.event("r", fmt.Sprintf("%dx%d", s.Columns, s.Rows))
}

// end ends the recording.
func (r *castRecorder) end() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == nil {
		return
	}
	r.clean.Close()
	if len(r.rest) > 0 {
		r.event("o", string(r.rest))
	}
	r.close()
}

// close closes the file and records its size. The caller holds mu.
func (r *castRecorder) close() {
	if r.file == nil {
		return
	}
	err := r.file.Close()
	r.file = nil
	ctx, cancel := context.WithTimeout(context.Background(), touchTimeout)
	defer cancel()
	err = errors.Join(err, r.db.EndRecording(ctx, r.id, time.Now(), r.size))
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		r.log.Error("recording not closed", "recording", r.id, keyErr, err)
	}
}

// A recordedWriter is a terminal that is recorded, if that is so.
type recordedWriter struct {
	io.Writer
	r *castRecorder
}

func (w recordedWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	if w.r != nil {
		w.r.output(p[:n])
	}
	return n, err
}

// Recordings returns those of the caller's sandboxes or, for admins who want all,
// all.
func (l *Login) Recordings(ctx context.Context, everybody bool) ([]store.Recording, error) {
	if err := l.may(ctx, "rec ls"); err != nil {
		return nil, err
	}
	whose := l.user.ID
	if everybody {
		if err := l.mustBeAdmin(ctx, "see the recordings of others"); err != nil {
			return nil, err
		}
		whose = 0
	}
	return l.gate.db.Recordings(ctx, whose)
}

// recording returns a recording that the caller may deal with by a verb.
func (l *Login) recording(ctx context.Context, verb deed, id string) (store.Recording, error) {
	if err := l.may(ctx, verb); err != nil {
		return store.Recording{}, err
	}
	r, err := l.gate.db.Recording(ctx, strings.ToLower(id))
	if err == nil && r.OwnerID != l.user.ID && l.mustBeAdmin(ctx, "see it") != nil {
		err = store.ErrNotFound
	}
	if errors.Is(err, store.ErrNotFound) {
		return store.Recording{}, &problem{kind: notFound, sentence: fmt.Sprintf("no recording %.40q", id), hint: "ssh gate@HOST rec ls"}
	}
	return r, err
}

// OpenRecording returns the file of a recording.
func (l *Login) OpenRecording(ctx context.Context, verb deed, id string) (io.ReadCloser, error) {
	r, err := l.recording(ctx, verb, id)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(recordingFile(l.gate.cfg.Recordings, r.ID))
	if err != nil {
		return nil, fmt.Errorf("recording %s: %w", r.ID, err)
	}
	return f, nil
}

// RemoveRecording deletes a recording.
func (l *Login) RemoveRecording(ctx context.Context, id string) error {
	r, err := l.recording(ctx, "rec rm", id)
	if err != nil {
		return err
	}
	return deleteRecording(ctx, l.gate.db, l.gate.cfg.Recordings, r.ID)
}
