package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
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

// A DEL writes nothing.
func TestWhatWasWrittenLastIsNotWrittenAgain(t *testing.T) {
	bubble(t, StatusConfig{}, func(b *bench) {
		pod := b.added("a")
		settle(time.Second)
		b.Changed(pod)
		nodetest.OK(b, b.Wait(b.Context(), pod))
		settle(time.Hour)
		b.wantRequests(1, "in all")
		b.set(pod.Container, aStatus("one more network"))
		b.Changed(pod)
		settle(time.Second)
		b.wantRequests(1, "after one more network")
		b.records.change(func() { b.err = errors.New("I/O error") })
		b.added("other")
		settle(time.Second)
		b.wantRequests(0, "while the records cannot be read")
		b.records.change(func() { b.err = nil })
		settle(time.Minute)
		b.wantRequests(1, "when they can be read")
		b.set(pod.Container, Status{}) // DEL
		nodetest.OK(b, b.Wait(b.Context(), pod))
		settle(time.Minute)
		b.wantRequests(0, "after the DEL")
	})
}

func TestContainersOutsideOfKubernetesHaveNoStatus(t *testing.T) {
	bubble(t, StatusConfig{Policy: StatusRequire}, func(b *bench) {
		b.set("c", aStatus("net"))
		for _, pod := range []nad.Pod{{Container: "c"}, {Name: "a", Container: "c"}, {Namespace: "blue", Name: "a/../b", Container: "c"}} {
			b.Changed(pod)
			b.Resume([]nad.Pod{pod})
			nodetest.OK(b, b.Wait(b.Context(), pod))
		}
		settle(time.Minute)
		b.wantRequests(0, "at all")
		nodetest.Equal(b, "pods that are remembered", len(b.pods), 0)
	})
}

func TestAStatusForThoseWrittenBeforeIsOnlyWrittenForThese(t *testing.T) {
	bubble(t, StatusConfig{}, func(b *bench) {
		pod, only := aPod("a"), aStatus("primary alone")
		only.IfWritten = true
		for when, want := range map[string]string{"before": "", "after": aStatus("of another process").Annotation} {
			shown := aPod(when)
			b.set(shown.Container, only)
			b.show(podObject(shown, "50", want))
			b.Changed(shown)
		}
		b.set(pod.Container, only)
		b.Changed(pod)
		settle(time.Second)
		nodetest.Equal(b, "pods of the requests", names(b.api.take()), []string{"after"})
		both := aStatus("primary and another")
		both.Created = only.Created
		for _, s := range []Status{both, only} {
			b.set(pod.Container, s)
			b.Changed(pod)
			settle(time.Second)
		}
		b.wantRequests(2, "when a network came and went")
	})
}

// An ADD that waits for its status waits for no delay.
func TestAStatusThatNoADDWaitsForIsDelayed(t *testing.T) {
	t.Parallel()
	for policy, want := range map[StatusPolicy]time.Duration{StatusAsync: time.Second, StatusWait: 0, StatusRequire: 0} {
		t.Run(string(policy), func(t *testing.T) {
			bubble(t, StatusConfig{Policy: policy, Delay: time.Second}, func(b *bench) {
				pod := aPod("a")
				b.set(pod.Container, aStatus("net"))
				nodetest.OK(b, b.Wait(b.Context(), pod))
				settle(time.Minute)
				wrote := []request{{At: want, Name: "a", Body: patchOf(pod, b.all[pod.Container])}}
				nodetest.Equal(b, "requests", b.api.take(), wrote)
			})
		})
	}
}

