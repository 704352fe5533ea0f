package kube

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

func seconds(all ...float64) []time.Duration {
	times := make([]time.Duration, len(all))
	for i, s := range all {
		times[i] = time.Duration(s * float64(time.Second))
	}
	return times
}

// The request fails as often as there are answers, and then goes well.
func TestWhatFollowsFromAnAnswer(t *testing.T) {
	t.Parallel()
	failed := seconds(0, .1, .3, .7, 1.5)
	refused := seconds(0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 1023, 1623, 2223)
	for name, test := range map[string]struct {
		faults []kubetest.Fault
		want   []time.Duration // of the requests
		stats  StatusStats
		events int
		away   bool // for those that come meanwhile
	}{
		"written":           {want: seconds(0), stats: StatusStats{Written: 1}},
		"no such pod":       {faults: []kubetest.Fault{refusal(404, metav1.StatusReasonNotFound)}, want: seconds(0), stats: StatusStats{Gone: 1}},
		"another UID":       {faults: []kubetest.Fault{refusal(422, metav1.StatusReasonInvalid, "metadata.uid")}, want: seconds(0), stats: StatusStats{Gone: 1}},
		"no such page":      {faults: []kubetest.Fault{{Status: 404}}, want: refused[:2], stats: StatusStats{Refused: 1, Written: 1}},
		"bad request":       {faults: []kubetest.Fault{{Status: 400}}, want: refused[:2], stats: StatusStats{Refused: 1, Written: 1}},
		"at its start":      {faults: []kubetest.Fault{{Status: 403, Times: 5}}, want: refused[:6], stats: StatusStats{Refused: 5, Written: 1}},
		"forbidden":         {faults: []kubetest.Fault{{Status: 403, Times: 12}}, want: refused, stats: StatusStats{Refused: 12, Written: 1}, events: 1},
		"against a policy":  {faults: []kubetest.Fault{{Status: 422, Times: 6}}, want: refused[:7], stats: StatusStats{Refused: 6, Written: 1}, events: 1},
		"unauthorized":      {faults: []kubetest.Fault{{Status: 401, Times: 4}}, want: failed, stats: StatusStats{Failed: 4, Written: 1}},
		"conflict":          {faults: []kubetest.Fault{{Status: 409, Times: 4}}, want: failed, stats: StatusStats{Failed: 4, Written: 1}},
		"too many requests": {faults: []kubetest.Fault{{Status: 429, Times: 4}}, want: failed, stats: StatusStats{Failed: 4, Written: 1}},
		"retry after":       {faults: []kubetest.Fault{{Status: 429, RetryAfter: 7 * time.Second, Times: 2}}, want: seconds(0, 7, 14), stats: StatusStats{Failed: 2, Written: 1}},
		"retry in a day":    {faults: []kubetest.Fault{{Status: 429, RetryAfter: 86400 * time.Second}}, want: seconds(0, 600), stats: StatusStats{Failed: 1, Written: 1}},
		"internal error":    {faults: []kubetest.Fault{{Status: 500, Times: 4}}, want: failed, stats: StatusStats{Failed: 4, Written: 1}, away: true},
		"unavailable":       {faults: []kubetest.Fault{{Status: 503, RetryAfter: 3 * time.Second}}, want: seconds(0, 3), stats: StatusStats{Failed: 1, Written: 1}, away: true},
		"network":           {faults: []kubetest.Fault{{Cut: true, Times: 4}}, want: failed, stats: StatusStats{Failed: 4, Written: 1}, away: true},
		"rubbish":           {faults: []kubetest.Fault{{Body: "<html>"}}, want: failed[:2], stats: StatusStats{Failed: 1, Written: 1}, away: true},
		"another object":    {faults: []kubetest.Fault{{Body: `{"kind":"Pod","apiVersion":"v1"}`}}, want: failed[:2], stats: StatusStats{Failed: 1, Written: 1}, away: true},
		"no answer":         {faults: []kubetest.Fault{{Delay: time.Hour, Times: 2}}, want: seconds(0, 10.1, 20.3), stats: StatusStats{Failed: 2, Written: 1}, away: true},
		"for a long time": {
			faults: []kubetest.Fault{{Cut: true, Times: 11}}, want: seconds(0, .1, .3, .7, 1.5, 3.1, 6.3, 12.7, 25.5, 51.1, 81.1, 111.1),
			stats: StatusStats{Failed: 11, Written: 1}, away: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, StatusConfig{}, func(b *bench) {
				b.api.fail(test.faults...)
				b.added("a")
				synctest.Wait()
				if len(test.faults) > 0 && test.faults[0].Delay == 0 {
					nodetest.Equal(b, "away", b.isAway(), test.away)
				}
				settle(2 * time.Hour)
				wantTimes(b, test.faults, test.want, b.api.times())
				nodetest.Equal(b, "statistics", b.Stats(), test.stats)
				nodetest.Equal(b, "away after an answer", b.isAway(), false)
				nodetest.Equal(b, "Events", len(b.events.waiting()), test.events)
				nodetest.Equal(b, fmt.Sprintf("%d pods are remembered", len(b.pods)), test.stats.Gone > 0, len(b.pods) == 0)
			})
		})
	}
}

