package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	cnitypes "github.com/containernetworking/cni/pkg/types"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/kube/dra/dratest"
	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf/nad"
)

const (
	driverName = "net.example.com"
	claimKeys  = `,"nodeName":"n1","kubeletDir":"$DIR/kubelet","dra":{"driver":"net.example.com","allowedTypes":["bridge","host-local","macvlan","vlan","extra","strict"]`
)

// withClaims makes a daemon that serves ResourceClaims, with more keys of "dra".
func withClaims(t testing.TB, keys string) *world {
	t.Helper()
	return inCluster(t, claimKeys+keys+`}`).withKubelet(t)
}

// withKubelet makes the node and the directories of its kubelet.
func (w *world) withKubelet(t testing.TB) *world {
	t.Helper()
	kubetest.Put(w.api, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	nodetest.OK(t, os.MkdirAll(w.dir+"/kubelet/plugins_registry", 0o750))
	return w
}

// kubelet registers the driver of the daemon when that has started, as the kubelet does.
func (w *world) kubelet(t *testing.T) *dratest.Kubelet {
	t.Helper()
	var k *dratest.Kubelet
	w.until(t, "the driver registers", func() (registered bool) {
		var err error
		k, err = dratest.Register(t.Context(), filepath.Join(w.dir, "kubelet/plugins_registry", driverName+"-reg.sock"), w.conf.ChrootDir)
		return err == nil
	})
	t.Cleanup(func() { _ = k.Close() })
	return k
}

// claim makes the claim ns/name, which is allocated and reserved for the pod of a, and makes it
// the pod's. Its request has these parameters.
func (w *world) claim(t testing.TB, name string, a *skel.CmdArgs, parameters string) *resourcev1.ResourceClaim {
	t.Helper()
	of := nad.PodOf(a.Args)
	share := types.UID("share-" + name)
	claim := kubetest.Put(w.api, &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Status: resourcev1.ResourceClaimStatus{
			ReservedFor: []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: of.Name, UID: types.UID(of.UID)}},
			Allocation: &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
				Results: []resourcev1.DeviceRequestAllocationResult{{Request: "net", Driver: driverName, Pool: "n1", Device: "storage", ShareID: &share}},
				Config: []resourcev1.DeviceAllocationConfiguration{{Source: resourcev1.AllocationConfigSourceClaim, DeviceConfiguration: resourcev1.DeviceConfiguration{
					Opaque: &resourcev1.OpaqueDeviceConfiguration{Driver: driverName, Parameters: runtime.RawExtension{Raw: []byte(parameters)}},
				}}},
			}},
		},
	})
	p := kubetest.Get[corev1.Pod](w.api, "ns", of.Name)
	p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: name, ResourceClaimName: &name})
	kubetest.Put(w.api, p)
	return claim
}

// sandbox are the arguments of commands for another sandbox of the pod of a.
func sandbox(a *skel.CmdArgs) *skel.CmdArgs {
	b := *a
	b.ContainerID += "-2"
	b.Args = strings.ReplaceAll(a.Args, a.ContainerID, b.ContainerID)
	return &b
}

// parameters are those of a claim for an interface with a definition.
func parameters(ifname, definition string) string {
	return fmt.Sprintf(`{"apiVersion":"dra.metacni.io/v1alpha1","kind":"Network","ifName":%q,"definition":%q}`, ifname, definition)
}

// prepare has the kubelet prepare claims.
func prepare(t *testing.T, k *dratest.Kubelet, claims ...*resourcev1.ResourceClaim) {
	t.Helper()
	all, err := k.Prepare(t.Context(), claims...)
	nodetest.OK(t, err)
	for _, c := range claims {
		if err := all[string(c.UID)].Err; err != nil {
			t.Fatalf("claim %s: %v", c.Name, err)
		}
	}
}

