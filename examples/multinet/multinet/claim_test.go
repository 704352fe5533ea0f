package multinet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

// claimed is what the request of a claim asks for: "namespace/name" of a definition, or the
// JSON of a network.
func claimed(claim, request, what, ifName string) Claimed {
	c := Claimed{Claim: nad.Claim{UID: "uid-" + claim, Name: claim, Request: request, Pool: "node", Device: what}, IfName: ifName}
	if !strings.HasPrefix(what, "{") {
		c.Definition.Namespace, c.Definition.Name, _ = strings.Cut(what, "/")
		return c
	}
	var err error
	if c.Network, err = netconf.Parse([]byte(what)); err != nil {
		panic(err)
	}
	c.Claim.Device = request
	return c
}

// claiming is a cluster with the definitions of team whose pods have the claims. It notes
// what it is asked.
func claiming(asked *[]string, claims ...Claimed) Cluster {
	c := clusterOf(asked, team)
	c.Claims = func(_ context.Context, p nad.Pod) ([]Claimed, error) {
		*asked = append(*asked, "claims "+p.String()+" "+p.UID)
		return claims, nil
	}
	return c
}

const inline = `{"name":"inline","type":"tuning"}`

// The networks of claims come after those that the pod selects, and before the auxiliary
// chain. The pod's claims are asked for once.
func TestClaimedNetworksAreAttachedAfterSelectedOnes(t *testing.T) {
	t.Parallel()
	blue, own := claimed("c", "r1", "a/blue", ""), claimed("c", "r2", inline, "")
	at := func(c Claimed, ifName string) Claimed {
		c.IfName = ifName
		return c
	}
	all := keys(`"clusterNetwork":"fast","defaultNetworks":["other"],"auxiliaryCNIChainName":"aux"`, annotated("red"))
	for _, tt := range []struct {
		name, keys string
		namespace  string
		claims     []Claimed
		want       string
	}{
		{"no claim", keys(bridge, passedNothing), "a", nil, "bridge eth0 multi"},
		{"a network", keys(bridge, passedNothing), "a", []Claimed{own}, "bridge eth0 multi, tuning net1 inline"},
		{"a network of several plugins without name and version", keys(bridge, passedNothing), "a", []Claimed{claimed("c", "r", `{"plugins":[{"type":"macvlan"},{"type":"tuning"}]}`, "")}, "bridge eth0 multi, macvlan net1 multi, tuning net1 multi"},
		{"all kinds", all, "a", []Claimed{own, blue}, "macvlan eth0 fast, bridge net1 other, tuning net2 red, tuning net3 inline, macvlan net4 blue, tuning net5 aux"},
		{"the name of another position", all, "a", []Claimed{own, at(blue, "net1")}, "macvlan eth0 fast, bridge net2 other, tuning net3 red, tuning net4 inline, macvlan net1 blue, tuning net5 aux"},
		{"a system namespace", keys(all, `"systemNamespaces":["a"]`), "a", []Claimed{own}, "macvlan eth0 fast, tuning net1 red, tuning net2 inline, tuning net3 aux"},
		{"a primary of the pod", keys(bridge, defaultNetwork("a/red")), "a", []Claimed{blue}, "tuning eth0 red, macvlan net1 blue"},
		{"a definition of another namespace", keys(bridge, passedNothing), "b", []Claimed{blue}, "bridge eth0 multi, macvlan net1 blue"},
		{"a type that standing networks may not have", keys(bridge, passedNothing, `"allowedTypes":{"standing":["bridge"],"nad":["tuning"]}`), "a", []Claimed{own}, "bridge eth0 multi, tuning net1 inline"},
	} {
		for _, parallel := range []string{"false", "true"} {
			t.Run(tt.name+", parallel "+parallel, func(t *testing.T) {
				t.Parallel()
				h := newHost(t, "1.1.0")
				h.Write("net.d/aux/10.conf", `{"type":"tuning"}`)
				var asked []string
				h.cluster = claiming(&asked, tt.claims...)
				h.mustRun(t, "ADD", keys(tt.keys, `"parallel":`+parallel), podOf(tt.namespace))
				if n := strings.Count(strings.Join(asked, "\n"), "claims "+tt.namespace+"/web u1"); n != 1 {
					t.Errorf("asked %q", asked)
				}
				var got []string
				for _, a := range recorded(t, h, "c1").Attached {
					for _, p := range a.Network.Plugins() {
						got = append(got, fmt.Sprint(p.Type(), " ", a.IfName, " ", a.Network.Name()))
					}
				}
				nodetest.Equal(t, "attached", strings.Join(got, ", "), tt.want)
				h.mustRun(t, "CHECK", bridge, podOf(tt.namespace))
				h.mustRun(t, "DEL", bridge, podOf(tt.namespace))
				h.clean(t)
			})
		}
	}
}

// recorded is the one record of a container.
func recorded(t *testing.T, h *host, container string) lifecycle.Record {
	t.Helper()
	rs, err := (&lifecycle.Manager{Dir: h.state()}).Container(t.Context(), container)
	if err != nil || len(rs) != 1 {
		t.Fatalf("%d records, %v", len(rs), err)
	}
	return rs[0]
}

