package plugin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/conform"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/ifname"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// small is the plugin of the package comment, with a directory to choose.
func small() plugin.Plugin {
	return plugin.Plugin{
		StateDir: "/var/lib/cni/small", StateKey: "stateDir",
		Networks: func(_ context.Context, c *plugin.Call) ([]netconf.Network, error) {
			conf, err := plugin.Config[struct{ Delegates []netconf.Network }](c)
			return conf.Delegates, err
		},
	}
}

// The plugin of the package comment passes the conformance checks.
func TestSmallPluginConforms(t *testing.T) {
	t.Parallel()
	conform.Test(t, conform.Program(small().Execute), conform.Config{
		Strict: true,
		Stdin: func(dir string) string {
			return fmt.Sprintf(`{"type":"small","stateDir":%q,"delegates":[{"type":"bridge"},{"name":"storage","plugins":[{"type":"macvlan"},{"type":"tuning"}]}]}`,
				filepath.Join(dir, "state"))
		},
		Delegates: []string{"bridge", "macvlan", "tuning"},
	})
}

// A node runs plugins without processes.
type node struct {
	*nodetest.Node
	version, network, args string // of the calls
	log                    *slog.Logger
	root                   bool // Dir is the root directory of the node
	out                    bytes.Buffer
	taken                  []string
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{Node: nodetest.New(t), version: "1.1.0", network: "n", args: "IP=10.0.0.9;K8S_POD_NAME=p;MAC=02:00:00:00:00:09;GATEWAY=10.0.0.1"}
	n.Exec.Plugins = map[string]delegatetest.Fake{"bridge": delegatetest.Result(nil), "macvlan": delegatetest.Result(nil)}
	return n
}

func (n *node) process() plugin.System {
	process := plugin.System{Exec: n.Exec, Stdout: &n.out, Logger: n.log, InterfaceNames: func(string) ([]string, error) { return n.taken, nil }}
	if n.root {
		process.Root = plugin.Root(n.Dir)
	}
	return process
}

// do runs a command of p with more keys in its configuration.
func (n *node) do(p plugin.Plugin, command delegate.Command, keys string) error {
	n.out.Reset()
	return p.Do(n.Context(), n.process(), command, n.call(keys))
}

const two = `,"delegates":[{"type":"bridge","capabilities":{"ips":true,"dns":true}},{"type":"macvlan","name":"m","capabilities":{"ips":true,"dns":true}}]`

func TestNetworksAreNamedAndCompleted(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.taken = []string{"net1"}
	nodetest.OK(t, n.do(small(), "ADD", two+`,"runtimeConfig":{"ips":["10.0.0.9/24"],"dns":{"servers":["10.0.0.1"]}}`))
	n.says(`"cniVersion":"1.1.0"`)
	var got []string
	for _, c := range n.Exec.Calls() {
		got = append(got, c.IfName+" "+c.Args+" "+string(c.Stdin))
	}
	nodetest.Equal(t, "calls", got, []string{
		`eth0 IgnoreUnknown=1;IP=10.0.0.9;K8S_POD_NAME=p;MAC=02:00:00:00:00:09;GATEWAY=10.0.0.1 {"capabilities":{"ips":true,"dns":true},"cniVersion":"1.1.0","name":"n","runtimeConfig":{"dns":{"servers":["10.0.0.1"]},"ips":["10.0.0.9/24"]},"type":"bridge"}`,
		`net2 IgnoreUnknown=1;K8S_POD_NAME=p {"capabilities":{"ips":true,"dns":true},"cniVersion":"1.1.0","name":"m","runtimeConfig":{"dns":{"servers":["10.0.0.1"]}},"type":"macvlan"}`,
	})
}

func TestSharedArgsLeaveOutAddressesAlone(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"IgnoreUnknown=1;K8S_POD_NAME=web;IP=10.0.0.5;MAC=02:00:00:00:00:01;GATEWAY=10.0.0.1": "IgnoreUnknown=1;K8S_POD_NAME=web",
		"IPX=1;XIP=2;ip=3": "IPX=1;XIP=2;ip=3", "a=1;;IP": "a=1;",
	} {
		nodetest.Equal(t, args, plugin.SharedArgs(args), want)
	}
}

