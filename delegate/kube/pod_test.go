package kube

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// web is the pod that the kubelet and the tests name web.
func web(uid string) nad.Pod {
	return nad.Pod{Namespace: "blue", Name: "web", UID: uid, Container: "c1"}
}

func static(mirror string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Annotations = map[string]string{nad.SourceAnnotation: "file", mirrorAnnotation: mirror}
	}
}

func TestWhoseThePodIs(t *testing.T) {
	t.Parallel()
	deleted := func(p *corev1.Pod) {
		p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
		p.Finalizers = []string{"x/y"}
	}
	for name, test := range map[string]struct {
		pod  *corev1.Pod // in the cluster; nil: none
		uid  string      // of the container's
		code uint        // 0: found
	}{
		"the same UID":                          {pod: pod("u1", nil), uid: "u1"},
		"another UID":                           {pod: pod("u2", nil), uid: "u1", code: 11},
		"none":                                  {uid: "u1", code: 11},
		"the mirror of a static pod":            {pod: pod("u2", static("hash")), uid: "hash"},
		"the mirror of another static pod":      {pod: pod("u2", static("hash")), uid: "other", code: 11},
		"a runtime without UIDs":                {pod: pod("u1", nil)},
		"no UID, and the pod is being deleted":  {pod: pod("u1", deleted), code: 11},
		"the same UID, and it is being deleted": {pod: pod("u1", deleted), uid: "u1"},
		"on another node":                       {pod: pod("u1", func(p *corev1.Pod) { p.Spec.NodeName = "node2" }), uid: "u1", code: 11},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			if test.pod != nil {
				kubetest.Put(s, test.pod)
			}
			v := synced(t, s, Config{Node: "node1", Pods: true, PodWait: -1})
			before := len(s.Requests())
			got, err := v.Pod(t.Context(), web(test.uid))
			if status.Code(err) != test.code || test.code == 11 && !errors.Is(err, ErrGone) {
				t.Fatalf("pod %+v, error %v with code %d, want %d", got, err, status.Code(err), test.code)
			}
			if test.code == 0 && got.UID != string(test.pod.UID) {
				t.Errorf("pod %+v, want the UID %q", got, test.pod.UID)
			}
			if cached, ok := v.KnownPod(web(test.uid)); ok != (test.code == 0) || ok && cached.UID != got.UID {
				t.Errorf("cached: %+v, %v", cached, ok)
			}
			nodetest.Equal(t, "requests", len(s.Requests())-before, map[bool]int{true: 0, false: 1}[test.code == 0])
		})
	}
}

func TestAViewKeepsWhatMattersOfAPod(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := kubetest.Put(s, pod("u1", func(p *corev1.Pod) {
		p.Annotations = map[string]string{nad.NetworksAnnotation: "storage", nad.SourceAnnotation: "api", "other": "x"}
		p.Spec.HostNetwork = true
		p.Status.Phase = corev1.PodRunning
	}))
	v := open(t, s, Config{Node: "node1", Pods: true})
	got, err := v.Pod(t.Context(), web("u1"))
	want := Pod{
		Namespace: "blue", Name: "web", UID: "u1", Version: p.ResourceVersion, HostNetwork: true, Phase: corev1.PodRunning,
		Annotations: map[string]string{nad.NetworksAnnotation: "storage", nad.SourceAnnotation: "api"},
	}
	nodetest.OK(t, err)
	nodetest.Equal(t, "pod", got, want)
	for _, r := range s.Requests() {
		if r.Resource == "pods" && !strings.Contains(r.Query, "fieldSelector=spec.nodeName%3Dnode1&") {
			t.Errorf("request %+v is not for the pods of one node", r)
		}
	}
}

func TestAPodThatReplacesAnotherIsWaitedFor(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	kubetest.Put(s, pod("u1", nil))
	v := synced(t, s, Config{Node: "node1", Pods: true, PodWait: time.Minute})
	got := make(chan error)
	go func() {
		_, err := v.Pod(t.Context(), web("u2"))
		got <- err
	}()
	kubetest.Put(s, pod("u2", nil))
	nodetest.OK(t, <-got)
	nodetest.Equal(t, "requests", s.Count("list", "pods"), 0)
}

