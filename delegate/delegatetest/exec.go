// Package delegatetest has fakes for tests of CNI plugins that delegate to others. They need
// neither root nor a network.
//
// An [Exec] runs fake plugins in memory instead of processes. It knows which
// attachments are alive: a test that ends with [Exec.Live] empty has shown that
// nothing leaked. Its plugins are functions, wrapped by faults such as [FailOn],
// [KillOn] and [HangOn]. [Result] makes one that gives a fixed answer, and
// [Program.Plugin] one that is another plugin made with the SDK.
//
// [RunPlugin] runs the plugin under test, given as a [Program], as if it were a process.
// Package conform checks that such a plugin, or an executable, does what the CNI
// specification asks of it.
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

// An Invocation is one call of a plugin.
//
// In one that an [Exec] recorded, Env is the whole environment, and the other strings are
// the values of its CNI variables. In one for [RunPlugin], Env holds the variables that the
// other strings do not set; an empty string sets none.
type Invocation struct {
	Command, Plugin                        string
	ContainerID, NetNS, IfName, Args, Path string
	Env                                    []string
	Stdin                                  []byte
}

// variables pairs the variables of the specification with the fields of c.
func (c *Invocation) variables() map[string]*string {
	return map[string]*string{
		"CNI_COMMAND": &c.Command, "CNI_CONTAINERID": &c.ContainerID, "CNI_NETNS": &c.NetNS,
		"CNI_IFNAME": &c.IfName, "CNI_ARGS": &c.Args, "CNI_PATH": &c.Path,
	}
}

// String returns the call as a short line such as "ADD bridge net1", or
// "GC bridge" where there is no interface.
func (c Invocation) String() string {
	return strings.TrimSpace(c.Command + " " + c.Plugin + " " + c.IfName)
}

// A Fake is a fake plugin. It returns what a real one would print to stdout, or
// the error that running it would return. It must be safe for concurrent use if
// the program under test runs plugins in parallel.
type Fake func(ctx context.Context, c Invocation) ([]byte, error)

// Exec is a fake [delegate.Exec] that runs plugins in memory. The zero Exec has no
// plugins. Goroutines may share an Exec; Plugins and Script must not change while
// a plugin is looked up or runs. There is no process, so there is no process ID,
// and no process can inherit files.
type Exec struct {
	version.PluginDecoder

	// Plugins holds the plugins by type.
	Plugins map[string]Fake

	// Script, when not nil, returns the plugin that answers a call. The call is
	// the n-th of this Exec, counted from 1, and p is its plugin in Plugins.
	// Script must be safe for concurrent use if the program under test runs
	// plugins in parallel.
	Script func(n int, c Invocation, p Fake) Fake

	mu    sync.Mutex
	calls []Invocation
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
	c := newInvocation(path.Base(pluginPath), stdin, environ)
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
func (e *Exec) begin(c Invocation) (n int) {
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

func newInvocation(plugin string, stdin []byte, environ []string) Invocation {
	c := Invocation{Plugin: plugin, Env: slices.Clone(environ), Stdin: slices.Clone(stdin)}
	fields := c.variables()
	for _, kv := range environ {
		k, v, _ := strings.Cut(kv, "=")
		if field := fields[k]; field != nil {
			*field = v
		}
	}
	return c
}

func (c Invocation) attachment() string {
	return c.Plugin + " " + c.ContainerID + " " + c.IfName
}

// Calls returns the calls made so far, in the order in which they began.
func (e *Exec) Calls() []Invocation {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.calls)
}

// Trace returns the calls made so far, one line each; see [Invocation.String].
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
