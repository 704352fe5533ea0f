package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/delegate/kube/dra"
	"github.com/metacni/metacni/delegate/kube/dra/dratest"
	"github.com/metacni/metacni/internal/e2e/kube/server"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
)

// claimDriver is that of the manifests, whose policies allow no other one.
const claimDriver = "multinetd.metacni.io"

// A claimNode is a node with a driver. The test is its scheduler, its kubelet and its plugin.
type claimNode struct {
	*dra.Driver
	admin     kubernetes.Interface
	namespace string
	name      string // of the node
	config    dra.Config
	backup    atomic.Bool // whether that network is ready

	mu       sync.Mutex
	attached []delegate.Attached
}

// startClaimNode starts a driver for a node that shows token. Its claims are in namespace.
func startClaimNode(t *testing.T, s *server.Server, namespace, name, token string) *claimNode {
	t.Helper()
	n := &claimNode{namespace: namespace, name: name, admin: clientset(t, s, server.AdminToken)}
	view, err := kube.Open(t.Context(), kube.Config{Kubeconfig: s.Kubeconfig(t, token)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(view.Close)
	n.config = dra.Config{
		Name: claimDriver, Node: n.name, AllowedTypes: []string{"bridge"}, View: view, Store: dra.Store{Dir: filepath.Join(t.TempDir(), "claims")},
		Records: n.records, KubeletDir: socketDir(t),
		Networks: []dra.Offer{{Network: "storage"}, {Network: "backup"}}, OfferInterval: 10 * time.Millisecond,
		Network: func(_ context.Context, name string) (netconf.Network, error) {
			if name == "backup" && !n.backup.Load() {
				return netconf.Network{}, errors.New("not ready")
			}
			return netconf.Network{}, nil
		},
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	err = os.Mkdir(filepath.Join(n.config.KubeletDir, "plugins_registry"), 0o750)
	if err != nil {
		t.Fatal(err)
	}
	if n.Driver, err = dra.Start(t.Context(), n.config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Stop)
	return n
}

// socketDir returns a directory with a short path: that of a socket has at most 108 bytes.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "dra") //nolint:usetesting // whose directories have the name of the test
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func clientset(t *testing.T, s *server.Server, token string) *kubernetes.Clientset {
	t.Helper()
	c := s.As(token)
	c.ContentType = runtime.ContentTypeProtobuf
	c.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	set, err := kubernetes.NewForConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// records returns what a plugin would have recorded in the one container of a pod.
func (n *claimNode) records(_ context.Context, podUID string) ([]dra.Record, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	of := func(a delegate.Attached) bool { return nad.PodOf(a.Args).UID == podUID }
	r := dra.Record{Detach: func(_ context.Context, ifName string) error {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.attached = slices.DeleteFunc(n.attached, func(a delegate.Attached) bool { return of(a) && a.IfName == ifName })
		return nil
	}}
	r.State = scratch.Added
	r.Attached = slices.DeleteFunc(slices.Clone(n.attached), func(a delegate.Attached) bool { return !of(a) })
	return []dra.Record{r}, nil
}

// add does what the ADD of a pod does with the claims that are prepared for it.
func (n *claimNode) add(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	claims, err := n.Claims(t.Context(), nad.Pod{UID: string(pod.UID)})
	if err != nil || len(claims) == 0 {
		t.Fatalf("%d claims, %v", len(claims), err)
	}
	n.mu.Lock()
	for _, c := range claims {
		for i, network := range c.Networks {
			n.attached = append(n.attached, delegate.Attached{
				Attachment: delegate.Attachment{
					IfName: fmt.Sprintf("net%d", i), Args: "K8S_POD_UID=" + string(pod.UID),
					Origin: nad.Origin{Use: nad.Claimed, Claim: network.Claim}.JSON(),
				},
				Result: json.RawMessage(`{"cniVersion":"1.1.0","ips":[{"address":"192.0.2.5/24"},{"address":"2001:db8::5/64"}]}`),
			})
		}
	}
	n.mu.Unlock()
	n.Attached(string(pod.UID), nil)
}

// claim creates a claim with these parameters, which is allocated and reserved for the pod, as
// by the scheduler. more are devices of other drivers.
func (n *claimNode) claim(t *testing.T, name, parameters string, pod *corev1.Pod, more ...resourcev1.DeviceRequestAllocationResult) *resourcev1.ResourceClaim {
	t.Helper()
	c := n.admin.ResourceV1().ResourceClaims(n.namespace)
	opaque := resourcev1.DeviceConfiguration{Opaque: &resourcev1.OpaqueDeviceConfiguration{Driver: claimDriver, Parameters: runtime.RawExtension{Raw: []byte(parameters)}}}
	claim, err := c.Create(t.Context(), &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
			Requests: []resourcev1.DeviceRequest{{Name: "net", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "any", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1}}},
			Config:   []resourcev1.DeviceClaimConfiguration{{DeviceConfiguration: opaque}},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	claim.Status = resourcev1.ResourceClaimStatus{
		ReservedFor: []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: pod.Name, UID: pod.UID}},
		Allocation: &resourcev1.AllocationResult{
			// The API server looks here for the node whose driver may write the status.
			NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{n.name}}},
			}}},
			Devices: resourcev1.DeviceAllocationResult{
				Results: append([]resourcev1.DeviceRequestAllocationResult{{Request: "net", Driver: claimDriver, Pool: n.name, Device: name}}, more...),
				Config:  []resourcev1.DeviceAllocationConfiguration{{Source: resourcev1.AllocationConfigSourceClaim, DeviceConfiguration: opaque}},
			},
		},
	}
	if claim, err = c.UpdateStatus(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return claim
}

// kubelet registers the driver as the kubelet does.
func (n *claimNode) kubelet(t *testing.T) *dratest.Kubelet {
	t.Helper()
	k, err := dratest.Register(t.Context(), filepath.Join(n.config.KubeletDir, "plugins_registry", claimDriver+"-reg.sock"), "/")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	return k
}

// status waits for the status of the device of a claim.
func (n *claimNode) status(t *testing.T, name string) resourcev1.AllocatedDeviceStatus {
	t.Helper()
	var status resourcev1.AllocatedDeviceStatus
	eventually(t, func() bool {
		c, err := n.admin.ResourceV1().ResourceClaims(n.namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Status.Devices) > 0 {
			status = c.Status.Devices[0]
		}
		return len(c.Status.Devices) > 0
	})
	return status
}

// parametersOf returns parameters with the config as it is written.
func parametersOf(config string) string {
	return `{"apiVersion":"cni.networking.x-k8s.io/v1alpha1","kind":"CNI","config":` + config + `}`
}
