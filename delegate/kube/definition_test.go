package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

func TestDefinitionsComeOutOfTheViewWithoutARequest(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	want := storage(s)
	v := synced(t, s, Config{UserAgent: "multinetd"})
	before := len(s.Requests())
	for range 3 {
		has(t, v, want)
	}
	nodetest.Equal(t, "requests", len(s.Requests()), before)
	for _, r := range s.Requests() {
		if r.UserAgent != "multinetd" || r.Verb != "watch" || r.Namespace != "" {
			t.Errorf("request %+v, want one watch of all namespaces by multinetd", r)
		}
	}
}

func TestDefinitionsFollowTheCluster(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	v := synced(t, s, Config{})

	first := storage(s)
	has(t, v, first)
	kubetest.Put(s, kubetest.Definition{Namespace: "blue", Name: "storage", Config: `{"type":"macvlan"}`})
	until(t, v.definitions, func() bool {
		got, err := v.Definition(t.Context(), first.Ref)
		return err == nil && got.Config == `{"type":"macvlan"}` && got.Resource == "" && got.UID == first.UID
	})
	kubetest.Delete[kubetest.Definition](s, "blue", "storage")
	v.config.NADWait = -1
	until(t, v.definitions, func() bool {
		_, err := v.Definition(t.Context(), first.Ref)
		return errors.Is(err, ErrNotFound)
	})
}

func TestADefinitionThatTheWatchHasNotBroughtYet(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		exists bool
		faults []kubetest.Fault
		silent bool // nothing has come for some time
		code   uint // 0: found
	}{
		"is asked for once":                             {exists: true},
		"does not exist":                                {code: 7},
		"may not be got, and the watch is alive":        {exists: true, faults: get(http.StatusForbidden), code: 7},
		"may not be got, and the watch is silent":       {exists: true, faults: get(http.StatusForbidden), silent: true, code: 11},
		"does not exist, and the watch is silent":       {silent: true, code: 7},
		"cannot be got for an error":                    {exists: true, faults: get(http.StatusInternalServerError), code: 11},
		"cannot be got for credentials":                 {exists: true, faults: get(http.StatusUnauthorized), code: 11},
		"cannot be got for a proxy that knows it not":   {exists: true, faults: []kubetest.Fault{{Verb: "get", Status: 404, Body: "404 page not found"}}, code: 11},
		"cannot be got for an answer that is none":      {exists: true, faults: []kubetest.Fault{{Verb: "get", Body: "<html>welcome</html>"}}, code: 11},
		"cannot be got for an answer about another":     {exists: true, faults: []kubetest.Fault{{Verb: "get", Body: nadJSON("red", "storage")}}, code: 11},
		"cannot be got for an answer of another kind":   {exists: true, faults: []kubetest.Fault{{Verb: "get", Body: `{"kind":"Status","apiVersion":"v1","status":"Success"}`}}, code: 11},
		"cannot be got for a connection that breaks":    {exists: true, faults: []kubetest.Fault{{Verb: "get", Cut: true}}, code: 11},
		"cannot be got for a connection without answer": {exists: true, faults: []kubetest.Fault{{Verb: "get", BlackHole: true}}, code: 11},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			v := synced(t, s, Config{NADWait: -1})
			defer s.Break(kubetest.Fault{Verb: "watch", BlackHole: true})()
			for _, f := range test.faults {
				defer s.Break(f)()
			}
			want := nad.Definition{}
			if test.exists {
				want = storage(s)
			}
			if test.silent {
				v.definitions.store.mu.Lock()
				v.definitions.store.last = time.Now().Add(-silentAfter)
				v.definitions.store.mu.Unlock()
			}
			got, err := v.Definition(t.Context(), ref("blue", "storage"))
			if status.Code(err) != test.code || test.code == 0 && got != want {
				t.Errorf("definition %+v, error %v with code %d, want code %d", got, err, status.Code(err), test.code)
			}
			if notFound := test.code == 7; errors.Is(err, netconf.ErrNotFound) != notFound || errors.Is(err, ErrNotFound) != notFound {
				t.Errorf("error %v: is ErrNotFound %v, want %v", err, !notFound, notFound)
			}
			nodetest.Equal(t, "requests", s.Count("get", ""), 1)
		})
	}
}

func get(status int) []kubetest.Fault { return []kubetest.Fault{{Verb: "get", Status: status}} }

func nadJSON(namespace, name string) string {
	return `{"apiVersion":"k8s.cni.cncf.io/v1","kind":"NetworkAttachmentDefinition","metadata":{"namespace":"` + namespace +
		`","name":"` + name + `","uid":"u","resourceVersion":"1"}}`
}

