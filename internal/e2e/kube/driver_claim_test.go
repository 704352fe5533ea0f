package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/internal/e2e/kube/played"
)

// own returns opaque parameters of our kind that name a definition.
func own(definition string) string {
	return `{"apiVersion":"dra.metacni.io/v1alpha1","kind":"Network","definition":"` + definition + `"}`
}

// inline returns opaque parameters with a network as cni-dra-driver reads them.
func (n *driverNode) inline(network object) string {
	n.t.Helper()
	text, err := json.Marshal(network)
	if err != nil {
		n.t.Fatal(err)
	}
	return cniConfig("CNI", "cni.networking.x-k8s.io", string(text))
}

func cniConfig(kind, group, config string) string {
	return `{"apiVersion":"` + group + `/v1alpha1","kind":"` + kind + `","config":` + config + `}`
}

// claiming creates a pod with claims, of their names, and a sandbox for it.
func (n *driverNode) claiming(name, networks string, claims ...string) *sandbox {
	n.t.Helper()
	pod := n.podOf(name, networks, claims...)
	return n.sandbox(n.Pod(n.t, pod))
}

func (n *driverNode) podOf(name, networks string, claims ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: n.namespace, Name: name}}
	pod.Spec = corev1.PodSpec{NodeName: n.name, Containers: []corev1.Container{{Name: "main", Image: "none"}}}
	if networks != "" {
		pod.Annotations = map[string]string{networksAnnotation: networks}
	}
	for _, c := range claims {
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: c, ResourceClaimName: &c})
		pod.Spec.Containers[0].Resources.Claims = append(pod.Spec.Containers[0].Resources.Claims, corev1.ResourceClaim{Name: c})
	}
	return pod
}

// claim creates a claim for one device, which is allocated and reserved for a pod.
func (n *driverNode) claim(name, parameters, device string, pods ...*corev1.Pod) *resourcev1.ResourceClaim {
	n.t.Helper()
	return n.claims(name, []string{parameters}, []string{device}, pods...)
}

// claims creates a claim with a request for each device.
func (n *driverNode) claims(name string, parameters, devices []string, pods ...*corev1.Pod) *resourcev1.ResourceClaim {
	n.t.Helper()
	requests := make([]string, 0, len(devices))
	for i := range devices {
		requests = append(requests, fmt.Sprintf("r%d", i))
	}
	return n.allocate(n.scheduler.Claim(n.namespace, name, n.class(), requests, parameters...), devices, pods...)
}

