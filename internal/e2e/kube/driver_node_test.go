package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/delegate/kube/dra/dratest"
	"github.com/metacni/metacni/internal/e2e/kube/played"
	"github.com/metacni/metacni/internal/e2e/kube/server"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// claimDriver is the driver of the manifests, whose policies allow no other one.
const claimDriver = "multinetd.metacni.io"

// A driverNode is a node whose multinetd is a driver for ResourceClaims. The test is the
// scheduler and the kubelet.
type driverNode struct {
	*node
	scheduler played.Scheduler
	kubelet   *dratest.Kubelet
}

// newDriver starts multinetd on a node that publishes the devices shared, shared2 and
// single, of which single is exclusive. Its DeviceClass has no configuration. The definitions
// blue, green and red are those of its bridges 1, 2 and 5. keys are added to the daemon's file.
func newDriver(t *testing.T, keys object) *driverNode {
	t.Helper()
	n := newIdleDriver(t, keys)
	n.begin()
	return n
}

// begin starts the daemon with all rights, and registers its driver.
func (n *driverNode) begin() {
	n.t.Helper()
	n.grantClaims(allClaimRights)
	n.ready()
	n.published("shared", "shared2", "single")
	n.register()
}

// newIdleDriver is newDriver without the rights for claims and without a daemon.
func newIdleDriver(t *testing.T, keys object) *driverNode {
	t.Helper()
	s := world(t).Server
	client, err := played.Client(s.Admin())
	nodetest.OK(t, err)
	n := &driverNode{node: newNode(t, s, nil), scheduler: played.Scheduler{Client: client, Driver: claimDriver}}
	n.keys["binDir"], n.keys["kubeletDir"] = n.file("bin"), n.file("kubelet")
	n.keys["dra"] = object{"driver": claimDriver, "allowedTypes": []string{"bridge", "host-local", "watched"}, "networks": []object{
		{"device": "shared", "network": n.namespace + "/blue", "attributes": object{"rack": "r1"}},
		{"device": "shared2", "network": n.namespace + "/green"},
		{"device": "single", "network": n.namespace + "/red", "exclusive": true},
	}}
	maps.Copy(n.keys, keys)
	nodetest.OK(t, os.MkdirAll(n.file("kubelet/plugins_registry"), 0o700))
	n.plugins()
	n.define(n.namespace, "blue", 1)
	n.define(n.namespace, "green", 2)
	n.define(n.namespace, "red", 5)
	nodetest.OK(t, n.scheduler.Class(t.Context(), n.class()))
	return n
}

// class returns the name of the DeviceClass of the test.
func (n *driverNode) class() string { return n.namespace }

// plugins makes a directory of plugins. That of type watched is a bridge that writes what it is
// given to a file. It hangs as long as there is a file hold-COMMAND, and fails as long as there
// is a file fail-COMMAND.
func (n *driverNode) plugins() {
	n.t.Helper()
	programs, err := filepath.Glob(bin("*"))
	nodetest.OK(n.t, err)
	nodetest.OK(n.t, os.Mkdir(n.file("bin"), 0o700))
	for _, p := range programs {
		nodetest.OK(n.t, os.Symlink(p, n.file("bin", filepath.Base(p))))
	}
	n.write([]byte(`#!/bin/sh
cd `+n.host.Dir+`
stdin=given/$CNI_COMMAND-$CNI_CONTAINERID-$CNI_IFNAME
cat > $stdin
if [ -e hold-$CNI_COMMAND ]; then
	echo $$ > held.tmp && mv held.tmp held-$CNI_COMMAND
	while [ -e hold-$CNI_COMMAND ]; do sleep 0.02; done
fi
if [ -e fail-$CNI_COMMAND ]; then
	echo '{"cniVersion": "1.1.0", "code": 100, "msg": "out of luck"}'
	exit 1
fi
exec bin/bridge < $stdin
`), "bin/watched")
	nodetest.OK(n.t, os.Mkdir(n.file("given"), 0o700))
}

// watched returns the configuration of the node's i'th bridge for the plugin watched.
func (n *driverNode) watched(i int) object {
	network := n.bridge(i)
	network["cniVersion"], network["type"], network["name"] = "1.1.0", "watched", fmt.Sprintf("watched%d", i)
	return network
}

// set makes a file that makes the plugin watched hang or fail, and returns what removes it.
func (n *driverNode) set(file string) (unset func()) {
	n.t.Helper()
	n.write(nil, file)
	unset = func() { _ = os.Remove(n.file(file)) }
	n.t.Cleanup(unset) // a plugin that hangs ends with the test
	return unset
}

// held waits until the plugin watched hangs. ended waits until that plugin has ended.
func (n *driverNode) held(command string) (ended func()) {
	n.t.Helper()
	var process []byte
	eventually(n.t, func() (held bool) {
		var err error
		process, err = os.ReadFile(n.file("held-" + command))
		return err == nil
	})
	return func() {
		n.t.Helper()
		eventually(n.t, func() bool {
			_, err := os.Stat(filepath.Join("/proc", strings.TrimSpace(string(process))))
			return err != nil
		})
	}
}

