package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/internal/kubetest"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// pod makes the pod ns/name and returns the arguments of commands for its container.
func (w *world) pod(t testing.TB, name string) *skel.CmdArgs {
	t.Helper()
	p := kubetest.Put(w.api, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: corev1.PodSpec{NodeName: "n1"}})
	a := w.args("")
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

func (w *world) command(t *testing.T, command string, a *skel.CmdArgs, keys string) error {
	t.Helper()
	a.StdinData = []byte(conf(keys))
	return w.client.Execute(t.Context(), command, a)
}

// want fails unless err has this code and text. Code 0 is no error.
func want(t *testing.T, what string, err error, code uint, text string) {
	t.Helper()
	if status.Code(err) != code || err != nil && !strings.Contains(err.Error(), text) {
		t.Errorf("%s: code %d, want %d and %q: %v", what, status.Code(err), code, text, err)
	}
}

// status returns the annotation network-status that the API server has.
func (w *world) status(name string) string {
	p := kubetest.Get[corev1.Pod](w.api, "ns", name)
	if p == nil {
		return ""
	}
	return p.Annotations[status.NetworkStatusAnnotation]
}

// writes is the number of requests that are not for watching.
func (w *world) writes() map[string]int {
	n := make(map[string]int)
	for _, r := range w.api.Requests() {
		if r.Verb != "list" && r.Verb != "watch" {
			n[r.Verb+" "+r.Resource]++
		}
	}
	return n
}

func (w *world) wantWrites(t *testing.T, want map[string]int) {
	t.Helper()
	nodetest.Equal(t, "requests", w.writes(), want)
}

// events are the reasons of the Events on objects, such as "Pod one AddedInterface", in order.
func (w *world) events() []string {
	var all []string
	for _, e := range kubetest.List[eventsv1.Event](w.api) {
		all = append(all, e.Regarding.Kind+" "+e.Regarding.Name+" "+e.Reason)
	}
	return all
}

// told is the number of Events about the pod with this reason and text.
func (w *world) told(pod, reason, text string) (n int) {
	for _, e := range kubetest.List[eventsv1.Event](w.api) {
		if e.Regarding.Name == pod && e.Reason == reason && strings.Contains(e.Note, text) {
			n++
		}
	}
	return n
}

const blueStatus = `[{"name":"multi","interface":"eth0","ips":["10.9.0.2"],"default":true},{"name":"ns/blue","interface":"net1","ips":["10.9.1.2"]}]`

// Per pod there are one patch and one Event. The ADD waits for the patch and for nothing
// else, and DEL makes no request.
func TestRequestsOfAPodAreCounted(t *testing.T) {
	t.Parallel()
	w := inCluster(t, "").start(t)
	a := w.pod(t, "one")
	nodetest.OK(t, w.command(t, "ADD", a, annotated("blue")))
	if got := w.status("one"); got != blueStatus {
		t.Errorf("status %s", got)
	}
	want := map[string]int{"patch pods/status": 1, "create events": 1}
	w.until(t, "the Event is written", func() bool { return len(kubetest.List[eventsv1.Event](w.api)) == 1 })
	w.wantWrites(t, want)
	e := kubetest.List[eventsv1.Event](w.api)[0]
	if e.Reason != "AddedInterface" || e.Note != "Add eth0 [10.9.0.2] from multi, net1 [10.9.1.2] from ns/blue" || string(e.Regarding.UID) == "" {
		t.Errorf("Event %s about %+v: %s", e.Reason, e.Regarding, e.Note)
	}
	for _, command := range []string{"CHECK", "STATUS", "GC", "DEL", "DEL"} {
		keys := annotated("blue")
		if command == "GC" {
			keys += `,"cni.dev/valid-attachments":[{"containerID":"c-one","ifname":"eth0"}]`
		}
		if err := w.command(t, command, a, keys); err != nil {
			t.Errorf("%s: %v", command, err)
		}
	}
	nodetest.OK(t, w.stop())
	w.wantWrites(t, want)
	if n := w.api.Count("", "pods"); n != 0 {
		t.Errorf("%d requests for pods although the runtime has passed their annotations", n)
	}
	w.clean(t)
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
				w := inCluster(t, `,"events":"off","statusTimeout":"100ms","statusPolicy":"`+tt.policy+`"`).start(t)
				fault.Verb = "patch"
				heal := w.api.Break(fault)
				a := w.pod(t, "one")
				want(t, "ADD", w.command(t, "ADD", a, annotated("blue")), tt.code, "network status")
				heal()
				if tt.code == 0 {
					want(t, "DEL", w.command(t, "DEL", a, annotated("")), 0, "")
				}
				w.clean(t)
			})
		}
	}
}