// condition is what the status of the claim says of its device, such as
// "True NetworkInterfaceReady net1 [10.9.1.2/24]". It is empty if there is no status.
func (w *world) condition(name string) string {
	c := kubetest.Get[resourcev1.ResourceClaim](w.api, "ns", name)
	if c == nil || len(c.Status.Devices) != 1 {
		return ""
	}
	d := c.Status.Devices[0]
	ready := meta.FindStatusCondition(d.Conditions, "Ready")
	if ready == nil {
		return ""
	}
	text := fmt.Sprint(ready.Status, " ", ready.Reason)
	if d.NetworkData != nil {
		text += fmt.Sprint(" ", d.NetworkData.InterfaceName, " ", d.NetworkData.IPs)
	}
	return strings.TrimSpace(text + " " + ready.Message)
}

const (
	ready    = "True NetworkInterfaceReady net7 [10.9.1.2/24]"
	notReady = "False NetworkInterfaceNotReady"
)

// wantNotPrepared fails unless the ADD of a pod fails because its claim is not prepared, once the
// daemon knows that the pod has it.
func (w *world) wantNotPrepared(t *testing.T, a *skel.CmdArgs, text string) {
	t.Helper()
	var err error
	w.until(t, "the daemon knows the claim", func() bool {
		if err = w.command(t, "ADD", a, annotated("")); err == nil {
			want(t, "DEL", w.command(t, "DEL", a, annotated("")), 0, "")
		}
		return err != nil
	})
	want(t, "ADD", err, 11, text)
}

// The networks of claims come after all others, in the order of the names of the claims, and reach
// the plugins as they are written.
func TestNetworksOfClaimsComeInTheOrderOfTheirNames(t *testing.T) {
	t.Parallel()
	w := withClaims(t, "").start(t)
	a := w.pod(t, "one")
	prepare(t, w.kubelet(t), w.claim(t, "b", a, parameters("net7", "blue")), w.claim(t, "a", a,
		`{"apiVersion":"cni.networking.x-k8s.io/v1alpha1","kind":"CNI","config":{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"bridge","x":1.0}]}}`))
	want(t, "ADD", w.command(t, "ADD", a, annotated("blue")), 0, "")
	w.wantTrace(t, "ADD bridge eth0", "ADD macvlan net1", "ADD bridge net2", "ADD macvlan net7")
	nodetest.Contains(t, "the plugin was given", string(w.fake.Calls()[2].Stdin), `"x":1.0`)
}

// The daemon starts without a kubelet, says so, and pods without claims do not notice. The
// kubelet may come later.
func TestTheKubeletMayComeLater(t *testing.T) {
	t.Parallel()
	w := inCluster(t, claimKeys+`}`).startUnsynced(t)
	served := func(says string) {
		t.Helper()
		w.until(t, "the probe says whether claims are served", func() bool {
			ok, err := w.cluster.Probe(t.Context())
			return ok && (err == nil) == (says == "") && (err == nil || strings.Contains(err.Error(), says))
		})
	}
	served("ResourceClaims: the directory in which the kubelet finds plugins: ")
	a := w.pod(t, "one")
	w.claim(t, "storage", a, parameters("net7", "blue"))
	w.wantNotPrepared(t, a, "claim ns/storage: not prepared: the directory in which the kubelet finds plugins: ")
	want(t, "ADD of a pod without claims", w.command(t, "ADD", w.pod(t, "plain"), annotated("")), 0, "")
	nodetest.OK(t, os.MkdirAll(w.dir+"/kubelet/plugins_registry", 0o750))
	served("")
	nodetest.Equal(t, "said", w.logged.Count("the kubelet does not reach the DRA driver"), 1)
}

