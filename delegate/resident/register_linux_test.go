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
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// A host without residents passes all calls to the Exec below, started or not.
func TestZeroHostCallsTheExecBelow(t *testing.T) {
	t.Parallel()
	near := fakes("near")
	r := &resident.Host{}
	iv := &delegate.Invoker{Exec: r.Exec(near), Path: []string{"/opt/cni/bin"}}
	for _, step := range []func(context.Context) error{
		func(context.Context) error { return nil }, r.Start,
		func(ctx context.Context) error { return r.Stop(ctx) },
	} {
		nodetest.OK(t, step(t.Context()))
		done, err := iv.Add(t.Context(), attach("c1", "near"))
		nodetest.OK(t, err)
		nodetest.OK(t, iv.Del(t.Context(), done))
	}
	nodetest.Is(t, r.Start(t.Context()), resident.ErrStopped)
	nodetest.Is(t, r.Stop(t.Context()), resident.ErrStopped)
}

func TestResidentsAreOrderedByIndexAndName(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	for _, d := range []struct{ index, name string }{{"20", "b"}, {"10", "z"}, {"20", "a"}, {"00", "x"}, {"20", "c"}} {
		n.serve(simple(d.index, d.name))
	}
	nodetest.Equal(t, "plugins", n.states(), []string{"00-x ready", "10-z ready", "20-a ready", "20-b ready", "20-c ready"})
}

func TestInvalidHellosAreRefusedWithAReason(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	n.serve(simple("50", "good"))
	version := func(v int) map[string]any {
		return map[string]any{"version": v, "index": "10", "name": "a", "types": []string{"a"}}
	}
	for name, tt := range map[string]struct {
		hello any
		want  string
	}{
		"a list":              {[]string{}, "invalid answer"},
		"a type that is none": {map[string]any{"version": 3, "types": 7}, "invalid answer"},
		"null":                {nil, "version 0"},
		"version 2":           {version(2), "it uses version 2 of the protocol, and the host version 3: build"},
		"newer version":       {version(4), "version 4 of the protocol"},
		"index of one digit":  {hello("1", "a", "a"), `index "1"`},
		"no name":             {hello("10", "", "a"), `name ""`},
		"name with a path":    {hello("10", "../a", "a"), `name "../a"`},
		"long name":           {hello("10", strings.Repeat("a", 65), "a"), `name "aaa`},
		"no types":            {hello("10", "a"), "10-a serves no types"},
		"type with a path":    {hello("10", "a", "a", "../../bin/sh"), `type "../../bin/sh" is not a valid plugin name`},
		"type with a newline": {hello("10", "a", "a\nb"), `type "a\nb"`},
	} {
		p := n.dial().answer("register", tt.hello)
		refused := p.hear()
		if refused.Method != "refused" || !strings.Contains(refused.Params.Reason, tt.want) {
			t.Errorf("%s: %+v, want %q", name, refused, tt.want)
		}
		p.answerTo(refused, nil).closed()
	}
	nodetest.Equal(t, "got", n.states(), []string{"50-good ready"})
	if _, err := n.exec(t.Context(), "good", "ADD", "c1"); err != nil {
		t.Error(err)
	}
	for _, why := range n.refusals() {
		if !strings.HasPrefix(why, "register ") {
			t.Errorf("%q", why)
		}
	}
}

// A client that sends no complete hello does not delay others, and Stop
// disconnects it.
func TestSilentClientsDelayNobody(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.RegisterTimeout = time.Hour
	n.start()
	var silent []*peer
	for range 5 {
		silent = append(silent, n.dial(), n.dial().say(`{"jsonrpc":"2.0",`))
	}
	n.serve(simple("10", "a"))
	n.serve(simple("11", "b"))
	_, err := n.exec(t.Context(), "b", "ADD", "c1")
	nodetest.OK(t, err)
	nodetest.OK(t, n.Stop(t.Context()))
	for _, p := range silent {
		p.closed()
	}
}

func TestSilentClientIsRefusedAfterRegisterTimeout(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.RegisterTimeout = 10 * time.Millisecond
	n.start()
	n.dial().closed()
	nodetest.Says(t, n.await(". refused", 1).Err, "asking who it is: no answer in time")
}

