//go:build linux

package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"
)

// numberedLines is a job that writes 50,000 lines, slowly enough to be interrupted.
const numberedLines = `i=0; while [ $i -lt 25 ]; do seq $((i*2000+1)) $((i*2000+2000)); i=$((i+1)); sleep 0.02; done; exit 7`

// followAsGateway is a gateway that runs, or finds, a job and copies what it prints
// from an offset on to stdout, in a process of its own so that it can be killed. Its
// exit code is the job's.
func followAsGateway(dir, job, offset string) int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	from, err := strconv.ParseInt(offset, 10, 64)
	if err != nil {
		return fail(err)
	}
	l, err := Listen(dir, -1, -1)
	if err != nil {
		return fail(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute) // then it hangs
	defer cancel()
	c, err := Connect(ctx, func(ctx context.Context) (io.ReadWriteCloser, error) { return l.Accept(ctx) }, slog.New(slog.DiscardHandler))
	if err != nil {
		return fail(err)
	}
	if _, err := c.Run(ctx, Run{ID: job, Command: command(numberedLines)}); err != nil {
		return fail(err)
	}
	o, err := c.Output(ctx, job, Span{Offset: from, Follow: true})
	if err != nil {
		return fail(err)
	}
	for {
		p, err := o.Next()
		if err == io.EOF {
			return o.Job().Exit.Code
		}
		if err != nil {
			return fail(err)
		}
		os.Stdout.Write(p.Data)
	}
}

// JOB-03: a gateway is killed at any moment, again and again: what its successors read
// from the last byte on is every line once, in order, and the exit code.
func TestKilledGateway(t *testing.T) {
	var want bytes.Buffer
	for n := range 50_000 {
		fmt.Fprintln(&want, n+1)
	}
	rounds := 100
	if testing.Short() {
		rounds = 5
	}
	var wg sync.WaitGroup
	turns := make(chan struct{}, 4)
	for range rounds {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			if err := killedGateway(t, want.Bytes()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func killedGateway(t *testing.T, want []byte) error {
	dir, err := os.MkdirTemp(t.TempDir(), "")
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	guest := exec.Command(self, "guest", dir)
	if err := guest.Start(); err != nil {
		return err
	}
	defer func() {
		guest.Process.Signal(os.Interrupt)
		guest.Wait()
	}()
	read := filepath.Join(dir, "read")
	job, kills := NewJobID(), 0
	for {
		out, err := os.OpenFile(read, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		fi, err := out.Stat()
		if err != nil {
			return err
		}
		gateway := exec.Command(self, "follow", dir, job, strconv.FormatInt(fi.Size(), 10))
		gateway.Stdout, gateway.Stderr = out, os.Stderr
		err = gateway.Start()
		out.Close()
		if err != nil {
			return err
		}
		if kills < 5 {
			kill := time.AfterFunc(time.Duration(rand.IntN(int(300*time.Millisecond))), func() { gateway.Process.Kill() })
			err = gateway.Wait()
			kill.Stop()
		} else {
			err = gateway.Wait()
		}
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			return fmt.Errorf("the gateway ended with %v, want the job's code", err)
		}
		if exit.ExitCode() == -1 { // killed
			kills++
			continue
		}
		if exit.ExitCode() != 7 {
			return fmt.Errorf("after %d kills: exit code %d, want 7", kills, exit.ExitCode())
		}
		got, err := os.ReadFile(read)
		if err != nil {
			return err
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("after %d kills: %d bytes of %d, equal up to %d", kills, len(got), len(want), common(got, want))
		}
		return nil
	}
}

func common(a, b []byte) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}
