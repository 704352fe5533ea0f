package multinet

import (
	"encoding/json"
	"errors"
	"fmt"
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
			"a claim of addresses, of a plugin without", `[{"name":"args","ipam-claim-reference":"web"}]`, nil,
			[]string{"null null", "null null", `null {"cni":{"a":"old","ipam-claim-reference":"web","z":1},"other":true}`},
		},
		{
			"the runtime's own", "cap",
			[]string{
				`"portMappings":[{"hostPort":8080}]`, `"mac":"02:00:00:00:00:09"`, `"ipRanges":[[]]`, `"dns":{"servers":["10.0.0.1"]}`,
				`"bandwidth":{"ingressRate":1}`, `"ips":["10.0.0.5/24"]`, `"infinibandGUID":"02:00:00:00:00:00:00:01"`, `"deviceID":"0000:03:02.0"`,
			},
			[]string{
				`{"bandwidth":{"ingressRate":1},"deviceID":"0000:03:02.0","dns":{"servers":["10.0.0.1"]},"infinibandGUID":"02:00:00:00:00:00:00:01",` +
					`"ipRanges":[[]],"ips":["10.0.0.5/24"],"mac":"02:00:00:00:00:09","portMappings":[{"hostPort":8080}]} null`,
				`{"dns":{"servers":["10.0.0.1"]}} null`,
				`{"dns":{"servers":["10.0.0.1"]}} null`,
			},
		},
		{
			"both", `[{"name":"cap","portMappings":[{"hostPort":1}]}]`,
			[]string{`"portMappings":[{"hostPort":8080}]`},
			[]string{`{"portMappings":[{"hostPort":8080}]} null`, "null null", `{"portMappings":[{"hostPort":1}]} null`},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.0.0")
			h.Write("net.d/cap.conf", `{"name":"cap","type":"macvlan",`+capabilities+`}`)
			h.Write("net.d/args.conf", `{"name":"args","type":"macvlan","args":{"cni":{"a":"old","z":1},"other":true}}`)
			conf := keys(fmt.Sprintf(`"delegates":[{"type":"bridge",%[1]s},{"type":"tuning","name":"second",%[1]s}]`, capabilities), annotated(tt.selection, tt.runtime...))
			h.mustRun(t, "ADD", conf)
			got := arguments(t, h)
			nodetest.Equal(t, "arguments", got, tt.want)
			// CHECK and DEL use the same arguments, without any annotation.
			h.trace()
			h.mustRun(t, "CHECK", bridge)
			nodetest.Equal(t, "arguments of CHECK", arguments(t, h), tt.want)
			h.trace()
			h.mustRun(t, "DEL", bridge)
			if got := arguments(t, h); len(got) != 3 || got[0] != tt.want[2] || got[2] != tt.want[0] {
				t.Errorf("arguments of DEL %q, of ADD %q", got, tt.want)
			}
			h.clean(t)
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
		{"multus-shim", `"x":1`, true},
		{"multus", `"legacyArgs":false`, false},
	} {
		h := newHost(t, "1.0.0")
		conf := func(more ...string) string {
			return strings.Replace(h.conf(keys(append(more, bridge, tt.keys)...)), `"multinet"`, `"`+tt.typ+`"`, 1)
		}
		withArgs := func(a *skel.CmdArgs) { a.Args = "IP=1.2.3.4;K=v" }
		selected := h.call(t.Context(), "ADD", conf(annotated(asked)), withArgs)
		if !tt.on {
			wantTrace(t, h)
			nodetest.OK(t, h.call(t.Context(), "ADD", conf(), withArgs))
		}
		requested := Secondary([]byte(conf()), with).Do(t.Context(), h.process(), delegate.CommandAdd, skel.CmdArgs{
			ContainerID: "c1", IfName: "hot0", Args: "IP=1.2.3.4;K=v", StdinData: []byte(`{"name":"later","type":"macvlan"}`),
		})
		if !tt.on {
			nodetest.Fails(t, selected, 7, `"ips"`, "capabilities")
			nodetest.Fails(t, requested, 7, `"ips"`)
			wantTrace(t, h, "ADD bridge eth0")
			continue
		}
		nodetest.OK(t, errors.Join(selected, requested))
		h.mustRun(t, "DEL", bridge)
		var got []string
		for _, c := range h.Exec.Calls() {
			got = append(got, c.Args)
		}
		const legacy = "K=v;IP=10.9.1.5/24,fd00::5;MAC=02:00:00:00:00:01"
		nodetest.Equal(t, "CNI_ARGS", got, []string{"IP=1.2.3.4;K=v", legacy, "K=v", legacy, legacy, "K=v", legacy, "IP=1.2.3.4;K=v"})
	}
	h := newHost(t, "1.0.0")
	for _, selection := range []string{ // as KubeVirt writes them
		`[{"interface":"pod37a8eec1ce1","mac":"02:00:00:00:00:01","name":"fast"}]`, `[{"name":"fast","ips":["10.0.0.1/24"]}]`,
	} {
		h.refuses(t, keys(bridge, annotated(selection)), 7, []string{"capabilities", `"legacyArgs":true`})
	}
	nodetest.Fails(t, h.run(t, "ADD", keys(bridge, `"legacyArgs":true`, annotated(`[{"name":"fast","bandwidth":{"ingressRate":1}}]`))), 7, `"bandwidth"`)
}

