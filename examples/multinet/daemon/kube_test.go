package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/metacni/metacni/delegate/kube/podresources/podresourcestest"
	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
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

// A status that cannot be written fails an ADD only if it is required: the ADD is then
// undone.
func TestStatusPolicyDecidesWhatBecomesOfADD(t *testing.T) {
	t.Parallel()
	for policy, code := range map[string]uint{"wait": 0, "require": 11} {
		w := inCluster(t, `,"events":"off","statusTimeout":"100ms","statusPolicy":"`+policy+`"`).start(t)
		heal := w.api.Break(kubetest.Fault{Verb: "patch", Status: 500})
		a := w.pod(t, "one")
		want(t, policy, w.command(t, "ADD", a, annotated("blue")), code, "network status")
		heal()
		if code == 0 {
			want(t, "DEL", w.command(t, "DEL", a, annotated("")), 0, "")
		}
		w.clean(t)
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

// Where the runtime passes no annotations, the API server has them. An ADD of a pod that is not
// there has to be tried again, and attaches nothing.
func TestAnnotationsOfTheAPI(t *testing.T) {
	t.Parallel()
	w := inCluster(t, fromAPI+`,"events":"off"`).start(t)
	one, gone := w.pod(t, "one"), w.pod(t, "gone")
	w.selecting("one", "blue")
	kubetest.Delete[corev1.Pod](w.api, "ns", "gone")
	w.known(t, 1)
	want(t, "ADD", w.command(t, "ADD", one, bridge), 0, "")
	nodetest.Equal(t, "status", w.status("one"), blueStatus)
	w.wantTrace(t, "ADD bridge eth0", "ADD macvlan net1")
	want(t, "ADD of a pod that is not there", w.command(t, "ADD", gone, bridge), 11, "pod ns/gone")
	w.wantTrace(t)
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
	nodetest.Equal(t, "Events", strings.Join(w.events(), ", "), "Pod one NetworksIgnored")
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
	nodetest.Equal(t, "requests", w.api.Count("get", ""), 0)
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
	w.synced(t)
	nodetest.Equal(t, "requests, and taints, before there is a network", []int{w.api.Count("", "nodes"), len(w.taints())}, []int{0, 2})
	w.wantTrace(t)
	w.put(t, "10-x.conflist", `{"cniVersion":"1.1.0","name":"blue","plugins":[{"type":"bridge"}]}`)
	nodetest.Equal(t, "told", <-w.states, "READY=1")
	w.until(t, "the taint is removed", func() bool { return len(w.taints()) == 1 })
	w.until(t, "the network is offered", func() bool { return w.offered() == "asked{plugin=macvlan}" })
	w.wantTrace(t, "STATUS macvlan")
	nodetest.Equal(t, "left", w.taints()[0].Key, "other")
	kubetest.Edit(w.api, "", "n1", func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: startupTaint, Effect: corev1.TaintEffectNoSchedule})
	})
	nodetest.OK(t, w.stop())
	nodetest.Equal(t, "patches, one of them refused, and taints", []int{w.api.Count("patch", "nodes"), len(w.taints())}, []int{2, 2})
}

// A daemon that starts while the API is away serves what needs nothing of it, and says on
// /readyz what is missing. STATUS succeeds.
func TestDaemonStartsDuringAnOutage(t *testing.T) {
	t.Parallel()
	w := inCluster(t, `,"statusTimeout":"50ms","nadWait":"50ms","events":"off"`)
	w.api.Stop()
	w.startUnsynced(t)
	alone, selecting := w.pod(t, "alone"), w.pod(t, "selecting")
	for _, command := range []string{"STATUS", "ADD", "CHECK"} {
		want(t, command+" of a pod that selects nothing", w.command(t, command, alone, annotated("")), 0, "")
	}
	want(t, "ADD of a pod that selects", w.command(t, "ADD", selecting, annotated("blue")), 11, "NAD ns/blue")
	w.answers(t, "/readyz?verbose", 503, "network-attachment-definitions")
	code, _ := w.get(t, "/healthz")
	nodetest.Equal(t, "/healthz", code, 200)
	want(t, "DEL", w.command(t, "DEL", alone, annotated("")), 0, "")
	w.api.Start()
	w.synced(t)
	want(t, "ADD of a pod that selects", w.command(t, "ADD", selecting, annotated("blue")), 0, "")
	want(t, "DEL", w.command(t, "DEL", selecting, annotated("")), 0, "")
	w.clean(t)
}