func TestMistakesInTheConfiguration(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, command, keys string
		code                uint
		words               string
	}{
		{"no networks, when attaching", "ADD", `,"delegates":[]`, 7, `network "n": there is no network to attach`},
		{"no networks, when asked for the status", "STATUS", ``, 7, `network "n": there is no network to attach`},
		{"no networks, when collecting", "GC", `,"cni.dev/valid-attachments":[]`, 0, ""},
		{"a network that is null", "ADD", `,"delegates":[null]`, 7, "a network is missing or null"},
		{"networks of the wrong type", "ADD", `,"delegates":5`, 6, `"delegates"`},
		{"networks of the wrong type, when deleting", "DEL", `,"delegates":5`, 0, ""},
		{"networks of the wrong type, when asked for the status", "STATUS", `,"delegates":5`, 6, `"delegates"`},
		{"networks of the wrong type, when collecting", "GC", `,"delegates":5,"cni.dev/valid-attachments":[]`, 0, ""},
		{"a key twice, when attaching", "ADD", two + `,"x":1,"x":2`, 6, `"x"`},
		{"a key twice, when asked for the status", "STATUS", two + `,"x":1,"x":2`, 6, `"x"`},
		{"a key twice, when checking", "CHECK", two + `,"x":1,"x":2`, 7, "not added"},
		{"capability arguments of the wrong type", "ADD", two + `,"runtimeConfig":5`, 6, `"runtimeConfig"`},
		{"a type of the wrong type, when deleting", "DEL", `,"type":5`, 0, ""},
		{"a type of the wrong type, when attaching", "ADD", two + `,"type":5`, 6, `"type"`},
		{"a key twice, when deleting", "DEL", two + `,"x":1,"x":2`, 0, ""},
		{"no list of what is valid", "GC", two, 7, ""},
		{"an attachment without a name in the list", "GC", two + `,"cni.dev/valid-attachments":[{"containerID":"c1"}]`, 7, "lacks containerID or ifname"},
		// A server may pass on a command that it has not checked.
		{"another case", "add", two, 4, ""},
		{"VERSION", "VERSION", two, 4, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			nodetest.Fails(t, n.do(small(), delegate.Command(tt.command), tt.keys), tt.code, tt.words)
			n.WantTrace()
		})
	}
}

func TestStateDirIsThePluginsOwn(t *testing.T) {
	t.Parallel()
	for dir, want := range map[string]string{
		"/x/../y/": "/y", "/var/lib/cni/mine": "/var/lib/cni/mine", "": "", "x": "", "/var/lib/cni/": "", "/var/lib//cni/results": "",
	} {
		got, err := plugin.CheckStateDir(dir)
		nodetest.Equal(t, dir, got, want)
		nodetest.Equal(t, dir+" is refused", err != nil, want == "")
	}
	for conf, want := range map[string]string{
		`{"name":"n"}`:                                   "/var/lib/cni/small",
		`{"name":"n","stateDir":"/a/../b"}`:              "/b",
		`{"name":"n","STATEDIR":"/a","stateDir":"/b"}`:   "/b",
		`{"name":"n","stateDir":"b"}`:                    "",
		`{"name":"n","stateDir":5}`:                      "",
		`{"name":"n","stateDir":"/var/lib/cni/results"}`: "",
	} {
		c, err := small().Call(plugin.System{}, delegate.CommandDel, skel.CmdArgs{StdinData: []byte(conf)})
		if err == nil {
			nodetest.Equal(t, conf, c.Manager.Dir, want)
		} else if want != "" || !errors.Is(err, netconf.ErrInvalid) && !errors.Is(err, netconf.ErrDecode) {
			t.Errorf("%s: %v", conf, err)
		}
	}
}

// A command fails if the plugin has no function for it and nothing to derive the
// standard command from.
func TestCommandWithoutFunctionOrRecordsIsRefused(t *testing.T) {
	t.Parallel()
	for _, p := range []plugin.Plugin{{}, {StateDir: "/x", StateKey: "stateDir"}} {
		nodetest.Fails(t, newNode(t).do(p, "ADD", ""), types.ErrInvalidEnvironmentVariables, "the plugin has no ADD")
	}
}

func TestHostNetworkIsRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		netns, override string
		code            uint
	}{
		{"/proc/self/ns/net", "", types.ErrInvalidNetNS},
		{"/proc/self/ns/../ns/net", "0", types.ErrInvalidNetNS},
		{"/proc/self/ns/net", "True", 0},
		{newNode(t).Write("netns", ""), "", 0},
		{"/absent", "", 0},
		{"", "", 0},
	} {
		run := false
		p := plugin.Plugin{Add: func(context.Context, *plugin.Call) error { run = true; return nil }}
		err := p.Do(t.Context(), plugin.System{}, delegate.CommandAdd, skel.CmdArgs{IfName: "eth0", Netns: tt.netns, NetnsOverride: tt.override})
		nodetest.Code(t, err, tt.code)
		nodetest.Equal(t, tt.netns+" is run", run, tt.code == 0)
	}
}

