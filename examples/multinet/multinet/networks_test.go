package multinet

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/internal/nadfile"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf/nad"
)

const auxiliary = `"auxiliaryCNIChainName":"vendor"`

// The auxiliary chain is one more network of every container, after all others. Its
// first plugin receives an empty result.
func TestAuxiliaryChain(t *testing.T) {
	t.Parallel()
	for _, namespace := range []string{"a", "kube-system"} {
		h := newHost(t, "1.1.0")
		h.Write("net.d/vendor/20-second.conf", `{"type":"tuning","x":1.0}`)
		h.Write("net.d/vendor/10-first.conf", `{"type":"macvlan"}`)
		h.Write("net.d/vendor/readme.txt", `{`)
		conf := keys(bridge, auxiliary, annotated("fast"))
		h.mustRun(t, "ADD", conf, podOf(namespace))
		in := h.stdin(t, 2)
		if diff := cmp.Diff(map[string]any{
			"cniVersion": "1.1.0", "name": "vendor", "type": "macvlan", "prevResult": map[string]any{"cniVersion": "1.1.0"},
		}, in); diff != "" {
			t.Errorf("stdin of the first plugin (-want +got):\n%s", diff)
		}
		if prev := h.stdin(t, 3)["prevResult"]; !cmp.Equal(prev.(map[string]any)["ips"], []any{map[string]any{"address": "10.9.1.2/24"}}) {
			t.Errorf("the second plugin was given %v", prev)
		}
		wantTrace(t, h, "ADD bridge eth0", "ADD macvlan net1", "ADD macvlan net2", "ADD tuning net2")
		h.mustRun(t, "CHECK", conf)
		wantTrace(t, h, "CHECK bridge eth0", "CHECK macvlan net1", "CHECK macvlan net2", "CHECK tuning net2")
		h.mustRun(t, "STATUS", conf)
		wantTrace(t, h, "STATUS bridge", "STATUS macvlan", "STATUS tuning")
		h.mustRun(t, "DEL", bridge)
		wantTrace(t, h, "DEL tuning net2", "DEL macvlan net2", "DEL macvlan net1", "DEL bridge eth0")
		h.clean(t)
	}
}

// Multus looks for the chain beside the file clusterNetwork. confDir comes first.
func TestAuxiliaryChainBesideTheClusterNetwork(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	h.Write("autoconf/10-pods.conf", `{"name":"pods","type":"bridge"}`)
	h.Write("autoconf/vendor/10.conf", `{"type":"tuning"}`)
	conf := keys(`"clusterNetwork":"`+h.Dir+`/autoconf/10-pods.conf"`, auxiliary)
	h.mustRun(t, "ADD", conf)
	h.mustRun(t, "DEL", conf)
	wantTrace(t, h, "ADD bridge eth0", "ADD tuning net1", "DEL tuning net1", "DEL bridge eth0")
	h.Write("net.d/vendor/10.conf", `{"type":"macvlan"}`)
	h.mustRun(t, "ADD", conf)
	wantTrace(t, h, "ADD bridge eth0", "ADD macvlan net1")
}

func TestAuxiliaryChainWithoutFilesIsNone(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	h.Write("net.d/vendor/readme.txt", "x")
	for _, name := range []string{auxiliary, `"auxiliaryCNIChainName":"absent"`, `"auxiliaryCNIChainName":""`} {
		h.mustRun(t, "ADD", keys(bridge, name))
		h.mustRun(t, "DEL", keys(bridge, name))
		wantTrace(t, h, "ADD bridge eth0", "DEL bridge eth0")
	}
}

// A chain that cannot be read fails the ADD: pods would silently lack a network.
func TestBadAuxiliaryChain(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, file string
		code       uint
		says       []string
	}{
		{`"vendor"`, `{"type":`, 6, []string{"auxiliaryCNIChainName", "10.conf"}},
		{`"vendor"`, `{"name":"x"}`, 7, []string{"auxiliaryCNIChainName", "10.conf", "type"}},
		{`"vendor"`, `{"type":"../x"}`, 7, []string{"../x"}},
		{`"vendor"`, `{"type":"full"}`, 107, []string{"vendor", "no free device"}},
		{`"../net.d/vendor"`, `{"type":"tuning"}`, 7, []string{"auxiliaryCNIChainName"}},
		{`".."`, `{"type":"tuning"}`, 7, []string{"auxiliaryCNIChainName"}},
		{`5`, `{"type":"tuning"}`, 6, []string{"auxiliaryCNIChainName"}},
	} {
		h := newHost(t, "1.1.0")
		h.Write("net.d/vendor/10.conf", tt.file)
		h.refuses(t, keys(bridge, `"auxiliaryCNIChainName":`+tt.name), tt.code, tt.says)
	}
}

