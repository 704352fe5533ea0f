package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/kube/dra"
	"github.com/metacni/metacni/delegate/kube/dra/dratest"
	"github.com/metacni/metacni/internal/kubetest"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf/nad"
)

const (
	driverName = "net.example.com"
	claimKeys  = `,"nodeName":"n1","kubeletDir":"$DIR/kubelet","dra":{"driver":"net.example.com","allowedTypes":["bridge","host-local","macvlan","vlan","extra","strict"]`
)

// newTownWithClaims makes a daemon that serves ResourceClaims, with more keys of "dra".
func newTownWithClaims(t testing.TB, keys string) *town {
	t.Helper()
	return newTown(t, claimKeys+keys+`}`).withKubelet(t)
}

// withKubelet makes the node and the directories of its kubelet.
func (tn *town) withKubelet(t testing.TB) *town {
	t.Helper()
	kubetest.Put(tn.api, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	nodetest.OK(t, os.MkdirAll(tn.dir+"/kubelet/plugins_registry", 0o750))
	return tn
}

// kubelet registers the driver of the daemon when that has started, as the kubelet does.
func (tn *town) kubelet(t *testing.T) *dratest.Kubelet {
	t.Helper()
	var k *dratest.Kubelet
	tn.until(t, "the driver registers", func() (registered bool) {
		var err error
		k, err = dratest.Register(t.Context(), filepath.Join(tn.dir, "kubelet/plugins_registry", driverName+"-reg.sock"), "")
		return err == nil
	})
	t.Cleanup(func() { _ = k.Close() })
	return k
}

// claim makes the claim ns/name, which is allocated and reserved for the pod of a, and makes it
// the pod's. Its request has these parameters.
func (tn *town) claim(t testing.TB, name string, a *skel.CmdArgs, parameters string) *resourcev1.ResourceClaim {
	t.Helper()
	return tn.claimOf(t, driverName, name, a, parameters)
}

func (tn *town) claimOf(t testing.TB, driver, name string, a *skel.CmdArgs, parameters string) *resourcev1.ResourceClaim {
	t.Helper()
	of := nad.PodOf(a.Args)
	share := types.UID("share-" + name)
	claim := kubetest.Put(tn.api, &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Status: resourcev1.ResourceClaimStatus{
			ReservedFor: []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: of.Name, UID: types.UID(of.UID)}},
			Allocation: &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
				Results: []resourcev1.DeviceRequestAllocationResult{{Request: "net", Driver: driver, Pool: "n1", Device: "storage", ShareID: &share}},
				Config: []resourcev1.DeviceAllocationConfiguration{{Source: resourcev1.AllocationConfigSourceClaim, DeviceConfiguration: resourcev1.DeviceConfiguration{
					Opaque: &resourcev1.OpaqueDeviceConfiguration{Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(parameters)}},
				}}},
			}},
		},
	})
	p := kubetest.Get[corev1.Pod](tn.api, "ns", of.Name)
	p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: name, ResourceClaimName: &name})
	kubetest.Put(tn.api, p)
	return claim
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
func (tn *town) condition(name string) string {
	c := kubetest.Get[resourcev1.ResourceClaim](tn.api, "ns", name)
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

// The ADD of the pod attaches it to what its claim wants, together with all else, and the
// claim's status says so. A second sandbox of the pod is attached anew.
func TestClaimIsAttachedByTheADDOfItsPod(t *testing.T) {
	t.Parallel()
	tn := newTownWithClaims(t, "").start(t)
	k := tn.kubelet(t)
	a := tn.pod(t, "one")
	c := tn.claim(t, "storage", a, parameters("net7", "blue"))
	prepare(t, k, c)
	before := len(tn.api.Requests())
	nodetest.OK(t, tn.command(t, "ADD", a, annotated("")))
	if got := len(slices.DeleteFunc(tn.api.Requests()[before:], func(r kubetest.Request) bool { return r.Resource != "resourceclaims" || r.Verb == "update" })); got > 1 {
		t.Errorf("%d requests about the claim, want that of its status: %v", got, tn.api.Requests()[before:])
	}
	tn.until(t, "the status is written", func() bool { return tn.condition("storage") == ready })

	b := *a
	b.ContainerID += "-2"
	b.Args = strings.ReplaceAll(a.Args, a.ContainerID, b.ContainerID)
	want(t, "DEL", tn.command(t, "DEL", a, annotated("")), 0, "")
	tn.until(t, "the status is written", func() bool { return tn.condition("storage") == notReady })
	want(t, "ADD", tn.command(t, "ADD", &b, annotated("")), 0, "")
	tn.until(t, "the status is written", func() bool { return tn.condition("storage") == ready })
	want(t, "DEL", tn.command(t, "DEL", &b, annotated("")), 0, "")
	want(t, "Unprepare", k.Unprepare(t.Context(), c), 0, "")
	tn.clean(t)
	if files, _ := filepath.Glob(tn.dir + "/state.claims/*"); len(files) > 0 {
		t.Errorf("left: %q", files)
	}
}

// The status of a claim says why the ADD of its pod has failed, and nothing is left of that.
// What is not prepared is not attached.
func TestStatusOfAClaimSaysWhyADDHasFailed(t *testing.T) {
	t.Parallel()
	tn := newTownWithClaims(t, "").start(t)
	kubetest.Put(tn.api, kubetest.Definition{Namespace: "ns", Name: "full", Config: `{"cniVersion":"1.0.0","type":"full"}`})
	k := tn.kubelet(t)
	a := tn.pod(t, "one")
	c := tn.claim(t, "storage", a, parameters("net7", "full"))
	prepare(t, k, c)
	want(t, "ADD", tn.command(t, "ADD", a, annotated("blue")), 107, "no free device")
	tn.until(t, "the status says why", func() bool {
		got := tn.condition("storage")
		return strings.HasPrefix(got, notReady+` claim "storage", request "net", NAD ns/full: `) && strings.Contains(got, "no free device")
	})
	tn.clean(t)
	want(t, "DEL", tn.command(t, "DEL", a, annotated("blue")), 0, "")
	tn.until(t, "the status is that of a pod without a container", func() bool { return tn.condition("storage") == notReady })

	tn.until(t, "a claim that is not prepared is seen", func() bool {
		b := tn.pod(t, "two")
		tn.claim(t, "other", b, parameters("net7", "blue"))
		err := tn.command(t, "ADD", b, annotated(""))
		if err == nil { // the daemon did not know the pod yet
			want(t, "DEL", tn.command(t, "DEL", b, annotated("")), 0, "")
			return false
		}
		want(t, "ADD", err, 11, "claim ns/other: not prepared")
		return true
	})
	tn.clean(t)
}

// Containers see the interface and the addresses when the ADD returns. Where that cannot be
// written the pod has an Event, and its networks all the same.
func TestContainersSeeWhatTheirClaimsAreAttachedTo(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		tn := newTownWithClaims(t, `,"metadata":true,"cdiDir":"$DIR/cdi"`).start(t)
		k := tn.kubelet(t)
		a := tn.pod(t, "one")
		c := tn.claim(t, "storage", a, parameters("net7", "blue"))
		prepare(t, k, c)
		files, err := filepath.Glob(tn.dir + "/kubelet/plugins/" + driverName + "/dra-device-metadata/*/*/*.json")
		if specs, _ := filepath.Glob(tn.dir + "/cdi/*.json"); err != nil || len(files) != 1 || len(specs) != 1 {
			t.Fatalf("files %q, %q, %v", files, specs, err)
		}
		if lost {
			nodetest.OK(t, os.Remove(files[0]))
		}
		want(t, "ADD", tn.command(t, "ADD", a, annotated("")), 0, "")
		text, _ := os.ReadFile(files[0])
		if got := strings.Contains(string(text), "net7") && strings.Contains(string(text), "10.9.1.2/24"); got == lost {
			t.Errorf("metadata: %s", text)
		}
		events := []string{"Pod one AddedInterface"}
		if lost {
			events = append(events, "Pod one ClaimMetadataLost")
		}
		tn.until(t, "the Events are there", func() bool { return slices.Equal(slices.Sorted(slices.Values(tn.reasons())), events) })
		if logged := strings.Contains(tn.logged.String(), "containers do not see"); logged != lost {
			t.Errorf("log: %s", tn.logged)
		}
	}
}