// Plugins refuse arguments that they do not know, such as those of Kubernetes,
// unless IgnoreUnknown is set.
func TestIgnoreUnknownIsAddedForPods(t *testing.T) {
	t.Parallel()
	const pod = "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p;K8S_POD_UID=4f8c"
	for _, tt := range []struct{ args, want string }{
		{"", ""},
		{pod, "IgnoreUnknown=1;" + pod},
		{"IP=10.0.0.5;K8S_POD_NAME=p", "IgnoreUnknown=1;IP=10.0.0.5;K8S_POD_NAME=p"},
		{pod + ";IgnoreUnknown=true", pod + ";IgnoreUnknown=true"},
		{"IgnoreUnknown=0;" + pod, "IgnoreUnknown=0;" + pod},
		{"ignoreunknown=1;K8S_POD_NAME=p", "IgnoreUnknown=1;ignoreunknown=1;K8S_POD_NAME=p"}, // plugins do not take it for it
		{"K8S_POD_NAME=IgnoreUnknown", "IgnoreUnknown=1;K8S_POD_NAME=IgnoreUnknown"},
		{"IP=10.0.0.5;X=K8S_POD_NAME", "IP=10.0.0.5;X=K8S_POD_NAME"},
		{"K8S_;notapair", "K8S_;notapair"},
	} {
		for _, command := range []delegate.Command{"ADD", "DEL", "STATUS"} {
			c, err := plugin.Plugin{}.Call(plugin.System{}, command, skel.CmdArgs{Args: tt.args})
			nodetest.OK(t, err)
			nodetest.Equal(t, tt.args, c.Args, tt.want)
		}
	}
}

// The list of valid attachments is read from either key, and checked.
func TestValidAttachments(t *testing.T) {
	t.Parallel()
	c1 := []types.GCAttachment{{ContainerID: "c1", IfName: "eth0"}}
	for _, tt := range []struct {
		conf string
		want []types.GCAttachment
		code uint
	}{
		{`{}`, nil, 0},
		{`{"cni.dev/valid-attachments":null}`, nil, 0},
		{`{"cni.dev/valid-attachments":[],"x":1,"x":2}`, []types.GCAttachment{}, 0},
		{`{"cni.dev/attachments":[]}`, []types.GCAttachment{}, 0},
		{`{"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}],"cni.dev/attachments":[]}`, c1, 0},
		{`{"cni.dev/valid-attachments":null,"cni.dev/attachments":[{"containerID":"c1","ifname":"eth0"}]}`, c1, 0},
		{`{"cni.dev/valid-attachments":[{"containerID":"c1"}]}`, nil, 7},
		{`{"cni.dev/attachments":[null]}`, nil, 7},
		{`{"cni.dev/valid-attachments":{}}`, nil, 6},
		{`{`, nil, 6},
	} {
		c := &plugin.Call{Config: []byte(tt.conf)}
		got, err := c.Valid()
		nodetest.Code(t, err, tt.code)
		nodetest.Equal(t, tt.conf, got, tt.want)
		nodetest.Equal(t, tt.conf+" is no list", got == nil, tt.want == nil)
	}
}

// The annotations that are asked for must be strings, the others may be anything. Nil tells
// a runtime that passes none from a pod that has none.
func TestPodAnnotations(t *testing.T) {
	t.Parallel()
	annotated := func(annotations string) string {
		return `{"runtimeConfig":{"io.kubernetes.cri.pod-annotations":` + annotations + `}}`
	}
	for _, tt := range []struct {
		conf string
		want map[string]string
		says string // in an error
	}{
		{`{}`, nil, ""},
		{`{"runtimeConfig":null}`, nil, ""},
		{`{"runtimeConfig":{"mac":"x"}}`, nil, ""},
		{annotated(`null`), map[string]string{}, ""},
		{annotated(`{"other":"x"}`), map[string]string{}, ""},
		{annotated(`{"a":"1","b":"","other":1e999}`), map[string]string{"a": "1", "b": ""}, ""},
		{annotated(`{"a":{}}`), nil, "io.kubernetes.cri.pod-annotations.a"},
		{annotated(`["a"]`), nil, "not an object"},
		{`{"runtimeConfig":5}`, nil, "runtimeConfig"},
	} {
		c := &plugin.Call{Name: "net", Config: []byte(tt.conf)}
		got, err := c.PodAnnotations("a", "b")
		if tt.says != "" {
			nodetest.Fails(t, err, 6, tt.says)
			nodetest.Is(t, err, netconf.ErrDecode)
		} else {
			nodetest.OK(t, err)
		}
		nodetest.Equal(t, tt.conf, got, tt.want)
		nodetest.Equal(t, tt.conf+" has none", got == nil, tt.want == nil)
	}
}