// The directory of the chain is the administrator's: no pod reaches a file in it.
func TestAuxiliaryChainIsNoNamespace(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	h.Write("net.d/vendor/secret.conf", `{"name":"secret","type":"macvlan"}`)
	h.Write("net.d/a/d.conf", `{"name":"vendor","loadOnlyInlinedPlugins":false,"plugins":[{"type":"tuning"}]}`)
	for _, namespace := range []string{"a", "vendor"} {
		for _, selection := range []string{annotated("vendor/secret"), defaultNetwork("vendor/secret")} {
			nodetest.Fails(t, h.run(t, "ADD", keys(bridge, auxiliary, selection), podOf(namespace)), 7, "secret", "no such network")
		}
	}
	wantTrace(t, h)
	h.mustRun(t, "ADD", keys(bridge, annotated("d")), podOf("a")) // gets the name, but not the plugins
	wantTrace(t, h, "ADD bridge eth0", "ADD tuning net1")
}

// An interface has the name that is asked for, or that of its position unless the network
// namespace has it.
func TestNames(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		selection string
		taken     []string
		want      []string
	}{
		{"by position", "fast,fast", nil, []string{"eth0", "net1", "net2"}},
		{"asked for", "fast@data,fast", nil, []string{"eth0", "data", "net2"}},
		{"asked for, of another position", "fast,fast@net1", nil, []string{"eth0", "net2", "net1"}},
		{"old key", `[{"name":"fast","interfaceRequest":"old0"}]`, nil, []string{"eth0", "old0"}},
		{"in the namespace", "fast,fast", []string{"lo", "net1"}, []string{"eth0", "net2", "net3"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.0.0")
			h.taken = tt.taken
			h.mustRun(t, "ADD", keys(bridge, annotated(tt.selection)))
			var got []string
			for _, c := range h.Exec.Calls() {
				got = append(got, c.IfName)
			}
			nodetest.Equal(t, "names", got, tt.want)
		})
	}
}

// Networks are found in confDir by name, and anywhere by path.
func TestNetworks(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, keys string // $DIR is the host's directory
		want       []string
	}{
		{"cluster network by name", `"clusterNetwork":"storage"`, []string{"ADD macvlan eth0 storage", "ADD tuning eth0 storage"}},
		{"cluster network by path", `"clusterNetwork":"$DIR/elsewhere/x.conf"`, []string{"ADD bridge eth0 elsewhere"}},
		{"nameless by path", `"clusterNetwork":"$DIR/elsewhere/nameless"`, []string{"ADD bridge eth0 multi"}},
		{"cluster network before the first delegate", keys(bridge, `"clusterNetwork":"fast"`), []string{"ADD macvlan eth0 fast"}},
		{"cluster network in place of all delegates", `"clusterNetwork":"fast","delegates":[{"type":"bridge"},{"type":"tuning"}]`, []string{"ADD macvlan eth0 fast"}},
		{"the first usable network of a directory", `"clusterNetwork":"$DIR/nodes"`, []string{"ADD bridge eth0 third"}},
		{"default networks", keys(bridge, `"defaultNetworks":["fast","$DIR/elsewhere/x.conf"]`), []string{"ADD bridge eth0 multi", "ADD macvlan net1 fast", "ADD bridge net2 elsewhere"}},
		{"default networks before other delegates", `"delegates":[{"type":"bridge"},{"type":"tuning"}],"defaultNetworks":["fast"]`, []string{"ADD bridge eth0 multi", "ADD macvlan net1 fast"}},
		{"selected last", keys(`"clusterNetwork":"other","defaultNetworks":["fast"]`, annotated("storage")), []string{"ADD bridge eth0 other", "ADD macvlan net1 fast", "ADD macvlan net2 storage", "ADD tuning net2 storage"}},
		{"namespace is nobody's business", keys(bridge, annotated("ns1/fast")), []string{"ADD bridge eth0 multi", "ADD macvlan net1 fast"}},
		{"one network twice", keys(bridge, annotated("fast,fast")), []string{"ADD bridge eth0 multi", "ADD macvlan net1 fast", "ADD macvlan net2 fast"}},
		{"a bad file hides nobody", keys(bridge, annotated("other")), []string{"ADD bridge eth0 multi", "ADD bridge net1 other"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.0.0")
			h.Write("elsewhere/x.conf", `{"name":"elsewhere","type":"bridge"}`)
			h.Write("elsewhere/nameless", `{"type":"bridge"}`)
			h.Write("nodes/00-multinet.conflist", `{"name":"own","plugins":[{"type":"multinet"}]}`)
			h.Write("nodes/10-bad.conf", `{`)
			h.Write("nodes/20-third.conf", `{"name":"third","type":"bridge"}`)
			h.Write("nodes/30-fourth.conf", `{"name":"fourth","type":"macvlan"}`)
			h.mustRun(t, "ADD", strings.ReplaceAll(tt.keys, "$DIR", h.Dir))
			var got []string
			for i, c := range h.Exec.Calls() {
				got = append(got, fmt.Sprint(c, " ", h.stdin(t, i)["name"]))
			}
			nodetest.Equal(t, "calls", got, tt.want)
		})
	}
}