// nextWithClaims ends the daemon and starts the next one in its place.
func (tn *town) nextWithClaims(t *testing.T, keys string) *town {
	t.Helper()
	nodetest.OK(t, tn.stop())
	next := newTownIn(t, tn.dir, tn.api, claimKeys+keys+`}`)
	next.exec, next.fake = tn.fake, tn.fake
	return next.start(t)
}

// Between two steps the daemon may be replaced, and the API may be away: nothing is lost.
func TestClaimsOutliveTheDaemon(t *testing.T) {
	t.Parallel()
	tn := newTownWithClaims(t, `,"metadata":true,"cdiDir":"$DIR/cdi"`).start(t)
	a := tn.pod(t, "one")
	c := tn.claim(t, "storage", a, parameters("net7", "blue"))
	prepare(t, tn.kubelet(t), c)
	const keys = `,"metadata":true,"cdiDir":"$DIR/cdi"`
	tn = tn.nextWithClaims(t, keys)
	heal := tn.api.Break(kubetestFault("update"))
	want(t, "ADD", tn.command(t, "ADD", a, annotated("")), 0, "")
	tn.until(t, "the status is refused", func() bool { return tn.api.Count("update", "resourceclaims/status") > 0 })
	if got := tn.condition("storage"); got != "" {
		t.Errorf("status: %s", got)
	}
	heal()
	tn = tn.nextWithClaims(t, keys)
	tn.until(t, "the next daemon writes the status", func() bool { return tn.condition("storage") == ready })
	if got := tn.fake.Live(); !slices.Equal(got, []string{"bridge c-one eth0", "macvlan c-one net7"}) {
		t.Errorf("attached: %q", got)
	}
	// The DEL has not come: the network of the claim is removed, and no other.
	tn = tn.nextWithClaims(t, keys)
	k := tn.kubelet(t)
	for range 2 {
		want(t, "Unprepare", k.Unprepare(t.Context(), c), 0, "")
	}
	if got := tn.fake.Live(); !slices.Equal(got, []string{"bridge c-one eth0"}) {
		t.Errorf("attached: %q", got)
	}
	if files, _ := filepath.Glob(tn.dir + "/cdi/*"); len(files) > 0 {
		t.Errorf("left: %q", files)
	}
	tn = tn.nextWithClaims(t, keys)
	want(t, "DEL", tn.command(t, "DEL", a, annotated("")), 0, "")
	tn.clean(t)
}

