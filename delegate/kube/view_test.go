package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

func TestADefinitionThatCannotBeUsedConcernsNoOther(t *testing.T) {
	t.Parallel()
	meta := func(name string) string {
		return `"metadata":{"namespace":"blue","name":"` + name + `","uid":"u","resourceVersion":"1"}`
	}
	kind := `"apiVersion":"k8s.cni.cncf.io/v1","kind":"NetworkAttachmentDefinition",`
	items := map[string]string{
		"number":  `{` + kind + meta("number") + `,"spec":{"config":7}}`,
		"list":    `{` + kind + meta("list") + `,"spec":{"config":["{}"]}}`,
		"spec":    `{` + kind + meta("spec") + `,"spec":"{}"}`,
		"twice":   `{` + kind + meta("twice") + `,"spec":{},"spec":{"config":"x"}}`,
		"large":   `{` + kind + meta("large") + `,"spec":{"config":"` + strings.Repeat("x", 4<<20) + `"}}`,
		"notjson": `{` + kind + meta("notjson") + `,"spec":{"config":"{"}}`,
		"none":    `{` + kind + meta("none") + `}`,
	}
	all := make([]string, 0, len(items)+2)
	for _, item := range items {
		all = append(all, item)
	}
	all = append(all, `{`+kind+`"metadata":7}`, `7`)
	s := newServer(t)
	s.Break(kubetest.Fault{NoSendInitialEvents: true})
	s.Break(kubetest.Fault{Verb: "list", Body: `{"apiVersion":"k8s.cni.cncf.io/v1","kind":"NetworkAttachmentDefinitionList",` +
		`"metadata":{"resourceVersion":"1"},"items":[` + strings.Join(all, ",") + `]}`})
	v := synced(t, s, Config{})
	for name := range items {
		d, err := v.Definition(t.Context(), ref("blue", name))
		if ok := name == "none" || name == "notjson"; ok != (err == nil) { // what is in spec.config is for Definition.Network to say
			t.Errorf("%s: %+v, %v", name, d, err)
		} else if !ok && status.Code(err) != 6 && status.Code(err) != 7 {
			t.Errorf("%s: error %v has code %d, want 6 or 7", name, err, status.Code(err))
		}
	}
	r := v.Resources()[0]
	nodetest.Equal(t, "objects, synced", fmt.Sprint(r.Objects, r.Synced), fmt.Sprint(len(items), true))
}

// Kubernetes' packages copy objects before they change them.
func TestCopiesOfDefinitionsShareNothing(t *testing.T) {
	t.Parallel()
	list := &definitionList{Items: make([]definition, 1)}
	// One that cannot be used keeps its annotations, as a bookmark does.
	err := json.Unmarshal([]byte(`{"metadata":{"namespace":"a","name":"b","annotations":{"k":"v"}},"spec":7}`), &list.Items[0])
	nodetest.OK(t, err)
	c, ok := list.DeepCopyObject().(*definitionList)
	if !ok || !reflect.DeepEqual(c, list) {
		t.Fatalf("%+v is no copy of %+v", c, list)
	}
	one, ok := list.Items[0].DeepCopyObject().(*definition)
	if !ok || !reflect.DeepEqual(one, &list.Items[0]) {
		t.Fatalf("%+v is no copy of %+v", one, list.Items[0])
	}
	c.Items[0].Annotations["k"], one.Annotations["k"], c.Items[0].Name = "changed", "changed", "changed"
	if d := list.Items[0]; d.Annotations["k"] != "v" || d.Name != "b" {
		t.Errorf("the original has changed: %+v", d)
	}
}

// web is the pod that the kubelet and the tests name web.
func web(uid string) nad.Pod {
	return nad.Pod{Namespace: "blue", Name: "web", UID: uid, Container: "c1"}
}

func static(mirror string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Annotations = map[string]string{nad.SourceAnnotation: "file", mirrorAnnotation: mirror}
	}
}

// resourceSlice is one of n1's devices, with the attribute in it that is given.
func resourceSlice(name string, generation int64, device, attribute, value string) *resourcev1.ResourceSlice {
	number := int64(7)
	return &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourcev1.ResourceSliceSpec{
			Driver: "nic.example", NodeName: new("n1"),
			Pool: resourcev1.ResourcePool{Name: "n1", Generation: generation, ResourceSliceCount: 1},
			Devices: []resourcev1.Device{{Name: device, Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
				resourcev1.QualifiedName(attribute): {StringValue: &value}, "number": {IntValue: &number},
			}}},
		},
	}
}

func wantAttributes(t *testing.T, v *View, device string, want map[string]string) {
	t.Helper()
	got, err := v.DeviceAttributes(t.Context(), "nic.example", "n1", device)
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
	pool.Spec.Pool.Name = "n1-2"
	kubetest.Put(s, pool)
	other := resourceSlice("e", 9, "vf-0", "elsewhere", "x")
	other.Spec.NodeName = new("node2")
	kubetest.Put(s, other)
	v := synced(t, s, Config{Node: "n1"})
	nodetest.Equal(t, "requests before anybody has asked", s.Count("", "resourceslices"), 0)
	for range 2 {
		wantAttributes(t, v, "vf-0", map[string]string{"k8s.cni.cncf.io/resourceName": "vendor.example/vf"})
		wantAttributes(t, v, "vf-1", map[string]string{"nic.example/model": "x"})
		wantAttributes(t, v, "withdrawn", nil)
		wantAttributes(t, v, "none", nil)
	}
	nodetest.Equal(t, "requests", s.Count("", "resourceslices"), 1)
	last := v.Resources()[len(v.Resources())-1]
	nodetest.Equal(t, "the last resource", fmt.Sprint(last.Name, " ", last.Objects), "resourceslices 6")

	kubetest.Put(s, resourceSlice("f", 3, "vf-9", "model", "y"))
	until(t, v.slices, func() bool { return v.slices.resource().Objects == 7 })
	wantAttributes(t, v, "vf-9", map[string]string{"nic.example/model": "y"})
	wantAttributes(t, v, "vf-0", nil) // of an older generation
}

