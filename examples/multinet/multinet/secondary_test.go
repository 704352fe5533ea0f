package multinet

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf/nad"
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

// The attributes of the interface reach the plugins, in ADD and DEL. The recorded path of
// the namespace is used, because the runtime's DEL knows no other.
func TestAttributesReachThePlugins(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	netns := h.Write("netns", "")
	nodetest.OK(t, os.Link(netns, netns+"2"))
	h.mustRun(t, "ADD", bridge)
	h.trace()
	with := wire.Attributes{
		IPs: []string{"10.0.0.5/24"}, MAC: "02:00:00:00:00:01",
		CNIArgs: map[string]json.RawMessage{"a": json.RawMessage(`{"b":1.0}`)},
	}
	h.mustSecondary(t, "ADD", `{"type":"macvlan","capabilities":{"ips":true,"mac":true},"x":9007199254740993}`, with, func(a *skel.CmdArgs) { a.Args, a.Netns = "K=v", netns+"2" })
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
