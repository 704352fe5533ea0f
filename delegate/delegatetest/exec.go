// Package delegatetest fakes delegated plugins, for tests of programs that use
// package delegate, or libcni: it needs no root, no network and no files.
//
// An [Exec] stands in for the one that runs processes. It knows which
// attachments are alive, so a test that ends with [Exec.Live] empty has shown
// that nothing leaked.
package delegatetest

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/containernetworking/cni/pkg/version"
)

// A Call is one invocation of a fake plugin.
type Call struct {
	Command, Plugin                  string
	ContainerID, NetNS, IfName, Args string
	Env                              []string // as received
	Stdin                            []byte   // as received
}

// String returns the call as a short line such as "ADD bridge net1", or
// "GC bridge" where there is no interface.
func (c Call) String() string {
	return strings.TrimSpace(c.Command + " " + c.Plugin + " " + c.IfName)
}

// A Plugin is what a fake plugin does: it returns what the real one would have
// printed to stdout, or the error that running it would have returned. It must
// be safe for concurrent use if the program under test runs plugins so.
type Plugin func(ctx context.Context, c Call) ([]byte, error)

// Exec is a fake [invoke.Exec] of plugins that live in memory. The zero Exec
// has no plugins. It is safe for concurrent use; Plugins must not change while
// a plugin is looked up or runs. There is no process, so there is nothing to
// hand files to and no process ID to report.
//
// [invoke.Exec]: https://pkg.go.dev/github.com/containernetworking/cni/pkg/invoke#Exec
type Exec struct {
	version.PluginDecoder

	// Plugins holds the plugins that exist, by type.
	Plugins map[string]Plugin

	mu    sync.Mutex
	calls []Call
	live  map[string]bool
}

// FindInPath returns a made-up path when there is a plugin of that type, and
// an error when there is none. It looks at no file; paths is ignored.
func (e *Exec) FindInPath(plugin string, _ []string) (string, error) {
	if _, ok := e.Plugins[plugin]; !ok {
		return "", fmt.Errorf("delegatetest: no plugin %q among %q", plugin, slices.Sorted(maps.Keys(e.Plugins)))
	}
	return "/delegatetest/" + plugin, nil
}

// ExecPlugin records the call and has the plugin at pluginPath answer it.
func (e *Exec) ExecPlugin(ctx context.Context, pluginPath string, stdin []byte, environ []string) ([]byte, error) {
	c := newCall(path.Base(pluginPath), stdin, environ)
	plugin, ok := e.Plugins[c.Plugin]
	if !ok {
		return nil, fmt.Errorf("delegatetest: no plugin at %s", pluginPath)
	}
	e.begin(c)
	out, err := plugin(ctx, c)
	if c.Command == "DEL" && err == nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.live, c.attachment())
	}
	return out, err
}

// begin records c. An ADD counts as alive from here on: one that fails may
// have done a part of its work, and only DEL is sure to take that back.
func (e *Exec) begin(c Call) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls = append(e.calls, c)
	if c.Command == "ADD" {
		if e.live == nil {
			e.live = make(map[string]bool)
		}
		e.live[c.attachment()] = true
	}
}

func newCall(plugin string, stdin []byte, environ []string) Call {
	c := Call{Plugin: plugin, Env: slices.Clone(environ), Stdin: slices.Clone(stdin)}
	for _, kv := range environ {
		switch k, v, _ := strings.Cut(kv, "="); k {
		case "CNI_COMMAND":
			c.Command = v
		case "CNI_CONTAINERID":
			c.ContainerID = v
		case "CNI_NETNS":
			c.NetNS = v
		case "CNI_IFNAME":
			c.IfName = v
		case "CNI_ARGS":
			c.Args = v
		}
	}
	return c
}

func (c Call) attachment() string {
	return c.Plugin + " " + c.ContainerID + " " + c.IfName
}

// Calls returns the calls made so far, in the order in which they began.
func (e *Exec) Calls() []Call {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.calls)
}

// Trace returns the calls made so far, one line each; see [Call.String].
func (e *Exec) Trace() []string {
	var lines []string
	for _, c := range e.Calls() {
		lines = append(lines, c.String())
	}
	return lines
}

// Live lists, sorted, what was added, or began to be, and not successfully
// deleted since, as "plugin containerID ifname". A plugin that stands twice in
// one network is listed once. A test that leaves it empty leaked nothing.
func (e *Exec) Live() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Sorted(maps.Keys(e.live))
}
