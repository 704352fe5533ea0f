package kube

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/metacni/metacni/internal/kubetest"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// A served is a writer, and Events, for a server.
type served struct {
	*StatusWriter
	records
	server *kubetest.Server
	view   *View
	events *Events
}

func withServer(t *testing.T, c Config, policy StatusPolicy) *served {
	t.Helper()
	s := &served{server: newServer(t)}
	c.Node = "n1"
	s.view = open(t, s.server, c)
	s.events = s.view.NewEvents(nad.Pod{Namespace: "kube-system", Name: "daemon"})
	s.StatusWriter = s.view.NewStatusWriter(StatusConfig{Desired: s.recorded, Policy: policy, Timeout: time.Minute, Events: s.events})
	running(t, s.Run)
	running(t, s.events.Run)
	return s
}

// pod sets a pod of node n1 that has a label, an annotation and a condition.
func (s *served) pod(name string) nad.Pod {
	kubetest.Put(s.server, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "blue", Name: name, UID: types.UID("uid-" + name),
			Labels: map[string]string{"l": "1"}, Annotations: map[string]string{"a": "1"},
		},
		Spec:   corev1.PodSpec{NodeName: "n1"},
		Status: corev1.PodStatus{Phase: corev1.PodPending, Message: "as it was"},
	})
	return aPod(name)
}

// add does what an ADD does.
func (s *served) add(t *testing.T, pod nad.Pod) {
	t.Helper()
	s.set(pod.Container, aStatus(pod.Name))
	nodetest.OK(t, s.Wait(t.Context(), pod))
	s.events.Added(pod, networks())
}

// await waits until done does true.
func (s *served) await(t *testing.T, done func() bool) {
	t.Helper()
	nodetest.OK(t, s.server.Wait(t.Context(), done))
}

func TestAPodIsOnePATCHAndOneEventAndNothingAtDEL(t *testing.T) {
	t.Parallel()
	s := withServer(t, Config{}, StatusRequire)
	for i := range 5 {
		pod := s.pod(fmt.Sprint("p", i))
		before := kubetest.Get[corev1.Pod](s.server, "blue", pod.Name)
		s.add(t, pod)
		after := kubetest.Get[corev1.Pod](s.server, "blue", pod.Name)
		before.Annotations[status.NetworkStatusAnnotation] = aStatus(pod.Name).Annotation
		before.ResourceVersion, before.ManagedFields, after.ManagedFields = after.ResourceVersion, nil, nil
		nodetest.Equal(t, "the pod but for the annotation", after, before)
	}
	for i := range 5 { // DEL
		pod := aPod(fmt.Sprint("p", i))
		s.set(pod.Container, Status{})
		nodetest.OK(t, s.Wait(t.Context(), pod))
	}
	s.await(t, func() bool { return len(kubetest.List[eventsv1.Event](s.server)) == 5 })
	for _, count := range []struct {
		verb, resource string
		want           int
	}{
		{"patch", "pods/status", 5}, {"create", "events", 5}, {"", "pods", 0}, {"get", "", 0},
	} {
		nodetest.Equal(t, fmt.Sprintf("%s %s: requests", count.verb, count.resource), s.server.Count(count.verb, count.resource), count.want)
	}
}

func TestAfterAnOutageAllStatusesAreRight(t *testing.T) {
	t.Parallel()
	s := withServer(t, Config{}, StatusWait)
	var pods []nad.Pod
	for i := range 12 {
		pods = append(pods, s.pod(fmt.Sprint("p", i)))
	}
	for _, pod := range pods[:4] {
		s.add(t, pod)
	}
	s.server.Stop()
	for _, pod := range pods[4:] { // ADD
		s.add(t, pod)
	}
	for _, pod := range []nad.Pod{pods[0], pods[5]} { // DEL
		s.set(pod.Container, Status{})
		s.Changed(pod)
	}
	again := pods[1] // another sandbox
	again.Container = "c-again"
	s.set(again.Container, aStatus("again"))
	s.Changed(again)
	kubetest.Delete[corev1.Pod](s.server, "blue", pods[6].Name)
	s.server.Start()

	want := map[string]string{}
	for _, pod := range pods {
		want[pod.Name] = aStatus(pod.Name).Annotation
	}
	want[pods[1].Name] = aStatus("again").Annotation
	want[pods[5].Name], want[pods[6].Name] = "", "" // had no sandbox any more, and no pod
	s.await(t, func() bool {
		got := map[string]string{}
		for _, pod := range pods {
			got[pod.Name] = ""
			if o := kubetest.Get[corev1.Pod](s.server, "blue", pod.Name); o != nil {
				got[pod.Name] = o.Annotations[status.NetworkStatusAnnotation]
			}
		}
		return cmp.Equal(want, got)
	})
}

// The limits are those of events.k8s.io/v1.
func TestEveryEventIsWhatAnAPIServerAccepts(t *testing.T) {
	t.Parallel()
	s := withServer(t, Config{}, StatusWait)
	long := strings.Repeat("ä", 2000)
	definition := nad.Definition{Ref: nad.Ref{Namespace: "blue", Name: strings.Repeat("n", 253)}, UID: "7", Version: "8"}
	s.events.Pod(aPod("a"), "NoNetworkFound", long, long)
	s.events.Pod(aPod(strings.Repeat("p", 253)), addedInterface, "", "")
	s.events.Definition(definition, "InvalidNetwork", "AddNetwork", "text")
	s.events.program(statusNotWritten, "PatchStatus", "text")
	node := s.view.NewEvents(nad.Pod{})
	running(t, node.Run)
	node.program(statusNotWritten, "PatchStatus", "text")
	s.await(t, func() bool { return len(kubetest.List[eventsv1.Event](s.server)) == 5 })
	for _, e := range kubetest.List[eventsv1.Event](s.server) {
		if want := e.Reason == addedInterface; (e.Type == corev1.EventTypeNormal) != want {
			t.Errorf("%s is %s", e.Reason, e.Type)
		}
		for name, value := range map[string]string{"action": e.Action, "reason": e.Reason, "instance": e.ReportingInstance, "controller": e.ReportingController} {
			if n := len(value); n == 0 || n > 128 {
				t.Errorf("%s of %s: %d bytes", name, e.Reason, n)
			}
		}
		if len(e.Note) > 1024 || len(e.Name) > 253 || e.EventTime.IsZero() {
			t.Errorf("%s: note of %d bytes, name of %d, at %v", e.Reason, len(e.Note), len(e.Name), e.EventTime)
		}
	}
}
