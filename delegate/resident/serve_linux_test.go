package resident_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/resident"
)

func TestServeFailsWhenTheHostBreaksTheProtocol(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		say  string
		want error
	}{
		"garbage":       {"garbage\n", resident.ErrLost},
		"endless":       {strings.Repeat("x", 1<<17), resident.ErrLost},
		"closed":        {"", resident.ErrLost},
		"newer version": {`{"version":3}` + "\n", resident.ErrRefused},
		"refusal":       {`{"version":2,"error":"no"}` + "\n", resident.ErrRefused},
		"version 1":     {`{"version":1,"error":"version 2 of the messages is not known here, 1 is"}` + "\n", resident.ErrRefused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t) // only its listener is used
			r := n.connect(simple("10", "a"))
			c, err := n.Listener.Accept()
			ok(t, err)
			go func() {
				_, _ = io.WriteString(c, tt.say)
				_ = c.Close()
			}()
			if err := come(t, r.err, "the end"); !errors.Is(err, tt.want) {
				t.Errorf("err = %v", err)
			}
		})
	}
}

func TestServeRefusesAnInvalidPlugin(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	for _, d := range []*resident.Plugin{
		newPlugin("1", "a", fakes(), "a"),
		newPlugin("10", "a/b", fakes(), "a"),
		newPlugin("10", "a", fakes(), "a/b"),
	} {
		if err := come(t, n.connect(d).err, "the refusal"); !errors.Is(err, resident.ErrRefused) {
			t.Errorf("err = %v", err)
		}
	}
}

// Run reconnects when the connection is lost and when the host refuses.
func TestRunReconnects(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	first := n.serve(newPlugin("10", "a", fakes("a"), "a"))
	d := simple("10", "a")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	end := make(chan error)
	go func() { end <- d.Run(ctx, n.socket) }()
	n.mu.Lock()
	more := n.more
	n.mu.Unlock()
	come(t, more, "a refusal")
	first.stop()
	n.await("10-a ready", 2)
	_, err := n.exec(t.Context(), "a", "ADD", "c1")
	ok(t, err)
	cancel()
	ok(t, come(t, end, "the end"))
	n.await("10-a gone", 2)
}

// When the context of Serve ends, running commands may end and their answers
// arrive. Further ADDs fail with code 11 and have executed nothing; DELs wait
// for the next resident.
func TestServeWaitsForRunningCommands(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.ReturnTimeout = patience
	n.start()
	in, out := make(chan struct{}), make(chan struct{})
	d := with("10", "p", func(_ context.Context, c delegatetest.Call) ([]byte, error) {
		if c.ContainerID == "slow" {
			close(in)
			<-out
		}
		return []byte("done"), nil
	})
	d.DrainTimeout = time.Hour
	r := n.serve(d)
	slow := make(chan error, 1)
	go func() {
		answer, err := n.exec(t.Context(), "p", "ADD", "slow")
		if string(answer) != "done" {
			err = errors.Join(err, fmt.Errorf("answer %q", answer))
		}
		slow <- err
	}()
	come(t, in, "the call")
	r.stop()
	for {
		// Calls are answered until the host knows that it leaves.
		if _, err := n.exec(t.Context(), "p", "ADD", "c2"); err != nil {
			wantCode(t, err, 11)
			if !errors.Is(err, delegate.ErrNotRun) {
				t.Errorf("err = %v", err)
			}
			break
		}
	}
	deleted := make(chan error, 1)
	go func() {
		_, err := n.exec(t.Context(), "p", "DEL", "c2")
		deleted <- err
	}()
	close(out)
	ok(t, come(t, slow, "the answer"))
	ok(t, come(t, r.err, "the end"))
	n.await("10-p gone", 1)
	x := fakes("p")
	n.serve(newPlugin("10", "p", x), 2)
	ok(t, come(t, deleted, "the DEL"))
	if got := x.Trace(); len(got) != 1 || got[0] != "DEL p eth0" {
		t.Errorf("%q", got)
	}
}
