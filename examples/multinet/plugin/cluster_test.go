package plugin

import (
	"cmp"
	"context"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/examples/internal/programtest"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
)

// clusterOf makes the cluster one with definitions: "namespace/name" to the configuration. The
// host notes what is asked.
func (h *host) clusterOf(definitions map[string]string) {
	h.cluster = Cluster{
		Definition: func(_ context.Context, r nad.Ref, use nad.Use) (nad.Definition, error) {
			h.asked = append(h.asked, "definition "+string(use)+" "+r.String())
			config, ok := definitions[r.String()]
			if !ok {
				return nad.Definition{}, &netconf.Error{Kind: netconf.ErrNotFound}
			}
			return nad.Definition{Ref: r, UID: "u-" + r.Name, Version: "1", Config: config}, nil
		},
		Annotations: func(_ context.Context, p nad.Pod) (map[string]string, error) {
			h.asked = append(h.asked, "pod "+p.String()+" "+p.UID)
			return map[string]string{nad.NetworksAnnotation: "blue", "other": "x"}, nil
		},
		Attached: func(_ context.Context, k scratch.Key, p nad.Pod, _ []delegate.Attached) error {
			h.asked = append(h.asked, "attached "+k.ContainerID+" "+k.IfName+" "+p.String()+" "+p.Container)
			return nil
		},
	}
}

var errAway = types.NewError(types.ErrTryAgainLater, "the API is away", "")

// down makes the cluster one whose API is away.
func (h *host) down() {
	note := h.cluster.Definition
	h.cluster.Definition = func(ctx context.Context, r nad.Ref, use nad.Use) (nad.Definition, error) {
		_, _ = note(ctx, r, use)
		return nad.Definition{}, errAway
	}
	h.cluster.Annotations = func(context.Context, nad.Pod) (map[string]string, error) { return nil, errAway }
}

const passedNothing = `"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{}}`

// What is asked of the cluster, in an ADD, and what comes of it.
func TestClusterIsAskedForWhatIsNotThere(t *testing.T) {
	t.Parallel()
	const told = "attached c1 eth0 a/web c1"
	for _, tt := range []struct {
		name, keys string
		pod        func(*skel.CmdArgs)
		want       []string // of the cluster
		attached   string
	}{
		{"nothing selected", keys(bridge, passedNothing), podOf("a"), []string{told}, "ADD bridge eth0 multi"},
		{"annotations of the runtime", keys(bridge, annotated("red")), podOf("a"), []string{"definition selected a/red", told}, "ADD bridge eth0 multi, ADD tuning net1 red"},
		{"annotations of the cluster", keys(bridge, `"annotations":"auto"`), podOf("a"), []string{"pod a/web u1", "definition selected a/blue", told}, "ADD bridge eth0 multi, ADD macvlan net1 blue"},
		{"annotations of the cluster only", keys(bridge, `"annotations":"api"`, annotated("red")), podOf("a"), []string{"pod a/web u1", "definition selected a/blue", told}, "ADD bridge eth0 multi, ADD macvlan net1 blue"},
		{"outside of Kubernetes", keys(bridge, annotated("fast")), outside, nil, "ADD bridge eth0 multi, ADD macvlan net1 fast"},
		{"outside of Kubernetes, nothing passed", keys(bridge, `"annotations":"runtime"`), outside, nil, "ADD bridge eth0 multi"},
		{"no pod name", bridge, func(a *skel.CmdArgs) { a.Args = "K8S_POD_NAMESPACE=a" }, []string{"attached c1 eth0 a/ c1"}, "ADD bridge eth0 multi"},
		{"the sandbox of the runtime", keys(bridge, passedNothing), func(a *skel.CmdArgs) {
			a.Args = "K8S_POD_INFRA_CONTAINER_ID=c9;K8S_POD_NAME=web;K8S_POD_NAMESPACE=a;X=y=z"
		}, []string{"attached c1 eth0 a/web c9"}, "ADD bridge eth0 multi"},
		{"standing by definition", keys(`"clusterNetwork":"pods"`, passedNothing), podOf("a"), []string{"definition cluster kube-system/pods", told}, "ADD bridge eth0 pods"},
		{"standing by file", keys(`"clusterNetwork":"fast"`, passedNothing), podOf("a"), []string{"definition cluster kube-system/fast", told}, "ADD macvlan eth0 fast"},
		{"standing by a name that no definition has", keys(`"clusterNetwork":"Odd_1"`, passedNothing), podOf("a"), []string{told}, "ADD bridge eth0 Odd_1"},
		{"standing by path", keys(`"clusterNetwork":"$DIR/net.d/fast.conf"`, passedNothing), podOf("a"), []string{told}, "ADD macvlan eth0 fast"},
		{"a definition without configuration", keys(bridge, annotated("fast")), podOf("a"), []string{"definition selected a/fast", told}, "ADD bridge eth0 multi, ADD macvlan net1 fast"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.0.0")
			h.clusterOf(map[string]string{
				"a/blue": `{"type":"macvlan"}`, "a/red": `{"type":"tuning"}`, "kube-system/pods": `{"type":"bridge"}`, "a/fast": " ",
			})
			h.Write("net.d/odd.conf", `{"name":"Odd_1","type":"bridge"}`)
			h.mustRun("ADD", tt.keys, tt.pod)
			nodetest.Equal(t, "asked", h.asked, tt.want)
			nodetest.Equal(t, "attached", strings.Join(h.attached(), ", "), tt.attached)
			h.asked = nil
			h.mustRun("CHECK", bridge, tt.pod)
			h.removed(tt.pod)
			nodetest.Equal(t, "asked by CHECK and DEL", h.asked, nil)
		})
	}
}