// With a root directory the kubelet hears the path of the node, and the socket is below the root.
func TestTheKubeletFindsTheSocketOfADaemonInAContainer(t *testing.T) {
	t.Parallel()
	w := inCluster(t, "").withKubelet(t)
	nodetest.OK(t, errors.Join(os.Mkdir(w.dir+"/run", 0o700), os.Mkdir(w.dir+"/var", 0o700)))
	keys := fmt.Sprintf(`,"chrootDir":"$DIR","nodeName":"n1","kubeletDir":"/kubelet","dra":{"driver":%q}`, driverName)
	w = w.next(t, keys).startUnsynced(t)
	k := w.kubelet(t)
	nodetest.Equal(t, "endpoint", k.Endpoint, "/kubelet/plugins/"+driverName+"/dra.sock")
	prepare(t, k, w.claim(t, "storage", w.pod(t, "one"), parameters("net7", "blue")))
	nodetest.OK(t, w.stop())
	left, _ := filepath.Glob(w.dir + "/kubelet/*/*.sock")
	nodetest.Equal(t, "left", left, nil)
}

// If containers cannot be told what their claims are attached to, the pod has an Event, and its
// networks all the same.
func TestContainersThatDoNotSeeTheirClaimsAreAttached(t *testing.T) {
	t.Parallel()
	w := withClaims(t, `,"metadata":true,"cdiDir":"$DIR/cdi"`).start(t)
	a := w.pod(t, "one")
	prepare(t, w.kubelet(t), w.claim(t, "storage", a, parameters("net7", "blue")))
	files, err := filepath.Glob(w.dir + "/kubelet/plugins/" + driverName + "/dra-device-metadata/*/*/*.json")
	if specs, _ := filepath.Glob(w.dir + "/cdi/*.json"); err != nil || len(files) != 1 || len(specs) != 1 {
		t.Fatalf("files %q, %q, %v", files, specs, err)
	}
	nodetest.OK(t, os.Remove(files[0]))
	want(t, "ADD", w.command(t, "ADD", a, annotated("")), 0, "")
	w.until(t, "the Events are there", func() bool {
		return slices.Equal(slices.Sorted(slices.Values(w.events())), []string{"Pod one AddedInterface", "Pod one ClaimMetadataLost"})
	})
	nodetest.Contains(t, "log", w.logged.String(), "containers do not see")
}

// A sweep that removes a container says so in the status of its claims, although nobody has
// told the daemon whose container it was.
func TestStatusOfAClaimFollowsSweeps(t *testing.T) {
	t.Parallel()
	w := inCluster(t, `,"sweepInterval":"10ms"`+claimKeys+`}`).withKubelet(t)
	a := w.pod(t, "one")
	w.start(t)
	prepare(t, w.kubelet(t), w.claim(t, "storage", a, parameters("net7", "blue")))
	want(t, "ADD", w.command(t, "ADD", a, annotated("")), 0, "")
	w.until(t, "the status is written", func() bool { return w.condition("storage") == ready })
	(&nodetest.Node{TB: t, Dir: w.dir}).Restarted("state")
	w.until(t, "the status is that of a pod without a container", func() bool { return w.condition("storage") == notReady })
	w.clean(t)
}

