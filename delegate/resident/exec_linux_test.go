package resident_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/resident"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/scratch"
)

// patience is longer than anything that a test which passes waits for.
const patience = 2 * time.Minute

// A node is a host under test, with the changes that its observer saw.
type node struct {
	*resident.Host
	socket string
	t      testing.TB

	mu     sync.Mutex
	events []resident.Status
}

// newNode returns a host that listens and is not started.
func newNode(tb testing.TB) *node {
	tb.Helper()
	socket := filepath.Join(nodetest.ShortDir(tb), "s")
	l, err := net.Listen("unix", socket)
	nodetest.OK(tb, err)
	// In most tests a resident that has gone does not come back.
	n := newNodeOf(tb, &resident.Host{Listener: l, RegisterTimeout: patience, ReturnTimeout: time.Millisecond})
	n.socket = socket
	return n
}

// start starts the host, and stops it when the test ends.
func (n *node) start() *node {
	n.t.Helper()
	nodetest.OK(n.t, n.Start(n.t.Context()))
	n.t.Cleanup(func() { _ = n.Stop(context.WithoutCancel(n.t.Context())) }) // the test may have done it
	return n
}

// seen lists the changes so far, as "10-a ready".
func (n *node) seen() []string { return texts(n.all()) }

func text(s resident.Status) string {
	which := s.String()
	if s.Name == "" {
		which = filepath.Base(s.Path)
	}
	return which + " " + string(s.State)
}

// await waits for the n-th change of a kind, "10-a ready".
func (n *node) await(event string, nth int) (found resident.Status) {
	n.t.Helper()
	nodetest.Until(n.t, fmt.Sprintf("%s (%d)", event, nth), func() bool {
		left := nth
		for _, found = range n.all() {
			if text(found) == event {
				left--
			}
			if left == 0 {
				return true
			}
		}
		return false
	})
	return found
}

// refusals lists why candidates were refused.
func (n *node) refusals() (all []string) {
	for _, s := range n.all() {
		if s.State == resident.Refused {
			all = append(all, s.Err.Error())
		}
	}
	return all
}

// states lists Plugins, as "10-a ready".
func (n *node) states() []string { return texts(n.Plugins()) }

// A served resident runs Serve.
type served struct {
	*resident.Resident
	stop func()     // ends it
	err  chan error // what Serve returned
}

// serve connects d, and waits until it is ready for the n-th time.
func (n *node) serve(d *resident.Resident, nth ...int) *served {
	n.t.Helper()
	r := n.connect(d)
	n.await(d.Index+"-"+d.Name+" ready", max(1, append(nth, 1)[0]))
	return r
}

// connect lets d serve one connection.
func (n *node) connect(d *resident.Resident) *served {
	n.t.Helper()
	conn, err := net.Dial("unix", n.socket)
	nodetest.OK(n.t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(n.t.Context()))
	r := &served{Resident: d, stop: cancel, err: make(chan error, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.err <- d.Serve(ctx, conn)
	}()
	n.t.Cleanup(func() {
		cancel()
		<-done
	})
	return r
}

// invoker returns an Invoker that calls residents, and below for other types.
func (n *node) invoker(below *delegatetest.Exec) *delegate.Invoker {
	if below == nil {
		below = &delegatetest.Exec{}
	}
	return &delegate.Invoker{Exec: n.Exec(below), Path: []string{"/opt/cni/bin"}}
}

// newPlugin returns a resident that serves fakes of x: these types, or else one
// like its name.
func newPlugin(index, name string, x *delegatetest.Exec, types ...string) *resident.Resident {
	if len(types) == 0 {
		types = []string{name}
	}
	return &resident.Resident{Index: index, Name: name, Types: types, DrainTimeout: 50 * time.Millisecond, Plugin: commands(x)}
}

// fakes returns an Exec with plugins of these types that succeed.
func fakes(types ...string) *delegatetest.Exec {
	return &delegatetest.Exec{Plugins: nodetest.Plugins(types...)}
}

// simple returns a resident of one type that succeeds.
func simple(index, name string) *resident.Resident { return newPlugin(index, name, fakes(name)) }

// with returns a resident of one type that does what p does.
func with(index, name string, p delegatetest.Fake) *resident.Resident {
	return newPlugin(index, name, &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{name: p}})
}