// DEL, CHECK and GC leave out keys that do not fit, and go on without them.
func TestLenientConfig(t *testing.T) {
	t.Parallel()
	type conf struct {
		Name string         `json:"name"`
		Size map[string]int `json:"size"`
		Next netconf.Plugin `json:"next"`
	}
	next, err := netconf.ParsePlugin([]byte(`{"type":"a"}`))
	nodetest.OK(t, err)
	for _, command := range []delegate.Command{"DEL", "CHECK", "GC"} {
		for text, want := range map[string]conf{
			`{}`: {},
			` {"name":"a","size":{"b":1},"next":{"type":"a"},"x":1e400} `:                    {"a", map[string]int{"b": 1}, next},
			`{"size":{"b":1,"c":"x"},"next":{"type":"a"},"NAME":"a"}`:                        {"a", nil, next},
			`{"name":7,"size":[],"next":{"type":7}}`:                                         {},
			`{"name":"a","size":1e99}`:                                                       {Name: "a"},
			`{"name":"a","name":"b","size":7}`:                                               {Name: "b"},
			`{"name":"a","name":7}`:                                                          {Name: "a"},
			`{"name":"a","next":{"type":"a","type":"b"}}`:                                    {Name: "a"},
			`{"name":"a","x":{"y":1,"y":2}}`:                                                 {Name: "a"},
			"{\"name\":\"<a>\",\"x\":\"\xff\",\"size\":7}":                                   {Name: "<a>"},
			`{"name":"a","x":` + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + `}`: {Name: "a"},
		} {
			got, err := plugin.Config[conf](&plugin.Call{Command: command, Config: []byte(text)})
			nodetest.OK(t, err)
			nodetest.Equal(t, text, got, want)
		}
		keys, err := plugin.Config[map[string]json.RawMessage](&plugin.Call{Command: command, Config: []byte(`{"a":"<","a":1,"b":[]}`)})
		nodetest.OK(t, err)
		nodetest.Equal(t, "keys", keys, map[string]json.RawMessage{"a": json.RawMessage("1"), "b": json.RawMessage("[]")})
		for _, text := range []string{"", " ", "null", `[{"name":"a"}]`, `"a"`, "7", `{"name":"a"`, `{"name":"a"}}`, `{"name":"a"} {}`, "{\"\xff\"", "\xff"} {
			got, err := plugin.Config[conf](&plugin.Call{Command: command, Config: []byte(text)})
			nodetest.Code(t, err, 6)
			nodetest.Is(t, err, netconf.ErrDecode)
			nodetest.Equal(t, text, got, conf{})
		}
	}
}

// The error about a record that is damaged, or may never be removed, says what an operator can do.
func TestRecordThatStaysSaysWhatToDo(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{scratch.ErrCorrupt, lifecycle.ErrAbsent} {
		p := small()
		p.Forget = "small forget"
		p.Del = func(context.Context, *plugin.Call) error { return fmt.Errorf("c1: %w", cause) }
		err := newNode(t).do(p, "DEL", "")
		nodetest.Is(t, err, cause)
		nodetest.Says(t, err, `let "small forget" remove `)
	}
}

// A plugin that keeps no records can be asked for its status, and does not panic
// when it attaches something.
func TestWithoutRecords(t *testing.T) {
	t.Parallel()
	p := plugin.Plugin{
		Add: func(ctx context.Context, c *plugin.Call) error {
			return c.Add(ctx, lifecycle.Transaction{Plan: lifecycle.Plan(c.Attachment(nodetest.Network("m", "macvlan")))})
		},
		Status: func(ctx context.Context, c *plugin.Call) error { return c.Status(ctx) },
	}
	n := newNode(t)
	nodetest.OK(t, n.do(p, "STATUS", ""))
	if n.do(p, "ADD", "") == nil {
		t.Error("success")
	}
	n.WantTrace()
}

// What a plugin does with the environment of one Call is not in another, even if
// the slice that they come from has room for more.
func TestCallsHaveTheirOwnEnvironment(t *testing.T) {
	t.Parallel()
	p := small()
	p.Prepare = func(c *plugin.Call) error {
		c.System.Env[0] = "A=" + c.ContainerID
		c.System.Env = append(c.System.Env, "B="+c.ContainerID)
		c.Manager.Invoker.Env = append(c.Manager.Invoker.Env, "C="+c.ContainerID)
		return nil
	}
	env := append(make([]string, 0, 9), "A=given", "PATH=/x")
	calls := make([]*plugin.Call, 2)
	for i := range calls {
		var err error
		calls[i], err = p.Call(plugin.System{Env: env}, "DEL", skel.CmdArgs{ContainerID: fmt.Sprint(i), StdinData: []byte("{}")})
		nodetest.OK(t, err)
	}
	for i, c := range calls {
		got := fmt.Sprint(c.System.Env, c.Manager.Invoker.Env[2:])
		nodetest.Equal(t, "environment", got, fmt.Sprintf("[A=%[1]d PATH=/x B=%[1]d] [C=%[1]d]", i))
	}
	nodetest.Equal(t, "the process's", env[0], "A=given")
}

