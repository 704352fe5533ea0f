package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	if r := v.Resources()[0]; r.Objects != len(items) || !r.Synced {
		t.Errorf("resources: %+v", r)
	}
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
	if all := v.Resources(); all[len(all)-1].Name != "resourceslices" || all[len(all)-1].Objects != 6 {
		t.Errorf("resources: %+v", all)
	}

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
					got, err := v.Pod(api.Context(), web(test.uid))
					requests := 1
					if test.code != 0 {
						nodetest.Is(api, err, ErrGone)
					} else if nodetest.Equal(api, "UID", got.UID, string(test.pod.UID)); seen {
						requests = 0
					}
					nodetest.Code(api, err, test.code)
					known, is := v.KnownPod(web(test.uid))
					nodetest.Equal(api, "known", is, seen && test.code == 0)
					nodetest.Equal(api, "known as", is && known.UID == got.UID, is)
					nodetest.Equal(api, "requests", api.Count("", ""), requests)
				})
			})
		}
	}
}

func TestAPodThatTheWatchDoesNotBringMayNotBeKnown(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]kubetest.Fault{
		"the request fails":     {Status: http.StatusInternalServerError},
		"the right is missing":  {Status: http.StatusForbidden},
		"nothing is answered":   {BlackHole: true},
		"the answer is rubbish": {Body: "<html>"},
	} {
		t.Run(name, func(t *testing.T) {
			faked(t, func(api *fakeAPI, v *View) {
				kubetest.Put(api.Server, pod("u1", nil))
				api.Break(fault)
				_, err := v.Pod(api.Context(), web("u1"))
				unknown(api, err)
				nodetest.Equal(api, "requests", api.Count("", ""), 1)
			})
		})
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

func TestOnlyTheTaintsWithTheKeyAreRemoved(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		before, after []string
		patches       int
	}{
		"no taints":                 {nil, nil, 0},
		"the only one":              {[]string{notReady + ":NoSchedule"}, nil, 1},
		"between others":            {[]string{"a:NoSchedule", notReady + "=x:NoSchedule", "b:NoExecute"}, []string{"a:NoSchedule", "b:NoExecute"}, 1},
		"with each effect":          {[]string{notReady + ":NoSchedule", "a=b:NoSchedule", notReady + "=y:NoExecute"}, []string{"a=b:NoSchedule"}, 1},
		"a key that begins like it": {[]string{notReady + "-yet:NoSchedule"}, []string{notReady + "-yet:NoSchedule"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			faked(t, func(api *fakeAPI, v *View) {
				tainted(api.Server, tt.before...)
				nodetest.OK(api, v.RemoveTaint(api.Context(), notReady))
				nodetest.Equal(api, "taints", taints(api.Server), tt.after)
				nodetest.Equal(api, "patches", api.Count("patch", "nodes"), tt.patches)
				nodetest.Equal(api, "labels", kubetest.Get[corev1.Node](api.Server, "", "n1").Labels, map[string]string{"a": "b"})
			})
		})
	}
}

// Between the read and the patch of the daemon somebody else changes the taints. What they
// have made stays, and the daemon's taint goes with the next attempt.
func TestTaintsThatOthersChangeMeanwhileStay(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ meanwhile, after []string }{
		"others": {[]string{"new:NoExecute", notReady + "=x:NoSchedule"}, []string{"new:NoExecute"}},
		"it too": {[]string{"a:NoSchedule"}, []string{"a:NoSchedule"}},
	} {
		t.Run(name, func(t *testing.T) {
			faked(t, func(api *fakeAPI, v *View) {
				tainted(api.Server, notReady+":NoSchedule", "a:NoSchedule")
				read := kubetest.Get[corev1.Node](api.Server, "", "n1")
				text, err := json.Marshal(read)
				nodetest.OK(api, err)
				tainted(api.Server, tt.meanwhile...)
				api.fail(kubetest.Fault{Verb: "get", Body: string(text)})
				nodetest.OK(api, v.RemoveTaint(api.Context(), notReady))
				nodetest.Equal(api, "taints", taints(api.Server), tt.after)
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
