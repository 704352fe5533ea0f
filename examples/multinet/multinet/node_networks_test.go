package multinet

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/internal/nodetest"
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
		wantError(t, h.run(t, "ADD", keys(bridge, `"auxiliaryCNIChainName":`+tt.name)), tt.code, tt.says...)
		if tt.code != 107 {
			wantTrace(t, h)
		}
		h.clean(t)
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
			wantError(t, h.run(t, "ADD", keys(bridge, auxiliary, selection), podOf(namespace)), 7, "secret", "no such network")
		}
	}
	wantTrace(t, h)
	h.mustRun(t, "ADD", keys(bridge, annotated("d")), podOf("a")) // gets the name, but not the plugins
	wantTrace(t, h, "ADD bridge eth0", "ADD tuning net1")
}

// A second attachment of a container uses no interface name of the first, or of the
// network namespace.
func TestNames(t *testing.T) {
	t.Parallel()
	as := func(ifname string) func(*skel.CmdArgs) { return func(a *skel.CmdArgs) { a.IfName = ifname } }
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
	t.Run("of other records", func(t *testing.T) {
		t.Parallel()
		h := newHost(t, "1.0.0")
		h.mustRun(t, "ADD", keys(bridge, annotated("fast")))
		h.mustRun(t, "ADD", keys(bridge, annotated("fast")), as("eth1"))
		wantTrace(t, h, "ADD bridge eth0", "ADD macvlan net1", "ADD bridge eth1", "ADD macvlan net2")
		wantError(t, h.run(t, "ADD", bridge, as("net1")), 7, `"net1"`)
		wantTrace(t, h)
	})
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

// A delegate inherits the keys that it lacks and keeps all that it has, unknown ones
// too.
func TestDelegateInheritsWhatItLacks(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0")
	h.mustRun(t, "ADD", `"delegates":[
		{"type":"bridge","mtu":9007199254740993,"x":{"y":[1.0,"<&>"]}},
		{"type":"tuning","name":"own","cniVersion":"0.3.1"},
		{"plugins":[{"type":"tuning"}],"cniVersions":["0.4.0","1.0.0"]}]`)
	calls := h.Exec.Calls()
	if want := `{"cniVersion":"1.0.0","mtu":9007199254740993,"name":"multi","type":"bridge","x":{"y":[1.0,"<&>"]}}`; string(calls[0].Stdin) != want {
		t.Errorf("stdin %s\nwant  %s", calls[0].Stdin, want)
	}
	for i, want := range []string{"multi 1.0.0", "own 0.3.1", "multi 1.0.0"} {
		if in := h.stdin(t, i); fmt.Sprint(in["name"], " ", in["cniVersion"]) != want {
			t.Errorf("plugin %d: %v, want %s", i, in, want)
		}
	}
	for _, c := range calls {
		env := strings.Join(c.Env, "\n")
		if c.ContainerID != "c1" || c.Args != "IgnoreUnknown=1;K8S_POD_NAME=p" || !strings.Contains(env, "CNI_PATH=/opt/cni/bin:/opt/other/bin") {
			t.Errorf("environment of %s: %s", c, env)
		}
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
