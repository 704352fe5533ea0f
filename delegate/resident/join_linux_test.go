package resident_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/resident"
	"github.com/metacni/metacni/internal/nodetest"
)

// told returns a channel of the lists that d receives.
func told(d *resident.Plugin) chan []resident.Known {
	c := make(chan []resident.Known, 10)
	d.Synchronize = func(_ context.Context, known []resident.Known) error {
		c <- known
		return nil
	}
	return c
}

// The list has the configuration that the plugin received in ADD, and the
// result.
func TestResidentIsToldTheAttachmentsOfItsTypes(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	one, two := attach("c1", "a", "b", "a"), attach("c2", "b")
	one.Args = "K8S_POD_NAME=x"
	three := attach("c3", "a")
	n.Attachments = func(context.Context) ([]delegate.Attached, error) {
		return []delegate.Attached{
			{Attachment: one, Added: true, Result: json.RawMessage(`{"cniVersion":"1.1.0"}`)},
			{Attachment: two, Added: true, Result: json.RawMessage(`{"cniVersion":"1.1.0"}`)},
			{Attachment: three},
			{Attachment: attach("c4", "a", "b"), Gone: []int{0}},
		}, nil
	}
	n.start()
	d := simple("10", "a")
	known := told(d)
	n.serve(d)
	with := json.RawMessage(`{"cniVersion":"1.1.0","name":"blue","prevResult":{"cniVersion":"1.1.0"},"type":"a"}`)
	without := json.RawMessage(`{"cniVersion":"1.1.0","name":"blue","type":"a"}`)
	want := []resident.Known{
		{Type: "a", ContainerID: "c1", NetNS: "/run/netns/c1", IfName: "eth0", Args: "K8S_POD_NAME=x", Config: with, Added: true},
		{Type: "a", ContainerID: "c1", NetNS: "/run/netns/c1", IfName: "eth0", Args: "K8S_POD_NAME=x", Config: with, Added: true},
		{Type: "a", ContainerID: "c3", NetNS: "/run/netns/c3", IfName: "eth0", Config: without},
	}
	nodetest.Equal(t, "got", nodetest.Come(t, known, "what is attached"), want)
}

// When a resident claims a type after FindInPath has returned an executable,
// the resident is called.
func TestExecutableFoundBeforeTheClaimDoesNotRun(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	below := fakes("a")
	exec := n.Exec(below)
	path, err := exec.FindInPath("a", []string{"/opt/cni/bin"})
	nodetest.OK(t, err)
	x := fakes("a")
	n.serve(newPlugin("10", "a", x))
	_, err = exec.ExecPlugin(t.Context(), path, []byte(`{"cniVersion":"1.1.0","name":"blue","type":"a"}`), []string{
		"CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_NETNS=x", "CNI_IFNAME=eth0", "CNI_PATH=x", "CNI_NETNS_OVERRIDE=1",
	})
	nodetest.OK(t, err)
	if d := cmp.Diff([]string{"ADD a eth0"}, x.Trace()); d != "" || len(below.Trace()) > 0 {
		t.Errorf("the Exec below: %q (-want +got):\n%s", below.Trace(), d)
	}
}

// Its types are free afterwards, and calls that waited for it fail with code
// 11.
func TestResidentIsRefusedWhenItCannotBeToldTheAttachments(t *testing.T) {
	t.Parallel()
	broken := errors.New("a record is broken")
	for name, tt := range map[string]struct {
		attachments error
		synchronize func(context.Context) error
		want        string
	}{
		"it fails":          {nil, func(context.Context) error { return types.NewError(120, "table is full", "") }, "table is full"},
		"it panics":         {nil, func(context.Context) error { panic("secret") }, "the plugin panicked"},
		"it hangs":          {nil, func(ctx context.Context) error { <-ctx.Done(); return nil }, "no answer in time"},
		"nobody knows what": {broken, func(context.Context) error { return nil }, "a record is broken"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			if name == "it hangs" {
				n.RegisterTimeout = 2 * time.Second
			}
			fail := true
			n.Attachments = func(context.Context) ([]delegate.Attached, error) {
				if fail {
					return nil, tt.attachments
				}
				return nil, nil
			}
			n.start()
			d := simple("10", "a")
			d.Synchronize = func(ctx context.Context, _ []resident.Known) error { return tt.synchronize(ctx) }
			r := n.connect(d)
			s := n.await("10-a refused", 1)
			if !strings.Contains(s.Err.Error(), tt.want) {
				t.Errorf("err = %v", s.Err)
			}
			if err := nodetest.Come(t, r.err, "the end"); !errors.Is(err, resident.ErrRefused) && !errors.Is(err, resident.ErrLost) {
				t.Errorf("err = %v", err)
			}
			if got := n.states(); len(got) != 0 {
				t.Errorf("left: %q", got)
			}
			fail = false
			n.serve(newPlugin("20", "b", fakes("a"), "a"))
			_, err := n.exec(t.Context(), "a", "ADD", "c1")
			nodetest.OK(t, err)
		})
	}
}