// The status of a claim says why an ADD has failed, and follows the DEL. A release detaches the network
// of the claim from each sandbox of the pod, and from the status of the pod. Metrics say how claims are
// doing.
func TestStatusesFollowEachCommandAndARelease(t *testing.T) {
	t.Parallel()
	w := withClaims(t, "")
	var broken atomic.Bool
	broken.Store(true)
	w.node.On("ADD macvlan", func(context.Context, delegatetest.Invocation) error {
		if broken.Load() {
			return cnitypes.NewError(113, "no device", "")
		}
		return nil
	})
	w.start(t)
	k, a := w.kubelet(t), w.pod(t, "one")
	c := w.claim(t, "storage", a, parameters("net7", "blue"))
	prepare(t, k, c)
	want(t, "ADD", w.command(t, "ADD", a, annotated("")), 113, `claim "storage"`)
	w.until(t, "the status of the claim says why", func() bool {
		text := w.condition("storage")
		return strings.HasPrefix(text, notReady+" ") && strings.Contains(text, "no device")
	})
	w.clean(t)
	broken.Store(false)
	next := sandbox(a)
	metric := func(name string) float64 { return w.metric(t, "multinetd_claim"+name) }
	written := func(n float64) func() bool {
		return func() bool {
			return metric(`_status_writes_total{outcome="written"}`) == n && metric("_status_pending") == 0
		}
	}
	w.until(t, "the first status is counted", written(1))
	heal := w.api.Break(kubetest.Fault{Resource: "resourceclaims/status", Status: 403})
	want(t, "ADD", w.command(t, "ADD", next, annotated("")), 0, "")
	w.until(t, "the refusal is counted", func() bool { return metric(`_status_writes_total{outcome="refused"}`) > 0 })
	nodetest.Equal(t, "served, prepared, pending", []float64{metric("s_served"), metric("s_prepared"), metric("_status_pending")}, []float64{1, 1, 1})
	heal()
	w.until(t, "the status of the claim is that of an attached one", func() bool { return w.condition("storage") == ready })
	w.until(t, "the status is counted", written(2))
	want(t, "DEL", w.command(t, "DEL", next, annotated("")), 0, "")
	w.until(t, "the status of the claim follows the DEL", func() bool { return w.condition("storage") == notReady })
	want(t, "ADD", w.command(t, "ADD", a, annotated("")), 0, "")
	want(t, "ADD of the next sandbox", w.command(t, "ADD", next, annotated("")), 0, "")
	w.until(t, "the claim is attached", func() bool { return w.condition("storage") == ready })
	w.until(t, "the status of the pod has the network", func() bool { return strings.Contains(w.status("one"), "net7") })
	want(t, "Unprepare", k.Unprepare(t.Context(), c), 0, "")
	nodetest.Equal(t, "alive", w.fake.Live(), []string{"bridge c-one eth0", "bridge c-one-2 eth0"})
	w.until(t, "the status of the pod lacks the network", func() bool { return !strings.Contains(w.status("one"), "net7") })
	want(t, "DEL", w.command(t, "DEL", a, annotated("")), 0, "")
	want(t, "DEL of the next sandbox", w.command(t, "DEL", next, annotated("")), 0, "")
	w.clean(t)
}

// A pod whose claims an earlier daemon has prepared does not start without its networks: not with
// a daemon without dra, and not with one that forbids them now.
func TestPreparedClaimsAreNotLostByAnotherConfiguration(t *testing.T) {
	t.Parallel()
	const inline = `{"apiVersion":"cni.networking.x-k8s.io/v1alpha1","kind":"CNI","ifName":"net7","config":{"cniVersion":"1.0.0","name":"n","type":"macvlan"}}`
	for name, row := range map[string]struct {
		keys, text string
		code       uint
	}{
		"without dra":           {`,"nodeName":"n1"`, `need "dra" in the configuration`, 11},
		"without allowed types": {`,"nodeName":"n1","kubeletDir":"$DIR/kubelet","dra":{"driver":"net.example.com"}`, "allowedTypes", 7},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := withClaims(t, "").start(t)
			a, other := w.pod(t, "one"), w.pod(t, "two")
			prepare(t, w.kubelet(t), w.claim(t, "storage", a, inline))
			want(t, "ADD", w.command(t, "ADD", a, annotated("")), 0, "")
			b := sandbox(a)
			changed := w.next(t, row.keys).start(t)
			want(t, "ADD", changed.command(t, "ADD", b, annotated("")), row.code, row.text)
			logged := strings.Contains(changed.logged.String(), "ResourceClaims are prepared, but")
			nodetest.Equal(t, "logged", logged, row.code == 11)
			want(t, "ADD", changed.command(t, "ADD", other, annotated("")), 0, "")
			for _, c := range []*skel.CmdArgs{a, b, other} {
				want(t, "DEL", changed.command(t, "DEL", c, annotated("")), 0, "")
			}
			changed.clean(t)
			again := changed.next(t, claimKeys+`}`).start(t)
			want(t, "ADD", again.command(t, "ADD", a, annotated("")), 0, "")
			again.until(t, "the status is written", func() bool { return again.condition("storage") == ready })
			want(t, "DEL", again.command(t, "DEL", a, annotated("")), 0, "")
		})
	}
}

