package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/examples/internal/programtest"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
)

const green = `{"cniVersion":"1.1.0","name":"green","type":"macvlan","capabilities":{"ips":true,"mac":true}}`

// inside lets a call be for a network namespace.
func inside(path string) func(*skel.CmdArgs) { return func(a *skel.CmdArgs) { a.Netns = path } }

// with lets a call of secondary have attributes.
func with(attributes wire.Attributes) func(*skel.CmdArgs) {
	text, _ := json.Marshal(attributes) // what was JSON still is
	return func(a *skel.CmdArgs) { a.Path = string(text) }
}

// secondary runs a command of Secondary with the configuration of one network, for the
// interface hot0 of the container c1.
func (h *host) secondary(command, network string, edits ...func(*skel.CmdArgs)) error {
	args := &skel.CmdArgs{ContainerID: "c1", IfName: "hot0", StdinData: []byte(network), Path: "{}"}
	for _, edit := range edits {
		edit(args)
	}
	var attributes wire.Attributes
	nodetest.OK(h, json.Unmarshal([]byte(args.Path), &attributes))
	p := Secondary(fmt.Appendf(nil, `{"cniDir":%q,"type":"multinet"}`, h.state()), &attributes)
	return p.Do(h.Context(), h.Process, delegate.Command(command), *args)
}

func (h *host) mustSecondary(command, network string, edits ...func(*skel.CmdArgs)) {
	h.Helper()
	nodetest.OK(h, h.secondary(command, network, edits...))
}

// A DEL of a container that nobody knows runs the plugins with the configuration that came
// with it. Their error is that of the DEL.
func TestDetachFromAnUnknownContainerRunsThePlugins(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	unknown := func(a *skel.CmdArgs) { a.ContainerID, a.Netns = "c9", "/run/netns/c9" }
	h.mustSecondary("DEL", green, unknown)
	h.WantTrace("DEL macvlan hot0 of c9")
	nodetest.Fails(t, h.secondary("DEL", `{"name":"lost","type":"missing"}`, unknown), 7, "missing")
	nodetest.Fails(t, h.secondary("DEL", "broken", unknown), 6)
	nodetest.Fails(t, h.secondary("DEL", green, unknown, inside("/proc/self/ns/net")), 8)
	h.mustSecondary("DEL", "", unknown) // there is nothing to run
	h.WantTrace()
	nodetest.Equal(t, "left", h.Files("state"), nil)
}

// CHECK and DEL of a container include a network that was attached later. An attach that fails is
// undone, and the container is unchanged.
func TestNetworkAttachedLaterIsPartOfTheContainer(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	h.mustSecondary("STATUS", green)
	h.WantTrace("STATUS macvlan")
	h.Exec.Plugins["down"] = delegatetest.FailOn("STATUS", 50, "no uplink", delegatetest.Result(nil))
	nodetest.Fails(t, h.secondary("STATUS", `{"cniVersion":"1.1.0","type":"down"}`), 50, "no uplink")
	h.mustRun("ADD", bridge)
	h.Trace()
	nodetest.Fails(t, h.secondary("ADD", `{"name":"x","plugins":[{"type":"macvlan"},{"type":"full"}]}`), 107, `"x"`, "no free device")
	h.WantTrace("ADD macvlan hot0", "ADD full hot0", "DEL full hot0", "DEL macvlan hot0")
	h.Process.Stdout = brokenPipe{}
	nodetest.Fails(t, h.secondary("ADD", green), 5, "broken pipe")
	h.Process.Stdout = &h.Printed
	h.Trace()
	h.mustRun("CHECK", bridge)
	h.WantTrace("CHECK bridge eth0")
	h.Printed.Reset()
	h.mustSecondary("ADD", green)
	nodetest.Contains(t, "printed", h.Printed.String(), "10.9.1.2/24")
	h.Trace()
	h.mustRun("CHECK", bridge)
	h.WantTrace("CHECK bridge eth0", "CHECK macvlan hot0")
	h.mustSecondary("CHECK", green)
	h.WantTrace("CHECK macvlan hot0")
	h.mustSecondary("DEL", "broken")
	h.WantTrace("DEL macvlan hot0")
	h.mustSecondary("DEL", green) // what is gone is gone
	nodetest.Fails(t, h.secondary("CHECK", green), 7, `"c1"`, `"hot0"`)
	h.mustRun("CHECK", bridge)
	h.WantTrace("CHECK bridge eth0")
	h.mustSecondary("ADD", green)
	h.Trace()
	h.removed()
	h.WantTrace("DEL macvlan hot0", "DEL bridge eth0")
}

