package multinet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/thick/wire"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
)

const green = `{"cniVersion":"1.1.0","name":"green","type":"macvlan","capabilities":{"ips":true,"mac":true}}`

// secondary runs a command of Secondary with the configuration of one network, for the
// interface hot0 of the container c1.
func (h *host) secondary(t *testing.T, command, network string, with wire.Attributes, edits ...func(*skel.CmdArgs)) error {
	t.Helper()
	args := &skel.CmdArgs{ContainerID: "c1", IfName: "hot0", StdinData: []byte(network)}
	for _, edit := range edits {
		edit(args)
	}
	p := Secondary(fmt.Appendf(nil, `{"cniDir":%q,"type":"multinet"}`, h.state()), &with)
	return p.Do(t.Context(), h.process(), delegate.Command(command), *args)
}

func (h *host) mustSecondary(t *testing.T, command, network string, with wire.Attributes, edits ...func(*skel.CmdArgs)) {
	t.Helper()
	if err := h.secondary(t, command, network, with, edits...); err != nil {
		t.Fatalf("%s: %v", command, err)
	}
}

// A DEL of a container that nobody knows runs the plugins with the configuration that came
// with it. Their error is that of the DEL.
func TestDetachFromAnUnknownContainerRunsThePlugins(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	unknown := func(a *skel.CmdArgs) { a.ContainerID, a.Netns = "c9", "/run/netns/c9" }
	h.mustSecondary(t, "DEL", green, wire.Attributes{}, unknown)
	wantTrace(t, h, "DEL macvlan hot0")
	nodetest.Fails(t, h.secondary(t, "DEL", `{"name":"lost","type":"missing"}`, wire.Attributes{}, unknown), 7, "missing")
	nodetest.Fails(t, h.secondary(t, "DEL", "broken", wire.Attributes{}, unknown), 6)
	nodetest.Fails(t, h.secondary(t, "DEL", green, wire.Attributes{}, unknown, func(a *skel.CmdArgs) { a.Netns = "/proc/self/ns/net" }), 8)
	h.mustSecondary(t, "DEL", "", wire.Attributes{}, unknown) // there is nothing to run
	wantTrace(t, h)
	if files, err := os.ReadDir(h.state()); len(files) > 0 || err != nil {
		t.Errorf("left %v, %v", files, err)
	}
}

// CHECK and DEL of a container include a network that was attached later.
func TestNetworkAttachedLaterIsPartOfTheContainer(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"DEL", "detach"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.1.0")
			h.mustRun(t, "ADD", bridge)
			h.printed.Reset()
			h.mustSecondary(t, "ADD", green, wire.Attributes{})
			if got := h.printed.String(); !strings.Contains(got, "10.9.1.2/24") {
				t.Errorf("printed %s", got)
			}
			h.trace()
			h.mustRun(t, "CHECK", bridge)
			wantTrace(t, h, "CHECK bridge eth0", "CHECK macvlan hot0")
			h.mustSecondary(t, "CHECK", green, wire.Attributes{})
			wantTrace(t, h, "CHECK macvlan hot0")
			switch end {
			case "DEL":
				h.mustRun(t, "DEL", bridge)
				wantTrace(t, h, "DEL macvlan hot0", "DEL bridge eth0")
			case "detach":
				h.mustSecondary(t, "DEL", "broken", wire.Attributes{})
				wantTrace(t, h, "DEL macvlan hot0")
				h.mustSecondary(t, "DEL", green, wire.Attributes{}) // what is gone is gone
				nodetest.Fails(t, h.secondary(t, "CHECK", green, wire.Attributes{}), 7, `"c1"`, `"hot0"`)
				h.mustRun(t, "CHECK", bridge)
				wantTrace(t, h, "CHECK bridge eth0")
				h.mustRun(t, "DEL", bridge)
			}
			h.clean(t)
		})
	}
}