// A network of the configuration is a file only if the cluster certainly has no
// definition of that name: any other network would be the wrong one. A selected network
// is never a file there.
func TestNoFileInPlaceOfADefinition(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, keys string
		err        error
		config     string
		code       uint
	}{
		{"the API is away", keys(`"clusterNetwork":"fast"`, passedNothing), errAway, "", 11},
		{"a bad definition", keys(`"clusterNetwork":"fast"`, passedNothing), nil, `{`, 6},
		{"a bad default network", keys(bridge, `"defaultNetworks":["fast"]`, passedNothing), nil, `{"type":"../x"}`, 7},
		{"selected", keys(bridge, annotated("fast")), &netconf.Error{Kind: netconf.ErrNotFound}, "", 7},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.0.0")
			h.cluster.Definition = func(_ context.Context, r nad.Ref, _ nad.Use) (nad.Definition, error) {
				return nad.Definition{Ref: r, Config: tt.config}, tt.err
			}
			h.refuses(tt.keys, tt.code, []string{`"fast"`}, podOf("a"))
		})
	}
}

// While the API is away, what does not need it works: a pod that selects nothing, CHECK and DEL.
func TestClusterIsAway(t *testing.T) {
	t.Parallel()
	const standing = `"clusterNetwork":"pods","defaultNetworks":["fast"]`
	h := newHost(t, "1.1.0")
	h.Write("net.d/pods.conf", `{"name":"pods","type":"bridge"}`)
	h.clusterOf(nil)
	h.mustRun("ADD", keys(standing, passedNothing), podOf("a"))
	h.Trace()
	h.down()

	nodetest.Fails(t, h.run("ADD", keys(standing, passedNothing), podOf("a"), programtest.As("c2")), 11, "pods", "away")
	nodetest.Fails(t, h.run("ADD", bridge, podOf("a"), programtest.As("c2")), 11, "pod a/web", "away")
	h.WantTrace()
	h.mustRun("ADD", keys(bridge, passedNothing), podOf("a"), programtest.As("c2"))
	h.Trace()

	h.asked = nil
	h.mustRun("CHECK", standing, podOf("a"))
	h.mustRun("DEL", standing, podOf("a"))
	nodetest.Equal(t, "asked by CHECK and DEL", h.asked, nil)
	h.removed(programtest.As("c2"))
}

// STATUS does not wait for the cluster, and a definition that has gone makes no node
// unready.
func TestStatusDoesWithoutTheCluster(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, "1.1.0")
		h.cluster.Definition = func(ctx context.Context, r nad.Ref, _ nad.Use) (nad.Definition, error) {
			if r.Name == "slow" {
				<-ctx.Done()
				return nad.Definition{}, ctx.Err()
			}
			return nad.Definition{}, &netconf.Error{Kind: netconf.ErrNotFound}
		}
		start := time.Now()
		h.mustRun("STATUS", `"clusterNetwork":"absent","defaultNetworks":["slow","fast","slow"]`)
		nodetest.Equal(t, "time", time.Since(start), currentTimeout)
		h.WantTrace("STATUS macvlan")
	})
}

// Attached is called when the record says that everything is attached. Its error undoes
// the ADD, and no result is printed.
func TestAttachedIsPartOfTheTransaction(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0")
	h.cluster.Attached = func(_ context.Context, k scratch.Key, _ nad.Pod, added []delegate.Attached) error {
		if len(added) != 2 || added[0].IfName != "eth0" || added[1].IfName != "net1" || added[1].Result == nil {
			t.Errorf("called for %+v", added)
		}
		nodetest.Equal(t, "attached, and bytes printed", []int{len(h.Exec.Live()), h.Printed.Len()}, []int{2, 0})
		r := h.recorded(k.ContainerID)
		nodetest.Equal(t, "record", r.Key.String()+" "+string(r.State), k.String()+" added")
		return errAway
	}
	conf := keys(bridge, annotated("fast"))
	nodetest.Fails(t, h.run("ADD", conf, podOf("a")), 11, "away")
	h.WantTrace("ADD bridge eth0", "ADD macvlan net1", "DEL macvlan net1", "DEL bridge eth0")
	h.clean()
	nodetest.Equal(t, "printed", h.Printed.String(), "")
}

