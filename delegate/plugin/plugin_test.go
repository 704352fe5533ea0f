package plugin_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/ifname"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
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
	delegatetest.Conform(t, delegatetest.Program(small().Execute), delegatetest.Config{
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
	dir     string
	version string // of the configuration
	exec    *delegatetest.Exec
	out     bytes.Buffer
	taken   []string
}

func newNode(t *testing.T) *node {
	t.Helper()
	ok := delegatetest.Result(nil)
	return &node{dir: t.TempDir(), version: "1.1.0", exec: &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{"bridge": ok, "macvlan": ok}}}
}

func (n *node) process() plugin.Process {
	return plugin.Process{Exec: n.exec, Stdout: &n.out, InterfaceNames: func(string) ([]string, error) { return n.taken, nil }}
}

// do runs a command of p for eth0 of c1, with more keys in its configuration.
func (n *node) do(t *testing.T, p plugin.Plugin, command delegate.Command, keys string) error {
	t.Helper()
	n.out.Reset()
	return p.Do(t.Context(), n.process(), command, skel.CmdArgs{
		ContainerID: "c1", IfName: "eth0", Netns: "/absent", Args: "IP=10.0.0.9;K8S_POD_NAME=p;MAC=02:00:00:00:00:09;GATEWAY=10.0.0.1", Path: "/opt/cni/bin",
		StdinData: fmt.Appendf(nil, `{"cniVersion":%q,"name":"n","type":"small","stateDir":%q%s}`, n.version, filepath.Join(n.dir, "state"), keys),
	})
}

const two = `,"delegates":[{"type":"bridge","capabilities":{"ips":true,"dns":true}},{"type":"macvlan","name":"m","capabilities":{"ips":true,"dns":true}}]`

