package kube

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf/nad"
)

func seconds(all ...float64) []time.Duration {
	times := make([]time.Duration, len(all))
	for i, s := range all {
		times[i] = time.Duration(s * float64(time.Second))
	}
	return times
}

func repeat(a answer, n int) []answer { return slices.Repeat([]answer{a}, n) }

// The request fails as often as there are answers, and then goes well.
func TestWhatFollowsFromAnAnswer(t *testing.T) {
	t.Parallel()
	failed := seconds(0, .1, .3, .7, 1.5)
	refused := seconds(0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 1023, 1623, 2223)
	for name, test := range map[string]struct {
		answers []answer
		want    []time.Duration // of the requests
		stats   StatusStats
		events  int
		away    bool // for those that come meanwhile
	}{
		"written":           {want: seconds(0), stats: StatusStats{Written: 1}},
		"no such pod":       {answers: []answer{{code: 404, body: noSuchPod()}}, want: seconds(0), stats: StatusStats{Gone: 1}},
		"another UID":       {answers: []answer{{code: 422, body: otherUID()}}, want: seconds(0), stats: StatusStats{Gone: 1}},
		"no such page":      {answers: repeat(answer{code: 404}, 1), want: refused[:2], stats: StatusStats{Refused: 1, Written: 1}},
		"bad request":       {answers: repeat(answer{code: 400}, 1), want: refused[:2], stats: StatusStats{Refused: 1, Written: 1}},
		"at its start":      {answers: repeat(answer{code: 403}, 5), want: refused[:6], stats: StatusStats{Refused: 5, Written: 1}},
		"forbidden":         {answers: repeat(answer{code: 403}, 12), want: refused, stats: StatusStats{Refused: 12, Written: 1}, events: 1},
		"against a policy":  {answers: repeat(answer{code: 422}, 6), want: refused[:7], stats: StatusStats{Refused: 6, Written: 1}, events: 1},
		"unauthorized":      {answers: repeat(answer{code: 401}, 4), want: failed, stats: StatusStats{Failed: 4, Written: 1}},
		"conflict":          {answers: repeat(answer{code: 409}, 4), want: failed, stats: StatusStats{Failed: 4, Written: 1}},
		"too many requests": {answers: repeat(answer{code: 429}, 4), want: failed, stats: StatusStats{Failed: 4, Written: 1}},
		"retry after":       {answers: repeat(answer{code: 429, after: 7}, 2), want: seconds(0, 7, 14), stats: StatusStats{Failed: 2, Written: 1}},
		"retry in a day":    {answers: repeat(answer{code: 429, after: 86400}, 1), want: seconds(0, 600), stats: StatusStats{Failed: 1, Written: 1}},
		"internal error":    {answers: repeat(answer{code: 500}, 4), want: failed, stats: StatusStats{Failed: 4, Written: 1}, away: true},
		"unavailable":       {answers: repeat(answer{code: 503, after: 3}, 1), want: seconds(0, 3), stats: StatusStats{Failed: 1, Written: 1}, away: true},
		"network":           {answers: repeat(answer{err: errRefused}, 4), want: failed, stats: StatusStats{Failed: 4, Written: 1}, away: true},
		"rubbish":           {answers: repeat(answer{rubbish: "<html>"}, 1), want: failed[:2], stats: StatusStats{Failed: 1, Written: 1}, away: true},
		"another object":    {answers: repeat(answer{rubbish: `{"kind":"Pod","apiVersion":"v1"}`}, 1), want: failed[:2], stats: StatusStats{Failed: 1, Written: 1}, away: true},
		"no answer":         {answers: repeat(answer{delay: time.Hour}, 2), want: seconds(0, 10.1, 20.3), stats: StatusStats{Failed: 2, Written: 1}, away: true},
		"for a long time": {
			answers: repeat(answer{err: errRefused}, 11), want: seconds(0, .1, .3, .7, 1.5, 3.1, 6.3, 12.7, 25.5, 51.1, 81.1, 111.1),
			stats: StatusStats{Failed: 11, Written: 1}, away: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := &bench{}
				v := b.api.view(t)
				events := v.NewEvents(nad.Pod{Namespace: "kube-system", Name: "daemon"})
				b.StatusWriter = v.NewStatusWriter(StatusConfig{Desired: b.recorded, Events: events})
				running(t, b.Run)
				b.api.fail(test.answers...)
				b.added("a")
				synctest.Wait()
				if len(test.answers) > 0 && test.answers[0].delay == 0 && b.isAway() != test.away {
					t.Errorf("away is %v", !test.away)
				}
				settle(2 * time.Hour)
				var times []time.Duration
				for _, r := range b.api.take() {
					times = append(times, r.At)
				}
				wantTimes(t, test.answers, test.want, times)
				if diff := cmp.Diff(test.stats, b.Stats()); diff != "" {
					t.Errorf("statistics: %s", diff)
				}
				if b.isAway() {
					t.Error("away after an answer")
				}
				if n := len(events.queue); n != test.events {
					t.Errorf("%d Events, want %d", n, test.events)
				}
				if gone := test.stats.Gone > 0; gone != (len(b.pods) == 0) {
					t.Errorf("%d pods are remembered", len(b.pods))
				}
			})
		})
	}
}