// A claim is released when the ADD has read it, but has recorded nothing yet. The pod keeps nothing
// of the claim, which may be that of another pod now.
func TestAClaimThatIsReleasedDuringTheADDIsNotAttached(t *testing.T) {
	t.Parallel()
	w := withClaims(t, "")
	var during atomic.Pointer[func()]
	w.interfaceNames = func(string) ([]string, error) {
		if do := during.Load(); do != nil {
			(*do)()
		}
		return nil, nil
	}
	w.start(t)
	k := w.kubelet(t)
	a := w.pod(t, "one")
	c := w.claim(t, "storage", a, parameters("net7", "blue"))
	prepare(t, k, c)
	release := func() { want(t, "Unprepare", k.Unprepare(t.Context(), c), 0, "") }
	during.Store(&release)
	want(t, "ADD", w.command(t, "ADD", a, annotated("")), 11, "claim ns/storage: not prepared: the kubelet has released it during the ADD")
	w.clean(t)
	want(t, "DEL", w.command(t, "DEL", a, annotated("")), 0, "")
	w.clean(t)
}

// A claim is not released while its pod is attached, or may be: in a directory of records that only
// the last daemon was told of. The next daemon finds what is attached in one that a request has named.
func TestAClaimIsReleasedWhenNoRecordHasIt(t *testing.T) {
	t.Parallel()
	const keys = `,"sweepInterval":"0s"` + claimKeys + `}`
	w := inCluster(t, "").withKubelet(t)
	w = inClusterAt(t, w.dir, w.api, keys, ownDirs).start(t)
	a := w.pod(t, "one")
	c := w.claim(t, "storage", a, parameters("net7", "blue"))
	prepare(t, w.kubelet(t), c)
	a.StdinData = w.argsIn("other", annotated("")).StdinData
	want(t, "ADD", w.client.Execute(t.Context(), "ADD", a), 0, "")
	unknown := w.dir + "/state.dirs/x"
	for _, says := range [][]string{{"claim ns/storage: ", unknown + ", which names a directory of records"}, nil} {
		nodetest.OK(t, w.stop())
		if says != nil {
			nodetest.OK(t, os.WriteFile(unknown, []byte("{"), 0o600))
		}
		next := inClusterAt(t, w.dir, w.api, keys, ownDirs)
		next.exec, next.fake = w.fake, w.fake
		w = next.start(t)
		if err := w.kubelet(t).Unprepare(t.Context(), c); says == nil {
			nodetest.OK(t, err)
			break
		} else {
			nodetest.Says(t, err, says...)
		}
		want(t, "ADD of the next sandbox", w.client.Execute(t.Context(), "ADD", sandbox(a)), 0, "")
		nodetest.OK(t, os.Remove(unknown))
	}
	nodetest.Equal(t, "attached", w.fake.Live(), []string{"bridge c-one eth0", "bridge c-one-2 eth0"})
}