// The attributes of the interface reach the plugins, in ADD and DEL.
func TestAttributesReachThePlugins(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	netns := h.Path("netns")
	h.mustRun(t, "ADD", bridge)
	h.trace()
	with := wire.Attributes{
		IPs: []string{"10.0.0.5/24"}, MAC: "02:00:00:00:00:01",
		CNIArgs: map[string]json.RawMessage{"a": json.RawMessage(`{"b":1.0}`)},
	}
	h.mustSecondary(t, "ADD", `{"type":"macvlan","capabilities":{"ips":true,"mac":true},"x":9007199254740993}`, with, func(a *skel.CmdArgs) { a.Args, a.Netns = "K=v", netns })
	want := []string{`{"ips":["10.0.0.5/24"],"mac":"02:00:00:00:00:01"} {"cni":{"a":{"b":1.0}}}`}
	nodetest.Equal(t, "ADD", arguments(t, h), want)
	call := h.Exec.Calls()[h.seen]
	if in := h.stdin(t, 0); in["name"] != "multi" || in["cniVersion"] != "1.1.0" {
		t.Errorf("not completed: %v", in)
	}
	if !strings.Contains(string(call.Stdin), `"x":9007199254740993`) || call.Args != "K=v" || call.NetNS != netns {
		t.Errorf("call %+v", call)
	}
	h.trace()
	h.mustSecondary(t, "DEL", "", wire.Attributes{})
	nodetest.Equal(t, "DEL", arguments(t, h), want)
	h.mustRun(t, "DEL", bridge)
	h.clean(t)
}

// Of several records the oldest is used. Damaged records do not prevent that.
func TestAttachWithSeveralRecords(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	for _, ifname := range []string{"eth1", "eth0"} {
		h.mustRun(t, "ADD", bridge, func(a *skel.CmdArgs) { a.IfName = ifname })
	}
	h.mustSecondary(t, "ADD", green, wire.Attributes{})
	h.Write("state/c1@multi@eth0.json", "garbage")
	h.trace()
	h.mustSecondary(t, "CHECK", green, wire.Attributes{})
	h.mustSecondary(t, "DEL", green, wire.Attributes{})
	wantTrace(t, h, "CHECK macvlan hot0", "DEL macvlan hot0")
	h.mustSecondary(t, "ADD", green, wire.Attributes{})
	h.mustRun(t, "DEL", bridge, func(a *skel.CmdArgs) { a.IfName = "eth1" })
	h.trace()
	// Whether the damaged one had it is not known.
	for _, command := range []string{"ADD", "CHECK", "DEL"} {
		nodetest.Fails(t, h.secondary(t, command, green, wire.Attributes{}), 5, "c1")
	}
	wantTrace(t, h)
}

// A mistake is found before a plugin runs.
func TestAttachIsRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, command, network string
		with                   wire.Attributes
		edit                   func(*skel.CmdArgs)
		code                   uint
		says                   string
	}{
		{name: "unknown container", command: "ADD", network: green, edit: func(a *skel.CmdArgs) { a.ContainerID = "c2" }, code: 7, says: `"c2"`},
		{name: "unknown container", command: "CHECK", network: green, edit: func(a *skel.CmdArgs) { a.ContainerID = "c2" }, code: 7, says: `"c2"`},
		{name: "its first interface", command: "ADD", network: green, edit: func(a *skel.CmdArgs) { a.IfName = "eth0" }, code: 7, says: "eth0"},
		{name: "its first interface", command: "DEL", network: green, edit: func(a *skel.CmdArgs) { a.IfName = "eth0" }, code: 7, says: "eth0"},
		{name: "a name in the namespace", command: "ADD", network: green, edit: func(a *skel.CmdArgs) { a.IfName = "used0" }, code: 7, says: `"used0"`},
		{name: "a template", command: "ADD", network: green, edit: func(a *skel.CmdArgs) { a.IfName = "net%d" }, code: 4, says: "net%d"},
		{name: "the host's namespace", command: "ADD", network: green, edit: func(a *skel.CmdArgs) { a.Netns = "/proc/self/ns/net" }, code: 8, says: "/proc/self/ns/net"},
		{name: "another container's namespace", command: "ADD", network: green, edit: func(a *skel.CmdArgs) { a.Netns = "/dev/null" }, code: 8, says: "/dev/null"},
		{name: "no namespace", command: "ADD", network: green, edit: func(a *skel.CmdArgs) { a.Netns = "/absent" }, code: 8, says: "/absent"},
		{name: "a plugin and a list", command: "ADD", network: `{"name":"green","Type":"macvlan","plugins":[{"type":"macvlan"}]}`, code: 7, says: `both "type" and "plugins"`},
		{name: "itself", command: "ADD", network: `{"name":"green","type":"multinet"}`, code: 7, says: "itself"},
		{name: "bad mac", command: "ADD", network: green, with: wire.Attributes{MAC: "x"}, code: 7, says: "mac"},
		{name: "mac that nobody serves", command: "ADD", network: `{"name":"green","type":"macvlan","capabilities":{"ips":true}}`, with: wire.Attributes{MAC: "02:00:00:00:00:01"}, code: 7, says: `network "green", key "mac"`},
		{name: "GC", command: "GC", network: green, code: 4, says: "GC"},
		{name: "STATUS of nothing", command: "STATUS", network: "{}", code: 7, says: "type"},
	} {
		t.Run(tt.name+" "+tt.command, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.1.0")
			h.mustRun(t, "ADD", bridge)
			h.trace()
			h.taken = []string{"lo", "used0"}
			edit := tt.edit
			if edit == nil {
				edit = func(*skel.CmdArgs) {}
			}
			nodetest.Fails(t, h.secondary(t, tt.command, tt.network, tt.with, edit), tt.code, tt.says)
			wantTrace(t, h)
			h.mustRun(t, "DEL", bridge)
			h.clean(t)
		})
	}
}

