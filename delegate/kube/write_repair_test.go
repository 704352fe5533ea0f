package kube

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// show has the View of a bench see a pod.
func (b *bench) show(o *corev1.Pod) { nodetest.OK(b, b.view.pods.store.Add(o)) }

// podObject is a pod as the API has it. Versions of the fake API begin at 101.
func podObject(pod nad.Pod, version, text string) *corev1.Pod {
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(pod.UID), ResourceVersion: version,
		Annotations: map[string]string{},
	}}
	if text != "" {
		o.Annotations[status.NetworkStatusAnnotation] = text
	}
	return o
}

func TestAProcessThatBeginsWritesOnlyWhatTheViewDoesNotShow(t *testing.T) {
	bubbleWithPods(t, func(b *bench) {
		var pods []nad.Pod
		for _, name := range []string{"right", "wrong", "none", "unseen"} {
			pod := aPod(name)
			b.set(pod.Container, aStatus(name))
			pods = append(pods, pod)
		}
		b.show(podObject(pods[0], "50", aStatus("right").Annotation))
		b.show(podObject(pods[1], "51", aStatus("another").Annotation))
		b.show(podObject(pods[2], "52", ""))
		b.Resume(pods)
		settle(time.Minute)
		var names []string
		for _, r := range b.api.take() {
			names = append(names, r.Name)
		}
		nodetest.Equal(b, "names", names, []string{"wrong", "none", "unseen"})
	})
}

func TestAStatusThatSomebodyElseChangesIsWrittenAgain(t *testing.T) {
	bubbleWithPods(t, func(b *bench) {
		events := b.view.NewEvents(nad.Pod{})
		b.config.Events = events
		pod := b.added("a") // written as version 101
		settle(10 * time.Second)
		b.show(podObject(pod, "200", "[]"))
		settle(time.Second)
		b.show(podObject(pod, "201", "[]")) // another event of the same pod
		settle(10 * time.Second)
		b.wantRequests(1, "in the first 21 s")
		b.api.mu.Lock()
		b.api.version = 300 // versions grow
		b.api.mu.Unlock()
		settle(9 * time.Second)
		want := []request{{At: 30 * time.Second, Name: "a", Body: patchOf(pod, b.all[pod.Container])}}
		nodetest.Equal(b, "requests", b.api.take(), want)
		settle(time.Hour)
		b.wantRequests(0, "in the hour that follows: what the view has is older")
	})
}

func TestAFightOverAStatusIsSlowAndToldOnce(t *testing.T) {
	bubbleWithPods(t, func(b *bench) {
		events := b.view.NewEvents(nad.Pod{})
		b.config.Events = events
		pod := b.added("a")
		settle(time.Second)
		b.api.take()
		for range 120 {
			b.api.mu.Lock()
			b.api.version += 2
			version := 99 + b.api.version
			b.api.mu.Unlock()
			b.show(podObject(pod, strconv.Itoa(version), "[]"))
			settle(time.Second)
		}
		b.wantRequests(4, "in 2 minutes")
		if n := len(events.queue); n != 1 {
			b.Errorf("%d Events, want 1", n)
		}
		if n := b.Stats().Overwritten; n < 4 || n > 5 {
			b.Errorf("%d times somebody else, want 4", n)
		}
	})
}

func TestWhatTheViewShowsFromBeforeTheWriteIsNobodyElses(t *testing.T) {
	bubbleWithPods(t, func(b *bench) {
		pod := b.added("a")
		settle(time.Second)
		for _, version := range []string{"99", "100", "", "rubbish"} {
			b.show(podObject(pod, version, "[]"))
		}
		gone := podObject(pod, "900", "[]")
		gone.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		b.show(gone)
		other := podObject(pod, "901", "[]")
		other.UID = "another pod of that name"
		b.show(other)
		settle(time.Hour)
		b.wantRequests(1, "in all")
	})
}

// The watch can be faster than the answer.
func TestTheWritersOwnChangeIsNobodyElses(t *testing.T) {
	bubbleWithPods(t, func(b *bench) {
		pod := b.added("a")
		settle(time.Second)
		b.api.fail(answer{delay: time.Second})
		after := aStatus("after")
		b.set(pod.Container, after)
		b.Changed(pod)
		synctest.Wait()
		b.show(podObject(pod, "102", after.Annotation))
		settle(time.Hour)
		nodetest.Equal(b, "statistics", b.Stats(), StatusStats{Written: 2})
	})
}