// The DEL of the old sandbox of a pod comes after the ADD of the new one, or that of the new one
// comes first, with or without success.
func TestTheStatusIsThatOfTheNewestSandboxThatLives(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		first bool // the old one is removed
		left  Status
	}{
		"the DEL of the old one":              {first: true},
		"the DEL of the new one":              {},
		"the DEL of the new one, which fails": {left: Status{Annotation: "[]"}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, StatusConfig{}, func(b *bench) {
				older := b.added("a")
				settle(time.Second)
				newer := older
				newer.Container = "c-a2"
				b.set(newer.Container, aStatus("newer"))
				b.Changed(newer)
				settle(time.Second)
				b.Changed(older)
				settle(time.Second)
				removed := newer
				if tt.first {
					removed = older
				}
				b.set(removed.Container, tt.left)
				b.Changed(removed)
				settle(time.Hour)
				want := []request{
					{Name: "a", Body: patchOf(older, aStatus("a"))},
					{At: time.Second, Name: "a", Body: patchOf(newer, aStatus("newer"))},
				}
				if !tt.first {
					want = append(want, request{At: 3 * time.Second, Name: "a", Body: patchOf(older, aStatus("a"))})
				}
				nodetest.Equal(b, "requests", b.api.take(), want)
			})
		})
	}
}

func TestAProcessThatBeginsWritesTenPodsASecond(t *testing.T) {
	bubble(t, StatusConfig{}, func(b *bench) {
		var pods []nad.Pod
		for i := range 25 {
			name := strconv.Itoa(i)
			b.set("c-"+name, aStatus(name))
			pods = append(pods, aPod(name))
		}
		b.Resume(pods)
		settle(950 * time.Millisecond)
		b.wantRequests(10, "in the first second")
		// One whose ADD comes now does not wait for the others.
		b.added("new")
		synctest.Wait()
		nodetest.Equal(b, "pods of the requests", names(b.api.take()), []string{"new"})
		settle(time.Minute)
		b.wantRequests(15, "afterwards")
	})
}

func TestTheRateIsLimitedForThoseNobodyWaitsFor(t *testing.T) {
	t.Parallel()
	for rate, want := range map[float64]int{0: 50, 5: 5} { // requests in the first second
		t.Run(strconv.Itoa(want), func(t *testing.T) {
			bubble(t, StatusConfig{Rate: rate}, func(b *bench) {
				for i := range 110 {
					b.added(strconv.Itoa(i))
				}
				settle(999 * time.Millisecond)
				b.wantRequests(want, "in the first second")
				b.set("c-waits", aStatus("waits"))
				begin := time.Now()
				for _, name := range []string{"waits", "109"} { // the second is in the backlog already
					nodetest.OK(b, b.Wait(b.Context(), aPod(name)))
					nodetest.Equal(b, "an ADD has waited for", time.Since(begin), 0)
				}
				settle(time.Minute)
				b.wantRequests(111-want, "afterwards")
			})
		})
	}
}

// The DEL of each pod of a node that is drained does not hold back the statuses that follow.
func TestWhatNeedsNoRequestDoesNotCountForTheRate(t *testing.T) {
	bubble(t, StatusConfig{Rate: 1}, func(b *bench) {
		for i := range 110 {
			b.Changed(aPod(strconv.Itoa(i)))
		}
		settle(time.Second)
		b.added("a")
		settle(time.Second)
		b.wantRequests(1, "in all")
	})
}

func TestStatsSayWhatIsPending(t *testing.T) {
	bubble(t, StatusConfig{}, func(b *bench) {
		b.api.fail(kubetest.Fault{Cut: true, Times: 2}, kubetest.Fault{Status: 500})
		b.added("a")
		settle(500 * time.Millisecond)
		nodetest.Equal(b, "statistics", b.Stats(), StatusStats{Failed: 3, Pending: 1, Lag: 500 * time.Millisecond})
		settle(time.Second)
		nodetest.Equal(b, "statistics", b.Stats(), StatusStats{Failed: 3, Written: 1})
	})
}

func TestAWriterEndsWithItsContext(t *testing.T) {
	bubble(t, StatusConfig{Policy: StatusRequire, Timeout: time.Hour}, func(b *bench) {
		b.api.fail(kubetest.Fault{Delay: time.Hour})
		pod := b.added("a")
		synctest.Wait()
		result := make(chan error)
		go func() { result <- b.Wait(context.WithoutCancel(b.Context()), pod) }()
		synctest.Wait()
		b.stop()
		nodetest.Is(b, <-result, errNotWritten)
		b.Changed(pod)
		nodetest.Is(b, b.Wait(b.Context(), pod), errNotWritten)
	})
}

