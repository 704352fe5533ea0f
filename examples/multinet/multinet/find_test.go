package multinet

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf/nad"
)

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
	rs, err := (&lifecycle.Manager{Dir: h.state()}).Container(t.Context(), "c1")
	if err != nil || len(rs) != 1 {
		t.Fatalf("%d records, %v", len(rs), err)
	}
	var all []string
	for _, a := range rs[0].Attached {
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

// A definition gets the name and the version that it lacks, the same for ADD, CHECK and
// DEL, and keeps everything else as it was written.
func TestDefinitionReachesThePluginsAsItWasWritten(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	h.Write("net.d/a/blue.conf", `{"type":"macvlan","vni":12345678901234567890,"x":1.0,"name":""}`)
	h.mustRun(t, "ADD", keys(bridge, annotated("blue")), podOf("a"))
	const want = `{"cniVersion":"1.1.0","name":"blue","type":"macvlan","vni":12345678901234567890,"x":1.0}`
	if got := string(h.Exec.Calls()[1].Stdin); got != want {
		t.Errorf("stdin %s\nwant  %s", got, want)
	}
	h.mustRun(t, "CHECK", bridge)
	h.mustRun(t, "DEL", bridge)
	for _, c := range h.Exec.Calls()[2:] {
		if c.Plugin == "macvlan" && !strings.Contains(string(c.Stdin), `"cniVersion":"1.1.0"`) {
			t.Errorf("%s with %s", c, c.Stdin)
		}
	}
}

// What the record says about an attachment's origin does not depend on the cluster.
func TestRecordSaysWhyANetworkIsAttached(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0")
	h.Write("net.d/kube-system/pods.conf", `{"type":"bridge"}`)
	d := nad.Definition{Ref: nad.Ref{Namespace: "a", Name: "blue"}, UID: "u7", Version: "41", Config: `{"type":"macvlan"}`}
	files, err := d.Files()
	nodetest.OK(t, err)
	for _, f := range files {
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
		{"a key twice", `{"type":"macvlan","mtu":1,"mtu":2}`, "", 6, []string{"NAD a/bad", "mtu"}},
		{"args of the wrong type", `{"type":"macvlan","args":["x"]}`, "", 7, []string{"NAD a/bad", "plugins[0].args"}},
		{"args.cni of the wrong type", `{"plugins":[{"type":"macvlan"},{"type":"tuning","args":{"cni":5}}]}`, "", 7, []string{"NAD a/bad", "plugins[1].args.cni"}},
		{"a type that is a path", `{"type":"../../bin/sh"}`, "", 7, []string{"NAD a/bad", "type", "path"}},
		{"an IPAM type that is a path", `{"type":"macvlan","ipam":{"type":"/bin/sh"}}`, "", 7, []string{"NAD a/bad", "ipam.type"}},
		{"multinet itself", `{"type":"multinet"}`, "", 7, []string{"NAD a/bad", "itself"}},
		{"the shim", `{"type":"multinet-shim"}`, "", 7, []string{"NAD a/bad", "itself"}},
		{"Multus, which would do what the pod may not", `{"type":"multus"}`, "", 7, []string{"NAD a/bad", `"multus"`, "meta-plugin"}},
		{"the shim of Multus", `{"plugins":[{"type":"macvlan"},{"type":"multus-shim"}]}`, "", 7, []string{"NAD a/bad", `"multus-shim"`, "meta-plugin"}},
		{"a name that is a path", `{"name":"../x","type":"macvlan"}`, "", 7, []string{"NAD a/bad", "name"}},
		{"a type that is not allowed", `{"type":"macvlan"}`, `"allowedTypes":{"nad":["ipvlan"]},`, 7, []string{"NAD a/bad", "allowedTypes"}},
		{"an IPAM type that is not allowed", `{"type":"ipvlan","ipam":{"type":"dhcp"}}`, `"allowedTypes":{"nad":["ipvlan"]},`, 7, []string{"NAD a/bad", "ipam.type", "allowedTypes"}},
		{"plugins of a directory", `{"name":"storage.d","loadOnlyInlinedPlugins":false}`, "", 7, []string{"NAD a/bad"}},
		{"a file that is missing", ``, "", 7, []string{"NAD a/bad", "no such network"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.0.0")
			h.Write("net.d/a/bad.conf", tt.config)
			h.Write("net.d/storage.d/10.conf", `{"type":"tuning"}`)
			wantError(t, h.run(t, "ADD", tt.keys+keys(bridge, annotated("bad")), podOf("a")), tt.code, tt.says...)
			wantTrace(t, h)
			h.clean(t)
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
		wantError(t, err, tt.code, "allowedTypes")
		if err != nil {
			wantTrace(t, h)
		}
	}
}

// CHECK, DEL and GC use the record when the definitions are gone, in whatever order they
// go. An ADD uses what is there now.
func TestDefinitionsMayGoBeforeThePod(t *testing.T) {
	t.Parallel()
	gone := []string{"net.d/a/blue.conf", "net.d/a", "net.d"}
	for first := range gone {
		for _, last := range []string{"DEL", "GC"} {
			t.Run(gone[first]+", "+last, func(t *testing.T) {
				t.Parallel()
				h := newHost(t, "1.1.0")
				h.Write("net.d/a/blue.conf", `{"type":"macvlan","mtu":1400}`)
				h.Write("net.d/kube-system/pods.conf", `{"type":"bridge"}`)
				conf := keys(`"clusterNetwork":"pods"`, annotated("blue"))
				h.mustRun(t, "ADD", conf, podOf("a"))
				h.Write("net.d/a/blue.conf", `{"type":"full"}`) // edited
				h.trace()
				h.mustRun(t, "CHECK", conf, podOf("a"))
				if got := h.stdin(t, 1); got["mtu"] != 1400.0 {
					t.Errorf("CHECK with %v", got)
				}
				wantTrace(t, h, "CHECK bridge eth0", "CHECK macvlan net1")
				wantError(t, h.run(t, "ADD", conf, podOf("a"), func(a *skel.CmdArgs) { a.ContainerID = "c2" }), 107)
				h.trace()
				for _, path := range gone[first:] {
					nodetest.OK(t, os.RemoveAll(filepath.Join(h.Dir, path)))
				}
				if last == "DEL" {
					h.mustRun(t, "DEL", conf, podOf("a"))
				} else {
					_ = h.run(t, "GC", keys(conf, gcFor())) // may say that the clusterNetwork is gone
				}
				if got := h.trace(); len(got) < 2 || got[0] != "DEL macvlan net1" || got[1] != "DEL bridge eth0" {
					t.Errorf("calls %q", got)
				}
				h.clean(t)
			})
		}
	}
}

// Addresses are allocated by the CNI name of a network. So GC of a network lists the
// attachments of every definition of that name as valid.
func TestGCKnowsAllDefinitionsOfOneName(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	for _, namespace := range []string{"a", "b"} {
		h.Write("net.d/"+namespace+"/blue.conf", `{"name":"shared","type":"macvlan"}`)
	}
	in := func(id string) func(*skel.CmdArgs) { return func(a *skel.CmdArgs) { a.ContainerID = id } }
	h.mustRun(t, "ADD", keys(bridge, annotated("blue")), podOf("a"), in("c1"))
	h.mustRun(t, "ADD", keys(bridge, annotated("blue")), podOf("b"), in("c2"))
	h.mustRun(t, "ADD", keys(bridge, annotated("b/blue@x")), podOf("a"), in("c3"))
	h.mustRun(t, "GC", keys(bridge, gcFor("c1 eth0", "c2 eth0")))
	for _, c := range h.Exec.Calls() {
		if c.String() != "GC macvlan" {
			continue
		}
		if want := `"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"net1"},{"containerID":"c2","ifname":"net1"}]`; !strings.Contains(string(c.Stdin), want) {
			t.Errorf("GC of macvlan with %s", c.Stdin)
		}
	}
	if got := strings.Join(h.Exec.Live(), ", "); got != "bridge c1 eth0, bridge c2 eth0, macvlan c1 net1, macvlan c2 net1" {
		t.Errorf("left: %s", got)
	}
}
