package gateway

import (
	"bytes"

	"golang.org/x/crypto/ssh"
)

// isDropbear tells Dropbear's client, dbclient.
func isDropbear(conn *ssh.ServerConn) bool {
	return bytes.HasPrefix(conn.ClientVersion(), []byte("SSH-2.0-dropbear"))
}

// A wakingChannel sends the client something that means nothing once the client
// has closed the channel. Dropbear's (seen with 2022.83) looks whether it was the
// last one only before it writes what came on it. If the end of the channel came
// before all was written, it would wait for something to happen, for ever.
type wakingChannel struct {
	ssh.NewChannel
	conn *ssh.ServerConn
}

func (c wakingChannel) Accept() (ssh.Channel, <-chan *ssh.Request, error) {
	ch, in, err := c.NewChannel.Accept()
	if err != nil {
		return nil, nil, err
	}
	out := make(chan *ssh.Request)
	go func() {
		for req := range in {
			out <- req
		}
		close(out)
		c.conn.SendRequest("keepalive@openssh.com", false, nil)
	}()
	return ch, out, nil
}