// An attach that fails is undone, and the container is unchanged.
func TestFailedAttachIsUndone(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	h.mustRun(t, "ADD", bridge)
	h.trace()
	nodetest.Fails(t, h.secondary(t, "ADD", `{"name":"x","plugins":[{"type":"macvlan"},{"type":"full"}]}`, wire.Attributes{}), 107, `"x"`, "no free device")
	wantTrace(t, h, "ADD macvlan hot0", "ADD full hot0", "DEL full hot0", "DEL macvlan hot0")
	h.stdout = brokenPipe{}
	nodetest.Fails(t, h.secondary(t, "ADD", green, wire.Attributes{}), 5, "broken pipe")
	h.stdout = &h.printed
	h.trace()
	h.mustRun(t, "CHECK", bridge)
	wantTrace(t, h, "CHECK bridge eth0")
	h.mustRun(t, "DEL", bridge)
	h.clean(t)
}

func TestStatusOfOneMoreNetwork(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	h.mustSecondary(t, "STATUS", green, wire.Attributes{})
	wantTrace(t, h, "STATUS macvlan")
	h.Exec.Plugins["down"] = delegatetest.FailOn("STATUS", 50, "no uplink", delegatetest.Result(nil))
	nodetest.Fails(t, h.secondary(t, "STATUS", `{"cniVersion":"1.1.0","type":"down"}`, wire.Attributes{}), 50, "no uplink")
}

// Attach and Detach do the same as commands. Attach names an interface that has no
// name. The record says that a request has attached the network, and what it asked for.
func TestAttachAndDetach(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	h.taken = []string{"net1"}
	h.mustRun(t, "ADD", bridge)
	h.mustSecondary(t, "ADD", green, wire.Attributes{MAC: "02:00:00:00:00:01"})
	h.trace()
	conf := fmt.Appendf(nil, `{"cniDir":%q,"type":"multinet"}`, h.state())
	a := delegate.Attachment{
		Network: nodetest.Parse(green), ContainerID: "c1", Args: "K8S_POD_NAME=p",
		CapabilityArgs: map[string]json.RawMessage{"ips": json.RawMessage(`["10.9.1.7/24"]`)},
	}
	nodetest.OK(t, Attach(t.Context(), h.process(), conf, a))
	last := h.Last("ADD")
	if !strings.Contains(string(last.Stdin), `"ips":["10.9.1.7/24"]`) || last.Args != "IgnoreUnknown=1;K8S_POD_NAME=p" {
		t.Errorf("the plugin was given %s, %s", last.Args, last.Stdin)
	}
	given := a
	given.IfName, given.Origin = "hot2", nad.Origin{Use: nad.Attached, Definition: nad.Ref{Namespace: "a", Name: "green"}}.JSON()
	nodetest.OK(t, Attach(t.Context(), h.process(), conf, given))
	nodetest.Equal(t, "origins", h.origins(t), []string{
		`eth0 {"use":"cluster"}`,
		`hot0 {"use":"attached","selection":{"name":"green","mac":"02:00:00:00:00:01"}}`,
		`net2 {"use":"attached"}`,
		`hot2 {"use":"attached","definition":"a/green"}`,
	})
	a.IfName = "eth0"
	nodetest.Fails(t, Attach(t.Context(), h.process(), conf, a), 7, `"eth0"`)
	a.ContainerID = "c2"
	nodetest.Fails(t, Attach(t.Context(), h.process(), conf, a), 7, `"c2"`)
	for range 2 { // what is gone is gone
		nodetest.OK(t, Detach(t.Context(), h.process(), conf, "c1", "net2"))
	}
	wantTrace(t, h, "ADD macvlan net2", "ADD macvlan hot2", "DEL macvlan net2")
	for name, err := range map[string]error{
		"attach": Attach(t.Context(), h.process(), []byte("{"), a), "detach": Detach(t.Context(), h.process(), []byte("{"), "c1", "net2"),
	} {
		if err == nil {
			t.Errorf("%s: a configuration that is none is good enough", name)
		}
	}
	h.mustRun(t, "DEL", bridge)
	h.clean(t)
}