func TestNetworksAreNamedAndCompleted(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.taken = []string{"net1"}
	if err := n.do(t, small(), "ADD", two+`,"runtimeConfig":{"ips":["10.0.0.9/24"],"dns":{"servers":["10.0.0.1"]}}`); err != nil {
		t.Fatal(err)
	}
	if got := n.out.String(); !strings.Contains(got, `"cniVersion":"1.1.0"`) {
		t.Errorf("printed %s", got)
	}
	var got []string
	for _, c := range n.exec.Calls() {
		got = append(got, c.IfName+" "+c.Args+" "+string(c.Stdin))
	}
	want := []string{
		`eth0 IgnoreUnknown=1;IP=10.0.0.9;K8S_POD_NAME=p;MAC=02:00:00:00:00:09;GATEWAY=10.0.0.1 {"capabilities":{"ips":true,"dns":true},"cniVersion":"1.1.0","name":"n","runtimeConfig":{"dns":{"servers":["10.0.0.1"]},"ips":["10.0.0.9/24"]},"type":"bridge"}`,
		`net2 IgnoreUnknown=1;K8S_POD_NAME=p {"capabilities":{"ips":true,"dns":true},"cniVersion":"1.1.0","name":"m","runtimeConfig":{"dns":{"servers":["10.0.0.1"]}},"type":"macvlan"}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func TestSharedArgsLeaveOutAddressesAlone(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"IgnoreUnknown=1;K8S_POD_NAME=web;IP=10.0.0.5;MAC=02:00:00:00:00:01;GATEWAY=10.0.0.1": "IgnoreUnknown=1;K8S_POD_NAME=web",
		"IP=10.0.0.5": "", "": "", "IPX=1;XIP=2;ip=3": "IPX=1;XIP=2;ip=3", "a=1;;IP": "a=1;", "a=1;;b": "a=1;;b",
	} {
		if got := plugin.SharedArgs(args); got != want {
			t.Errorf("%q: %q, want %q", args, got, want)
		}
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
		{"a key twice, when attaching", "ADD", two + `,"x":1,"x":2`, 6, `"x"`},
		{"a key twice, when asked for the status", "STATUS", two + `,"x":1,"x":2`, 6, `"x"`},
		{"a key twice, when deleting", "DEL", two + `,"x":1,"x":2`, 0, ""},
		{"a key twice, when checking", "CHECK", two + `,"x":1,"x":2`, 7, "not added"},
		{"networks of the wrong type, when deleting", "DEL", `,"delegates":5`, 0, ""},
		{"networks of the wrong type, when asked for the status", "STATUS", `,"delegates":5`, 6, `"delegates"`},
		{"capability arguments of the wrong type", "ADD", two + `,"runtimeConfig":5`, 6, `"runtimeConfig"`},
		{"networks of the wrong type, when collecting", "GC", `,"delegates":5,"cni.dev/valid-attachments":[]`, 0, ""},
		{"a type of the wrong type, when deleting", "DEL", `,"type":5`, 0, ""},
		{"a type of the wrong type, when attaching", "ADD", two + `,"type":5`, 6, `"type"`},
		{"no list of what is valid", "GC", two, 7, ""},
		{"an attachment without a name in the list", "GC", two + `,"cni.dev/valid-attachments":[{"containerID":"c1"}]`, 7, "lacks containerID or ifname"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := newNode(t).do(t, small(), delegate.Command(tt.command), tt.keys)
			if status.Code(err) != tt.code || err != nil && !strings.Contains(err.Error(), tt.words) {
				t.Errorf("code %d, want %d: %v, want %q", status.Code(err), tt.code, err, tt.words)
			}
		})
	}
}

func TestStateDirIsThePluginsOwn(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ dir, want string }{
		{"/x/../y/", "/y"},
		{"/var/lib/cni/mine", "/var/lib/cni/mine"},
		{"", ""},
		{"x", ""},
		{"/var/lib/cni/", ""},
		{"/var/lib//cni/results", ""},
	} {
		if got, err := plugin.CheckStateDir(tt.dir); got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%q: %q, %v", tt.dir, got, err)
		}
	}
	for conf, want := range map[string]string{
		`{"name":"n"}`:                                   "/var/lib/cni/small",
		`{"name":"n","stateDir":""}`:                     "/var/lib/cni/small",
		`{"name":"n","stateDir":"/a/../b"}`:              "/b",
		`{"name":"n","STATEDIR":"/b"}`:                   "/b",
		`{"name":"n","STATEDIR":"/a","stateDir":"/b"}`:   "/b",
		`{"name":"n","stateDir":"b"}`:                    "",
		`{"name":"n","stateDir":5}`:                      "",
		`{"name":"n","stateDir":"/var/lib/cni/results"}`: "",
	} {
		c, err := small().Call(plugin.Process{}, delegate.CommandDel, skel.CmdArgs{StdinData: []byte(conf)})
		got := ""
		if err == nil {
			got = c.Manager.Dir
		} else if !errors.Is(err, netconf.ErrInvalid) && !errors.Is(err, netconf.ErrDecode) {
			t.Errorf("%s: %v", conf, err)
		}
		if got != want {
			t.Errorf("%s: %q, want %q", conf, got, want)
		}
	}
}

// A command fails if the plugin has no function for it and nothing to derive the
// standard command from.
func TestCommandWithoutFunctionOrRecordsIsRefused(t *testing.T) {
	t.Parallel()
	for _, p := range []plugin.Plugin{{}, {StateDir: "/x", StateKey: "stateDir"}} {
		err := newNode(t).do(t, p, "ADD", "")
		if status.Code(err) != types.ErrInvalidEnvironmentVariables || !strings.Contains(err.Error(), "the plugin has no ADD") {
			t.Errorf("%v", err)
		}
	}
}

func TestHostNetworkIsRefused(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "netns")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		netns, override string
		refused         bool
	}{
		{"/proc/self/ns/net", "", true},
		{"/proc/self/ns/../ns/net", "0", true},
		{"/proc/self/ns/net", "1", false},
		{"/proc/self/ns/net", "True", false},
		{file, "", false},
		{"/absent", "", false},
		{"", "", false},
	} {
		run := false
		p := plugin.Plugin{Add: func(context.Context, *plugin.Call) error { run = true; return nil }}
		err := p.Do(t.Context(), plugin.Process{}, delegate.CommandAdd, skel.CmdArgs{IfName: "eth0", Netns: tt.netns, NetnsOverride: tt.override})
		if (status.Code(err) == types.ErrInvalidNetNS) != tt.refused || run == tt.refused {
			t.Errorf("%+v: run is %t: %v", tt, run, err)
		}
	}
}

// Plugins refuse arguments that they do not know, such as those of Kubernetes,
// unless IgnoreUnknown is set.
func TestIgnoreUnknownIsAddedForPods(t *testing.T) {
	t.Parallel()
	const pod = "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p;K8S_POD_UID=4f8c"
	for _, tt := range []struct{ name, args, want string }{
		{"none", "", ""},
		{"a pod", pod, "IgnoreUnknown=1;" + pod},
		{"beside others", "IP=10.0.0.5;K8S_POD_NAME=p", "IgnoreUnknown=1;IP=10.0.0.5;K8S_POD_NAME=p"},
		{"as runtimes have it", "IgnoreUnknown=1;" + pod, "IgnoreUnknown=1;" + pod},
		{"at the end", pod + ";IgnoreUnknown=true", pod + ";IgnoreUnknown=true"},
		{"not wanted", "IgnoreUnknown=0;" + pod, "IgnoreUnknown=0;" + pod},
		{"a key that plugins do not take for it", "ignoreunknown=1;K8S_POD_NAME=p", "IgnoreUnknown=1;ignoreunknown=1;K8S_POD_NAME=p"},
		{"a value that looks like it", "K8S_POD_NAME=IgnoreUnknown", "IgnoreUnknown=1;K8S_POD_NAME=IgnoreUnknown"},
		{"others alone", "IP=10.0.0.5;X=K8S_POD_NAME", "IP=10.0.0.5;X=K8S_POD_NAME"},
		{"no pairs", "K8S_;notapair", "K8S_;notapair"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for _, command := range []delegate.Command{"ADD", "CHECK", "DEL", "GC", "STATUS"} {
				c, err := plugin.Plugin{}.Call(plugin.Process{}, command, skel.CmdArgs{Args: tt.args})
				if err != nil || c.Args != tt.want {
					t.Errorf("%s: %q, %v; want %q", command, c.Args, err, tt.want)
				}
			}
		})
	}
}

// The list of valid attachments is read from either key, and checked.
func TestValidAttachments(t *testing.T) {
	t.Parallel()
	c1 := types.GCAttachment{ContainerID: "c1", IfName: "eth0"}
	for _, tt := range []struct {
		conf string
		want []types.GCAttachment
		code uint
	}{
		{`{}`, nil, 0},
		{`{"cni.dev/valid-attachments":null}`, nil, 0},
		{`{"cni.dev/valid-attachments":[]}`, []types.GCAttachment{}, 0},
		{`{"cni.dev/attachments":[]}`, []types.GCAttachment{}, 0},
		{`{"cni.dev/valid-attachments":[],"x":1,"x":2}`, []types.GCAttachment{}, 0},
		{`{"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}],"cni.dev/attachments":[]}`, []types.GCAttachment{c1}, 0},
		{`{"cni.dev/valid-attachments":null,"cni.dev/attachments":[{"containerID":"c1","ifname":"eth0"}]}`, []types.GCAttachment{c1}, 0},
		{`{"cni.dev/valid-attachments":[{"containerID":"c1"}]}`, nil, 7},
		{`{"cni.dev/attachments":[null]}`, nil, 7},
		{`{"cni.dev/valid-attachments":{}}`, nil, 6},
		{`{"cni.dev/valid-attachments":[5]}`, nil, 6},
		{`{`, nil, 6},
	} {
		c := &plugin.Call{CmdArgs: skel.CmdArgs{StdinData: []byte(tt.conf)}}
		got, err := c.Valid()
		if status.Code(err) != tt.code {
			t.Errorf("%s: code %d, want %d: %v", tt.conf, status.Code(err), tt.code, err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.conf, diff)
		}
	}
}

// The annotations that are asked for must be strings, the others may be anything. Nil tells
// a runtime that passes none from a pod that has none.
func TestPodAnnotations(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		conf string
		want map[string]string
		code uint
		says string
	}{
		{`{}`, nil, 0, ""},
		{`{"runtimeConfig":null}`, nil, 0, ""},
		{`{"runtimeConfig":{"mac":"x"}}`, nil, 0, ""},
		{annotated(`null`), map[string]string{}, 0, ""},
		{annotated(`{}`), map[string]string{}, 0, ""},
		{annotated(`{"other":"x"}`), map[string]string{}, 0, ""},
		{annotated(`{"a":"1","b":"","other":1e999}`), map[string]string{"a": "1", "b": ""}, 0, ""},
		{annotated(`{"a":{}}`), nil, 6, "io.kubernetes.cri.pod-annotations.a"},
		{annotated(`["a"]`), nil, 6, "not an object"},
		{`{"runtimeConfig":5}`, nil, 6, "runtimeConfig"},
	} {
		c := &plugin.Call{Name: "net", CmdArgs: skel.CmdArgs{StdinData: []byte(tt.conf)}}
		got, err := c.PodAnnotations("a", "b")
		if status.Code(err) != tt.code || err != nil && (!errors.Is(err, netconf.ErrDecode) || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%s: code %d, want %d: %v", tt.conf, status.Code(err), tt.code, err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.conf, diff)
		}
	}
}