// A call that waits for a registration ends with its context, and when the
// registration fails. It has executed nothing.
func TestCallsThatWaitForARegistrationEnd(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.RegisterTimeout, n.ReturnTimeout = time.Hour, patience
	n.start()
	in, out := make(chan struct{}), make(chan error)
	d := simple("10", "a")
	d.Synchronize = func(context.Context, []resident.Known) error {
		close(in)
		return <-out
	}
	n.connect(d)
	nodetest.Come(t, in, "the synchronization")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := n.exec(ctx, "a", "ADD", "c1")
	nodetest.Code(t, err, 11)
	if !errors.Is(err, delegate.ErrNotRun) || !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := n.exec(t.Context(), "a", "ADD", "c1")
		waiting <- err
	}()
	out <- errors.New("no")
	err = nodetest.Come(t, waiting, "the call")
	// It may have begun after the registration had failed.
	nodetest.Code(t, err, 11)
	if !errors.Is(err, delegate.ErrNotRun) {
		t.Errorf("err = %v", err)
	}
}

// A peer is a connection to a host on which the test speaks the protocol itself.
type peer struct {
	net.Conn
	in *bufio.Reader
	t  testing.TB
}

func (n *node) dial() *peer {
	n.t.Helper()
	c, err := net.Dial("unix", n.socket)
	nodetest.OK(n.t, err)
	n.t.Cleanup(func() { _ = c.Close() })
	nodetest.OK(n.t, c.SetDeadline(time.Now().Add(patience)))
	return &peer{c, bufio.NewReader(c), n.t}
}

func (p *peer) say(text string) *peer {
	_, _ = io.WriteString(p.Conn, text) // it may have been refused already
	return p
}

// closed waits until the host has closed the connection.
func (p *peer) closed() {
	p.t.Helper()
	if _, err := io.Copy(io.Discard, p.in); os.IsTimeout(err) {
		p.t.Errorf("the connection is open: %v", err)
	}
}

// A message is one of JSON-RPC, as a peer reads it.
type message struct {
	ID     int
	Method string
	Params struct {
		Version int
		Reason  string
	}
}

// hear returns the next message of the host.
func (p *peer) hear() (m message) {
	p.t.Helper()
	line, err := p.in.ReadBytes('\n')
	nodetest.OK(p.t, err)
	nodetest.OK(p.t, json.Unmarshal(line, &m))
	return m
}

// answer answers the next message of the host, which must call a method.
func (p *peer) answer(method string, result any) *peer {
	p.t.Helper()
	m := p.hear()
	if m.Method == "ping" {
		return p.answerTo(m, nil).answer(method, result)
	}
	nodetest.Equal(p.t, "method", m.Method, method)
	return p.answerTo(m, result)
}

func (p *peer) answerTo(m message, result any) *peer {
	p.t.Helper()
	data, err := json.Marshal(result)
	nodetest.OK(p.t, err)
	return p.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":%s}`+"\n", m.ID, data))
}

// hello is the registration of a resident.
func hello(index, name string, types ...string) map[string]any {
	return map[string]any{"version": 3, "index": index, "name": name, "types": types}
}

// register registers a resident of one type.
func (p *peer) register(index, name string) *peer {
	p.t.Helper()
	return p.answer("register", hello(index, name, name)).answer("synchronize", nil)
}
