package resident_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/resident"
)

// requests notes the requests it handles, as "10-a attach c1 net1 blue".
type requests struct {
	mu  sync.Mutex
	got []string
}

func (q *requests) handle(_ context.Context, from resident.Info, r resident.Request) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.got = append(q.got, strings.TrimSpace(fmt.Sprintf("%s %s %s %s %s", from, r.Op, r.ContainerID, r.IfName, r.Network.Name())))
	if r.ContainerID == "full" {
		return fmt.Errorf("attaching: %w", types.NewError(107, "no device", ""))
	}
	return nil
}

func detach(id string) resident.Request {
	return resident.Request{Op: resident.Detach, ContainerID: id, IfName: "net1"}
}

// Each request is answered on its own, with the code of its failure. An invalid
// one never reaches the handler.
func TestRequestsAreCheckedHandledAndAnswered(t *testing.T) {
	t.Parallel()
	n, q := newNode(t), &requests{}
	n.Requests = q.handle
	n.start()
	p := n.serve(simple("10", "a"))
	blue := network(t, "blue", "x")
	for _, tt := range []struct {
		resident.Request
		code uint
		text string
	}{
		{resident.Request{Op: resident.Attach, ContainerID: "c1", IfName: "net1", Network: blue}, 0, ""},
		{resident.Request{Op: resident.Attach, ContainerID: "full", Network: blue}, 107, "attaching: no device"},
		{resident.Request{Op: resident.Detach, ContainerID: "c1", IfName: "net2"}, 0, ""},
		{resident.Request{Op: "explode", ContainerID: "c1", IfName: "net2"}, 4, `operation "explode"`},
		{resident.Request{Op: resident.Detach, ContainerID: "../c1", IfName: "net2"}, 4, `"../c1"`},
		{resident.Request{Op: resident.Detach, ContainerID: "c1"}, 4, "interface"},
		{resident.Request{Op: resident.Attach, ContainerID: "c1", IfName: "a/b", Network: blue}, 4, `"a/b"`},
		{resident.Request{Op: resident.Attach, ContainerID: "c1"}, 7, "no network"},
	} {
		err := p.Request(t.Context(), tt.Request)
		wantCode(t, err, tt.code)
		if tt.code != 0 && !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%v, want %q", err, tt.text)
		}
	}
	if d := cmp.Diff([]string{"10-a attach c1 net1 blue", "10-a attach full  blue", "10-a detach c1 net2"}, q.got); d != "" {
		t.Errorf("handled (-want +got):\n%s", d)
	}
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
		return nil, p.Request(ctx, resident.Request{Op: resident.Attach, ContainerID: "c2", Network: network(t, "blue", "a")})
	})
	n.serve(p)
	_, err := n.exec(t.Context(), "a", "ADD", "c1")
	ok(t, err)
}

// A request fails with a reason when nobody can handle it, and when the context
// or the connection ends.
func TestRequestsThatCannotBeHandledFail(t *testing.T) {
	t.Parallel()
	p := simple("10", "a")
	if err := p.Request(t.Context(), detach("c1")); !errors.Is(err, resident.ErrGone) {
		t.Errorf("not connected: %v", err)
	}
	n := newNode(t).start()
	n.serve(p)
	if err := p.Request(t.Context(), detach("c1")); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("not taken: %v", err)
	}

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
	come(t, in, "the request")
	cancel()
	if err := come(t, result, "the end"); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
	go func() { result <- p.Request(t.Context(), detach("c1")) }()
	come(t, in, "the request")
	r.stop()
	if err := come(t, result, "the end"); !errors.Is(err, resident.ErrLost) {
		t.Errorf("err = %v", err)
	}
	ok(t, n.Stop(t.Context()))
}

// A request that is too long is not sent, and the next one is handled.
func TestRequestThatIsTooLongIsNotSent(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Requests = (&requests{}).handle
	n.start()
	p := n.serve(simple("10", "a"))
	long := detach("c1")
	long.Args = strings.Repeat("x", 8<<20)
	if err := p.Request(t.Context(), long); err == nil || !strings.Contains(err.Error(), "is longer than 8388608") {
		t.Errorf("err = %v", err)
	}
	ok(t, p.Request(t.Context(), detach("c1")))
}

// Synchronize cannot request anything: the host would wait for Synchronize.
func TestRequestDuringSynchronizeFails(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Requests = (&requests{}).handle
	n.start()
	p := simple("10", "a")
	p.Synchronize = func(context.Context, []resident.Known) error {
		if err := p.Request(t.Context(), detach("c1")); !errors.Is(err, resident.ErrGone) {
			return fmt.Errorf("requested: %w", err)
		}
		return nil
	}
	ok(t, n.serve(p).Request(t.Context(), detach("c1")))
}

// A panic in Requests fails that request. The host and its other calls go on.
func TestPanicInRequestsFailsTheRequest(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Requests = func(_ context.Context, _ resident.Info, r resident.Request) error {
		if r.ContainerID == "c1" {
			panic("no such container")
		}
		return nil
	}
	n.start()
	p := n.serve(simple("10", "a"))
	err := p.Request(t.Context(), detach("c1"))
	wantCode(t, err, types.ErrInternal)
	if err == nil || !strings.Contains(err.Error(), "the host panicked: no such container") {
		t.Errorf("err = %v", err)
	}
	ok(t, p.Request(t.Context(), detach("c2")))
}
