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
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/resident"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// A host without residents passes all calls to the Exec below, started or not.
func TestZeroHostCallsTheExecBelow(t *testing.T) {
	t.Parallel()
	r := &resident.Host{}
	iv := &delegate.Invoker{Exec: r.Exec(fakes("near")), Path: []string{"/opt/cni/bin"}}
	for _, step := range []func(context.Context) error{func(context.Context) error { return nil }, r.Start, r.Stop} {
		nodetest.OK(t, step(t.Context()))
		done, err := iv.Add(t.Context(), attach("c1", "near"))
		nodetest.OK(t, err)
		nodetest.OK(t, iv.Del(t.Context(), done))
	}
	nodetest.Is(t, r.Start(t.Context()), resident.ErrStopped)
	nodetest.Is(t, r.Stop(t.Context()), resident.ErrStopped)
}

func TestInvalidHellosAreRefusedWithAReason(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	n.serve(simple("50", "good"))
	version := func(v int) map[string]any {
		return map[string]any{"version": v, "index": "10", "name": "a", "types": []string{"a"}}
	}
	for want, hello := range map[string]any{
		"invalid answer": map[string]any{"version": 3, "types": 7}, "version 0": nil,
		"it uses version 2 of the protocol, and the host version 3: build": version(2), "version 4 of the protocol": version(4),
		`index "1"`: hello("1", "a", "a"), `name ""`: hello("10", "", "a"), `name "../a"`: hello("10", "../a", "a"),
		`name "aaa`: hello("10", strings.Repeat("a", 65), "a"), "10-a serves no types": hello("10", "a"),
		`type "../../bin/sh" is not a valid plugin name`: hello("10", "a", "a", "../../bin/sh"), `type "a\nb"`: hello("10", "a", "a\nb"),
	} {
		p := n.dial().answer("register", hello)
		refused := p.hear()
		nodetest.Equal(t, "method", refused.Method, "refused")
		nodetest.Contains(t, "reason", refused.Params.Reason, want)
		p.answerTo(refused, nil).closed()
	}
	nodetest.Equal(t, "got", n.states(), []string{"50-good ready"})
	nodetest.OK(t, n.call("good", "ADD", "c1"))
	for _, why := range n.refusals() {
		nodetest.Equal(t, "begins", strings.HasPrefix(why, "register "), true)
	}
	// The plugin refuses itself.
	for _, d := range []*resident.Resident{simple("1", "a"), newPlugin("10", "a/b", fakes(), "a"), newPlugin("10", "a", fakes(), "a/b")} {
		nodetest.Is(t, nodetest.Come(t, n.connect(d).err, "the refusal"), resident.ErrRefused)
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
	nodetest.OK(t, n.call("b", "ADD", "c1"))
	nodetest.OK(t, n.Stop(t.Context()))
	for _, p := range silent {
		p.closed()
	}
}

// The reason names what they would share. The first one is not affected. Residents are listed in the order
// of index and name.
func TestSecondResidentOfANameOrATypeIsRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	n.serve(simple("20", "b"))
	n.serve(newPlugin("10", "a", fakes("x", "y"), "x", "y"))
	for reason, second := range map[string]*resident.Resident{
		"a resident 10-a is connected already":    newPlugin("10", "a", fakes("other"), "other"),
		`05-b claims type "y", which 10-a serves`: newPlugin("05", "b", fakes("y"), "y"),
	} {
		err := nodetest.Come(t, n.connect(second).err, "the refusal")
		nodetest.Is(t, err, resident.ErrRefused)
		nodetest.Says(t, err, reason)
	}
	n.serve(newPlugin("20", "a", fakes("third"), "third")) // the index is part of the name
	nodetest.OK(t, n.call("x", "ADD", "c1"))
	nodetest.Equal(t, "got", n.states(), []string{"10-a ready", "20-a ready", "20-b ready"})
}