const fromAPI = `,"annotations":"api","nodeName":"n1","podWait":"50ms"`

// selecting changes the pod ns/name so that it selects networks.
func (w *world) selecting(name, selection string, edits ...func(*corev1.Pod)) {
	p := kubetest.Get[corev1.Pod](w.api, "ns", name)
	p.Annotations = map[string]string{nad.NetworksAnnotation: selection}
	for _, edit := range edits {
		edit(p)
	}
	kubetest.Put(w.api, p)
}

// known waits until the daemon knows the pods.
func (w *world) known(t *testing.T, pods float64) {
	t.Helper()
	w.until(t, "the pods are known", func() bool {
		return w.metric(t, `multinetd_view_objects{resource="pods"}`) == pods
	})
}

// Where the runtime passes no annotations, the API server has them: those of the very
// pod. An ADD of a pod that is not there has to be tried again, and attaches nothing.
func TestAnnotationsOfTheAPI(t *testing.T) {
	t.Parallel()
	w := inCluster(t, fromAPI+`,"events":"off"`).start(t)
	one, recreated, gone, static := w.pod(t, "one"), w.pod(t, "recreated"), w.pod(t, "gone"), w.pod(t, "static")
	w.selecting("one", "blue")
	kubetest.Delete[corev1.Pod](w.api, "ns", "gone")
	kubetest.Delete[corev1.Pod](w.api, "ns", "recreated")
	w.pod(t, "recreated")
	w.selecting("static", "blue", func(p *corev1.Pod) {
		p.Annotations["kubernetes.io/config.mirror"], p.Annotations["kubernetes.io/config.source"] = "hash", "file"
	})
	static.Args = "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=static;K8S_POD_UID=hash"
	w.known(t, 3)
	for name, tt := range map[string]struct {
		args *skel.CmdArgs
		code uint
	}{"one": {one, 0}, "static": {static, 0}, "recreated": {recreated, 11}, "gone": {gone, 11}} {
		want(t, name, w.command(t, "ADD", tt.args, bridge), tt.code, "pod ns/"+name)
		if got := w.status(name); (got == blueStatus) != (tt.code == 0) {
			t.Errorf("%s has the status %s", name, got)
		}
	}
	live := w.fake.Live()
	if len(live) != 4 {
		t.Errorf("attached: %q", live)
	}
	for _, a := range []*skel.CmdArgs{one, static, recreated, gone} {
		want(t, "DEL", w.command(t, "DEL", a, bridge), 0, "")
	}
	w.clean(t)
}

// A pod in the network of its node gets no networks, and an Event says so.
func TestNetworksOfPodsInTheNodesNetworkAreIgnored(t *testing.T) {
	t.Parallel()
	w := inCluster(t, fromAPI)
	hostNetwork := func(p *corev1.Pod) { p.Spec.HostNetwork = true }
	for name, selection := range map[string]string{"one": "blue", "two": "", "three": "[]"} {
		w.pod(t, name)
		w.selecting(name, selection, hostNetwork)
	}
	w.pod(t, "four")
	w.selecting("four", "blue")
	w.start(t)
	w.known(t, 4)
	w.until(t, "there is an Event", func() bool { return len(kubetest.List[eventsv1.Event](w.api)) > 0 })
	nodetest.OK(t, w.stop())
	if got := strings.Join(w.events(), ", "); got != "Pod one NetworksIgnored" {
		t.Errorf("Events: %s", got)
	}
}