func TestStatusesThatWereRefusedAtOnceAreNotTriedAgainAtOnce(t *testing.T) {
	bubble(t, StatusConfig{Rate: 1e6}, func(b *bench) {
		b.api.fail(repeat(answer{code: 429, after: 10}, 50)...)
		for i := range 50 {
			b.added(strconv.Itoa(i))
		}
		settle(time.Second)
		b.wantRequests(50, "at once")
		settle(time.Minute)
		first := b.api.take()
		if len(first) != 50 {
			b.Fatalf("%d requests afterwards, want 50", len(first))
		}
		if between := first[49].At - first[0].At; between < time.Second || first[0].At < 10*time.Second {
			b.Errorf("from %v on, all within %v, want them spread over 5 s after 10 s", first[0].At, between)
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
				b.api.fail(repeat(answer{delay: time.Second}, 110)...)
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
				b.wantRequests(110, "in all")
				if b.api.peak != requestsAtATime {
					b.Errorf("%d requests at a time, want %d", b.api.peak, requestsAtATime)
				}
			})
		})
	}
}

func TestARequestIsTriedAgainAsLongAsThereAreRecords(t *testing.T) {
	t.Parallel()
	for name, a := range map[string]answer{"failed": {code: 500}, "refused": {code: 403}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, StatusConfig{}, func(b *bench) {
				b.api.fail(repeat(a, 10000)...)
				pod := b.added("a")
				settle(24 * time.Hour)
				if n := b.api.count(); n < 24*6 {
					b.Errorf("%d requests in a day", n)
				}
				b.set(pod.Container, Status{})
				settle(24 * time.Hour)
				if n := b.api.count(); n != 0 || len(b.pods) != 0 {
					b.Errorf("%d requests and %d pods without records, want none", n, len(b.pods))
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
		b.api.fail(answer{delay: time.Hour})
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
		b.api.fail(repeat(answer{err: errRefused}, 10000)...)
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
		if n := b.api.count(); n != 0 {
			b.Errorf("%d more requests", n)
		}
	})
}

// One that requires the status waits for its own attempt: otherwise nobody might ever
// find out that the API is back.
func TestARefusalIsToldWithoutTheStatus(t *testing.T) {
	bubble(t, StatusConfig{}, func(b *bench) {
		events := b.view.NewEvents(nad.Pod{})
		b.config.Events = events
		b.api.fail(repeat(answer{code: http.StatusForbidden, body: &metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
			Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden, Message: "cannot patch pods/status",
		}}, tolerated+1)...)
		b.added("a")
		settle(time.Minute)
		ev := <-events.queue
		if ev.about.Kind != "Node" || ev.about.Name != "n1" || ev.reason != statusNotWritten {
			b.Errorf("%+v, want one about the node", ev)
		}
		if ev.note != "pod blue/a: cannot patch pods/status" || strings.Contains(ev.note, "name") {
			b.Errorf("note %q", ev.note)
		}
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
