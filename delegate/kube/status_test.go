package kube

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

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
	})
}

// An ADD that waits for its status waits for no delay.
func TestAStatusThatNoADDWaitsForIsDelayed(t *testing.T) {
	t.Parallel()
	const delay = 50 * time.Millisecond
	for policy, want := range map[StatusPolicy]time.Duration{StatusAsync: delay, StatusWait: 0, StatusRequire: 0} {
		t.Run(string(policy), func(t *testing.T) {
			bubble(t, StatusConfig{Policy: policy, Delay: delay}, func(b *bench) {
				pod := aPod("a")
				b.set(pod.Container, aStatus("net"))
				nodetest.OK(b, b.Wait(b.Context(), pod))
				settle(time.Second)
				wrote := []request{{At: want, Name: "a", Body: patchOf(pod, aStatus("net"))}}
				nodetest.Equal(b, "requests", b.api.take(), wrote)
			})
		})
	}
}

func TestAContainerThatIsRemovedDuringTheDelayNeedsNoRequest(t *testing.T) {
	bubble(t, StatusConfig{Policy: StatusAsync, Delay: time.Second}, func(b *bench) {
		pod := aPod("a")
		b.set(pod.Container, aStatus("net"))
		nodetest.OK(b, b.Wait(b.Context(), pod))
		b.set(pod.Container, Status{})
		b.Changed(pod)
		settle(time.Hour)
		b.wantNothing()
	})
}

func TestContainersOutsideOfKubernetesHaveNoStatus(t *testing.T) {
	t.Parallel()
	for name, pod := range map[string]nad.Pod{
		"no pod":                {Container: "c"},
		"no namespace":          {Name: "a", Container: "c"},
		"a name that is a path": {Namespace: "blue", Name: "a/../b", Container: "c"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, StatusConfig{Policy: StatusRequire}, func(b *bench) {
				b.set("c", aStatus("net"))
				b.Changed(pod)
				b.Resume([]nad.Pod{pod})
				nodetest.OK(b, b.Wait(b.Context(), pod))
				settle(time.Minute)
				b.wantNothing()
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

func TestAStatusForThoseWrittenBeforeIsOnlyWrittenForThese(t *testing.T) {
	bubble(t, StatusConfig{}, func(b *bench) {
		pod, only := aPod("a"), aStatus("primary alone")
		only.IfWritten = true
		b.set(pod.Container, only)
		b.Changed(pod)
		settle(time.Second)
		b.wantRequests(0, "for a pod without a status")
		both := aStatus("primary and another")
		both.Created = only.Created
		b.set(pod.Container, both)
		b.Changed(pod)
		settle(time.Second)
		b.set(pod.Container, only)
		b.Changed(pod)
		settle(time.Second)
		b.wantRequests(2, "when a network came and went")
	})
}

func TestRecordsThatCannotBeReadAreReadAgain(t *testing.T) {
	bubble(t, StatusConfig{}, func(b *bench) {
		b.unreadable(errors.New("I/O error"))
		b.added("a")
		settle(time.Second)
		b.wantRequests(0, "in all")
		b.unreadable(nil)
		settle(time.Minute)
		b.wantRequests(1, "when they can be read")
	})
}

// A daemon that is killed between record and status leaves the record.
func TestTheNextProcessWritesWhatIsLeft(t *testing.T) {
	bubble(t, StatusConfig{}, func(b *bench) {
		b.api.fail(kubetest.Fault{Cut: true})
		pod := b.added("a")
		synctest.Wait()
		b.stop()
		b.wantRequests(1, "before the end")
		b.api.start = time.Now()
		next := b.api.view(b).NewStatusWriter(StatusConfig{Desired: b.recorded})
		stop := running(b, next.Run)
		next.Resume([]nad.Pod{pod})
		settle(time.Minute)
		want := []request{{Name: "a", Body: patchOf(pod, b.all[pod.Container])}}
		nodetest.Equal(b, "requests", b.api.take(), want)
		stop()
	})
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
		nodetest.Equal(b, "pods of the requests", b.api.names(), []string{"new"})
		settle(time.Minute)
		b.wantRequests(15, "afterwards")
	})
}

func TestTheRateIsLimitedForThoseNobodyWaitsFor(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		rate float64
		want int // requests in the first second
	}{{0, 50}, {5, 5}} {
		t.Run(strconv.Itoa(test.want), func(t *testing.T) {
			bubble(t, StatusConfig{Rate: test.rate}, func(b *bench) {
				for i := range 110 {
					b.added(strconv.Itoa(i))
				}
				settle(999 * time.Millisecond)
				nodetest.Equal(b, "requests in the first second", b.api.count(), test.want)
				waits := aPod("waits")
				b.set(waits.Container, aStatus("waits"))
				begin := time.Now()
				nodetest.OK(b, b.Wait(b.Context(), waits))
				nodetest.Equal(b, "an ADD has waited for", time.Since(begin), 0)
				// Also one that is in the backlog already.
				nodetest.OK(b, b.Wait(b.Context(), aPod("109")))
				nodetest.Equal(b, "an ADD has waited for", time.Since(begin), 0)
				settle(time.Minute)
				nodetest.Equal(b, "requests afterwards", b.api.count(), 111-test.want)
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
		want    time.Duration
		fails   bool // with StatusRequire
	}{
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
					err := b.Wait(b.Context(), pod)
					nodetest.Equal(b, "waited for", time.Since(begin), test.want)
					checkNotWritten(b, err, test.fails && policy == StatusRequire)
				})
			})
		}
	}
}