// offered are the devices in the ResourceSlices of the node, such as
// "storage{master=eth1 plugin=macvlan}", and "storage!{}" for one that only one claim can have.
func (w *world) offered() string {
	var all []string
	for _, s := range kubetest.List[resourcev1.ResourceSlice](w.api) {
		if s.Spec.Driver != driverName || s.Spec.NodeName == nil || *s.Spec.NodeName != "n1" {
			return fmt.Sprintf("a slice of %+v", s.Spec)
		}
		for _, d := range s.Spec.Devices {
			var attributes []string
			for key, a := range d.Attributes {
				attributes = append(attributes, fmt.Sprintf("%s=%s", key, *a.StringValue))
			}
			slices.Sort(attributes)
			mark := "!"
			if d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations {
				mark = ""
			}
			all = append(all, fmt.Sprintf("%s%s{%s}", d.Name, mark, strings.Join(attributes, " ")))
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// The node offers the networks that pods can be attached to now: the plugins have been asked,
// and the definition is there.
func TestNodeOffersTheNetworksThatAreReady(t *testing.T) {
	t.Parallel()
	w := inCluster(t, `,"confDir":"$DIR/nets"`+claimKeys+`,"networks":[
		{"network":"ns/blue","attributes":{"speed":"fast"}},
		{"network":"ns/broken"},
		{"device":"later","network":"ns/later","exclusive":true},
		{"network":"ns/full"},
		{"network":"file"},
		{"network":"missing"}]}`).withKubelet(t)
	nodetest.OK(t, os.Mkdir(w.dir+"/nets", 0o700))
	nodetest.OK(t, os.WriteFile(w.dir+"/nets/file.conf", []byte(`{"cniVersion":"1.1.0","name":"file","type":"bridge"}`), 0o600))
	w.fake.Plugins["full"] = delegatetest.FailOn("STATUS", 50, "no cable", delegatetest.Result(nil))
	kubetest.Put(w.api, kubetest.Definition{Namespace: "ns", Name: "full", Config: `{"cniVersion":"1.1.0","type":"full"}`})
	w.start(t)
	const now = "blue{plugin=macvlan speed=fast} file{plugin=bridge}"
	w.until(t, "what is ready is published", func() bool { return w.offered() == now })
	if !slices.ContainsFunc(w.fake.Calls(), func(c delegatetest.Invocation) bool { return c.Command == "STATUS" && c.Plugin == "full" }) {
		t.Errorf("STATUS was not asked for: %q", w.fake.Trace())
	}
	kubetest.Put(w.api, kubetest.Definition{Namespace: "ns", Name: "later", Config: `{"cniVersion":"1.1.0","type":"macvlan","master":"eth1"}`})
	w.until(t, "the definition that is new is published", func() bool {
		return w.offered() == now+" later!{master=eth1 plugin=macvlan}"
	})
	w.until(t, "the metrics say so", func() bool {
		got := w.scrape(t)
		return got[`multinetd_claim_devices{state="published"}`] == 3 && got[`multinetd_claim_devices{state="withdrawn"}`] == 3
	})
	nodetest.Contains(t, "log", w.logged.String(), `"device":"full","error":"STATUS network`, "no cable", `"device":"missing"`, `"device":"broken"`)
	// A daemon that ends withdraws nothing: the next one is there soon.
	nodetest.OK(t, w.stop())
	nodetest.Contains(t, "offered after the end", w.offered(), now)
}

// The kubelet hears at once what the ADD would refuse.
func TestClaimsAreCheckedByTheConfigurationOfTheDaemon(t *testing.T) {
	t.Parallel()
	w := inCluster(t, `,"namespaceIsolation":true,"allowedTypes":{"nad":["macvlan"]}`+claimKeys+`}`).withKubelet(t).start(t)
	k := w.kubelet(t)
	a := w.pod(t, "one")
	for name, tt := range map[string]struct{ parameters, says string }{
		"allowed":           {parameters("net7", "blue"), ""},
		"another-namespace": {parameters("net8", "other/red"), "other/red"},
		"another-type":      {`{"apiVersion":"cni.networking.x-k8s.io/v1alpha1","kind":"CNI","config":{"cniVersion":"1.0.0","name":"n","type":"bridge"}}`, "bridge"},
		"wrong-parameters":  {`{"apiVersion":"dra.metacni.io/v1alpha1","kind":"Network"}`, "definition"},
	} {
		c := w.claim(t, name, a, tt.parameters)
		all, err := k.Prepare(t.Context(), c)
		nodetest.OK(t, err)
		err = all[string(c.UID)].Err
		if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("claim %s: %v, want %q", name, err, tt.says)
		}
	}
}
