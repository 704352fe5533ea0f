// Package delegatetest tests plugins that delegate to other plugins, and fakes
// those they delegate to. Only [NewNetNS] needs root; nothing needs a network.
//
// An [Exec] stands in for the one that runs processes. It knows which
// attachments are alive, so a test that ends with [Exec.Live] empty has shown
// that nothing leaked. Its plugins are functions, made by [Result] and wrapped
// by the faults: [FailOn], [KillOn], [HangOn] and so on.
//
// [RunPlugin] runs the plugin under test, given as the callbacks of a main, as
// if it were a process of its own. [Conform] checks what the CNI specification
// wants of a plugin that delegates, with such callbacks or with an executable.
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

// A Call is one invocation of a plugin.
//
// In the calls that an [Exec] records Env is the whole environment, and the
// other strings are what is in it. In one that [RunPlugin] is to make Env is
// what the plugin sees beside them: what is empty is not set.
type Call struct {
	Command, Plugin                        string
	ContainerID, NetNS, IfName, Args, Path string
	Env                                    []string
	Stdin                                  []byte
}

// variables pairs the variables of the specification with the fields of c.
func (c *Call) variables() map[string]*string {
	return map[string]*string{
		"CNI_COMMAND": &c.Command, "CNI_CONTAINERID": &c.ContainerID, "CNI_NETNS": &c.NetNS,
		"CNI_IFNAME": &c.IfName, "CNI_ARGS": &c.Args, "CNI_PATH": &c.Path,
	}
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
// has no plugins. It is safe for concurrent use; Plugins and Script must
// not change while a plugin is looked up or runs. There is no process, so there is nothing to
// hand files to and no process ID to report.
//
// [invoke.Exec]: https://pkg.go.dev/github.com/containernetworking/cni/pkg/invoke#Exec
type Exec struct {
	version.PluginDecoder

	// Plugins holds the plugins that exist, by type.
	Plugins map[string]Plugin

	// Script, when not nil, is asked at each call which plugin answers it. The
	// call is the n-th of this Exec, from 1 on, and p is the one of Plugins:
	// to answer with p itself changes nothing. Like a [Plugin], it must be safe
	// for concurrent use if the program under test runs plugins so.
	Script func(n int, c Call, p Plugin) Plugin

	mu    sync.Mutex
	calls []Call
	live  map[string]bool
}

// FindInPath returns a made-up path when there is a plugin of that type, and
// an error when there is none. It looks at no file; paths is ignored.
func (e *Exec) FindInPath(plugin string, _ []string) (string, error) {
	if _, ok := e.Plugins[plugin]; !ok {
		return "", fmt.Errorf("not found among the fakes %q", slices.Sorted(maps.Keys(e.Plugins)))
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
	n := e.begin(c)
	if e.Script != nil {
		plugin = e.Script(n, c, plugin)
	}
	out, err := plugin(ctx, c)
	if c.Command == "DEL" && err == nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.live, c.attachment())
	}
	return out, err
}

// begin records c, as the n-th call. An ADD counts as alive from here on: one that fails may
// have done a part of its work, and only DEL is sure to take that back.
func (e *Exec) begin(c Call) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls = append(e.calls, c)
	if c.Command == "ADD" {
		if e.live == nil {
			e.live = make(map[string]bool)
		}
		e.live[c.attachment()] = true
	}
	return len(e.calls)
}

func newCall(plugin string, stdin []byte, environ []string) Call {
	c := Call{Plugin: plugin, Env: slices.Clone(environ), Stdin: slices.Clone(stdin)}
	fields := c.variables()
	for _, kv := range environ {
		k, v, _ := strings.Cut(kv, "=")
		if field := fields[k]; field != nil {
			*field = v
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
