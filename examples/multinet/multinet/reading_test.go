package multinet

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// As Multus's manifests have it: no cniVersion, and delegates with one.
func TestConfigurationWithoutAVersionHasThatOfItsFirstNetwork(t *testing.T) {
	t.Parallel()
	for conf, want := range map[string][2]string{
		`"delegates":[{"cniVersion":"0.3.1","type":"bridge"},{"type":"macvlan"}]`:                                        {"0.3.1", "0.3.1"},
		`"cniVersion":null,"delegates":[{"cniVersion":"1.0.0","type":"bridge"},{"cniVersion":"0.4.0","type":"macvlan"}]`: {"1.0.0", "0.4.0"},
		`"cniVersion":"","clusterNetwork":"storage","defaultNetworks":["fast"]`:                                          {"1.0.0", "1.0.0"},
		`"cniVersion":"0.4.0","delegates":[{"cniVersion":"1.0.0","type":"bridge"},{"type":"macvlan"}]`:                   {"0.4.0", "0.4.0"},
		`"delegates":[{"type":"bridge"},{"cniVersion":"1.0.0","type":"macvlan"}]`:                                        {"0.1.0", "1.0.0"},
		`"clusterNetwork":"defined","auxiliaryCNIChainName":"vendor"`:                                                    {"1.0.0", "1.0.0"},
	} {
		h := newHost(t, "")
		h.Write("net.d/vendor/10.conf", `{"type":"tuning"}`)
		var asked []string
		h.cluster = clusterOf(&asked, map[string]string{"kube-system/defined": `{"cniVersion":"1.0.0","type":"bridge"}`})
		conf = fmt.Sprintf(`{"name":"multi","type":"multinet","cniDir":%q,"confDir":%q,%s}`, h.state(), h.Dir+"/net.d", conf)
		nodetest.OK(t, h.call(t.Context(), "ADD", conf))
		if got := h.printed.String(); !strings.Contains(got, fmt.Sprintf(`"cniVersion":%q`, want[0])) {
			t.Errorf("%s printed %s, want version %s", conf, got, want[0])
		}
		nodetest.Equal(t, conf, h.stdin(t, len(h.Exec.Calls())-1)["cniVersion"].(string), want[1])
		slices.Sort(asked)
		nodetest.Equal(t, "asked of the cluster", asked, slices.Compact(slices.Clone(asked))) // each once
		nodetest.OK(t, h.call(t.Context(), "DEL", conf))
		h.clean(t)
	}
}

// With a clusterNetwork nobody looks at the delegates.
func TestClusterNetworkReplacesDelegatesWhateverTheyAre(t *testing.T) {
	t.Parallel()
	for _, delegates := range []string{`[{}]`, `[null]`, `[{"type":"multinet"}]`, `[{"type":5}]`, `[{"type":"full"}]`} {
		h := newHost(t, "1.1.0")
		h.mustRun(t, "ADD", keys(`"clusterNetwork":"fast"`, `"delegates":`+delegates))
		wantTrace(t, h, "ADD macvlan eth0")
		h.mustRun(t, "DEL", `"delegates":[]`)
		h.clean(t)
	}
}

// By name it is as in the specification, not as in Multus: a list has the plugins of its
// sub-directory, too.
func TestClusterNetworkByNameHasThePluginsOfItsSubdirectory(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	h.Write("net.d/storage/10.conf", `{"type":"bridge"}`)
	h.mustRun(t, "ADD", `"clusterNetwork":"storage"`)
	wantTrace(t, h, "ADD macvlan eth0", "ADD tuning eth0", "ADD bridge eth0")
}

// The extension says what a file has, as for container runtimes.
func TestClusterNetworkIsWhatTheRuntimeWouldRun(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"list in .conf", "plugin in .conflist"} {
		h := newHost(t, "1.1.0")
		if name == "list in .conf" {
			h.Write("etc/10-mistake.conf", `{"name":"pods","plugins":[{"type":"full"}]}`)
			h.Write("net.d/10-mistake.conf", `{"name":"pods","plugins":[{"type":"full"}]}`)
		} else {
			h.Write("etc/10-mistake.conflist", `{"name":"pods","type":"full"}`)
			h.Write("net.d/10-mistake.conflist", `{"name":"pods","type":"full"}`)
		}
		h.Write("etc/20-real.conflist", `{"name":"pods","plugins":[{"type":"bridge"}]}`)
		h.Write("net.d/20-real.conflist", `{"name":"pods","plugins":[{"type":"bridge"}]}`)
		for _, network := range []string{h.Dir + "/etc", "pods"} {
			h.mustRun(t, "ADD", `"clusterNetwork":"`+network+`"`)
			wantTrace(t, h, "ADD bridge eth0")
			h.mustRun(t, "DEL", `"clusterNetwork":"`+network+`"`)
			wantTrace(t, h, "DEL bridge eth0")
		}
		nodetest.Fails(t, h.run(t, "ADD", `"clusterNetwork":"`+h.Dir+`/etc/10-mistake.conf"`), 7, "10-mistake.conf")
	}
}

