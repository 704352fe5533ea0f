package multinet

import (
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/internal/nodetest"
)

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
		{"own by name", annotated("a/blue"), "a"},
		{"global by default", annotated("default/blue"), "default"},
		{"global", keys(`"globalNamespaces":"x, shared "`, annotated("shared/blue")), "shared"},
		{"no longer global", keys(`"globalNamespaces":"shared"`, annotated("default/blue")), ""},
		{"another", annotated("b/blue"), ""},
		{"another, which does not exist", annotated("b/absent"), ""},
		{"multusNamespace", annotated("kube-system/blue"), ""},
		{"the second one", annotated("blue,b/blue"), ""},
		{"primary of multusNamespace", defaultNetwork("blue"), ""},
		{"primary of multusNamespace by name", defaultNetwork("kube-system/blue"), ""},
		{"primary of multusNamespace, which is global", keys(`"globalNamespaces":"kube-system"`, defaultNetwork("blue")), "kube-system"},
		{"primary of another multusNamespace", keys(`"multusNamespace":"net"`, defaultNetwork("blue")), ""},
		{"primary of networkNamespace", keys(`"networkNamespace":"net"`, defaultNetwork("blue")), ""},
		{"primary of a global namespace", defaultNetwork("default/blue"), "default"},
		{"primary of the own namespace", defaultNetwork("a/blue"), "a"},
		{"primary of another namespace", defaultNetwork("b/blue"), ""},
		{"primary that does not exist", defaultNetwork("b/absent"), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := written(t)
			conf := keys(bridge, `"namespaceIsolation":true`, tt.keys)
			err := h.run(t, "ADD", conf, podOf("a"))
			if tt.want == "" {
				wantError(t, err, 7, "not allowed", "namespaceIsolation", `namespace "a"`)
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
	wantError(t, h.run(t, "ADD", keys(bridge, `"namespaceIsolation":true`, annotated("fast")), podOf("a")), 7, "a/fast", "no such network")
	h.Write("net.d/a/storage.conf", "")
	h.Write("net.d/kube-system/storage.conf", "")
	for _, annotation := range []string{annotated("storage"), defaultNetwork("a/storage"), annotated("fast,storage")} {
		wantError(t, h.run(t, "ADD", keys(bridge, `"namespaceIsolation":true`, annotation), podOf("a")), 7)
	}
	wantError(t, h.run(t, "ADD", keys(bridge, `"namespaceIsolation":true`, annotated("storage")), podOf("a")), 7,
		"NAD a/storage", "spec.config", "not allowed", "namespaceIsolation", "files of the node")
	wantTrace(t, h)
	h.clean(t)
	h.mustRun(t, "ADD", `"namespaceIsolation":true,"clusterNetwork":"fast","defaultNetworks":["storage"]`, podOf("a"))
	wantTrace(t, h, "ADD macvlan eth0", "ADD macvlan net1", "ADD tuning net1")
}

// What the configuration names is the administrator's, and not checked.
func TestIsolationIsNotForTheConfiguration(t *testing.T) {
	t.Parallel()
	h := written(t)
	h.mustRun(t, "ADD", `"namespaceIsolation":true,"clusterNetwork":"blue","defaultNetworks":["blue","fast"]`, podOf("a"))
	want := []string{"ADD macvlan eth0 kube-system", "ADD macvlan net1 kube-system", "ADD macvlan net2 fast"}
	nodetest.Equal(t, "calls", h.attached(t), want)
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
		{"a pod that is called like it", ``, func(a *skel.CmdArgs) { a.Args = "K8S_POD_NAMESPACE=a;K8S_POD_NAME=kube-system" }, true},
		{"of the configuration", `,"systemNamespaces":["a","b"]`, podOf("b"), false},
		{"kube-system, which the configuration leaves out", `,"systemNamespaces":["a"]`, podOf("kube-system"), true},
		{"none", `,"systemNamespaces":[]`, podOf("kube-system"), true},
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
	for _, tt := range []struct {
		name, keys string
		code       uint
		says       []string
	}{
		{"several", defaultNetwork("blue,blue"), 7, []string{"default-network", "one default network"}},
		{"another interface", defaultNetwork("blue@data0"), 7, []string{"default-network", `"data0"`, `"eth0"`}},
		{"not JSON", defaultNetwork(`[{"name":`), 6, []string{"default-network"}},
		{"of the wrong type", annotatedWith("v1.multus-cni.io/default-network", `["blue"]`), 6, []string{"default-network"}},
		{"absent", defaultNetwork("absent"), 7, []string{"default-network", "kube-system/absent"}},
		{"what nobody serves", defaultNetwork(`[{"name":"blue","ips":["10.0.0.1"]}]`), 7, []string{"default-network", `"ips"`, "capabilities"}},
		{"a device", defaultNetwork(`[{"name":"blue","deviceID":"0000:03:02.0"}]`), 7, []string{"deviceID", "allowDeviceID"}},
		{"not allowed", keys(`"podDefaultNetwork":false`, defaultNetwork("blue")), 7, []string{"podDefaultNetwork"}},
		{
			"a default route each",
			strings.Replace(defaultNetwork(`[{"name":"blue","default-route":["10.9.1.1"]}]`), `{"v1`, `{"k8s.v1.cni.cncf.io/networks":"[{\"name\":\"fast\",\"default-route\":[\"10.9.1.2\"]}]","v1`, 1),
			7,
			[]string{"default-network", "default-route"},
		},
	} {
		for _, pod := range []func(*skel.CmdArgs){podOf("a"), func(*skel.CmdArgs) {}} {
			if slices.Contains([]string{"absent", "what nobody serves", "a device"}, tt.name) {
				pod = podOf("a")
			}
			h := written(t)
			wantError(t, h.run(t, "ADD", keys(bridge, tt.keys), pod), tt.code, tt.says...)
			wantTrace(t, h)
			h.clean(t)
		}
	}
	h := newHost(t, "1.0.0")
	h.mustRun(t, "ADD", keys(bridge, `"podDefaultNetwork":false`, defaultNetwork(" ")), podOf("a"))
}

// Which device of the node a pod may have is not for the pod to say.
func TestPodsChooseNoDevice(t *testing.T) {
	t.Parallel()
	selection := annotated(`[{"name":"vf","deviceID":"0000:03:02.0"}]`)
	h := newHost(t, "1.0.0")
	h.Write("net.d/a/vf.conf", `{"type":"macvlan",`+capabilities+`}`)
	wantError(t, h.run(t, "ADD", keys(bridge, selection), podOf("a")), 7, `"vf"`, `"deviceID"`, "allowDeviceID")
	wantTrace(t, h)
	h.mustRun(t, "ADD", keys(bridge, selection, `"allowDeviceID":true`), podOf("a"))
	if got := arguments(t, h); got[1] != `{"deviceID":"0000:03:02.0"} null` {
		t.Errorf("arguments %q", got)
	}

	// A file of the node is the administrator's, who has declared the capability.
	h = newHost(t, "1.0.0")
	h.Write("net.d/vf.conf", `{"name":"vf","type":"macvlan",`+capabilities+`}`)
	h.mustRun(t, "ADD", keys(bridge, selection), podOf("a"))
}

// The name of a definition is one that Kubernetes would accept, and never a path.
func TestNamesThatNoDefinitionHas(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Blue", "blue_1", "a/blue-", "A/blue", "../blue", "a/../b/blue", "..", "a/..", strings.Repeat("x", 254)} {
		h := written(t)
		wantError(t, h.run(t, "ADD", keys(bridge, annotated(name)), podOf("a")), 7, "name")
		wantTrace(t, h)
	}
}