func checkNotWritten(tb testing.TB, err error, want bool) {
	tb.Helper()
	if !want {
		nodetest.OK(tb, err)
		return
	}
	nodetest.Is(tb, err, errNotWritten)
	nodetest.Code(tb, err, 11)
}

func TestNobodyWaitsWhileTheAPIIsAway(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault kubetest.Fault
		first time.Duration // that the first ADD waits
	}{
		"refused":        {kubetest.Fault{Cut: true, Times: 6}, 0},
		"internal error": {kubetest.Fault{Status: 500, Times: 6}, 0},
		"black hole":     {kubetest.Fault{Delay: time.Hour, Times: 6}, time.Second},
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
		checkNotWritten(b, b.Wait(b.Context(), pod), true)
		b.set(pod.Container, Status{}) // undone
		b.Changed(pod)
		settle(time.Minute)
		b.set(pod.Container, aStatus("again"))
		checkNotWritten(b, b.Wait(b.Context(), pod), false)
	})
}

func TestAnADDThatIsCancelledDoesNotWait(t *testing.T) {
	bubble(t, StatusConfig{Policy: StatusRequire}, func(b *bench) {
		b.api.fail(kubetest.Fault{Delay: 5 * time.Second})
		pod := aPod("a")
		b.set(pod.Container, aStatus("a"))
		ctx, cancel := context.WithTimeout(b.Context(), 10*time.Millisecond)
		defer cancel()
		begin := time.Now()
		err := b.Wait(ctx, pod)
		checkNotWritten(b, err, true)
		nodetest.Is(b, err, context.DeadlineExceeded)
		nodetest.Equal(b, "waited for", time.Since(begin), 10*time.Millisecond)
		nodetest.Equal(b, "still waiting", len(b.pods[identity(pod)].waiting), 0)
	})
}

// add does what an ADD does.
func (b *bench) add(pod nad.Pod) {
	b.set(pod.Container, aStatus(pod.Name))
	nodetest.OK(b, b.Wait(b.Context(), pod))
	b.events.Added(pod, networks())
}