// The attributes of the interface reach the plugins, in ADD and DEL.
func TestAttributesReachThePlugins(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	h.mustRun("ADD", bridge)
	h.Trace()
	asked := with(wire.Attributes{IPs: []string{"10.0.0.5/24"}, MAC: "02:00:00:00:00:01", CNIArgs: map[string]json.RawMessage{"a": json.RawMessage(`{"b":1.0}`)}})
	h.mustSecondary("ADD", `{"type":"macvlan","capabilities":{"ips":true,"mac":true},"x":9007199254740993}`, asked, func(a *skel.CmdArgs) { a.Args, a.Netns = "K=v", h.Path("netns") })
	want := []string{`{"ips":["10.0.0.5/24"],"mac":"02:00:00:00:00:01"} {"cni":{"a":{"b":1.0}}}`}
	nodetest.Equal(t, "ADD", h.arguments(), want)
	call := h.Since()[0]
	if in := nodetest.Stdin(t, call); in["name"] != "multi" || in["cniVersion"] != "1.1.0" || !strings.Contains(string(call.Stdin), `"x":9007199254740993`) || call.Args != "K=v" || call.NetNS != h.Path("netns") {
		t.Errorf("call %+v", call)
	}
	h.Trace()
	h.mustSecondary("DEL", "")
	nodetest.Equal(t, "DEL", h.arguments(), want)
	h.removed()
}

// Of several records the oldest is used. Damaged records do not prevent that.
func TestAttachWithSeveralRecords(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	for _, ifname := range []string{"eth1", "eth0"} {
		h.mustRun("ADD", bridge, programtest.At(ifname))
	}
	h.mustSecondary("ADD", green)
	h.Write("state/c1@multi@eth0.json", "garbage")
	h.Trace()
	h.mustSecondary("CHECK", green)
	h.mustSecondary("DEL", green)
	h.WantTrace("CHECK macvlan hot0", "DEL macvlan hot0")
	h.mustSecondary("ADD", green)
	h.mustRun("DEL", bridge, programtest.At("eth1"))
	h.Trace()
	// Whether the damaged one had it is not known.
	for _, command := range []string{"ADD", "CHECK", "DEL"} {
		nodetest.Fails(t, h.secondary(command, green), 5, "c1")
	}
	h.WantTrace()
}

// A mistake is found before a plugin runs.
func TestAttachIsRefused(t *testing.T) {
	t.Parallel()
	mac := with(wire.Attributes{MAC: "02:00:00:00:00:01"})
	for _, tt := range []struct {
		name, command, network string
		edit                   func(*skel.CmdArgs)
		code                   uint
		says                   string
	}{
		{"unknown container", "ADD", green, programtest.As("c2"), 7, `"c2"`},
		{"unknown container", "CHECK", green, programtest.As("c2"), 7, `"c2"`},
		{"its first interface", "ADD", green, programtest.At("eth0"), 7, "eth0"},
		{"its first interface", "DEL", green, programtest.At("eth0"), 7, "eth0"},
		{"a name in the namespace", "ADD", green, programtest.At("used0"), 7, `"used0"`},
		{"a template", "ADD", green, programtest.At("net%d"), 4, "net%d"},
		{"the host's namespace", "ADD", green, inside("/proc/self/ns/net"), 8, "/proc/self/ns/net"},
		{"another container's namespace", "ADD", green, inside("/dev/null"), 8, "/dev/null"},
		{"no namespace", "ADD", green, inside("/absent"), 8, "/absent"},
		{"a plugin and a list", "ADD", `{"name":"green","Type":"macvlan","plugins":[{"type":"macvlan"}]}`, nil, 7, `both "type" and "plugins"`},
		{"itself", "ADD", `{"name":"green","type":"multinet"}`, nil, 7, "itself"},
		{"bad mac", "ADD", green, with(wire.Attributes{MAC: "x"}), 7, "mac"},
		{"mac that nobody serves", "ADD", `{"name":"green","type":"macvlan","capabilities":{"ips":true}}`, mac, 7, `network "green", key "mac"`},
		{"GC", "GC", green, nil, 4, "GC"},
		{"STATUS of nothing", "STATUS", "{}", nil, 7, "type"},
	} {
		t.Run(tt.name+" "+tt.command, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.1.0")
			h.mustRun("ADD", bridge)
			h.Trace()
			h.Taken = []string{"lo", "used0"}
			if tt.edit == nil {
				tt.edit = programtest.At("hot0")
			}
			nodetest.Fails(t, h.secondary(tt.command, tt.network, tt.edit), tt.code, tt.says)
			h.WantTrace()
			h.removed()
		})
	}
}

