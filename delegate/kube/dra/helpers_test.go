package dra

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/delegate/kube/dra/dratest"
	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
)

const driverName = "net.example.com"

// resultOfAdd is that of an ADD.
const resultOfAdd = `{"cniVersion":"1.1.0","interfaces":[{"name":"veth1"},{"name":"net1","mac":"02:00:00:00:00:01","sandbox":"/run/netns/a"}],` +
	`"ips":[{"interface":1,"address":"192.0.2.5/24"},{"interface":1,"address":"2001:db8::5/64"}]}`

// opaque are parameters for the driver.
func opaque(source resourcev1.AllocationConfigSource, parameters string, requests ...string) resourcev1.DeviceAllocationConfiguration {
	return resourcev1.DeviceAllocationConfiguration{Source: source, Requests: requests, DeviceConfiguration: resourcev1.DeviceConfiguration{
		Opaque: &resourcev1.OpaqueDeviceConfiguration{Driver: driverName, Parameters: runtime.RawExtension{Raw: []byte(parameters)}},
	}}
}

type parameters = resourcev1.DeviceAllocationConfiguration

func fromClaim(text string, requests ...string) parameters {
	return opaque(resourcev1.AllocationConfigSourceClaim, text, requests...)
}

func fromClass(text string, requests ...string) parameters {
	return opaque(resourcev1.AllocationConfigSourceClass, text, requests...)
}

func allocatedTo(request, device, share string) resourcev1.DeviceRequestAllocationResult {
	r := resourcev1.DeviceRequestAllocationResult{Request: request, Driver: driverName, Pool: "node1", Device: device}
	if share != "" {
		uid := types.UID(share)
		r.ShareID = &uid
	}
	return r
}

// newClaim returns a claim that is allocated and reserved for the pod "web": one request, one
// share of the device storage.
func newClaim(name string, edit func(*resourcev1.ResourceClaim)) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: name, UID: types.UID("claim-" + name)},
		Status: resourcev1.ResourceClaimStatus{
			ReservedFor: []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "web", UID: "pod-web"}},
			Allocation: &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
				Results: []resourcev1.DeviceRequestAllocationResult{allocatedTo("net", "storage", "share-"+name)},
				Config:  []resourcev1.DeviceAllocationConfiguration{fromClaim(cni(`,"ifName":"` + name + `","config":` + bridge))},
			}},
		},
	}
	if edit != nil {
		edit(c)
	}
	return c
}

// A node is a driver, its kubelet, and the records of its plugin.
type node struct {
	*Driver
	server     *kubetest.Server
	kubeconfig string
	config     Config

	mu       sync.Mutex
	attached []delegate.Attached // in one container of each pod
	detached []string            // interfaces
	others   []Record            // of containers whose networks cannot be detached
	failure  error               // of the records, and of detaching
	looking  func(look int)      // is called before the read of all records, with a count, and after it
	looks    int
}

