package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/thick/wire"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// networkFiles returns a directory with networks in files of all kinds.
func networkFiles(t *testing.T) string {
	t.Helper()
	h := newHost(t, "1.1.0")
	for name, text := range map[string]string{
		"net.d/odd.conf": `{"name":"odd","type":"bridge","args":5}`, "net.d/args.conf": `{"name":"args","type":"tuning","capabilities":{"mac":true}}`,
		"elsewhere/x.conf": `{"name":"elsewhere","type":"bridge"}`, "elsewhere/nameless": `{"type":"bridge"}`,
		"nodes/00-multinet.conflist": `{"name":"own","plugins":[{"type":"multinet"}]}`, "nodes/10-bad.conf": `{`,
		"nodes/20-list.conf": `{"name":"pods","plugins":[{"type":"full"}]}`, "nodes/30-one.conflist": `{"name":"pods","type":"full"}`,
		"nodes/40-third.conf": `{"name":"third","type":"bridge"}`, "nodes/50-fourth.conf": `{"name":"fourth","type":"macvlan"}`,
		"net.d/10-list.conf": `{"name":"pods","plugins":[{"type":"full"}]}`, "net.d/20-pods.conflist": `{"name":"pods","plugins":[{"type":"bridge"}]}`,
		"net.d/storage/10.conf": `{"type":"bridge"}`, // a plugin of the list storage, if it is loaded by name
		"net.d/vendor/10.conf":  `{"type":"macvlan"}`, "net.d/vendor/20.conf": `{"type":"tuning"}`, "net.d/vendor/readme.txt": `{`,
		"net.d/empty/readme.txt": `{`, "net.d/torn/10.conf": `{"type":`, "net.d/fails/10.conf": `{"type":"full"}`, "elsewhere/vendor/10.conf": `{"type":"full"}`, "elsewhere/own/10.conf": `{"type":"tuning"}`,
		"net.d/a/blue.conf": `{"type":"macvlan"}`, "net.d/a/fast.conf": `{"type":"bridge"}`, "net.d/b/red.conflist": `{"name":"of-b","plugins":[{"type":"tuning"}]}`, "net.d/b/other.conf": "",
		"mirror/a/blue.conf": `{"type":"bridge"}`,
		"net.d/a/torn.conf":  `{`, "net.d/a/none.conf": `{"plugins":[]}`, "net.d/a/path.conf": `{"type":"../../bin/sh"}`, "net.d/a/self.conf": `{"type":"multinet"}`,
		"net.d/a/multus.conf": `{"type":"multus"}`, "net.d/a/dir.conf": `{"name":"vendor","loadOnlyInlinedPlugins":false}`, "net.d/a/absent.conf": "",
	} {
		h.Write(name, text)
	}
	for _, namespace := range []string{"b", "default", "shared", "kube-system", "net"} {
		h.Write("net.d/"+namespace+"/blue.conf", `{"name":"`+namespace+`","type":"macvlan"}`)
	}
	return h.Dir
}

