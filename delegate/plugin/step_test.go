package plugin_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/conform"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// A fence is a firewall, for the step "rule" of a plugin. It outlives containers and
// processes.
type fence struct {
	rules  map[string]string // what is fenced, by network, container and interface
	log    []string          // all commands, those of delegates too
	before func(c *plugin.Call) error
}

// fenced returns a node and a plugin with the step "rule" after the plugins of each network.
func fenced(t *testing.T) (*node, *fence, plugin.Plugin) {
	t.Helper()
	n, f := newNode(t), &fence{rules: make(map[string]string)}
	n.On("", func(_ context.Context, c delegatetest.Invocation) error {
		f.log = append(f.log, c.String())
		return nil
	})
	p := small()
	p.Steps = map[string]plugin.Step{"rule": {
		Add: f.do(func(c *plugin.Call, at string) error {
			conf, err := plugin.Config[struct{ Allow string }](c)
			if err != nil {
				return err
			}
			f.rules[at] = conf.Allow
			prev, err := c.PrevResult()
			if err != nil {
				return err
			}
			prev.DNS.Domain = "fenced"
			return c.Print(prev)
		}),
		Check: f.do(func(_ *plugin.Call, at string) error {
			if _, ok := f.rules[at]; !ok {
				return types.NewError(101, "the rule is gone", "")
			}
			return nil
		}),
		Del: f.do(func(_ *plugin.Call, at string) error { delete(f.rules, at); return nil }),
		GC: f.do(func(c *plugin.Call, _ string) error {
			valid, err := c.Valid()
			keep := make(map[string]bool)
			for _, a := range valid {
				keep[c.Name+" "+a.ContainerID+" "+a.IfName] = true
			}
			maps.DeleteFunc(f.rules, func(at, _ string) bool { return strings.HasPrefix(at, c.Name+" ") && !keep[at] })
			return err
		}),
		Status: f.do(func(*plugin.Call, string) error { return nil }),
	}}
	networks := p.Networks
	p.Networks = func(ctx context.Context, c *plugin.Call) ([]netconf.Network, error) {
		nets, err := networks(ctx, c)
		if err != nil {
			return nil, err
		}
		return nets, c.Append(nets, "rule", map[string]any{"allow": "10.0.0.0/8"})
	}
	return n, f, p
}

func (f *fence) do(command func(c *plugin.Call, at string) error) func(context.Context, *plugin.Call) error {
	return func(_ context.Context, c *plugin.Call) error {
		f.log = append(f.log, strings.TrimRight(fmt.Sprintf("%s rule %s", c.Command, c.IfName), " "))
		if f.before != nil {
			if err := f.before(c); err != nil {
				return err
			}
		}
		return command(c, c.Name+" "+c.ContainerID+" "+c.IfName)
	}
}

// logged returns what has run since the last call.
func (f *fence) logged() string {
	defer func() { f.log = nil }()
	return strings.Join(f.log, ", ")
}

// A step runs where it stands in each network, for every command, in the process. It is
// in the record, with its configuration, and DEL hands it the result.
func TestStepIsAPartOfTheChain(t *testing.T) {
	t.Parallel()
	n, f, p := fenced(t)
	nodetest.OK(t, n.do(p, "ADD", two))
	nodetest.Equal(t, "ADD", f.logged(), adds)
	nodetest.Equal(t, "rules", f.rules, map[string]string{"n c1 eth0": "10.0.0.0/8", "m c1 net1": "10.0.0.0/8"})
	n.says(`"domain":"fenced"`)
	nodetest.OK(t, n.do(p, "CHECK", two))
	nodetest.Equal(t, "CHECK", f.logged(), strings.ReplaceAll(adds, "ADD", "CHECK"))
	nodetest.OK(t, n.do(p, "STATUS", two))
	nodetest.Equal(t, "STATUS", f.logged(), "STATUS bridge, STATUS rule, STATUS macvlan, STATUS rule")
	f.rules["n c2 eth0"] = "" // of a container that is gone
	nodetest.OK(t, n.do(p, "GC", two+`,"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}]`))
	nodetest.Equal(t, "rules after GC", len(f.rules), 2)
	delete(f.rules, "n c1 eth0")
	nodetest.Fails(t, n.do(p, "CHECK", two), 101, `plugin "small/rule"`, "the rule is gone")
	f.log = nil
	f.before = func(c *plugin.Call) error {
		prev, err := c.PrevResult()
		if err != nil || prev == nil || prev.DNS.Domain != "fenced" {
			t.Errorf("DEL with %v, %v", prev, err)
		}
		return nil
	}
	nodetest.OK(t, n.do(p, "DEL", `,"delegates":5`)) // from the record alone
	nodetest.Equal(t, "DEL", f.logged(), dels)
	nodetest.Equal(t, "rules", f.rules, nil)
	nodetest.Equal(t, "alive", n.Exec.Live(), nil)
}