// arguments are runtimeConfig and args of each call since the last trace.
func arguments(t *testing.T, h *host) []string {
	t.Helper()
	var all []string
	for _, c := range h.Exec.Calls()[h.seen:] {
		var in struct{ RuntimeConfig, Args json.RawMessage }
		nodetest.OK(t, json.Unmarshal(c.Stdin, &in))
		text := func(raw json.RawMessage) string {
			if raw == nil {
				return "null"
			}
			return string(raw)
		}
		all = append(all, text(in.RuntimeConfig)+" "+text(in.Args))
	}
	return all
}

// A pod may have no annotations, or not the one that selects networks.
func TestNothingSelected(t *testing.T) {
	t.Parallel()
	for _, conf := range []string{
		`"runtimeConfig":null`,
		`"runtimeConfig":{}`,
		`"runtimeConfig":{"io.kubernetes.cri.pod-annotations":null}`,
		`"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{}}`,
		`"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"other":"x"}}`,
		`"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"k8s.v1.cni.cncf.io/networks":null}}`,
		annotated(""),
		annotated(" "),
		annotated("[]"),
	} {
		h := newHost(t, "1.0.0")
		h.mustRun(t, "ADD", keys(bridge, conf))
		wantTrace(t, h, "ADD bridge eth0")
	}
}

// If the default route cannot be moved, the ADD is undone. Here the network namespace
// does not exist.
func TestFailureToMoveDefaultRouteUndoesADD(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0")
	err := h.run(t, "ADD", keys(bridge, annotated(`[{"name":"fast","default-route":["10.9.1.1"]}]`)))
	nodetest.Fails(t, err, 999, `"multi"`, "eth0", "multinet/default-route", "10.9.1.1")
	wantTrace(t, h, "ADD bridge eth0", "DEL bridge eth0")
	h.clean(t)
	if h.printed.Len() > 0 {
		t.Errorf("printed %s", h.printed.String())
	}
	// An empty list of gateways asks for nothing.
	h.mustRun(t, "ADD", keys(bridge, annotated(`[{"name":"fast","default-route":[]}]`)))
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
		"raised, too many": {`"maxSelections":100,`, 101, 7, "101 networks are selected, at most 100 are allowed"},
		"lowered":          {`"maxSelections":1,`, 2, 7, "2 networks are selected, at most 1 are allowed"},
		"the case of keys": {`"MaxSelections":1,`, 2, 7, "at most 1 are allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.1.0")
			var asked []string
			h.cluster = clusterOf(&asked, map[string]string{"ns/blue": `{"type":"macvlan"}`})
			annotation := "blue" + strings.Repeat(",blue", tt.n-1)
			add := h.run(t, "ADD", tt.key+keys(bridge, annotated(annotation)), podOf("ns"))
			nodetest.Fails(t, add, tt.code, tt.saying)
			same(t, add, h.reviewer(t, tt.key+bridge).Pod("ns", map[string]string{nad.NetworksAnnotation: annotation}))
			if tt.code != 0 {
				wantTrace(t, h)
				h.clean(t)
				if asked != nil {
					t.Errorf("asked %q", asked)
				}
			}
		})
	}
	for value, code := range map[string]uint{"0": 7, "-1": 7, "1025": 7, "1.5": 6, `"64"`: 6, "[]": 6, "1e99": 6} {
		h := newHost(t, "1.1.0")
		nodetest.Fails(t, h.run(t, "ADD", keys(bridge, `"maxSelections":`+value)), code, `"maxSelections"`)
		wantTrace(t, h)
	}
}