// team is a namespace with definitions of all kinds.
var team = map[string]string{
	"a/blue": `{"type":"macvlan"}`, "a/red": `{"type":"tuning"}`, "b/blue": `{"type":"tuning"}`, "a/bad": `{`,
	"a/rich": `{"type":"macvlan","capabilities":{"ips":true,"mac":true,"bandwidth":true,"portMappings":true,"x":true,"io.kubernetes.cri.pod-annotations":true}}`,
	"a/full": `{"type":"full"}`,
}

// A runningPod is the pod a/web in the container c1, whose annotation is edited.
type runningPod struct {
	*host
	networks string // the annotation
	err      error  // of reading it
	keys     string // of the configuration
	replace  bool
}

// start attaches the pod with what it selects in the beginning.
func start(t *testing.T, networks string, groups ...string) *runningPod {
	t.Helper()
	var asked []string
	return startIn(t, clusterOf(&asked, team), networks, groups...)
}

// startIn is start in another cluster.
func startIn(t *testing.T, c Cluster, networks string, groups ...string) *runningPod {
	t.Helper()
	p := &runningPod{host: newHost(t, "1.0.0"), networks: networks, keys: keys(append(groups, bridge)...)}
	p.cluster = c
	p.cluster.Annotations = func(_ context.Context, pod nad.Pod) (map[string]string, error) {
		if pod.Name != "web" || pod.UID != "u1" {
			t.Errorf("asked for %s %s", pod, pod.UID)
		}
		return map[string]string{nad.NetworksAnnotation: p.networks, nad.SourceAnnotation: "api"}, p.err
	}
	p.mustRun(t, "ADD", p.keys, podOf("a"))
	p.attached(t)
	return p
}

func (p *runningPod) reconcile(t *testing.T) ([]lifecycle.Reconciled, error) {
	t.Helper()
	k := scratch.Key{Network: "multi", ContainerID: "c1", IfName: "eth0"}
	return Reconcile(t.Context(), p.process(), skel.CmdArgs{StdinData: []byte(p.conf(p.keys))}, p.cluster, k, p.replace)
}

func (p *runningPod) mustReconcile(t *testing.T, want ...string) {
	t.Helper()
	if _, err := p.reconcile(t); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(want, p.attached(t)); diff != "" {
		t.Errorf("calls for %q (-want +got):\n%s", p.networks, diff)
	}
}