// Attach and Detach do the same as commands. Attach names an interface that has no
// name. The record says that a request has attached the network, and what it asked for.
func TestAttachAndDetach(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	h.Taken = []string{"net1"}
	h.mustRun("ADD", bridge)
	h.mustSecondary("ADD", green, with(wire.Attributes{MAC: "02:00:00:00:00:01"}))
	h.Trace()
	conf := fmt.Appendf(nil, `{"cniDir":%q,"type":"multinet"}`, h.state())
	a := delegate.Attachment{
		Network: nodetest.Parse(green), ContainerID: "c1", Args: "K8S_POD_NAME=p",
		CapabilityArgs: map[string]json.RawMessage{"ips": json.RawMessage(`["10.9.1.7/24"]`)},
	}
	nodetest.OK(t, Attach(t.Context(), h.Process, conf, a))
	last := h.Last("ADD")
	if !strings.Contains(string(last.Stdin), `"ips":["10.9.1.7/24"]`) || last.Args != "IgnoreUnknown=1;K8S_POD_NAME=p" {
		t.Errorf("the plugin was given %s, %s", last.Args, last.Stdin)
	}
	given := a
	given.IfName, given.Origin = "hot2", nad.Origin{Use: nad.UseAttached, Definition: nad.Ref{Namespace: "a", Name: "green"}}.JSON()
	nodetest.OK(t, Attach(t.Context(), h.Process, conf, given))
	nodetest.Equal(t, "origins", h.origins(), []string{
		`eth0 {"use":"cluster"}`,
		`hot0 {"use":"attached","selection":{"name":"green","mac":"02:00:00:00:00:01"}}`,
		`net2 {"use":"attached"}`,
		`hot2 {"use":"attached","definition":"a/green"}`,
	})
	a.IfName = "eth0"
	nodetest.Fails(t, Attach(t.Context(), h.Process, conf, a), 7, `"eth0"`)
	a.ContainerID = "c2"
	nodetest.Fails(t, Attach(t.Context(), h.Process, conf, a), 7, `"c2"`)
	for range 2 { // what is gone is gone
		nodetest.OK(t, Detach(t.Context(), h.Process, conf, "c1", "net2"))
	}
	h.WantTrace("ADD macvlan net2", "ADD macvlan hot2", "DEL macvlan net2")
	nodetest.Fails(t, Attach(t.Context(), h.Process, []byte("{"), a), 6)
	nodetest.Fails(t, Detach(t.Context(), h.Process, []byte("{"), "c1", "net2"), 6)
	h.removed()
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
	return startIn(t, func(h *host) { h.clusterOf(team) }, networks, groups...)
}

// startIn is start in another cluster.
func startIn(t *testing.T, cluster func(*host), networks string, groups ...string) *runningPod {
	t.Helper()
	p := &runningPod{host: newHost(t, "1.0.0"), networks: networks, keys: keys(append(groups, bridge)...)}
	cluster(p.host)
	p.cluster.Annotations = func(_ context.Context, pod nad.Pod) (map[string]string, error) {
		nodetest.Equal(t, "asked for", pod.Name+" "+pod.UID, "web u1")
		return map[string]string{nad.NetworksAnnotation: p.networks, nad.SourceAnnotation: "api"}, p.err
	}
	p.mustRun("ADD", p.keys, podOf("a"))
	p.Trace()
	return p
}

func (p *runningPod) reconcile() ([]lifecycle.Change, error) {
	k := scratch.Key{Network: "multi", ContainerID: "c1", IfName: "eth0"}
	return Reconcile(p.Context(), p.Process, skel.CmdArgs{StdinData: []byte(p.conf(p.keys))}, p.cluster, k, p.replace)
}