// commands returns a plugin that calls the fakes of x.
func commands(x *delegatetest.Exec) plugin.Plugin {
	do := func(ctx context.Context, c *plugin.Call) error {
		out, err := x.ExecPlugin(ctx, "/delegatetest/"+c.Type, c.Config, c.System.Env)
		if err == nil {
			_, err = c.System.Stdout.Write(out)
		}
		return err
	}
	return plugin.Plugin{Add: do, Del: do, Check: do, GC: do, Status: do}
}

// attach returns an attachment of container id to a network of these types.
func attach(id string, plugins ...string) delegate.Attachment {
	return delegate.Attachment{Network: nodetest.Network("blue", plugins...), ContainerID: id, NetNS: "/run/netns/" + id, IfName: "eth0"}
}

// newNodeOf returns a node with a host that does not listen at a socket of the node.
func newNodeOf(tb testing.TB, h *resident.Host) *node {
	tb.Helper()
	n := &node{t: tb, Host: h}
	h.Observer = func(s resident.Status) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.events = append(n.events, s)
	}
	return n
}

// all returns the changes so far.
func (n *node) all() []resident.Status {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.events)
}

func texts(all []resident.Status) (lines []string) {
	for _, s := range all {
		lines = append(lines, text(s))
	}
	return lines
}

// exec calls a type directly, like an Invoker. No error has anything of the configuration or the
// environment.
func (n *node) exec(ctx context.Context, typ, command, id string, env ...string) ([]byte, error) {
	n.t.Helper()
	x := n.Exec(&delegatetest.Exec{})
	path, err := x.FindInPath(typ, nil)
	nodetest.OK(n.t, err)
	out, err := x.ExecPlugin(ctx, path, config(typ), append(environ(command, id), env...))
	nodetest.Equal(n.t, "the error has a secret", strings.Contains(fmt.Sprint(err), "hunter2"), false)
	return out, err
}