func annotated(annotations string) string {
	return `{"runtimeConfig":{"io.kubernetes.cri.pod-annotations":` + annotations + `}}`
}

// DEL, CHECK and GC leave out keys that do not fit, and go on without them.
func TestLenientConfig(t *testing.T) {
	t.Parallel()
	type conf struct {
		Name string `json:"name"`

		Deep struct{ List []netconf.Plugin }
		Mode netconf.Plugin
		Size map[string]int
	}
	for _, tt := range []struct {
		text, want string
		code       uint
	}{
		{`{"name":"a"}`, "a", 0},
		{`{"deep":{"list":[{"type":"x"},{"type":5}]},"mode":"x","name":"a","size":{"b":1,"c":"x"}}`, "a", 0},
		{`{"deep":[],"name":"a","mode":{"type":5},"NAME":7,"size":1e99}`, "a", 0},
		{`{"name":"a","x":{"y":1,"y":2}}`, "a", 0},
		{"{\"name\":\"a\",\"x\":\"\xff\"}", "a", 0},
		{`{}`, "", 0},
		{`{"name":5}`, "", 0},
		{`null`, "", 6},
		{`[]`, "", 6},
		{`"x"`, "", 6},
		{``, "", 6},
		{`{"name":"a"}}`, "", 6},
	} {
		for _, command := range []delegate.Command{"DEL", "CHECK", "GC"} {
			got, err := plugin.Config[conf](&plugin.Call{Command: command, CmdArgs: skel.CmdArgs{StdinData: []byte(tt.text)}})
			if status.Code(err) != tt.code || err == nil && got.Name != tt.want {
				t.Errorf("%s %s: %+v, code %d: %v", command, tt.text, got, status.Code(err), err)
			}
			if got.Deep.List != nil || got.Size != nil {
				t.Errorf("%s %s: a part of a key that does not fit: %+v", command, tt.text, got)
			}
			if err != nil && !errors.Is(err, netconf.ErrDecode) {
				t.Errorf("%s %s: %v", command, tt.text, err)
			}
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
		if err := newNode(t).do(t, p, "DEL", ""); !errors.Is(err, cause) || !strings.Contains(err.Error(), `let "small forget" remove `) {
			t.Errorf("%v", err)
		}
	}
}

// A plugin that keeps no records can be asked for its status, and does not panic
// when it attaches something.
func TestWithoutRecords(t *testing.T) {
	t.Parallel()
	p := plugin.Plugin{
		Add: func(ctx context.Context, c *plugin.Call) error {
			n, err := netconf.Parse([]byte(`{"cniVersion":"1.1.0","name":"m","type":"macvlan"}`))
			if err != nil {
				return err
			}
			return c.Add(ctx, lifecycle.Transaction{Plan: lifecycle.Plan(c.Attachment(n))})
		},
		Status: func(ctx context.Context, c *plugin.Call) error { return c.Status(ctx) },
	}
	n := newNode(t)
	if err := n.do(t, p, "STATUS", ""); err != nil {
		t.Error(err)
	}
	if err := n.do(t, p, "ADD", ""); err == nil || len(n.exec.Calls()) > 0 {
		t.Errorf("%v, after %q", err, n.exec.Trace())
	}
}

// A server may pass on a command that it has not checked.
func TestUnknownCommandsDoNothing(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	for _, command := range []delegate.Command{"", "add", "VERSION", "FOO"} {
		if err := n.do(t, small(), command, two); status.Code(err) != types.ErrInvalidEnvironmentVariables {
			t.Errorf("%q: %v", command, err)
		}
	}
	if got := n.exec.Trace(); len(got) > 0 {
		t.Errorf("ran %q", got)
	}
}

// What a plugin does with the environment of one Call is not in another, even if
// the slice that they come from has room for more.
func TestCallsHaveTheirOwnEnvironment(t *testing.T) {
	t.Parallel()
	p := small()
	p.Prepare = func(c *plugin.Call) error {
		c.Env[0] = "A=" + c.ContainerID
		c.Env = append(c.Env, "B="+c.ContainerID)
		c.Manager.Invoker.Env = append(c.Manager.Invoker.Env, "C="+c.ContainerID)
		return nil
	}
	env := append(make([]string, 0, 9), "A=given", "PATH=/x")
	calls := make([]*plugin.Call, 2)
	for i := range calls {
		var err error
		if calls[i], err = p.Call(plugin.Process{Env: env}, "DEL", skel.CmdArgs{ContainerID: fmt.Sprint(i), StdinData: []byte("{}")}); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range calls {
		got := fmt.Sprint(c.Env, c.Manager.Invoker.Env[2:])
		if want := fmt.Sprintf("[A=%[1]d PATH=/x B=%[1]d] [C=%[1]d]", i); got != want {
			t.Errorf("call %d: %s, want %s", i, got, want)
		}
	}
	if env[0] != "A=given" {
		t.Errorf("the process's: %q", env)
	}
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
			c := &plugin.Call{CmdArgs: skel.CmdArgs{IfName: "eth0"}}
			var as []delegate.Attachment
			for i, asked := range tt.asked {
				n, err := netconf.Parse([]byte(`{"cniVersion":"1.1.0","name":"` + string(rune('a'+i)) + `","type":"bridge"}`))
				if err != nil {
					t.Fatal(err)
				}
				as = append(as, delegate.Attachment{Network: n, IfName: asked})
			}
			plan, err := c.Plan(as...)(t.Context(), tt.taken)
			if plan != nil || !errors.Is(err, ifname.ErrTaken) || !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("%v, %v; want %s...", plan, err, tt.want)
			}
		})
	}
}