const notReady = "multinetd.metacni.io/not-ready"

// tainted makes the node n1 with taints such as key=value:effect.
func tainted(s *kubetest.Server, taints ...string) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"a": "b"}}}
	for _, t := range taints {
		key, effect, _ := strings.Cut(t, ":")
		key, value, _ := strings.Cut(key, "=")
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)})
	}
	kubetest.Put(s, n)
}

// taints are those of the node n1.
func taints(s *kubetest.Server) (all []string) {
	for _, t := range kubetest.Get[corev1.Node](s, "", "n1").Spec.Taints {
		all = append(all, t.ToString())
	}
	return all
}

// Nothing is asked but one watch of all namespaces, by the UserAgent, and what has come is told.
func TestDefinitionsFollowTheCluster(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	want := storage(s)
	v := synced(t, s, Config{UserAgent: "multinetd", NADWait: time.Minute})
	told := make(chan nad.Ref, 10)
	v.OnDefinition(func(r nad.Ref) { told <- r })
	tells := func(r nad.Ref, what string) { nodetest.Equal(t, "told of "+what, nodetest.Come(t, told, what), r) }
	tells(want.Ref, "one that is known")
	for range 3 {
		has(t, v, want)
	}
	got := make(chan error)
	other := ref("blue", "other")
	go func() {
		_, err := v.Definition(t.Context(), other)
		got <- err
	}()
	kubetest.Put(s, kubetest.Definition{Namespace: "blue", Name: "other", Config: config})
	nodetest.OK(t, <-got) // was waited for
	tells(other, "a new one")
	kubetest.Put(s, kubetest.Definition{Namespace: "blue", Name: "other", Config: "7", Annotations: map[string]string{nad.ResourceAnnotation: "x/y"}})
	tells(other, "one that has changed")
	changed, err := v.Definition(t.Context(), other)
	nodetest.OK(t, err)
	nodetest.Equal(t, "what has changed", []string{changed.Config, changed.Resource}, []string{"7", "x/y"})
	kubetest.Delete[kubetest.Definition](s, "blue", "other")
	tells(other, "one that is gone")
	_, err = v.KnownDefinition(t.Context(), other) // at once
	nodetest.Is(t, err, ErrNotFound)
	nodetest.Is(t, err, netconf.ErrNotFound)
	nodetest.Code(t, err, 7)
	large := ref("blue", "large")
	kubetest.Put(s, kubetest.Definition{Namespace: "blue", Name: "large", Config: strings.Repeat("x", 4<<20)})
	tells(large, "one that is too large")
	_, err = v.Definition(t.Context(), large)
	nodetest.Is(t, err, netconf.ErrInvalid)
	nodetest.Code(t, err, 7)
	has(t, v, want)
	kubetest.Delete[kubetest.Definition](s, "blue", "large")
	tells(large, "its end")
	for d, err := range v.Definitions() {
		nodetest.OK(t, err)
		nodetest.Equal(t, "the only definition", d, want)
	}
	for _, r := range s.Requests() {
		if r.UserAgent != "multinetd" || r.Verb != "watch" || r.Namespace != "" {
			t.Errorf("request %+v, want one watch of all namespaces by multinetd", r)
		}
	}
}

func TestADefinitionThatTheWatchHasNotBroughtYet(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		exists bool
		fault  kubetest.Fault
		silent bool // nothing has come for some time
		code   uint // 0: found
	}{
		"is asked for once":                             {exists: true},
		"does not exist":                                {code: 7},
		"may not be got, and the watch is alive":        {exists: true, fault: kubetest.Fault{Status: 403}, code: 7},
		"may not be got, and the watch is silent":       {exists: true, fault: kubetest.Fault{Status: 403}, silent: true, code: 11},
		"does not exist, and the watch is silent":       {silent: true, code: 7},
		"cannot be got for an error":                    {exists: true, fault: kubetest.Fault{Status: 500}, code: 11},
		"cannot be got for credentials":                 {exists: true, fault: kubetest.Fault{Status: 401}, code: 11},
		"cannot be got for a proxy that knows it not":   {exists: true, fault: kubetest.Fault{Status: 404, Body: "404 page not found"}, code: 11},
		"cannot be got for an answer that is none":      {exists: true, fault: kubetest.Fault{Body: "<html>welcome</html>"}, code: 11},
		"cannot be got for an answer about another":     {exists: true, fault: kubetest.Fault{Body: another}, code: 11},
		"cannot be got for an answer of another kind":   {exists: true, fault: kubetest.Fault{Body: `{"kind":"Status","apiVersion":"v1","status":"Success"}`}, code: 11},
		"cannot be got for a connection that breaks":    {exists: true, fault: kubetest.Fault{Cut: true}, code: 11},
		"cannot be got for a connection without answer": {exists: true, fault: kubetest.Fault{BlackHole: true}, code: 11},
	} {
		t.Run(name, func(t *testing.T) {
			faked(t, func(api *fakeAPI, v *View) {
				var want nad.Definition
				if test.exists {
					want = storage(api.Server)
				}
				if test.silent {
					time.Sleep(silentAfter)
				}
				api.Break(test.fault)
				got, err := v.Definition(api.Context(), ref("blue", "storage"))
				nodetest.Code(api, err, test.code)
				if test.code == 0 {
					nodetest.Equal(api, "definition", got, want)
				}
				if notFound := test.code == 7; errors.Is(err, netconf.ErrNotFound) != notFound || errors.Is(err, ErrNotFound) != notFound {
					api.Errorf("error %v: is ErrNotFound %v, want %v", err, !notFound, notFound)
				}
				nodetest.Equal(api, "requests", api.Count("", ""), 1)
				_, err = v.KnownDefinition(api.Context(), ref("blue", "storage"))
				nodetest.Code(api, err, 7)
				nodetest.Equal(api, "requests of one who does not wait", api.Count("", ""), 1)
			})
		})
	}
}

