package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/delegate/kube/kubetest"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf/nad"
)

const fromAPI = `,"annotations":"api","nodeName":"n1","podWait":"50ms"`

// selecting changes the pod ns/name so that it selects networks.
func (tn *town) selecting(name, selection string, edits ...func(*corev1.Pod)) {
	p := tn.api.Pod("ns", name)
	p.Annotations = map[string]string{nad.NetworksAnnotation: selection}
	for _, edit := range edits {
		edit(p)
	}
	tn.api.SetPod(p)
}

// known waits until the daemon knows the pods.
func (tn *town) known(t *testing.T, pods float64) {
	t.Helper()
	tn.until(t, "the pods are known", func() bool {
		_, text := tn.get(t, "/metrics")
		return series(t, text)[`multinetd_view_objects{resource="pods"}`] == pods
	})
}

// Where the runtime passes no annotations, the API server has them: those of the very
// pod. An ADD of a pod that is not there has to be tried again, and attaches nothing.
func TestAnnotationsOfTheAPI(t *testing.T) {
	t.Parallel()
	tn := newTown(t, fromAPI+`,"events":"off"`).start(t)
	one, recreated, gone, static := tn.pod(t, "one"), tn.pod(t, "recreated"), tn.pod(t, "gone"), tn.pod(t, "static")
	tn.selecting("one", "blue")
	tn.api.DeletePod("ns", "gone")
	tn.api.DeletePod("ns", "recreated")
	tn.pod(t, "recreated")
	tn.selecting("static", "blue", func(p *corev1.Pod) {
		p.Annotations["kubernetes.io/config.mirror"], p.Annotations["kubernetes.io/config.source"] = "hash", "file"
	})
	static.Args = "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=static;K8S_POD_UID=hash"
	tn.known(t, 3)
	for name, tt := range map[string]struct {
		args *skel.CmdArgs
		code uint
	}{"one": {one, 0}, "static": {static, 0}, "recreated": {recreated, 11}, "gone": {gone, 11}} {
		want(t, name, tn.command(t, "ADD", tt.args, bridge), tt.code, "pod ns/"+name)
		if got := tn.status(name); (got == blueStatus) != (tt.code == 0) {
			t.Errorf("%s has the status %s", name, got)
		}
	}
	live := tn.fake.Live()
	if len(live) != 4 {
		t.Errorf("attached: %q", live)
	}
	for _, a := range []*skel.CmdArgs{one, static, recreated, gone} {
		want(t, "DEL", tn.command(t, "DEL", a, bridge), 0, "")
	}
	tn.clean(t)
}

// A pod in the network of its node gets no networks, and an Event says so.
func TestNetworksOfPodsInTheNodesNetworkAreIgnored(t *testing.T) {
	t.Parallel()
	tn := newTown(t, fromAPI)
	hostNetwork := func(p *corev1.Pod) { p.Spec.HostNetwork = true }
	for name, selection := range map[string]string{"one": "blue", "two": "", "three": "[]"} {
		tn.pod(t, name)
		tn.selecting(name, selection, hostNetwork)
	}
	tn.pod(t, "four")
	tn.selecting("four", "blue")
	tn.start(t)
	tn.known(t, 4)
	tn.until(t, "there is an Event", func() bool { return len(tn.api.Events()) > 0 })
	nodetest.OK(t, tn.stop())
	if got := strings.Join(tn.reasons(), ", "); got != "Pod one NetworksIgnored" {
		t.Errorf("Events: %s", got)
	}
}

// A name in the configuration is that of a definition or, if there is none, of a file.
// An ADD does not wait for it, and makes no request.
func TestStandingNetworksAreDefinitionsOrFiles(t *testing.T) {
	t.Parallel()
	tn := newTown(t, `,"events":"off","statusPolicy":"async","nadWait":"1h","confDir":"$DIR/net.d","clusterNetwork":"pods","defaultNetworks":["red"],"multusNamespace":"other"`)
	for name, typ := range map[string]string{"pods": "bridge", "red": "full"} {
		text := fmt.Sprintf(`{"cniVersion":"1.0.0","name":%q,"type":%q}`, name, typ)
		nodetest.OK(t, errors.Join(os.MkdirAll(tn.dir+"/net.d", 0o755), os.WriteFile(tn.dir+"/net.d/"+name+".conf", []byte(text), 0o600)))
	}
	tn.start(t)
	a := tn.pod(t, "one")
	heal := tn.api.Break(kubetest.Fault{Verb: "get", BlackHole: true})
	defer heal()
	want(t, "ADD", tn.command(t, "ADD", a, annotated("")), 0, "")
	tn.wantTrace(t, "ADD bridge eth0", "ADD macvlan net1")
	tn.until(t, "the status is written", func() bool { return strings.Contains(tn.status("one"), `"other/red"`) })
	if n := tn.api.Count("get", ""); n > 0 {
		t.Errorf("%d requests", n)
	}
}

const startupTaint = "multinetd.metacni.io/not-ready"

// newNode makes a daemon that publishes its network, on a node with its taint and another
// one. There is no primary network yet.
func newNode(t *testing.T, keys string) *town {
	t.Helper()
	tn := newTown(t, `,"events":"off","nodeName":"n1","multusConfigFile":"auto","cniConfigDir":"$DIR","cniCacheDir":"$DIR/cni","multusStateDir":"$DIR/multus"`+keys)
	tn.api.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{
		{Key: startupTaint, Effect: corev1.TaintEffectNoSchedule}, {Key: "other", Effect: corev1.TaintEffectNoExecute},
	}}})
	return tn
}

func (tn *town) taints() []corev1.Taint { return tn.api.Node("n1").Spec.Taints }

// The taint of a new node stays until the daemon has published its network. Then it goes,
// once, and the others stay.
func TestStartupTaintIsRemovedWhenTheNetworkIsPublished(t *testing.T) {
	t.Parallel()
	tn := newNode(t, `,"startupTaint":"`+startupTaint+`"`)
	heal := tn.api.Break(kubetest.Fault{Verb: "patch", Resource: "nodes", Status: 403, Times: 1})
	defer heal()
	tn.begin(t)
	tn.until(t, "the definitions are known", func() bool {
		ok, err := tn.cluster.Probe(t.Context())
		return ok && err == nil
	})
	if n := tn.api.Count("", "nodes"); n != 0 || len(tn.taints()) != 2 {
		t.Errorf("%d requests and taints %v before there is a network", n, tn.taints())
	}
	tn.put(t, "10-x.conflist", `{"cniVersion":"1.1.0","name":"blue","plugins":[{"type":"bridge"}]}`)
	if got := <-tn.states; got != "READY=1" {
		t.Fatalf("the service manager is told %s", got)
	}
	tn.until(t, "the taint is removed", func() bool { return len(tn.taints()) == 1 })
	if got := tn.taints()[0].Key; got != "other" {
		t.Errorf("the taint %s is left", got)
	}
	again := tn.api.Node("n1")
	again.Spec.Taints = append(again.Spec.Taints, corev1.Taint{Key: startupTaint, Effect: corev1.TaintEffectNoSchedule})
	tn.api.SetNode(again)
	nodetest.OK(t, tn.stop())
	if n := tn.api.Count("patch", "nodes"); n != 2 || len(tn.taints()) != 2 {
		t.Errorf("%d patches, taints %v: want one after the one that was refused", n, tn.taints())
	}
}