// A process that breaks the protocol is disconnected, before it is ready and after. Its
// name and types are free then, and other residents are not affected.
func TestWhoBreaksTheProtocolIsDisconnected(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]func(p *peer){
		"garbage":       func(p *peer) { p.say(strings.Repeat("garbage\r\n", 100)) },
		"a batch":       func(p *peer) { p.say("[{},{}]\n") },
		"an empty line": func(p *peer) { p.say("\n") },
		"too long":      func(p *peer) { p.say(strings.Repeat("{", 9<<20)) },
		"closed":        func(p *peer) { _ = p.Close() },
		"cut short":     func(p *peer) { p.say(`{"jsonrpc":`); _ = p.Close() },
	} {
		for stage, want := range map[string]string{"silent": ". refused", "joining": "10-a refused", "ready": "10-a gone"} {
			t.Run(stage+" "+name, func(t *testing.T) {
				t.Parallel()
				n := newNode(t).start()
				n.serve(simple("50", "good"))
				p := n.dial()
				switch stage {
				case "joining":
					p.answer("register", hello("10", "a", "a")).hear()
				case "ready":
					p.answer("register", hello("10", "a", "a")).answer("synchronize", nil)
					n.await("10-a ready", 1)
				}
				then(p)
				nodetest.Is(t, n.await(want, 1).Err, resident.ErrLost)
				nodetest.OK(t, n.call("good", "ADD", "c1"))
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
		result := later(func() error { return n.call("a", "ADD", "c1") })
		p.answer("cni", answer)
		nodetest.Fails(t, nodetest.Come(t, result, "the end of the call"), 999, "invalid answer")
	}
	nodetest.Equal(t, "plugins", n.states(), []string{"10-a ready"})
}

// told returns a channel of the lists that d receives.
func told(d *resident.Resident) chan []resident.Known {
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
	result := json.RawMessage(`{"cniVersion":"1.1.0"}`)
	one := attach("c1", "a", "b", "a")
	one.Args = "K8S_POD_NAME=x"
	n.Attachments = func(context.Context) ([]delegate.Attached, error) {
		return []delegate.Attached{
			{Attachment: one, Added: true, Result: result},
			{Attachment: attach("c2", "b"), Added: true, Result: result},
			{Attachment: attach("c3", "a")},
			{Attachment: attach("c4", "a", "b"), Gone: []int{0}},
		}, nil
	}
	n.start()
	d := simple("10", "a")
	known := told(d)
	n.serve(d)
	ofOne := resident.Known{
		Type: "a", ContainerID: "c1", NetNS: "/run/netns/c1", IfName: "eth0", Args: "K8S_POD_NAME=x", Added: true,
		Config: json.RawMessage(`{"cniVersion":"1.1.0","name":"blue","prevResult":{"cniVersion":"1.1.0"},"type":"a"}`),
	}
	nodetest.Equal(t, "got", nodetest.Come(t, known, "what is attached"), []resident.Known{ofOne, ofOne, {
		Type: "a", ContainerID: "c3", NetNS: "/run/netns/c3", IfName: "eth0", Config: json.RawMessage(`{"cniVersion":"1.1.0","name":"blue","type":"a"}`),
	}})
}

// When a resident claims a type after FindInPath has returned an executable,
// the resident is called.
func TestExecutableFoundBeforeTheClaimDoesNotRun(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	below, x := fakes("a"), fakes("a")
	exec := n.Exec(below)
	path, err := exec.FindInPath("a", []string{"/opt/cni/bin"})
	nodetest.OK(t, err)
	n.serve(newPlugin("10", "a", x))
	_, err = exec.ExecPlugin(t.Context(), path, config("a"), environ("ADD", "c1"))
	nodetest.OK(t, err)
	nodetest.Equal(t, "the resident", x.Trace(), []string{"ADD a eth0"})
	nodetest.Equal(t, "the Exec below", below.Trace(), nil)
}

// Its types are free afterwards, and calls that waited for it fail with code
// 11.
func TestResidentIsRefusedWhenItCannotBeToldTheAttachments(t *testing.T) {
	t.Parallel()
	for want, tt := range map[string]struct {
		attachments error
		synchronize func(context.Context, []resident.Known) error
	}{
		"table is full":       {nil, func(context.Context, []resident.Known) error { return types.NewError(120, "table is full", "") }},
		"the plugin panicked": {nil, func(context.Context, []resident.Known) error { panic("secret") }},
		"a record is broken":  {errors.New("a record is broken"), nil},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.Attachments = func(context.Context) ([]delegate.Attached, error) { return nil, tt.attachments }
			n.start()
			d := simple("10", "a")
			d.Synchronize = tt.synchronize
			r := n.connect(d)
			nodetest.Says(t, n.await("10-a refused", 1).Err, want)
			if err := nodetest.Come(t, r.err, "the end"); !errors.Is(err, resident.ErrRefused) && !errors.Is(err, resident.ErrLost) {
				t.Errorf("err = %v", err)
			}
			nodetest.Equal(t, "left", n.states(), nil)
			tt.attachments = nil
			n.serve(newPlugin("20", "b", fakes("a"), "a"))
			nodetest.OK(t, n.call("a", "ADD", "c1"))
		})
	}
}