func TestAPodIsOnePATCHAndOneEventAndNothingAtDEL(t *testing.T) {
	bubble(t, StatusConfig{Policy: StatusRequire}, func(b *bench) {
		running(b, b.events.Run)
		for i := range 5 {
			pod := aPod(fmt.Sprint("p", i))
			before := kubetest.Put(b.api.Server, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "blue", Name: pod.Name, UID: types.UID(pod.UID),
					Labels: map[string]string{"l": "1"}, Annotations: map[string]string{"a": "1"},
				},
				Spec:   corev1.PodSpec{NodeName: "n1"},
				Status: corev1.PodStatus{Phase: corev1.PodPending, Message: "as it was"},
			})
			b.add(pod)
			after := kubetest.Get[corev1.Pod](b.api.Server, "blue", pod.Name)
			before.Annotations[status.NetworkStatusAnnotation] = aStatus(pod.Name).Annotation
			before.ResourceVersion = after.ResourceVersion
			nodetest.Equal(b, "the pod but for the annotation", after, before)
		}
		for i := range 5 { // DEL
			pod := aPod(fmt.Sprint("p", i))
			b.set(pod.Container, Status{})
			nodetest.OK(b, b.Wait(b.Context(), pod))
		}
		settle(time.Minute)
		nodetest.Equal(b, "requests", len(b.api.Requests()), 10)
		nodetest.Equal(b, "patches", b.api.Count("patch", "pods/status"), 5)
		nodetest.Equal(b, "Events", b.api.Count("create", "events"), 5)
	})
}

func TestAfterAnOutageAllStatusesAreRight(t *testing.T) {
	bubble(t, StatusConfig{}, func(b *bench) {
		var pods []nad.Pod
		want := map[string]string{}
		for i := range 12 {
			pods = append(pods, aPod(fmt.Sprint("p", i)))
			want[pods[i].Name] = aStatus(pods[i].Name).Annotation
		}
		for _, pod := range pods[:4] {
			b.add(pod)
		}
		heal := b.api.Break(kubetest.Fault{Cut: true})
		for _, pod := range pods[4:] { // ADD
			b.add(pod)
		}
		for _, pod := range []nad.Pod{pods[0], pods[5]} { // DEL
			b.set(pod.Container, Status{})
			b.Changed(pod)
		}
		settle(time.Second)
		again := pods[1] // another sandbox
		again.Container = "c-again"
		b.set(again.Container, aStatus("again"))
		b.Changed(again)
		kubetest.Delete[corev1.Pod](b.api.Server, "blue", pods[6].Name)
		settle(time.Second)
		heal()
		settle(time.Minute)

		want[pods[1].Name] = aStatus("again").Annotation
		want[pods[5].Name] = "" // had no sandbox any more
		delete(want, pods[6].Name)
		got := map[string]string{}
		for _, o := range kubetest.List[corev1.Pod](b.api.Server) {
			got[o.Name] = o.Annotations[status.NetworkStatusAnnotation]
		}
		delete(got, "again") // which is no pod
		nodetest.Equal(b, "statuses", got, want)
	})
}

// The limits are those of events.k8s.io/v1.
func TestEveryEventIsWhatAnAPIServerAccepts(t *testing.T) {
	bubble(t, StatusConfig{}, func(b *bench) {
		own := b.view.NewEvents(nad.Pod{Namespace: "kube-system", Name: "daemon"})
		running(b, own.Run)
		running(b, b.events.Run)
		long := strings.Repeat("ä", 2000)
		definition := nad.Definition{Ref: nad.Ref{Namespace: "blue", Name: strings.Repeat("n", 253)}, UID: "7", Version: "8"}
		own.Pod(aPod("a"), "NoNetworkFound", long, long)
		own.Pod(aPod(strings.Repeat("p", 253)), addedInterface, "", "")
		own.Definition(definition, "InvalidNetwork", "AddNetwork", "text")
		own.program(statusNotWritten, "PatchStatus", "text")
		b.events.program(statusNotWritten, "PatchStatus", "text")
		settle(time.Second)
		all := kubetest.List[eventsv1.Event](b.api.Server)
		nodetest.Equal(b, "Events", len(all), 5)
		for _, e := range all {
			if want := e.Reason == addedInterface; (e.Type == corev1.EventTypeNormal) != want {
				b.Errorf("%s is %s", e.Reason, e.Type)
			}
			for name, value := range map[string]string{"action": e.Action, "reason": e.Reason, "instance": e.ReportingInstance, "controller": e.ReportingController} {
				if n := len(value); n == 0 || n > 128 {
					b.Errorf("%s of %s: %d bytes", name, e.Reason, n)
				}
			}
			if len(e.Note) > 1024 || len(e.Name) > 253 || e.EventTime.IsZero() {
				b.Errorf("%s: note of %d bytes, name of %d, at %v", e.Reason, len(e.Note), len(e.Name), e.EventTime)
			}
		}
	})
}