const another = `{"apiVersion":"k8s.cni.cncf.io/v1","kind":"NetworkAttachmentDefinition","metadata":{"namespace":"red","name":"storage","uid":"u","resourceVersion":"1"}}`

func TestALookUpThatHasNoAnswer(t *testing.T) {
	faked(t, func(api *fakeAPI, v *View) {
		d := storage(api.Server)
		for _, r := range []nad.Ref{{}, {Namespace: "blue"}, {Namespace: "..", Name: "x"}, {Namespace: "blue", Name: "a/b"}} {
			_, err := v.Definition(api.Context(), r)
			nodetest.Is(api, err, netconf.ErrInvalid)
		}
		v.definitions.maxAge = time.Hour
		time.Sleep(2 * time.Hour)
		_, err := v.Definition(api.Context(), d.Ref)
		unknown(api, err)
		nodetest.Says(api, err, "maxViewAge is 1h")
		v.definitions.store.whole = false // it has never synced
		ctx, cancel := context.WithCancel(api.Context())
		cancel()
		_, err = v.Definition(ctx, d.Ref)
		nodetest.Is(api, err, context.Canceled)
		unknown(api, err)
		_, err = v.KnownDefinition(api.Context(), d.Ref)
		unknown(api, err)
		v.pods = nil // it is of no node
		_, err = v.Pod(api.Context(), web("u1"))
		unknown(api, err)
		nodetest.Equal(api, "requests", api.Count("", ""), 0)
	})
}

// NetworkStatus needs no other right than the writer, and changes nothing. The UID of a static pod
// is not that of its object.
func TestNetworkStatusIsWhatTheAPIHas(t *testing.T) {
	faked(t, func(api *fakeAPI, v *View) {
		before := kubetest.Put(api.Server, pod("u1", func(p *corev1.Pod) {
			static("kubelet")(p)
			p.Annotations[status.NetworkStatusAnnotation] = "[1]"
		}))
		for _, uid := range []string{"u1", "", "kubelet"} {
			if uid == "kubelet" {
				nodetest.OK(api, v.pods.store.Add(before))
			}
			got, err := v.NetworkStatus(api.Context(), web(uid))
			nodetest.OK(api, err)
			nodetest.Equal(api, "status", got, "[1]")
		}
		nodetest.Equal(api, "pod", kubetest.Get[corev1.Pod](api.Server, "blue", "web"), before)
		for name, test := range map[string]struct {
			pod   nad.Pod
			fault kubetest.Fault
			kind  error
		}{
			"another pod of that name": {web("u2"), kubetest.Fault{}, ErrGone},
			"no such pod":              {nad.Pod{Namespace: "blue", Name: "none"}, kubetest.Fault{}, ErrGone},
			"forbidden":                {web("u1"), kubetest.Fault{Status: http.StatusForbidden}, ErrNotSynced},
			"cut":                      {web("u1"), kubetest.Fault{Cut: true}, ErrNotSynced},
			"rubbish":                  {web("u1"), kubetest.Fault{Body: "{}"}, ErrNotSynced},
		} {
			heal := api.Break(test.fault)
			if _, err := v.NetworkStatus(api.Context(), test.pod); !errors.Is(err, test.kind) || status.Code(err) != 11 {
				api.Errorf("%s: %v", name, err)
			}
			heal()
		}
	})
}