// What a claim cannot have is an error before any plugin runs, which names the claim and the
// request.
func TestClaimsThatCannotBeMet(t *testing.T) {
	t.Parallel()
	both := claimed("c", "r", inline, "")
	both.Definition = nad.Ref{Namespace: "a", Name: "blue"}
	network := func(config string) []Claimed { return []Claimed{claimed("c", "r", config, "")} }
	const who = `claim "c", request "r"`
	for _, tt := range []struct {
		name, keys string
		claims     []Claimed
		code       uint
		says       []string
	}{
		{"neither network nor definition", "", []Claimed{{Claim: nad.Claim{UID: "u9"}}}, 7, []string{`claim "u9": `, "not both"}},
		{"network and definition", "", []Claimed{both}, 7, []string{who, "not both"}},
		{"a device twice", "", []Claimed{claimed("c", "r", inline, "x"), claimed("c", "r", inline, "y")}, 7, []string{who, "twice"}},
		{"an absent definition", "", []Claimed{claimed("c", "r", "a/absent", "")}, 7, []string{who, "no such network"}},
		{"a definition that is no JSON", "", []Claimed{claimed("c", "r", "a/bad", "")}, 6, []string{who, "NAD a/bad"}},
		{"isolation", `"namespaceIsolation":true`, []Claimed{claimed("c", "r", "b/blue", "")}, 7, []string{who, "namespaceIsolation"}},
		{"a type of a definition that is not allowed", `"allowedTypes":{"nad":["ipvlan"]}`, []Claimed{claimed("c", "r", "a/blue", "")}, 7, []string{who, "NAD a/blue", "allowedTypes"}},
		{"a type of a network that is not allowed", `"allowedTypes":{"nad":["ipvlan"]}`, network(inline), 7, []string{who, "allowedTypes"}},
		{"multinet itself", "", network(`{"type":"multinet"}`), 7, []string{who, "itself"}},
		{"a plugin of a definition that fails", "", []Claimed{claimed("c", "r", "a/full", "")}, 107, []string{who + `, NAD a/full: ADD c1 eth0: network "full" (net1)`, "no free device"}},
		{"a plugin of a network that fails", "", network(`{"type":"full","name":"own"}`), 107, []string{who + `: ADD c1 eth0: network "own" (net1)`, "no free device"}},

		{"the interface of the runtime", "", []Claimed{claimed("c", "r", inline, "eth0")}, 7, []string{who, `"multi" and "inline"`, `"eth0"`}},
		{"an interface that the pod selects", annotated("red@x0"), []Claimed{claimed("c", "r", "a/blue", "x0")}, 7, []string{`NAD a/red and ` + who + `, NAD a/blue: `, `"x0"`}},
		{"an interface of another claim", "", []Claimed{claimed("b", "q", inline, "x0"), claimed("c", "r", "a/blue", "x0")}, 7, []string{`claim "b", request "q" and ` + who, `"x0"`}},
		{"an interface that is there", "", []Claimed{claimed("c", "r", inline, "used0")}, 7, []string{who, `"used0"`, "in use"}},
		{"an interface that no kernel has", "", []Claimed{claimed("c", "r", inline, "net%d")}, 7, []string{who, `"net%d"`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.1.0")
			h.taken = []string{"lo", "used0"}
			var asked []string
			h.cluster = claiming(&asked, tt.claims...)
			more := tt.keys
			if !strings.Contains(more, "runtimeConfig") {
				more = strings.Trim(more+","+passedNothing, ",")
			}
			h.refuses(t, keys(bridge, more), tt.code, tt.says, podOf("a"))
		})
	}
}

// An error of asking for claims ends the ADD with its code, and nothing has been looked up.
// Claims are asked for even if the pod selects what it may not have: they are told of it.
func TestClaimsThatAreNotKnown(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err  error
		code uint
	}{
		{types.NewError(types.ErrTryAgainLater, "not prepared", ""), 11},
		{types.NewError(types.ErrInvalidNetworkConfig, "not prepared", ""), 7},
		{errors.New("not prepared"), 999},
	} {
		h := newHost(t, "1.0.0")
		var asked []string
		h.cluster = claiming(&asked)
		h.cluster.Claims = func(context.Context, nad.Pod) ([]Claimed, error) {
			return []Claimed{claimed("c", "r", "a/blue", "")}, tt.err
		}
		nodetest.Fails(t, h.run(t, "ADD", keys(bridge, annotated("red")), podOf("a")), tt.code, "ResourceClaims of pod a/web: ", "not prepared")
		wantTrace(t, h)
		h.clean(t)
		if len(asked) > 0 {
			t.Errorf("asked %q", asked)
		}
	}
	h := newHost(t, "1.0.0")
	var asked []string
	h.cluster = claiming(&asked)
	nodetest.Fails(t, h.run(t, "ADD", keys(bridge, annotated("[{")), podOf("a")), 6, nad.NetworksAnnotation)
	nodetest.Equal(t, "asked", asked, []string{"claims a/web u1"})
}

