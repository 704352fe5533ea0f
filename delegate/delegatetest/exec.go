// Package delegatetest helps to test CNI plugins, above all those that delegate to
// others. It provides fake delegates and a conformance suite. Only [Config.NetNS] needs
// root; nothing needs a network.
//
// An [Exec] runs fake plugins in memory instead of processes. It knows which
// attachments are alive: a test that ends with [Exec.Live] empty has shown that
// nothing leaked. Its plugins are functions, wrapped by faults such as [FailOn],
// [KillOn] and [HangOn]. [Result] makes one that gives a fixed answer, and
// [Program.Plugin] one that is another plugin made with the SDK.
//
// [RunPlugin] runs the plugin under test, given as the callbacks of a main, as
// if it were a process. [Conform] checks that a plugin of any [Kind] does what the CNI
// specification asks of it, with such callbacks or with an executable. The command in
// cmd/conform does so without a test.
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
// In a call that an [Exec] recorded, Env is the whole environment, and the other
// strings are the values of its CNI variables. In a call for [RunPlugin], Env
// holds the variables that the other strings do not set; an empty string sets
// none.
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

// A Plugin is a fake plugin. It returns what a real one would print to stdout, or
// the error that running it would return. It must be safe for concurrent use if
// the program under test runs plugins in parallel.
type Plugin func(ctx context.Context, c Call) ([]byte, error)

// Exec is a fake [delegate.Exec] that runs plugins in memory. The zero Exec has no
// plugins. Goroutines may share an Exec; Plugins and Script must not change while
// a plugin is looked up or runs. There is no process, so there is no process ID,
// and no process can inherit files.
type Exec struct {
	version.PluginDecoder

	// Plugins holds the plugins by type.
	Plugins map[string]Plugin

	// Script, when not nil, returns the plugin that answers a call. The call is
	// the n-th of this Exec, counted from 1, and p is its plugin in Plugins.
	// Script must be safe for concurrent use if the program under test runs
	// plugins in parallel.
	Script func(n int, c Call, p Plugin) Plugin

	mu    sync.Mutex
	calls []Call
	live  map[string]bool
}

// FindInPath returns an invented path for a plugin in Plugins, and an error for
// any other. It looks at no file and ignores its second argument.
func (e *Exec) FindInPath(plugin string, _ []string) (string, error) {
	if _, ok := e.Plugins[plugin]; !ok {
		return "", fmt.Errorf("not found among the fakes %q", slices.Sorted(maps.Keys(e.Plugins)))
	}
	return "/delegatetest/" + plugin, nil
}

// ExecPlugin records the call and runs the plugin at pluginPath.
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

// begin records c as the n-th call. An ADD counts as alive from here on: one that
// fails may have done a part of its work, which only DEL is sure to undo.
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

// forget makes e as if it had run nothing.
func (e *Exec) forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls, e.live = nil, nil
}

// Trace returns the calls made so far, one line each; see [Call.String].
func (e *Exec) Trace() []string {
	var lines []string
	for _, c := range e.Calls() {
		lines = append(lines, c.String())
	}
	return lines
}

// Live returns the attachments whose ADD began, and whose DEL has not succeeded
// since, sorted, as "plugin containerID ifname". A plugin that is in one network
// twice is listed once. A test that leaves Live empty leaked nothing.
func (e *Exec) Live() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Sorted(maps.Keys(e.live))
}