// An ADD that fails for a reason that users can mend is an Event on the pod. A definition
// that cannot be used has one too, for each of its versions.
func TestEventsSayWhyADDHasFailed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, keys, selection string
		code                  uint
		events                []string
	}{
		{"no such definition", "", "green", 7, []string{"Pod one NoNetworkFound"}},
		{"a forbidden namespace", `,"namespaceIsolation":true`, "other/red", 7, []string{"Pod one NetworkForbidden"}},
		{"an API that does not tell", "", "gone", 11, nil},
		{"an invalid definition", "", "broken", 7, []string{"Pod one InvalidNetwork", "NetworkAttachmentDefinition broken InvalidNetwork"}},
		{"a failure of a plugin", "", "full", 107, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := inCluster(t, `,"nadWait":"10ms"`+tt.keys).start(t)
			kubetest.Put(w.api, kubetest.Definition{Namespace: "ns", Name: "full", Config: `{"cniVersion":"1.0.0","type":"full"}`})
			w.until(t, "all definitions are known", func() bool {
				return w.metric(t, `multinetd_view_objects{resource="network-attachment-definitions"}`) == 4
			})
			heal := func() {}
			if tt.code == 11 {
				heal = w.api.Break(kubetest.Fault{Verb: "get", Status: 500})
			}
			a := w.pod(t, "one")
			for range 2 { // the kubelet tries again
				want(t, "ADD", w.command(t, "ADD", a, annotated(tt.selection)), tt.code, "")
			}
			heal()
			nodetest.OK(t, w.stop()) // Events are written then
			nodetest.Equal(t, "Events", w.events(), tt.events)
			for _, e := range kubetest.List[eventsv1.Event](w.api) {
				nodetest.Lacks(t, e.Reason, e.Note, "hunter2")
				nodetest.Contains(t, e.Reason, e.Note, tt.selection)
			}
			w.clean(t)
		})
	}
}

// With statusFor selected, pods that have the primary network alone have no status.
func TestStatusForSelectedPods(t *testing.T) {
	t.Parallel()
	w := inCluster(t, `,"statusFor":"selected","events":"off"`).start(t)
	one, two := w.pod(t, "one"), w.pod(t, "two")
	want(t, "ADD", w.command(t, "ADD", one, annotated("")), 0, "")
	want(t, "ADD", w.command(t, "ADD", two, annotated("blue")), 0, "")
	nodetest.Equal(t, "status", w.status("two"), blueStatus)
	nodetest.Equal(t, "writes", w.api.Count("patch", "pods/status"), 1)
	// A network that comes later is shown, and so is that it has gone.
	w.onSocket(t, "ADD", one, "hot0", "green")
	w.until(t, "the status has it", func() bool { return strings.Contains(w.status("one"), "green") })
	w.onSocket(t, "DEL", one, "hot0", "green")
	w.until(t, "the status lacks it", func() bool { return w.status("one") != "" && !strings.Contains(w.status("one"), "green") })
}

// Containers that were taken over from another program keep the status that they have:
// only that program knows why they are attached.
func TestContainersThatWereTakenOverKeepTheirStatus(t *testing.T) {
	t.Parallel()
	w := inCluster(t, `,"events":"off"`)
	w.adopt(t, w.pod(t, "one"), "bridge")
	w.start(t)
	b := w.pod(t, "two")
	want(t, "ADD", w.command(t, "ADD", b, annotated("blue")), 0, "")
	nodetest.OK(t, w.stop())
	nodetest.Equal(t, "writes", w.api.Count("patch", "pods/status"), 1)
}