func TestAChangeByAnotherDuringTheWriteIsSeen(t *testing.T) {
	bubbleWithPods(t, func(b *bench) {
		b.api.fail(answer{delay: time.Second})
		pod := b.added("a")
		synctest.Wait()
		b.show(podObject(pod, "102", "[]"))
		settle(time.Hour)
		nodetest.Equal(b, "statistics", b.Stats(), StatusStats{Written: 2, Overwritten: 1})
	})
}

func TestTheStatusOfAStaticPodIsThatOfItsMirror(t *testing.T) {
	t.Parallel()
	mirror := func(of string) *corev1.Pod {
		o := podObject(nad.Pod{Namespace: "blue", Name: "a", UID: "uid-mirror"}, "50", "")
		o.Annotations[mirrorAnnotation] = of
		return o
	}
	for name, test := range map[string]struct {
		view    *corev1.Pod
		static  bool
		pod     nad.Pod
		answers []answer
		want    string // UID in the first request; "none", "no request"
		n       int    // requests in a minute
	}{
		"mirror in the view":                 {view: mirror("uid-a"), static: true, pod: aPod("a"), want: "uid-mirror", n: 1},
		"… not known to be that of a static": {view: mirror("uid-a"), pod: aPod("a"), want: "uid-mirror", n: 1},
		"mirror made again meanwhile":        {view: mirror("uid-a"), static: true, pod: aPod("a"), answers: []answer{{code: 422, body: otherUID()}}, want: "uid-mirror", n: 2},
		"no mirror in the view":              {static: true, pod: aPod("a"), want: "none", n: 1},
		"no mirror yet":                      {static: true, pod: aPod("a"), answers: []answer{{code: 404, body: noSuchPod()}}, want: "none", n: 2},
		"mirror of an earlier static pod":    {view: mirror("uid-earlier"), static: true, pod: aPod("a"), want: "no request"},
		"not static":                         {pod: aPod("a"), want: "uid-a", n: 1},
		"another pod of that name":           {view: podObject(nad.Pod{Namespace: "blue", Name: "a", UID: "uid-new"}, "50", ""), pod: aPod("a"), want: "uid-a", n: 1},
		"no UID, pod in the view":            {view: podObject(aPod("a"), "50", ""), pod: nad.Pod{Namespace: "blue", Name: "a", Container: "c-a"}, want: "uid-a", n: 1},
		"no UID, and the view does not know": {pod: nad.Pod{Namespace: "blue", Name: "a", Container: "c-a"}, want: "no request"},
	} {
		t.Run(name, func(t *testing.T) {
			bubbleWithPods(t, func(b *bench) {
				if test.view != nil {
					b.show(test.view)
				}
				b.api.fail(test.answers...)
				s := aStatus("a")
				s.Static = test.static
				b.set("c-a", s)
				b.Changed(test.pod)
				settle(50 * time.Second)
				got := b.api.take()
				if len(got) != test.n {
					b.Fatalf("%d requests, want %d", len(got), test.n)
				}
				if test.want == "no request" {
					return
				}
				to := nad.Pod{UID: test.want}
				if test.want == "none" {
					to.UID = ""
				}
				nodetest.Equal(b, "Body", got[0].Body, patchOf(to, s))
			})
		})
	}
}

func TestAStatusForThoseWrittenBeforeIsWrittenWhereTheViewShowsOne(t *testing.T) {
	bubbleWithPods(t, func(b *bench) {
		for name, before := range map[string]string{"with": aStatus("of another process").Annotation, "without": ""} {
			pod, only := aPod(name), aStatus("primary alone")
			only.IfWritten = true
			b.set(pod.Container, only)
			b.show(podObject(pod, "50", before))
			b.Changed(pod)
		}
		settle(time.Minute)
		if got := b.api.take(); len(got) != 1 || got[0].Name != "with" {
			b.Errorf("%v, want a request for the pod that has a status", got)
		}
	})
}

func TestAStatusThatIsNotCompleteIsToldOnce(t *testing.T) {
	bubble(t, StatusConfig{}, func(b *bench) {
		events := b.view.NewEvents(nad.Pod{})
		b.config.Events = events
		pod, trimmed := aPod("a"), aStatus("a")
		trimmed.Trimmed = true
		b.set(pod.Container, trimmed)
		for range 3 {
			b.Changed(pod)
			settle(time.Second)
		}
		if n := len(events.queue); n != 1 || (<-events.queue).reason != statusTrimmed {
			b.Errorf("%d Events, want one StatusTrimmed", n)
		}
	})
}
