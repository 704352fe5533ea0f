package kube

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/metacni/metacni/internal/kubetest"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// KnownDefinition waits for no definition and makes no request. It does not take a View
// that has not synced for an answer.
func TestKnownDefinitionWaitsForNothing(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	want := storage(s)
	v := synced(t, s, Config{})
	if got, err := v.KnownDefinition(t.Context(), want.Ref); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := v.KnownDefinition(t.Context(), ref("blue", "other")); !errors.Is(err, ErrNotFound) || !errors.Is(err, netconf.ErrNotFound) || code(err) != 7 {
		t.Errorf("err = %v", err)
	}
	nodetest.Equal(t, "requests", s.Count("get", ""), 0)
	s.Stop()
	away := open(t, s, Config{})
	if _, err := away.KnownDefinition(briefly(t), want.Ref); !errors.Is(err, ErrNotSynced) || code(err) != 11 {
		t.Errorf("while the API is away: %v", err)
	}
}

func TestAllDefinitions(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	want := storage(s)
	v := synced(t, s, Config{})
	var got []nad.Definition
	for d, err := range v.Definitions() {
		if err != nil {
			t.Error(err)
		}
		got = append(got, d)
	}
	if len(got) != 1 || got[0] != want {
		t.Errorf("%+v", got)
	}
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
		if _, err := v.NetworkStatus(t.Context(), test.pod); !errors.Is(err, test.kind) || code(err) != 11 {
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
