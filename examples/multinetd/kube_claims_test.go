package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/metacni/metacni/delegate/kube/dra/dratest"
	"github.com/metacni/metacni/delegate/kube/kubetest"
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
	tn.api.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
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
	claim := tn.api.SetClaim(&resourcev1.ResourceClaim{
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
	p := tn.api.Pod("ns", of.Name)
	p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: name, ResourceClaimName: &name})
	tn.api.SetPod(p)
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
	c := tn.api.Claim("ns", name)
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
	tn.api.SetDefinition(kubetest.Definition{Namespace: "ns", Name: "full", Config: `{"cniVersion":"1.0.0","type":"full"}`})
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