func config(typ string) []byte {
	return fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"blue","type":%q,"password":"hunter2!"}`, typ)
}

func environ(command, id string) []string {
	return []string{
		"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + id, "CNI_IFNAME=eth0", "CNI_NETNS=/run/netns/" + id, "CNI_PATH=/opt/cni/bin",
		"CNI_NETNS_OVERRIDE=1", "SECRET=hunter2!", "PATH=/bin",
	}
}

// call is exec of a call whose result does not matter.
func (n *node) call(typ, command, id string) error {
	n.t.Helper()
	_, err := n.exec(n.t.Context(), typ, command, id)
	return err
}

// notRun wants an error of a call that has executed nothing, with these words.
func (n *node) notRun(err error, words ...string) {
	n.t.Helper()
	nodetest.Code(n.t, err, 11)
	nodetest.Is(n.t, err, delegate.ErrNotRun)
	nodetest.Says(n.t, err, words...)
}

// later returns a channel for what do returns.
func later(do func() error) <-chan error {
	c := make(chan error, 1)
	go func() { c <- do() }()
	return c
}

// Registered types go to their resident, all others to the Exec below. The path
// of a registered type is not a file name.
func TestExecCallsResidentsForTheirTypesOnly(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	far, near := fakes("far"), fakes("near")
	n.serve(newPlugin("10", "d", far, "far"))
	iv := n.invoker(near)
	done, err := iv.Add(t.Context(), attach("c1", "near", "far"))
	nodetest.OK(t, err)
	nodetest.OK(t, iv.Check(t.Context(), done))
	nodetest.OK(t, iv.Status(t.Context(), done.Network))
	nodetest.OK(t, iv.GC(t.Context(), done.Network, nil))
	nodetest.OK(t, iv.Del(t.Context(), done))
	for x, typ := range map[*delegatetest.Exec]string{far: "far", near: "near"} {
		want := []string{"ADD " + typ + " eth0", "CHECK " + typ + " eth0", "STATUS " + typ, "GC " + typ, "DEL " + typ + " eth0"}
		nodetest.Equal(t, typ, x.Trace(), want)
	}
	x := n.Exec(near)
	path, err := x.FindInPath("far", nil)
	nodetest.OK(t, err)
	nodetest.Equal(t, "may be a file's", strings.ContainsRune(path, 0), true)
	_, err = x.FindInPath("nowhere", nil)
	nodetest.Says(t, err, "not found among the fakes") // the Exec below was asked
	out, err := n.exec(t.Context(), "far", "VERSION", "")
	nodetest.OK(t, err)
	nodetest.Equal(t, "VERSION has 1.1.0", strings.Contains(string(out), `"1.1.0"`), true)
}

// The error is that of the plugin, and contains nothing of its stdin.
func TestExecReturnsTheErrorOfThePlugin(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	errs := map[string]error{
		"code": types.NewError(107, "no device", "all 8 in use"), "wrapped": fmt.Errorf("opening: %w", types.NewError(5, "stuck", "")),
		"plain": errors.New("some words"),
	}
	n.serve(with("10", "p", func(_ context.Context, c delegatetest.Invocation) ([]byte, error) {
		if errs[c.ContainerID] == nil {
			panic("secret")
		}
		return []byte("half a result"), errs[c.ContainerID]
	}))
	for id, want := range map[string]*types.Error{
		"code": types.NewError(107, "no device", "all 8 in use"), "wrapped": types.NewError(5, "opening: stuck", ""),
		"plain": types.NewError(999, "some words", ""), "panic": types.NewError(999, "the plugin panicked", ""),
	} {
		nodetest.Equal(t, id, n.call("p", "ADD", id), error(want))
	}
}

// Calls that package skel refuses in a process are refused in a resident.
func TestExecRefusesWhatSkelRefuses(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	x := fakes("p")
	n.serve(newPlugin("10", "p", x))
	for _, tt := range []struct{ command, id, env string }{
		{"JUMP", "c1", ""}, {"", "c1", ""}, {"ADD", "", ""}, {"ADD", "../c1", ""}, {"ADD", "c1", "CNI_IFNAME=a/b"}, {"ADD", "c1", "CNI_PATH="},
	} {
		_, err := n.exec(t.Context(), "p", tt.command, tt.id, tt.env)
		nodetest.Code(t, err, 4)
	}
	_, err := n.exec(t.Context(), "p", "ADD", "c1", "CNI_NETNS_OVERRIDE=", "CNI_NETNS=/proc/self/ns/net")
	nodetest.Code(t, err, types.ErrInvalidNetNS)
	nodetest.Equal(t, "called", x.Trace(), nil)
}

// When the context of a call ends, so does that of the handler. The call fails
// with code 11, and the connection stays.
func TestExecEndsTheHandlerWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	in, out := make(chan struct{}), make(chan error, 1)
	n.serve(with("10", "p", func(ctx context.Context, c delegatetest.Invocation) ([]byte, error) {
		if c.ContainerID == "hang" {
			close(in)
			<-ctx.Done()
			out <- ctx.Err()
		}
		return []byte(`{"cniVersion":"1.1.0"}`), ctx.Err()
	}))
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-in
		cancel()
	}()
	_, err := n.exec(ctx, "p", "ADD", "hang")
	nodetest.Code(t, err, 11)
	nodetest.Is(t, err, context.Canceled)
	nodetest.Equal(t, "was not run", errors.Is(err, delegate.ErrNotRun), false)
	nodetest.Is(t, nodetest.Come(t, out, "the end of the handler's context"), context.Canceled)
	nodetest.OK(t, n.call("p", "ADD", "c2"))
	nodetest.Equal(t, "got", n.seen(), []string{"10-p ready"})
}

// The DEL after an ADD whose context has ended waits for the handler of the
// ADD. The DEL of another container does not.
func TestExecRunsDelAfterTheAddThatItUndoes(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	in, out := make(chan struct{}), make(chan struct{})
	x := &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{"p": func(_ context.Context, c delegatetest.Invocation) ([]byte, error) {
		if c.Command == "ADD" {
			close(in)
			<-out // even when its context ends
		}
		return []byte(`{"cniVersion":"1.1.0"}`), nil
	}}}
	n.serve(newPlugin("10", "p", x))
	ctx, cancel := context.WithCancel(t.Context())
	added := later(func() error {
		_, err := n.exec(ctx, "p", "ADD", "c1")
		return err
	})
	nodetest.Come(t, in, "the ADD")
	cancel()
	nodetest.Code(t, nodetest.Come(t, added, "its end"), 11)
	deleted := later(func() error { return n.call("p", "DEL", "c1") })
	nodetest.OK(t, n.call("p", "DEL", "c2"))
	nodetest.Equal(t, "beside the ADD", x.Trace(), []string{"ADD p eth0", "DEL p eth0"})
	close(out)
	nodetest.OK(t, nodetest.Come(t, deleted, "the DEL"))
	nodetest.Equal(t, "alive", x.Live(), nil)
}

// hangs returns a plugin that hangs in the ADD of container "hang" until the
// test ends, even when its context ends.
func hangs(t *testing.T) delegatetest.Fake {
	t.Helper()
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	return func(_ context.Context, c delegatetest.Invocation) ([]byte, error) {
		if c.ContainerID == "hang" && c.Command == "ADD" {
			<-over
		}
		return []byte(`{"cniVersion":"1.1.0"}`), nil
	}
}

// Only the host's own timeouts count against a resident.
func TestDeadlineOfTheCallerDisconnectsNobody(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	n.serve(with("10", "p", hangs(t)))
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		_, err := n.exec(ctx, "p", "ADD", "hang")
		cancel()
		nodetest.Code(t, err, 11)
		nodetest.Is(t, err, context.DeadlineExceeded)
		nodetest.Equal(t, "the host's", strings.Contains(err.Error(), "no answer in time"), false)
	}
	nodetest.Equal(t, "got", n.states(), []string{"10-p ready"})
}

// A result that is too long fails its call, and the connection stays.
func TestResultThatIsTooLongFailsItsCall(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	n.serve(with("10", "p", func(_ context.Context, c delegatetest.Invocation) ([]byte, error) {
		return bytes.Repeat([]byte("x"), 4<<20+len(c.ContainerID)-2), nil
	}))
	nodetest.Fails(t, n.call("p", "ADD", "c10"), 999, "a result of 4194305 bytes is longer than 4194304")
	nodetest.OK(t, n.call("p", "ADD", "c1"))
	nodetest.Equal(t, "seen", n.seen(), []string{"10-p ready"})
}

// Stdout comes back byte for byte. Of the environment only the variables of CNI and of a trace are passed.
func TestExecPassesStdoutAndVariables(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	const printed = " {\"cniVersion\" : \"1.1.0\", \"x\": 1e3, \"y\": \"<&>\\u00e9\xff\", \"dup\": 1, \"dup\": 2}\n\n"
	var env []string
	n.serve(with("10", "p", func(_ context.Context, c delegatetest.Invocation) ([]byte, error) {
		env = c.Env
		return []byte(printed), nil
	}))
	out, err := n.exec(t.Context(), "p", "ADD", "c1", "TRACEPARENT=00-1", "BAGGAGE=b")
	nodetest.OK(t, err)
	nodetest.Equal(t, "stdout", string(out), printed)
	nodetest.Equal(t, "environment", env, []string{
		"BAGGAGE=b", "CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0", "CNI_NETNS=/run/netns/c1", "CNI_NETNS_OVERRIDE=1",
		"CNI_PATH=/opt/cni/bin", "TRACEPARENT=00-1",
	})
}

// A daemon is a host together with a lifecycle.Manager.
type daemon struct {
	*lifecycle.Manager
	host *resident.Host
}

func newDaemon(n *node, below *delegatetest.Exec, dir string) *daemon {
	d := &daemon{Manager: &lifecycle.Manager{Invoker: n.invoker(below), Dir: dir}, host: n.Host}
	n.Attachments = d.attachments
	return d
}

func key(id string) scratch.Key {
	return scratch.Key{Network: "multi", ContainerID: id, IfName: "eth0"}
}

func (d *daemon) add(ctx context.Context, as ...delegate.Attachment) error {
	_, err := d.Add(ctx, key(as[0].ContainerID), lifecycle.Transaction{Plan: lifecycle.Plan(as...)})
	return err
}

func (d *daemon) del(ctx context.Context, id string) error {
	return d.Del(ctx, key(id), lifecycle.DelRequest{})
}

// attachments lists the recorded attachments.
func (d *daemon) attachments(ctx context.Context) (all []delegate.Attached, err error) {
	for r, err := range d.Records(ctx) {
		if err != nil {
			return nil, err
		}
		all = append(all, r.Attached...)
	}
	return all, nil
}

// records lists the recorded containers, as "c1 added".
func (d *daemon) records(t *testing.T) (all []string) {
	t.Helper()
	for r, err := range d.Records(t.Context()) {
		nodetest.OK(t, err)
		all = append(all, r.Key.ContainerID+" "+string(r.State))
	}
	return all
}

// The ADD fails with code 11, and the parts of other plugins are undone at
// once. The part of the dead resident stays recorded until the resident is back
// and has handled its DEL.
func TestAddIsUndoneWhenAResidentDiesInIt(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	below := fakes("below")
	d := newDaemon(n, below, t.TempDir())
	n.start()
	x := fakes("a", "b", "c")
	n.serve(newPlugin("10", "a", x))
	n.serve(newPlugin("30", "c", x))
	dies := make(chan *served, 1)
	x.Plugins["b"] = func(ctx context.Context, c delegatetest.Invocation) ([]byte, error) {
		select {
		case it := <-dies:
			it.stop()
			<-ctx.Done() // its answer will not arrive
		default:
		}
		return delegatetest.Result(nil)(ctx, c)
	}
	dies <- n.serve(newPlugin("20", "b", x))
	err := d.add(t.Context(), attach("c1", "below", "a", "b", "c"))
	nodetest.Code(t, err, 11)
	nodetest.Is(t, err, resident.ErrLost)
	nodetest.Equal(t, "alive", append(x.Live(), below.Live()...), []string{"b c1 eth0"})
	nodetest.OK(t, d.del(t.Context(), "c1")) // the runtime need not wait for the resident
	nodetest.Equal(t, "recorded", d.records(t), []string{"c1 leftover"})
	back := newPlugin("20", "b", x)
	known := told(back)
	n.serve(back, 2)
	if k := nodetest.Come(t, known, "what is attached"); len(k) != 1 || k[0].Added {
		t.Errorf("told %+v", k)
	}
	nodetest.OK(t, d.del(t.Context(), "c1"))
	nodetest.Equal(t, "left", slices.Concat(x.Live(), below.Live(), d.records(t)), nil)
}

// An ADD first undoes what is left of the one before.
func TestAddSucceedsAfterTheResidentIsBack(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	d := newDaemon(n, nil, t.TempDir())
	n.start()
	x := fakes("a", "b")
	n.serve(newPlugin("10", "a", x))
	b := n.serve(newPlugin("20", "b", x))
	nodetest.OK(t, d.add(t.Context(), attach("c1", "a", "b")))
	b.stop()
	n.await("20-b gone", 1)
	nodetest.Code(t, d.del(t.Context(), "c1"), 11)
	// The part of the other plugin is removed, and the rest is recorded.
	nodetest.Equal(t, "alive", x.Live(), []string{"b c1 eth0"})
	nodetest.Code(t, d.add(t.Context(), attach("c1", "a", "b")), 11)
	// An ADD of another container has done nothing, and leaves no record.
	nodetest.Code(t, d.add(t.Context(), attach("c2", "a", "b")), 11)
	nodetest.Equal(t, "recorded", d.records(t), []string{"c1 deleting"})
	n.serve(newPlugin("20", "b", x), 2)
	nodetest.OK(t, d.add(t.Context(), attach("c1", "a", "b")))
	nodetest.Equal(t, "recorded", d.records(t), []string{"c1 added"})
}

func TestNothingIsLeftWhenResidentsComeAndGoDuringManyOperations(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	d := newDaemon(n, nil, t.TempDir())
	n.start()
	types := []string{"p0", "p1", "p2", "p3"}
	x := fakes(types...)
	residents := make([]*served, len(types))
	for i, name := range types {
		residents[i] = n.serve(newPlugin(fmt.Sprint("0", i), name, x))
	}
	var wg sync.WaitGroup
	added := make(chan struct{}) // closed by the first ADD that gets to the end
	once := sync.OnceFunc(func() { close(added) })
	for i := range 8 {
		wg.Go(func() {
			id := fmt.Sprint("c", i)
			for range 4 {
				// It may fail while a resident is away.
				if err := d.add(t.Context(), attach(id, types...)); err == nil {
					once()
					_ = d.del(t.Context(), id)
				}
			}
		})
	}
	nodetest.Come(t, added, "the end of an ADD")
	for i := range 3 {
		residents[i].stop()
		n.await(fmt.Sprintf("0%d-p%d gone", i, i), 1)
		n.serve(newPlugin(fmt.Sprint("0", i), types[i], x), 2)
	}
	wg.Wait()
	for i := range 8 {
		nodetest.OK(t, d.del(t.Context(), fmt.Sprint("c", i)))
	}
	nodetest.Equal(t, "left", append(x.Live(), d.records(t)...), nil)
}

// pipe connects d to the host by a pipe, until stop.
func (n *node) pipe(d *resident.Resident) (stop func()) {
	n.t.Helper()
	ours, its := net.Pipe()
	n.Attend(n.t.Context(), ours, os.Geteuid())
	ctx, stop := context.WithCancel(n.t.Context())
	go func() {
		defer stop()
		_ = d.Serve(ctx, its)
	}()
	return stop
}

// within runs a test in a bubble. Resident 10-p hangs, see hangs; 20-other does
// not.
func within(t *testing.T, do func(n *node)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, &resident.Host{}).start()
		n.pipe(with("10", "p", hangs(t)))
		n.pipe(simple("20", "other"))
		synctest.Wait()
		do(n)
	})
}

func TestCallTimeoutFailsWithCode11(t *testing.T) {
	within(t, func(n *node) {
		start := time.Now()
		err := n.call("p", "ADD", "hang")
		nodetest.Fails(n.t, err, 11, "no answer in time")
		nodetest.Is(n.t, err, context.DeadlineExceeded)
		nodetest.Equal(n.t, "was not run", errors.Is(err, delegate.ErrNotRun), false)
		nodetest.Equal(n.t, "after", time.Since(start), 30*time.Second)
		nodetest.Equal(n.t, "closed after one", n.states(), []string{"10-p ready", "20-other ready"})
	})
}

// An answer in between starts the count again. Other residents are not
// affected, and the resident may come back.
func TestResidentIsDisconnectedAfterThreeTimeoutsInARow(t *testing.T) {
	within(t, func(n *node) {
		for range 3 {
			nodetest.Code(n.t, n.call("p", "ADD", "hang"), 11)
			nodetest.Code(n.t, n.call("p", "ADD", "hang"), 11)
			nodetest.OK(n.t, n.call("p", "ADD", "c1"))
		}
		for range 3 {
			nodetest.Code(n.t, n.call("p", "ADD", "hang"), 11)
		}
		nodetest.Says(n.t, n.await("10-p gone", 1).Err, "no answer in time")
		n.notRun(n.call("p", "ADD", "c1"), "not connected")
		nodetest.OK(n.t, n.call("other", "ADD", "c1"))
		n.pipe(simple("10", "p"))
		n.await("10-p ready", 2)
		nodetest.OK(n.t, n.call("p", "ADD", "c1"))
	})
}

// They succeed when it is back. ADD and STATUS fail at once; so do all when it
// has been gone for long.
func TestDelCheckAndGCWaitForAResidentThatHasGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, &resident.Host{Reserve: []string{"p"}}).start()
		unanswered := func(command string, after time.Duration) {
			t.Helper()
			start := time.Now()
			n.notRun(n.call("p", command, "c1"), "not connected")
			nodetest.Equal(t, command+" took", time.Since(start), after)
		}
		unanswered("ADD", 0)
		unanswered("STATUS", 0)
		unanswered("DEL", 15*time.Second)
		unanswered("DEL", 0)

		x := fakes("p")
		stop := n.pipe(newPlugin("10", "p", x))
		n.await("10-p ready", 1)
		stop()
		n.await("10-p gone", 1)
		unanswered("ADD", 0)
		var done []<-chan error
		for _, command := range []string{"DEL", "CHECK", "GC"} {
			done = append(done, later(func() error { return n.call("p", command, "c1") }))
		}
		synctest.Wait()
		n.pipe(newPlugin("10", "p", x))
		for _, c := range done {
			nodetest.OK(t, <-c)
		}
		got := x.Trace()
		slices.Sort(got)
		nodetest.Equal(t, "got", got, []string{"CHECK p eth0", "DEL p eth0", "GC p eth0"})
	})
}

// Calls that a registering resident has not received do not count against it.
func TestCallsBeforeReadyDoNotCountAsTimeouts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, told := simple("10", "p"), make(chan struct{})
		d.Synchronize = func(context.Context, []resident.Known) error { <-told; return nil }
		n := newNodeOf(t, &resident.Host{ReturnTimeout: time.Second}).start()
		n.pipe(d)
		synctest.Wait()
		for range 3 { // three timeouts would disconnect it
			n.notRun(n.call("p", "ADD", "c1"), "not connected")
		}
		close(told)
		n.await("10-p ready", 1)
		nodetest.OK(t, n.call("p", "ADD", "c1"))
	})
}
