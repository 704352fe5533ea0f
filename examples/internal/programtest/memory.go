package programtest

import (
	"bytes"
	"context"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/plugin"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// A Memory is a node that runs a plugin without a process.
type Memory struct {
	*nodetest.Node
	plugin.Plugin

	Process plugin.System // what the plugin has of one
	Taken   []string      // interface names in every network namespace
	Printed bytes.Buffer
}

// NewMemory returns a node for a plugin, with plugins of these types to delegate to.
func NewMemory(tb testing.TB, p plugin.Plugin, delegates ...string) *Memory {
	tb.Helper()
	m := &Memory{Node: nodetest.New(tb, delegates...), Plugin: p}
	m.Process = plugin.System{
		Exec: m.Exec, Stdout: &m.Printed, InterfaceNames: func(string) ([]string, error) { return m.Taken, nil },
	}
	return m
}

// Do runs a command with a configuration, for the attachment eth0 of the container c1 unless
// edits say otherwise.
func (m *Memory) Do(command, conf string, edits ...func(*skel.CmdArgs)) error {
	return m.DoUntil(m.Context(), command, conf, edits...)
}

// DoUntil is Do with a context.
func (m *Memory) DoUntil(ctx context.Context, command, conf string, edits ...func(*skel.CmdArgs)) error {
	args := skel.CmdArgs{
		ContainerID: "c1", Netns: m.Path("netns"), IfName: "eth0", Args: "IgnoreUnknown=1",
		Path: "/opt/other/bin", StdinData: []byte(conf),
	}
	for _, edit := range edits {
		edit(&args)
	}
	return m.Plugin.Do(ctx, m.Process, delegate.Command(command), args)
}

// As lets a call be for another container.
func As(container string) func(*skel.CmdArgs) {
	return func(a *skel.CmdArgs) { a.ContainerID = container }
}

// At lets a call be for another interface.
func At(ifname string) func(*skel.CmdArgs) { return func(a *skel.CmdArgs) { a.IfName = ifname } }
