package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/metacni/metacni/internal/kubetest"
	"github.com/metacni/metacni/internal/nodetest"
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
	api := kubetest.NewServer(scheme.Codecs.UniversalDeserializer().Decode)
	t.Cleanup(api.Close)
	for _, d := range []kubetest.Definition{
		{Namespace: "ns", Name: "blue", Config: `{"cniVersion":"1.0.0","type":"macvlan","capabilities":{"mac":true}}`},
		{Namespace: "ns", Name: "broken", Config: `{"type":"../../macvlan"}`},
		{Namespace: "other", Name: "red", Config: `{"cniVersion":"1.0.0","type":"macvlan"}`},
	} {
		kubetest.Put(api, d)
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
	p := kubetest.Put(tn.api, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: corev1.PodSpec{NodeName: "n1"}})
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
	p := kubetest.Get[corev1.Pod](tn.api, "ns", name)
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
	for _, e := range kubetest.List[eventsv1.Event](tn.api) {
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
	tn.until(t, "the Event is written", func() bool { return len(kubetest.List[eventsv1.Event](tn.api)) == 1 })
	tn.wantWrites(t, want)
	e := kubetest.List[eventsv1.Event](tn.api)[0]
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

const fromAPI = `,"annotations":"api","nodeName":"n1","podWait":"50ms"`

// selecting changes the pod ns/name so that it selects networks.
func (tn *town) selecting(name, selection string, edits ...func(*corev1.Pod)) {
	p := kubetest.Get[corev1.Pod](tn.api, "ns", name)
	p.Annotations = map[string]string{nad.NetworksAnnotation: selection}
	for _, edit := range edits {
		edit(p)
	}
	kubetest.Put(tn.api, p)
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
	kubetest.Delete[corev1.Pod](tn.api, "ns", "gone")
	kubetest.Delete[corev1.Pod](tn.api, "ns", "recreated")
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
	tn.until(t, "there is an Event", func() bool { return len(kubetest.List[eventsv1.Event](tn.api)) > 0 })
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
	kubetest.Put(tn.api, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{
		{Key: startupTaint, Effect: corev1.TaintEffectNoSchedule}, {Key: "other", Effect: corev1.TaintEffectNoExecute},
	}}})
	return tn
}

func (tn *town) taints() []corev1.Taint {
	return kubetest.Get[corev1.Node](tn.api, "", "n1").Spec.Taints
}

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
	again := kubetest.Get[corev1.Node](tn.api, "", "n1")
	again.Spec.Taints = append(again.Spec.Taints, corev1.Taint{Key: startupTaint, Effect: corev1.TaintEffectNoSchedule})
	kubetest.Put(tn.api, again)
	nodetest.OK(t, tn.stop())
	if n := tn.api.Count("patch", "nodes"); n != 2 || len(tn.taints()) != 2 {
		t.Errorf("%d patches, taints %v: want one after the one that was refused", n, tn.taints())
	}
}

// outages are the ways in which an API server can be away.
func outages(t *testing.T) map[string]func(*kubetest.Server) (heal func()) {
	t.Helper()
	broken := func(f kubetest.Fault) func(*kubetest.Server) func() {
		return func(s *kubetest.Server) func() {
			heal := s.Break(f)
			s.CutWatches("")
			return heal
		}
	}
	return map[string]func(*kubetest.Server) func(){
		"refused":     func(s *kubetest.Server) func() { s.Stop(); return s.Start },
		"black-holed": broken(kubetest.Fault{BlackHole: true}),
		"401":         broken(kubetest.Fault{Status: 401}),
		"403":         broken(kubetest.Fault{Status: 403}),
		"500":         broken(kubetest.Fault{Status: 500}),
		"slow":        broken(kubetest.Fault{Delay: time.Hour}), // until it is healed
		"rubbish":     broken(kubetest.Fault{Body: "<html>"}),
	}
}

// A test waits for a short time only for the status of each pod.
const impatient = `,"statusTimeout":"50ms","nadWait":"50ms"`

// A daemon that starts while the API is away serves what needs nothing of it, and says on
// /readyz what is missing. STATUS succeeds.
func TestDaemonStartsDuringAnOutage(t *testing.T) {
	t.Parallel()
	for name, begin := range outages(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tn := newTown(t, impatient+`,"events":"off"`)
			end := begin(tn.api)
			tn.world.start(t)
			alone, selecting := tn.pod(t, "alone"), tn.pod(t, "selecting")
			want(t, "STATUS", tn.command(t, "STATUS", alone, annotated("")), 0, "")
			want(t, "ADD of a pod that selects nothing", tn.command(t, "ADD", alone, annotated("")), 0, "")
			want(t, "CHECK", tn.command(t, "CHECK", alone, annotated("")), 0, "")
			want(t, "ADD of a pod that selects", tn.command(t, "ADD", selecting, annotated("blue")), 11, "NAD ns/blue")
			if code, text := tn.get(t, "/readyz?verbose"); code != 503 || !strings.Contains(text, "network-attachment-definitions") {
				t.Errorf("/readyz: %d %s", code, text)
			}
			if code, text := tn.get(t, "/healthz"); code != 200 {
				t.Errorf("/healthz: %d %s", code, text)
			}
			want(t, "DEL", tn.command(t, "DEL", alone, annotated("")), 0, "")
			end()
			tn.until(t, "the definitions are known", func() bool { ok, err := tn.cluster.Probe(t.Context()); return ok && err == nil })
			want(t, "ADD of a pod that selects", tn.command(t, "ADD", selecting, annotated("blue")), 0, "")
			want(t, "DEL", tn.command(t, "DEL", selecting, annotated("")), 0, "")
			tn.clean(t)
		})
	}
}

// A daemon that starts while the API is away takes the definitions that the previous one
// has copied to nadDir, and is ready.
func TestMirrorServesWhileTheAPIIsAway(t *testing.T) {
	t.Parallel()
	keys := impatient + `,"events":"off","nadDir":"$DIR/nads"`
	tn := newTown(t, keys).start(t)
	tn.until(t, "the mirror is written", func() bool {
		copies, _ := filepath.Glob(filepath.Join(tn.dir, "nads", "*", "*.conf"))
		return len(copies) == 3
	})
	nodetest.OK(t, tn.stop())
	tn.api.Stop()
	next := newTownIn(t, tn.dir, tn.api, keys)
	next.world.start(t)
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
	tn := newTown(t, impatient+`,"events":"off"`).start(t)
	heal := tn.api.Break(kubetest.Fault{Verb: "patch", BlackHole: true})
	a := tn.pod(t, "one")
	want(t, "ADD", tn.command(t, "ADD", a, annotated("blue")), 0, "")
	nodetest.OK(t, tn.stop())
	heal()
	before := tn.writes()["patch pods/status"]
	next := newTownIn(t, tn.dir, tn.api, `,"events":"off"`)
	next.start(t)
	next.until(t, "the status is written", func() bool { return tn.status("one") == blueStatus })
	if got := next.writes()["patch pods/status"]; got > before+1 { // the first may have been served when it was healed
		t.Errorf("%d requests", got-before)
	}
}