// A definition that is selected several times is asked for and parsed once, and the
// annotations of the pod are recorded once.
func TestEqualSelectionsShareTheirDefinition(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	var asked []string
	h.cluster = clusterOf(&asked, map[string]string{"ns/blue": `{"type":"macvlan"}`, "ns/red": `{"type":"macvlan"}`})
	mac := func(i int) string { return fmt.Sprintf(`{"name":"blue","cni-args":{"i":%d}}`, i) }
	h.mustRun(t, "ADD", keys(bridge, annotated("["+mac(1)+","+mac(2)+`,{"name":"red"},`+mac(3)+"]")), podOf("ns"))
	want := []string{"definition selected ns/blue", "definition selected ns/red", "attached c1 eth0 ns/web c1"}
	nodetest.Equal(t, "asked", asked, want)
	for i, want := range []string{`"i":1`, `"i":2`, ``, `"i":3`} {
		if text, _ := recorded(t, h, "c1").Attached[i+1].Network.MarshalJSON(); !strings.Contains(string(text), want) || want == "" && strings.Contains(string(text), `"i"`) {
			t.Errorf("%d: %s, want %s", i, text, want)
		}
	}
	for i, a := range recorded(t, h, "c1").Attached {
		if _, has := a.CapabilityArgs[plugin.PodAnnotationsCapability]; has != (i == 0) {
			t.Errorf("%s: annotations %t", a.IfName, has)
		}
	}
	h.mustRun(t, "DEL", bridge, podOf("ns"))
	h.clean(t)
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

// written has definitions in several namespaces.
func written(t *testing.T) *host {
	t.Helper()
	h := newHost(t, "1.1.0")
	for _, namespace := range []string{"a", "b", "default", "shared", "kube-system", "net"} {
		h.Write("net.d/"+namespace+"/blue.conf", `{"name":"`+namespace+`","type":"macvlan"}`)
	}
	return h
}

// With isolation a pod reaches the definitions of its own namespace and of the global ones,
// for its primary too. All else is refused before anything is looked
// up, with both namespaces in the error: whether it exists makes no difference.
func TestIsolation(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, keys string
		want       string // the namespace; empty if the error must name both
	}{
		{"own", annotated("blue"), "a"},
		{"global by default", annotated("default/blue"), "default"},
		{"global", keys(`"globalNamespaces":"x, shared "`, annotated("shared/blue")), "shared"},
		{"another", annotated("b/blue"), ""},
		{"another, which does not exist", annotated("b/absent"), ""},
		{"the second one", annotated("blue,b/blue"), ""},
		{"primary of multusNamespace", defaultNetwork("blue"), ""},
		{"primary of multusNamespace, which is global", keys(`"globalNamespaces":"kube-system"`, defaultNetwork("blue")), "kube-system"},
		{"primary of another multusNamespace", keys(`"multusNamespace":"net"`, defaultNetwork("blue")), ""},
		{"primary of networkNamespace", keys(`"networkNamespace":"shared","globalNamespaces":"shared"`, defaultNetwork("blue")), "shared"},
		{"primary of another namespace", defaultNetwork("b/blue"), ""},
		{"primary of the configuration", `"clusterNetwork":"blue"`, "kube-system"}, // the administrator's is not checked
		{"networks of the configuration", `"defaultNetworks":["fast","blue"]`, "kube-system"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := written(t)
			conf := keys(bridge, `"namespaceIsolation":true`, tt.keys)
			err := h.run(t, "ADD", conf, podOf("a"))
			if tt.want == "" {
				nodetest.Fails(t, err, 7, "not allowed", "namespaceIsolation", `namespace "a"`)
				wantTrace(t, h)
				h.clean(t)
				return
			}
			nodetest.OK(t, err)
			if got := strings.Join(h.attached(t), ", "); !strings.Contains(got, " "+tt.want) {
				t.Errorf("attached %s, want network %s", got, tt.want)
			}
		})
	}
}

