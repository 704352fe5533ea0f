package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"

	"github.com/containernetworking/cni/pkg/skel"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/delegate/kube/kubetest"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// A town is a world in a cluster that has the definitions ns/blue, ns/broken and
// other/red.
type town struct {
	*world
	api *kubetest.Server
}

// newTown makes a daemon with more keys, in a cluster.
func newTown(t testing.TB, keys string) *town {
	t.Helper()
	api := kubetest.NewServer()
	t.Cleanup(api.Close)
	for _, d := range []kubetest.Definition{
		{Namespace: "ns", Name: "blue", Config: `{"cniVersion":"1.0.0","type":"macvlan","capabilities":{"mac":true}}`},
		{Namespace: "ns", Name: "broken", Config: `{"type":"../../macvlan"}`},
		{Namespace: "other", Name: "red", Config: `{"cniVersion":"1.0.0","type":"macvlan"}`},
	} {
		api.SetDefinition(d)
	}
	return newTownIn(t, nodetest.ShortDir(t), api, keys)
}

// newTownIn makes a daemon in dir, in which there may have been others.
func newTownIn(t testing.TB, dir string, api *kubetest.Server, keys string) *town {
	t.Helper()
	kubeconfig, err := api.Kubeconfig(dir)
	nodetest.OK(t, err)
	w := newWorldIn(t, dir, fmt.Sprintf(`,"kubeconfig":%q%s`, kubeconfig, strings.ReplaceAll(keys, "$DIR", dir)))
	return &town{w, api}
}

// start starts the daemon, and returns once it knows the definitions.
func (tn *town) start(t testing.TB) *town {
	t.Helper()
	tn.world.start(t)
	tn.until(t, "the definitions are known", func() bool {
		ok, err := tn.cluster.Probe(t.Context())
		return ok && err == nil
	})
	return tn
}

// until waits until done, which depends on what the API server does, is true.
func (tn *town) until(t testing.TB, what string, done func() bool) {
	t.Helper()
	nodetest.Until(t, what, done, tn.logged)
}

// pod makes the pod ns/name and returns the arguments of commands for its container.
func (tn *town) pod(t testing.TB, name string) *skel.CmdArgs {
	t.Helper()
	p := tn.api.SetPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: corev1.PodSpec{NodeName: "n1"}})
	a := tn.args("")
	a.ContainerID = "c-" + name
	a.Args = fmt.Sprintf("IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=%s;K8S_POD_INFRA_CONTAINER_ID=%s;K8S_POD_UID=%s", name, a.ContainerID, p.UID)
	return a
}

// annotated are keys with the annotations that the runtime passes, of a pod that selects
// networks.
func annotated(selection string) string {
	annotations := map[string]string{"kubernetes.io/config.source": "api"}
	if selection != "" {
		annotations[nad.NetworksAnnotation] = selection
	}
	text, _ := json.Marshal(annotations) //nolint:errchkjson // strings
	return bridge + `,"runtimeConfig":{"io.kubernetes.cri.pod-annotations":` + string(text) + `}`
}

func (tn *town) command(t *testing.T, command string, a *skel.CmdArgs, keys string) error {
	t.Helper()
	a.StdinData = []byte(conf(keys))
	return tn.client.Execute(t.Context(), command, a)
}

// want fails unless err has this code and text. Code 0 is no error.
func want(t *testing.T, what string, err error, code uint, text string) {
	t.Helper()
	if status.Code(err) != code || err != nil && !strings.Contains(err.Error(), text) {
		t.Errorf("%s: code %d, want %d and %q: %v", what, status.Code(err), code, text, err)
	}
}

// status returns the annotation network-status that the API server has.
func (tn *town) status(name string) string {
	p := tn.api.Pod("ns", name)
	if p == nil {
		return ""
	}
	return p.Annotations[status.NetworkStatusAnnotation]
}

// writes is the number of requests that are not for watching.
func (tn *town) writes() map[string]int {
	n := make(map[string]int)
	for _, r := range tn.api.Requests() {
		if r.Verb != "list" && r.Verb != "watch" {
			n[r.Verb+" "+r.Resource]++
		}
	}
	return n
}

func (tn *town) wantWrites(t *testing.T, want map[string]int) {
	t.Helper()
	nodetest.Equal(t, "requests", tn.writes(), want)
}

// reasons are those of the Events on objects, such as "Pod one AddedInterface", in order.
func (tn *town) reasons() []string {
	var all []string
	for _, e := range tn.api.Events() {
		all = append(all, e.Regarding.Kind+" "+e.Regarding.Name+" "+e.Reason)
	}
	return all
}

const blueStatus = `[{"name":"multi","interface":"eth0","ips":["10.9.0.2"],"default":true},{"name":"ns/blue","interface":"net1","ips":["10.9.1.2"]}]`

// Per pod there are one patch and one Event. The ADD waits for the patch and for nothing
// else, and DEL makes no request.
func TestRequestsOfAPodAreCounted(t *testing.T) {
	t.Parallel()
	tn := newTown(t, "").start(t)
	a := tn.pod(t, "one")
	nodetest.OK(t, tn.command(t, "ADD", a, annotated("blue")))
	if got := tn.status("one"); got != blueStatus {
		t.Errorf("status %s", got)
	}
	want := map[string]int{"patch pods/status": 1, "create events": 1}
	tn.until(t, "the Event is written", func() bool { return len(tn.api.Events()) == 1 })
	tn.wantWrites(t, want)
	e := tn.api.Events()[0]
	if e.Reason != "AddedInterface" || e.Note != "Add eth0 [10.9.0.2] from multi, net1 [10.9.1.2] from ns/blue" || string(e.Regarding.UID) == "" {
		t.Errorf("Event %s about %+v: %s", e.Reason, e.Regarding, e.Note)
	}
	for _, command := range []string{"CHECK", "STATUS", "GC", "DEL", "DEL"} {
		keys := annotated("blue")
		if command == "GC" {
			keys += `,"cni.dev/valid-attachments":[{"containerID":"c-one","ifname":"eth0"}]`
		}
		if err := tn.command(t, command, a, keys); err != nil {
			t.Errorf("%s: %v", command, err)
		}
	}
	nodetest.OK(t, tn.stop())
	tn.wantWrites(t, want)
	if n := tn.api.Count("", "pods"); n != 0 {
		t.Errorf("%d requests for pods although the runtime has passed their annotations", n)
	}
	tn.clean(t)
}

// A status that cannot be written fails an ADD only if it is required: the ADD is then
// undone.
func TestStatusPolicyDecidesWhatBecomesOfADD(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		policy string
		code   uint
	}{{"wait", 0}, {"async", 0}, {"require", 11}} {
		for _, fault := range []kubetest.Fault{{Status: 403}, {Status: 500}, {BlackHole: true}} {
			t.Run(fmt.Sprintf("%s %d", tt.policy, fault.Status), func(t *testing.T) {
				t.Parallel()
				tn := newTown(t, `,"events":"off","statusTimeout":"100ms","statusPolicy":"`+tt.policy+`"`).start(t)
				fault.Verb = "patch"
				heal := tn.api.Break(fault)
				a := tn.pod(t, "one")
				want(t, "ADD", tn.command(t, "ADD", a, annotated("blue")), tt.code, "network status")
				heal()
				if tt.code == 0 {
					want(t, "DEL", tn.command(t, "DEL", a, annotated("")), 0, "")
				}
				tn.clean(t)
			})
		}
	}
}