// Which networks a container is attached to, with which interfaces: the first one, those of the
// configuration, those that the pod selects, and the auxiliary chain.
func TestWhatIsAttached(t *testing.T) {
	t.Parallel()
	const (
		first    = "ADD bridge eth0 multi"
		two      = `"delegates":[{"type":"bridge"},{"type":"tuning"}]`
		isolated = `"namespaceIsolation":true`
		aux      = `"auxiliaryCNIChainName":`
	)
	a, files := podOf("a"), networkFiles(t)
	for _, tt := range []struct {
		name, keys string
		pod        func(*skel.CmdArgs) // outside of Kubernetes if it is nil
		want       string
	}{
		{"cluster network by name, with the plugins of its directory", `"clusterNetwork":"storage"`, nil, "ADD macvlan eth0 storage, ADD tuning eth0 storage, ADD bridge eth0 storage"},
		{"cluster network by name, from the file that the runtime can use", `"clusterNetwork":"pods"`, nil, "ADD bridge eth0 pods"},
		{"cluster network by path", `"clusterNetwork":"$DIR/elsewhere/x.conf"`, nil, "ADD bridge eth0 elsewhere"},
		{"nameless by path", `"clusterNetwork":"$DIR/elsewhere/nameless"`, nil, first},
		{"cluster network in place of all delegates, whatever they are", `"clusterNetwork":"fast","delegates":[{"type":"multinet"},{"type":5},null]`, nil, "ADD macvlan eth0 fast"},
		{"the first network of a directory that the runtime can use", `"clusterNetwork":"$DIR/nodes"`, nil, "ADD bridge eth0 third"},
		{"default networks", keys(bridge, `"defaultNetworks":["fast","$DIR/elsewhere/x.conf"]`), nil, first + ", ADD macvlan net1 fast, ADD bridge net2 elsewhere"},
		{"default networks before other delegates", keys(two, `"defaultNetworks":["fast"]`), nil, first + ", ADD macvlan net1 fast"},
		{"selected last", keys(`"clusterNetwork":"other","defaultNetworks":["fast"]`, annotated("args")), nil, "ADD bridge eth0 other, ADD macvlan net1 fast, ADD tuning net2 args"},
		{"namespace is nobody's business outside", keys(bridge, annotated("a/fast")), nil, first + ", ADD macvlan net1 fast"},

		{"nothing selected", keys(bridge, `"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"k8s.v1.cni.cncf.io/networks":null}}`), a, first},
		{"an empty selection", keys(bridge, annotated(" ")), a, first},
		{"an empty list", keys(bridge, annotated("null")), a, first},
		{"an empty primary", keys(bridge, `"podDefaultNetwork":false`, defaultNetwork(" null")), a, first},
		{"any case of keys", keys(bridge, annotated(`[{"Name":"blue","InterFace":"data"}]`)), a, first + ", ADD macvlan data blue"},

		{"names by position", keys(bridge, annotated("blue,blue")), a, first + ", ADD macvlan net1 blue, ADD macvlan net2 blue"},
		{"names asked for, of another position", keys(bridge, annotated("blue,blue@net1,blue@data")), a, first + ", ADD macvlan net2 blue, ADD macvlan net1 blue, ADD macvlan data blue"},
		{"old key", keys(bridge, annotated(`[{"name":"blue","interfaceRequest":"old0"}]`)), a, first + ", ADD macvlan old0 blue"},

		{"a definition of another namespace", keys(bridge, annotated("b/red")), a, first + ", ADD tuning net1 of-b"},
		{"a definition before a file of the same name", keys(bridge, annotated("fast")), a, first + ", ADD bridge net1 fast"},
		{"a file, of whatever namespace", keys(bridge, annotated("args, a/other")), a, first + ", ADD tuning net1 args, ADD bridge net2 other"},
		{"a definition that leaves its configuration to a file", keys(bridge, annotated("b/other")), a, first + ", ADD bridge net1 other"},
		{"definitions in a directory of their own", keys(bridge, annotated("blue"), `"nadDir":"$DIR/mirror"`), a, first + ", ADD bridge net1 blue"},

		{"isolated, own", keys(bridge, isolated, annotated("blue")), a, first + ", ADD macvlan net1 blue"},
		{"isolated, global by default", keys(bridge, isolated, annotated("default/blue")), a, first + ", ADD macvlan net1 default"},
		{"isolated, global", keys(bridge, isolated, `"globalNamespaces":"x, shared "`, annotated("shared/blue")), a, first + ", ADD macvlan net1 shared"},
		{"isolated, primary of multusNamespace, which is global", keys(bridge, isolated, `"globalNamespaces":"kube-system"`, defaultNetwork("blue")), a, "ADD macvlan eth0 kube-system"},
		{"isolated, primary of networkNamespace", keys(bridge, isolated, `"networkNamespace":"shared","globalNamespaces":"shared"`, defaultNetwork("blue")), a, "ADD macvlan eth0 shared"},
		{"isolated, the administrator's", keys(isolated, `"clusterNetwork":"blue","defaultNetworks":["fast"]`), a, "ADD macvlan eth0 kube-system, ADD macvlan net1 fast"},

		{"a pod of a system namespace", keys(two, annotated("args@own")), podOf("kube-system"), first + ", ADD tuning own args"},
		{"a pod of a configured one", keys(`"clusterNetwork":"other","defaultNetworks":["fast"],"systemNamespaces":["x","b"]`, annotated("args@own")), podOf("b"), "ADD bridge eth0 other, ADD tuning own args"},
		{"a pod of no system namespace", keys(two, `"systemNamespaces":["b"]`, annotated("args@own")), a, first + ", ADD tuning net1 multi, ADD tuning own args"},

		{"any types", keys(bridge, annotated("blue"), `"allowedTypes":null`), a, first + ", ADD macvlan net1 blue"},
		{"allowed types", keys(bridge, annotated("blue"), `"allowedTypes":["bridge","macvlan"]`), a, first + ", ADD macvlan net1 blue"},
		{"allowed types of one kind of network", keys(bridge, annotated("blue"), `"allowedTypes":{"nad":["macvlan"]}`), a, first + ", ADD macvlan net1 blue"},

		{"the auxiliary chain beside the cluster network", keys(`"clusterNetwork":"$DIR/elsewhere/x.conf"`, aux+`"own"`), a, "ADD bridge eth0 elsewhere, ADD tuning net1 own"},
		{"the auxiliary chain, rather in confDir", keys(`"clusterNetwork":"$DIR/elsewhere/x.conf"`, aux+`"vendor"`), a, "ADD bridge eth0 elsewhere, ADD macvlan net1 vendor, ADD tuning net1 vendor"},
		{"an auxiliary chain without files", keys(bridge, aux+`"empty"`), a, first},
		{"no auxiliary chain", keys(bridge, aux+`""`), a, first},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHostWith(t, "1.1.0", files)
			if tt.pod == nil {
				tt.pod = outside
			}
			h.mustRun("ADD", tt.keys, tt.pod)
			nodetest.Equal(t, "attached", strings.Join(h.attached(), ", "), tt.want)
			h.removed()
		})
	}
}