// binDir is searched before CNI_PATH, and not twice.
func TestPath(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0")
	path := func(a *skel.CmdArgs) { a.Path = "/a:/opt/mine:/b" }
	h.mustRun(t, "ADD", keys(bridge, `"binDir":"/opt/mine"`), path)
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
func (h *host) attached(t *testing.T) []string {
	t.Helper()
	var all []string
	for i, c := range h.Exec.Calls()[h.seen:] {
		all = append(all, fmt.Sprint(c, " ", h.stdin(t, i)["name"]))
	}
	h.trace()
	return all
}

// origins are those in the record of the container c1.
func (h *host) origins(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, a := range recorded(t, h, "c1").Attached {
		all = append(all, a.IfName+" "+string(a.Origin))
	}
	return all
}

// In Kubernetes a selected network is the definition of the namespace, which is a
// directory in nadDir, or else the file in confDir. The record says which it was.
func TestDefinitionsAreFilesInTheirNamespace(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, keys string
		pod        func(*skel.CmdArgs)
		want       []string
	}{
		{"of the pod's namespace", annotated("blue"), podOf("team-a"), []string{"ADD macvlan net1 blue"}},
		{"of another namespace", annotated("team-b/blue"), podOf("team-a"), []string{"ADD tuning net1 of-b"}},
		{"before a file of the same name", annotated("fast"), podOf("team-a"), []string{"ADD bridge net1 fast"}},
		{"a file, of whatever namespace", annotated("storage, team-a/other"), podOf("team-a"), []string{"ADD macvlan net1 storage", "ADD tuning net1 storage", "ADD bridge net2 other"}},
		{"one definition twice", annotated("blue,blue@data"), podOf("team-a"), []string{"ADD macvlan net1 blue", "ADD macvlan data blue"}},
		{"a definition that leaves its configuration to a file", annotated("team-b/other"), podOf("team-a"), []string{"ADD bridge net1 other"}},
		{"in a directory of its own", keys(annotated("blue"), `"nadDir":"$DIR/mirror"`), podOf("team-a"), []string{"ADD bridge net1 blue"}},
		{"a file only, outside of Kubernetes", annotated("team-a/fast"), func(*skel.CmdArgs) {}, []string{"ADD macvlan net1 fast"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.0.0")
			h.Write("net.d/team-a/blue.conf", `{"type":"macvlan"}`)
			h.Write("net.d/team-a/fast.conf", `{"type":"bridge"}`)
			h.Write("net.d/team-b/blue.conflist", `{"name":"of-b","plugins":[{"type":"tuning"}]}`)
			h.Write("net.d/team-b/other.conf", "")
			h.Write("mirror/team-a/blue.conf", `{"type":"bridge"}`)
			h.mustRun(t, "ADD", keys(bridge, strings.ReplaceAll(tt.keys, "$DIR", h.Dir)), tt.pod)
			nodetest.Equal(t, "calls", h.attached(t), append([]string{"ADD bridge eth0 multi"}, tt.want...))
		})
	}
}

// What the record says about an attachment's origin does not depend on the cluster.
func TestRecordSaysWhyANetworkIsAttached(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0")
	h.Write("net.d/kube-system/pods.conf", `{"type":"bridge"}`)
	d := nad.Definition{Ref: nad.Ref{Namespace: "a", Name: "blue"}, UID: "u7", Version: "41", Config: `{"type":"macvlan"}`}
	for _, f := range nadfile.Files(d.Namespace, d.Name, d.Config, nadfile.Key{UID: d.UID, Version: d.Version}) {
		if f.Data != nil {
			h.Write("net.d/"+f.Name, string(f.Data))
		}
	}
	selections := `[{"name":"blue","ipam-claim-reference":"vm-1"},{"name":"storage","interface":"sto0"}]`
	conf := keys(`"clusterNetwork":"pods","defaultNetworks":["fast"]`, strings.Replace(annotated(selections), `"other"`, `"kubernetes.io/config.source":"file","other"`, 1))
	h.mustRun(t, "ADD", conf, podOf("a"))
	want := []string{
		`eth0 {"use":"cluster","definition":"kube-system/pods","podSource":"file"}`,
		`net1 {"use":"default","podSource":"file"}`,
		`net2 {"use":"selected","definition":"a/blue","uid":"u7","version":"41","selection":{"name":"blue","ipam-claim-reference":"vm-1"},"podSource":"file"}`,
		`sto0 {"use":"selected","selection":{"name":"storage","interface":"sto0"},"podSource":"file"}`,
	}
	nodetest.Equal(t, "origins", h.origins(t), want)
	h.mustRun(t, "DEL", conf)
	h.clean(t)
}