// A network is what an ADD would attach, and is ready if its plugins say so.
func TestStatusOfANetworkThatIsOffered(t *testing.T) {
	t.Parallel()
	configs := map[string]string{
		"ns/blue":   `{"cniVersion":"1.1.0","type":"macvlan"}`,
		"ns/down":   `{"cniVersion":"1.1.0","plugins":[{"type":"macvlan"},{"type":"down"}]}`,
		"ns/bridge": `{"cniVersion":"1.1.0","type":"bridge"}`,
	}
	for _, tt := range []struct {
		name, keys, network string
		code                uint
		says                string
		types, trace        []string
	}{
		{name: "a definition", network: "ns/blue", types: []string{"macvlan"}, trace: []string{"STATUS macvlan"}},
		{name: "a plugin that is not ready", network: "ns/down", code: 50, says: "no cable", types: []string{"macvlan", "down"}, trace: []string{"STATUS macvlan", "STATUS down"}},
		{name: "a type that pods may not have", keys: `"allowedTypes":{"nad":["macvlan"]}`, network: "ns/bridge", code: 7, says: "bridge"},
		{name: "a file", network: "fast", types: []string{"macvlan"}, trace: []string{"STATUS macvlan"}},
		{name: "a configuration that cannot be read", keys: `"systemNamespaces":"x"`, network: "fast", code: 6, says: "systemNamespaces"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.1.0")
			h.Exec.Plugins["down"] = delegatetest.FailOn("STATUS", 50, "no cable", delegatetest.Result(nil))
			var types []string
			h.clusterOf(configs)
			n, err := Status(t.Context(), h.Process, skel.CmdArgs{StdinData: []byte(h.conf(tt.keys))}, h.cluster, tt.network)
			nodetest.Fails(t, err, tt.code, tt.says)
			for _, p := range n.Plugins() {
				types = append(types, p.Type())
			}
			nodetest.Equal(t, "plugins", types, tt.types)
			h.WantTrace(tt.trace...)
		})
	}
}

// ADD waits for the readiness indicator file, STATUS fails without it, and CHECK, DEL
// and GC ignore it. The clock is that of testing/synctest.
func TestReadinessIndicatorFile(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		keys    string
		comes   time.Duration // when the file comes
		gives   time.Duration // when the caller gives up
		took    time.Duration
		code    uint
		missing bool
	}{
		"there":                        {},
		"missing":                      {missing: true, took: readyTimeout, code: 11},
		"missing, with 45s":            {missing: true, keys: `"readinessTimeout":"45s",`, took: 45 * time.Second, code: 11},
		"comes":                        {missing: true, comes: 1990 * time.Millisecond, took: 2 * time.Second},
		"the caller gives up":          {missing: true, gives: time.Second, took: time.Second, code: 11},
		"a mistake is not waited with": {missing: true, keys: `"defaultNetworks":5,`, code: 6},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newHost(t, "1.1.0")
				conf := tt.keys + keys(bridge, `"readinessindicatorfile":"`+h.Path("ready")+`"`)
				if !tt.missing {
					h.Write("ready", "")
				}
				if tt.comes > 0 {
					time.AfterFunc(tt.comes, func() { h.Write("ready", "") })
				}
				ctx, cancel := context.WithTimeout(t.Context(), cmp.Or(tt.gives, time.Hour))
				defer cancel()
				start := time.Now()
				err := h.DoUntil(ctx, "ADD", h.conf(conf))
				nodetest.Equal(t, "time of the ADD", time.Since(start), tt.took)
				if nodetest.Fails(t, err, tt.code); tt.code == 11 {
					nodetest.Fails(t, err, 11, `"multi"`, "readinessindicatorfile", h.Path("ready"))
					nodetest.Fails(t, h.run("STATUS", conf), 50, `"multi"`, "readinessindicatorfile", h.Path("ready"))
					h.WantTrace()
				}
				if tt.code == 0 {
					h.WantTrace("ADD bridge eth0")
					h.mustRun("STATUS", conf)
					nodetest.OK(t, os.Remove(h.Path("ready")))
					h.mustRun("CHECK", conf)
					h.mustRun("GC", keys(conf, gcFor("c1 eth0")))
					h.mustRun("DEL", conf)
				}
				nodetest.Equal(t, "time of all", time.Since(start), tt.took)
				h.clean()
			})
		})
	}
}

// STATUS answers 50 for what may become ready, 51 if a delegate does, and the code of
// the mistake if the configuration is wrong.
func TestStatus(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, keys string
		code       uint
		says       string
	}{
		{"ready", bridge, 0, ""},
		{"not asked for what pods select", keys(bridge, annotated("absent")), 0, ""},
		{"network that is not there yet", `"clusterNetwork":"absent"`, 50, `"absent"`},
		{"not ready", `"delegates":[{"type":"later"}]`, 50, "come back"},
		{"limited", `"delegates":[{"type":"bridge"},{"type":"cut"}]`, 51, "cut off"},
		{"nothing to attach", ``, 7, "delegates"},
		{"a bad file", `"clusterNetwork":"bad"`, 50, "bad.conf"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.1.0")
			h.Exec.Plugins["later"] = delegatetest.FailOn("STATUS", 50, "come back", delegatetest.Result(nil))
			h.Exec.Plugins["cut"] = delegatetest.FailOn("STATUS", 51, "cut off", delegatetest.Result(nil))
			nodetest.Fails(t, h.run("STATUS", tt.keys), tt.code, tt.says)
		})
	}
}