// A name in the configuration is that of a definition or, if there is none, of a file.
// An ADD does not wait for it, and makes no request.
func TestStandingNetworksAreDefinitionsOrFiles(t *testing.T) {
	t.Parallel()
	w := inCluster(t, `,"events":"off","statusPolicy":"async","nadWait":"1h","confDir":"$DIR/net.d","clusterNetwork":"pods","defaultNetworks":["red"],"multusNamespace":"other"`)
	for name, typ := range map[string]string{"pods": "bridge", "red": "full"} {
		text := fmt.Sprintf(`{"cniVersion":"1.0.0","name":%q,"type":%q}`, name, typ)
		nodetest.OK(t, errors.Join(os.MkdirAll(w.dir+"/net.d", 0o755), os.WriteFile(w.dir+"/net.d/"+name+".conf", []byte(text), 0o600)))
	}
	w.start(t)
	a := w.pod(t, "one")
	heal := w.api.Break(kubetest.Fault{Verb: "get", BlackHole: true})
	defer heal()
	want(t, "ADD", w.command(t, "ADD", a, annotated("")), 0, "")
	w.wantTrace(t, "ADD bridge eth0", "ADD macvlan net1")
	w.until(t, "the status is written", func() bool { return strings.Contains(w.status("one"), `"other/red"`) })
	if n := w.api.Count("get", ""); n > 0 {
		t.Errorf("%d requests", n)
	}
}

const startupTaint = "multinetd.metacni.io/not-ready"

func (w *world) taints() []corev1.Taint {
	return kubetest.Get[corev1.Node](w.api, "", "n1").Spec.Taints
}

// The taint of a new node stays until the daemon has published its network. Then it goes,
// once, and the others stay. Networks are offered from then on, too: before, the STATUS of a
// resident plugin would be asked for that has not been launched.
func TestStartupTaintIsRemovedWhenTheNetworkIsPublished(t *testing.T) {
	t.Parallel()
	w := inCluster(t, `,"events":"off","multusConfigFile":"auto","cniConfigDir":"$DIR","cniCacheDir":"$DIR/cni","multusStateDir":"$DIR/multus","startupTaint":"`+startupTaint+`"`+
		claimKeys+`,"networks":[{"network":"ns/asked"}]}`).withKubelet(t)
	kubetest.Put(w.api, kubetest.Definition{Namespace: "ns", Name: "asked", Config: `{"cniVersion":"1.1.0","type":"macvlan"}`})
	kubetest.Put(w.api, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{
		{Key: startupTaint, Effect: corev1.TaintEffectNoSchedule}, {Key: "other", Effect: corev1.TaintEffectNoExecute},
	}}})
	heal := w.api.Break(kubetest.Fault{Verb: "patch", Resource: "nodes", Status: 403, Times: 1})
	defer heal()
	w.begin(t)
	w.until(t, "the definitions are known", func() bool {
		ok, err := w.cluster.Probe(t.Context())
		return ok && err == nil
	})
	if n := w.api.Count("", "nodes"); n != 0 || len(w.taints()) != 2 {
		t.Errorf("%d requests and taints %v before there is a network", n, w.taints())
	}
	w.wantTrace(t)
	w.put(t, "10-x.conflist", `{"cniVersion":"1.1.0","name":"blue","plugins":[{"type":"bridge"}]}`)
	if got := <-w.states; got != "READY=1" {
		t.Fatalf("the service manager is told %s", got)
	}
	w.until(t, "the taint is removed", func() bool { return len(w.taints()) == 1 })
	w.until(t, "the network is offered", func() bool { return w.offered() == "asked{plugin=macvlan}" })
	w.wantTrace(t, "STATUS macvlan")
	if got := w.taints()[0].Key; got != "other" {
		t.Errorf("the taint %s is left", got)
	}
	again := kubetest.Get[corev1.Node](w.api, "", "n1")
	again.Spec.Taints = append(again.Spec.Taints, corev1.Taint{Key: startupTaint, Effect: corev1.TaintEffectNoSchedule})
	kubetest.Put(w.api, again)
	nodetest.OK(t, w.stop())
	if n := w.api.Count("patch", "nodes"); n != 2 || len(w.taints()) != 2 {
		t.Errorf("%d patches, taints %v: want one after the one that was refused", n, w.taints())
	}
}

