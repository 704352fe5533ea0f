package main

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// passed waits until the daemon has passed over all pods, of which one was edited last.
func (w *world) passed(t *testing.T) {
	t.Helper()
	w.edit("last", "green")
	w.wantNetworks(t, "last", "net1 ns/green")
	w.edit("last", "")
	w.wantNetworks(t, "last")
}

// lists are the requests for one pod.
func (w *world) lists() (n int) {
	for _, r := range w.api.Requests() {
		if r.Verb == "list" && strings.Contains(r.Query, "metadata.name") {
			n++
		}
	}
	return n
}

// A connection to the API server can be half open for minutes. What the daemon knew before an ADD
// detaches nothing that the ADD has attached; neither does it while the API server is away.
func TestNothingIsDetachedByWhatASilentWatchHasShown(t *testing.T) {
	t.Parallel()
	w := newFollowing(t, "").start(t)
	a := w.pod(t, "one")
	w.edit("one", "blue")
	w.until(t, "the pod is known", func() bool { return w.metric(t, `multinetd_view_objects{resource="pods"}`) == 1 })
	before := w.api.Count("list", "pods")
	heal := w.api.Break(kubetest.Fault{Verb: "watch", Resource: "pods", BlackHole: true})
	w.edit("one", "blue,green")
	away := w.api.Break(kubetest.Fault{Verb: "list", Resource: "pods", Status: 500})
	want(t, "ADD", w.command(t, "ADD", a, annotated("blue,green")), 0, "")
	w.until(t, "it is asked", func() bool { return w.api.Count("list", "pods") > before+1 })
	away()
	asked := w.lists()
	w.until(t, "it is answered", func() bool { return w.lists() > asked })
	nodetest.Equal(t, "networks", w.recorded(t, "c-one"), []string{"net1 ns/blue", "net2 ns/green"})
	w.edit("one", "green")
	heal()
	w.wantNetworks(t, "one", "net2 ns/green")
	if got := w.final(t)[`multinetd_reconciles_total{action="detach",outcome="ok"}`]; got != 1 {
		t.Errorf("%v networks were detached", got)
	}
}

// A pod that is deleted by force is followed by one of the same name, while its container runs
// on. A runtime that does not tell the UID makes them look the same.
func TestPodWithoutAUIDIsLeftAlone(t *testing.T) {
	t.Parallel()
	w := newFollowing(t, "")
	w.start(t)
	w.add(t, "last", "")
	one := w.pod(t, "one")
	w.edit("one", "blue")
	one.Args, _, _ = strings.Cut(one.Args, ";K8S_POD_UID=")
	want(t, "ADD", w.command(t, "ADD", one, annotated("blue")), 0, "")
	kubetest.Delete[corev1.Pod](w.api, "ns", "one")
	w.pod(t, "one")
	w.edit("one", "green")
	w.until(t, "it is logged", func() bool { return strings.Contains(w.logged.String(), "K8S_POD_UID") })
	w.passed(t)
	nodetest.Equal(t, "networks", w.recorded(t, "c-one"), []string{"net1 ns/blue"})
}

// The database of the API server is replaced by a copy from before an edit. The status of the pod
// is written again, and its networks stay, whichever daemon runs then, until somebody edits the
// pod. What was restored while no daemon ran counts as what the API server has, if the pod has a
// status: the last daemon may have ended before it wrote another.
func TestNothingIsDetachedByAnOlderDatabase(t *testing.T) {
	t.Parallel()
	for name, during := range map[string]func(t *testing.T, w *world, restore func()) *world{
		"while the daemon runs": func(t *testing.T, w *world, restore func()) *world {
			t.Helper()
			restore()
			w.api.SetToken("new") // otherwise the watch would be silent for three minutes
			_, err := w.api.Kubeconfig(w.dir)
			nodetest.OK(t, err)
			return w
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFollowing(t, "").start(t)
			w.add(t, "last", "")
			w.add(t, "one", "blue")
			w.wantNetworks(t, "one", "net1 ns/blue")
			restore := w.api.Backup()
			w.edit("one", "blue,green")
			w.wantNetworks(t, "one", "net1 ns/blue", "net2 ns/green")
			w = during(t, w, restore)
			both := []string{"net1 ns/blue", "net2 ns/green"}
			w.until(t, "there is an Event", func() bool { return w.told("one", "NetworksIgnored", "edit the annotation") > 0 })
			w.wantNetworks(t, "one", both...)
			w = w.next(t, following).start(t)
			w.passed(t)
			w.until(t, "the pod differs", func() bool { return w.metric(t, "multinetd_pods_differing") == 1 })
			w.wantNetworks(t, "one", both...)
			w.edit("one", "blue,green")
			w.until(t, "the pod does not differ", func() bool { return w.metric(t, "multinetd_pods_differing") == 0 })
			w.edit("one", "blue")
			w.wantNetworks(t, "one", "net1 ns/blue")
		})
	}
}