// A mistake in the configuration, in a definition or in what a pod asks for is found before a
// plugin runs, and so is what may not be. The error has the right code and names file, network and
// key.
func TestRefusedBeforeAPluginRuns(t *testing.T) {
	t.Parallel()
	const aux = `"auxiliaryCNIChainName":`
	nad := func(name string) string { return keys(bridge, annotated(name)) }
	isolated := func(more ...string) string {
		return keys(append([]string{bridge, `"namespaceIsolation":true`}, more...)...)
	}
	files := networkFiles(t)
	not := []string{"not allowed", "namespaceIsolation", `namespace "a"`}
	for _, tt := range []struct {
		name, keys string
		code       uint
		says       []string
	}{
		{"no delegates", ``, 7, []string{`"multi"`, `"delegates"`}},
		{"null delegate", `"delegates":[{"type":"bridge"},null]`, 7, []string{`"multi"`, `"delegates[1]"`}},
		{"delegate without type", `"delegates":[{"type":"bridge"},{"name":"x"}]`, 7, []string{`"delegates[1].plugins"`, `"type"`}},
		{"a type that is a path", `"delegates":[{"type":"../bridge"}]`, 7, []string{`"multi"`, `"../bridge"`}},
		{"a plugin that is missing", `"delegates":[{"type":"bridge"},{"type":"absent","name":"x"}]`, 7, []string{`"x"`, `"absent"`, "not found"}},
		{"itself", `"delegates":[{"type":"bridge"},{"type":"multinet","name":"x"}]`, 7, []string{`"x"`, `"multinet"`, "itself"}},
		{"clusterNetwork of the wrong type", `"clusterNetwork":["x"]`, 6, []string{`"multi"`, `"clusterNetwork"`}},
		{"clusterNetwork that is unknown", `"clusterNetwork":"absent"`, 7, []string{`"multi"`, `clusterNetwork`, `"absent"`, "net.d"}},
		{"clusterNetwork in a bad file", `"clusterNetwork":"bad"`, 7, []string{`"bad"`, "net.d", "bad.conf", `"type"`}},
		{"clusterNetwork in a missing file", `"clusterNetwork":"/absent/x.conf"`, 7, []string{`"multi"`, "clusterNetwork", "/absent/x.conf"}},
		{"clusterNetwork that is a list in a file of one plugin", `"clusterNetwork":"$DIR/nodes/20-list.conf"`, 7, []string{"20-list.conf"}},
		{"clusterNetwork that leads out", `"clusterNetwork":"../x"`, 7, []string{`"../x"`, "clusterNetwork"}},
		{"clusterNetwork that is a directory", `"clusterNetwork":"/"`, 7, []string{`"multi"`, "clusterNetwork", `"/"`}},
		{"clusterNetwork that is the name of a file", `"clusterNetwork":"storage.conflist"`, 7, []string{`file "storage.conflist" defines network "storage": use this name`}},
		{"clusterNetwork that is a file of the runtime", `"runtimeConfDir":"$DIR/nodes","clusterNetwork":"40-third.conf"`, 7, []string{"there is the file $DIR/nodes/40-third.conf: use its path"}},
		{"defaultNetworks that is unknown", keys(bridge, `"defaultNetworks":["fast","absent"]`), 7, []string{`defaultNetworks`, `"absent"`}},
		{"confDir that is missing", `"clusterNetwork":"x","confDir":"/absent"`, 7, []string{"/absent", `"x"`}},
		{"delegatePrivileges that are none", keys(bridge, `"delegatePrivileges":"none"`), 7, []string{`key "delegatePrivileges": "none" for "*" is neither "keep" nor "noNew"`}},
		{"delegatePrivileges of a type that are none", keys(bridge, `"delegatePrivileges":{"*":"noNew","bridge":""}`), 7, []string{`key "delegatePrivileges": "" for "bridge" is neither`}},
		{"readinessTimeout that is no time", keys(bridge, `"readinessTimeout":"soon"`), 6, []string{`"multi"`, `"readinessTimeout"`}},
		{"multusNamespace that is none", keys(bridge, `"multusNamespace":" kube-system"`), 7, []string{`"multi"`, "multusNamespace", `" kube-system" is not a DNS label`}},
		{"two names of multusNamespace", keys(bridge, `"multusNamespace":"a","networkNamespace":"b"`), 7, []string{`"multi"`, "networkNamespace", "multusNamespace"}},
		{"globalNamespaces that are none", keys(bridge, `"globalNamespaces":"a,B"`), 7, []string{`invalid configuration: network "multi", key "globalNamespaces": "B" is not a DNS label`}},
		{"systemNamespaces that are none", keys(bridge, `"systemNamespaces":["kube-system"," x"]`), 7, []string{`"multi"`, `key "systemNamespaces[1]": " x" is not a DNS label`}},
		{"nadDir that is no path", keys(bridge, `"nadDir":"nads"`), 7, []string{`"multi"`, `key "nadDir": "nads" is not an absolute path`}},
		{"a key with two values", keys(bridge, `"CNIDir":"/a"`), 6, []string{`"cniDir"`}},
		{"maxSelections that is too small", keys(bridge, `"maxSelections":0`), 7, []string{`"maxSelections"`}},
		{"maxSelections that is too large", keys(bridge, `"maxSelections":1025`), 7, []string{`"maxSelections"`}},
		{"maxSelections that is no number", keys(bridge, `"maxSelections":1.5`), 6, []string{`"maxSelections"`}},
		{"sharedNetworks that is no list", keys(bridge, `"sharedNetworks":"blue"`), 7, []string{"sharedNetworks"}},
		{"annotations that the runtime does not pass", keys(bridge, `"annotations":"runtime"`), 7, []string{`"annotations"`, `"io.kubernetes.cri.pod-annotations":true`}},
		{"annotations of the API, without a daemon", keys(bridge, `"annotations":"api"`), 7, []string{`"annotations"`, "daemon"}},
		{"annotations of something else", keys(bridge, `"annotations":"kubelet"`), 7, []string{`"annotations"`, "auto, runtime and api"}},

		{"runtimeConfig of the wrong type", keys(bridge, `"runtimeConfig":"x"`), 6, []string{`"multi"`, `"runtimeConfig"`}},
		{"annotations of the wrong type", keys(bridge, `"runtimeConfig":{"io.kubernetes.cri.pod-annotations":["x"]}`), 6, []string{`"multi"`, "runtimeConfig.io.kubernetes.cri.pod-annotations", "not an object"}},
		{"annotation of the wrong type", keys(bridge, annotatedWith("k8s.v1.cni.cncf.io/networks", "5")), 6, []string{`"multi"`, "k8s.v1.cni.cncf.io/networks", "not a string"}},
		{"selected network that is unknown", nad("fast,unknown"), 7, []string{`"unknown"`, "net.d"}},
		{"selected network that is a path", nad(`[{"name":"/etc/x.conf"}]`), 7, []string{"[0].name"}},
		{"a key of a selection with two values", nad(`[{"name":"fast","Name":"storage"}]`), 6, []string{"[0].name", "two values"}},
		{"cni-args that do not fit", nad(`[{"name":"odd","cni-args":{"a":1}}]`), 7, []string{`"odd"`, "plugins[0].args"}},
		{"what no plugin of the network serves", keys(bridge, annotated(`[{"name":"other"},{"name":"storage","mac":"02:00:00:00:00:01"}]`, `"mac":"02:00:00:00:00:09"`)), 7, []string{`"storage"`, `"mac"`, "capabilities"}},
		{"what older plugins served", nad(`[{"interface":"pod37a8eec1ce1","mac":"02:00:00:00:00:01","name":"fast"}]`), 7, []string{"capabilities", `"legacyArgs":true`}}, // as KubeVirt writes it
		{"what no plugin ever served", keys(bridge, `"legacyArgs":true`, annotated(`[{"name":"fast","bandwidth":{"ingressRate":1}}]`)), 7, []string{`"bandwidth"`}},
		{"template for a name", nad("fast@net%d"), 7, []string{`selected network "fast"`, `net%d`}},
		{"a name asked for twice", nad("blue@a,args@a"), 7, []string{`"a"`, `"blue"`, `"args"`}},
		{"the name of the first network", nad("blue@eth0"), 7, []string{`"eth0"`, `"blue"`}},
		{"a name that is taken in the namespace", nad("blue@used0"), 7, []string{`"used0"`, `"blue"`}},

		{"a definition that is no JSON", nad("torn"), 6, []string{"NAD a/torn", "spec.config"}},
		{"a definition without plugins", nad("none"), 7, []string{"NAD a/none", "plugins"}},
		{"a definition of a path", nad("path"), 7, []string{"NAD a/path", "type", "path"}},
		{"a definition of multinet itself", nad("self"), 7, []string{"NAD a/self", "itself"}},
		{"a definition of Multus, which would do what the pod may not", nad("multus"), 7, []string{"NAD a/multus", `"multus"`, "meta-plugin"}},
		{"a definition with the plugins of a directory", nad("dir"), 7, []string{"NAD a/dir"}},
		{"a definition whose file is missing", nad("absent"), 7, []string{"NAD a/absent", "no such network"}},
		{"a file of the auxiliary chain", keys(nad("vendor/10"), aux+`"vendor"`), 7, []string{"10", "no such network"}},
		{"a type that selected networks may not have", keys(nad("blue"), `"allowedTypes":{"nad":["bridge"]}`), 7, []string{"NAD a/blue", "allowedTypes"}},
		{"a type that standing networks may not have", keys(nad("blue"), `"allowedTypes":{"standing":["macvlan"]}`), 7, []string{"allowedTypes"}},
		{"a type that no network may have", keys(nad("blue"), `"allowedTypes":["bridge"]`), 7, []string{"allowedTypes"}},
		{"types of an unknown class, which would restrict nothing", keys(bridge, `"allowedTypes":{"nads":["macvlan"]}`), 6, []string{"allowedTypes"}},
		{"types with two values", keys(bridge, `"allowedTypes":{"nad":["a"],"NAD":["b"]}`), 6, []string{`"allowedTypes`, "two values"}},

		{"isolated, of another namespace", isolated(annotated("b/blue")), 7, not},
		{"isolated, which does not exist", isolated(annotated("b/absent")), 7, not},
		{"isolated, the second one", isolated(annotated("blue,b/blue")), 7, not},
		{"isolated, a primary of multusNamespace", isolated(defaultNetwork("blue")), 7, not},
		{"isolated, a primary of another multusNamespace", isolated(`"multusNamespace":"net"`, defaultNetwork("blue")), 7, not},
		{"isolated, a file, which has no namespace", isolated(annotated("args")), 7, []string{"a/args", "no such network"}},
		{"isolated, a file by an empty definition", isolated(annotated("absent")), 7, []string{"NAD a/absent", "spec.config", "not allowed", "namespaceIsolation", "files of the node"}},

		{"a primary of another interface", keys(bridge, defaultNetwork("blue@data0")), 7, []string{"default-network", `"data0"`, `"eth0"`}},
		{"a primary of the wrong type", keys(bridge, annotatedWith("v1.multus-cni.io/default-network", `["blue"]`)), 6, []string{"default-network"}},
		{"a key of a primary with two values", keys(bridge, defaultNetwork(`[{"name":"fast","Name":"storage"}]`)), 6, []string{"default-network", "[0].name", "two values"}},
		{"a primary that is absent", keys(bridge, defaultNetwork("absent")), 7, []string{"default-network", "kube-system/absent"}},
		{"a primary with what nobody serves", keys(bridge, defaultNetwork(`[{"name":"blue","ips":["10.0.0.1"]}]`)), 7, []string{"default-network", `"ips"`, "capabilities"}},
		{"a primary with a device", keys(bridge, defaultNetwork(`[{"name":"blue","deviceID":"0000:03:02.0"}]`)), 7, []string{"deviceID", "allowDeviceID"}},
		{"a primary that is not allowed", keys(bridge, `"podDefaultNetwork":false`, defaultNetwork("blue")), 7, []string{"podDefaultNetwork"}},
		{
			"a default route each", keys(bridge, strings.Replace(defaultNetwork(`[{"name":"blue","default-route":["10.9.1.1"]}]`), `{"v1`,
				`{"k8s.v1.cni.cncf.io/networks":"[{\"name\":\"fast\",\"default-route\":[\"10.9.1.2\"]}]","v1`, 1)),
			7,
			[]string{"default-network", "default-route"},
		},

		{"an auxiliary chain that cannot be read", keys(bridge, aux+`"torn"`), 6, []string{"auxiliaryCNIChainName", "10.conf"}},
		{"an auxiliary chain that leads out", keys(bridge, aux+`"../net.d/vendor"`), 7, []string{"auxiliaryCNIChainName"}},
		{"an auxiliary chain that fails", keys(bridge, aux+`"fails"`), 107, []string{"fails", "no free device"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHostWith(t, "1.1.0", files)
			h.Taken = []string{"lo", "used0"}
			var says []string
			for _, words := range tt.says {
				says = append(says, strings.ReplaceAll(words, "$DIR", files))
			}
			h.refuses(tt.keys, tt.code, says, podOf("a"))
		})
	}
	h := newHostWith(t, "1.1.0", files)
	h.refuses(keys(bridge, `"podDefaultNetwork":false`, defaultNetwork("fast")), 7, []string{"podDefaultNetwork"}, outside)
}

