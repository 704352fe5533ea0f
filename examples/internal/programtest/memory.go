package programtest

import (
	"bytes"
	"cmp"
	"io"
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

	Root    string    // of the node, where it is not this process's
	Taken   []string  // interface names in every network namespace
	Stdout  io.Writer // Printed if it is nil
	Printed bytes.Buffer
}

// NewMemory returns a node for a plugin, with plugins of these types to delegate to.
func NewMemory(tb testing.TB, p plugin.Plugin, delegates ...string) Memory {
	tb.Helper()
	return Memory{Node: nodetest.New(tb, delegates...), Plugin: p}
}

// Process is what the plugin has of its process.
func (m *Memory) Process() plugin.Process {
	return plugin.Process{
		Exec: m.Exec, Stdout: cmp.Or[io.Writer](m.Stdout, &m.Printed), Root: plugin.Root(m.Root),
		InterfaceNames: func(string) ([]string, error) { return m.Taken, nil },
	}
}

// Do runs a command with a configuration, for the attachment eth0 of the container c1 unless
// edits say otherwise.
func (m *Memory) Do(command, conf string, edits ...func(*skel.CmdArgs)) error {
	args := skel.CmdArgs{
		ContainerID: "c1", Netns: m.Path("netns"), IfName: "eth0", Args: "IgnoreUnknown=1;K8S_POD_NAME=p",
		Path: "/opt/other/bin", StdinData: []byte(conf),
	}
	for _, edit := range edits {
		edit(&args)
	}
	return m.Plugin.Do(m.Context(), m.Process(), delegate.Command(command), args)
}

// As lets a call be for another container.
func As(container string) func(*skel.CmdArgs) {
	return func(a *skel.CmdArgs) { a.ContainerID = container }
}

// At lets a call be for another interface.
func At(ifname string) func(*skel.CmdArgs) { return func(a *skel.CmdArgs) { a.IfName = ifname } }