// The rights of the component of the manifests, and those without the right that API servers
// require since 1.36.
const (
	allClaimRights = "dra-all"
	oldClaimRights = "dra-old"
)

var componentRights struct {
	sync.Once
	ok bool
}

// grantClaims gives the daemon the rights of a role, under the policies of the component.
func (n *driverNode) grantClaims(role string) {
	n.t.Helper()
	componentRights.Do(func() {
		var shipped rbacv1.ClusterRole
		for document := range strings.SplitSeq(n.rendered("dra"), "---\n") {
			switch {
			case strings.Contains(document, "\nkind: ClusterRole\n"):
				text := n.Kubectl(n.t, document, "create", "--dry-run=client", "-o", "json", "-f", "-")
				nodetest.OK(n.t, json.Unmarshal([]byte(text), &shipped))
			case strings.Contains(document, "\nkind: ValidatingAdmissionPolicy"):
				n.Kubectl(n.t, document, "apply", "-f", "-")
			}
		}
		all := rbacv1.ClusterRole{TypeMeta: shipped.TypeMeta, ObjectMeta: metav1.ObjectMeta{Name: allClaimRights}, Rules: shipped.Rules}
		old := all
		old.Name = oldClaimRights
		old.Rules = slices.DeleteFunc(slices.Clone(all.Rules), func(r rbacv1.PolicyRule) bool {
			return slices.Contains(r.Resources, "resourceclaims/driver")
		})
		if len(old.Rules) != len(all.Rules)-1 {
			n.t.Fatalf("the component has %d rules for resourceclaims/driver, want one", len(all.Rules)-len(old.Rules))
		}
		for _, role := range []rbacv1.ClusterRole{all, old} {
			text, err := json.Marshal(role)
			nodetest.OK(n.t, err)
			n.Kubectl(n.t, string(text), "create", "-f", "-")
		}
		componentRights.ok = true
	})
	if !componentRights.ok {
		n.t.Fatal("another test could not make the roles")
	}
	n.grant(role)
}

// rendered returns the manifests of multinetd with a component.
func (n *driverNode) rendered(component string) string {
	n.t.Helper()
	dir := n.t.TempDir()
	nodetest.OK(n.t, server.Kustomize(dir, component))
	return n.Kubectl(n.t, "", "kustomize", dir)
}

// published waits until the scheduler knows exactly these devices of the node.
func (n *driverNode) published(names ...string) (devices []resourcev1.Device) {
	n.t.Helper()
	eventually(n.t, func() bool {
		var err error
		if devices, err = n.scheduler.Devices(n.t.Context(), n.name); err != nil {
			n.t.Fatal(err)
		}
		return slices.EqualFunc(devices, names, func(d resourcev1.Device, name string) bool { return d.Name == name })
	})
	return devices
}

// register registers the driver with the kubelet.
func (n *driverNode) register() {
	n.t.Helper()
	eventually(n.t, func() bool {
		k, err := dratest.Register(n.t.Context(), n.file("kubelet/plugins_registry", claimDriver+"-reg.sock"), "/")
		if err == nil {
			n.kubelet = k
			n.t.Cleanup(func() { _ = k.Close() })
		}
		return err == nil
	})
}

// restart kills the daemon and starts another one.
func (n *driverNode) restart() {
	n.t.Helper()
	n.kill()
	n.ready()
	n.register()
}

// own returns opaque parameters of our kind that name a definition. They are not in canonical JSON: an
// API server refuses a status whose writer has sent them in another form.
func own(definition string) string {
	return `{"kind":"Network","definition":"` + definition + `","apiVersion":"dra.metacni.io/v1alpha1"}`
}

// inline returns opaque parameters with a network as cni-dra-driver reads them.
func (n *driverNode) inline(network object) string {
	n.t.Helper()
	text, err := json.Marshal(network)
	nodetest.OK(n.t, err)
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
	nodetest.OK(n.t, err)
	c, err = n.scheduler.Allocate(n.t.Context(), c, n.name, devices, pods...)
	nodetest.OK(n.t, err)
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
	nodetest.OK(n.t, err)
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
	nodetest.Equal(n.t, "interfaces of "+s.pod.Name, n.interfaces(s), interfaces)
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
	nodetest.Equal(n.t, "prepared claims", n.prepared(claims...), nil)
}

// prepared lists the files of the daemon whose names contain the UID of one of claims.
func (n *driverNode) prepared(claims ...*resourcev1.ResourceClaim) (files []string) {
	n.t.Helper()
	err := filepath.WalkDir(n.host.Dir, func(path string, _ fs.DirEntry, err error) error {
		if slices.ContainsFunc(claims, func(c *resourcev1.ResourceClaim) bool { return strings.Contains(filepath.Base(path), string(c.UID)) }) {
			files = append(files, path)
		}
		return err
	})
	nodetest.OK(n.t, err)
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