// The auxiliary chain is one more network of every container, after all others. Its
// first plugin receives an empty result.
func TestAuxiliaryChain(t *testing.T) {
	t.Parallel()
	h := newHostWith(t, "1.1.0", networkFiles(t))
	conf := keys(bridge, `"auxiliaryCNIChainName":"vendor"`, annotated("blue"))
	h.mustRun("ADD", conf, podOf("kube-system"))
	calls := h.Since()
	nodetest.Equal(t, "stdin of the first plugin", nodetest.Stdin(t, calls[2]), map[string]any{
		"cniVersion": "1.1.0", "name": "vendor", "type": "macvlan", "prevResult": map[string]any{"cniVersion": "1.1.0"},
	})
	if prev := nodetest.Stdin(t, calls[3])["prevResult"]; !cmp.Equal(prev.(map[string]any)["ips"], []any{map[string]any{"address": "10.9.1.2/24"}}) {
		t.Errorf("the second plugin was given %v", prev)
	}
	h.WantTrace("ADD bridge eth0", "ADD macvlan net1", "ADD macvlan net2", "ADD tuning net2")
	h.mustRun("STATUS", conf)
	h.WantTrace("STATUS bridge", "STATUS macvlan", "STATUS tuning")
	h.removed()
	h.WantTrace("DEL tuning net2", "DEL macvlan net2", "DEL macvlan net1", "DEL bridge eth0")
}