// An error about an interface name says which networks ask for it.
func TestPlanThatFailsNamesTheNetworks(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		asked []string // by the networks a, b and c
		taken []string
		want  string
	}{
		"asked for twice":            {[]string{"", "net5", "net5"}, nil, `network "b" and "c": `},
		"that of the runtime":        {[]string{"", "eth0", ""}, nil, `network "a" and "b": `},
		"that of the runtime, taken": {[]string{"", "", ""}, []string{"eth0"}, `network "a": `},
		"taken":                      {[]string{"", "", "net5"}, []string{"net5"}, `network "c": `},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := &plugin.Call{IfName: "eth0"}
			var as []delegate.Attachment
			for i, asked := range tt.asked {
				as = append(as, delegate.Attachment{Network: nodetest.Network(string(rune('a'+i)), "bridge"), IfName: asked})
			}
			plan, err := c.Plan(as...)(t.Context(), tt.taken)
			nodetest.Is(t, err, ifname.ErrTaken)
			if plan != nil || !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("%v, %v; want %s...", plan, err, tt.want)
			}
		})
	}
}

// call is one of eth0 of c1, with more keys in its configuration.
func (n *node) call(keys string) skel.CmdArgs {
	dir := n.Path("state")
	if n.root {
		dir = "/state"
	}
	return skel.CmdArgs{
		ContainerID: "c1", IfName: "eth0", Netns: "/absent", Args: n.args, Path: "/opt/cni/bin",
		StdinData: fmt.Appendf(nil, `{"cniVersion":%q,"name":%q,"type":"small","stateDir":%q%s}`, n.version, n.network, dir, keys),
	}
}

// says wants the last command to have printed these words.
func (n *node) says(words string) {
	n.Helper()
	nodetest.Contains(n, "printed", n.out.String(), words)
}

// run runs a command of p in the network of a name, with more keys in its configuration, on a node
// with the root directory n.Dir.
func (n *node) run(p plugin.Plugin, command delegate.Command, name, keys, args string) error {
	n.root, n.network, n.args = true, name, args
	return n.do(p, command, `,"delegates":[{"type":"bridge"}]`+keys)
}

// A DEL takes the record of another network for its own only if the runtime certainly has that
// network no more. Otherwise it removes nothing, and says success only if the network is there.
func TestRenamedNetworkIsKnownByTheRuntimesDirectory(t *testing.T) {
	t.Parallel()
	const (
		usual, k3s = "etc/cni/net.d/", "var/lib/rancher/k3s/agent/etc/cni/net.d/"
		ours       = `{"cniVersion":"1.0.0","name":"new","plugins":[{"type":"small"}]}`
		other      = `{"cniVersion":"1.0.0","name":"old","plugins":[{"type":"bridge"},{"type":"small"}]}`
		third      = `{"cniVersion":"1.0.0","name":"x","type":"small"}`
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
		"the other has the type of our shim":    {files: map[string]string{usual + "1.conflist": ours, usual + "2.conf": `{"cniVersion":"1.0.0","name":"old","type":"small-shim"}`}},
		"the other is in another of its places": {files: map[string]string{usual + "2.conflist": other, k3s + "1.conflist": ours}},
		"another file cannot be read":           {files: map[string]string{usual + "1.conflist": ours, usual + "2.conflist": "{"}, code: 11},
		"a directory without ours":              {files: map[string]string{usual + "2.conflist": third}, code: 11},
		"a directory of the key without ours":   {files: map[string]string{"nets/2.conflist": third, usual + "1.conflist": ours}, keys: `,"runtimeConfDir":"/nets"`, code: 11},
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
				n.Write(file, text)
			}
			nodetest.OK(t, n.run(p, "ADD", "old", "", ""))
			nodetest.Code(t, n.run(p, "DEL", "new", tt.keys, ""), tt.code)
			nodetest.Equal(t, "removed", slices.Contains(n.Trace(), "DEL bridge eth0"), tt.removed)
			nodetest.OK(t, n.run(p, "DEL", "old", "", ""))
			nodetest.Equal(t, "left", n.Exec.Live(), nil)
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
		removed    []string
	}{
		"it is attached already":        {code: 7, removed: []string{"DEL bridge eth0"}},
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
			n.Write("etc/cni/net.d/1.conf", `{"cniVersion":"1.0.0","name":"new","type":"small"}`)
			nodetest.OK(t, n.run(p, "ADD", "old", "", ""))
			n.Trace()
			nodetest.Code(t, n.run(p, "ADD", "new", tt.keys, tt.args), tt.code)
			nodetest.OK(t, n.run(p, "DEL", "new", tt.keys, tt.args))
			n.WantTrace(tt.removed...)
			nodetest.OK(t, n.run(p, "DEL", "old", "", ""))
			nodetest.Equal(t, "left", n.Exec.Live(), nil)
		})
	}
}