func TestAnADDWaitsAsThePolicySays(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		policy  StatusPolicy
		timeout time.Duration
		faults  []kubetest.Fault
		leaves  time.Duration // when the ADD is cancelled
		want    time.Duration
		fails   bool // with StatusRequire
	}{
		"cancelled":                 {leaves: 10 * time.Millisecond, faults: []kubetest.Fault{{Delay: 5 * time.Second}}, want: 10 * time.Millisecond, fails: true},
		"written":                   {faults: []kubetest.Fault{{Delay: 300 * time.Millisecond}}, want: 300 * time.Millisecond},
		"gone":                      {faults: []kubetest.Fault{refusal(404, metav1.StatusReasonNotFound)}},
		"refused":                   {faults: []kubetest.Fault{{Status: 403}}, fails: true},
		"slow":                      {faults: []kubetest.Fault{{Delay: 3 * time.Second}}, want: time.Second, fails: true},
		"slow, but there is time":   {timeout: 5 * time.Second, faults: []kubetest.Fault{{Delay: 3 * time.Second}}, want: 3 * time.Second},
		"too many requests at once": {faults: []kubetest.Fault{{Status: 429}}, want: 100 * time.Millisecond},
		"too many requests":         {faults: []kubetest.Fault{{Status: 429, RetryAfter: 2 * time.Second}}, want: time.Second, fails: true},
	} {
		for _, policy := range []StatusPolicy{"", StatusWait, StatusRequire} {
			t.Run(name+", "+string(policy), func(t *testing.T) {
				bubble(t, StatusConfig{Policy: policy, Timeout: test.timeout}, func(b *bench) {
					b.api.fail(test.faults...)
					pod := aPod("a")
					b.set(pod.Container, aStatus("a"))
					begin := time.Now()
					ctx, cancel := context.WithTimeout(b.Context(), cmp.Or(test.leaves, time.Hour))
					defer cancel()
					b.wait(ctx, pod, test.fails && policy == StatusRequire)
					nodetest.Equal(b, "waited for", time.Since(begin), test.want)
					b.StatusWriter.mu.Lock()
					defer b.StatusWriter.mu.Unlock()
					if p := b.pods[identity(pod)]; p != nil {
						nodetest.Equal(b, "still waiting", len(p.waiting), 0)
					}
				})
			})
		}
	}
}

// wait does what an ADD does, which fails if the status is not written.
func (b *bench) wait(ctx context.Context, pod nad.Pod, fails bool) {
	b.Helper()
	if err := b.Wait(ctx, pod); fails {
		nodetest.Is(b, err, errNotWritten)
		nodetest.Code(b, err, 11)
		if ctx.Err() != nil {
			nodetest.Is(b, err, ctx.Err())
		}
	} else {
		nodetest.OK(b, err)
	}
}

func TestNobodyWaitsWhileTheAPIIsAway(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault kubetest.Fault
		first time.Duration // that the first ADD waits
	}{
		"refused":    {kubetest.Fault{Cut: true, Times: 6}, 0},
		"black hole": {kubetest.Fault{Delay: time.Hour, Times: 6}, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, StatusConfig{}, func(b *bench) {
				wait := func(name string) time.Duration {
					pod := aPod(name)
					b.set(pod.Container, aStatus(name))
					begin := time.Now()
					nodetest.OK(b, b.Wait(b.Context(), pod))
					return time.Since(begin)
				}
				b.api.fail(test.fault)
				nodetest.Equal(b, "the first ADD has waited for", wait("a"), test.first)
				synctest.Wait()
				for _, name := range []string{"b", "c"} {
					nodetest.Equal(b, fmt.Sprintf("the ADD of %s has waited for", name), wait(name), 0)
				}
				settle(2 * time.Minute)
				if s := b.Stats(); s.Written != 3 || s.Pending != 0 {
					b.Errorf("%+v, want 3 written", s)
				}
				b.api.fail(kubetest.Fault{Delay: 300 * time.Millisecond})
				nodetest.Equal(b, "the ADD afterwards has waited for", wait("d"), 300*time.Millisecond)
			})
		})
	}
}