// binDir is searched before CNI_PATH, and not twice.
func TestPath(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0")
	h.mustRun("ADD", keys(bridge, `"binDir":"/opt/mine"`), func(a *skel.CmdArgs) { a.Path = "/a:/opt/mine:/b" })
	if env := h.Exec.Calls()[0].Env; !slices.Contains(env, "CNI_PATH=/opt/mine:/a:/b") {
		t.Errorf("environment %q", env)
	}
}

// podOf is the pod web in a namespace.
func podOf(namespace string) func(*skel.CmdArgs) {
	return func(a *skel.CmdArgs) {
		a.Args = "K8S_POD_NAME=web;IgnoreUnknown=1;K8S_POD_UID=u1;K8S_POD_NAMESPACE=" + namespace
	}
}

// annotatedWith is the runtimeConfig of a pod with one annotation.
func annotatedWith(annotation, value string) string {
	return `"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"` + annotation + `":` + value + `}}`
}

// attached lists the calls since the last trace with the names of their networks.
func (h *host) attached() (all []string) {
	h.Helper()
	for _, c := range h.Since() {
		all = append(all, fmt.Sprint(c, " ", nodetest.Stdin(h, c)["name"]))
	}
	h.Trace()
	return all
}

// origins are those in the record of the container c1.
func (h *host) origins() (all []string) {
	h.Helper()
	for _, a := range h.recorded("c1").Attached {
		all = append(all, a.IfName+" "+string(a.Origin))
	}
	return all
}