// A definition is input of a user that is run as root. What is wrong with it, or what it
// may not do, is an error before any plugin runs.
func TestBadDefinition(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, config, keys string
		code               uint
		says               []string
	}{
		{"not JSON", `{`, "", 6, []string{"NAD a/bad", "spec.config"}},
		{"no plugins", `{"plugins":[]}`, "", 7, []string{"NAD a/bad", "plugins"}},
		{"a type that is a path", `{"type":"../../bin/sh"}`, "", 7, []string{"NAD a/bad", "type", "path"}},
		{"multinet itself", `{"type":"multinet"}`, "", 7, []string{"NAD a/bad", "itself"}},
		{"Multus, which would do what the pod may not", `{"type":"multus"}`, "", 7, []string{"NAD a/bad", `"multus"`, "meta-plugin"}},
		{"a type that is not allowed", `{"type":"macvlan"}`, `"allowedTypes":{"nad":["ipvlan"]},`, 7, []string{"NAD a/bad", "allowedTypes"}},
		{"plugins of a directory", `{"name":"storage.d","loadOnlyInlinedPlugins":false}`, "", 7, []string{"NAD a/bad"}},
		{"a file that is missing", ``, "", 7, []string{"NAD a/bad", "no such network"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.0.0")
			h.Write("net.d/a/bad.conf", tt.config)
			h.Write("net.d/storage.d/10.conf", `{"type":"tuning"}`)
			h.refuses(t, tt.keys+keys(bridge, annotated("bad")), tt.code, tt.says, podOf("a"))
		})
	}
}

// The name in the configuration of a definition may be another than that of the
// definition, and two definitions may have the same one. When a plugin fails, people are
// told which definition it was.
func TestFailureOfAPluginNamesTheDefinition(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, selections, want string }{
		{"of the pod's namespace", "good,bad", `NAD a/bad: ADD c1 eth0: network "shared" (net2): plugin "full": no free device`},
		{"of another namespace", "good,b/bad", `NAD b/bad: ADD c1 eth0: network "shared" (net2): plugin "full": no free device`},
		{"a file", "flat", `ADD c1 eth0: network "flat" (net1): plugin "full": no free device`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.0.0")
			h.Write("net.d/a/good.conf", `{"type":"macvlan","name":"shared"}`)
			h.Write("net.d/a/bad.conf", `{"type":"full","name":"shared"}`)
			h.Write("net.d/b/bad.conf", `{"type":"full","name":"shared"}`)
			h.Write("net.d/flat.conf", `{"type":"full","name":"flat"}`)
			err := h.run(t, "ADD", keys(bridge, annotated(tt.selections)), podOf("a"))
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("error is %v, want %s", err, tt.want)
			}
			h.clean(t)
		})
	}
}

// The allowed types are those of the networks in the configuration, of those that pods
// select, or of both. An unknown class would restrict nothing.
func TestAllowedTypes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		allowed string
		code    uint
	}{
		{`[]`, 0},
		{`null`, 0},
		{`["bridge","macvlan"]`, 0},
		{`{"nad":["macvlan"]}`, 0},
		{`{"standing":["bridge"]}`, 0},
		{`["bridge"]`, 7},
		{`["macvlan"]`, 7},
		{`{"standing":["macvlan"]}`, 7},
		{`{"nad":["bridge"]}`, 7},
		{`{"nads":["macvlan"]}`, 6},
		{`"macvlan"`, 6},
		{`{"nad":"macvlan"}`, 6},
	} {
		h := newHost(t, "1.0.0")
		conf := keys(bridge, annotated("fast"), `"allowedTypes":`+tt.allowed)
		err := h.run(t, "ADD", conf)
		nodetest.Fails(t, err, tt.code, "allowedTypes")
		if err != nil {
			wantTrace(t, h)
		}
	}
}