func TestWhoseThePodIs(t *testing.T) {
	t.Parallel()
	deleted := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }
	for name, test := range map[string]struct {
		pod   *corev1.Pod // in the cluster; nil: none
		uid   string      // of the container's
		code  uint        // 0: found
		fault kubetest.Fault
	}{
		"the request fails":                     {pod: pod("u1", nil), uid: "u1", fault: kubetest.Fault{Status: http.StatusInternalServerError}},
		"the right is missing":                  {pod: pod("u1", nil), uid: "u1", fault: kubetest.Fault{Status: http.StatusForbidden}},
		"nothing is answered":                   {pod: pod("u1", nil), uid: "u1", fault: kubetest.Fault{BlackHole: true}},
		"the answer is rubbish":                 {pod: pod("u1", nil), uid: "u1", fault: kubetest.Fault{Body: "<html>"}},
		"the same UID":                          {pod: pod("u1", nil), uid: "u1"},
		"another UID":                           {pod: pod("u2", nil), uid: "u1", code: 11},
		"none":                                  {uid: "u1", code: 11},
		"the mirror of a static pod":            {pod: pod("u2", static("hash")), uid: "hash"},
		"the mirror of another static pod":      {pod: pod("u2", static("hash")), uid: "other", code: 11},
		"a runtime without UIDs":                {pod: pod("u1", nil)},
		"no UID, and the pod is being deleted":  {pod: pod("u1", deleted), code: 11},
		"the same UID, and it is being deleted": {pod: pod("u1", deleted), uid: "u1"},
		"on another node":                       {pod: pod("u1", func(p *corev1.Pod) { p.Spec.NodeName = "n2" }), uid: "u1", code: 11},
	} {
		for _, seen := range []bool{true, false} { // by the watch
			t.Run(fmt.Sprint(name, ", seen: ", seen), func(t *testing.T) {
				faked(t, func(api *fakeAPI, v *View) {
					if test.pod != nil {
						p := kubetest.Put(api.Server, test.pod)
						if seen && p.Spec.NodeName == "n1" {
							nodetest.OK(api, v.pods.store.Add(p))
						}
					}
					faulty := test.fault != (kubetest.Fault{})
					if faulty {
						api.Break(test.fault)
					}
					got, err := v.Pod(api.Context(), web(test.uid))
					requests, code := 1, test.code
					if faulty && !seen {
						unknown(api, err)
						code = 11
					} else if test.code != 0 {
						nodetest.Is(api, err, ErrGone)
					} else if nodetest.Equal(api, "UID", got.UID, string(test.pod.UID)); seen {
						requests = 0
					}
					nodetest.Code(api, err, code)
					known, is := v.KnownPod(web(test.uid))
					nodetest.Equal(api, "known", is, seen && test.code == 0)
					nodetest.Equal(api, "known as", is && known.UID == got.UID, is)
					nodetest.Equal(api, "requests", api.Count("", ""), requests)
				})
			})
		}
	}
}

// A node whose runtime passes the annotations of pods costs the API server no watch of them: pods,
// those of the node, are watched once they are asked for. One that replaces another is waited for.
func TestPodsAreWatchedOnceTheyAreAskedFor(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	first := kubetest.Put(s, pod("u1", func(p *corev1.Pod) {
		p.Annotations = map[string]string{nad.NetworksAnnotation: "storage", nad.SourceAnnotation: "api", "other": "x"}
		p.Spec.HostNetwork = true
		p.Status.Phase = corev1.PodRunning
	}))
	want := Pod{
		Namespace: "blue", Name: "web", UID: "u1", Version: first.ResourceVersion, HostNetwork: true, Phase: corev1.PodRunning,
		Annotations: map[string]string{nad.NetworksAnnotation: "storage", nad.SourceAnnotation: "api"},
	}
	v := synced(t, s, Config{Node: "n1", PodWait: time.Minute})
	nodetest.Equal(t, "requests for pods before they are asked for", s.Count("", "pods"), 0)
	nodetest.Equal(t, "resources", len(v.Resources()), 1)
	var asking sync.WaitGroup
	for range 3 {
		asking.Go(func() {
			got, err := v.Pod(t.Context(), web("u1"))
			nodetest.Equal(t, "error", err, nil)
			nodetest.Equal(t, "pod", got, want)
		})
	}
	asking.Wait()
	nodetest.Equal(t, "resources", len(v.Resources()), 2)
	told := make(chan Pod, 8)
	v.OnPod(func(p Pod) { told <- p })
	nodetest.Equal(t, "told of", nodetest.Come(t, told, "the pod"), want)
	asking.Go(func() {
		_, err := v.Pod(t.Context(), web("u2"))
		nodetest.Equal(t, "error", err, nil)
	})
	kubetest.Put(s, pod("u2", nil))
	asking.Wait()
	for nodetest.Come(t, told, "the change").UID != "u2" { // the first may be deleted before
	}
	for _, r := range s.Requests() {
		if r.Resource == "pods" && (r.Verb != "watch" || !strings.Contains(r.Query, "fieldSelector=spec.nodeName%3Dn1&")) {
			t.Errorf("request %+v is not for the pods of one node", r)
		}
	}
	nodetest.Equal(t, "watches of pods", s.Count("watch", "pods"), 1)
	for _, v := range []*View{v, open(t, s, Config{Node: "n1"})} { // the second has never watched pods
		v.Close()
		_, err := v.Pod(t.Context(), web("u3"))
		unknown(t, err)
		_, err = v.Definition(t.Context(), ref("blue", "storage"))
		unknown(t, err)
	}
	open(t, s, Config{}).OnPod(func(Pod) { t.Error("pods are not watched") })
}

// Those that it names, those made of a template, and that of its extended resources.
func TestThePodHasTheNamesOfItsClaims(t *testing.T) {
	t.Parallel()
	_, got, _ := keepPod(pod("u1", func(p *corev1.Pod) {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{
			{Name: "a", ResourceClaimName: new("storage")},
			{Name: "b", ResourceClaimName: new("storage")},
			{Name: "c", ResourceClaimTemplateName: new("template")},
			{Name: "d", ResourceClaimTemplateName: new("template")},
		}
		p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "c", ResourceClaimName: new("made-c")}, {Name: "d"}} // is not made yet
		p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "extended"}
	}))
	nodetest.Equal(t, "claims", got.Claims, []string{"extended", "made-c", "storage"})
	_, got, _ = keepPod(pod("u1", nil))
	nodetest.Equal(t, "no claims", got.Claims == nil, true)
}