func TestEditsOfTheAnnotationAreFollowed(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		keys, before, after string
		replace             bool
		want                []string
	}{
		"nothing":                       {before: "blue,red@x", after: "red@x, a/blue"},
		"one more":                      {before: "blue", after: "blue,red", want: []string{"ADD tuning net2 red"}},
		"one less":                      {before: "blue,red", after: "red", want: []string{"DEL macvlan net1 blue"}},
		"none":                          {before: "blue,red", want: []string{"DEL tuning net2 red", "DEL macvlan net1 blue"}},
		"the first":                     {after: "blue", want: []string{"ADD macvlan net1 blue"}},
		"the same of another namespace": {before: "blue", after: "b/blue", want: []string{"DEL macvlan net1 blue", "ADD tuning net1 blue"}},
		"interfaces swapped":            {before: "blue@x,red@y", after: "red@x,blue@y", want: []string{"DEL tuning y red", "DEL macvlan x blue", "ADD tuning x red", "ADD macvlan y blue"}},
		"other options":                 {before: "rich@x", after: `[{"name":"rich","interface":"x","mac":"02:00:00:00:00:01"}]`},
		"other options, which replace":  {before: "rich@x", after: `[{"name":"rich","interface":"x","mac":"02:00:00:00:00:01"}]`, replace: true, want: []string{"DEL macvlan x rich", "ADD macvlan x rich"}},
		"the same, written otherwise": {
			before:  `[{"name":"rich","interface":"x","mac":"02:00:00:00:00:AB","ips":["fd00::5/64","10.0.0.5/24"],"bandwidth":{"ingressRate":1,"ingressBurst":2},"portMappings":[{"hostPort":80,"containerPort":8080},{"hostPort":53,"containerPort":53,"protocol":"udp","hostIP":"fd00::1"}]}]`,
			after:   `[{"name":"rich","interfaceRequest":"x","mac":"0200.0000.00ab","ips":["10.0.0.5/24","FD00:0:0::5/64"],"cni-args":{},"bandwidth":{"IngressRate":1,"ingressBurst":2,"egressRate":0,"egressBurst":0},"portMappings":[{"HostPort":53,"containerPort":53,"protocol":"UDP","hostIP":"FD00::1"},{"hostPort":80,"containerPort":8080,"protocol":"tcp","hostIP":""}]}]`,
			replace: true,
		},
		"another address that is the first": {
			before: `[{"name":"rich","interface":"x","ips":["10.0.0.5/24","10.0.0.6/24"]}]`, after: `[{"name":"rich","interface":"x","ips":["10.0.0.6/24","10.0.0.5/24"]}]`,
			replace: true, want: []string{"DEL macvlan x rich", "ADD macvlan x rich"},
		},
		"other options, in another order":   {before: `[{"name":"rich","interface":"x","bandwidth":{"ingressRate":1,"ingressBurst":2}}]`, after: `[{"bandwidth": {"ingressBurst":2,"ingressRate":1},"default-route":[],"interface":"x","name":"rich"}]`, replace: true},
		"a name taken by a default network": {keys: `"defaultNetworks":["other"]`, after: "blue", want: []string{"ADD macvlan net2 blue"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, tt.before, strings.Fields(tt.keys)...)
			p.networks, p.replace = tt.after, tt.replace
			p.mustReconcile(t, tt.want...)
			p.mustReconcile(t)
			p.mustRun(t, "CHECK", p.keys)
			p.mustRun(t, "DEL", p.keys)
			p.clean(t)
		})
	}
}

// What the plugins receive does not depend on when a pod selects a network.
func TestNetworkSelectedLaterReceivesWhatAnADDPasses(t *testing.T) {
	t.Parallel()
	const asked = `[{"name":"rich","interface":"x","mac":"02:00:00:00:00:01","ips":["10.0.0.5/24"],"bandwidth":{"ingressRate":1},"cni-args":{"k":1.0}},{"name":"blue","namespace":"b","interface":"y","ipam-claim-reference":"web"}]`
	for name, keys := range map[string]string{
		"as usual":         `"annotations":"api","capabilities":{"x":true},"runtimeConfig":{"x":{"y":1.0},"mac":"02:00:00:00:00:09","portMappings":[{"hostPort":1,"containerPort":2}]}`,
		"with legacy args": `"annotations":"api","legacyArgs":true`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			received := func(p *runningPod) (all []string) {
				for _, c := range p.Exec.Calls() {
					if c.Command == "ADD" && c.IfName != "eth0" {
						all = append(all, c.String()+" "+c.Args+" "+c.ContainerID+" "+strings.TrimPrefix(c.NetNS, p.Dir)+" "+string(c.Stdin))
					}
				}
				return append(all, p.origins(t)...)
			}
			first := start(t, asked, keys)
			later := start(t, "", keys)
			later.networks = asked
			if _, err := later.reconcile(t); err != nil {
				t.Error(err)
			}
			nodetest.Equal(t, "at the start and later", received(later), received(first))
		})
	}
}

