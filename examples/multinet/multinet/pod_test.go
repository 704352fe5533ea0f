package multinet

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/thick/wire"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

const capabilities = `"capabilities":{"mac":true,"ips":true,"portMappings":true,"bandwidth":true,"infinibandGUID":true,"deviceID":true,"dns":true,"ipRanges":true,"ipam-claim-reference":true}`

// Arguments of a selection reach the plugins of that network only. Arguments of the
// runtime for its interface reach the first network only.
func TestSelectionArguments(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		selection string
		runtime   []string // its own capability arguments
		want      []string // runtimeConfig and args of the first network, of a default one and of the selected one
	}{
		{"nothing", "cap", nil, []string{"null null", "null null", "null null"}},
		{
			"everything",
			`[{"name":"cap","mac":"02:00:00:00:00:01","ips":["10.0.0.5/24","fd00::5"],"portMappings":[{"hostPort":80,"x":1.0}],
				"bandwidth":{"ingressRate":9007199254740993},"infiniband-guid":"02:00:00:00:00:00:00:01","deviceID":"0000:03:02.0"}]`,
			nil,
			[]string{
				"null null", "null null",
				`{"bandwidth":{"ingressRate":9007199254740993},"deviceID":"0000:03:02.0","infinibandGUID":"02:00:00:00:00:00:00:01",` +
					`"ips":["10.0.0.5/24","fd00::5"],"mac":"02:00:00:00:00:01","portMappings":[{"hostPort":80,"x":1.0}]} null`,
			},
		},
		{
			"cni-args join those of the configuration",
			`[{"name":"args","cni-args":{"b":{"c":2.0},"a":"new"}}]`, nil,
			[]string{"null null", "null null", `null {"cni":{"a":"new","b":{"c":2.0},"z":1},"other":true}`},
		},
		{
			"a claim of addresses, of a plugin with the capability", `[{"name":"cap","ipam-claim-reference":"web"}]`, nil,
			[]string{"null null", "null null", `{"ipam-claim-reference":"web"} {"cni":{"ipam-claim-reference":"web"}}`},
		},
		{
			"the runtime's own", `[{"name":"cap","portMappings":[{"hostPort":1}]}]`,
			[]string{
				`"portMappings":[{"hostPort":8080}]`, `"mac":"02:00:00:00:00:09"`, `"ipRanges":[[]]`, `"dns":{"servers":["10.0.0.1"]}`,
				`"bandwidth":{"ingressRate":1}`, `"ips":["10.0.0.5/24"]`, `"infinibandGUID":"02:00:00:00:00:00:00:01"`, `"deviceID":"0000:03:02.0"`,
			},
			[]string{
				`{"bandwidth":{"ingressRate":1},"deviceID":"0000:03:02.0","dns":{"servers":["10.0.0.1"]},"infinibandGUID":"02:00:00:00:00:00:00:01",` +
					`"ipRanges":[[]],"ips":["10.0.0.5/24"],"mac":"02:00:00:00:00:09","portMappings":[{"hostPort":8080}]} null`,
				`{"dns":{"servers":["10.0.0.1"]}} null`,
				`{"dns":{"servers":["10.0.0.1"]},"portMappings":[{"hostPort":1}]} null`,
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.0.0")
			h.Write("net.d/cap.conf", `{"name":"cap","type":"macvlan",`+capabilities+`}`)
			h.Write("net.d/args.conf", `{"name":"args","type":"macvlan","args":{"cni":{"a":"old","z":1},"other":true}}`)
			conf := keys(fmt.Sprintf(`"delegates":[{"type":"bridge",%[1]s},{"type":"tuning","name":"second",%[1]s}]`, capabilities), annotated(tt.selection, tt.runtime...))
			h.mustRun("ADD", conf)
			nodetest.Equal(t, "arguments", h.arguments(), tt.want)
			// CHECK and DEL use the same arguments, without any annotation.
			h.Trace()
			h.mustRun("CHECK", bridge)
			nodetest.Equal(t, "arguments of CHECK", h.arguments(), tt.want)
			h.Trace()
			h.removed()
			nodetest.Equal(t, "arguments of DEL", h.arguments(), []string{tt.want[2], tt.want[1], tt.want[0]})
		})
	}
}