func TestAPodThatTheWatchDoesNotBringIsAskedForOnce(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault kubetest.Fault
		want  error // nil: found
	}{
		"it is there":           {},
		"the request fails":     {kubetest.Fault{Verb: "list", Status: http.StatusInternalServerError}, ErrNotSynced},
		"the right is missing":  {kubetest.Fault{Verb: "list", Status: http.StatusForbidden}, ErrNotSynced},
		"nothing is answered":   {kubetest.Fault{Verb: "list", BlackHole: true}, ErrNotSynced},
		"the answer is rubbish": {kubetest.Fault{Verb: "list", Body: "<html>"}, ErrNotSynced},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			v := synced(t, s, Config{Node: "node1", Pods: true, PodWait: -1})
			defer s.Break(kubetest.Fault{Verb: "watch", BlackHole: true})()
			defer s.Break(test.fault)()
			kubetest.Put(s, pod("u1", nil))
			got, err := v.Pod(t.Context(), web("u1"))
			if !errors.Is(err, test.want) || test.want == nil && got.UID != "u1" || test.want != nil && status.Code(err) != 11 {
				t.Errorf("pod %+v, error %v, want %v", got, err, test.want)
			}
			nodetest.Equal(t, "requests", s.Count("list", "pods"), 1)
		})
	}
}

func TestPodsOfNoNodeAreNotKnown(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	kubetest.Put(s, pod("u1", nil))
	v := synced(t, s, Config{})
	_, err := v.Pod(t.Context(), web("u1"))
	unknown(t, err)
	nodetest.Equal(t, "requests for pods", s.Count("", "pods"), 0)
}

// A node whose runtime passes the annotations of pods costs the API server no watch of
// them.
func TestPodsAreWatchedOnceTheyAreAskedFor(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	kubetest.Put(s, pod("u1", nil))
	v := synced(t, s, Config{Node: "node1"})
	if n, all := s.Count("", "pods"), v.Resources(); n != 0 || len(all) != 1 {
		t.Errorf("%d requests for pods and the resources %v before they are asked for", n, all)
	}
	var asking sync.WaitGroup
	for range 3 {
		asking.Go(func() {
			if p, err := v.Pod(t.Context(), web("u1")); err != nil || p.UID != "u1" {
				t.Errorf("pod %v, error %v", p, err)
			}
		})
	}
	asking.Wait()
	if n, all := s.Count("watch", "pods"), v.Resources(); n != 1 || len(all) != 2 {
		t.Errorf("%d watches of pods and the resources %v, want one and two", n, all)
	}
	for _, v := range []*View{v, open(t, s, Config{Node: "node1"})} { // the second has never watched pods
		v.Close()
		_, err := v.Pod(t.Context(), web("u2"))
		unknown(t, err)
	}
}

func TestThePodHasTheNamesOfItsClaims(t *testing.T) {
	t.Parallel()
	name := func(s string) *string { return &s }
	for what, test := range map[string]struct {
		edit func(*corev1.Pod)
		want []string
	}{
		"no claims": {},
		"one that it names": {
			edit: func(p *corev1.Pod) {
				p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "net", ResourceClaimName: name("storage")}}
			},
			want: []string{"storage"},
		},
		"one of a template that is not made yet": {
			edit: func(p *corev1.Pod) {
				p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "net", ResourceClaimTemplateName: name("template")}}
				p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "net"}}
			},
		},
		"all kinds, and one twice": {
			edit: func(p *corev1.Pod) {
				p.Spec.ResourceClaims = []corev1.PodResourceClaim{
					{Name: "a", ResourceClaimName: name("storage")}, {Name: "b", ResourceClaimName: name("storage")}, {Name: "c", ResourceClaimTemplateName: name("template")},
				}
				p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "c", ResourceClaimName: name("made-c")}}
				p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "extended"}
			},
			want: []string{"extended", "made-c", "storage"},
		},
	} {
		_, got, _ := keepPod(pod("u1", test.edit))
		nodetest.Equal(t, what, got.Claims, test.want)
	}
}