func (p *runningPod) mustReconcile(want ...string) {
	p.Helper()
	_, err := p.reconcile()
	nodetest.Equal(p, "error", err, nil)
	nodetest.Equal(p, "calls for "+p.networks, p.attached(), want)
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
		"a name taken by a default network": {keys: `"defaultNetworks":["other"]`, after: "blue", want: []string{"ADD macvlan net2 blue"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, tt.before, strings.Fields(tt.keys)...)
			p.networks, p.replace = tt.after, tt.replace
			p.mustReconcile(tt.want...)
			p.mustReconcile()
			p.mustRun("CHECK", p.keys)
			p.removed()
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
				return append(all, p.origins()...)
			}
			first := start(t, asked, keys)
			later := start(t, "", keys)
			later.networks = asked
			_, err := later.reconcile()
			nodetest.OK(t, err)
			nodetest.Equal(t, "at the start and later", received(later), received(first))
		})
	}
}

// The primary, the networks of the configuration and those that a request has attached
// are not the pod's to detach, nor does it need to select them.
func TestOnlySelectedNetworksAreDetached(t *testing.T) {
	t.Parallel()
	p := start(t, "blue", `"defaultNetworks":["fast"]`)
	p.mustSecondary("ADD", green)
	p.Trace()
	p.networks = ""
	p.mustReconcile("DEL macvlan net2 blue")
	p.networks = "red"
	p.mustReconcile("ADD tuning net2 red")
}

// A definition is needed to attach, and not to detach.
func TestNetworkIsDetachedWithoutItsDefinition(t *testing.T) {
	t.Parallel()
	p := start(t, "blue,red")
	annotations := p.cluster.Annotations
	p.down()
	p.cluster.Annotations, p.asked = annotations, nil
	p.networks = "red"
	p.mustReconcile("DEL macvlan net1 blue")
	nodetest.Equal(t, "asked", p.asked, nil)
	p.networks = "blue,red"
	_, err := p.reconcile()
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
		"default-route":       {selection: `{"name":"rich","interface":"x","default-route":["10.0.0.1"]}`, code: 7, words: []string{`"rich"`, "default-route", "restart the pod"}},
		"a device of nobody":  {selection: `{"name":"device"}`, code: 7, words: []string{`"device"`, "vendor/nic", "kubelet"}},
		"another namespace":   {selection: `{"name":"blue","namespace":"b"}`, keys: `"namespaceIsolation":true`, code: 7, words: []string{"namespaceIsolation"}},
		"a plugin that fails": {selection: `{"name":"full"}`, code: 107, words: []string{"no free device"}},
		"an interface in use": {selection: `{"name":"blue","interface":"eth0"}`, code: 7, words: []string{"eth0"}},
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
			done, err := p.reconcile()
			nodetest.Fails(t, err, tt.code, tt.words...)
			got := p.attached()
			if len(done) != 2 || done[0].Err == nil || done[1].Err != nil || len(got) == 0 || got[len(got)-1] != "ADD tuning net1 red" {
				t.Errorf("done %+v, with %q", done, got)
			}
			nodetest.Equal(t, "alive", len(p.Exec.Live()), 3)
		})
	}
}

