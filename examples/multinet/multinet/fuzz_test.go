package multinet

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// Whatever a pod and its claim ask for, and whatever a definition says, an ADD either succeeds
// and is removed completely by DEL, or fails and leaves nothing. A mistake of the pod is found
// before anything runs, and has a code below 100. With isolation nothing of another
// namespace is attached.
func FuzzADD(f *testing.F) {
	for _, networks := range []string{
		"", "blue", "b/blue", "fast@x,fast", `[{"name":"blue","cni-args":{"a":1}}]`, `[{"name":"blue","cni-args":5}]`, `[1]`, `[[]]`, `{}`, `"`, `[{"name":"blue","ips":["x"]}]`,
		`[{"name":"blue","default-route":["10.0.0.1"]}]`, `[{"name":5}]`, `[{"name":null}]`, `[{"name":"blue","namespace":"b"}]`, `[null]`, "blue@eth0", "a/a/a", "blue@@", ",",
	} {
		f.Add(networks, networks, `{"plugins":[{"type":"macvlan","args":{"cni":{"a":2}}}]}`, "", "")
	}
	for _, definition := range []string{`{"type":"macvlan"}`, `{"type":"macvlan","args":5}`, `{"type":"macvlan","args":{"cni":[]}}`, `[]`, ``} {
		f.Add(`[{"name":"blue","cni-args":{"a":1}}]`, "", definition, "", "")
		f.Add("", "blue", definition, "", "")
	}
	for _, claim := range []string{
		"", "a/blue", "b/blue", "blue", "/", "a/fast", "a/a/a", `{"type":"macvlan"}`, `{"type":"full"}`, `{"type":"multus"}`, `{"plugins":[{"type":"tuning"},{"type":"stuck"}]}`,
		`{"type":"tuning","name":""}`, `{"type":"tuning","cniVersion":"0.2.0"}`, `{"type":"tuning","prevResult":5}`, `{"type":"tuning","x":1e999}`, `{"type":"tuning","cniVersions":["1.1.0"]}`,
	} {
		for _, ifName := range []string{"", "eth0", "net1", "x", "net%d"} {
			f.Add("blue@x", "", `{"type":"macvlan"}`, claim, ifName)
		}
	}
	f.Fuzz(func(t *testing.T, networks, primary, definition, claim, ifName string) {
		h := newHost(t, "1.1.0")
		delete(h.Exec.Plugins, "stuck") // whose DEL fails
		h.Write("net.d/a/blue.conf", definition)
		h.Write("net.d/kube-system/blue.conf", definition)
		h.Write("net.d/b/blue.conf", `{"type":"macvlan","foreign":"`+h.Dir+`"}`)
		annotations, err := json.Marshal(map[string]string{nad.NetworksAnnotation: networks, nad.DefaultNetworkAnnotation: primary})
		nodetest.OK(t, err)
		conf := h.conf(keys(bridge, `"namespaceIsolation":true`, `"runtimeConfig":{"io.kubernetes.cri.pod-annotations":`+string(annotations)+`}`))
		args := skel.CmdArgs{
			ContainerID: "c1", IfName: "eth0", Netns: h.Dir + "/absent", Args: "K8S_POD_NAMESPACE=a;K8S_POD_NAME=p;K8S_POD_UID=u1", StdinData: []byte(conf),
		}
		err = New(Cluster{}.with(fuzzed(claim, ifName)...)).Do(t.Context(), h.process(), delegate.CommandAdd, args)
		for _, c := range h.Exec.Calls() {
			var in map[string]any
			if err := json.Unmarshal(c.Stdin, &in); err != nil || in["foreign"] == h.Dir {
				t.Errorf("%s with %s", c, c.Stdin)
			}
		}
		if err == nil {
			h.mustRun(t, "DEL", bridge, podOf("a"))
		} else if code := status.Code(err); code >= 100 && len(h.Exec.Calls()) == 0 {
			t.Errorf("code %d: %v", code, err)
		}
		h.clean(t)
	})
}

