package kube

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// newBenchWithPods is newBench with a View that has the pods that show is called with.
func newBenchWithPods(t *testing.T) (b *bench, show func(*corev1.Pod)) {
	t.Helper()
	b = &bench{}
	v := b.api.view(t)
	v.pods = &part[Pod]{store: newStore(keepPod)}
	b.StatusWriter = v.NewStatusWriter(StatusConfig{Desired: b.recorded})
	b.stop = running(t, b.Run)
	return b, func(o *corev1.Pod) {
		if err := v.pods.store.Add(o); err != nil {
			t.Error(err)
		}
	}
}

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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, show := newBenchWithPods(t)
		var pods []nad.Pod
		for _, name := range []string{"right", "wrong", "none", "unseen"} {
			pod := aPod(name)
			b.set(pod.Container, aStatus(name))
			pods = append(pods, pod)
		}
		show(podObject(pods[0], "50", aStatus("right").Annotation))
		show(podObject(pods[1], "51", aStatus("another").Annotation))
		show(podObject(pods[2], "52", ""))
		b.Resume(pods)
		settle(time.Minute)
		var names []string
		for _, r := range b.api.take() {
			names = append(names, r.Name)
		}
		if diff := cmp.Diff([]string{"wrong", "none", "unseen"}, names); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAStatusThatSomebodyElseChangesIsWrittenAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, show := newBenchWithPods(t)
		events := b.view.NewEvents(EventsConfig{})
		b.config.Events = events
		pod := b.added("a") // written as version 101
		settle(10 * time.Second)
		show(podObject(pod, "200", "[]"))
		settle(time.Second)
		show(podObject(pod, "201", "[]")) // another event of the same pod
		settle(10 * time.Second)
		b.wantRequests(t, 1, "in the first 21 s")
		b.api.mu.Lock()
		b.api.version = 300 // versions grow
		b.api.mu.Unlock()
		settle(9 * time.Second)
		want := []request{{At: 30 * time.Second, Name: "a", Body: patchOf(pod, b.all[pod.Container])}}
		if diff := cmp.Diff(want, b.api.take()); diff != "" {
			t.Error(diff)
		}
		settle(time.Hour)
		b.wantRequests(t, 0, "in the hour that follows: what the view has is older")
	})
}

func TestAFightOverAStatusIsSlowAndToldOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, show := newBenchWithPods(t)
		events := b.view.NewEvents(EventsConfig{})
		b.config.Events = events
		pod := b.added("a")
		settle(time.Second)
		b.api.take()
		for range 120 {
			b.api.mu.Lock()
			b.api.version += 2
			version := 99 + b.api.version
			b.api.mu.Unlock()
			show(podObject(pod, strconv.Itoa(version), "[]"))
			settle(time.Second)
		}
		b.wantRequests(t, 4, "in 2 minutes")
		if n := len(events.queue); n != 1 {
			t.Errorf("%d Events, want 1", n)
		}
		if n := b.Stats().Overwritten; n < 4 || n > 5 {
			t.Errorf("%d times somebody else, want 4", n)
		}
	})
}

func TestWhatTheViewShowsFromBeforeTheWriteIsNobodyElses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, show := newBenchWithPods(t)
		pod := b.added("a")
		settle(time.Second)
		for _, version := range []string{"99", "100", "", "rubbish"} {
			show(podObject(pod, version, "[]"))
		}
		gone := podObject(pod, "900", "[]")
		gone.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		show(gone)
		other := podObject(pod, "901", "[]")
		other.UID = "another pod of that name"
		show(other)
		settle(time.Hour)
		b.wantRequests(t, 1, "in all")
	})
}

// The watch can be faster than the answer.
func TestTheWritersOwnChangeIsNobodyElses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, show := newBenchWithPods(t)
		pod := b.added("a")
		settle(time.Second)
		b.api.fail(answer{delay: time.Second})
		after := aStatus("after")
		b.set(pod.Container, after)
		b.Changed(pod)
		synctest.Wait()
		show(podObject(pod, "102", after.Annotation))
		settle(time.Hour)
		if diff := cmp.Diff(StatusStats{Written: 2}, b.Stats()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAChangeByAnotherDuringTheWriteIsSeen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, show := newBenchWithPods(t)
		b.api.fail(answer{delay: time.Second})
		pod := b.added("a")
		synctest.Wait()
		show(podObject(pod, "102", "[]"))
		settle(time.Hour)
		if diff := cmp.Diff(StatusStats{Written: 2, Overwritten: 1}, b.Stats()); diff != "" {
			t.Error(diff)
		}
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
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b, show := newBenchWithPods(t)
				if test.view != nil {
					show(test.view)
				}
				b.api.fail(test.answers...)
				s := aStatus("a")
				s.Static = test.static
				b.set("c-a", s)
				b.Changed(test.pod)
				settle(50 * time.Second)
				got := b.api.take()
				if len(got) != test.n {
					t.Fatalf("%d requests, want %d", len(got), test.n)
				}
				if test.want == "no request" {
					return
				}
				to := nad.Pod{UID: test.want}
				if test.want == "none" {
					to.UID = ""
				}
				if diff := cmp.Diff(patchOf(to, s), got[0].Body); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

func TestAStatusForThoseWrittenBeforeIsWrittenWhereTheViewShowsOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, show := newBenchWithPods(t)
		for name, before := range map[string]string{"with": aStatus("of another process").Annotation, "without": ""} {
			pod, only := aPod(name), aStatus("primary alone")
			only.IfWritten = true
			b.set(pod.Container, only)
			show(podObject(pod, "50", before))
			b.Changed(pod)
		}
		settle(time.Minute)
		if got := b.api.take(); len(got) != 1 || got[0].Name != "with" {
			t.Errorf("%v, want a request for the pod that has a status", got)
		}
	})
}

func TestAStatusThatIsNotCompleteIsToldOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, StatusConfig{})
		events := b.view.NewEvents(EventsConfig{})
		b.config.Events = events
		pod, trimmed := aPod("a"), aStatus("a")
		trimmed.Trimmed = true
		b.set(pod.Container, trimmed)
		for range 3 {
			b.Changed(pod)
			settle(time.Second)
		}
		if n := len(events.queue); n != 1 || (<-events.queue).reason != statusTrimmed {
			t.Errorf("%d Events, want one statusTrimmed", n)
		}
	})
}