// What the record says about an attachment's origin does not depend on the cluster. It says which device
// of which claim a network is attached for. The status names the networks as people know them.
func TestRecordSaysWhyANetworkIsAttached(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0")
	h.Write("net.d/kube-system/pods.conf", `{"type":"bridge"}`)
	d := nad.Definition{Ref: nad.Ref{Namespace: "a", Name: "blue"}, UID: "u7", Version: "41", Config: `{"type":"macvlan"}`}
	nodetest.OK(t, nad.Mirror{Dir: filepath.Join(h.Dir, "net.d")}.Put(d))
	selections := `[{"name":"blue","ipam-claim-reference":"vm-1"},{"name":"storage","interface":"sto0"}]`
	shared := claimed("c", "first/sub", "a/blue", "")
	shared.Claim.Share = "s1"
	h.cluster = Cluster{}.with(shared, claimed("d", "r", inline, ""))
	conf := keys(`"clusterNetwork":"pods","defaultNetworks":["fast"]`, strings.Replace(annotated(selections), `"other"`, `"kubernetes.io/config.source":"file","other"`, 1))
	h.mustRun("ADD", conf, podOf("a"))
	nodetest.Equal(t, "origins", h.origins(), []string{
		`eth0 {"use":"cluster","definition":"kube-system/pods","podSource":"file"}`,
		`net1 {"use":"default","podSource":"file"}`,
		`net2 {"use":"selected","definition":"a/blue","uid":"u7","version":"41","selection":{"name":"blue","ipam-claim-reference":"vm-1"},"podSource":"file"}`,
		`sto0 {"use":"selected","selection":{"name":"storage","interface":"sto0"},"podSource":"file"}`,
		`net4 {"use":"claimed","definition":"a/blue","uid":"u7","version":"41","claim":{"uid":"uid-c","name":"c","request":"first/sub","pool":"node","device":"a/blue","share":"s1"},"podSource":"file"}`,
		`net5 {"use":"claimed","claim":{"uid":"uid-d","name":"d","request":"r","pool":"node","device":"r"},"podSource":"file"}`,
	})
	var names []string
	for _, s := range NetworkStatus(h.recorded("c1")) {
		names = append(names, fmt.Sprint(s.Name, " ", s.Interface, " ", s.Default))
	}
	nodetest.Equal(t, "status", names, []string{
		"kube-system/pods eth0 true", "fast net1 false", "a/blue net2 false", "storage  false", "a/blue net4 false", "inline  false",
	})
}