// A call that waits for a registration ends with its context, and when the
// registration fails. It has executed nothing.
func TestCallsThatWaitForARegistrationEnd(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.RegisterTimeout, n.ReturnTimeout, n.Reserve = time.Hour, patience, []string{"a"}
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
	n.notRun(err)
	nodetest.Is(t, err, context.Canceled)
	waiting := later(func() error { return n.call("a", "ADD", "c1") })
	out <- errors.New("no")
	n.notRun(nodetest.Come(t, waiting, "the call")) // it may have begun after the registration had failed
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

// 32 processes that do not say who they are hold up others until they have ended. One that says nothing
// for the RegisterTimeout is refused.
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
	nodetest.Equal(t, "seen", n.seen(), nil)
	nodetest.Equal(t, "served", len(next.err), 0)
	_ = pending[0].Close()
	n.await("10-a ready", 1)

	n = newNode(t)
	n.RegisterTimeout = 10 * time.Millisecond
	n.start()
	n.dial().closed()
	nodetest.Says(t, n.await(". refused", 1).Err, "asking who it is: no answer in time")
}

func TestServeFailsWhenTheHostBreaksTheProtocol(t *testing.T) {
	t.Parallel()
	for say, want := range map[string]error{
		"": resident.ErrLost, "garbage\n": resident.ErrLost, strings.Repeat("{", 65<<20): resident.ErrLost,
		`{"jsonrpc":"2.0","id":1,"method":"refused","params":{"reason":"no"}}` + "\n": resident.ErrRefused,
	} {
		n := newNode(t) // only its listener is used
		r := n.connect(simple("10", "a"))
		c, err := n.Listener.Accept()
		nodetest.OK(t, err)
		defer func() { _ = c.Close() }()
		go func() { _, _ = io.WriteString(c, say) }()
		if say == "" {
			_ = c.Close()
		}
		nodetest.Is(t, nodetest.Come(t, r.err, "the end"), want)
	}
}