// A test waits for a short time only for the status of each pod.
const impatient = `,"statusTimeout":"50ms","nadWait":"50ms"`

// A daemon that starts while the API is away serves what needs nothing of it, and says on
// /readyz what is missing. STATUS succeeds.
func TestDaemonStartsDuringAnOutage(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(*kubetest.Server) (end func()){
		"refused":     func(s *kubetest.Server) func() { s.Stop(); return s.Start },
		"black-holed": func(s *kubetest.Server) func() { return s.Break(kubetest.Fault{BlackHole: true}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := inCluster(t, impatient+`,"events":"off"`)
			end := begin(w.api)
			w.startUnsynced(t)
			alone, selecting := w.pod(t, "alone"), w.pod(t, "selecting")
			want(t, "STATUS", w.command(t, "STATUS", alone, annotated("")), 0, "")
			want(t, "ADD of a pod that selects nothing", w.command(t, "ADD", alone, annotated("")), 0, "")
			want(t, "CHECK", w.command(t, "CHECK", alone, annotated("")), 0, "")
			want(t, "ADD of a pod that selects", w.command(t, "ADD", selecting, annotated("blue")), 11, "NAD ns/blue")
			if code, text := w.get(t, "/readyz?verbose"); code != 503 || !strings.Contains(text, "network-attachment-definitions") {
				t.Errorf("/readyz: %d %s", code, text)
			}
			if code, text := w.get(t, "/healthz"); code != 200 {
				t.Errorf("/healthz: %d %s", code, text)
			}
			want(t, "DEL", w.command(t, "DEL", alone, annotated("")), 0, "")
			end()
			w.until(t, "the definitions are known", func() bool { ok, err := w.cluster.Probe(t.Context()); return ok && err == nil })
			want(t, "ADD of a pod that selects", w.command(t, "ADD", selecting, annotated("blue")), 0, "")
			want(t, "DEL", w.command(t, "DEL", selecting, annotated("")), 0, "")
			w.clean(t)
		})
	}
}

// A daemon that starts while the API is away takes the definitions that the previous one
// has copied to nadDir, and is ready.
func TestMirrorServesWhileTheAPIIsAway(t *testing.T) {
	t.Parallel()
	keys := impatient + `,"events":"off","nadDir":"$DIR/nads"`
	w := inCluster(t, keys).start(t)
	w.until(t, "the mirror is written", func() bool {
		copies, _ := filepath.Glob(filepath.Join(w.dir, "nads", "*", "*.conf"))
		return len(copies) == 3
	})
	nodetest.OK(t, w.stop())
	w.api.Stop()
	next := w.next(t, keys)
	next.startUnsynced(t)
	if code, text := next.get(t, "/readyz?verbose"); code != 200 || !strings.Contains(text, "not synced") {
		t.Errorf("/readyz: %d %s", code, text)
	}
	a := next.args("")
	a.Args = "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=one;K8S_POD_UID=u1"
	want(t, "ADD", next.command(t, "ADD", a, annotated("blue")), 0, "")
	want(t, "ADD of what the mirror does not have", next.command(t, "ADD", next.pod(t, "two"), annotated("green")), 11, "NAD ns/green")
	next.wantTrace(t, "ADD bridge eth0", "ADD macvlan net1")
}

// A status that is not written when the daemon ends is written by the next one.
func TestNextDaemonWritesTheStatus(t *testing.T) {
	t.Parallel()
	w := inCluster(t, impatient+`,"events":"off"`).start(t)
	heal := w.api.Break(kubetest.Fault{Verb: "patch", BlackHole: true})
	a := w.pod(t, "one")
	want(t, "ADD", w.command(t, "ADD", a, annotated("blue")), 0, "")
	nodetest.OK(t, w.stop())
	heal()
	before := w.writes()["patch pods/status"]
	next := w.next(t, `,"events":"off"`)
	next.start(t)
	next.until(t, "the status is written", func() bool { return w.status("one") == blueStatus })
	if got := next.writes()["patch pods/status"]; got > before+1 { // the first may have been served when it was healed
		t.Errorf("%d requests", got-before)
	}
}