func TestStatusesThatWereRefusedAtOnceAreNotTriedAgainAtOnce(t *testing.T) {
	bubble(t, StatusConfig{Rate: 1e6}, func(b *bench) {
		b.api.fail(kubetest.Fault{Status: 429, RetryAfter: 10 * time.Second, Times: 50})
		for i := range 50 {
			b.added(strconv.Itoa(i))
		}
		settle(time.Second)
		b.wantRequests(50, "at once")
		settle(time.Minute)
		again := b.api.times()
		nodetest.Equal(b, "requests afterwards", len(again), 50)
		if between := again[49] - again[0]; between < time.Second || again[0] < 10*time.Second {
			b.Errorf("from %v on, all within %v, want them spread over 5 s after 10 s", again[0], between)
		}
	})
}

// Many nodes that start at once would otherwise give an API server more requests than it can
// serve before they are given up and made again.
func TestANodeMakesFewRequestsAtATime(t *testing.T) {
	t.Parallel()
	for _, policy := range []StatusPolicy{StatusWait, StatusAsync, StatusRequire} {
		t.Run(string(policy), func(t *testing.T) {
			bubble(t, StatusConfig{Policy: policy, Timeout: time.Minute, Rate: 1e6}, func(b *bench) {
				b.api.fail(kubetest.Fault{Delay: time.Second, Times: 110})
				var adding sync.WaitGroup
				for i := range 110 {
					pod := aPod(strconv.Itoa(i))
					b.set(pod.Container, aStatus(pod.Name))
					adding.Go(func() {
						if err := b.Wait(b.Context(), pod); err != nil {
							b.Error(err)
						}
					})
				}
				adding.Wait()
				settle(time.Minute)
				times := b.api.times()
				nodetest.Equal(b, "requests in all", len(times), 110)
				for i := requestsAtATime; i < len(times); i++ {
					if times[i]-times[i-requestsAtATime] < time.Second {
						b.Fatalf("more than %d requests at a time: %v", requestsAtATime, times)
					}
				}
			})
		})
	}
}

func TestARequestIsTriedAgainAsLongAsThereAreRecords(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]int{"failed": 500, "refused": 403} {
		t.Run(name, func(t *testing.T) {
			bubble(t, StatusConfig{}, func(b *bench) {
				b.api.fail(kubetest.Fault{Status: code, Times: 10000})
				pod := b.added("a")
				settle(24 * time.Hour)
				if n := b.api.count(); n < 24*6 {
					b.Errorf("%d requests in a day", n)
				}
				b.set(pod.Container, Status{})
				settle(24 * time.Hour)
				b.wantNothing()
			})
		})
	}
}

func TestARequestThatMayHaveBeenServedIsNotTakenForOneThatWasNot(t *testing.T) {
	bubble(t, StatusConfig{}, func(b *bench) {
		pod := b.added("a")
		settle(time.Second)
		before := b.all[pod.Container]
		b.api.fail(kubetest.Fault{Delay: time.Hour})
		b.set(pod.Container, aStatus("meanwhile"))
		b.Changed(pod)
		settle(time.Second)
		b.set(pod.Container, before)
		b.Changed(pod)
		settle(time.Minute)
		got := b.api.take()
		if len(got) != 3 || got[2].Body != patchOf(pod, before) {
			b.Errorf("%v, want the first status at the end", got)
		}
	})
}