// A file has no namespace, so that no pod may select it, by its name or by an empty
// definition. The administrator's own lists may name both.
func TestIsolationKeepsPodsFromFiles(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0")
	nodetest.Fails(t, h.run(t, "ADD", keys(bridge, `"namespaceIsolation":true`, annotated("fast")), podOf("a")), 7, "a/fast", "no such network")
	h.Write("net.d/a/storage.conf", "")
	h.Write("net.d/kube-system/storage.conf", "")
	for _, annotation := range []string{annotated("storage"), defaultNetwork("a/storage"), annotated("fast,storage")} {
		nodetest.Fails(t, h.run(t, "ADD", keys(bridge, `"namespaceIsolation":true`, annotation), podOf("a")), 7)
	}
	nodetest.Fails(t, h.run(t, "ADD", keys(bridge, `"namespaceIsolation":true`, annotated("storage")), podOf("a")), 7,
		"NAD a/storage", "spec.config", "not allowed", "namespaceIsolation", "files of the node")
	wantTrace(t, h)
	h.clean(t)
	h.mustRun(t, "ADD", `"namespaceIsolation":true,"clusterNetwork":"fast","defaultNetworks":["storage"]`, podOf("a"))
	wantTrace(t, h, "ADD macvlan eth0", "ADD macvlan net1", "ADD tuning net1")
}

// The pods of system namespaces get no default networks. It is the namespace of the pod
// that counts, not its name.
func TestSystemNamespaces(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, keys string
		pod        func(*skel.CmdArgs)
		all        bool
	}{
		{"a pod", ``, podOf("a"), true},
		{"kube-system", ``, podOf("kube-system"), false},
		{"of the configuration", `,"systemNamespaces":["a","b"]`, podOf("b"), false},
		{"outside of Kubernetes", `,"systemNamespaces":["a"]`, func(a *skel.CmdArgs) { a.Args = "" }, true},
	} {
		for _, conf := range []string{
			`"delegates":[{"type":"bridge"},{"type":"tuning"}]`, `"clusterNetwork":"other","defaultNetworks":["fast"]`,
		} {
			h := newHost(t, "1.0.0")
			h.mustRun(t, "ADD", conf+tt.keys+","+annotated("storage@own"), tt.pod)
			got := strings.Join(h.trace(), ", ")
			if strings.Contains(got, "net1") != tt.all || !strings.HasPrefix(got, "ADD bridge eth0") || !strings.HasSuffix(got, "ADD macvlan own, ADD tuning own") {
				t.Errorf("%s: %s", tt.name, got)
			}
		}
	}
}

// A pod of any namespace may replace its primary network. Its attributes become
// capability arguments of the primary, and win over those of the runtime.
func TestPodReplacesItsPrimaryNetwork(t *testing.T) {
	t.Parallel()
	for _, namespace := range []string{"a", "kube-system"} {
		h := newHost(t, "1.1.0")
		h.Write("net.d/kube-system/vlan.conf", `{"name":"vlan","type":"macvlan",`+capabilities+`,"args":{"cni":{"a":1,"z":2}}}`)
		conf := keys(`"clusterNetwork":"absent"`, defaultNetwork(
			`[{"name":"vlan","mac":"02:00:00:00:00:01","interface":"eth0","cni-args":{"a":3}}]`, `"mac":"02:00:00:00:00:09","portMappings":[{"hostPort":1}]`))
		h.mustRun(t, "ADD", conf, podOf(namespace))
		nodetest.Equal(t, "arguments", arguments(t, h), []string{`{"mac":"02:00:00:00:00:01","portMappings":[{"hostPort":1}]} {"cni":{"a":3,"z":2}}`})
		wantTrace(t, h, "ADD macvlan eth0")
		want := []string{`eth0 {"use":"pod-default","definition":"kube-system/vlan","selection":{"name":"vlan","interface":"eth0","mac":"02:00:00:00:00:01","cni-args":{"a":3}}}`}
		nodetest.Equal(t, "origins", h.origins(t), want)
		h.mustRun(t, "CHECK", conf)
		h.mustRun(t, "DEL", conf)
		h.clean(t)
	}
}