// resourceSlice is one of node1's devices, with the attribute in it that is given.
func resourceSlice(name string, generation int64, device, attribute, value string) *resourcev1.ResourceSlice {
	number := int64(7)
	return &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourcev1.ResourceSliceSpec{
			Driver: "nic.example", NodeName: new("node1"),
			Pool: resourcev1.ResourcePool{Name: "node1", Generation: generation, ResourceSliceCount: 1},
			Devices: []resourcev1.Device{{Name: device, Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
				resourcev1.QualifiedName(attribute): {StringValue: &value}, "number": {IntValue: &number},
			}}},
		},
	}
}

func wantAttributes(t *testing.T, v *View, device string, want map[string]string) {
	t.Helper()
	got, err := v.DeviceAttributes(t.Context(), "nic.example", "node1", device)
	nodetest.OK(t, err)
	nodetest.Equal(t, "attributes of "+device, got, want)
}

func TestAttributesOfDevicesAreThoseOfTheResourceSlicesOfTheNode(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	kubetest.Put(s, resourceSlice("a", 2, "vf-0", "k8s.cni.cncf.io/resourceName", "vendor.example/vf"))
	kubetest.Put(s, resourceSlice("b", 2, "vf-1", "model", "x"))
	kubetest.Put(s, resourceSlice("c", 1, "vf-0", "old", "x"))
	kubetest.Put(s, resourceSlice("d", 1, "withdrawn", "old", "x"))
	foreign := resourceSlice("g", 9, "vf-0", "of another driver", "x")
	foreign.Spec.Driver = "gpu.example"
	kubetest.Put(s, foreign)
	pool := resourceSlice("h", 9, "vf-0", "of another pool", "x")
	pool.Spec.Pool.Name = "node1-2"
	kubetest.Put(s, pool)
	other := resourceSlice("e", 9, "vf-0", "elsewhere", "x")
	other.Spec.NodeName = new("node2")
	kubetest.Put(s, other)
	v := synced(t, s, Config{Node: "node1"})
	nodetest.Equal(t, "requests before anybody has asked", s.Count("", "resourceslices"), 0)
	for range 2 {
		wantAttributes(t, v, "vf-0", map[string]string{"k8s.cni.cncf.io/resourceName": "vendor.example/vf"})
		wantAttributes(t, v, "vf-1", map[string]string{"nic.example/model": "x"})
		wantAttributes(t, v, "withdrawn", nil)
		wantAttributes(t, v, "none", nil)
	}
	nodetest.Equal(t, "requests", s.Count("", "resourceslices"), 1)
	if all := v.Resources(); all[len(all)-1].Name != "resourceslices" || all[len(all)-1].Objects != 6 {
		t.Errorf("resources: %+v", all)
	}

	kubetest.Put(s, resourceSlice("f", 3, "vf-9", "model", "y"))
	until(t, v.slices, func() bool { return v.slices.resource().Objects == 7 })
	wantAttributes(t, v, "vf-9", map[string]string{"nic.example/model": "y"})
	wantAttributes(t, v, "vf-0", nil) // of an older generation
}

func TestAttributesThatCannotBeKnownAreTriedAgainLater(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.Break(kubetest.Fault{Resource: "resourceslices", Status: 403})
	v := open(t, s, Config{Node: "node1"})
	_, err := v.DeviceAttributes(briefly(t), "nic.example", "node1", "vf-0")
	unknown(t, err)
	v.Close()
	_, err = v.DeviceAttributes(t.Context(), "nic.example", "node1", "vf-0")
	unknown(t, err)
	nowhere := open(t, s, Config{})
	_, err = nowhere.DeviceAttributes(t.Context(), "nic.example", "node1", "vf-0")
	unknown(t, err)
	nowhere.Close()
	closed := open(t, s, Config{Node: "node1"})
	closed.Close()
	_, err = closed.DeviceAttributes(t.Context(), "nic.example", "node1", "vf-0")
	unknown(t, err)
}