// The primary, the networks of the configuration and those that a request has attached
// are not the pod's to detach, nor does it need to select them.
func TestOnlySelectedNetworksAreDetached(t *testing.T) {
	t.Parallel()
	p := start(t, "blue", `"defaultNetworks":["fast"]`)
	p.mustSecondary(t, "ADD", green, wire.Attributes{})
	p.attached(t)
	p.networks = ""
	p.mustReconcile(t, "DEL macvlan net2 blue")
	p.networks = "red"
	p.mustReconcile(t, "ADD tuning net2 red")
}

// A definition is needed to attach, and not to detach.
func TestNetworkIsDetachedWithoutItsDefinition(t *testing.T) {
	t.Parallel()
	p := start(t, "blue,red")
	var asked []string
	p.cluster.Definition = down(&asked).Definition
	p.networks = "red"
	p.mustReconcile(t, "DEL macvlan net1 blue")
	if asked != nil {
		t.Errorf("asked for %q", asked)
	}
	p.networks = "blue,red"
	_, err := p.reconcile(t)
	nodetest.Fails(t, err, 11, "the API is away", `"blue"`)
}

// What a pod may not have, or not while it runs, is an error of its own: the others are
// attached, and nothing is detached because of it.
func TestSelectionThatIsRefusedStopsNoOther(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		selection, keys string
		code            uint
		words           []string
	}{
		"default-route":              {selection: `{"name":"rich","interface":"x","default-route":["10.0.0.1"]}`, code: 7, words: []string{`"rich"`, "default-route", "restart the pod"}},
		"a device of nobody":         {selection: `{"name":"device"}`, code: 7, words: []string{`"device"`, "vendor/nic", "kubelet"}},
		"no definition":              {selection: `{"name":"none"}`, code: 7, words: []string{`"none"`}},
		"a definition that is wrong": {selection: `{"name":"bad"}`, code: 6, words: []string{`"bad"`}},
		"another namespace":          {selection: `{"name":"blue","namespace":"b"}`, keys: `"namespaceIsolation":true`, code: 7, words: []string{"namespaceIsolation"}},
		"an address without a use":   {selection: `{"name":"blue","ips":["10.0.0.1"]}`, code: 7, words: []string{`"ips"`}},
		"a plugin that fails":        {selection: `{"name":"full"}`, code: 107, words: []string{"no free device"}},
		"an interface in use":        {selection: `{"name":"blue","interface":"eth0"}`, code: 7, words: []string{"eth0"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, "rich@x", strings.Fields(tt.keys)...)
			definition := p.cluster.Definition
			p.cluster.Definition = func(ctx context.Context, r nad.Ref, use nad.Use) (nad.Definition, error) {
				if r.Name == "device" {
					return nad.Definition{Ref: r, Config: `{"type":"macvlan"}`, Resource: "vendor/nic"}, nil
				}
				return definition(ctx, r, use)
			}
			p.replace = true
			p.networks = `[{"name":"rich","interface":"x"},` + tt.selection + `,{"name":"red"}]`
			if strings.Contains(tt.selection, `"x"`) {
				p.networks = `[` + tt.selection + `,{"name":"red"}]`
			}
			done, err := p.reconcile(t)
			nodetest.Fails(t, err, tt.code, tt.words...)
			got := p.attached(t)
			if len(done) != 2 || done[0].Err == nil || done[1].Err != nil || len(got) == 0 || got[len(got)-1] != "ADD tuning net1 red" {
				t.Errorf("done %+v, with %q", done, got)
			}
			if live := p.Exec.Live(); len(live) != 3 {
				t.Errorf("alive: %q", live)
			}
		})
	}
}