// A LIST of version 0 may be older than what the daemon knew before its restart. For pods it
// is made all the same: some API servers read another one from etcd, with the pods of all nodes.
func TestListOfDefinitionsIsNotOfAnOldVersion(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.Break(kubetest.Fault{NoSendInitialEvents: true})
	synced(t, s, Config{Node: "n1", Pods: true})
	got := map[string]string{}
	for _, r := range s.Requests() {
		if r.Verb == "list" {
			got[r.Resource] += r.Query + ";"
		}
	}
	want := map[string]string{definitionResource: ";", "pods": "fieldSelector=spec.nodeName%3Dn1&limit=500&resourceVersion=0;"}
	nodetest.Equal(t, "queries", got, want)
}

func TestAttributesThatCannotBeKnownAreTriedAgainLater(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.Break(kubetest.Fault{Resource: "resourceslices", Status: 403})
	ended, end := context.WithCancel(t.Context())
	end()
	for _, node := range []string{"n1", ""} {
		v := open(t, s, Config{Node: node})
		_, err := v.DeviceAttributes(ended, "nic.example", "n1", "vf-0")
		unknown(t, err)
		v.Close()
		_, err = v.DeviceAttributes(t.Context(), "nic.example", "n1", "vf-0")
		unknown(t, err)
	}
	closed := open(t, s, Config{Node: "n1"})
	closed.Close()
	_, err := closed.DeviceAttributes(t.Context(), "nic.example", "n1", "vf-0")
	unknown(t, err)
}

// Between the read and the patch of the daemon somebody else may change the taints. What they have
// made stays, and the daemon's taint goes with the next attempt.
func TestOnlyTheTaintsWithTheKeyAreRemoved(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		before, meanwhile, after []string
		patches                  int
	}{
		"no taints":                 {},
		"the only one":              {before: []string{notReady + ":NoSchedule"}, patches: 1},
		"between others":            {before: []string{"a:NoSchedule", notReady + "=x:NoSchedule", "b:NoExecute"}, after: []string{"a:NoSchedule", "b:NoExecute"}, patches: 1},
		"with each effect":          {before: []string{notReady + ":NoSchedule", "a=b:NoSchedule", notReady + "=y:NoExecute"}, after: []string{"a=b:NoSchedule"}, patches: 1},
		"a key that begins like it": {before: []string{notReady + "-yet:NoSchedule"}, after: []string{notReady + "-yet:NoSchedule"}},
		"while others change": {
			before: []string{notReady + ":NoSchedule", "a:NoSchedule"}, meanwhile: []string{"new:NoExecute", notReady + "=x:NoSchedule"},
			after: []string{"new:NoExecute"}, patches: 2,
		},
		"while it goes": {before: []string{notReady + ":NoSchedule", "a:NoSchedule"}, meanwhile: []string{"a:NoSchedule"}, after: []string{"a:NoSchedule"}, patches: 1},
	} {
		t.Run(name, func(t *testing.T) {
			faked(t, func(api *fakeAPI, v *View) {
				tainted(api.Server, tt.before...)
				if tt.meanwhile != nil {
					text, err := json.Marshal(kubetest.Get[corev1.Node](api.Server, "", "n1"))
					nodetest.OK(api, err)
					tainted(api.Server, tt.meanwhile...)
					api.fail(kubetest.Fault{Verb: "get", Body: string(text)})
				}
				nodetest.OK(api, v.RemoveTaint(api.Context(), notReady))
				nodetest.Equal(api, "taints", taints(api.Server), tt.after)
				nodetest.Equal(api, "patches", api.Count("patch", "nodes"), tt.patches)
				nodetest.Equal(api, "labels", kubetest.Get[corev1.Node](api.Server, "", "n1").Labels, map[string]string{"a": "b"})
			})
		})
	}
}

// Whatever the API server answers, it is asked again until the context ends, and the same answer
// is one line of the log.
func TestTaintIsRemovedWhenTheServerAllowsIt(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]kubetest.Fault{
		"no right to get":   {Verb: "get", Status: http.StatusForbidden},
		"no right to patch": {Verb: "patch", Status: http.StatusForbidden},
		"not there":         {Verb: "get", Status: http.StatusNotFound},
		"a conflict":        {Verb: "patch", Status: http.StatusConflict},
		"broken":            {Verb: "get", Status: http.StatusInternalServerError},
		"cut":               {Verb: "patch", Cut: true},
		"no answer":         {Verb: "patch", BlackHole: true},
		"a proxy's page":    {Verb: "get", Body: `<html>`},
		"another object":    {Verb: "get", Body: `{"kind":"Status"}`},
	} {
		t.Run(name, func(t *testing.T) {
			faked(t, func(api *fakeAPI, v *View) {
				tainted(api.Server, notReady+":NoSchedule")
				heal := api.Break(fault)
				log := &nodetest.Log{}
				v.log = slog.New(slog.NewTextHandler(log, nil))
				ctx, cancel := context.WithTimeout(api.Context(), 10*time.Minute)
				defer cancel()
				err := v.RemoveTaint(ctx, notReady)
				nodetest.Is(api, err, context.DeadlineExceeded)
				nodetest.Says(api, err, "n1")
				nodetest.Equal(api, "taints", len(taints(api.Server)), 1)
				nodetest.Equal(api, "lines of the log", log.Count("not removed yet"), 1)
				heal()
				nodetest.OK(api, v.RemoveTaint(api.Context(), notReady))
				nodetest.Equal(api, "taints", taints(api.Server), nil)
				v.config.Node = ""
				nodetest.Says(api, v.RemoveTaint(api.Context(), notReady), "the name of the node is needed")
			})
		})
	}
}