// fuzzed returns what a claim asks for: a network or, if claim is none, the name of a
// definition, which is invalid in most cases.
func fuzzed(claim, ifName string) []Claimed {
	c := Claimed{Claim: nad.Claim{UID: "u", Name: claim, Request: ifName}, IfName: ifName}
	n, err := netconf.Parse([]byte(claim))
	switch {
	case claim == "":
		return nil
	case err == nil:
		c.Network = n
	default:
		c.Definition.Namespace, c.Definition.Name, _ = strings.Cut(claim, "/")
	}
	return []Claimed{c}
}

// Whatever a pod asks for, and whatever a definition says: a review refuses nothing that an
// ADD accepts. What an ADD refuses before it runs a plugin, the review refuses as well, with
// the same code, except for what only the cluster and the node know: whether a network and a
// plugin exist, what a network can do for a pod that asks for it, and its devices.
func FuzzReview(f *testing.F) {
	const good = `{"type":"macvlan"}`
	for _, networks := range []string{
		"", " ", "blue", "b/blue", "default/blue,a/blue", "absent", "blue@x,blue", "blue@x,blue@x", "blue@eth0", "blue@lo", "blue@all", "blue@a:b", "blue@%d", "blue@-x", "blue@net1,blue", "blue@\u00a0",
		"Blue", "a/a/a", "blue@@", ",", "/blue", "a_b", "-a", "blue.x", "A/blue", `{}`, `"`, `[1]`, `[[]]`, `[null]`, `[]`, `[{"name":5}]`, `[{"name":"blue"},]`, `[{}]`, "\xff",
		`[{"name":"blue","cni-args":{"a":1}}]`, `[{"name":"blue","cni-args":5}]`, `[{"name":"blue","ips":["10.0.0.1"]}]`, `[{"name":"blue","ips":["x"]}]`, `[{"name":"blue","mac":"x"}]`,
		`[{"name":"blue","mac":"02:00:00:00:00:01"}]`, `[{"name":"blue","deviceID":"0000:00:00.1"}]`, `[{"name":"blue","infiniband-guid":"01"}]`, `[{"name":"blue","bandwidth":{"ingressBurst":1}}]`,
		`[{"name":"blue","portMappings":[{"hostPort":0}]}]`, `[{"name":"blue","default-route":["10.0.0.1"]}]`, `[{"name":"blue","default-route":["10.0.0.1"]},{"name":"blue","default-route":["10.0.0.2"]}]`,
		`[{"name":"blue","ips":["10.0.0.1"],"ipam-claim-reference":"c"}]`, `[{"name":"blue","namespace":"b"}]`, `[{"name":"blue","interface":"eth0"}]`, `[{"name":"blue","interfaceRequest":"much-too-long-for-it"}]`,
	} {
		f.Add(networks, "", good, true)
		f.Add(networks, networks, good, false)
	}
	for _, definition := range []string{
		"", " \n\t", "{", "{}", "[]", "null", "5", `""`, "\x00", "\ufeff{}", `{"type":"macvlan"} x`, `{"type":"macvlan","type":"tuning"}`, `{"TYPE":"macvlan"}`, `{"type":5}`, `{"type":""}`, `{"type":"tuning"}`,
		`{"type":"bridge"}`, `{"type":"absent"}`, `{"type":"../macvlan"}`, `{"type":".."}`, `{"type":"multinet"}`, `{"type":"multus-shim"}`, `{"type":"macvlan","name":""}`, `{"type":"macvlan","name":5}`,
		`{"type":"macvlan","name":"a/b"}`, `{"type":"macvlan","name":"other"}`, `{"type":"macvlan","cniVersion":""}`, `{"type":"macvlan","cniVersion":"9.9.9"}`, `{"type":"macvlan","cniVersion":"new"}`,
		`{"type":"macvlan","cniVersion":5}`, `{"type":"macvlan","cniVersions":["1.0.0","1.1.0"]}`, `{"type":"macvlan","cniVersions":["x"]}`, `{"type":"macvlan","cniVersions":[]}`, `{"type":"macvlan","args":5}`,
		`{"type":"macvlan","args":{"cni":[]}}`, `{"type":"macvlan","ipam":{"type":"host-local"}}`, `{"type":"macvlan","ipam":{"type":"../x"}}`, `{"type":"macvlan","IPAM":{"Type":"dhcp"}}`, `{"type":"macvlan","ipam":5}`,
		`{"type":"macvlan","capabilities":{"ips":true}}`, `{"type":"macvlan","capabilities":5}`, `{"type":"macvlan","capabilities":{"ips":5}}`, `{"type":"macvlan","runtimeConfig":5}`, `{"type":"macvlan","prevResult":5}`,
		`{"type":"macvlan","dns":5}`, `{"type":"macvlan","disableCheck":5}`, `{"plugins":[]}`, `{"plugins":{}}`, `{"plugins":[null]}`, `{"plugins":[{}]}`, `{"plugins":[{"type":"macvlan"},{"type":"tuning","args":[]}]}`,
		`{"plugins":[{"type":"macvlan"}],"disableCheck":"x"}`, `{"plugins":[{"type":"macvlan"}],"loadOnlyInlinedPlugins":false}`, `{"plugins":[{"type":"macvlan","cniVersion":"x"}]}`, `{"plugins":[{"type":"macvlan"}],"type":"tuning"}`,
		`{"type":"macvlan","n":1e999}`, `{"type":"macvlan","n":12345678901234567890}`, `{"type":"macvlan","s":"\ud800"}`, `{"type":"macvlan","plugins":null}`,
	} {
		f.Add("blue", "", definition, true)
		f.Add("blue", "blue", definition, false)
	}
	f.Fuzz(func(t *testing.T, networks, primary, config string, strict bool) {
		h := newHost(t, "1.1.0")
		h.cluster.Definition = func(_ context.Context, r nad.Ref, _ nad.Use) (nad.Definition, error) {
			if r.Name != "blue" {
				return nad.Definition{}, &nad.Error{Ref: r, Err: netconf.ErrNotFound}
			}
			return nad.Definition{Ref: r, Config: config}, nil
		}
		policy := bridge
		if strict {
			policy = keys(bridge, `"namespaceIsolation":true,"podDefaultNetwork":false,"allowedTypes":{"nad":["macvlan","host-local"]}`)
		}
		annotations := map[string]string{nad.NetworksAnnotation: networks, nad.DefaultNetworkAnnotation: primary}
		text, err := json.Marshal(annotations)
		nodetest.OK(t, err)
		nodetest.OK(t, json.Unmarshal(text, &annotations))
		conf := h.conf(keys(policy, `"runtimeConfig":{"io.kubernetes.cri.pod-annotations":`+string(text)+`}`))
		add := New(h.cluster).Do(t.Context(), h.process(), delegate.CommandAdd, skel.CmdArgs{
			ContainerID: "c1", IfName: "eth0", Netns: h.Dir + "/absent", Args: "K8S_POD_NAMESPACE=a;K8S_POD_NAME=p", StdinData: []byte(conf),
		})
		reviews := h.review(t, policy, annotations, config)
		refused := slices.ContainsFunc(reviews, func(err error) bool { return err != nil })
		foreseen := slices.ContainsFunc(reviews, func(err error) bool { return status.Code(err) == status.Code(add) })
		ran := len(h.Exec.Calls()) > 0
		if refused && (add == nil || ran) || !foreseen && !ran && !unknownToReviews(add) {
			t.Errorf("ADD: code %d, %v\nreviews: %v", status.Code(add), add, reviews)
		}
	})
}

// review returns what the reviews say of a pod of the namespace a and of the definition blue,
// if the pod selects it.
func (h *host) review(t *testing.T, policy string, annotations map[string]string, config string) []error {
	t.Helper()
	r := h.reviewer(t, policy)
	all := []error{r.Pod("a", annotations)}
	for _, annotation := range annotations {
		selections, err := netconf.ParseSelection(annotation)
		if err == nil && slices.ContainsFunc(selections, func(s netconf.Selection) bool { return s.Name == "blue" }) {
			all = append(all, r.Definition(nad.Definition{Ref: nad.Ref{Namespace: "a", Name: "blue"}, Config: config}))
		}
	}
	return all
}

// unknownToReviews reports whether an ADD has failed because of the cluster, of the node, or
// of what a pod asks of a network.
func unknownToReviews(add error) bool {
	var about *netconf.Error
	return errors.Is(add, netconf.ErrNotFound) || errors.Is(add, delegate.ErrPluginNotFound) ||
		errors.As(add, &about) && (about.Key == "deviceID" || about.Key == "ips" || about.Key == "mac" || about.Key == "infiniband-guid" || about.Key == "bandwidth" || about.Key == "portMappings")
}
