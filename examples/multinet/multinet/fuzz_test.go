package multinet

import (
	"encoding/json"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// Whatever a pod asks for, and whatever a definition says, an ADD either succeeds and is
// removed completely by DEL, or fails and leaves nothing. A mistake of the pod is found
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
			f.Add(networks, "", definition)
			f.Add("", networks, definition)
		}
	}
	f.Fuzz(func(t *testing.T, networks, primary, definition string) {
		h := newHost(t, "1.1.0")
		h.write(t, "net.d/a/blue.conf", definition)
		h.write(t, "net.d/kube-system/blue.conf", definition)
		h.write(t, "net.d/b/blue.conf", `{"type":"macvlan","foreign":true}`)
		annotations, err := json.Marshal(map[string]string{nad.NetworksAnnotation: networks, nad.DefaultNetworkAnnotation: primary})
		if err != nil {
			t.Fatal(err)
		}
		conf := h.conf(keys(bridge, `"namespaceIsolation":true`, `"runtimeConfig":{"io.kubernetes.cri.pod-annotations":`+string(annotations)+`}`))
		args := skel.CmdArgs{
			ContainerID: "c1", IfName: "eth0", Netns: h.dir + "/absent", Args: "K8S_POD_NAMESPACE=a;K8S_POD_NAME=p", StdinData: []byte(conf),
		}
		err = New(Cluster{}).Do(t.Context(), h.process(), delegate.CommandAdd, args)
		for _, c := range h.exec.Calls() {
			var in struct{ Foreign bool }
			if err := json.Unmarshal(c.Stdin, &in); err != nil || in.Foreign {
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