// A step gets the result of the delegate in a version of CNI too that has no chains.
func TestStepGetsPrevResultInEveryVersion(t *testing.T) {
	t.Parallel()
	for _, v := range version.All.SupportedVersions() {
		n, f, p := fenced(t)
		n.version = v
		n.Exec.Plugins["bridge"] = delegatetest.Result(own())
		f.before = func(c *plugin.Call) error {
			prev, err := c.PrevResult()
			if c.Command == "ADD" && (err != nil || prev == nil || len(prev.IPs) != 1) {
				t.Errorf("%s: ADD with %v, %v", v, prev, err)
			}
			return nil
		}
		for _, command := range []delegate.Command{"ADD", "DEL"} {
			nodetest.OK(t, n.do(p, command, `,"delegates":[{"type":"bridge"}]`))
		}
		nodetest.Equal(t, v, f.logged(), "ADD rule eth0, DEL rule eth0")
	}
}

// A step stands where its author puts it: before the delegates, there is no prevResult.
// What it does not print it passes on.
func TestStepBeforeTheDelegates(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	p := small()
	p.Steps = map[string]plugin.Step{"first": {Add: func(_ context.Context, c *plugin.Call) error {
		prev, err := c.PrevResult()
		if prev != nil || err != nil {
			t.Errorf("before the delegates: %v, %v", prev, err)
		}
		return err
	}}, "last": {}}
	p.Networks = func(_ context.Context, c *plugin.Call) ([]netconf.Network, error) {
		first, err := c.Step("first", nil)
		nodetest.OK(t, err)
		bridge := nodetest.Network("n", "bridge")
		net, err := bridge.WithPlugins(append([]netconf.Plugin{first}, bridge.Plugins()...)...)
		nodetest.OK(t, err)
		nets := []netconf.Network{net}
		return nets, c.Append(nets, "last", struct{}{})
	}
	n.Exec.Plugins["bridge"] = delegatetest.Result(own())
	nodetest.OK(t, n.do(p, "ADD", two))
	n.says(`"sandbox":"/absent"`)
	nodetest.OK(t, n.do(p, "CHECK", two))
	nodetest.OK(t, n.do(p, "DEL", two))
	if _, err := (&plugin.Call{}).Step("x", 5); err == nil {
		t.Error("a step with a number for its configuration")
	}
}

// A step that fails in any way is undone with everything before it, last first.
func TestStepThatFailsIsUndone(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		fail  func() error
		code  uint
		words string
	}{
		"with a code":    {func() error { return types.NewError(102, "no room for secret-value", "") }, 102, "no room"},
		"without a code": {func() error { return errors.New("no room in 10.0.0.0/8") }, 999, "no room in 10.0.0.0/8"},
		"by a panic":     {func() error { panic("index out of range") }, 999, `panic in step "rule": index out of range`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, f, p := fenced(t)
			f.before = func(c *plugin.Call) error {
				if c.Command != "ADD" || c.IfName != "net1" {
					return nil
				}
				f.rules["m c1 net1"] = "half"
				return tt.fail()
			}
			nodetest.Fails(t, n.do(p, "ADD", two), tt.code, `network "m"`, `plugin "small/rule"`, tt.words)
			nodetest.Equal(t, "log", f.logged(), adds+", "+dels)
			nodetest.Equal(t, "rules", f.rules, nil)
		})
	}
}

