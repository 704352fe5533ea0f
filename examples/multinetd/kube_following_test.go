package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"

	"github.com/containernetworking/cni/pkg/skel"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/metacni/metacni/delegate/kube/kubetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

const following = `,"reconcile":true,"nodeName":"n1"`

// newFollowing makes a daemon that follows what running pods select. There are the
// definitions ns/green and ns/full as well, whose plugin has no free device.
func newFollowing(t testing.TB, keys string) *town {
	t.Helper()
	tn := newTown(t, following+keys)
	tn.api.SetDefinition(kubetest.Definition{Namespace: "ns", Name: "green", Config: `{"cniVersion":"1.0.0","type":"bridge"}`})
	tn.api.SetDefinition(kubetest.Definition{Namespace: "ns", Name: "full", Config: `{"cniVersion":"1.0.0","type":"full"}`})
	return tn
}

// again is another daemon in place of this one, which has ended.
func (tn *town) again(t testing.TB, keys string) *town {
	t.Helper()
	if tn.stop != nil {
		nodetest.OK(t, tn.stop())
	}
	next := newTownIn(t, tn.dir, tn.api, following+keys)
	next.exec, next.fake = tn.fake, tn.fake
	return next
}

// edit changes what a pod selects, and nothing else.
func (tn *town) edit(t testing.TB, name, selection string) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{nad.NetworksAnnotation: selection}}})
	nodetest.OK(t, err)
	client, err := kubernetes.NewForConfig(tn.api.Config())
	nodetest.OK(t, err)
	tn.until(t, "the API answers", func() bool { // on a busy machine a handshake may take too long
		_, err = client.CoreV1().Pods("ns").Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err == nil
	})
}

// add has a pod that selects networks attached.
func (tn *town) add(t testing.TB, name, selection string) *skel.CmdArgs {
	t.Helper()
	a := tn.pod(t, name)
	tn.edit(t, name, selection)
	a.StdinData = []byte(conf(annotated(selection)))
	nodetest.OK(t, tn.client.Execute(t.Context(), "ADD", a))
	return a
}

// metric is the value of a metric with its labels.
func (tn *town) metric(t *testing.T, name string) float64 {
	t.Helper()
	_, text := tn.get(t, "/metrics")
	return series(t, text)[name]
}

// recorded are the attachments of a container, as "net1 ns/blue", without the primary.
func (tn *town) recorded(t testing.TB, container string) (all []string) {
	t.Helper()
	rs, err := (&lifecycle.Manager{Dir: tn.conf.stateDir}).Container(t.Context(), container)
	nodetest.OK(t, err)
	for _, r := range rs {
		for i, a := range r.Attached {
			line := a.IfName + " " + cmp.Or(nad.ParseOrigin(a.Origin).Definition.String(), a.Network.Name())
			if !r.Whole(i) {
				line += " half"
			}
			if a.IfName != r.Key.IfName {
				all = append(all, line)
			}
		}
	}
	return all
}

// shown are the networks in the status of a pod, as recorded.
func (tn *town) shown(t testing.TB, name string) (all []string) {
	t.Helper()
	var networks []status.Network
	if text := tn.status(name); text != "" {
		nodetest.OK(t, json.Unmarshal([]byte(text), &networks))
	}
	for _, n := range networks {
		if !n.Default {
			all = append(all, n.Interface+" "+n.Name)
		}
	}
	return all
}

// wantNetworks waits until a pod has these networks: in the record, in the status, and
// attached by plugins.
func (tn *town) wantNetworks(t testing.TB, name string, want ...string) {
	t.Helper()
	var recorded, shown []string
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("pod %s: recorded %q, shown %q, want %q", name, recorded, shown, want)
		}
	})
	tn.until(t, fmt.Sprintf("pod %s has %q", name, want), func() bool {
		recorded, shown = tn.recorded(t, "c-"+name), tn.shown(t, name)
		return slices.Equal(recorded, want) && slices.Equal(shown, want)
	})
	attached := 0
	for _, live := range tn.fake.Live() {
		if strings.Contains(live, " c-"+name+" ") {
			attached++
		}
	}
	if attached != len(want)+1 {
		t.Errorf("attached %q, want %q and the primary", tn.fake.Live(), want)
	}
}