// The kubelet hears of a claim that cannot be released, and asks again. Sandboxes of other pods
// keep what they have.
func TestUnprepareRemovesWhatIsLeftOfAllSandboxes(t *testing.T) {
	t.Parallel()
	tn := newTownWithClaims(t, "").start(t)
	k := tn.kubelet(t)
	a, other := tn.pod(t, "one"), tn.pod(t, "two")
	c, d := tn.claim(t, "storage", a, parameters("net7", "blue")), tn.claim(t, "other", other, parameters("net7", "blue"))
	prepare(t, k, c, d)
	b := *a
	b.ContainerID += "-2"
	b.Args = strings.ReplaceAll(a.Args, a.ContainerID, b.ContainerID)
	want(t, "ADD", tn.command(t, "ADD", a, annotated("blue")), 0, "")
	want(t, "ADD", tn.command(t, "ADD", &b, annotated("")), 0, "")
	want(t, "ADD", tn.command(t, "ADD", other, annotated("")), 0, "")
	macvlan := tn.fake.Plugins["macvlan"]
	tn.fake.Plugins["macvlan"] = delegatetest.FailOn("DEL", 101, "not now", macvlan)
	if err := k.Unprepare(t.Context(), c); err == nil || !strings.Contains(err.Error(), "not now") {
		t.Errorf("Unprepare: %v", err)
	}
	if claims, _, err := tn.claimStore().All(); err != nil || len(claims) != 2 {
		t.Errorf("prepared: %v, %v", claims, err)
	}
	tn.fake.Plugins["macvlan"] = macvlan
	want(t, "Unprepare", k.Unprepare(t.Context(), c), 0, "")
	left := []string{"bridge c-one eth0", "bridge c-one-2 eth0", "bridge c-two eth0", "macvlan c-one net1", "macvlan c-two net7"}
	if got := tn.fake.Live(); !slices.Equal(got, left) {
		t.Errorf("attached: %q, want %q", got, left)
	}
	tn.until(t, "the other claim stays", func() bool { return tn.condition("other") == ready })
}