// What a process that died in a step has left is removed by the next DEL, and by the next
// ADD.
func TestStepOfAProcessThatDied(t *testing.T) {
	t.Parallel()
	for next, want := range map[delegate.Command]string{"DEL": dels, "ADD": dels + ", " + adds} {
		n, f, p := fenced(t)
		f.before = func(c *plugin.Call) error {
			f.rules[c.Name+" c1 "+c.IfName] = "half"
			if c.IfName == "net1" {
				runtime.Goexit() // it leaves what a killed process leaves
			}
			return nil
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			t.Errorf("it did not die, but returned %v", n.do(p, "ADD", two))
		}()
		<-ended
		f.before, f.log = nil, nil
		nodetest.OK(t, n.do(p, next, two))
		nodetest.Equal(t, "log", f.logged(), want)
		nodetest.OK(t, n.do(p, "DEL", two))
		nodetest.Equal(t, "rules", f.rules, nil)
	}
}

// A network that names a step which the plugin does not have, or the plugin itself, is
// refused before anything runs; so is a step with the name of another plugin.
func TestStepsThatAreRefused(t *testing.T) {
	t.Parallel()
	for refused, words := range map[string]string{
		`{"type":"small","step":"other"}`:  `no step "other"`,
		`{"type":"stable","step":"other"}`: `no step "other"`,
		`{"type":"small"}`:                 "must not delegate to itself",
		`{"type":"stable"}`:                "must not delegate to itself",
		`{"type":"rule"}`:                  `"rule" is a step of this plugin and the type of another`,
		`{"name":"x","plugins":[{"type":"macvlan"},{"type":"small","step":""}]}`: "must not delegate to itself",
	} {
		t.Run(refused, func(t *testing.T) {
			t.Parallel()
			n, f, p := fenced(t)
			p.Type = "stable"
			keys := `,"delegates":[{"type":"bridge"},` + refused + `]`
			nodetest.Fails(t, n.do(p, "ADD", keys), 7, words)
			nodetest.Equal(t, "ran", f.logged(), "")
			nodetest.Says(t, n.do(p, "STATUS", keys), words)
			if files := n.Files("state"); len(files) > 1 { // the lock's
				t.Errorf("there are %v", files)
			}
		})
	}
}

// A record of another version of the plugin may have a step that this one does not know.
func TestRecordedStepThatIsNotKnown(t *testing.T) {
	t.Parallel()
	n, f, p := added(t)
	steps := p.Steps
	p.Steps = nil
	nodetest.Fails(t, n.do(p, "DEL", two), 7, `plugin "small/rule"`, `the plugin has no step "rule"`)
	nodetest.Equal(t, "alive", n.Exec.Live(), nil)
	p.Steps = steps
	nodetest.OK(t, n.do(p, "DEL", two))
	nodetest.Equal(t, "rules", f.rules, nil)
}