// Older plugins read addresses from CNI_ARGS. They get them there with legacyArgs, which
// configurations of Multus have on, and need no capability then. The same holds for a network
// that a request attaches to a running container. DEL has the same arguments.
func TestLegacyArgs(t *testing.T) {
	t.Parallel()
	const asked = `[{"name":"fast","ips":["10.9.1.5/24","fd00::5"],"mac":"02:00:00:00:00:01"},{"name":"fast"}]`
	with := &wire.Attributes{IPs: []string{"10.9.1.5/24", "fd00::5"}, MAC: "02:00:00:00:00:01"}
	for _, tt := range []struct {
		typ, keys string
		on        bool
	}{
		{"multinet", `"legacyArgs":true`, true},
		{"multinet", `"x":1`, false},
		{"multus", `"x":1`, true},
		{"multus", `"legacyArgs":false`, false},
	} {
		h := newHost(t, "1.0.0")
		conf := func(more ...string) string {
			return strings.Replace(h.conf(keys(append(more, bridge, tt.keys)...)), `"multinet"`, `"`+tt.typ+`"`, 1)
		}
		withArgs := func(a *skel.CmdArgs) { a.Args = "IP=1.2.3.4;K=v" }
		selected := h.call("ADD", conf(annotated(asked)), withArgs)
		if !tt.on {
			h.WantTrace()
			nodetest.OK(t, h.call("ADD", conf(), withArgs))
		}
		requested := Secondary([]byte(conf()), with).Do(t.Context(), h.Process, delegate.CommandAdd, skel.CmdArgs{
			ContainerID: "c1", IfName: "hot0", Args: "IP=1.2.3.4;K=v", StdinData: []byte(`{"name":"later","type":"macvlan"}`),
		})
		if !tt.on {
			nodetest.Fails(t, selected, 7, `"ips"`, "capabilities")
			nodetest.Fails(t, requested, 7, `"ips"`)
			h.WantTrace("ADD bridge eth0")
			continue
		}
		nodetest.OK(t, errors.Join(selected, requested))
		h.mustRun("DEL", bridge)
		var got []string
		for _, c := range h.Exec.Calls() {
			got = append(got, c.Args)
		}
		const legacy = "K=v;IP=10.9.1.5/24,fd00::5;MAC=02:00:00:00:00:01"
		nodetest.Equal(t, "CNI_ARGS", got, []string{"IP=1.2.3.4;K=v", legacy, "K=v", legacy, legacy, "K=v", legacy, "IP=1.2.3.4;K=v"})
	}
}

// arguments are runtimeConfig and args of each call since the last trace.
func (h *host) arguments() (all []string) {
	h.Helper()
	for _, c := range h.Since() {
		in := struct{ RuntimeConfig, Args json.RawMessage }{json.RawMessage("null"), json.RawMessage("null")}
		nodetest.OK(h, json.Unmarshal(c.Stdin, &in))
		all = append(all, string(in.RuntimeConfig)+" "+string(in.Args))
	}
	return all
}

// If the default route cannot be moved, the ADD is undone. Here the network namespace
// does not exist.
func TestFailureToMoveDefaultRouteUndoesADD(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0")
	err := h.run("ADD", keys(bridge, annotated(`[{"name":"fast","default-route":["10.9.1.1"]}]`)))
	nodetest.Fails(t, err, 999, `"multi"`, "eth0", "multinet/default-route", "10.9.1.1")
	h.WantTrace("ADD bridge eth0", "DEL bridge eth0")
	h.clean()
	nodetest.Equal(t, "printed", h.Printed.String(), "")
	// An empty list of gateways asks for nothing.
	h.mustRun("ADD", keys(bridge, annotated(`[{"name":"fast","default-route":[]}]`)))
}