// A claim is not released while a DEL removes its network: the plugin is called once.
func TestUnprepareWaitsForADELThatIsUnderWay(t *testing.T) {
	t.Parallel()
	tn := newTownWithClaims(t, "").start(t)
	k := tn.kubelet(t)
	a := tn.pod(t, "one")
	c := tn.claim(t, "storage", a, parameters("net7", "blue"))
	prepare(t, k, c)
	want(t, "ADD", tn.command(t, "ADD", a, annotated("")), 0, "")
	begun, end := make(chan struct{}), make(chan struct{})
	macvlan := tn.fake.Plugins["macvlan"]
	tn.fake.Plugins["macvlan"] = func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
		if c.Command == "DEL" {
			close(begun)
			<-end
		}
		return macvlan(ctx, c)
	}
	deleted, released := make(chan error, 1), make(chan error, 1)
	go func() { deleted <- tn.command(t, "DEL", a, annotated("")) }()
	nodetest.Come(t, begun, "the DEL of the plugin")
	go func() { released <- k.Unprepare(t.Context(), c) }()
	close(end)
	want(t, "DEL", nodetest.Come(t, deleted, "the DEL"), 0, "")
	want(t, "Unprepare", nodetest.Come(t, released, "Unprepare"), 0, "")
	tn.clean(t)
}

// A sweep that removes a container says so in the status of its claims, although nobody has
// told the daemon whose container it was.
func TestStatusOfAClaimFollowsSweeps(t *testing.T) {
	t.Parallel()
	tn := newTown(t, `,"sweepInterval":"10ms"`+claimKeys+`}`).withKubelet(t)
	a := tn.pod(t, "one")
	nodetest.OK(t, os.WriteFile(a.Netns, nil, 0o600))
	tn.start(t)
	prepare(t, tn.kubelet(t), tn.claim(t, "storage", a, parameters("net7", "blue")))
	want(t, "ADD", tn.command(t, "ADD", a, annotated("")), 0, "")
	tn.until(t, "the status is written", func() bool { return tn.condition("storage") == ready })
	nodetest.OK(t, os.Remove(a.Netns))
	tn.until(t, "the status is that of a pod without a container", func() bool { return tn.condition("storage") == notReady })
	tn.clean(t)
}

