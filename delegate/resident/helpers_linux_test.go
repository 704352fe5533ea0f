package resident_test

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/resident"
	nodetest "github.com/metacni/metacni/internal/test/node"
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
	*resident.Plugin
	stop func()     // ends it
	err  chan error // what Serve returned
}

// serve connects d, and waits until it is ready for the n-th time.
func (n *node) serve(d *resident.Plugin, nth ...int) *served {
	n.t.Helper()
	r := n.connect(d)
	n.await(d.Index+"-"+d.Name+" ready", max(1, append(nth, 1)[0]))
	return r
}

// connect lets d serve one connection.
func (n *node) connect(d *resident.Plugin) *served {
	n.t.Helper()
	conn, err := net.Dial("unix", n.socket)
	nodetest.OK(n.t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(n.t.Context()))
	r := &served{Plugin: d, stop: cancel, err: make(chan error, 1)}
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
func newPlugin(index, name string, x *delegatetest.Exec, types ...string) *resident.Plugin {
	if len(types) == 0 {
		types = []string{name}
	}
	return &resident.Plugin{Index: index, Name: name, Types: types, DrainTimeout: 50 * time.Millisecond, Plugin: commands(x)}
}

// fakes returns an Exec with plugins of these types that succeed.
func fakes(types ...string) *delegatetest.Exec {
	return &delegatetest.Exec{Plugins: nodetest.Plugins(types...)}
}

// simple returns a resident of one type that succeeds.
func simple(index, name string) *resident.Plugin { return newPlugin(index, name, fakes(name)) }

// with returns a resident of one type that does what p does.
func with(index, name string, p delegatetest.Plugin) *resident.Plugin {
	return newPlugin(index, name, &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{name: p}})
}

// commands returns a plugin that calls the fakes of x.
func commands(x *delegatetest.Exec) plugin.Plugin {
	do := func(ctx context.Context, c *plugin.Call) error {
		out, err := x.ExecPlugin(ctx, "/delegatetest/"+c.Type, c.StdinData, c.Env)
		if err == nil {
			_, err = c.Stdout.Write(out)
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

// exec calls a type directly, like an Invoker.
func (n *node) exec(ctx context.Context, typ, command, id string, env ...string) ([]byte, error) {
	n.t.Helper()
	x := n.Exec(&delegatetest.Exec{})
	path, err := x.FindInPath(typ, nil)
	nodetest.OK(n.t, err)
	return x.ExecPlugin(ctx, path, config(typ), append(environ(command, id), env...))
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
