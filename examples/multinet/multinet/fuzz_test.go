package multinet

import (
	"encoding/json"
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
		for _, definition := range []string{
			`{"type":"macvlan"}`, `{"plugins":[{"type":"macvlan","args":{"cni":{"a":2}}}]}`, `{"type":"macvlan","args":5}`, `{"type":"macvlan","args":{"cni":[]}}`, `[]`, ``,
		} {
			f.Add(networks, "", definition, "", "")
			f.Add("", networks, definition, "", "")
		}
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
		delete(h.exec.Plugins, "stuck") // whose DEL fails
		h.write(t, "net.d/a/blue.conf", definition)
		h.write(t, "net.d/kube-system/blue.conf", definition)
		h.write(t, "net.d/b/blue.conf", `{"type":"macvlan","foreign":"`+h.dir+`"}`)
		annotations, err := json.Marshal(map[string]string{nad.NetworksAnnotation: networks, nad.DefaultNetworkAnnotation: primary})
		nodetest.OK(t, err)
		conf := h.conf(keys(bridge, `"namespaceIsolation":true`, `"runtimeConfig":{"io.kubernetes.cri.pod-annotations":`+string(annotations)+`}`))
		args := skel.CmdArgs{
			ContainerID: "c1", IfName: "eth0", Netns: h.dir + "/absent", Args: "K8S_POD_NAMESPACE=a;K8S_POD_NAME=p;K8S_POD_UID=u1", StdinData: []byte(conf),
		}
		err = New(Cluster{}.with(fuzzed(claim, ifName)...)).Do(t.Context(), h.process(), delegate.CommandAdd, args)
		for _, c := range h.exec.Calls() {
			var in map[string]any
			if err := json.Unmarshal(c.Stdin, &in); err != nil || in["foreign"] == h.dir {
				t.Errorf("%s with %s", c, c.Stdin)
			}
		}
		if err == nil {
			h.mustRun(t, "DEL", bridge, podOf("a"))
		} else if code := status.Code(err); code >= 100 && len(h.exec.Calls()) == 0 {
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