// Arguments that are no pairs are refused before anything runs, and named. Commands that come
// after an ADD accept them.
func TestArgumentsThatAreNoPairs(t *testing.T) {
	t.Parallel()
	for args, bad := range map[string]string{
		"": "", "a=1;": "", "a=": "", "a=b=c": "", "a": `"a"`, "a=1;b": `"b"`, "=1": `"=1"`, ";": `""`, "a=1;;b=2": `""`,
	} {
		n := newNode(t)
		err := n.run(small(), "ADD", "n", "", args)
		if bad == "" {
			nodetest.OK(t, err)
		} else {
			nodetest.Fails(t, err, 4, bad+" is not KEY=VALUE")
			n.WantTrace()
		}
		nodetest.OK(t, n.run(small(), "GC", "n", `,"cni.dev/valid-attachments":[]`, args))
		nodetest.OK(t, n.run(small(), "DEL", "n", "", args))
		nodetest.Fails(t, n.run(small(), "CHECK", "n", "", args), 7, "not added")
	}
}

// own is the result of the delegate bridge.
func own() *types100.Result {
	return &types100.Result{
		Interfaces: []*types100.Interface{{Name: "br0"}, {Name: "eth0", Sandbox: "/absent"}},
		IPs:        []*types100.IPConfig{{Interface: types100.Int(1), Address: net.IPNet{IP: net.IPv4(10, 1, 0, 2).To4(), Mask: net.CIDRMask(24, 32)}}},
		Routes:     []*types.Route{{Dst: net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}}},
		DNS:        types.DNS{Nameservers: []string{"10.1.0.1"}, Domain: "own"},
	}
}

// What CNI 1.1 has added is lost for an older runtime. A line at level debug says so.
func TestKeysThatTheRuntimeDoesNotKnowAreLogged(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]int{"0.3.1": 1, "1.1.0": 0} {
		n := newNode(t)
		var log nodetest.Log
		n.version, n.log = version, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		n.Exec.Plugins["bridge"] = func(context.Context, delegatetest.Invocation) ([]byte, error) {
			return []byte(`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mtu":1400,"pciID":"0000:03:02.1","sandbox":"/absent"}],"routes":[{"dst":"0.0.0.0/0","priority":7}]}`), nil
		}
		nodetest.OK(t, n.do(small(), "ADD", `,"delegates":[{"type":"bridge"}]`))
		nodetest.Equal(t, version, log.Count(`keys="[mtu pciID]"`), want)
		nodetest.Equal(t, version, log.Count("keys="), want)
	}
}

