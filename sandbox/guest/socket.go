package guest

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
)

// A Socket is where one sandbox's guest connects: a Listener that is opened on
// first use and stays open until it is closed for good. All methods may be called
// at the same time.
type Socket struct {
	dir      string
	uid, gid int

	mu       sync.Mutex
	listener *Listener
	over     error // why it may not be opened any more
}

// NewSocket returns the socket in the folder dir, which is made when it is opened.
// uid and gid are as for Listen.
func NewSocket(dir string, uid, gid int) *Socket {
	return &Socket{dir: dir, uid: uid, gid: gid}
}

// Dir returns the socket's folder.
func (s *Socket) Dir() string { return s.dir }

// Open listens, if it does not already. After Close the error is Close's.
func (s *Socket) Open() error {
	_, err := s.open()
	return err
}

func (s *Socket) open() (*Listener, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener != nil || s.over != nil {
		return s.listener, s.over
	}
	if err := os.MkdirAll(s.dir, 0o711); err != nil {
		return nil, err
	}
	l, err := Listen(s.dir, s.uid, s.gid)
	if err != nil {
		return nil, err
	}
	s.listener = l
	return l, nil
}

// Accept returns the next connection that the guest opens. After Close the error
// is Close's.
func (s *Socket) Accept(ctx context.Context) (*net.UnixConn, error) {
	l, err := s.open()
	if err != nil {
		return nil, err
	}
	conn, err := l.Accept(ctx)
	if errors.Is(err, net.ErrClosed) {
		if over := s.Open(); over != nil {
			err = over
		}
	}
	return conn, err
}

// Close stops listening for ever, because of over. It may be called again.
func (s *Socket) Close(over error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over == nil {
		s.over = over
	}
	if s.listener != nil {
		s.listener.Close()
		s.listener = nil
	}
}