func TestADefinitionIsWaitedFor(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	v := synced(t, s, Config{NADWait: time.Minute})
	got := make(chan error)
	go func() {
		_, err := v.Definition(t.Context(), ref("blue", "storage"))
		got <- err
	}()
	storage(s)
	nodetest.OK(t, <-got)
	nodetest.Equal(t, "requests", s.Count("get", ""), 0)
}

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

func TestADefinitionThatIsTooLargeConcernsNoOther(t *testing.T) {
	t.Parallel()
	large := kubetest.Definition{Namespace: "blue", Name: "large", Config: strings.Repeat("x", 4<<20)}
	for name, before := range map[string]bool{"before the watch": true, "during the watch": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			if before {
				kubetest.Put(s, large)
			}
			v := synced(t, s, Config{NADWait: -1})
			if !before {
				kubetest.Put(s, large)
			}
			d := storage(s)
			until(t, v.definitions, func() bool {
				got, err := v.Definition(t.Context(), d.Ref)
				_, bad := v.Definition(t.Context(), ref("blue", "large"))
				return err == nil && got == d && status.Code(bad) == 7 && errors.Is(bad, netconf.ErrInvalid)
			})
		})
	}
}

func TestANameThatIsNoneIsNotLookedUp(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	v := synced(t, s, Config{})
	for _, r := range []nad.Ref{{}, {Namespace: "blue"}, {Namespace: "..", Name: "x"}, {Namespace: "blue", Name: "a/b"}} {
		_, err := v.Definition(t.Context(), r)
		nodetest.Is(t, err, netconf.ErrInvalid)
	}
	nodetest.Equal(t, "requests", s.Count("get", ""), 0)
}

func TestAViewThatIsTooOldSaysSo(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	d := storage(s)
	v := synced(t, s, Config{MaxViewAge: time.Hour})
	has(t, v, d)
	defer s.Break(kubetest.Fault{Verb: "watch", BlackHole: true})()
	v.definitions.store.mu.Lock()
	v.definitions.store.last = time.Now().Add(-2 * time.Hour)
	v.definitions.store.mu.Unlock()
	_, err := v.Definition(t.Context(), d.Ref)
	unknown(t, err)
	nodetest.Says(t, err, "maxViewAge is 1h")
}