func TestAnADDThatRequiresItsStatusTriesEvenIfTheAPIWasAway(t *testing.T) {
	bubble(t, StatusConfig{Policy: StatusRequire}, func(b *bench) {
		b.api.fail(kubetest.Fault{Cut: true, Times: 4})
		pod := aPod("a")
		b.set(pod.Container, aStatus("a"))
		b.wait(b.Context(), pod, true)
		b.set(pod.Container, Status{}) // undone
		b.Changed(pod)
		settle(time.Minute)
		nodetest.Equal(b, "pods that are remembered", len(b.pods), 0)
		b.set(pod.Container, aStatus("again"))
		b.wait(b.Context(), pod, false)
	})
}

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
	long := seconds(0, .1, .3, .7, 1.5, 3.1, 6.3, 12.7, 25.5, 51.1, 81.1, 111.1)
	refused := seconds(0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 1023, 1623, 2223)
	for name, test := range map[string]struct {
		faults []kubetest.Fault
		want   []time.Duration // of the requests
		stats  StatusStats
		events int
		away   bool // for those that come meanwhile
	}{
		"written":          {want: seconds(0), stats: StatusStats{Written: 1}},
		"no such pod":      {faults: []kubetest.Fault{refusal(404, metav1.StatusReasonNotFound)}, want: seconds(0), stats: StatusStats{Gone: 1}},
		"another UID":      {faults: []kubetest.Fault{refusal(422, metav1.StatusReasonInvalid, "metadata.uid")}, want: seconds(0), stats: StatusStats{Gone: 1}},
		"no such page":     {faults: []kubetest.Fault{{Status: 404}}, want: refused[:2], stats: StatusStats{Refused: 1, Written: 1}},
		"at its start":     {faults: []kubetest.Fault{{Status: 403, Times: 5}}, want: refused[:6], stats: StatusStats{Refused: 5, Written: 1}},
		"forbidden":        {faults: []kubetest.Fault{{Status: 403, Times: 12}}, want: refused, stats: StatusStats{Refused: 12, Written: 1}, events: 1},
		"against a policy": {faults: []kubetest.Fault{{Status: 422, Times: 6}}, want: refused[:7], stats: StatusStats{Refused: 6, Written: 1}, events: 1},
		"unauthorized":     {faults: []kubetest.Fault{{Status: 401, Times: 4}}, want: failed, stats: StatusStats{Failed: 4, Written: 1}},
		"conflict":         {faults: []kubetest.Fault{{Status: 409, Times: 4}}, want: failed, stats: StatusStats{Failed: 4, Written: 1}},
		"retry after":      {faults: []kubetest.Fault{{Status: 429, RetryAfter: 7 * time.Second, Times: 2}}, want: seconds(0, 7, 14), stats: StatusStats{Failed: 2, Written: 1}},
		"retry in a day":   {faults: []kubetest.Fault{{Status: 429, RetryAfter: 86400 * time.Second}}, want: seconds(0, 600), stats: StatusStats{Failed: 1, Written: 1}},
		"internal error":   {faults: []kubetest.Fault{{Status: 500, Times: 4}}, want: failed, stats: StatusStats{Failed: 4, Written: 1}, away: true},
		"unavailable":      {faults: []kubetest.Fault{{Status: 503, RetryAfter: 3 * time.Second}}, want: seconds(0, 3), stats: StatusStats{Failed: 1, Written: 1}, away: true},
		"network":          {faults: []kubetest.Fault{{Cut: true, Times: 4}}, want: failed, stats: StatusStats{Failed: 4, Written: 1}, away: true},
		"rubbish":          {faults: []kubetest.Fault{{Body: "<html>"}}, want: failed[:2], stats: StatusStats{Failed: 1, Written: 1}, away: true},
		"another object":   {faults: []kubetest.Fault{{Body: `{"kind":"Pod","apiVersion":"v1"}`}}, want: failed[:2], stats: StatusStats{Failed: 1, Written: 1}, away: true},
		"no answer":        {faults: []kubetest.Fault{{Delay: time.Hour, Times: 2}}, want: seconds(0, 10.1, 20.3), stats: StatusStats{Failed: 2, Written: 1}, away: true},
		"for a long time":  {faults: []kubetest.Fault{{Cut: true, Times: 11}}, want: long, stats: StatusStats{Failed: 11, Written: 1}, away: true},
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
				wantTimes(b, test.faults, test.want, times(b.api.take()))
				nodetest.Equal(b, "statistics", b.Stats(), test.stats)
				nodetest.Equal(b, "away after an answer", b.isAway(), false)
				all := b.events.waiting()
				nodetest.Equal(b, "Events", len(all), test.events)
				for _, ev := range all {
					nodetest.Equal(b, "Event", []string{ev.about.Kind, ev.about.Name, ev.reason}, []string{"Node", "n1", statusNotWritten})
				}
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
		again := times(b.api.take())
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
						nodetest.Equal(b, "error", b.Wait(b.Context(), pod), nil)
					})
				}
				adding.Wait()
				settle(time.Minute)
				times := times(b.api.take())
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
		heal := b.api.Break(kubetest.Fault{Cut: true})
		for i := range 20 {
			b.added(fmt.Sprintf("pod-%d", i))
		}
		settle(5*time.Minute + 100*time.Millisecond)
		heal()
		b.api.take()
		b.added("first")
		settle(2100 * time.Millisecond)
		if s := b.Stats(); s.Written != 21 || s.Pending != 0 || len(b.api.take()) != 21 {
			b.Errorf("%+v after two seconds, want 21 written", s)
		}
		settle(time.Hour)
		nodetest.Equal(b, "more requests", len(b.api.take()), 0)
	})
}