// Run reconnects when the connection is lost and when the host refuses.
func TestRunReconnects(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	first := n.serve(simple("10", "a"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	end := later(func() error { return simple("10", "a").Run(ctx, n.socket) })
	n.await("10-a refused", 1)
	first.stop()
	n.await("10-a ready", 2)
	nodetest.OK(t, n.call("a", "ADD", "c1"))
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
	d := with("10", "p", func(_ context.Context, c delegatetest.Invocation) ([]byte, error) {
		if c.ContainerID == "slow" {
			close(in)
			<-out
		}
		return []byte("done"), nil
	})
	d.DrainTimeout = time.Hour
	r := n.serve(d)
	slow := later(func() error {
		answer, err := n.exec(t.Context(), "p", "ADD", "slow")
		nodetest.Equal(t, "answer", string(answer), "done")
		return err
	})
	nodetest.Come(t, in, "the call")
	r.stop()
	var err error
	for err == nil { // calls are answered until the host knows that it leaves
		err = n.call("p", "ADD", "c2")
	}
	n.notRun(err)
	deleted := later(func() error { return n.call("p", "DEL", "c2") })
	close(out)
	nodetest.OK(t, nodetest.Come(t, slow, "the answer"))
	nodetest.OK(t, nodetest.Come(t, r.err, "the end"))
	n.await("10-p gone", 1)
	x := fakes("p")
	n.serve(newPlugin("10", "p", x), 2)
	nodetest.OK(t, nodetest.Come(t, deleted, "the DEL"))
	nodetest.Equal(t, "calls", x.Trace(), []string{"DEL p eth0"})
}

func detach(id string) resident.Request {
	return resident.Request{Detach: true, ContainerID: id, IfName: "net1"}
}

// handler notes the requests it handles, as "10-a attach c1 net1 blue".
func handler(got *nodetest.Notes[string]) func(context.Context, resident.Info, resident.Request) error {
	return func(_ context.Context, from resident.Info, r resident.Request) error {
		op := "attach"
		if r.Detach {
			op = "detach"
		}
		got.Note(strings.TrimSpace(fmt.Sprintf("%s %s %s %s %s", from, op, r.ContainerID, r.IfName, r.Network.Name())))
		switch r.ContainerID {
		case "full":
			return fmt.Errorf("attaching: %w", types.NewError(107, "no device", ""))
		case "panic":
			panic("no such container")
		}
		return nil
	}
}

// Each request is answered on its own, with the code of its failure. An invalid
// one never reaches the handler. One that is too long is not sent. A panic fails its
// request alone. Synchronize cannot request anything: the host would wait for Synchronize.
func TestRequestsAreCheckedHandledAndAnswered(t *testing.T) {
	t.Parallel()
	var got nodetest.Notes[string]
	n, p := newNode(t), simple("10", "a")
	n.Requests = handler(&got)
	n.start()
	p.Synchronize = func(context.Context, []resident.Known) error {
		nodetest.Says(t, p.Request(t.Context(), detach("c1")), "not connected")
		return nil
	}
	n.serve(p)
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
		{detach("c1"), 0, ""},
		{detach("../c1"), 4, `"../c1"`},
		{resident.Request{Detach: true, ContainerID: "c1"}, 4, "interface"},
		{resident.Request{ContainerID: "c1", IfName: "a/b", Network: blue}, 4, `"a/b"`},
		{resident.Request{ContainerID: "c1"}, 7, "no network"},
	} {
		nodetest.Fails(t, p.Request(t.Context(), tt.Request), tt.code, tt.text)
	}
	nodetest.Equal(t, "handled", got.Taken(), []string{"10-a attach c1 net1 blue", "10-a attach full  blue", "10-a attach panic  blue", "10-a detach c1 net1"})
}

// A command may request something that calls plugins of its own resident.
func TestCommandMayRequest(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Requests = func(_ context.Context, _ resident.Info, r resident.Request) error {
		return n.call("a", "ADD", r.ContainerID)
	}
	n.start()
	var p *resident.Resident
	p = with("10", "a", func(ctx context.Context, c delegatetest.Invocation) ([]byte, error) {
		if c.ContainerID != "c1" {
			return nil, nil
		}
		return nil, p.Request(ctx, resident.Request{ContainerID: "c2", Network: nodetest.Network("blue", "a")})
	})
	n.serve(p)
	nodetest.OK(t, n.call("a", "ADD", "c1"))
}

// A request fails with a reason when nobody can handle it, and when the context
// or the connection ends.
func TestRequestsThatCannotBeHandledFail(t *testing.T) {
	t.Parallel()
	p := simple("10", "a")
	nodetest.Fails(t, p.Request(t.Context(), detach("c1")), 11, "not connected")
	newNode(t).start().serve(p)
	nodetest.Fails(t, p.Request(t.Context(), detach("c1")), 4, "the host takes no requests")

	n := newNode(t)
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
	result := later(func() error { return p.Request(ctx, detach("c1")) })
	nodetest.Come(t, in, "the request")
	cancel()
	nodetest.Is(t, nodetest.Come(t, result, "the end"), context.Canceled)
	result = later(func() error { return p.Request(t.Context(), detach("c1")) })
	nodetest.Come(t, in, "the request")
	r.stop()
	nodetest.Is(t, nodetest.Come(t, result, "the end"), resident.ErrLost)
	nodetest.OK(t, n.Stop(t.Context()))
}

// Calls of a reserved type fail with code 11, execute nothing, and do not reach the Exec
// below, until the resident is there and has been told the attachments.
func TestReservedTypesAreServedByTheirResidentOnly(t *testing.T) {
	t.Parallel()
	for why, reserve := range map[string]func(n *node) *node{
		"it has left": func(n *node) *node { // it has gone
			n.StateDir = n.t.TempDir()
			d := simple("10", "a")
			d.DrainTimeout = patience
			n.start().serve(d).stop()
			n.await("10-a gone", 1)
			return n
		},
		"has not connected": func(n *node) *node { return restarted(n.t, "a").start() }, // it was there before a restart
		"": func(n *node) *node { // from the start
			n.Reserve, n.Orphan = []string{"a"}, -1
			return n.start()
		},
	} {
		t.Run(why, func(t *testing.T) {
			t.Parallel()
			n := reserve(newNode(t))
			below, x := fakes("a"), fakes("a")
			iv, a := n.invoker(below), attach("c1", "a")
			_, err := iv.Add(t.Context(), a)
			nodetest.Fails(t, err, 11, "not connected")
			nodetest.Equal(t, "undone", errors.Is(err, delegate.ErrNotUndone), false) // what was not run
			if why != "" {
				nodetest.Says(t, n.Plugins()[0].Err, why)
				nodetest.Equal(t, "types", n.Plugins()[0].Types, []string{"a"})
				nodetest.Says(t, err, "remove "+filepath.Join(n.StateDir, "a"))
			}
			over, cancel := context.WithCancel(t.Context())
			cancel()
			for _, err := range []error{iv.Del(over, delegate.Attached{Attachment: a}), iv.GC(over, a.Network, nil)} {
				nodetest.Code(t, err, 11)
			}
			n.serve(newPlugin("20", "another", x, "a"))
			nodetest.OK(t, n.del("a", below))
			nodetest.Equal(t, "calls", x.Trace(), []string{"DEL a eth0"})
			nodetest.Equal(t, "the Exec below", below.Trace(), nil)
			nodetest.Equal(t, "plugins", n.states(), []string{"20-another ready"})
		})
	}
}

// After Orphan the Exec below is called. A plugin that it does not find is an
// ordinary error.
func TestOrphanReleasesTypes(t *testing.T) {
	t.Parallel()
	for _, orphan := range []time.Duration{0, time.Hour, -1} {
		n := newNode(t)
		n.Orphan = orphan
		n.start()
		n.serve(newPlugin("10", "d", fakes("a", "b"), "a", "b")).stop()
		n.await("10-d gone", 1)
		kept, lost := n.del("a", fakes("a")), n.del("b", fakes("a"))
		if orphan >= 0 {
			nodetest.Code(t, kept, 11)
			nodetest.Code(t, lost, 11)
			continue
		}
		nodetest.OK(t, kept)
		nodetest.Code(t, lost, 7)
		nodetest.Is(t, lost, delegate.ErrPluginNotFound)
		nodetest.Equal(t, "plugins", n.states(), nil)
	}
}

// While a resident leaves and comes back, its type is reserved at every moment.
func TestTypesAreReservedWithoutAGap(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	d := simple("10", "a")
	r := n.serve(d)
	x := n.Exec(fakes("a"))
	own, err := x.FindInPath("a", nil)
	nodetest.OK(t, err)
	ctx, stop := context.WithCancel(t.Context())
	watched := later(func() error {
		for ctx.Err() == nil {
			if path, err := x.FindInPath("a", nil); path != own || err != nil || len(n.Plugins()) != 1 {
				return fmt.Errorf("path %q, %w, plugins %q", path, err, n.states())
			}
		}
		return nil
	})
	for i := range 20 {
		r.stop()
		n.await("10-a gone", i+1)
		r = n.serve(d, i+2)
	}
	stop()
	nodetest.OK(t, <-watched)
}

// restarted returns a host with the StateDir of another one, which was stopped
// after a resident had served a type.
func restarted(t testing.TB, typ string) *node {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "resident")
	n := newNode(t)
	n.StateDir = dir
	n.start()
	n.serve(simple("10", typ))
	nodetest.OK(t, n.Stop(t.Context()))
	n = newNode(t)
	n.StateDir = dir
	return n
}

