package plugin_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/plugin"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// run runs a command of p for eth0 of c1 in the network of a name, with more keys in its
// configuration, on a node with the root directory n.dir.
func (n *node) run(t *testing.T, p plugin.Plugin, command delegate.Command, name, keys, args string) error {
	t.Helper()
	n.out.Reset()
	process := n.process()
	process.Root = plugin.Root(n.dir)
	return p.Do(t.Context(), process, command, skel.CmdArgs{
		ContainerID: "c1", IfName: "eth0", Netns: "/absent", Args: args,
		StdinData: fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":%q,"type":"small","stateDir":"/state","delegates":[{"type":"bridge"}]%s}`, name, keys),
	})
}

// A DEL takes the record of another network for its own only if the runtime certainly has that
// network no more. Otherwise it removes nothing, and says success only if the network is there.
func TestRenamedNetworkIsKnownByTheRuntimesDirectory(t *testing.T) {
	t.Parallel()
	const (
		usual, k3s = "etc/cni/net.d/", "var/lib/rancher/k3s/agent/etc/cni/net.d/"
		ours       = `{"cniVersion":"1.0.0","name":"new","plugins":[{"type":"small"}]}`
		other      = `{"cniVersion":"1.0.0","name":"old","plugins":[{"type":"bridge"},{"type":"small"}]}`
	)
	for name, tt := range map[string]struct {
		files   map[string]string
		keys    string
		removed bool
		code    uint
	}{
		"renamed":                               {files: map[string]string{usual + "1.conflist": ours}, removed: true},
		"renamed, in the directory of the key":  {files: map[string]string{"nets/1.conflist": ours}, keys: `,"runtimeConfDir":"/nets"`, removed: true},
		"renamed, in k3s":                       {files: map[string]string{k3s + "1.conflist": ours}, removed: true},
		"its name is another network's":         {files: map[string]string{usual + "1.conflist": ours, usual + "2.conf": `{"cniVersion":"1.0.0","name":"old","type":"bridge"}`}, removed: true},
		"a file that is no network":             {files: map[string]string{usual + "1.conflist": ours, usual + "2.conflist.bak": other}, removed: true},
		"both are there":                        {files: map[string]string{usual + "1.conflist": ours, usual + "2.conflist": other}},
		"the other is there as a lone plugin":   {files: map[string]string{usual + "1.conflist": ours, usual + "2.conf": `{"cniVersion":"1.0.0","name":"old","type":"small"}`}},
		"the other has the type of our shim":    {files: map[string]string{usual + "1.conflist": ours, usual + "2.conf": `{"cniVersion":"1.0.0","name":"old","type":"small-shim"}`}},
		"the other is in another of its places": {files: map[string]string{usual + "2.conflist": other, k3s + "1.conflist": ours}},
		"another file cannot be read":           {files: map[string]string{usual + "1.conflist": ours, usual + "2.conflist": "{"}, code: 11},
		"a directory without ours":              {files: map[string]string{usual + "2.conflist": `{"cniVersion":"1.0.0","name":"x","type":"small"}`}, code: 11},
		"a directory of the key without ours":   {files: map[string]string{"nets/2.conflist": `{"cniVersion":"1.0.0","name":"x","type":"small"}`, usual + "1.conflist": ours}, keys: `,"runtimeConfDir":"/nets"`, code: 11},
		"no directory":                          {code: 11},
		"a key of another type":                 {files: map[string]string{usual + "1.conflist": ours}, keys: `,"runtimeConfDir":5`, code: 11},
		"a relative directory":                  {files: map[string]string{usual + "1.conflist": ours}, keys: `,"runtimeConfDir":"etc/cni/net.d"`, code: 11},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			p := small()
			p.Aliases = []string{"small-shim"}
			for file, text := range tt.files {
				nodetest.OK(t, errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(n.dir, file)), 0o700), os.WriteFile(filepath.Join(n.dir, file), []byte(text), 0o600)))
			}
			nodetest.OK(t, n.run(t, p, "ADD", "old", "", ""))
			nodetest.Code(t, n.run(t, p, "DEL", "new", tt.keys, ""), tt.code)
			if removed := slices.Contains(n.exec.Trace(), "DEL bridge eth0"); removed != tt.removed {
				t.Errorf("removed is %t: %q", removed, n.exec.Trace())
			}
			nodetest.OK(t, n.run(t, p, "DEL", "old", "", ""))
			nodetest.Equal(t, "left", n.exec.Live(), nil)
		})
	}
}

// An ADD that fails before anything is planned is noted too, so that the DEL which the runtime
// sends does not take another attachment for its own.
func TestDELAfterARefusedADDTouchesNothing(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		keys, args string
		prepare    func(*plugin.Call) error
		code       uint
		removed    bool
	}{
		"it is attached already":        {code: 7, removed: true},
		"a broken configuration":        {keys: `,"x":1,"x":2`, code: 6},
		"a key of another type":         {keys: `,"runtimeConfig":5`, code: 6},
		"arguments that nobody accepts": {args: "a", code: 4},
		"Prepare fails": {prepare: func(c *plugin.Call) error {
			if c.Command == delegate.CommandAdd && c.Name == "new" {
				return errors.New("no")
			}
			return nil
		}, code: 999},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			p := small()
			p.Prepare = tt.prepare
			// The old network is not configured any more, for all that is known.
			dir := filepath.Join(n.dir, "etc/cni/net.d")
			nodetest.OK(t, errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "1.conf"), []byte(`{"cniVersion":"1.0.0","name":"new","type":"small"}`), 0o600)))
			nodetest.OK(t, n.run(t, p, "ADD", "old", "", ""))
			nodetest.Code(t, n.run(t, p, "ADD", "new", tt.keys, tt.args), tt.code)
			nodetest.OK(t, n.run(t, p, "DEL", "new", tt.keys, tt.args))
			calls := []string{"ADD bridge eth0"}
			if tt.removed {
				calls = append(calls, "DEL bridge eth0")
			}
			nodetest.Equal(t, "calls", n.exec.Trace(), calls)
			nodetest.OK(t, n.run(t, p, "DEL", "old", "", ""))
			nodetest.Equal(t, "left", n.exec.Live(), nil)
		})
	}
}

// Arguments that are no pairs are refused before anything runs, and named. Commands that come
// after an ADD accept them.
func TestArgumentsThatAreNoPairs(t *testing.T) {
	t.Parallel()
	for args, bad := range map[string]string{
		"": "", "a=1": "", "a=1;": "", "a=": "", "a=b=c": "", "a=1;b=2;": "",
		"a": `"a"`, "a=1;b": `"b"`, "=1": `"=1"`, ";": `""`, ";;;": `""`, "a=1;;": `""`, "a=1;;b=2": `""`, ";a=1": `""`,
	} {
		n := newNode(t)
		err := n.run(t, small(), "ADD", "n", "", args)
		if bad == "" {
			nodetest.OK(t, err)
		} else {
			nodetest.Fails(t, err, 4, bad+" is not KEY=VALUE")
			nodetest.Equal(t, args, n.exec.Trace(), nil)
		}
		nodetest.OK(t, n.run(t, small(), "GC", "n", `,"cni.dev/valid-attachments":[]`, args))
		nodetest.OK(t, n.run(t, small(), "DEL", "n", "", args))
		if strings.Contains(fmt.Sprint(n.run(t, small(), "CHECK", "n", "", args)), "KEY=VALUE") {
			t.Errorf("CHECK refuses %q", args)
		}
	}
}