// In a chain the result begins with prevResult: its interfaces, addresses, routes and
// DNS settings, and then ours, whose addresses are on the same interfaces as before. The
// record and Report have what the plugins returned.
func TestResultInAChainBeginsWithPrevResult(t *testing.T) {
	t.Parallel()
	const prev = `"interfaces":[{"name":"up0","mac":"02:00:00:00:00:01","x.example/of":"up"}],
		"ips":[{"version":"4","address":"10.0.0.2/24","gateway":"10.0.0.1","interface":0}],
		"routes":[{"dst":"10.8.0.0/16"}],"dns":{"nameservers":["10.0.0.1"],"search":["up"]},"x.example/key":1234567890123456789`
	ownIP := func(version, index string) string {
		if version < "1.0.0" {
			return `{"address":"10.1.0.2/24",` + index + `"version":"4"}`
		}
		return `{"address":"10.1.0.2/24"` + strings.TrimSuffix(","+index, ",") + `}`
	}
	merged := func(version string) string {
		return fmt.Sprintf(`{"cniVersion":%q,
			"interfaces":[{"name":"up0","mac":"02:00:00:00:00:01","x.example/of":"up"},{"name":"br0"},{"name":"eth0","sandbox":"/absent"}],
			"ips":[{"version":"4","address":"10.0.0.2/24","gateway":"10.0.0.1","interface":0},%s],
			"routes":[{"dst":"10.8.0.0/16"},{"dst":"0.0.0.0/0"}],
			"dns":{"nameservers":["10.0.0.1","10.1.0.1"],"domain":"own","search":["up"]},"x.example/key":1234567890123456789}`, version, ownIP(version, `"interface":2,`))
	}
	alone := func(version string) string {
		return fmt.Sprintf(`{"cniVersion":%q,"interfaces":[{"name":"br0"},{"name":"eth0","sandbox":"/absent"}],"ips":[%s],"routes":[{"dst":"0.0.0.0/0"}],
			"dns":{"nameservers":["10.1.0.1"],"domain":"own"}}`, version, ownIP(version, `"interface":1,`))
	}
	for name, tt := range map[string]struct{ version, prev, want string }{
		"1.1.0":               {"1.1.0", `{"cniVersion":"1.1.0",` + prev + `}`, merged("1.1.0")},
		"0.3.1":               {"0.3.1", `{"cniVersion":"0.3.1",` + prev + `}`, merged("0.3.1")},
		"without its version": {"0.4.0", `{` + prev + `}`, merged("0.4.0")},
		"of another version":  {"1.0.0", `{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.2/24"}}`, strings.Replace(alone("1.0.0"), `"ips":[`, `"ips":[{"address":"10.0.0.2/24"},`, 1)},
		"empty":               {"1.0.0", `{"cniVersion":"1.0.0"}`, alone("1.0.0")},
		"null":                {"1.0.0", `null`, alone("1.0.0")},
		"of a version without chains": {
			"0.2.0", `{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.2/24"}}`,
			`{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.2/24","routes":[{"dst":"0.0.0.0/0"}]},"dns":{"nameservers":["10.1.0.1"],"domain":"own"}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.Exec.Plugins["bridge"] = delegatetest.Result(own())
			p := small()
			var reported string
			p.Add = func(ctx context.Context, c *plugin.Call) error {
				nets, err := p.Networks(ctx, c)
				if err != nil {
					return err
				}
				return c.Add(ctx, lifecycle.Transaction{
					Plan: lifecycle.Plan(c.Attachment(nets[0])),
					Report: func(_ context.Context, added []delegate.Attached) error {
						reported = string(added[0].Result)
						return nil
					},
				})
			}
			n.version = tt.version
			keys := `,"delegates":[{"type":"bridge"}],"prevResult":` + tt.prev
			nodetest.OK(t, n.do(p, "ADD", keys))
			nodetest.Equal(t, "printed", decoded(t, n.out.String()), decoded(t, tt.want))
			if strings.Contains(reported, "10.0.0.2") || !strings.Contains(reported, "10.1.0.2") {
				t.Errorf("reported %s", reported)
			}
			n.Trace()
			nodetest.OK(t, n.do(p, "CHECK", keys))
			for _, c := range n.Trace() {
				nodetest.Equal(t, "call", c, "CHECK bridge eth0")
				nodetest.Equal(t, "it has the interface of prevResult", strings.Contains(string(n.Last(c).Stdin), "up0"), false)
			}
			nodetest.OK(t, n.do(p, "DEL", keys))
		})
	}
}

// A plugin may print another result than that of its first network. If it cannot, the ADD is undone.
func TestResultMayBeOfAllNetworks(t *testing.T) {
	t.Parallel()
	merge := func(_ context.Context, c *plugin.Call, added []delegate.Attached) (json.RawMessage, error) {
		return c.Merge(added...)
	}
	const second = `"ips":[{"address":"10.2.0.2/24","interface":0}],"dns":{"domain":"other","options":["ndots:1"]},"x.example/key":1`
	for name, tt := range map[string]struct {
		version, keys string
		result        func(context.Context, *plugin.Call, []delegate.Attached) (json.RawMessage, error)
		want          string
		code          uint
	}{
		"of all": {"1.1.0", "", merge, `{"cniVersion":"1.1.0",
			"interfaces":[{"name":"br0"},{"name":"eth0","sandbox":"/absent"},{"name":"net1"}],
			"ips":[{"address":"10.1.0.2/24","interface":1},{"address":"10.2.0.2/24","interface":2}],"routes":[{"dst":"0.0.0.0/0"}],
			"dns":{"nameservers":["10.1.0.1"],"domain":"own","options":["ndots:1"]},"x.example/key":1}`, 0},
		"in a chain": {"1.0.0", `,"prevResult":{"cniVersion":"1.0.0","interfaces":[{"name":"up0"}]}`, merge, `{"cniVersion":"1.0.0",
			"interfaces":[{"name":"up0"},{"name":"br0"},{"name":"eth0","sandbox":"/absent"},{"name":"net1"}],
			"ips":[{"address":"10.1.0.2/24","interface":2},{"address":"10.2.0.2/24","interface":3}],"routes":[{"dst":"0.0.0.0/0"}],
			"dns":{"nameservers":["10.1.0.1"],"domain":"own","options":["ndots:1"]},"x.example/key":1}`, 0},
		"of a version that has no place for it": {"0.2.0", "", merge, "", 1},
		"no result":                             {"1.1.0", "", func(context.Context, *plugin.Call, []delegate.Attached) (json.RawMessage, error) { return nil, nil }, "", 6},
		"an error": {"1.1.0", "", func(context.Context, *plugin.Call, []delegate.Attached) (json.RawMessage, error) {
			return nil, types.NewError(11, "not now", "")
		}, "", 11},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.version = tt.version
			n.Exec.Plugins["bridge"] = delegatetest.Result(own())
			n.Exec.Plugins["macvlan"] = func(_ context.Context, c delegatetest.Invocation) ([]byte, error) {
				return fmt.Appendf(nil, `{"cniVersion":%q,"interfaces":[{"name":"net1"}],%s}`, max(tt.version, "0.4.0"), second), nil
			}
			p := small()
			p.Result = tt.result
			err := n.do(p, "ADD", `,"delegates":[{"type":"bridge"},{"type":"macvlan","name":"m"}]`+tt.keys)
			if tt.code != 0 {
				nodetest.Code(t, err, tt.code)
				nodetest.Equal(t, "left", n.Exec.Live(), nil)
				return
			}
			nodetest.OK(t, err)
			nodetest.Equal(t, "printed", decoded(t, n.out.String()), decoded(t, tt.want))
		})
	}
	c := &plugin.Call{CNIVersion: "1.0.0"}
	if text, err := c.Merge(); err != nil || string(text) != `{"cniVersion":"1.0.0"}` {
		t.Errorf("of nothing: %s, %v", text, err)
	}
	if _, err := c.Merge(delegate.Attached{Result: []byte(`{`)}); err == nil {
		t.Error("what is no result is merged")
	}
}

func decoded(t *testing.T, text string) (object map[string]any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	nodetest.OK(t, d.Decode(&object))
	return object
}

// A prevResult that cannot be passed on is found before anything runs.
func TestBadPrevResultRunsNothing(t *testing.T) {
	t.Parallel()
	for _, prev := range []string{`5`, `{"cniVersion":"9.9.9"}`, `{"cniVersion":"1.1.0","ips":[{"address":5}]}`, `{"cniVersion":"1.1.0","interfaces":[null]}`} {
		n := newNode(t)
		nodetest.Fails(t, n.do(small(), "ADD", two+`,"prevResult":`+prev), types.ErrDecodingFailure, `"prevResult"`)
		n.WantTrace()
		nodetest.Equal(t, "printed", n.out.String(), "")
		nodetest.OK(t, n.do(small(), "DEL", two+`,"prevResult":`+prev))
	}
}

// Every method of a Call gives the networks that it is given a name and a version.
func TestCallCompletesNetworks(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	bare := func(c *plugin.Call) netconf.Network {
		conf, err := plugin.Config[struct{ Delegates []netconf.Network }](c)
		nodetest.OK(t, err)
		return conf.Delegates[0]
	}
	p := plugin.Plugin{
		StateDir: n.Path("state"),
		Add: func(ctx context.Context, c *plugin.Call) error {
			return c.Add(ctx, lifecycle.Transaction{Plan: lifecycle.Plan(c.Attachment(bare(c)))})
		},
		GC:     func(ctx context.Context, c *plugin.Call) error { return c.GC(ctx, bare(c)) },
		Status: func(ctx context.Context, c *plugin.Call) error { return c.Status(ctx, bare(c)) },
	}
	const valid = `,"cni.dev/valid-attachments":[]`
	for _, command := range []delegate.Command{"ADD", "CHECK", "STATUS", "DEL", "GC"} {
		nodetest.OK(t, n.do(p, command, `,"delegates":[{"type":"bridge"}]`+valid))
		nodetest.Equal(t, "calls", len(n.Trace()), 1)
		got := nodetest.Stdin(t, n.Last(string(command)))
		nodetest.Equal(t, string(command), []any{got["name"], got["cniVersion"]}, []any{"n", "1.1.0"})
	}
	c, err := p.Call(n.process(), "ADD", n.call(valid))
	nodetest.OK(t, err)
	var null netconf.Network
	for _, err := range []error{
		c.Add(t.Context(), lifecycle.Transaction{Plan: lifecycle.Plan(c.Attachment(null))}), c.GC(t.Context(), null), c.Status(t.Context(), null),
	} {
		nodetest.Code(t, err, types.ErrInvalidNetworkConfig)
	}
}

// In a GC a network that is null is an error, and keeps its place: the network after it is
// not the one of the interface that the runtime asks for, and must not remove its
// attachments of containers without a record.
func TestGCDoesNotTakeTheSecondNetworkForTheFirst(t *testing.T) {
	t.Parallel()
	for valid, calls := range map[string][]string{`{"containerID":"old","ifname":"eth0"}`: nil, "": {"GC bridge"}} {
		n := newNode(t)
		err := n.do(small(), "GC", `,"delegates":[null,{"type":"bridge"}],"cni.dev/valid-attachments":[`+valid+`]`)
		nodetest.Says(t, err, "a network is missing or null")
		n.WantTrace(calls...)
	}
}