// Results of every version show the new default route. All else in a result stays
// unchanged.
func TestResultsSayWhereTheDefaultRouteLeads(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, gateway string
		before, want  []string // the second one is chosen
	}{
		{
			"moved", "10.9.1.1",
			[]string{`{"cniVersion":"1.0.0","routes":[{"dst":"0.0.0.0/0","gw":"10.9.0.1"},{"dst":"10.0.0.0/8"}],"x":1.0}`, `{"cniVersion":"1.0.0"}`, `{"cniVersion":"1.0.0"}`},
			[]string{`{"cniVersion":"1.0.0","routes":[{"dst":"10.0.0.0/8"}],"x":1.0}`, `{"cniVersion":"1.0.0","routes":[{"dst":"0.0.0.0/0","gw":"10.9.1.1"}]}`, `{"cniVersion":"1.0.0"}`},
		},
		{
			"the other family stays", "fd00::1",
			[]string{`{"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"},{"dst":"::0/0"},{"dst":"fd00::/8"}]}`, `{"routes":null}`},
			[]string{`{"routes":[{"dst":"0.0.0.0/0"},{"dst":"fd00::/8"}]}`, `{"routes":[{"dst":"::/0","gw":"fd00::1"}]}`},
		},
		{
			"unmasked", "10.9.1.1",
			[]string{`{"routes":[{"dst":"10.1.2.3/0"},{"dst":5},7,{"dst":"x"}]}`, `{}`},
			[]string{`{"routes":[{"dst":5},7,{"dst":"x"}]}`, `{"routes":[{"dst":"0.0.0.0/0","gw":"10.9.1.1"}]}`},
		},
		{
			"those of other tables stay", "10.9.1.1",
			[]string{
				`{"cniVersion":"1.1.0","routes":[{"dst":"0.0.0.0/0","table":100},{"dst":"0.0.0.0/0","table":254},{"dst":"0.0.0.0/0","table":0},{"dst":"0.0.0.0/0","table":null},{"dst":"0.0.0.0/0","table":253}]}`,
				`{"cniVersion":"1.1.0","routes":[{"dst":"0.0.0.0/0","gw":"10.9.1.9","table":100}]}`,
			},
			[]string{
				`{"cniVersion":"1.1.0","routes":[{"dst":"0.0.0.0/0","table":100},{"dst":"0.0.0.0/0","table":253}]}`,
				`{"cniVersion":"1.1.0","routes":[{"dst":"0.0.0.0/0","gw":"10.9.1.9","table":100},{"dst":"0.0.0.0/0","gw":"10.9.1.1"}]}`,
			},
		},
		{
			"in old results", "10.9.1.1",
			[]string{
				`{"cniVersion":"0.2.0","ip4":{"ip":"10.9.0.2/24","routes":[{"dst":"10.0.0.0/8"},{"dst":"0.0.0.0/0","gw":"10.9.0.1"}]},"ip6":{"ip":"fd00::2/64","routes":[{"dst":"::/0"}]}}`,
				`{"cniVersion":"0.1.0","ip4":{"ip":"10.9.1.2/24","x":1.0}}`,
				`{"cniVersion":"0.2.0","dns":{},"ip4":null,"routes":[{"dst":"0.0.0.0/0"}]}`,
			},
			[]string{
				`{"cniVersion":"0.2.0","ip4":{"ip":"10.9.0.2/24","routes":[{"dst":"10.0.0.0/8"}]},"ip6":{"ip":"fd00::2/64","routes":[{"dst":"::/0"}]}}`,
				`{"cniVersion":"0.1.0","ip4":{"ip":"10.9.1.2/24","routes":[{"dst":"0.0.0.0/0","gw":"10.9.1.1"}],"x":1.0}}`,
				`{"cniVersion":"0.2.0","dns":{},"ip4":null,"routes":[{"dst":"0.0.0.0/0"}]}`, // "routes" means nothing there
			},
		},
		{
			"in old results, IPv6", "fd00::1",
			[]string{`{"cniVersion":"0.1.0","ip4":{"routes":[{"dst":"0.0.0.0/0"}]},"ip6":{"ip":"fd00::2/64","routes":[{"dst":"::/0"}]}}`, `{"cniVersion":"0.1.0","ip4":{"ip":"10.9.1.2/24"}}`},
			[]string{`{"cniVersion":"0.1.0","ip4":{"routes":[{"dst":"0.0.0.0/0"}]},"ip6":{"ip":"fd00::2/64","routes":[]}}`, `{"cniVersion":"0.1.0","ip4":{"ip":"10.9.1.2/24"}}`},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for i, r := range tt.before {
				revised, err := revise(json.RawMessage(r), netip.MustParseAddr(tt.gateway), i == 1)
				nodetest.OK(t, err)
				got = append(got, string(revised))
			}
			nodetest.Equal(t, "results", got, tt.want)
		})
	}
}