// The first answer after an outage has all statuses written that were not answered, at the
// rate of the writer: no pod waits for the end of its own pause.
func TestAllAreTriedAgainWhenTheAPIIsBack(t *testing.T) {
	bubble(t, StatusConfig{Rate: 10}, func(b *bench) {
		b.api.fail(kubetest.Fault{Cut: true, Times: 10000})
		for i := range 20 {
			b.added(fmt.Sprintf("pod-%d", i))
		}
		settle(5*time.Minute + 100*time.Millisecond)
		b.api.heal()
		b.api.take()
		b.added("first")
		settle(2100 * time.Millisecond)
		if s := b.Stats(); s.Written != 21 || s.Pending != 0 || b.api.count() != 21 {
			b.Errorf("%+v after two seconds, want 21 written", s)
		}
		settle(time.Hour)
		nodetest.Equal(b, "more requests", b.api.count(), 0)
	})
}

// One that requires the status waits for its own attempt: otherwise nobody might ever
// find out that the API is back.
func TestARefusalIsToldWithoutTheStatus(t *testing.T) {
	bubble(t, StatusConfig{}, func(b *bench) {
		forbidden := refusal(403, metav1.StatusReasonForbidden)
		forbidden.Times = tolerated + 1
		b.api.fail(forbidden)
		b.added("a")
		settle(time.Minute)
		ev := b.events.waiting()[0]
		nodetest.Equal(b, "Event", []string{ev.about.Kind, ev.about.Name, ev.reason, ev.note}, []string{"Node", "n1", statusNotWritten, "pod blue/a: refused"})
	})
}

func TestAWriterThatNeverRunsEndsWithItsView(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // in which every goroutine must end
		v, err := Open(t.Context(), Config{Kubeconfig: "/nonexistent/kubeconfig"})
		nodetest.OK(t, err)
		v.NewStatusWriter(StatusConfig{}).Changed(aPod("web"))
		v.Close()
	})
}

func TestRunEndsWithItsView(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v, err := Open(t.Context(), Config{Kubeconfig: "/nonexistent/kubeconfig", Node: "n1", Pods: true})
		nodetest.OK(t, err)
		time.AfterFunc(time.Second, v.Close)
		v.NewStatusWriter(StatusConfig{}).Run(context.WithoutCancel(t.Context()))
	})
}

// show has the View of a bench see a pod.
func (b *bench) show(o *corev1.Pod) { nodetest.OK(b, b.view.pods.store.Add(o)) }

// other has somebody else change the status of a pod.
func (b *bench) other(pod nad.Pod) {
	kubetest.Edit(b.api.Server, pod.Namespace, pod.Name, func(o *corev1.Pod) {
		o.Annotations = map[string]string{status.NetworkStatusAnnotation: "[]", "at": time.Now().String()}
	})
}

// overwrite is other, which the View sees, and waits for a second.
func (b *bench) overwrite(pod nad.Pod) {
	b.other(pod)
	b.show(kubetest.Get[corev1.Pod](b.api.Server, pod.Namespace, pod.Name))
	settle(time.Second)
}

// podObject is a pod as the API has it. The first version with a status is 102.
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
		nodetest.Equal(b, "pods of the requests", b.api.names(), []string{"wrong", "none", "unseen"})
	})
}

func TestAStatusThatSomebodyElseChangesIsWrittenAgain(t *testing.T) {
	bubbleWithPods(t, func(b *bench) {
		pod := b.added("a")
		settle(10 * time.Second)
		b.overwrite(pod)
		b.overwrite(pod) // another event of the same pod
		settle(9 * time.Second)
		b.wantRequests(1, "in the first 21 s")
		settle(9 * time.Second)
		want := []request{{At: 30 * time.Second, Name: "a", Body: patchOf(pod, b.all[pod.Container])}}
		nodetest.Equal(b, "requests", b.api.take(), want)
		settle(time.Hour)
		b.wantRequests(0, "in the hour that follows: what the view has is older")
	})
}

