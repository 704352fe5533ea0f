package main

import (
	"testing"

	"github.com/metacni/metacni/internal/nodetest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/delegate/kube/kubetest"
)

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