// An api is an API server in the same goroutine bubble as its client.
type api struct {
	mu sync.Mutex

	refused error              // what it answers
	endless bool               // initial events have no end
	slow    time.Duration      // between two initial events
	now     *watch.FakeWatcher // the watch that is open
	lists   int
	watches int
	wholes  int // watches that begin with all objects
}

func (a *api) list(context.Context, metav1.ListOptions) (runtime.Object, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lists++
	if a.refused != nil {
		return nil, a.refused
	}
	return &definitionList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, nil
}

func (a *api) watch(_ context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.watches++
	if a.refused != nil {
		return nil, a.refused
	}
	a.now = watch.NewFake()
	if opts.SendInitialEvents != nil {
		a.wholes++
	}
	if opts.SendInitialEvents != nil && !a.endless {
		go initialEvents(a.now, a.slow)
	}
	return a.now, nil
}

// initialEvents sends ten definitions over a watch, and the end of the initial events.
func initialEvents(w *watch.FakeWatcher, pause time.Duration) {
	for i := range 10 {
		time.Sleep(pause)
		if w.IsStopped() {
			return
		}
		w.Add(&definition{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: strconv.Itoa(i), ResourceVersion: "1"}})
	}
	w.Action(watch.Bookmark, bookmark(metav1.InitialEventsAnnotationKey))
}

// answer changes what the API server answers.
func (a *api) answer(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refused = err
}

func bookmark(annotation string) *definition {
	return &definition{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "2", Annotations: map[string]string{annotation: "true"}}}
}

// inBubble runs do with a source of a.
func inBubble(t *testing.T, a *api, do func(s *source, st *store[known], log *nodetest.Log)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := &nodetest.Log{}
		st := newStore(keepDefinition)
		ctx, cancel := context.WithCancel(t.Context())
		s := &source{name: "nads", log: slog.New(slog.NewTextHandler(log, nil)), list: a.list, watch: a.watch, epoch: func() int { return 1 }, store: st, ctx: ctx}
		done := make(chan struct{})
		go func() {
			s.run(ctx, &definition{}, st)
			close(done)
		}()
		synctest.Wait()
		do(s, st, log)
		end := time.Now()
		cancel()
		<-done
		nodetest.Equal(t, "ended after its context by", time.Since(end), 0)
	})
}

func TestAWatchThatIsDownForLongIsLogged(t *testing.T) {
	a := &api{refused: errors.New("no route to host")}
	inBubble(t, a, func(s *source, st *store[known], log *nodetest.Log) {
		settle(downAfter - time.Second)
		nodetest.Equal(t, "logged too early", log.String(), "")
		settle(10 * time.Minute)
		if n := log.Count("\n"); n != 1 || !strings.Contains(log.String(), "no route to host") || !strings.Contains(log.String(), "level=WARN") {
			t.Errorf("log %q, want one line with the reason", log)
		}
		if alive, _ := s.state(); alive || st.synced() {
			t.Errorf("alive %v, synced %v", alive, st.synced())
		}
		a.answer(nil)
		settle(30 * time.Second)
		if n := log.Count("\n"); n != 2 || !strings.Contains(log.String(), "again") {
			t.Errorf("log %q, want another line: it is back", log)
		}
		if alive, _ := s.state(); !alive || !st.synced() {
			t.Errorf("alive %v, synced %v", alive, st.synced())
		}
		for range 20 { // watches that end and begin again are no reason
			settle(time.Minute)
			a.now.Stop()
		}
		settle(time.Minute)
		if _, err := s.state(); err != nil || a.watches < 20 || log.Count("\n") != 2 {
			t.Errorf("%d watches, error %v, log %q", a.watches, err, log)
		}
	})
}

func TestAWatchOverWhichNothingComesIsCut(t *testing.T) {
	a := &api{}
	inBubble(t, a, func(s *source, st *store[known], _ *nodetest.Log) {
		silent := a.now
		settle(silentAfter)
		alive, _ := s.state()
		nodetest.Equal(t, "alive", alive, false)
		settle(silentFor)
		if !silent.IsStopped() || a.watches != 2 || a.lists != 0 {
			t.Errorf("stopped %v, %d watches, %d lists, want it cut, and another watch", silent.IsStopped(), a.watches, a.lists)
		}
		speaking := a.now
		for range 20 {
			time.Sleep(time.Minute)
			speaking.Action(watch.Bookmark, bookmark("other"))
			synctest.Wait()
		}
		if alive, _ := s.state(); speaking.IsStopped() || !alive || st.age() > time.Second {
			t.Errorf("stopped %v, alive %v, age %v: bookmarks are signs of life", speaking.IsStopped(), alive, st.age())
		}
	})
}

