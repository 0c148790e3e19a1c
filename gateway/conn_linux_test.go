package gateway

import (
	"bytes"
	"io"
	"testing"
	"time"
)

// A connection that waits for its client holds no buffer, whatever went before.
func TestIdleConnHoldsNoBuffer(t *testing.T) {
	client, front := greeted(t)
	for range 3 {
		sent := bytes.Repeat([]byte("x"), 3*readBufferSize/2)
		go client.Write(sent)
		if _, err := io.ReadFull(front, make([]byte, len(sent))); err != nil {
			t.Fatal(err)
		}
	}
	waiting := make(chan error)
	go func() {
		_, err := front.Read(make([]byte, 1))
		waiting <- err
	}()
	time.Sleep(20 * time.Millisecond) // until it waits; too short a time fails nothing
	front.Close()
	if err := <-waiting; err == nil {
		t.Error("read something that was not sent")
	}
	if front.replay != nil || front.in.buf != nil {
		t.Error("an idle connection held on to a buffer")
	}
}
