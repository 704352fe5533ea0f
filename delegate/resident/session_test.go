package resident

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
)

// plain is a resident that does nothing.
func plain() *Plugin {
	return &Plugin{Index: "10", Name: "a", Types: []string{"a"}, Funcs: func(context.Context, io.Writer) skel.CNIFuncs { return skel.CNIFuncs{} }}
}

// A host that answers requests with what is no answer, or not any more, loses
// the resident: its requests end, and it can register again.
func TestRequestsEndWithTheStreamOfThem(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(*io.PipeWriter) error{
		"too long": func(w *io.PipeWriter) error {
			_, err := w.Write(bytes.Repeat([]byte("x"), maxRequest+1))
			return err
		},
		"closed": (*io.PipeWriter).Close,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ours, its := net.Pipe()
			d := plain()
			served := make(chan error, 1)
			go func() { served <- d.Serve(t.Context(), its) }()
			if _, err := readHello(ours); err != nil {
				t.Fatal(err)
			}
			if err := writeLine(ours, welcome{Version: protocol, Requests: true}); err != nil {
				t.Fatal(err)
			}
			l := newLink(ours, time.Hour, func(error) {})
			defer l.close()
			if err := l.open(t.Context()); err != nil {
				t.Fatal(err)
			}
			r := &Host{}
			q, err := r.openRequests(t.Context(), &entry{link: l})
			if err != nil || q == nil {
				t.Fatal(q, err)
			}
			asked := make(chan error, 1)
			go func() {
				_, err := d.Request(t.Context(), Update{Op: Detach, ContainerID: "c1", IfName: "net1"})
				asked <- err
			}()
			if _, err := q.lines.next(); err != nil {
				t.Fatal(err)
			}
			_ = answer(q.answers) // the resident may end the stream before all of it is read
			for what, c := range map[string]chan error{"the request": asked, "the delegate": served} {
				select {
				case err := <-c:
					if !errors.Is(err, ErrLost) {
						t.Errorf("%s: %v", what, err)
					}
				case <-time.After(30 * time.Second):
					t.Fatalf("%s goes on", what)
				}
			}
		})
	}
}