// allocate creates a claim, which is allocated and reserved for pods.
func (n *driverNode) allocate(draft *resourcev1.ResourceClaim, devices []string, pods ...*corev1.Pod) *resourcev1.ResourceClaim {
	n.t.Helper()
	c, err := n.scheduler.Create(n.t.Context(), draft)
	if err == nil {
		c, err = n.scheduler.Allocate(n.t.Context(), c, n.name, devices, pods...)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	return c
}

// one makes a pod with a claim for the device shared, which the kubelet has prepared.
func (n *driverNode) one(name, parameters string) (*sandbox, *resourcev1.ResourceClaim) {
	n.t.Helper()
	s := n.claiming(name, "", name)
	c := n.claim(name, parameters, "shared", s.pod)
	n.prepare(c)
	return s, c
}

// prepare has the kubelet prepare claims.
func (n *driverNode) prepare(claims ...*resourcev1.ResourceClaim) {
	n.t.Helper()
	if err := n.tryPrepare(claims...); err != nil {
		n.t.Fatalf("prepare: %v", err)
	}
}

// tryPrepare makes one attempt of the kubelet to prepare claims.
func (n *driverNode) tryPrepare(claims ...*resourcev1.ResourceClaim) error {
	return n.tryPrepareFor(time.Minute, claims...)
}

func (n *driverNode) tryPrepareFor(limit time.Duration, claims ...*resourcev1.ResourceClaim) error {
	ctx, cancel := context.WithTimeout(n.t.Context(), limit)
	defer cancel()
	return played.Prepare(ctx, n.kubelet, claims...)
}

// unprepare has the kubelet release claims.
func (n *driverNode) unprepare(claims ...*resourcev1.ResourceClaim) {
	n.t.Helper()
	if err := n.kubelet.Unprepare(n.t.Context(), claims...); err != nil {
		n.t.Errorf("unprepare: %v", err)
	}
}

// devices returns the status of a claim.
func (n *driverNode) devices(c *resourcev1.ResourceClaim) []resourcev1.AllocatedDeviceStatus {
	n.t.Helper()
	got, err := n.scheduler.Client.ResourceV1().ResourceClaims(c.Namespace).Get(n.t.Context(), c.Name, metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	return got.Status.Devices
}

// attachedBy reports whether the status of a claim says that all its devices are interfaces which
// a sandbox has.
func (n *driverNode) attachedBy(c *resourcev1.ResourceClaim, s *sandbox) bool {
	n.t.Helper()
	devices := n.devices(c)
	for _, d := range devices {
		data := d.NetworkData
		if data == nil || len(d.Conditions) != 1 || d.Conditions[0].Type != "Ready" || d.Conditions[0].Reason != "NetworkInterfaceReady" || d.Data == nil {
			return false
		}
		addresses := make([]string, 0, len(data.IPs))
		for _, ip := range data.IPs {
			address, _, cidr := strings.Cut(ip, "/")
			if !cidr {
				return false
			}
			addresses = append(addresses, address)
		}
		if !slices.Contains(n.attached(s), fmt.Sprint(data.InterfaceName, addresses, data.HardwareAddress)) {
			return false
		}
	}
	return len(devices) == len(c.Status.Allocation.Devices.Results)
}

// wantAttached waits until the status of a claim says what a sandbox has, which are these
// interfaces.
func (n *driverNode) wantAttached(c *resourcev1.ResourceClaim, s *sandbox, interfaces ...string) {
	n.t.Helper()
	same(n.t, "interfaces of "+s.pod.Name, interfaces, n.interfaces(s))
	eventually(n.t, func() bool { return n.attachedBy(c, s) })
}

// wantDetached waits until the status of a claim says that nothing is attached, with this text.
func (n *driverNode) wantDetached(c *resourcev1.ResourceClaim, text string) {
	n.t.Helper()
	eventually(n.t, func() bool {
		devices := n.devices(c)
		return len(devices) > 0 && !slices.ContainsFunc(devices, func(d resourcev1.AllocatedDeviceStatus) bool {
			return d.NetworkData != nil || d.Data != nil || len(d.Conditions) != 1 || d.Conditions[0].Reason != "NetworkInterfaceNotReady" ||
				!strings.Contains(d.Conditions[0].Message, text)
		})
	})
}

// interfaces lists the names of the interfaces of a sandbox.
func (n *driverNode) interfaces(s *sandbox) (names []string) {
	n.t.Helper()
	for _, i := range n.attached(s) {
		name, _, _ := strings.Cut(i, "[")
		names = append(names, name)
	}
	return names
}

// released has the pod of s deleted and its claim released, of which nothing may be left.
func (n *driverNode) released(s *sandbox, c *resourcev1.ResourceClaim) {
	n.t.Helper()
	n.ok("DEL", s)
	n.unprepare(c)
	n.wantReleased([]*resourcev1.ResourceClaim{c}, s)
}

// wantReleased fails unless nothing is left of claims and sandboxes, and of all others. It
// finds what is prepared by the UIDs in the names of files.
func (n *driverNode) wantReleased(claims []*resourcev1.ResourceClaim, sandboxes ...*sandbox) {
	n.t.Helper()
	n.wantNothing(sandboxes...)
	same(n.t, "prepared claims", nil, n.prepared(claims...))
}

// prepared lists the files of the daemon whose names contain the UID of one of claims.
func (n *driverNode) prepared(claims ...*resourcev1.ResourceClaim) (files []string) {
	n.t.Helper()
	err := filepath.WalkDir(n.dir, func(path string, _ fs.DirEntry, err error) error {
		if slices.ContainsFunc(claims, func(c *resourcev1.ResourceClaim) bool { return strings.Contains(filepath.Base(path), string(c.UID)) }) {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return files
}

// log returns what the daemon has logged.
func (n *driverNode) log() string {
	n.t.Helper()
	return string(n.read(n.file("log")))
}

// statusRequests counts the requests of the daemon for the status of claims.
func (n *driverNode) statusRequests() int {
	return len(n.gate.made(http.MethodPut + " /apis/resource.k8s.io/v1/namespaces/"))
}