// Only a pod with a UID has claims, and only its ADD asks for them.
func TestWhoIsNotAskedForClaims(t *testing.T) {
	t.Parallel()
	var asked []string
	h := newHost(t, "1.1.0")
	h.cluster = claiming(&asked, claimed("c", "r", inline, ""))
	for _, args := range []string{"", "K8S_POD_UID=u1", "K8S_POD_UID=u1;K8S_POD_NAME=web", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=web", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=web;K8S_POD_UID="} {
		as := func(a *skel.CmdArgs) { a.Args = args }
		h.mustRun(t, "ADD", keys(bridge, passedNothing), as)
		wantTrace(t, h, "ADD bridge eth0")
		h.mustRun(t, "DEL", bridge, as)
		wantTrace(t, h, "DEL bridge eth0")
	}
	h.mustRun(t, "ADD", keys(bridge, passedNothing), podOf("a"))
	asked = nil
	h.mustRun(t, "CHECK", bridge, podOf("a"))
	h.mustRun(t, "STATUS", bridge, podOf("a"))
	h.mustRun(t, "GC", keys(bridge, gcFor("c1 eth0")), podOf("a"))
	h.mustRun(t, "DEL", bridge, podOf("a"))
	h.clean(t)
	if len(asked) > 0 {
		t.Errorf("asked %q", asked)
	}
}

// A claimed network is passed what all networks but the first are, and nothing else. The
// configuration is as it was written.
func TestWhatAClaimedNetworkIsPassed(t *testing.T) {
	t.Parallel()
	for _, legacy := range []string{"false", "true"} {
		h := newHost(t, "1.1.0")
		var asked []string
		h.cluster = claiming(&asked, claimed("c", "r1", "a/rich", ""), claimed("c", "r2", `{"z":1.0,"type":"tuning","vni":12345678901234567890,`+capabilities+`,"args":{"cni":{"a":1}}}`, ""))
		h.mustRun(t, "ADD", keys(bridge, `"legacyArgs":`+legacy,
			`"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{},"x":{"y":1.0},"mac":"02:00:00:00:00:09","ips":["10.0.0.1/24"],"deviceID":"d","portMappings":[{"hostPort":1,"containerPort":2}]}`),
			func(a *skel.CmdArgs) {
				podOf("a")(a)
				a.Args += ";IP=10.0.0.1;MAC=02:00:00:00:00:09;GATEWAY=10.0.0.2;FOO=bar"
			})
		want := []string{
			`{"capabilities":{"ips":true,"mac":true,"bandwidth":true,"portMappings":true,"x":true,"io.kubernetes.cri.pod-annotations":true},"cniVersion":"1.1.0","name":"rich","runtimeConfig":{"io.kubernetes.cri.pod-annotations":{},"x":{"y":1.0}},"type":"macvlan"}`,
			`{"args":{"cni":{"a":1}},` + capabilities + `,"cniVersion":"1.1.0","name":"multi","type":"tuning","vni":12345678901234567890,"z":1.0}`,
		}
		for i, c := range h.Exec.Calls()[1:] {
			if got := string(c.Stdin); got != want[i] {
				t.Errorf("stdin %s\nwant  %s", got, want[i])
			}
			if c.Args != "K8S_POD_NAME=web;IgnoreUnknown=1;K8S_POD_UID=u1;K8S_POD_NAMESPACE=a;FOO=bar" {
				t.Errorf("CNI_ARGS %s", c.Args)
			}
		}
	}
}

// The record says which device of which claim each network is attached for. The status names
// the networks as people know them.
func TestRecordSaysWhichClaimANetworkIsAttachedFor(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	shared := claimed("c", "first/sub", "a/blue", "")
	shared.Claim.Share = "s1"
	var asked []string
	h.cluster = claiming(&asked, shared, claimed("d", "r", inline, ""))
	h.mustRun(t, "ADD", keys(bridge, `"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"kubernetes.io/config.source":"api"}}`), podOf("a"))
	want := []string{
		`eth0 {"use":"cluster","podSource":"api"}`,
		`net1 {"use":"claimed","definition":"a/blue","uid":"u-blue","version":"1","claim":{"uid":"uid-c","name":"c","request":"first/sub","pool":"node","device":"a/blue","share":"s1"},"podSource":"api"}`,
		`net2 {"use":"claimed","claim":{"uid":"uid-d","name":"d","request":"r","pool":"node","device":"r"},"podSource":"api"}`,
	}
	nodetest.Equal(t, "origins", h.origins(t), want)
	var names []string
	for _, s := range NetworkStatus(recorded(t, h, "c1")) {
		names = append(names, fmt.Sprint(s.Name, " ", s.Interface, " ", s.Default))
	}
	nodetest.Equal(t, "status", names, []string{"multi eth0 true", "a/blue net1 false", "inline net2 false"})
}

// with returns c with claims.
func (c Cluster) with(claims ...Claimed) Cluster {
	c.Claims = func(context.Context, nad.Pod) ([]Claimed, error) { return claims, nil }
	return c
}
