package guest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"time"
)

// ConnectArgs are the arguments that make Executable carry the guest's connection
// over its standard input and output, for a driver that shares no folder with its
// sandboxes: `Executable guest connect`, run in the sandbox by an engine.
func ConnectArgs() []string { return []string{Executable, "guest", "connect"} }

// connected is what `guest connect` writes first, when the guest has connected.
const connected = "connected"

// connectWait is how long `guest connect` waits for the guest.
const connectWait = 20 * time.Second

// AwaitConnected reads from the output of `guest connect` until it says that the
// guest has connected; what follows in r is the guest's.
func AwaitConnected(r *bufio.Reader) error {
	line, err := r.ReadSlice('\n')
	switch {
	case errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF
	case err != nil && !errors.Is(err, bufio.ErrBufferFull):
		return err
	case string(line) != connected+"\n":
		return fmt.Errorf("guest connect said %q", printable(string(line)))
	}
	return nil
}