// The daemon starts while the API is away, and the ADD of a pod with claims that are prepared
// needs nobody.
func TestPreparedClaimsAreAttachedWhileTheAPIIsAway(t *testing.T) {
	t.Parallel()
	tn := newTownWithClaims(t, "").start(t)
	a := tn.pod(t, "one")
	prepare(t, tn.kubelet(t), tn.claim(t, "storage", a, `{"apiVersion":"cni.networking.x-k8s.io/v1alpha1","kind":"CNI","ifName":"net7",
		"config":{"cniVersion":"1.0.0","name":"n","type":"macvlan"}}`))
	nodetest.OK(t, tn.stop())
	tn.api.Stop()
	next := newTownIn(t, tn.dir, tn.api, claimKeys+`}`)
	next.world.start(t)
	want(t, "ADD", next.command(t, "ADD", a, annotated("")), 0, "")
	if got := next.fake.Live(); !slices.Equal(got, []string{"bridge c-one eth0", "macvlan c-one net7"}) {
		t.Errorf("attached: %q", got)
	}
	want(t, "DEL", next.command(t, "DEL", a, annotated("")), 0, "")
	next.clean(t)
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
			tn := newTownWithClaims(t, "").start(t)
			a, other := tn.pod(t, "one"), tn.pod(t, "two")
			prepare(t, tn.kubelet(t), tn.claim(t, "storage", a, inline))
			want(t, "ADD", tn.command(t, "ADD", a, annotated("")), 0, "")
			nodetest.OK(t, tn.stop())
			b := *a
			b.ContainerID += "-2"
			b.Args = strings.ReplaceAll(a.Args, a.ContainerID, b.ContainerID)
			changed := newTownIn(t, tn.dir, tn.api, row.keys)
			changed.exec, changed.fake = tn.fake, tn.fake
			changed.start(t)
			want(t, "ADD", changed.command(t, "ADD", &b, annotated("")), row.code, row.text)
			if logged := strings.Contains(changed.logged.String(), "ResourceClaims are prepared, but"); logged != (row.code == 11) {
				t.Errorf("log: %s", changed.logged)
			}
			want(t, "ADD", changed.command(t, "ADD", other, annotated("")), 0, "")
			for _, c := range []*skel.CmdArgs{a, &b, other} {
				want(t, "DEL", changed.command(t, "DEL", c, annotated("")), 0, "")
			}
			changed.clean(t)
			again := changed.nextWithClaims(t, "")
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
	tn := newTownWithClaims(t, "")
	var during atomic.Pointer[func()]
	tn.interfaceNames = func(string) ([]string, error) {
		if do := during.Load(); do != nil {
			(*do)()
		}
		return nil, nil
	}
	tn.start(t)
	k := tn.kubelet(t)
	a := tn.pod(t, "one")
	c := tn.claim(t, "storage", a, parameters("net7", "blue"))
	prepare(t, k, c)
	release := func() { want(t, "Unprepare", k.Unprepare(t.Context(), c), 0, "") }
	during.Store(&release)
	want(t, "ADD", tn.command(t, "ADD", a, annotated("")), 11, "claim ns/storage: not prepared: the kubelet has released it during the ADD")
	tn.clean(t)
	want(t, "DEL", tn.command(t, "DEL", a, annotated("")), 0, "")
	tn.clean(t)
}

func (tn *town) claimStore() dra.Store { return dra.Store{Dir: tn.dir + "/state.claims"} }

// kubetestFault fails a verb of all resources.
func kubetestFault(verb string) kubetest.Fault { return kubetest.Fault{Verb: verb, Status: 500} }