func TestAFightOverAStatusIsSlowAndToldOnce(t *testing.T) {
	bubbleWithPods(t, func(b *bench) {
		pod := b.added("a")
		settle(time.Second)
		b.api.take()
		for range 120 {
			b.overwrite(pod)
		}
		b.wantRequests(4, "in 2 minutes")
		if n := b.Stats().Overwritten; n < 4 || n > 5 {
			b.Errorf("%d times somebody else, want 4", n)
		}
		settle(2 * time.Hour)
		b.overwrite(pod)
		nodetest.Equal(b, "Events", len(b.events.waiting()), 1)
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
		settle(time.Hour)
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
		b.api.fail(kubetest.Fault{Delay: time.Second})
		after := aStatus("after")
		b.set(pod.Container, after)
		b.Changed(pod)
		synctest.Wait()
		b.show(podObject(pod, "103", after.Annotation))
		settle(time.Hour)
		nodetest.Equal(b, "statistics", b.Stats(), StatusStats{Written: 2})
	})
}

func TestAChangeByAnotherDuringTheWriteIsSeen(t *testing.T) {
	bubbleWithPods(t, func(b *bench) {
		b.api.fail(kubetest.Fault{Delay: time.Second})
		pod := b.added("a")
		synctest.Wait()
		b.show(podObject(pod, "103", "[]")) // which is written after ours
		settle(2 * time.Second)
		b.other(pod)
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
		view   *corev1.Pod
		static bool
		pod    nad.Pod
		faults []kubetest.Fault
		want   string // UID in the first request; "none", "no request"
		n      int    // requests in a minute
	}{
		"mirror in the view":                 {view: mirror("uid-a"), static: true, pod: aPod("a"), want: "uid-mirror", n: 1},
		"… not known to be that of a static": {view: mirror("uid-a"), pod: aPod("a"), want: "uid-mirror", n: 1},
		"mirror made again meanwhile":        {view: mirror("uid-a"), static: true, pod: aPod("a"), faults: []kubetest.Fault{refusal(422, metav1.StatusReasonInvalid, "metadata.uid")}, want: "uid-mirror", n: 2},
		"no mirror in the view":              {static: true, pod: aPod("a"), n: 1},
		"no mirror yet":                      {static: true, pod: aPod("a"), faults: []kubetest.Fault{refusal(404, metav1.StatusReasonNotFound)}, n: 2},
		"mirror of an earlier static pod":    {view: mirror("uid-earlier"), static: true, pod: aPod("a")},
		"not static":                         {pod: aPod("a"), want: "uid-a", n: 1},
		"another pod of that name":           {view: podObject(nad.Pod{Namespace: "blue", Name: "a", UID: "uid-new"}, "50", ""), pod: aPod("a"), want: "uid-a", n: 1},
		"no UID, pod in the view":            {view: podObject(aPod("a"), "50", ""), pod: nad.Pod{Namespace: "blue", Name: "a", Container: "c-a"}, want: "uid-a", n: 1},
		"no UID, and the view does not know": {pod: nad.Pod{Namespace: "blue", Name: "a", Container: "c-a"}},
	} {
		t.Run(name, func(t *testing.T) {
			bubbleWithPods(t, func(b *bench) {
				if test.view != nil {
					b.show(test.view)
				}
				kubetest.Put(b.api.Server, podObject(nad.Pod{Namespace: "blue", Name: "a", UID: test.want}, "", ""))
				b.api.fail(test.faults...)
				s := aStatus("a")
				s.Static = test.static
				b.set("c-a", s)
				b.Changed(test.pod)
				settle(50 * time.Second)
				got := b.api.take()
				nodetest.Equal(b, "requests", len(got), test.n)
				for _, r := range got {
					nodetest.Equal(b, "Body", r.Body, patchOf(nad.Pod{UID: test.want}, s))
				}
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
		nodetest.Equal(b, "pods of the requests", b.api.names(), []string{"with"})
	})
}

func TestAStatusThatIsNotCompleteIsToldOnce(t *testing.T) {
	bubble(t, StatusConfig{}, func(b *bench) {
		pod, trimmed := aPod("a"), aStatus("a")
		trimmed.Trimmed = true
		b.set(pod.Container, trimmed)
		for range 3 {
			b.Changed(pod)
			settle(time.Second)
		}
		if all := b.events.waiting(); len(all) != 1 || all[0].reason != statusTrimmed {
			b.Errorf("%v, want one StatusTrimmed", all)
		}
	})
}