// An API server whose database was restored from a backup does not know the version of the
// view yet: it opens the watch and sends nothing.
func TestAWatchThatGoesOnInSilenceIsReplacedByAllObjects(t *testing.T) {
	a := &api{}
	inBubble(t, a, func(s *source, st *store[known], _ *nodetest.Log) {
		settle(time.Minute)
		a.now.Stop()
		settle(2*silentFor + time.Minute)
		nodetest.Equal(t, "watches with all objects, and lists", []int{a.wholes, a.lists}, []int{2, 0})
		speaking := a.now
		for range 10 {
			time.Sleep(time.Minute)
			speaking.Action(watch.Bookmark, bookmark("other"))
			synctest.Wait()
		}
		speaking.Stop()
		settle(time.Minute)
		a.now.Action(watch.Bookmark, bookmark("other"))
		settle(silentFor + time.Minute)
		nodetest.Equal(t, "watches with all objects, and all watches: the last two go on, as the version is known", []int{a.wholes, a.watches}, []int{2, 6})
	})
}

func object(d nad.Definition) *definition {
	return &definition{ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: d.Name}, value: d}
}

// mirroring runs do with a store that is mirrored to dir. Of do's arguments settle waits
// until the mirror has nothing to do.
func mirroring(t *testing.T, dir string, do func(st *store[known], settle func(), log *nodetest.Log)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		st := newStore(keepDefinition)
		log := &nodetest.Log{}
		m := newMirror(dir, slog.New(slog.NewTextHandler(log, nil)), st)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			m.run(ctx)
			close(done)
		}()
		do(st, synctest.Wait, log)
		cancel()
		<-done
	})
}

func TestAMirrorFollowsTheStore(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a", "mirror")
	single := nad.Definition{Ref: ref("blue", "storage"), UID: "u1", Version: "1", Config: config, Resource: "r"}
	list := nad.Definition{Ref: ref("blue", "list"), UID: "u2", Version: "2", Config: `{"name":"l","plugins":[{"type":"x"}]}`}
	mirroring(t, dir, func(st *store[known], settle func(), log *nodetest.Log) {
		settle()
		nodetest.Equal(t, "before the store has synced", mirrored(t, dir), nil)
		_ = st.Replace([]any{object(single), object(list)}, "2")
		settle()
		want := []string{"blue", "blue/list.conflist", "blue/list.key", "blue/storage.conf", "blue/storage.key"}
		nodetest.Equal(t, "files", mirrored(t, dir), want)
		for _, want := range []nad.Definition{single, list} {
			loaded(t, dir, want)
		}
		for name, want := range map[string]fs.FileMode{"blue": 0o700, "blue/list.conflist": 0o600, "blue/list.key": 0o600, "blue/storage.conf": 0o600} {
			info, err := os.Stat(filepath.Join(dir, name))
			nodetest.OK(t, err)
			nodetest.Equal(t, "mode of "+name, info.Mode().Perm(), want)
		}
		single.Version, single.Config = "3", list.Config
		_ = st.Update(object(single))
		settle()
		loaded(t, dir, single)
		_ = st.Delete(object(list))
		bad := object(single)
		bad.err = errors.New("cannot be used")
		_ = st.Update(bad)
		settle()
		nodetest.Equal(t, "after all have gone", mirrored(t, dir), nil)
		nodetest.Equal(t, "log", log.String(), "")
	})
}

func TestAMirrorIsComparedWithTheFirstSync(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	kept := nad.Definition{Ref: ref("blue", "kept"), UID: "u1", Version: "1", Config: config}
	mirroring(t, dir, func(st *store[known], settle func(), _ *nodetest.Log) {
		gone := nad.Definition{Ref: ref("red", "gone"), UID: "u2", Version: "1", Config: config}
		half := nad.Definition{Ref: ref("blue", "half"), UID: "u2", Version: "1", Config: config}
		_ = st.Replace([]any{object(kept), object(gone), object(half)}, "2")
		settle()
	})
	// A crash between the files of a definition, and one while a file is written.
	nodetest.OK(t, os.Remove(filepath.Join(dir, "blue/half.conf")))
	for name, data := range map[string]string{"blue/.tmp-1": "x", "blue/own.conf": config} {
		nodetest.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600))
	}
	before, err := os.Stat(filepath.Join(dir, "blue/kept.conf"))
	nodetest.OK(t, err)
	mirroring(t, dir, func(st *store[known], settle func(), _ *nodetest.Log) {
		settle()
		nodetest.Equal(t, "before the store has synced", len(mirrored(t, dir)), 9)
		_ = st.Replace([]any{object(kept)}, "9")
		settle()
	})
	want := []string{"blue", "blue/kept.conf", "blue/kept.key", "blue/own.conf"} // own.conf is a person's
	nodetest.Equal(t, "files", mirrored(t, dir), want)
	if after, err := os.Stat(filepath.Join(dir, "blue/kept.conf")); err != nil || !os.SameFile(before, after) {
		t.Errorf("a definition that has not changed was written again (%v)", err)
	}
}

// Whether that is so is known when the watch that follows it has gone on for a while.
func TestAMirrorIsNotEmptiedByOneEmptyList(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]bool{"it was right": true, "it was wrong": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			d := nad.Definition{Ref: ref("blue", "storage"), UID: "u1", Version: "1", Config: config}
			mirroring(t, dir, func(st *store[known], settle func(), _ *nodetest.Log) {
				_ = st.Replace([]any{object(d)}, "2")
				settle()
				_ = st.Replace(nil, "3")
				time.Sleep(time.Hour) // without a watch
				settle()
				loaded(t, dir, d)
				if !ends {
					_ = st.Replace([]any{object(d)}, "4")
				}
				for range 10 {
					st.UpdateResourceVersion("5") // a bookmark
					time.Sleep(time.Minute)
				}
				settle()
				if !ends {
					loaded(t, dir, d)
					_ = st.Delete(object(d)) // the watch says so
					settle()
				}
				nodetest.Equal(t, "files", mirrored(t, dir), nil)
			})
		})
	}
}