// The executable with the configuration of a step executes the step, and nothing else: no
// Prepare, no record.
func TestExecutableExecutesAStepAlone(t *testing.T) {
	t.Parallel()
	n, f, p := fenced(t)
	p.Prepare = func(*plugin.Call) error { return errors.New("prepared") }
	run := func(command, step string) (string, error) {
		process := n.process()
		process.Env = []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0", "CNI_NETNS=/absent", "CNI_PATH=/opt/cni/bin"}
		process.Stdin = bytes.NewReader(n.call(fmt.Sprintf(`,"step":%q,"allow":"any","prevResult":{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.2/24"}]}`, step)).StdinData)
		n.out.Reset()
		err := p.Run(t.Context(), process)
		return strings.TrimSpace(n.out.String()), err
	}
	for _, tt := range []struct{ command, want string }{
		{"ADD", `{"cniVersion":"1.1.0","dns":{"domain":"fenced"},"ips":[{"address":"10.0.0.2/24"}]}`}, {"CHECK", ""}, {"DEL", ""}, {"DEL", ""},
	} {
		out, err := run(tt.command, "rule")
		nodetest.OK(t, err)
		nodetest.Equal(t, "result", out, tt.want)
		if tt.command == "ADD" {
			nodetest.Equal(t, "rules", f.rules, map[string]string{"n c1 eth0": "any"})
		}
	}
	nodetest.Equal(t, "log", f.logged(), "ADD rule eth0, CHECK rule eth0, DEL rule eth0, DEL rule eth0")
	nodetest.Equal(t, "rules", f.rules, nil)
	for _, command := range []string{"ADD", "CHECK", "DEL"} { // never a success that did nothing
		_, err := run(command, "other")
		nodetest.Fails(t, err, 7, `no step "other"`)
		n.says(`"code":7`)
	}
	nodetest.Equal(t, "records", n.Files("state"), nil)
}

// Another program that has the record runs the executable of the plugin for its step, without
// the network namespace.
func TestAnotherProgramRemovesAStep(t *testing.T) {
	t.Parallel()
	n, f, p := added(t)
	n.Exec.Plugins["small"] = delegatetest.Program(p.Execute).Plugin(&delegatetest.Exec{})
	m := n.process().NewManager(n.Path("state"), "tool", []string{"/opt/cni/bin"})
	nodetest.OK(t, m.Del(t.Context(), eth0, lifecycle.DelRequest{}))
	nodetest.Equal(t, "log", f.logged(), dels)
	nodetest.Equal(t, "rules", f.rules, nil)
}

// A program that takes an attachment over does not have the steps of the plugin, whose
// executable may go: they are undone once it has the rest.
func TestReleaseUndoesSteps(t *testing.T) {
	t.Parallel()
	n, f, p := added(t)
	c, err := p.Call(n.process(), "DEL", n.call(""))
	nodetest.OK(t, err)
	nodetest.OK(t, c.Manager.Release(t.Context(), eth0, func(_ context.Context, r lifecycle.AddRecord) error {
		kept := r.Attached[0].Network.Plugins()
		if len(kept) != 1 || kept[0].Type() != "bridge" || len(f.rules) != 1 {
			t.Errorf("kept %v, rules %v", kept, f.rules)
		}
		return nil
	}))
	nodetest.Equal(t, "log", f.logged(), "DEL rule net1, DEL macvlan net1, DEL rule eth0")
	nodetest.Equal(t, "alive", n.Exec.Live(), []string{"bridge c1 eth0"})
}

// The plugin with a step conforms.
func TestPluginWithAStepConforms(t *testing.T) {
	t.Parallel()
	_, _, p := fenced(t)
	p.Steps = map[string]plugin.Step{"rule": {}}
	conform.Test(t, conform.Program(p.Execute), conform.Config{
		Strict: true,
		Stdin: func(dir string) string {
			return fmt.Sprintf(`{"type":"small","stateDir":%q,"delegates":[{"type":"bridge"},{"type":"macvlan","name":"m"}]}`, filepath.Join(dir, "state"))
		},
		Delegates: []string{"bridge", "macvlan"},
	})
}

// added is fenced, with eth0 attached.
func added(t *testing.T) (*node, *fence, plugin.Plugin) {
	t.Helper()
	n, f, p := fenced(t)
	nodetest.OK(t, n.do(p, "ADD", two))
	f.log = nil
	return n, f, p
}

// The commands of the steps and delegates of two networks.
const (
	dels = "DEL rule net1, DEL macvlan net1, DEL rule eth0, DEL bridge eth0"
	adds = "ADD bridge eth0, ADD rule eth0, ADD macvlan net1, ADD rule net1"
)

var eth0 = scratch.Key{Network: "n", ContainerID: "c1", IfName: "eth0"}