// The configuration says how many networks a pod may select; the review of the pod says the
// same as its ADD, before anything is looked up.
func TestSelectionsOfAPodAreLimited(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		key    string
		n      int
		code   uint
		saying string
	}{
		"by default":       {``, 64, 0, ""},
		"too many":         {``, 65, 7, "65 networks are selected, at most 64 are allowed"},
		"raised":           {`"maxSelections":100,`, 100, 0, ""},
		"lowered":          {`"maxSelections":1,`, 2, 7, "2 networks are selected, at most 1 are allowed"},
		"the case of keys": {`"MaxSelections":1,`, 2, 7, "at most 1 are allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.1.0")
			h.clusterOf(map[string]string{"ns/blue": `{"type":"macvlan"}`})
			annotation := "blue" + strings.Repeat(",blue", tt.n-1)
			add := h.run("ADD", tt.key+keys(bridge, annotated(annotation)), podOf("ns"))
			nodetest.Fails(t, add, tt.code, tt.saying)
			same(t, add, h.reviewer(tt.key+bridge).Pod("ns", map[string]string{nad.NetworksAnnotation: annotation}))
			if tt.code != 0 {
				h.WantTrace()
				h.clean()
				nodetest.Equal(t, "asked", h.asked, nil)
			}
		})
	}
}

// A definition that is selected several times is asked for and parsed once, and the
// annotations of the pod are recorded once.
func TestEqualSelectionsShareTheirDefinition(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	h.clusterOf(map[string]string{"ns/blue": `{"type":"macvlan"}`, "ns/red": `{"type":"macvlan"}`})
	mac := func(i int) string { return fmt.Sprintf(`{"name":"blue","cni-args":{"i":%d}}`, i) }
	h.mustRun("ADD", keys(bridge, annotated("["+mac(1)+","+mac(2)+`,{"name":"red"},`+mac(3)+"]")), podOf("ns"))
	nodetest.Equal(t, "asked", h.asked, []string{"definition selected ns/blue", "definition selected ns/red", "attached c1 eth0 ns/web c1"})
	for i, want := range []string{`"i":1`, `"i":2`, ``, `"i":3`} {
		if text, _ := h.recorded("c1").Attached[i+1].Network.MarshalJSON(); !strings.Contains(string(text), want) || want == "" && strings.Contains(string(text), `"i"`) {
			t.Errorf("%d: %s, want %s", i, text, want)
		}
	}
	for i, a := range h.recorded("c1").Attached {
		if _, has := a.CapabilityArgs[plugin.PodAnnotationsCapability]; has != (i == 0) {
			t.Errorf("%s: annotations %t", a.IfName, has)
		}
	}
	h.removed()
}

// defaultNetwork is the runtimeConfig of a pod that chooses its primary network, with
// more capability arguments.
func defaultNetwork(selection string, more ...string) string {
	r := strings.NewReplacer(`"`, `\"`)
	conf := annotatedWith("v1.multus-cni.io/default-network", `"`+r.Replace(selection)+`"`)
	for _, m := range more {
		conf = strings.Replace(conf, `{"io.`, `{`+m+`,"io.`, 1)
	}
	return conf
}