// del removes an attachment by a type, as an Invoker does.
func (n *node) del(typ string, below *delegatetest.Exec) error {
	return n.invoker(below).Del(n.t.Context(), delegate.Attached{Attachment: attach("c1", typ)})
}

// A type is released when its note is removed, also while the host runs, and
// when the host starts while no attachment uses it.
func TestTypesAreReleased(t *testing.T) {
	t.Parallel()
	type list = []delegate.Attached
	listing := func(as list, err error) func(n *node) error {
		return func(n *node) error {
			n.Attachments = func(context.Context) (list, error) { return as, err }
			return nil
		}
	}
	remove := func(n *node) error { return os.Remove(filepath.Join(n.StateDir, "a")) }
	for name, tt := range map[string]struct {
		early, late func(n *node) error // before the start and after it
		kept        bool
		noted       int
	}{
		"not":                         {kept: true, noted: 1},
		"not while one is attached":   {early: listing(list{{Attachment: attach("c1", "a")}}, nil), kept: true, noted: 1},
		"not when that is not known":  {early: listing(nil, errors.New("no")), kept: true, noted: 1},
		"not when one is unreadable":  {early: listing(list{{Attachment: delegate.Attachment{ContainerID: "c1", IfName: "eth0"}}}, nil), kept: true, noted: 1},
		"not when all notes are gone": {late: func(n *node) error { return os.Rename(n.StateDir, n.StateDir+".away") }, kept: true},
		"when nothing is attached":    {early: listing(nil, nil)},
		"when its part is gone":       {early: listing(list{{Attachment: attach("c1", "a", "b"), Gone: []int{0}}}, nil)},
		"when its file is removed":    {early: remove},
		"when that happens later":     {late: remove},
		"when orphans are not wanted": {early: func(n *node) error { n.Orphan = -1; return nil }},
		"when its time is up":         {early: func(n *node) error { n.Orphan = 1; return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, below := restarted(t, "a"), fakes("a")
			if tt.early != nil {
				nodetest.OK(t, tt.early(n))
			}
			n.start()
			if tt.late != nil {
				nodetest.Code(t, n.del("a", below), 11)
				nodetest.OK(t, tt.late(n))
			}
			err := n.del("a", below)
			noted, _ := os.ReadDir(n.StateDir)
			nodetest.Equal(t, "notes", len(noted), tt.noted)
			if tt.kept {
				nodetest.Code(t, err, 11)
				return
			}
			nodetest.OK(t, err)
			nodetest.Equal(t, "the Exec below", below.Trace(), []string{"DEL a eth0"})
			nodetest.Equal(t, "plugins", n.states(), nil)
		})
	}
}