// Where nobody knows what is wanted, or why something is attached, nothing changes.
func TestReconcileChangesNothingInDoubt(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		spoil func(*testing.T, *runningPod)
		code  uint
		words []string
	}{
		"an annotation that cannot be parsed": {func(_ *testing.T, p *runningPod) { p.networks = "[{" }, 6, []string{nad.NetworksAnnotation}},
		"the API is away":                     {func(_ *testing.T, p *runningPod) { p.err = types.NewError(11, "the API is away", "") }, 11, []string{"a/web", "away"}},
		"no record": {func(t *testing.T, p *runningPod) {
			t.Helper()
			p.mustRun(t, "DEL", p.keys)
			p.attached(t)
		}, 7, nil},
		"a configuration that is wrong": {func(_ *testing.T, p *runningPod) { p.keys += `,"globalNamespaces":"?"` }, 7, []string{"globalNamespaces"}},
		"a record without origins": {func(t *testing.T, p *runningPod) {
			t.Helper()
			p.rerecord(t, "eth0", func(as []delegate.Attachment) { as[1].Origin = nil })
		}, 7, []string{"does not say", "net1"}},
		"a record of a later version": {func(t *testing.T, p *runningPod) {
			t.Helper()
			p.rerecord(t, "eth0", func(as []delegate.Attachment) { as[1].Origin = json.RawMessage(`{"use":"selected","selection":[]}`) })
		}, 7, []string{"does not say", "net1"}},
		"no pod": {func(t *testing.T, p *runningPod) {
			t.Helper()
			p.rerecord(t, "eth0", func(as []delegate.Attachment) { as[0].Args = "" })
		}, 7, []string{"no pod"}},
		"a pod whose UID the runtime has not told": {func(t *testing.T, p *runningPod) {
			t.Helper()
			p.rerecord(t, "eth0", func(as []delegate.Attachment) {
				as[0].Args = strings.ReplaceAll(as[0].Args, "K8S_POD_UID=u1;", "")
			})
		}, 7, []string{"UID"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, "blue")
			p.networks = "red"
			tt.spoil(t, p)
			done, err := p.reconcile(t)
			nodetest.Fails(t, err, tt.code, tt.words...)
			if got := p.attached(t); len(done)+len(got) > 0 {
				t.Errorf("done %+v, with %q", done, got)
			}
			if strings.Contains(name, "a record") && !errors.Is(err, ErrNoOrigin) {
				t.Errorf("err = %v", err)
			}
		})
	}
}

// An old annotation attaches, but only a confirmed one detaches.
func TestNothingIsDetachedByAnAnnotationThatIsNotConfirmed(t *testing.T) {
	t.Parallel()
	p := start(t, "blue,red")
	confirmed, why := "blue,red", error(nil)
	p.cluster.Confirmed = func(context.Context, nad.Pod) (map[string]string, error) {
		return map[string]string{nad.NetworksAnnotation: confirmed}, why
	}
	p.networks = "blue"
	p.mustReconcile(t)
	why = types.NewError(11, "the API is away", "")
	p.networks = "blue,b/blue"
	_, err := p.reconcile(t)
	nodetest.Fails(t, err, 11, "a/web", "the API is away")
	nodetest.Equal(t, "calls", p.attached(t), []string{"ADD tuning net3 blue"})
	p.networks, confirmed, why = "b/blue", "b/blue", nil
	p.mustReconcile(t, "DEL tuning net2 red", "DEL macvlan net1 blue")
}

// A plugin that hangs keeps the others from their turn for a minute only.
func TestNetworkThatHangsStopsNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := start(t, "red@x")
		p.Exec.Plugins["macvlan"] = delegatetest.HangOn("ADD", p.Exec.Plugins["macvlan"])
		p.Exec.Plugins["tuning"] = delegatetest.HangOn("DEL", p.Exec.Plugins["tuning"])
		p.networks = "blue@y,b/blue@z"
		done, err := p.reconcile(t)
		nodetest.Fails(t, err, 11, "macvlan", "tuning")
		if len(done) != 3 || done[0].Err == nil || done[1].Err == nil || done[2].Err != nil {
			t.Errorf("done %+v", done)
		}
		nodetest.Equal(t, "calls", p.attached(t), []string{"DEL tuning x red", "ADD macvlan y blue", "DEL macvlan y blue", "ADD tuning z blue"})
	})
}

