package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"runtime/debug"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/flock"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/status"
)

// A Step is work of a plugin's own, such as a firewall rule, with the guarantees of a
// delegated plugin. It stands in a network's list, where [Call.Append] puts it: its type
// is the plugin's own, and its key "step" is the name of the step. So it is recorded
// before it is done, undone with everything else, and removed from the record alone,
// by DEL, GC and sweeps, after a crash and without the network namespace.
//
// Each function executes the command of its name. The Config of its [Call] is the
// configuration of the step, the name and version of the network, and prevResult; see
// [Config] and [Call.PrevResult]. A Call of a step has no records, because the container
// is locked: Manager has only an Invoker. A nil function does nothing and succeeds.
//
//   - Add prints its result with [Call.Print]. If it prints nothing, the step passes
//     prevResult on. There is a prevResult unless the step is the first in the list. If
//     Add fails or panics, Del is called.
//   - Check fails if the work of Add is missing or has been changed.
//   - Del removes the work of Add, also if Add was interrupted, and succeeds if there is
//     none. There may be no prevResult, no network namespace, and no container any more.
//   - GC removes what belongs to the network, [Call.Name], and to none of its attachments
//     in [Call.Valid].
//   - Status fails if Add would. See [status.NotReady].
//
// A step runs in the process of the plugin. Another program that has the record, such as
// "multinet gc", runs the plugin's executable, which executes nothing but the step. A
// function must return soon after its ctx has ended: nobody can kill it. Goroutines call it
// for several containers at once in a daemon and in tests with package conform, and for several
// networks of one container if the Invoker is Parallel: what a step shares needs a lock.
//
// When [Main] runs the plugin, the programs that a step starts inherit the container's
// lock. Should the process die, the next DEL waits for them or kills them. A daemon has
// the locks of many containers: there the step itself hands down [delegate.Files].
//
// [status.NotReady]: https://pkg.go.dev/github.com/metacni/metacni/status#NotReady
type Step struct {
	Add, Check, Del, GC, Status func(ctx context.Context, c *Call) error
}

// function returns the function for command, which may be nil, and whether the command is
// known.
func (s Step) function(command delegate.Command) (do func(context.Context, *Call) error, known bool) {
	do, known = map[delegate.Command]func(context.Context, *Call) error{
		delegate.CommandAdd: s.Add, delegate.CommandCheck: s.Check, delegate.CommandDel: s.Del,
		delegate.CommandGC: s.GC, delegate.CommandStatus: s.Status,
	}[command]
	return do, known
}

// Step returns the step called name, to stand among the plugins of a network; see
// [netconf.Network.WithPlugins]. conf is its configuration: anything that encoding/json
// makes an object of, or nil.
func (c *Call) Step(name string, conf any) (netconf.Plugin, error) {
	keys := make(map[string]json.RawMessage)
	text, err := json.Marshal(conf)
	if err == nil && string(text) != "null" {
		err = json.Unmarshal(text, &keys)
	}
	if err != nil {
		return netconf.Plugin{}, c.Invalid("", fmt.Errorf("the configuration of step %q is not an object: %w", name, err))
	}
	keys["type"], _ = json.Marshal(c.own) // a string always marshals
	keys["step"], _ = json.Marshal(name)
	return netconf.NewPlugin(keys)
}

// Append puts the step called name, as [Call.Step] makes it, after the plugins of each of
// nets, in place. Pass a part of a slice to have the step in these networks only, such as
// nets[:1] if there is one.
func (c *Call) Append(nets []netconf.Network, name string, conf any) error {
	step, err := c.Step(name, conf)
	for i, n := range nets {
		if err == nil && !n.IsZero() { // null is refused when it is completed
			nets[i], err = n.WithPlugins(append(n.Plugins(), step)...)
		}
	}
	return err
}

// step returns the name of the step that the configuration is for, or "".
func (c *Call) step() (name string) {
	_ = c.Value("step", &name) // of another type it is another key
	return name
}

