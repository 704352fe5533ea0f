package dra

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf/nad"
)

// shares reserves a claim for more pods.
func (n *node) shares(c *resourcev1.ResourceClaim, pods ...string) *resourcev1.ResourceClaim {
	for _, pod := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: pod, UID: types.UID(pod)})
	}
	return kubetest.Put(n.server, c)
}

var second = nad.Pod{Namespace: "blue", Name: "second", UID: "second"}

// The kubelet has a claim prepared once, for the first pod. The second pod finds it nevertheless,
// whether or not somebody knows that it has the claim, and also when the first has ended.
func TestPodsShareAClaim(t *testing.T) {
	t.Parallel()
	for name, names := range map[string][]string{"the claims of the pod are known": {"a"}, "they are not known": nil} {
		for state, ended := range map[string]bool{"the first pod runs": false, "the first pod has ended": true} {
			t.Run(name+", "+state, func(t *testing.T) {
				t.Parallel()
				n, k, a := prepared(t)
				n.attach(t, "pod-web")
				a = n.shares(a, second.UID)
				mustPrepare(t, k, a) // does not ask
				if ended {
					n.detach(string(a.UID))
					a.Status.ReservedFor = a.Status.ReservedFor[1:]
					a = kubetest.Put(n.server, a)
					nodetest.OK(t, n.sweepAll(t.Context()))
					n.wantClaims(t, "pod-web", 0)
				}
				claims, err := n.Claims(t.Context(), second, names...)
				if err != nil || len(claims) != 1 || claims[0].UID != "claim-a" || claims[0].Pod != second.UID {
					t.Fatalf("%+v, %v", claims, err)
				}
				n.attach(t, second.UID)
				if !ended {
					n.wantClaims(t, "pod-web", 1)
				}
				nodetest.OK(t, k.Unprepare(t.Context(), a))
				left, err := n.all()
				nodetest.OK(t, err)
				nodetest.Equal(t, "prepared", len(left), 0)
				nodetest.Equal(t, "attached", len(n.attached), 0)
			})
		}
	}
}

// After a restart the kubelet asks again, when several pods have the claim.
func TestASharedClaimIsPreparedForEachPod(t *testing.T) {
	t.Parallel()
	n, _, a := prepared(t)
	a = n.shares(a, second.UID, "third")
	k := n.kubelet(t)
	mustPrepare(t, k, a)
	for _, pod := range []string{"pod-web", "second", "third"} {
		n.wantClaims(t, pod, 1)
	}
	// An interface that one of them has of another claim harms that one alone.
	b := n.shares(newClaim("b", func(c *resourcev1.ResourceClaim) {
		c.Status.Allocation.Devices.Config[0].Opaque.Parameters.Raw = []byte(strings.Replace(
			string(c.Status.Allocation.Devices.Config[0].Opaque.Parameters.Raw), `"ifName":"b"`, `"ifName":"a"`, 1))
	}), "fourth")
	mustPrepare(t, k, b)
	claims, err := n.Claims(t.Context(), nad.Pod{Namespace: "blue", Name: "fourth", UID: "fourth"}, "b")
	nodetest.OK(t, err)
	nodetest.Equal(t, "claims of fourth", len(claims), 1)
	_, err = n.Claims(t.Context(), web, "a", "b")
	nodetest.Fails(t, err, 11, `claim blue/b: in use: request "net": interface "a" is that of claim blue/a`)
}

// A claim that no other pod can have, or that is not reserved for the pod, is not shared.
func TestClaimsOfOtherPodsAreTheirs(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		edit  func(*resourcev1.ResourceClaim)
		fault *kubetest.Fault
		names []string
		code  uint
	}{
		"not reserved for the pod":               {},
		"not reserved for the pod, which has it": {names: []string{"a"}, code: 11},
		"of a template": {edit: func(c *resourcev1.ResourceClaim) {
			c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "web", UID: "pod-web"}}
		}},
		"in another namespace": {edit: func(c *resourcev1.ResourceClaim) { c.Namespace = "red" }},
		"the API is away":      {fault: &kubetest.Fault{Status: 500}},
		"the API is away, and the pod has it": {
			fault: &kubetest.Fault{Status: 500}, names: []string{"a"}, code: 11,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, nil)
			mustPrepare(t, n.kubelet(t), kubetest.Put(n.server, newClaim("a", tt.edit)))
			if tt.fault != nil {
				tt.fault.Verb, tt.fault.Resource = "get", "resourceclaims"
				defer n.server.Break(*tt.fault)()
			}
			claims, err := n.Claims(t.Context(), second, tt.names...)
			nodetest.Code(t, err, tt.code)
			nodetest.Equal(t, "claims", len(claims), 0)
		})
	}
}

// The status of a shared claim is that of the newest sandbox that has it. The file that containers see
// is one for all pods, and so has the addresses of none.
func TestASharedClaimHasOneStatus(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(c *Config) { c.CDIDir = t.TempDir() })
	mustPrepare(t, n.kubelet(t), n.shares(newClaim("a", nil), second.UID))
	n.attach(t, "pod-web")
	n.attach(t, second.UID)
	n.await(t, "written", n.ready("a", "True"))
	files, err := filepath.Glob(filepath.Join(n.config.plugin(), "dra-device-metadata/*/*/metadata.json"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	text, err := os.ReadFile(files[0])
	nodetest.OK(t, err)
	nodetest.Equal(t, "an address in the file", strings.Contains(string(text), "192.0.2.5"), false)
	n.mu.Lock()
	n.attached = n.attached[1:] // the first pod has ended
	n.mu.Unlock()
	n.Attached("pod-web", errors.New("gone"))
	n.counts(t, func(s Stats) bool { return s.Pending == 0 })
	nodetest.Equal(t, "ready", n.ready("a", "True")(), true)
}