func TestAMirrorThatCannotBeWrittenIsTriedAgain(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "mirror")
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // in the way
		t.Fatal(err)
	}
	d := nad.Definition{Ref: ref("blue", "storage"), Config: config}
	mirroring(t, dir, func(st *store[known], settle func(), log *nodetest.Log) {
		_ = st.Replace([]any{object(d), object(nad.Definition{Ref: ref("blue", "other"), Config: config})}, "1")
		time.Sleep(time.Minute)
		settle()
		nodetest.Equal(t, fmt.Sprintf("lines of %q", log), log.Count("\n"), 1)
		nodetest.OK(t, os.Remove(dir))
		time.Sleep(time.Minute)
		settle()
		loaded(t, dir, d)
		nodetest.Equal(t, fmt.Sprintf("lines of %q", log), log.Count("\n"), 2)
	})
}

// An API server that all nodes ask at once needs its time. To ask it again for everything
// would cost it more. A list replaces initial events that do not end.
func TestInitialEventsMayTakeLongAsLongAsTheyCome(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		api   *api
		after time.Duration
		lists int
	}{
		"they come":       {&api{slow: initialLimit - time.Second}, 10 * initialLimit, 0},
		"they do not end": {&api{endless: true}, initialLimit + time.Second, 1},
	} {
		t.Run(name, func(t *testing.T) {
			a := test.api
			inBubble(t, a, func(_ *source, st *store[known], _ *nodetest.Log) {
				settle(test.after)
				if !st.synced() || a.wholes != 1 || a.lists != test.lists {
					t.Errorf("synced %v, %d watches with all objects, %d lists, want one watch and %d lists", st.synced(), a.wholes, a.lists, test.lists)
				}
			})
		})
	}
}

// A server that is away or busy is left alone for as long as it asks for. No LIST follows on a watch
// that it had no time for, and a later watch goes on where the last one was.
func TestAServerThatIsBusyIsNotAskedForEverything(t *testing.T) {
	t.Parallel()
	for name, busy := range map[string]error{
		"connections are refused": &url.Error{Op: "Get", URL: "https://kubernetes", Err: syscall.ECONNREFUSED},
		"too many requests":       apierrors.NewTooManyRequestsError("busy"),
		"in 20 s":                 apierrors.NewTooManyRequests("busy", 20),
	} {
		for watch, first := range map[string]bool{"first watch": true, "next watch": false} {
			t.Run(name+", "+watch, func(t *testing.T) {
				a := &api{}
				if first {
					a.refused = busy
				}
				inBubble(t, a, func(s *source, st *store[known], _ *nodetest.Log) {
					if !first {
						settle(time.Minute)
						a.answer(busy)
						a.now.Stop()
					}
					settle(2 * time.Minute)
					if alive, err := s.state(); alive || err == nil || a.watches < 3 || name == "in 20 s" && a.watches > 8 {
						t.Errorf("alive %v, error %v, %d watches in two minutes", alive, err, a.watches)
					}
					a.answer(nil)
					settle(time.Minute)
					if _, err := s.state(); err != nil || !st.synced() || a.lists != 0 || a.wholes != 1 {
						t.Errorf("error %v, synced %v, %d lists, %d watches with all objects, want only the first", err, st.synced(), a.lists, a.wholes)
					}
					a.answer(busy)
					a.now.Stop()
					settle(time.Second) // it ends while it waits
				})
			})
		}
	}
}

// mirrored returns the definitions that are mirrored below dir.
func mirrored(t *testing.T, dir string) []string {
	t.Helper()
	return (&nodetest.Node{TB: t, Dir: dir}).Files("")
}

// loaded wants a mirror to have a definition.
func loaded(t *testing.T, dir string, want nad.Definition) {
	t.Helper()
	got, err := nad.Load(os.DirFS(dir), want.Ref)
	nodetest.OK(t, err)
	nodetest.Equal(t, "definition in the mirror", got, want)
}

func TestTheMirrorServesUntilTheViewHasSynced(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	d := storage(s)
	c := Config{Mirror: t.TempDir()}
	first := synced(t, s, c)
	nodetest.Until(t, "the mirror has it", func() bool { got, _ := nad.Load(os.DirFS(c.Mirror), d.Ref); return got == d })
	first.Close()

	s.Stop()
	ended, end := context.WithCancel(t.Context())
	end() // whoever waits fails
	second := open(t, s, c)
	got, err := second.Definition(ended, d.Ref)
	nodetest.OK(t, err)
	nodetest.Equal(t, "without an API", got, d)
	_, err = second.Definition(ended, ref("blue", "other"))
	unknown(t, err)
	c.MaxViewAge = time.Minute
	_, err = open(t, s, c).Definition(ended, d.Ref)
	unknown(t, err)

	changed := kubetest.Put(s, kubetest.Definition{Namespace: "blue", Name: "storage", Config: `{"type":"macvlan"}`})
	s.Start()
	awaitSync(t, second)
	got, err = second.Definition(t.Context(), d.Ref)
	nodetest.OK(t, err)
	nodetest.Equal(t, "version with an API", got.Version, changed.Version)
}