// The daemon tells on its socket, and nowhere else, which status the API server has.
func TestStatusOfTheAPIIsToldOnTheSocket(t *testing.T) {
	t.Parallel()
	w := inCluster(t, `,"metricsAddress":"127.0.0.1:0","events":"off"`).start(t)
	a := w.pod(t, "one")
	want(t, "ADD", w.command(t, "ADD", a, annotated("blue")), 0, "")
	uid := string(kubetest.Get[corev1.Pod](w.api, "ns", "one").UID)
	ask := func(namespace, name, uid string) (int, string) {
		return w.get(t, "/network-status?"+url.Values{"namespace": {namespace}, "name": {name}, "uid": {uid}}.Encode())
	}
	for _, tt := range []struct {
		namespace, name, uid string
		code                 int
		text                 string
	}{
		{"ns", "one", uid, 200, blueStatus},
		{"ns", "one", "", 200, blueStatus},
		{"ns", "one", "other", 404, "ns/one"},
		{"ns", "two", "", 404, "ns/two"},
	} {
		if code, text := ask(tt.namespace, tt.name, tt.uid); code != tt.code || !strings.Contains(text, tt.text) {
			t.Errorf("%s/%s: %d %s, want %d %s", tt.namespace, tt.name, code, text, tt.code, tt.text)
		}
	}
	heal := w.api.Break(kubetest.Fault{Verb: "patch", Status: 403})
	if code, text := ask("ns", "one", uid); code != 503 || !strings.Contains(text, "ns/one") {
		t.Errorf("%d %s", code, text)
	}
	heal()
	nodetest.Equal(t, "asking has changed the status", w.status("one"), blueStatus)
	over := httptest.NewRecorder()
	w.pages(false).ServeHTTP(over, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/network-status?namespace=ns&name=one", nil))
	nodetest.Equal(t, "code over TCP", over.Code, 404)
}

// Metrics about the cluster do not have the names of pods and definitions.
func TestMetricsOfTheCluster(t *testing.T) {
	t.Parallel()
	w := inCluster(t, `,"nadWait":"10ms"`).start(t)
	one, two := w.pod(t, "one"), w.pod(t, "two")
	want(t, "ADD", w.command(t, "ADD", one, annotated("blue")), 0, "")
	want(t, "ADD", w.command(t, "ADD", two, annotated("green")), 7, "")
	var all map[string]float64
	w.until(t, "the Events and the status are written", func() bool {
		all = w.scrape(t)
		return all[`multinetd_events_total{outcome="sent"}`] == 2 && all[`multinetd_status_writes_total{outcome="written"}`] == 1 && all[`multinetd_status_pending`] == 0
	})
	wantSeries(t, all, map[string]float64{
		`multinetd_view_synced{resource="network-attachment-definitions"}`:  1,
		`multinetd_view_objects{resource="network-attachment-definitions"}`: 3,
		`multinetd_nads_invalid`:                                                                        1,
		`multinetd_nad_waits_total{outcome="none"}`:                                                     1,
		`multinetd_status_writes_total{outcome="written"}`:                                              1,
		`multinetd_status_pending`:                                                                      0,
		`multinetd_status_lag_seconds`:                                                                  0,
		`multinetd_events_total{outcome="sent"}`:                                                        2,
		`multinetd_api_requests_total{code="200",resource="pods/status",verb="patch"}`:                  1,
		`multinetd_api_requests_total{code="404",resource="network-attachment-definitions",verb="get"}`: 1,
	})
	if _, ok := all[`multinetd_view_age_seconds{resource="network-attachment-definitions"}`]; !ok {
		t.Error("no age of the view")
	}
	for name := range all {
		nodetest.Lacks(t, "a name", name, "blue", "green", `"one"`)
	}
}

// Each key of Multus's daemon without a meaning here is said at the start, with the
// reason, and a misspelt one as a warning. So are the keys about a cluster where there is
// none.
func TestIgnoredKeysAreSaidAtTheStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c, err := configOf(t, fmt.Sprintf(`{"socketDir":%q,"queueDir":"","cniDir":%q,"logFormat":"json","logToStderr":true,"perNodeCertificate":{"enabled":true},
		"misspelt":1,"statusPolicy":"async","statusRate":1,"nodeName":"n1"}`, dir+"/run", dir+"/state"))
	nodetest.OK(t, err)
	nodetest.OK(t, c.findCluster(nil, filepath.Join(dir, "token")))
	log := &nodetest.Log{}
	logIgnored(t.Context(), c.logger(log), c)
	var got []string
	for line := range strings.Lines(log.String()) {
		var l struct{ Level, Msg, Key, Why string }
		nodetest.OK(t, json.Unmarshal([]byte(line), &l))
		got = append(got, fmt.Sprintf("%s %s %t", l.Level, l.Key, l.Why != ""))
	}
	if diff := cmp.Diff([]string{
		"INFO logToStderr true", "WARN misspelt false", "INFO nodeName true", "INFO perNodeCertificate true", "INFO statusPolicy true", "INFO statusRate true", "INFO  false",
	}, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

const vf = "vendor.example/vf"

// withDevices makes a daemon with a kubelet, in a cluster with the definition ns/vf,
// which needs a device, and with more keys. Device information files are in dir/devinfo.
func withDevices(t *testing.T, keys string) (*world, *podresourcestest.Kubelet) {
	t.Helper()
	k, err := podresourcestest.Start()
	nodetest.OK(t, err)
	t.Cleanup(func() { _ = k.Close() })
	w := inCluster(t, `,"nodeName":"n1","deviceInfoDir":"$DIR/devinfo","kubeletDir":"`+k.Dir+`"`+keys)
	kubetest.Put(w.api, kubetest.Definition{
		Namespace: "ns", Name: "vf", Config: `{"cniVersion":"1.0.0","type":"macvlan"}`,
		Annotations: map[string]string{nad.ResourceAnnotation: vf},
	})
	return w.start(t), k
}

// writeInfo writes what a device plugin says about a device.
func (w *world) writeInfo(t *testing.T, id, text string) {
	t.Helper()
	info := filepath.Join(w.dir, "devinfo", "dp", "vendor.example-vf-"+id+"-device.json")
	nodetest.OK(t, errors.Join(os.MkdirAll(filepath.Dir(info), 0o755), os.WriteFile(info, []byte(text), 0o644)))
}

// The devices are those of the kubelet. It is asked once, and only for pods that need one. What cannot
// be read of a device is said once, and nothing else fails.
func TestNetworksGetTheDevicesOfThePod(t *testing.T) {
	t.Parallel()
	w, k := withDevices(t, "")
	w.writeInfo(t, "a", `{"type":"pci","pci":{"pci-address":"a"}}`)
	k.SetPod("ns", "one", podresourcestest.Devices("app", vf, "b", "a"))
	a := w.pod(t, "one")
	want(t, "ADD", w.command(t, "ADD", a, annotated("blue,vf,vf")), 0, "")
	want(t, "a pod that the kubelet does not have", w.command(t, "ADD", w.pod(t, "two"), annotated("vf")), 11, "does not know the pod")
	for i, id := range []string{"", "", "a", "b"} {
		has := strings.Contains(string(w.fake.Calls()[i].Stdin), `"deviceID":"`+id+`"`)
		nodetest.Equal(t, fmt.Sprintf("call %d has %q", i, id), has, id != "")
	}
	nodetest.Contains(t, "status", w.status("one"), `"interface":"net2","ips":["10.9.1.2"],"device-info":{"type":"pci","pci":{"pci-address":"a"}}}`)
	k.SetPod("ns", "few", podresourcestest.Devices("app", vf, "c"))
	want(t, "more than there are", w.command(t, "ADD", w.pod(t, "few"), annotated("vf,vf")), 7, "ask for 2")
	w.until(t, "there is an Event", func() bool { return slices.Contains(w.events(), "Pod few InvalidNetwork") })
	nodetest.Equal(t, "ADDs with too few devices", w.metric(t, "multinetd_devices_exhausted_total"), 1)
	w.writeInfo(t, "d", `{"type":"pci"`)
	k.SetPod("ns", "torn", podresourcestest.Devices("app", vf, "d"))
	torn := w.pod(t, "torn")
	want(t, "ADD", w.command(t, "ADD", torn, annotated("vf")), 0, "")
	w.until(t, "there is a status", func() bool { return strings.Contains(w.status("torn"), "net1") })
	w.until(t, "all is told", func() bool {
		return slices.Contains(w.events(), "Pod torn DeviceInfoLost") && slices.Contains(w.events(), "Pod torn AddedInterface")
	})
	nodetest.Equal(t, "said", w.logged.Count("device information of net1"), 1)
	asked := len(k.Requests())
	for _, of := range []*skel.CmdArgs{a, torn} {
		want(t, "DEL", w.command(t, "DEL", of, annotated("")), 0, "")
	}
	want(t, "a pod without devices", w.command(t, "ADD", w.pod(t, "three"), annotated("blue")), 0, "")
	nodetest.Equal(t, "requests and connections", []int{len(k.Requests()), k.Connections()}, []int{asked, 1})
	if left, err := os.ReadDir(filepath.Join(w.dir, "devinfo", "cni")); err != nil || len(left) > 0 {
		t.Errorf("device information left: %v, %v", left, err)
	}
}

// A resource that only marks nodes needs no device. One that a device plugin serves does, even if
// the kubelet lists none of its devices. If nobody can say which it is, nothing is attached. A network
// of a running pod that needs more devices than the pod has is an Event, and counted.
func TestResourceThatNoDevicePluginServesNeedsNoDevice(t *testing.T) {
	t.Parallel()
	const marker = "bridge.network.kubevirt.io/br1"
	w, k := withDevices(t, `,"reconcile":true`)
	kubetest.Put(w.api, kubetest.Definition{
		Namespace: "ns", Name: "br1", Config: `{"cniVersion":"1.0.0","type":"macvlan"}`, Annotations: map[string]string{nad.ResourceAnnotation: marker},
	})
	k.SetPod("ns", "one", podresourcestest.Devices("app", vf, "a"))
	k.SetPod("ns", "two")
	a, b := w.pod(t, "one"), w.pod(t, "two")
	want(t, "marks and a device", w.command(t, "ADD", a, annotated("br1,vf,br1")), 0, "")
	for i, c := range w.fake.Calls() {
		nodetest.Equal(t, fmt.Sprint("call ", i, " has the device"), strings.Contains(string(c.Stdin), `"deviceID":"a"`), i == 2)
	}
	w.edit("one", "vf,vf")
	w.until(t, "there is an Event", func() bool { return w.told("one", "FailedAddingInterface", vf) > 0 })
	w.until(t, "it is counted", func() bool { return w.metric(t, "multinetd_devices_exhausted_total") > 0 })
	w.edit("one", "vf")
	k.SetPlugins(vf)
	want(t, "a pod without devices", w.command(t, "ADD", b, annotated("vf")), 7, "the pod's containers have none")
	k.SetPlugins()
	k.Before(func(_ context.Context, method string) error {
		if method == "GetAllocatableResources" {
			return errors.New("disabled")
		}
		return nil
	})
	want(t, "neither source", w.command(t, "ADD", b, annotated("br1")), 11, `serves "`+marker+`" is not known`)
}

// Devices that a ResourceClaim has allocated are devices of the pod too. ResourceSlices are
// watched only when there is one.
func TestNetworksGetTheDevicesOfClaims(t *testing.T) {
	t.Parallel()
	w, k := withDevices(t, "")
	slice := &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "n1-nic"},
		Spec: resourcev1.ResourceSliceSpec{
			Driver: "nic.example", NodeName: new("n1"), Pool: resourcev1.ResourcePool{Name: "n1", Generation: 1, ResourceSliceCount: 1},
			Devices: []resourcev1.Device{{Name: "vf-7", Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
				"k8s.cni.cncf.io/resourceName":    {StringValue: new(vf)},
				"resource.kubernetes.io/pciBusID": {StringValue: new("0000:3b:02.7")},
			}}},
		},
	}
	k.SetPod("ns", "claims", &podresources.ContainerResources{Name: "app", DynamicResources: []*podresources.DynamicResource{{
		ClaimNamespace: "ns", ClaimName: "nic",
		ClaimResources: []*podresources.ClaimResource{{DriverName: "nic.example", PoolName: "n1", DeviceName: "vf-7"}},
	}}})
	a := w.pod(t, "claims")
	want(t, "before the ResourceSlice has come", w.command(t, "ADD", a, annotated("vf")), 11, `the resource is not known of "nic.example/n1/vf-7"`)
	kubetest.Put(w.api, slice)
	w.until(t, "the daemon knows the ResourceSlice", func() bool {
		return w.metric(t, `multinetd_view_objects{resource="resourceslices"}`) == 1
	})
	want(t, "ADD", w.command(t, "ADD", a, annotated("vf")), 0, "")
	if w.metric(t, "multinetd_devices_exhausted_total") != 0 || slices.Contains(w.events(), "Pod claims InvalidNetwork") {
		t.Error("the pod is to blame")
	}
	calls := w.fake.Calls()
	nodetest.Contains(t, "the plugin was given", string(calls[len(calls)-1].Stdin), `"deviceID":"0000:3b:02.7"`)
}
