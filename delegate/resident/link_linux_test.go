package resident_test

import (
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/resident"
)

// A call that the connection no longer takes has not been run, and says so.
func TestCallThatTheConnectionRefusesHasNotRun(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	p := n.dial().say(hello("10", "a", "a"))
	if w := p.hear(); w.Error != "" {
		t.Fatal(w.Error)
	}
	begun, end := make(chan struct{}), make(chan struct{})
	var calls atomic.Int32
	srv, stop := serveHTTP(p, func(path string, _ io.Writer) {
		if path == "/cni" && calls.Add(1) == 1 {
			close(begun)
			<-end
		}
	})
	t.Cleanup(stop)
	n.await("10-a ready", 1)
	first := make(chan error, 1)
	go func() {
		_, err := n.exec(t.Context(), "a", "ADD", "c1")
		first <- err
	}()
	come(t, begun, "the first call")
	down := make(chan error, 1)
	go func() { down <- srv.Shutdown(t.Context()) }() // takes no more calls, and waits for the first
	var err error
	for err == nil { // until the host has heard of it
		_, err = n.exec(t.Context(), "a", "ADD", "c2")
	}
	wantCode(t, err, 11)
	if !errors.Is(err, resident.ErrGone) || !errors.Is(err, delegate.ErrNotRun) {
		t.Errorf("err = %v", err)
	}
	close(end)
	ok(t, come(t, first, "the first answer"))
	ok(t, come(t, down, "the end"))
}

// A process whose user the system does not tell is refused.
func TestUnidentifiedPeersAreRefused(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	n := &node{t: t, more: make(chan struct{})}
	n.Host = &resident.Host{Listener: l, Observer: n.note}
	n.start()
	c, err := net.Dial("tcp", l.Addr().String())
	ok(t, err)
	err = simple("10", "a").Serve(t.Context(), c)
	if !errors.Is(err, resident.ErrRefused) || !strings.Contains(err.Error(), "not known whose process it is") {
		t.Errorf("err = %v", err)
	}
	if all := n.Plugins(); len(all) > 0 {
		t.Errorf("entered: %v", all)
	}
}