// A person who names a file in place of the network learns what to write.
func TestFileNameInPlaceOfANetworkIsExplained(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	h.Write("etc/10-kindnet.conflist", `{"name":"kindnet","plugins":[{"type":"bridge"}]}`)
	runtime := `"runtimeConfDir":"` + h.Dir + `/etc"`
	nodetest.Fails(t, h.run(t, "ADD", keys(`"clusterNetwork":"storage.conflist"`, runtime)), 7, `file "storage.conflist" defines network "storage": use this name`)
	nodetest.Fails(t, h.run(t, "ADD", keys(`"clusterNetwork":"10-kindnet.conflist"`, runtime)), 7, "there is the file "+h.Dir+"/etc/10-kindnet.conflist: use its path")
	nodetest.Fails(t, h.run(t, "ADD", keys(`"clusterNetwork":"10-kindnet"`, runtime)), 7, "no such network")
}

// What other programs may refuse is attached, with a warning.
func TestKeyThatStandsTwiceWithOneValueIsAWarning(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	h.Write("net.d/ns/vendor.conf", `{"name":"vendor","type":"macvlan","name":"vendor"}`)
	var stderr strings.Builder
	process := h.process()
	process.Stderr = &stderr
	err := New(h.cluster).Do(t.Context(), process, delegate.CommandAdd, skel.CmdArgs{
		ContainerID: "c1", Netns: h.Path("netns"), IfName: "eth0", Args: "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p", Path: "/opt/other/bin",
		StdinData: []byte(h.conf(keys(`"maxSelections":3,"maxSelections":3`, bridge, annotated(`[{"name":"vendor","name":"vendor"}]`)))),
	})
	nodetest.OK(t, err)
	wantTrace(t, h, "ADD bridge eth0", "ADD macvlan net1")
	nodetest.Equal(t, "stderr", stderr.String(), `multinet: the configuration: key "maxSelections" is given twice, with one value: remove one
multinet: annotation k8s.v1.cni.cncf.io/networks: key "[0].name" is given twice, with one value: remove one
multinet: NAD ns/vendor: key "name" is given twice, with one value: remove one
`)
}

// Nothing that a pod selects is dropped because of its spelling.
func TestSelectionsMatchInUpperAndLowerCase(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	h.mustRun(t, "ADD", keys(bridge, annotated(`[{"Name":"fast","InterFace":"data"}]`), `"LegacyArgs":true`))
	wantTrace(t, h, "ADD bridge eth0", "ADD macvlan data")
	h.mustRun(t, "DEL", bridge)
	wantTrace(t, h, "DEL macvlan data", "DEL bridge eth0")
	nodetest.Fails(t, h.run(t, "ADD", keys(bridge, annotated(`[{"name":"fast","Name":"storage"}]`))), 6, "[0].name", "two values")
	nodetest.Fails(t, h.run(t, "ADD", keys(bridge, defaultNetwork(`[{"name":"fast","Name":"storage"}]`))), 6, "default-network", "[0].name", "two values")
	nodetest.Fails(t, h.run(t, "ADD", keys(bridge, `"cniDir":"/a"`)), 6, `"cniDir"`)
	nodetest.Fails(t, h.run(t, "ADD", keys(bridge, `"CNIDir":"/a"`)), 6, `"cniDir"`)
	nodetest.Fails(t, h.run(t, "ADD", keys(bridge, `"allowedTypes":{"nad":["a"],"NAD":["b"]}`)), 6, `"allowedTypes`, "two values")
	for _, none := range []string{annotated("null"), defaultNetwork(" null")} {
		h.mustRun(t, "ADD", keys(bridge, none))
		h.mustRun(t, "DEL", keys(bridge, none))
		wantTrace(t, h, "ADD bridge eth0", "DEL bridge eth0")
	}
}