func TestTheEndOfTheContextEndsALookUp(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	heal := s.Break(kubetest.Fault{BlackHole: true})
	defer heal()
	v := open(t, s, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := v.Definition(ctx, ref("blue", "storage"))
	nodetest.Is(t, err, context.Canceled)
	nodetest.Code(t, err, 11)
	v.Close()
	_, err = v.Definition(t.Context(), ref("blue", "storage"))
	unknown(t, err)
}

// A LIST of version 0 may be older than what the daemon knew before its restart. For pods it
// is made all the same: some API servers read another one from etcd, with the pods of all nodes.
func TestListOfDefinitionsIsNotOfAnOldVersion(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	storage(s)
	s.Break(kubetest.Fault{NoSendInitialEvents: true})
	awaitSync(t, open(t, s, Config{Node: "node1", Pods: true}))
	got := map[string]string{}
	for _, r := range s.Requests() {
		if r.Verb == "list" {
			got[r.Resource] += r.Query + ";"
		}
	}
	want := map[string]string{definitionResource: ";", "pods": "fieldSelector=spec.nodeName%3Dnode1&limit=500&resourceVersion=0;"}
	nodetest.Equal(t, "queries", got, want)
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

// KnownDefinition waits for no definition and makes no request. It does not take a View
// that has not synced for an answer.
func TestKnownDefinitionWaitsForNothing(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	want := storage(s)
	v := synced(t, s, Config{})
	got, err := v.KnownDefinition(t.Context(), want.Ref)
	nodetest.OK(t, err)
	nodetest.Equal(t, "definition", got, want)
	_, err = v.KnownDefinition(t.Context(), ref("blue", "other"))
	nodetest.Is(t, err, ErrNotFound)
	nodetest.Is(t, err, netconf.ErrNotFound)
	nodetest.Code(t, err, 7)
	nodetest.Equal(t, "requests", s.Count("get", ""), 0)
	s.Stop()
	away := open(t, s, Config{})
	_, err = away.KnownDefinition(briefly(t), want.Ref)
	unknown(t, err)
}

func TestAllDefinitions(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	want := storage(s)
	v := synced(t, s, Config{})
	var got []nad.Definition
	for d, err := range v.Definitions() {
		nodetest.OK(t, err)
		got = append(got, d)
	}
	nodetest.Equal(t, "definitions", got, []nad.Definition{want})
	for range v.Definitions() {
		break
	}
}

// NetworkStatus needs no other right than the writer, and changes nothing.
func TestNetworkStatusIsWhatTheAPIHas(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	kubetest.Put(s, pod("u1", func(p *corev1.Pod) { p.Annotations = map[string]string{status.NetworkStatusAnnotation: "[1]"} }))
	before := kubetest.Get[corev1.Pod](s, "blue", "web").ResourceVersion
	v := open(t, s, Config{})
	for _, uid := range []string{"u1", ""} {
		if got, err := v.NetworkStatus(t.Context(), web(uid)); err != nil || got != "[1]" {
			t.Errorf("UID %q: %q, %v", uid, got, err)
		}
	}
	if after := kubetest.Get[corev1.Pod](s, "blue", "web"); after.ResourceVersion != before || after.Annotations[status.NetworkStatusAnnotation] != "[1]" {
		t.Errorf("changed: %+v", after)
	}
	for name, test := range map[string]struct {
		pod   nad.Pod
		fault kubetest.Fault
		kind  error
	}{
		"another pod of that name": {web("u2"), kubetest.Fault{}, ErrGone},
		"no such pod":              {nad.Pod{Namespace: "blue", Name: "none"}, kubetest.Fault{}, ErrGone},
		"forbidden":                {web("u1"), kubetest.Fault{Status: http.StatusForbidden}, ErrNotSynced},
		"unauthorized":             {web("u1"), kubetest.Fault{Status: http.StatusUnauthorized}, ErrNotSynced},
		"broken":                   {web("u1"), kubetest.Fault{Status: http.StatusInternalServerError}, ErrNotSynced},
		"cut":                      {web("u1"), kubetest.Fault{Cut: true}, ErrNotSynced},
		"rubbish":                  {web("u1"), kubetest.Fault{Body: "{}"}, ErrNotSynced},
	} {
		test.fault.Verb = "patch"
		heal := s.Break(test.fault)
		if _, err := v.NetworkStatus(t.Context(), test.pod); !errors.Is(err, test.kind) || status.Code(err) != 11 {
			t.Errorf("%s: %v", name, err)
		}
		heal()
	}
}

// The UID of a static pod is not that of its object.
func TestNetworkStatusOfAStaticPod(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	kubetest.Put(s, pod("u1", func(p *corev1.Pod) {
		static("kubelet")(p)
		p.Annotations[status.NetworkStatusAnnotation] = "[1]"
	}))
	v := synced(t, s, Config{Node: "node1", Pods: true})
	if got, err := v.NetworkStatus(t.Context(), web("kubelet")); err != nil || got != "[1]" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestOnPodTellsOfEachPod(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	kubetest.Put(s, pod("u1", nil))
	v := synced(t, s, Config{Node: "node1", Pods: true})
	told := make(chan Pod, 8)
	v.OnPod(func(p Pod) { told <- p })
	if p := <-told; p.UID != "u1" || p.HostNetwork {
		t.Errorf("%+v", p)
	}
	kubetest.Put(s, pod("u1", func(p *corev1.Pod) { p.Spec.HostNetwork = true }))
	if p := <-told; p.UID != "u1" || !p.HostNetwork {
		t.Errorf("%+v", p)
	}
	open(t, s, Config{}).OnPod(func(Pod) { t.Error("pods are not watched") })
}

func TestOnDefinitionTellsOfEachChange(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	kubetest.Put(s, kubetest.Definition{Namespace: "blue", Name: "old", Config: `{"type":"x"}`})
	v := synced(t, s, Config{})
	told := make(chan nad.Ref, 10)
	v.OnDefinition(func(r nad.Ref) { told <- r })
	next := func(what, name string) {
		t.Helper()
		nodetest.Equal(t, fmt.Sprintf("%s: told of", what), <-told, nad.Ref{Namespace: "blue", Name: name})
	}
	next("one that is known", "old")
	kubetest.Put(s, kubetest.Definition{Namespace: "blue", Name: "new", Config: `{"type":"x"}`})
	next("a new one", "new")
	kubetest.Put(s, kubetest.Definition{Namespace: "blue", Name: "new", Config: `{"type":"../x"}`})
	next("one that cannot be used any more", "new")
	kubetest.Delete[kubetest.Definition](s, "blue", "old")
	next("one that is gone", "old")
}