// newNode starts a driver. edit may change its configuration.
func newNode(t *testing.T, edit func(*Config)) *node {
	t.Helper()
	server := kubetest.NewServer(scheme.Codecs.UniversalDeserializer().Decode)
	t.Cleanup(server.Close)
	kubeconfig, err := server.Kubeconfig(t.TempDir())
	nodetest.OK(t, err)
	n := &node{server: server, kubeconfig: kubeconfig}
	view, err := kube.Open(t.Context(), kube.Config{Kubeconfig: kubeconfig, UserAgent: "daemon"})
	nodetest.OK(t, err)
	t.Cleanup(view.Close)
	n.await(t, "watched", func() bool { return n.server.Watches() == 1 }) // tests count other requests
	n.config = Config{
		Name: driverName, Node: "node1", View: view, Ready: make(chan struct{}), Dir: filepath.Join(t.TempDir(), "claims"),
		Records: n.records, KubeletDir: kubeletDir(t), AllowedTypes: []string{"bridge", "host-local", "tuning", "macvlan", "vlan"},
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	if edit != nil {
		edit(&n.config)
	}
	n.restart(t)
	return n
}

// kubeletDir returns the directory of a kubelet that has run.
func kubeletDir(t *testing.T) string {
	t.Helper()
	dir := nodetest.ShortDir(t)
	nodetest.OK(t, os.Mkdir(filepath.Join(dir, "plugins_registry"), 0o750))
	return dir
}

// registry returns the directory of sockets that the kubelet looks for.
func (c Config) registry() string { return filepath.Join(c.KubeletDir, "plugins_registry") }

// restart starts the driver, or another one in place of the first.
func (n *node) restart(t *testing.T) {
	t.Helper()
	if n.Driver != nil {
		n.Stop()
	}
	d, err := Start(t.Context(), n.config)
	nodetest.OK(t, err)
	t.Cleanup(d.Stop)
	n.Driver = d
}

// records is Config.Records.
func (n *node) records(_ context.Context, podUID string) ([]Record, error) {
	if n.looking != nil && podUID == "" {
		n.looks += 2
		n.looking(n.looks - 1)
		defer n.looking(n.looks)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	r := Record{Detach: func(_ context.Context, ifName string) error {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.failure == nil {
			n.detached = append(n.detached, ifName)
			n.attached = slices.DeleteFunc(n.attached, func(a delegate.Attached) bool { return a.IfName == ifName })
		}
		return n.failure
	}}
	r.State = scratch.Added
	for _, a := range n.attached {
		if podUID == "" || nad.PodOf(a.Args).UID == podUID {
			r.Attached = append(r.Attached, a)
		}
	}
	return append([]Record{r}, n.others...), n.failure
}

// detach does what a DEL, or a sweep, of the plugin does with the networks of a claim.
func (n *node) detach(claimUID string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.attached = slices.DeleteFunc(n.attached, func(a delegate.Attached) bool { return nad.ParseOrigin(a.Origin).Claim.UID == claimUID })
}

// fail makes the callbacks of the driver fail.
func (n *node) fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.failure = err
}

// attach does what the ADD of a pod does.
func (n *node) attach(t *testing.T, pod string) {
	t.Helper()
	claims := n.claims(t, pod)
	nodetest.Equal(t, pod+" has claims", len(claims) > 0, true)
	n.mu.Lock()
	for _, c := range claims {
		for _, network := range c.Networks {
			n.attached = append(n.attached, attachedTo(pod, network))
		}
	}
	n.mu.Unlock()
	nodetest.OK(t, n.UpdateMetadata(t.Context(), pod))
	n.Attached(pod, nil)
}

// attachedTo returns what a plugin records of the network of a claim.
func attachedTo(pod string, n Network) delegate.Attached {
	return delegate.Attached{
		Attachment: delegate.Attachment{IfName: n.IfName, Args: "K8S_POD_UID=" + pod, Origin: nad.Origin{Use: nad.Claimed, Claim: n.Claim}.JSON()},
		Result:     json.RawMessage(resultOfAdd),
	}
}

// kubelet registers the driver, as the kubelet does.
func (n *node) kubelet(t *testing.T, update ...string) *dratest.Kubelet {
	t.Helper()
	k, err := dratest.Register(t.Context(), filepath.Join(n.config.registry(), driverName+strings.Join(update, "")+"-reg.sock"), "")
	nodetest.OK(t, err)
	t.Cleanup(func() { _ = k.Close() })
	return k
}

// prepareClaims has the kubelet prepare claims and returns the errors by the name of the claim.
func prepareClaims(t *testing.T, k *dratest.Kubelet, claims ...*resourcev1.ResourceClaim) (devices map[string][]*drav1.Device, failures map[string]string) {
	t.Helper()
	devices, failures = map[string][]*drav1.Device{}, map[string]string{}
	all, err := k.Prepare(t.Context(), claims...)
	for _, c := range claims {
		switch p := all[string(c.UID)]; {
		case err != nil:
			failures[c.Name] = err.Error()
		case p.Err != nil:
			failures[c.Name] = p.Err.Error()
		default:
			devices[c.Name] = p.Devices
		}
	}
	return devices, failures
}

// mustPrepare is prepareClaims without errors.
func mustPrepare(t *testing.T, k *dratest.Kubelet, claims ...*resourcev1.ResourceClaim) {
	t.Helper()
	if _, failures := prepareClaims(t, k, claims...); len(failures) > 0 {
		t.Fatalf("not prepared: %v", failures)
	}
}

// refused is prepareClaims of a claim that is not prepared, for a reason.
func refused(t *testing.T, k *dratest.Kubelet, c *resourcev1.ResourceClaim, why string) {
	t.Helper()
	if _, failures := prepareClaims(t, k, c); failures[c.Name] == "" || !strings.Contains(failures[c.Name], why) {
		t.Errorf("got %v, want %q", failures, why)
	}
}

// prepared returns a node whose kubelet has prepared the claim a.
func prepared(t *testing.T) (*node, *dratest.Kubelet, *resourcev1.ResourceClaim) {
	t.Helper()
	n := newNode(t, nil)
	k := n.kubelet(t)
	a := kubetest.Put(n.server, newClaim("a", nil))
	mustPrepare(t, k, a)
	return n, k, a
}

// wantClaims fails the test unless so many claims are prepared for a pod.
func (n *node) wantClaims(t *testing.T, pod string, want int) {
	t.Helper()
	nodetest.Equal(t, "claims of "+pod, len(n.claims(t, pod)), want)
}

// await waits until the API server is as it should be.
func (n *node) await(t *testing.T, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := n.server.Wait(ctx, done); err != nil {
		t.Fatalf("%s: %v; requests: %v", what, err, n.server.Requests())
	}
}

// claims are those that are prepared for a pod.
func (n *node) claims(t *testing.T, pod string) []Claim {
	t.Helper()
	claims, err := n.Claims(t.Context(), nad.Pod{UID: pod})
	nodetest.OK(t, err)
	return claims
}

// matching are the files that match a pattern.
func matching(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	nodetest.OK(t, err)
	return files
}