// A resident that comes back without a type has not given it up: what is attached by it stays its
// own, until somebody removes the note, or another resident serves the type.
func TestTypeStaysReservedWhenItsResidentComesBackWithoutIt(t *testing.T) {
	t.Parallel()
	for _, noted := range []bool{false, true} {
		n := newNode(t)
		if noted {
			n.StateDir = t.TempDir()
		}
		n.start()
		n.serve(newPlugin("10", "d", fakes("a", "b", "c"), "a", "b", "c")).stop()
		n.await("10-d gone", 1)
		n.serve(newPlugin("10", "d", fakes("a"), "a"), 2).stop()
		n.await("10-d gone", 2)
		n.serve(newPlugin("10", "d", fakes("a", "c"), "a", "c"), 3)
		nodetest.Equal(t, "plugins", n.states(), []string{". gone", "10-d ready"})
		nodetest.Equal(t, "types", n.Plugins()[0].Types, []string{"b"})
		below := fakes("a", "b", "c")
		nodetest.OK(t, n.del("a", below))
		nodetest.OK(t, n.del("c", below))
		nodetest.Code(t, n.del("b", below), 11)
		nodetest.Equal(t, "the Exec below", below.Trace(), nil)
		if noted {
			nodetest.OK(t, os.Remove(filepath.Join(n.StateDir, "b")))
		} else {
			n.serve(simple("20", "b"))
		}
		nodetest.OK(t, n.del("b", below))
		nodetest.Equal(t, "the Exec below", len(below.Trace()) > 0, noted)
	}
}

func TestStartFailsWithAnUnusableStateDir(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.StateDir = n.socket
	nodetest.Says(t, n.Start(t.Context()), "start "+n.socket)
}

// Afterwards calls of their types fail with code 11, whatever Orphan is.
func TestTypesAreReservedAfterStop(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Orphan, n.StateDir = -1, t.TempDir()
	n.start()
	a := n.serve(simple("10", "a"))
	nodetest.OK(t, n.Stop(t.Context()))
	nodetest.Is(t, nodetest.Come(t, a.err, "the end"), resident.ErrLost)
	nodetest.Code(t, n.del("a", fakes("a")), 11)
	s := n.Plugins()[0]
	nodetest.Equal(t, "state", s.State, resident.Gone)
	nodetest.OK(t, s.Err)
}

// A resident that comes back needs no room on the disk: its note is not written again. One whose types
// cannot be noted is refused. Another may take over some of the types, and the others stay reserved.
func TestNotes(t *testing.T) {
	t.Parallel()
	n := restarted(t, "a")
	before, err := os.Stat(filepath.Join(n.StateDir, "a"))
	nodetest.OK(t, err)
	nodetest.OK(t, os.WriteFile(filepath.Join(n.StateDir, "c"), nil, 0o600))
	nodetest.OK(t, os.Mkdir(filepath.Join(n.StateDir, "b"), 0o700)) // in place of the file
	n.start()
	n.serve(newPlugin("20", "new", fakes("a"), "a"))
	after, err := os.Stat(filepath.Join(n.StateDir, "a"))
	nodetest.OK(t, err)
	nodetest.Equal(t, "the note stays", os.SameFile(before, after), true)
	nodetest.Equal(t, "got", n.states(), []string{". gone", "20-new ready"})
	nodetest.Equal(t, "got", n.Plugins()[0].Types, []string{"b", "c"})
	n.connect(simple("30", "b"))
	nodetest.Says(t, n.await("30-b refused", 1).Err, "noting its types")
}