// execute executes the command of c for the step called name.
func (p Plugin) execute(ctx context.Context, c *Call, name string) error {
	step, known := p.Steps[name]
	if !known {
		return c.Invalid("step", fmt.Errorf("the plugin has no step %q", name))
	}
	do, _ := step.function(c.Command)
	c.Manager = c.System.NewManager("", c.own, filepath.SplitList(c.Path))
	var printed bytes.Buffer
	stdout := c.System.Stdout
	c.System.Stdout = &printed
	if do != nil {
		if err := shielded(ctx, c, name, do); err != nil {
			return err
		}
	}
	if c.Command != delegate.CommandAdd {
		return nil
	}
	if printed.Len() == 0 {
		prev := json.RawMessage("{}")
		if err := c.Value("prevResult", &prev); err != nil {
			return err
		}
		printed.Write(prev)
	}
	if _, err := stdout.Write(printed.Bytes()); err != nil {
		return types.NewError(types.ErrIOFailure, "cannot print the result: "+err.Error(), "")
	}
	return nil
}

// shielded calls do, a function of the step called name. A panic of do is an error.
func shielded(ctx context.Context, c *Call, name string, do func(context.Context, *Call) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic in step %q: %v", name, p)
			_, _ = fmt.Fprintf(c.System.Stderr, "%v\n%s", err, debug.Stack())
		}
	}()
	return do(ctx, c)
}

// steps is an Exec that executes the steps of a plugin in this process.
type steps struct {
	delegate.Exec

	p      Plugin
	system System
	own    []string // the types of p
}

// FindInPath finds an executable, except for the types of the plugin itself: their path is
// the type.
func (s *steps) FindInPath(typ string, paths []string) (string, error) {
	if slices.Contains(s.own, typ) {
		return typ, nil
	}
	return s.Exec.FindInPath(typ, paths)
}

// ExecPlugin executes a step if path is a type of the plugin itself.
func (s *steps) ExecPlugin(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	if !slices.Contains(s.own, path) {
		return s.Exec.ExecPlugin(ctx, path, stdin, env)
	}
	var stdout bytes.Buffer
	system := s.system
	system.Env, system.Stdin, system.Stdout = env, nil, &stdout
	vars := variables(env)
	c, err := s.p.decoded(system, delegate.Command(vars["CNI_COMMAND"]), cmdArgs(vars, stdin))
	name := c.step()
	if err == nil && name == "" {
		err = errItself
	}
	if err != nil {
		return nil, err
	}
	if system.alone {
		run, err := flock.Start(ctx) // the programs of the step
		if err != nil {
			return nil, err
		}
		defer run.Ended()
		handDown(flock.Files(ctx))
	}
	err = status.Error(s.p.execute(ctx, c, name)) // as if an executable had printed it
	return stdout.Bytes(), err
}

// errItself refuses a plugin that is in its own list, and would run itself forever.
var errItself = types.NewError(types.ErrInvalidNetworkConfig, "a plugin must not delegate to itself: remove it from the network's plugins", "")

// refuse returns the Refuse of p's Invoker. The types of p are own. The name of a step
// must not be the type of another plugin, because errors would not tell which it is.
func (p Plugin) refuse(own []string) func(netconf.Plugin) error {
	return func(q netconf.Plugin) error {
		_, known := p.Steps[q.Step()]
		_, collides := p.Steps[q.Type()]
		text := ""
		switch itself := slices.Contains(own, q.Type()); {
		case itself && q.Step() == "":
			return errItself
		case itself && !known:
			text = fmt.Sprintf("the plugin has no step %q", q.Step())
		case !itself && collides:
			text = fmt.Sprintf("%q is a step of this plugin and the type of another one: one of them needs another name", q.Type())
		default:
			return nil
		}
		return types.NewError(types.ErrInvalidNetworkConfig, text, "")
	}
}