// rerecord makes the record of c1 with other attachments.
func (p *runningPod) rerecord(t *testing.T, ifname string, change func([]delegate.Attachment)) {
	t.Helper()
	m := &lifecycle.Manager{Dir: p.state(), Invoker: &delegate.Invoker{Exec: p.Exec}, InterfaceNames: p.process().InterfaceNames}
	k := scratch.Key{Network: "multi", ContainerID: "c1", IfName: ifname}
	rs, err := m.Container(t.Context(), "c1")
	if err != nil || len(rs) != 1 {
		t.Fatalf("%d records, %v", len(rs), err)
	}
	var plan []delegate.Attachment
	for _, a := range rs[0].Attached {
		plan = append(plan, a.Attachment)
	}
	change(plan)
	err = m.Del(t.Context(), k, lifecycle.Removal{})
	if err == nil {
		_, err = m.Add(t.Context(), k, lifecycle.Transaction{Plan: lifecycle.Plan(plan...)})
	}
	nodetest.OK(t, err)
	p.attached(t)
}

// A container that the runtime has replaced gets nothing more.
func TestOldContainerOfAPodGetsNoMoreNetworks(t *testing.T) {
	t.Parallel()
	p := start(t, "blue")
	p.mustRun(t, "ADD", p.keys, podOf("a"), func(a *skel.CmdArgs) { a.ContainerID = "c2" })
	p.mustRun(t, "ADD", p.keys, podOf("b"), func(a *skel.CmdArgs) { a.ContainerID = "c3" })
	p.attached(t)
	p.networks = "blue,red"
	_, err := p.reconcile(t)
	nodetest.Fails(t, err, 11, "newer container", "c2")
	nodetest.Equal(t, "calls", p.attached(t), nil)
	p.mustRun(t, "DEL", p.keys, func(a *skel.CmdArgs) { a.ContainerID = "c2" })
	p.attached(t)
	p.mustReconcile(t, "ADD tuning net2 red")
}

// Whatever a pod selects is recognized in the record: it would be attached again and
// again.
func FuzzSelectionsAreRecognized(f *testing.F) {
	for _, networks := range []string{
		"blue", "b/blue@x", `[{"name":"blue","cni-args":{"a":12345678901234567890,"<":1.0}}]`, `[{"name":"blue","cni-args":{},"default-route":[],"ips":[]}]`,
		`[{"name":"blue","bandwidth":{"ingressRate":1, "x":"\u003c"},"portMappings":[{"hostPort":1,"containerPort":2}]}]`, `[{"name":"blue","default-route":["fe80::1"],"ipam-claim-reference":"vm"}]`,
	} {
		f.Add(networks)
	}
	f.Fuzz(func(t *testing.T, networks string) {
		selections, err := netconf.ParseSelection(networks)
		if err != nil {
			return
		}
		for _, s := range selections {
			a := delegate.Attachment{Args: "K8S_POD_NAMESPACE=a", Origin: choice{use: nad.Selected, selection: s}.origin("")}
			got, mine := selectedFor(delegate.Attached{Attachment: a})
			want := selectionToCompare("a", s)
			if !mine || got.Network != want.Network || got.IfName != want.IfName || got.Options != want.Options {
				t.Errorf("%s is recorded as %s and recognized as %+v, want %+v", networks, a.Origin, got, want)
			}
		}
	})
}

// A caller may have the ID of a container in the pod, and not the sandbox's. Then the network
// namespace says which record is meant, by whatever path.
func TestContainerOfAPodIsFoundByItsNamespace(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	netns, other := filepath.Join(t.TempDir(), "ns"), filepath.Join(t.TempDir(), "ns")
	nodetest.NetNS(t, netns)
	nodetest.NetNS(t, other)
	sandbox := func(a *skel.CmdArgs) { a.Netns = netns }
	h.mustRun(t, "ADD", bridge, sandbox)
	path, err := os.Readlink(netns)
	nodetest.OK(t, err)
	app := func(a *skel.CmdArgs) { a.ContainerID, a.Netns = "app", path }
	h.trace()
	h.mustSecondary(t, "ADD", green, wire.Attributes{}, app)
	nodetest.Fails(t, h.secondary(t, "ADD", green, wire.Attributes{}, func(a *skel.CmdArgs) { a.ContainerID, a.Netns = "app", other }), 7, `"app"`)
	h.mustSecondary(t, "DEL", green, wire.Attributes{}, app)
	nodetest.Equal(t, "calls", h.trace(), []string{"ADD macvlan hot0", "DEL macvlan hot0"})
	h.mustRun(t, "DEL", bridge, sandbox)
	h.clean(t)
}