// The name in the configuration of a definition may be another than that of the
// definition, and two definitions may have the same one. When a plugin fails, people are
// told which definition it was.
func TestFailureOfAPluginNamesTheDefinition(t *testing.T) {
	t.Parallel()
	for selections, want := range map[string]string{
		"good,bad":   `NAD a/bad: ADD c1 eth0: network "shared" (net2): plugin "full": no free device`,
		"good,b/bad": `NAD b/bad: ADD c1 eth0: network "shared" (net2): plugin "full": no free device`,
		"flat":       `ADD c1 eth0: network "flat" (net1): plugin "full": no free device`,
	} {
		h := newHost(t, "1.0.0")
		h.Write("net.d/a/good.conf", `{"type":"macvlan","name":"shared"}`)
		h.Write("net.d/a/bad.conf", `{"type":"full","name":"shared"}`)
		h.Write("net.d/b/bad.conf", `{"type":"full","name":"shared"}`)
		h.Write("net.d/flat.conf", `{"type":"full","name":"flat"}`)
		if err := h.run("ADD", keys(bridge, annotated(selections)), podOf("a")); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("error is %v, want %s", err, want)
		}
		h.clean()
	}
}

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
		nodetest.Equal(t, a.IfName+" has annotations", a.CapabilityArgs[plugin.PodAnnotationsCapability] != nil, i == 0)
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
		nodetest.Equal(t, "arguments", h.arguments()[1], `{"deviceID":"0000:03:02.0"} null`)
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