// Where nobody knows what is wanted, or why something is attached, nothing changes.
func TestReconcileChangesNothingInDoubt(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		spoil func(*runningPod)
		code  uint
		words []string
	}{
		"an annotation that cannot be parsed": {func(p *runningPod) { p.networks = "[{" }, 6, []string{nad.NetworksAnnotation}},
		"the API is away":                     {func(p *runningPod) { p.err = errAway }, 11, []string{"a/web", "away"}},
		"no record": {func(p *runningPod) {
			p.mustRun("DEL", p.keys)
			p.Trace()
		}, 7, nil},
		"a record without origins": {func(p *runningPod) {
			p.rerecord(func(as []delegate.Attachment) { as[1].Origin = nil })
		}, 7, []string{"does not say", "net1"}},
		"a record of a later version": {func(p *runningPod) {
			p.rerecord(func(as []delegate.Attachment) { as[1].Origin = json.RawMessage(`{"use":"selected","selection":[]}`) })
		}, 7, []string{"does not say", "net1"}},
		"no pod": {func(p *runningPod) {
			p.rerecord(func(as []delegate.Attachment) { as[0].Args = "" })
		}, 7, []string{"no pod"}},
		"a pod whose UID the runtime has not told": {func(p *runningPod) {
			p.rerecord(func(as []delegate.Attachment) { as[0].Args = strings.ReplaceAll(as[0].Args, "K8S_POD_UID=u1;", "") })
		}, 7, []string{"UID"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, "blue")
			p.networks = "red"
			tt.spoil(p)
			done, err := p.reconcile()
			nodetest.Fails(t, err, tt.code, tt.words...)
			nodetest.Equal(t, "done, and called", len(done)+len(p.attached()), 0)
			if strings.Contains(name, "a record") {
				nodetest.Is(t, err, ErrNoOrigin)
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
	p.mustReconcile()
	why = errAway
	p.networks = "blue,b/blue"
	_, err := p.reconcile()
	nodetest.Fails(t, err, 11, "a/web", "the API is away")
	nodetest.Equal(t, "calls", p.attached(), []string{"ADD tuning net3 blue"})
	p.networks, confirmed, why = "b/blue", "b/blue", nil
	p.mustReconcile("DEL tuning net2 red", "DEL macvlan net1 blue")
}

// A plugin that hangs keeps the others from their turn for a minute only.
func TestNetworkThatHangsStopsNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := start(t, "red@x")
		p.Exec.Plugins["macvlan"] = delegatetest.HangOn("ADD", p.Exec.Plugins["macvlan"])
		p.Exec.Plugins["tuning"] = delegatetest.HangOn("DEL", p.Exec.Plugins["tuning"])
		p.networks = "blue@y,b/blue@z"
		done, err := p.reconcile()
		nodetest.Fails(t, err, 11, "macvlan", "tuning")
		if len(done) != 3 || done[0].Err == nil || done[1].Err == nil || done[2].Err != nil {
			t.Errorf("done %+v", done)
		}
		nodetest.Equal(t, "calls", p.attached(), []string{"DEL tuning x red", "ADD macvlan y blue", "DEL macvlan y blue", "ADD tuning z blue"})
	})
}

// rerecord makes the record of c1 with other attachments.
func (p *runningPod) rerecord(change func([]delegate.Attachment)) {
	p.Helper()
	m := &lifecycle.Manager{Dir: p.state(), Invoker: &delegate.Invoker{Exec: p.Exec}, InterfaceNames: p.Process.InterfaceNames}
	r := p.recorded("c1")
	var plan []delegate.Attachment
	for _, a := range r.Attached {
		plan = append(plan, a.Attachment)
	}
	change(plan)
	nodetest.OK(p, m.Del(p.Context(), r.Key, lifecycle.DelRequest{}))
	_, err := m.Add(p.Context(), r.Key, lifecycle.Transaction{Plan: lifecycle.Plan(plan...)})
	nodetest.OK(p, err)
	p.Trace()
}

// A container that the runtime has replaced gets nothing more.
func TestOldContainerOfAPodGetsNoMoreNetworks(t *testing.T) {
	t.Parallel()
	p := start(t, "blue")
	p.mustRun("ADD", p.keys, podOf("a"), programtest.As("c2"))
	p.mustRun("ADD", p.keys, podOf("b"), programtest.As("c3"))
	p.Trace()
	p.networks = "blue,red"
	_, err := p.reconcile()
	nodetest.Fails(t, err, 11, "newer container", "c2")
	nodetest.Equal(t, "calls", p.attached(), nil)
	p.mustRun("DEL", p.keys, programtest.As("c2"))
	p.Trace()
	p.mustReconcile("ADD tuning net2 red")
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
			a := delegate.Attachment{Args: "K8S_POD_NAMESPACE=a", Origin: choice{use: nad.UseSelected, selection: s}.origin("")}
			got, mine := selectedFor(delegate.Attached{Attachment: a})
			want := selectionToCompare("a", s)
			if !mine || got.Network != want.Network || got.IfName != want.IfName || got.Options != want.Options {
				t.Errorf("%s is recorded as %s and recognized as %+v, want %+v", networks, a.Origin, got, want)
			}
		}
	})
}