// offered are the devices in the ResourceSlices of the node, such as
// "storage{master=eth1 plugin=macvlan}", and "storage!{}" for one that only one claim can have.
func (tn *town) offered() string {
	var all []string
	for _, s := range kubetest.List[resourcev1.ResourceSlice](tn.api) {
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
	tn := newTown(t, `,"confDir":"$DIR/nets"`+claimKeys+`,"networks":[
		{"network":"ns/blue","attributes":{"speed":"fast"}},
		{"network":"ns/broken"},
		{"device":"later","network":"ns/later","exclusive":true},
		{"network":"ns/full"},
		{"network":"file"},
		{"network":"missing"}]}`).withKubelet(t)
	nodetest.OK(t, os.Mkdir(tn.dir+"/nets", 0o700))
	nodetest.OK(t, os.WriteFile(tn.dir+"/nets/file.conf", []byte(`{"cniVersion":"1.1.0","name":"file","type":"bridge"}`), 0o600))
	tn.fake.Plugins["full"] = delegatetest.FailOn("STATUS", 50, "no cable", delegatetest.Result(nil))
	kubetest.Put(tn.api, kubetest.Definition{Namespace: "ns", Name: "full", Config: `{"cniVersion":"1.1.0","type":"full"}`})
	tn.start(t)
	const now = "blue{plugin=macvlan speed=fast} file{plugin=bridge}"
	tn.until(t, "what is ready is published", func() bool { return tn.offered() == now })
	if !slices.ContainsFunc(tn.fake.Calls(), func(c delegatetest.Call) bool { return c.Command == "STATUS" && c.Plugin == "full" }) {
		t.Errorf("STATUS was not asked for: %q", tn.fake.Trace())
	}
	kubetest.Put(tn.api, kubetest.Definition{Namespace: "ns", Name: "later", Config: `{"cniVersion":"1.1.0","type":"macvlan","master":"eth1"}`})
	tn.until(t, "the definition that is new is published", func() bool {
		return tn.offered() == now+" later!{master=eth1 plugin=macvlan}"
	})
	tn.until(t, "the metrics say so", func() bool {
		_, text := tn.get(t, "/metrics")
		got := series(t, text)
		return got[`multinetd_claim_devices{state="published"}`] == 3 && got[`multinetd_claim_devices{state="withdrawn"}`] == 3
	})
	for _, says := range []string{`"device":"full","error":"STATUS network`, "no cable", `"device":"missing"`, `"device":"broken"`} {
		if !strings.Contains(tn.logged.String(), says) {
			t.Errorf("the log does not have %s: %s", says, tn.logged)
		}
	}
	// A daemon that ends withdraws nothing: the next one is there soon.
	nodetest.OK(t, tn.stop())
	if got := tn.offered(); !strings.HasPrefix(got, now) {
		t.Errorf("offered after the end: %s", got)
	}
}

func TestMetricsSayHowClaimsAreDoing(t *testing.T) {
	t.Parallel()
	tn := newTownWithClaims(t, "").start(t)
	k := tn.kubelet(t)
	a := tn.pod(t, "one")
	prepare(t, k, tn.claim(t, "storage", a, parameters("net7", "blue")))
	heal := tn.api.Break(kubetest.Fault{Resource: "resourceclaims/status", Status: 403})
	want(t, "ADD", tn.command(t, "ADD", a, annotated("")), 0, "")
	metrics := func(name string) float64 {
		_, text := tn.get(t, "/metrics")
		return series(t, text)["multinetd_"+name]
	}
	tn.until(t, "the refusal is counted", func() bool { return metrics(`claim_status_writes_total{outcome="refused"}`) > 0 })
	if served, prepared, pending := metrics("claims_served"), metrics("claims_prepared"), metrics("claim_status_pending"); served != 1 || prepared != 1 || pending != 1 {
		t.Errorf("served %v, prepared %v, pending %v", served, prepared, pending)
	}
	heal()
	tn.until(t, "the status is counted", func() bool {
		return metrics(`claim_status_writes_total{outcome="written"}`) == 1 && metrics("claim_status_pending") == 0
	})
}

// The kubelet hears at once what the ADD would refuse.
func TestClaimsAreCheckedByTheConfigurationOfTheDaemon(t *testing.T) {
	t.Parallel()
	tn := newTown(t, `,"namespaceIsolation":true,"allowedTypes":{"nad":["macvlan"]}`+claimKeys+`}`).withKubelet(t).start(t)
	k := tn.kubelet(t)
	a := tn.pod(t, "one")
	for name, tt := range map[string]struct{ parameters, says string }{
		"allowed":           {parameters("net7", "blue"), ""},
		"another-namespace": {parameters("net8", "other/red"), "other/red"},
		"another-type":      {`{"apiVersion":"cni.networking.x-k8s.io/v1alpha1","kind":"CNI","config":{"cniVersion":"1.0.0","name":"n","type":"bridge"}}`, "bridge"},
		"wrong-parameters":  {`{"apiVersion":"dra.metacni.io/v1alpha1","kind":"Network"}`, "definition"},
	} {
		c := tn.claim(t, name, a, tt.parameters)
		all, err := k.Prepare(t.Context(), c)
		nodetest.OK(t, err)
		err = all[string(c.UID)].Err
		if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("claim %s: %v, want %q", name, err, tt.says)
		}
	}
}
