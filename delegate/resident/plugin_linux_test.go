package resident_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/resident"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

func TestServeFailsWhenTheHostBreaksTheProtocol(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		say  string
		want error
	}{
		"nothing": {"", resident.ErrLost},
		"garbage": {"garbage\n", resident.ErrLost},
		"endless": {strings.Repeat("{", 65<<20), resident.ErrLost},
		"refusal": {`{"jsonrpc":"2.0","id":1,"method":"refused","params":{"reason":"no"}}` + "\n", resident.ErrRefused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t) // only its listener is used
			r := n.connect(simple("10", "a"))
			c, err := n.Listener.Accept()
			nodetest.OK(t, err)
			defer func() { _ = c.Close() }()
			go func() { _, _ = io.WriteString(c, tt.say) }()
			if tt.say == "" {
				_ = c.Close()
			}
			nodetest.Is(t, nodetest.Come(t, r.err, "the end"), tt.want)
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
		nodetest.Is(t, nodetest.Come(t, n.connect(d).err, "the refusal"), resident.ErrRefused)
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
	n.await("10-a refused", 1)
	first.stop()
	n.await("10-a ready", 2)
	_, err := n.exec(t.Context(), "a", "ADD", "c1")
	nodetest.OK(t, err)
	cancel()
	nodetest.OK(t, nodetest.Come(t, end, "the end"))
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
	nodetest.Come(t, in, "the call")
	r.stop()
	for {
		// Calls are answered until the host knows that it leaves.
		if _, err := n.exec(t.Context(), "p", "ADD", "c2"); err != nil {
			nodetest.Code(t, err, 11)
			nodetest.Is(t, err, delegate.ErrNotRun)
			break
		}
	}
	deleted := make(chan error, 1)
	go func() {
		_, err := n.exec(t.Context(), "p", "DEL", "c2")
		deleted <- err
	}()
	close(out)
	nodetest.OK(t, nodetest.Come(t, slow, "the answer"))
	nodetest.OK(t, nodetest.Come(t, r.err, "the end"))
	n.await("10-p gone", 1)
	x := fakes("p")
	n.serve(newPlugin("10", "p", x), 2)
	nodetest.OK(t, nodetest.Come(t, deleted, "the DEL"))
	if got := x.Trace(); len(got) != 1 || got[0] != "DEL p eth0" {
		t.Errorf("%q", got)
	}
}

// requests notes the requests it handles, as "10-a attach c1 net1 blue".
type requests struct {
	mu  sync.Mutex
	got []string
}

func (q *requests) handle(_ context.Context, from resident.Info, r resident.Request) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	op := "attach"
	if r.Detach {
		op = "detach"
	}
	q.got = append(q.got, strings.TrimSpace(fmt.Sprintf("%s %s %s %s %s", from, op, r.ContainerID, r.IfName, r.Network.Name())))
	switch r.ContainerID {
	case "full":
		return fmt.Errorf("attaching: %w", types.NewError(107, "no device", ""))
	case "panic":
		panic("no such container")
	}
	return nil
}

func detach(id string) resident.Request {
	return resident.Request{Detach: true, ContainerID: id, IfName: "net1"}
}

// Each request is answered on its own, with the code of its failure. An invalid
// one never reaches the handler. One that is too long is not sent. A panic fails its
// request alone.
func TestRequestsAreCheckedHandledAndAnswered(t *testing.T) {
	t.Parallel()
	n, q := newNode(t), &requests{}
	n.Requests = q.handle
	n.start()
	p := n.serve(simple("10", "a"))
	blue := nodetest.Network("blue", "x")
	long := detach("c1")
	long.Args = strings.Repeat("x", 8<<20)
	for _, tt := range []struct {
		resident.Request
		code uint
		text string
	}{
		{resident.Request{ContainerID: "c1", IfName: "net1", Network: blue}, 0, ""},
		{resident.Request{ContainerID: "full", Network: blue}, 107, "attaching: no device"},
		{resident.Request{ContainerID: "panic", Network: blue}, types.ErrInternal, "the host panicked: no such container"},
		{long, types.ErrInternal, "is longer than 4194304"},
		{resident.Request{Detach: true, ContainerID: "c1", IfName: "net2"}, 0, ""},
		{resident.Request{Detach: true, ContainerID: "../c1", IfName: "net2"}, 4, `"../c1"`},
		{resident.Request{Detach: true, ContainerID: "c1"}, 4, "interface"},
		{resident.Request{ContainerID: "c1", IfName: "a/b", Network: blue}, 4, `"a/b"`},
		{resident.Request{ContainerID: "c1"}, 7, "no network"},
	} {
		err := p.Request(t.Context(), tt.Request)
		nodetest.Code(t, err, tt.code)
		if tt.code != 0 && !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%v, want %q", err, tt.text)
		}
	}
	nodetest.Equal(t, "handled", q.got, []string{"10-a attach c1 net1 blue", "10-a attach full  blue", "10-a attach panic  blue", "10-a detach c1 net2"})
}

// A command may request something that calls plugins of its own resident.
func TestCommandMayRequest(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Requests = func(ctx context.Context, _ resident.Info, r resident.Request) error {
		_, err := n.exec(ctx, "a", "ADD", r.ContainerID)
		return err
	}
	n.start()
	var p *resident.Plugin
	p = with("10", "a", func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
		if c.ContainerID != "c1" {
			return nil, nil
		}
		return nil, p.Request(ctx, resident.Request{ContainerID: "c2", Network: nodetest.Network("blue", "a")})
	})
	n.serve(p)
	_, err := n.exec(t.Context(), "a", "ADD", "c1")
	nodetest.OK(t, err)
}

// A request fails with a reason when nobody can handle it, and when the context
// or the connection ends.
func TestRequestsThatCannotBeHandledFail(t *testing.T) {
	t.Parallel()
	p := simple("10", "a")
	if err := p.Request(t.Context(), detach("c1")); !strings.Contains(err.Error(), "not connected") {
		t.Errorf("not connected: %v", err)
	}
	n := newNode(t).start()
	n.serve(p)
	err := p.Request(t.Context(), detach("c1"))
	nodetest.Code(t, err, 4)
	nodetest.Says(t, err, "the host takes no requests")

	n = newNode(t)
	in := make(chan struct{})
	n.Requests = func(ctx context.Context, _ resident.Info, _ resident.Request) error {
		in <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}
	n.start()
	p = simple("10", "a")
	r := n.serve(p)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error)
	go func() { result <- p.Request(ctx, detach("c1")) }()
	nodetest.Come(t, in, "the request")
	cancel()
	nodetest.Is(t, nodetest.Come(t, result, "the end"), context.Canceled)
	go func() { result <- p.Request(t.Context(), detach("c1")) }()
	nodetest.Come(t, in, "the request")
	r.stop()
	nodetest.Is(t, nodetest.Come(t, result, "the end"), resident.ErrLost)
	nodetest.OK(t, n.Stop(t.Context()))
}

// Synchronize cannot request anything: the host would wait for Synchronize.
func TestRequestDuringSynchronizeFails(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Requests = (&requests{}).handle
	n.start()
	p := simple("10", "a")
	p.Synchronize = func(context.Context, []resident.Known) error {
		if err := p.Request(t.Context(), detach("c1")); !strings.Contains(err.Error(), "not connected") {
			return fmt.Errorf("requested: %w", err)
		}
		return nil
	}
	nodetest.OK(t, n.serve(p).Request(t.Context(), detach("c1")))
}
