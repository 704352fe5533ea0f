package shim

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate/thick"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/nodetest"
)

// A plugin writes down what it did.
type plugin struct{ did nodetest.Notes[string] }

func (p *plugin) note(command string, a *skel.CmdArgs) error {
	p.did.Note(strings.TrimSpace(command + " " + a.ContainerID))
	return nil
}

func (p *plugin) Add(_ context.Context, a *skel.CmdArgs) (types.Result, error) {
	_ = p.note("ADD", a)
	return &types100.Result{CNIVersion: "1.1.0", Interfaces: []*types100.Interface{{Name: a.IfName, Sandbox: a.Netns}}}, nil
}

func (p *plugin) Del(_ context.Context, a *skel.CmdArgs) error   { return p.note("DEL", a) }
func (p *plugin) Check(_ context.Context, a *skel.CmdArgs) error { return p.note("CHECK", a) }
func (p *plugin) GC(_ context.Context, a *skel.CmdArgs) error {
	return errors.Join(p.note("GC", a), types.NewError(107, "own", "details"))
}

func (p *plugin) Status(context.Context, *skel.CmdArgs) error {
	return types.NewError(51, "limited", "")
}

func (p *plugin) commands() thick.Commands {
	return thick.Commands{Add: p.Add, Check: p.Check, Del: p.Del, GC: p.GC, Status: p.Status}
}

// serve runs a server until the end of the test.
func serve(t *testing.T, s *thick.Server, socket string) {
	t.Helper()
	l, err := thick.Listen(t.Context(), nil, socket)
	nodetest.OK(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A DEL that found no server is done by the next one, and what the server says
// comes through.
func TestWithServer(t *testing.T) {
	t.Parallel()
	out := new(strings.Builder)
	c := &Client{Socket: filepath.Join(nodetest.ShortDir(t), "s"), Queue: newQueue(t), QueueWait: -1, Stdout: out}
	gone := args()
	gone.ContainerID = "gone"
	nodetest.OK(t, c.Execute(t.Context(), "DEL", gone))
	added := make(chan error, 1)
	go func() { added <- c.Execute(t.Context(), "ADD", args()) }()
	p := new(plugin)
	serve(t, &thick.Server{Commands: p.commands(), Queue: c.Queue, Version: "v1"}, c.Socket)
	if err := <-added; err != nil || !strings.Contains(out.String(), `"sandbox": "/run/netns/c1"`) {
		t.Errorf("%v: %s", err, out)
	}
	if err := c.Execute(t.Context(), "CHECK", args()); err != nil {
		t.Error(err)
	}
	for code, err := range map[uint]error{107: c.Execute(t.Context(), "GC", args()), 51: c.Execute(t.Context(), "STATUS", args())} {
		wantError(t, err, code)
	}
	if err := c.Execute(t.Context(), "DEL", args()); err != nil {
		t.Error(err)
	}
	_, err := c.Do(t.Context(), "ADD", args(), &wire.Attributes{})
	wantError(t, err, 999) // it does not plug
	nodetest.Until(t, "the queue is empty", func() bool { return len(queued(t, c.Queue)) == 0 })
	var got []string
	detached := 0
	for _, did := range p.did.Taken() {
		if did == "DEL gone" { // beside the others
			detached++
			continue
		}
		did, _, _ = strings.Cut(did, " c1")
		got = append(got, did)
	}
	if diff := cmp.Diff([]string{"ADD", "CHECK", "GC", "DEL"}, got); diff != "" || detached != 1 {
		t.Error(detached, diff)
	}
}