// The reason names what they would share. The first one is not affected.
func TestSecondResidentOfANameOrATypeIsRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	n.serve(newPlugin("10", "a", fakes("x", "y"), "x", "y"))
	for reason, second := range map[string]*resident.Plugin{
		"a resident 10-a is connected already":    newPlugin("10", "a", fakes("other"), "other"),
		`05-b claims type "y", which 10-a serves`: newPlugin("05", "b", fakes("y"), "y"),
	} {
		err := nodetest.Come(t, n.connect(second).err, "the refusal")
		if !errors.Is(err, resident.ErrRefused) || !strings.Contains(err.Error(), reason) {
			t.Errorf("err = %v, want %q", err, reason)
		}
	}
	n.serve(newPlugin("20", "a", fakes("third"), "third")) // the index is part of the name
	_, err := n.exec(t.Context(), "x", "ADD", "c1")
	nodetest.OK(t, err)
	nodetest.Equal(t, "got", n.states(), []string{"10-a ready", "20-a ready"})
}

// A process that breaks the protocol is disconnected, before it is ready and after. Its
// name and types are free then, and other residents are not affected.
func TestWhoBreaksTheProtocolIsDisconnected(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]func(p *peer){
		"garbage":       func(p *peer) { p.say(strings.Repeat("garbage\r\n", 100)) },
		"not JSON":      func(p *peer) { p.say("{\n") },
		"a batch":       func(p *peer) { p.say("[{},{}]\n") },
		"an empty line": func(p *peer) { p.say("\n") },
		"HTTP/2":        func(p *peer) { p.say("PRI * HTTP/2.0\r\n") },
		"too long":      func(p *peer) { p.say(strings.Repeat("{", 9<<20)) },
		"closed":        func(p *peer) { _ = p.Close() },
		"cut short":     func(p *peer) { p.say(`{"jsonrpc":`); _ = p.Close() },
	} {
		for _, stage := range []string{"silent", "joining", "ready"} {
			t.Run(stage+" "+name, func(t *testing.T) {
				t.Parallel()
				n := newNode(t).start()
				n.serve(simple("50", "good"))
				p, want := n.dial(), ". refused"
				switch stage {
				case "joining":
					p.answer("register", hello("10", "a", "a")).hear()
					want = "10-a refused"
				case "ready":
					p.register("10", "a")
					n.await("10-a ready", 1)
					want = "10-a gone"
				}
				then(p)
				if s := n.await(want, 1); !errors.Is(s.Err, resident.ErrLost) {
					t.Errorf("gone for %v", s.Err)
				}
				_, err := n.exec(t.Context(), "good", "ADD", "c1")
				nodetest.OK(t, err)
				n.serve(simple("10", "a"), map[string]int{"ready": 2}[stage]) // the name and the type are free
			})
		}
	}
}

// Unknown keys of an answer and answers to unknown calls are ignored. An answer that is
// not valid fails its call.
func TestWhatIsNotKnownIsIgnored(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	h := hello("10", "a", "a")
	h["events"] = []string{"all"}
	p := n.dial().say(`{"jsonrpc":"2.0","id":99,"result":1}`+"\n"+`{"jsonrpc":"2.0","method":"news"}`+"\n").answer("register", h).answer("synchronize", nil)
	n.await("10-a ready", 1)
	for _, answer := range []any{7, "not base64!", []int{300}} {
		result := make(chan error, 1)
		go func() {
			_, err := n.exec(t.Context(), "a", "ADD", "c1")
			result <- err
		}()
		p.answer("cni", answer)
		err := nodetest.Come(t, result, "the end of the call")
		nodetest.Code(t, err, 999)
		nodetest.Says(t, err, "invalid answer")
	}
	nodetest.Equal(t, "plugins", n.states(), []string{"10-a ready"})
}

// A process is refused when the system does not tell its user.
func TestUnidentifiedPeersAreRefused(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	nodetest.OK(t, err)
	n := newBareNode(t, &resident.Host{Listener: l}).start()
	c, err := net.Dial("tcp", l.Addr().String())
	nodetest.OK(t, err)
	err = simple("10", "a").Serve(t.Context(), c)
	if !errors.Is(err, resident.ErrRefused) || !strings.Contains(err.Error(), "the user of its process is unknown") {
		t.Errorf("err = %v", err)
	}
	nodetest.Equal(t, "entered", n.Plugins(), nil)
}

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
		"nobody knows what": {broken, func(context.Context) error { return nil }, "a record is broken"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
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
			nodetest.Equal(t, "left", n.states(), nil)
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
	nodetest.Is(t, err, delegate.ErrNotRun)
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

// 32 processes that do not say who they are hold up others until they have ended.
func TestRegistrationsAtTheSameTimeAreLimited(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.RegisterTimeout = time.Hour
	n.start()
	pending := make([]*peer, 32)
	for i := range pending {
		pending[i] = n.dial()
		pending[i].hear() // the host has accepted it
	}
	next := n.connect(simple("10", "a"))
	if len(n.seen()) > 0 || len(next.err) > 0 {
		t.Errorf("%q", n.seen())
	}
	_ = pending[0].Close()
	n.await("10-a ready", 1)
}