// A pod of any namespace may replace its primary network. Its attributes become
// capability arguments of the primary, and win over those of the runtime.
func TestPodReplacesItsPrimaryNetwork(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	h.Write("net.d/kube-system/vlan.conf", `{"name":"vlan","type":"macvlan",`+capabilities+`,"args":{"cni":{"a":1,"z":2}}}`)
	h.mustRun("ADD", keys(`"clusterNetwork":"absent"`, defaultNetwork(
		`[{"name":"vlan","mac":"02:00:00:00:00:01","interface":"eth0","cni-args":{"a":3}}]`, `"mac":"02:00:00:00:00:09","portMappings":[{"hostPort":1}]`)), podOf("a"))
	nodetest.Equal(t, "arguments", h.arguments(), []string{`{"mac":"02:00:00:00:00:01","portMappings":[{"hostPort":1}]} {"cni":{"a":3,"z":2}}`})
	h.WantTrace("ADD macvlan eth0")
	nodetest.Equal(t, "origins", h.origins(), []string{`eth0 {"use":"pod-default","definition":"kube-system/vlan","selection":{"name":"vlan","interface":"eth0","mac":"02:00:00:00:00:01","cni-args":{"a":3}}}`})
	h.removed()
}

// Which device of the node a pod may have is not for the pod to say, unless a file of the
// node declares the capability: it is the administrator's.
func TestPodsChooseNoDevice(t *testing.T) {
	t.Parallel()
	selection := annotated(`[{"name":"vf","deviceID":"0000:03:02.0"}]`)
	h := newHost(t, "1.0.0")
	h.Write("net.d/a/vf.conf", `{"type":"macvlan",`+capabilities+`}`)
	h.refuses(keys(bridge, selection), 7, []string{`"vf"`, `"deviceID"`, "allowDeviceID"}, podOf("a"))
	h.Write("net.d/vf.conf", `{"name":"vf","type":"macvlan",`+capabilities+`}`)
	for i, keysOf := range []string{selection, keys(`"allowDeviceID":true`, selection)} {
		h.mustRun("ADD", keys(bridge, keysOf), podOf([]string{"b", "a"}[i]))
		if got := h.arguments(); got[1] != `{"deviceID":"0000:03:02.0"} null` {
			t.Errorf("arguments %q", got)
		}
		h.removed()
		h.Trace()
	}
}

func (h *host) reviewer(keys string) *Reviewer {
	h.Helper()
	r, err := NewReviewer([]byte(h.conf(keys)))
	nodetest.OK(h, err)
	return r
}

// same fails unless the review refuses what the ADD refuses, with its code and in its
// words.
func same(t *testing.T, add, review error) {
	t.Helper()
	switch {
	case (add == nil) != (review == nil) || status.Code(add) != status.Code(review):
		t.Errorf("ADD: %v\nreview: %v", add, review)
	case add != nil && !strings.Contains(add.Error(), review.Error()):
		t.Errorf("ADD: %v\nreview: %v", add, review)
	}
}

// A definition in multusNamespace may be for the configuration, which may have other types,
// and files.
func TestReviewAllowsWhatTheConfigurationMayName(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0")
	r := h.reviewer(keys(bridge, `"allowedTypes":{"nad":["macvlan"],"standing":["bridge"]},"multusNamespace":"net"`))
	for namespace, code := range map[string]uint{"net": 0, "a": 7, "kube-system": 7} {
		for typ, other := range map[string]uint{"bridge": code, "macvlan": 0, "tuning": 7, "multinet": 7} {
			err := r.Definition(nad.Definition{Ref: nad.Ref{Namespace: namespace, Name: "x"}, Config: `{"type":"` + typ + `"}`})
			nodetest.Code(t, err, other)
		}
	}
	r = h.reviewer(keys(bridge, `"namespaceIsolation":true,"multusNamespace":"net"`))
	for namespace, code := range map[string]uint{"net": 0, "a": 7, "default": 7} {
		err := r.Definition(nad.Definition{Ref: nad.Ref{Namespace: namespace, Name: "x"}})
		nodetest.Code(t, err, code)
	}
}