// show has the View of a bench see a pod.
func (b *bench) show(o *corev1.Pod) { nodetest.OK(b, b.view.pods.store.Add(o)) }

// other has somebody else change the status of a pod.
func (b *bench) other(pod nad.Pod) {
	kubetest.Edit(b.api.Server, pod.Namespace, pod.Name, func(o *corev1.Pod) {
		o.Annotations[status.NetworkStatusAnnotation], o.Annotations["at"] = "[]", time.Now().String()
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
	bubble(t, StatusConfig{}, func(b *bench) {
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
		nodetest.Equal(b, "pods of the requests", names(b.api.take()), []string{"wrong", "none", "unseen"})
	})
}

func TestAStatusThatSomebodyElseChangesIsWrittenAgain(t *testing.T) {
	bubble(t, StatusConfig{}, func(b *bench) {
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
	bubble(t, StatusConfig{}, func(b *bench) {
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
	bubble(t, StatusConfig{}, func(b *bench) {
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

// The watch can be faster than the answer: a status that is written again is one of another.
func TestTheWritersOwnChangeIsNobodyElses(t *testing.T) {
	t.Parallel()
	for name, stats := range map[string]StatusStats{"its own": {Written: 1}, "another's": {Written: 2, Overwritten: 1}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, StatusConfig{}, func(b *bench) {
				b.api.fail(kubetest.Fault{Delay: time.Second})
				pod := b.added("a")
				synctest.Wait()
				shown := b.all[pod.Container].Annotation
				if stats.Overwritten > 0 {
					shown = "[]"
				}
				b.show(podObject(pod, "103", shown)) // which is written after ours
				settle(2 * time.Second)
				b.other(pod)
				settle(time.Hour)
				nodetest.Equal(b, "statistics", b.Stats(), stats)
			})
		})
	}
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
			bubble(t, StatusConfig{}, func(b *bench) {
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

// A history is a writer whose API server may be given an older copy of its database.
type history struct {
	*bench
	pod  nad.Pod
	told nodetest.Notes[string] // the annotations that are outdated
}

// past tests the writer of the pod a of the node, which selects "old" in the beginning.
func past(t *testing.T, test func(h *history)) {
	t.Helper()
	h := &history{pod: aPod("a")}
	bubble(t, StatusConfig{Outdated: func(pod nad.Pod, object Pod) {
		if pod.Name != "a" || pod.Container != "" || object.Version == "" {
			t.Errorf("told of %+v, %+v", pod, object)
		}
		h.told.Note(object.Annotations[nad.NetworksAnnotation])
	}}, func(b *bench) {
		h.bench = b
		o := podObject(h.pod, "", "")
		o.Spec.NodeName, o.Annotations[nad.NetworksAnnotation] = "n1", "old"
		kubetest.Put(b.api.Server, o)
		h.look()
		test(h)
	})
}

// edit changes what the pod selects.
func (h *history) edit(networks string) {
	kubetest.Edit(h.api.Server, "blue", "a", func(o *corev1.Pod) { o.Annotations[nad.NetworksAnnotation] = networks })
}

// look has the View see the pod as it is now.
func (h *history) look() { h.show(kubetest.Get[corev1.Pod](h.api.Server, "blue", "a")) }

// attached has the pod attached, and its status written.
func (h *history) attached(what string) {
	h.set(h.pod.Container, aStatus(what))
	h.Changed(h.pod)
	settle(100 * time.Millisecond)
}

// slowly is attached, while the API server answers no patch for a second.
func (h *history) slowly(what string) {
	h.api.fail(kubetest.Fault{Verb: "patch", Delay: time.Second})
	h.attached(what)
}

// wantStatus wants the API server to have the status, and the annotations to have been told.
func (h *history) wantStatus(what string, told ...string) {
	h.Helper()
	got := kubetest.Get[corev1.Pod](h.api.Server, "blue", "a").Annotations[status.NetworkStatusAnnotation]
	nodetest.Equal(h, "status", got, aStatus(what).Annotation)
	nodetest.Equal(h, "told", slices.Compact(h.told.Taken()), told)
}

func TestAStatusIsWrittenAgainWhenAnOlderDatabaseIsRestored(t *testing.T) {
	t.Parallel()
	for name, notice := range map[string]func(h *history){
		"the watch of the pods shows it": (*history).look,
		"the watch was silent before": func(h *history) {
			h.edit("somebody has edited the older one")
			kubetest.Edit(h.api.Server, "blue", "a", func(o *corev1.Pod) { o.Annotations[nad.NetworksAnnotation] = "old" })
			h.look()
		},
		"the list of pods is older":        func(h *history) { _ = h.view.pods.store.Replace(nil, "90") },
		"the list of definitions is older": func(h *history) { _ = h.view.definitions.store.Replace(nil, "90") },
	} {
		t.Run(name, func(t *testing.T) {
			past(t, func(h *history) {
				for _, s := range []interface{ UpdateResourceVersion(string) }{h.view.definitions.store, h.view.pods.store} {
					s.UpdateResourceVersion("104")
				}
				restore := h.api.Backup()
				for range 4 {
					h.edit("new")
				}
				h.attached("new")
				h.wantStatus("new")
				restore()
				notice(h)
				settle(lagTime + 100*time.Millisecond)
				h.wantStatus("new", "old")
				h.look()
				settle(time.Hour)
				h.api.take()
				h.wantRequests(0, "afterwards")
				nodetest.Equal(h, "pending", h.Stats().Pending, 0)
			})
		})
	}
}

// It comes after the answer to the patch, in no time.
func TestWhatTheWatchShowsLateIsNoOtherDatabase(t *testing.T) {
	past(t, func(h *history) {
		h.edit("new")
		late := kubetest.Get[corev1.Pod](h.api.Server, "blue", "a")
		h.attached("new")
		h.api.take()
		h.show(late)
		settle(lagTime / 2)
		h.look()
		settle(time.Hour)
		h.wantRequests(0, "in an hour")
		h.wantStatus("new")
	})
}

func TestOnlyAnObjectThatIsNewerThanTheRecordsIsConfirmed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		first func(h *history) // before the object is asked for
		err   error            // nil: the object says "new"
		told  []string
		calls int // -1: the writer makes some as well
	}{
		"the watch is silent": {func(h *history) { h.attached("net"); h.edit("new") }, nil, nil, 1},
		"its status is refused": {func(h *history) {
			h.api.Break(kubetest.Fault{Verb: "patch", Status: 403})
			h.attached("net")
			h.edit("new")
		}, nil, nil, 1},
		"the API server is away":           {func(h *history) { h.attached("net"); h.api.Break(kubetest.Fault{Status: 500}) }, ErrNotSynced, nil, 1},
		"its status is being written":      {func(h *history) { h.slowly("net"); h.edit("new") }, nil, nil, 1},
		"its next status is being written": {func(h *history) { h.attached("net"); h.slowly("nets"); h.edit("new") }, nil, nil, 1},
		"its status is overwritten while the next is written": {func(h *history) {
			h.attached("net")
			h.other(h.pod)
			h.slowly("nets")
		}, ErrNotSynced, nil, 1},
		"it has gone": {func(h *history) {
			h.attached("net")
			kubetest.Delete[corev1.Pod](h.api.Server, "blue", "a")
		}, ErrGone, nil, 1},
		"another one has its name": {func(h *history) {
			h.attached("net")
			o := podObject(nad.Pod{Namespace: "blue", Name: "a", UID: "other"}, "", "")
			o.Spec.NodeName = "n1"
			kubetest.Put(h.api.Server, o)
		}, ErrGone, nil, 1},
		"the runtime has not told its UID": {func(h *history) { h.pod.UID = ""; h.attached("net") }, ErrOutdated, nil, 0},
		"an older database": {func(h *history) {
			restore := h.api.Backup()
			h.edit("new")
			h.attached("net")
			restore()
		}, ErrOutdated, []string{"old"}, -1},
		"an older database, in which versions are as high": {func(h *history) {
			restore := h.api.Backup()
			h.attached("net")
			restore()
			h.edit("others")
			h.edit("old")
		}, ErrOutdated, []string{"old"}, 1},
		"somebody else has overwritten its status": {func(h *history) { h.attached("net"); h.other(h.pod) }, ErrOutdated, []string{"old"}, 1},
		"the writer has forgotten it":              {func(*history) {}, ErrNotSynced, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			past(t, func(h *history) {
				test.first(h)
				lists := h.api.Count("list", "pods")
				got, err := h.Confirm(h.Context(), h.pod)
				nodetest.Is(h, err, test.err)
				if calls := h.api.Count("list", "pods") - lists; test.calls >= 0 {
					nodetest.Equal(h, "requests", calls, test.calls)
				}
				if test.err == nil {
					nodetest.Equal(h, "networks", got.Annotations[nad.NetworksAnnotation], "new")
				} else {
					nodetest.Code(h, err, 11)
				}
				nodetest.Equal(h, "told", slices.Compact(h.told.Taken()), test.told)
			})
		})
	}
}

// The next process writes what a process that is killed leaves. It waits until the API server says
// what it has. The first status that it writes is told of, unless the API server has it, whatever
// the View shows: only then has nobody edited the pod since.
func TestTheNextProcessTellsOfAStatusThatIsNotThere(t *testing.T) {
	t.Parallel()
	for name, there := range map[string]bool{"there": true, "not there": false} {
		t.Run(name, func(t *testing.T) {
			past(t, func(h *history) {
				restore := h.api.Backup()
				h.attached("net")
				h.stop()
				h.api.take()
				if !there {
					restore()
				}
				next := h.view.NewStatusWriter(StatusConfig{Desired: h.recorded, Outdated: h.config.Outdated})
				next.Resume([]nad.Pod{h.pod})
				_, err := next.Confirm(h.Context(), h.pod) // before the first attempt
				told := []string{"old"}
				if there {
					told = nil
				} else {
					nodetest.Is(h, err, ErrOutdated)
				}
				nodetest.Equal(h, "confirmed", err == nil, there)
				heal := h.api.Break(kubetest.Fault{Verb: "list", Status: 500})
				stop := running(h, next.Run)
				settle(time.Minute)
				nodetest.Equal(h, "patches before the API answers", h.api.Count("patch", "pods/status"), 1)
				heal()
				settle(time.Minute)
				h.wantStatus("net", told...)
				nodetest.Equal(h, "patches", h.api.Count("patch", "pods/status"), map[bool]int{true: 1, false: 2}[there])
				_, err = next.Confirm(h.Context(), h.pod)
				nodetest.OK(h, err)
				stop()
			})
		})
	}
}

func TestAWriterEndsWithItsView(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // in which every goroutine must end
		v, err := Open(t.Context(), Config{Kubeconfig: "/nonexistent/kubeconfig", Node: "n1", Pods: true})
		nodetest.OK(t, err)
		v.NewStatusWriter(StatusConfig{}).Changed(aPod("web")) // never runs
		time.AfterFunc(time.Second, v.Close)
		v.NewStatusWriter(StatusConfig{}).Run(context.WithoutCancel(t.Context()))
	})
}