func TestBadDefaultNetwork(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		keys string
		code uint
		says []string
	}{
		"another interface":  {defaultNetwork("blue@data0"), 7, []string{"default-network", `"data0"`, `"eth0"`}},
		"of the wrong type":  {annotatedWith("v1.multus-cni.io/default-network", `["blue"]`), 6, []string{"default-network"}},
		"absent":             {defaultNetwork("absent"), 7, []string{"default-network", "kube-system/absent"}},
		"what nobody serves": {defaultNetwork(`[{"name":"blue","ips":["10.0.0.1"]}]`), 7, []string{"default-network", `"ips"`, "capabilities"}},
		"a device":           {defaultNetwork(`[{"name":"blue","deviceID":"0000:03:02.0"}]`), 7, []string{"deviceID", "allowDeviceID"}},
		"not allowed":        {keys(`"podDefaultNetwork":false`, defaultNetwork("blue")), 7, []string{"podDefaultNetwork"}},
		"a default route each": {
			strings.Replace(defaultNetwork(`[{"name":"blue","default-route":["10.9.1.1"]}]`), `{"v1`, `{"k8s.v1.cni.cncf.io/networks":"[{\"name\":\"fast\",\"default-route\":[\"10.9.1.2\"]}]","v1`, 1),
			7,
			[]string{"default-network", "default-route"},
		},
	} {
		h := written(t)
		h.refuses(t, keys(bridge, tt.keys), tt.code, tt.says, podOf("a"))
		if name == "not allowed" { // outside of Kubernetes, too
			nodetest.Fails(t, h.run(t, "ADD", keys(bridge, tt.keys)), 7, "podDefaultNetwork")
		}
	}
	h := newHost(t, "1.0.0")
	h.mustRun(t, "ADD", keys(bridge, `"podDefaultNetwork":false`, defaultNetwork(" ")), podOf("a"))
}

// Which device of the node a pod may have is not for the pod to say, unless a file of the
// node declares the capability: it is the administrator's.
func TestPodsChooseNoDevice(t *testing.T) {
	t.Parallel()
	selection := annotated(`[{"name":"vf","deviceID":"0000:03:02.0"}]`)
	h := newHost(t, "1.0.0")
	h.Write("net.d/a/vf.conf", `{"type":"macvlan",`+capabilities+`}`)
	h.refuses(t, keys(bridge, selection), 7, []string{`"vf"`, `"deviceID"`, "allowDeviceID"}, podOf("a"))
	h.Write("net.d/vf.conf", `{"name":"vf","type":"macvlan",`+capabilities+`}`)
	for i, keysOf := range []string{selection, keys(`"allowDeviceID":true`, selection)} {
		h.mustRun(t, "ADD", keys(bridge, keysOf), podOf([]string{"b", "a"}[i]))
		if got := arguments(t, h); got[1] != `{"deviceID":"0000:03:02.0"} null` {
			t.Errorf("arguments %q", got)
		}
		h.mustRun(t, "DEL", bridge, podOf("a"))
		h.trace()
	}
}

func (h *host) reviewer(t *testing.T, keys string) *Reviewer {
	t.Helper()
	r, err := NewReviewer([]byte(h.conf(keys)))
	nodetest.OK(t, err)
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
	r := h.reviewer(t, keys(bridge, `"allowedTypes":{"nad":["macvlan"],"standing":["bridge"]},"multusNamespace":"net"`))
	for namespace, code := range map[string]uint{"net": 0, "a": 7, "kube-system": 7} {
		for typ, other := range map[string]uint{"bridge": code, "macvlan": 0, "tuning": 7, "multinet": 7} {
			err := r.Definition(nad.Definition{Ref: nad.Ref{Namespace: namespace, Name: "x"}, Config: `{"type":"` + typ + `"}`})
			if status.Code(err) != other {
				t.Errorf("%s of %s: code %d, want %d: %v", typ, namespace, status.Code(err), other, err)
			}
		}
	}
	r = h.reviewer(t, keys(bridge, `"namespaceIsolation":true,"multusNamespace":"net"`))
	for namespace, code := range map[string]uint{"net": 0, "a": 7, "default": 7} {
		err := r.Definition(nad.Definition{Ref: nad.Ref{Namespace: namespace, Name: "x"}})
		if status.Code(err) != code {
			t.Errorf("empty, of %s: code %d, want %d: %v", namespace, status.Code(err), code, err)
		}
	}
}
