package kube

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// sends runs test in a bubble with Events that are sent until the test ends, or calls stop.
func sends(t *testing.T, test func(e *Events, api *fakeAPI, stop func())) {
	t.Helper()
	faked(t, func(api *fakeAPI, v *View) {
		e := v.NewEvents(nad.Pod{})
		test(e, api, running(api, e.Run))
	})
}

// waiting returns the Events that are not sent yet.
func (e *Events) waiting() []event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Concat(slices.Collect(maps.Values(e.lines))...)
}

// sent returns the notes of the Events that the API server has, and removes them.
func sent(api *fakeAPI) []string {
	var notes []string
	for _, e := range kubetest.List[eventsv1.Event](api.Server) {
		notes = append(notes, e.Note)
		kubetest.Delete[eventsv1.Event](api.Server, e.Namespace, e.Name)
	}
	return notes
}

func networks() []status.Network {
	return []status.Network{
		{Name: "cbr0", Interface: "eth0", IPs: []string{"10.1.0.5", "fd00::5"}, Default: true},
		{Name: "blue/storage", Interface: "net1", IPs: []string{"10.2.0.5"}},
		{Name: "blue/raw"},
	}
}

// wantStats fails the test unless so many Events were sent, and so many dropped.
func wantStats(tb testing.TB, e *Events, sent, dropped uint64) {
	tb.Helper()
	if s, d := e.Stats(); s != sent || d != dropped {
		tb.Errorf("%d sent and %d dropped, want %d and %d", s, d, sent, dropped)
	}
}

func TestNilEventsHaveNone(t *testing.T) {
	t.Parallel()
	var e *Events
	e.Run(t.Context())
	e.Added(aPod("a"), networks())
	e.Removed(aPod("a"), "net1", "blue")
	e.Pod(aPod("a"), "NoNetworkFound", "", "")
	e.Definition(nad.Definition{}, "InvalidNetwork", "", "")
	e.program(statusNotWritten, "", "")
	wantStats(t, e, 0, 0)
}

func TestEveryWarningIsSentOnceAnHour(t *testing.T) {
	sends(t, func(e *Events, api *fakeAPI, _ func()) {
		d := nad.Definition{Ref: nad.Ref{Namespace: "blue", Name: "storage"}, Version: "7"}
		for range 3 {
			e.Pod(aPod("a"), "NoNetworkFound", "AddNetwork", "no blue/x")
			e.Pod(aPod("a"), "NoNetworkFound", "AddNetwork", "no blue/y")
			e.Pod(aPod("b"), "NoNetworkFound", "AddNetwork", "no blue/x")
			e.Definition(d, "InvalidNetwork", "AddNetwork", "version 7")
			settle(time.Minute)
		}
		d.Version = "8"
		e.Definition(d, "InvalidNetwork", "AddNetwork", "version 7")
		settle(time.Minute)
		nodetest.Equal(api, "sent", sent(api), []string{"no blue/x", "no blue/y", "no blue/x", "version 7", "version 7"})
		settle(time.Hour)
		e.Pod(aPod("a"), "NoNetworkFound", "AddNetwork", "no blue/x")
		synctest.Wait()
		nodetest.Equal(api, "after an hour", sent(api), []string{"no blue/x"})
	})
}

// What was added to a pod is one Event. A network that is attached, detached and attached again is not
// left as detached.
func TestWhatHappensToAPodIsSent(t *testing.T) {
	sends(t, func(e *Events, api *fakeAPI, _ func()) {
		e.Added(aPod("a"), networks())
		e.Added(aPod("b"), nil)
		e.Added(nad.Pod{Container: "of podman"}, networks())
		synctest.Wait()
		nodetest.Equal(api, "sent", sent(api), []string{"Add eth0 [10.1.0.5 fd00::5] from cbr0, net1 [10.2.0.5] from blue/storage, blue/raw"})
		wantStats(api, e, 1, 0)
		var want []string
		for range 2 {
			e.Added(aPod("a"), []status.Network{{Name: "ns/blue", Interface: "net1"}})
			e.Removed(aPod("a"), "net1", "ns/blue")
			want = append(want, "Add net1 from ns/blue", "Remove net1 from ns/blue")
		}
		settle(time.Minute)
		nodetest.Equal(api, "sent", sent(api), want)
	})
}

func TestEventsAreDroppedAndNothingWaitsForThem(t *testing.T) {
	sends(t, func(e *Events, api *fakeAPI, stop func()) {
		api.fail(kubetest.Fault{Delay: time.Hour, Times: 100})
		begin := time.Now()
		for i := range 3 * eventQueue {
			e.Pod(aPod("a"), "NoNetworkFound", "AddNetwork", strconv.Itoa(i))
		}
		nodetest.Equal(api, "adding Events has taken", time.Since(begin), 0)
		wantStats(api, e, 0, 2*eventQueue)
		begin = time.Now()
		stop()
		nodetest.Equal(api, "the end has taken", time.Since(begin), eventFlush)
		wantStats(api, e, 0, 3*eventQueue)
	})
}

// Namespaces whose admission webhooks hang or fail hold up no other.
func TestEventsWaitOnlyForThoseOfTheirNamespace(t *testing.T) {
	sends(t, func(e *Events, api *fakeAPI, _ func()) {
		const bad = 16
		api.fail(kubetest.Fault{Delay: time.Hour, Times: bad})
		for i := range bad {
			for j := range 2 * eventQueue {
				e.Pod(nad.Pod{Namespace: fmt.Sprint("bad", i), Name: "a", UID: "1"}, "NoNetworkFound", "AddNetwork", strconv.Itoa(j))
			}
		}
		synctest.Wait()
		e.Added(aPod("a"), networks()[:1])
		synctest.Wait()
		nodetest.Equal(api, "sent", sent(api), []string{"Add eth0 [10.1.0.5 fd00::5] from cbr0"})
		wantStats(api, e, 1, bad*eventQueue)
	})
}

// Events that are on their way at the end, or wait for the end of a pause, are sent.
func TestEventsThatWaitAreSentAtTheEnd(t *testing.T) {
	sends(t, func(e *Events, api *fakeAPI, stop func()) {
		api.fail(kubetest.Fault{Status: 500, Times: 6})
		for i := range 3 {
			e.Pod(aPod("a"), "NoNetworkFound", "AddNetwork", strconv.Itoa(i))
		}
		settle(40 * time.Second) // the next pause has 23 s left
		begin := time.Now()
		stop()
		nodetest.Equal(api, "the end has taken", time.Since(begin), 0)
		wantStats(api, e, 3, 0)

		next := api.view(api).NewEvents(nad.Pod{})
		stop = running(api, next.Run)
		api.fail(kubetest.Fault{Delay: time.Second})
		for i := range 10 {
			next.Pod(aPod("a"), "NoNetworkFound", "AddNetwork", strconv.Itoa(i))
		}
		synctest.Wait()
		begin = time.Now()
		stop()
		nodetest.Equal(api, "the end has taken", time.Since(begin), time.Second)
		wantStats(api, next, 10, 0)
	})
}

func TestWhatFollowsFromAnAnswerToAnEvent(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		faults []kubetest.Fault
		want   []time.Duration
		sent   bool
	}{
		"sent":              {nil, seconds(0), true},
		"sent before":       {[]kubetest.Fault{{Cut: true}, refusal(409, metav1.StatusReasonAlreadyExists)}, seconds(0, 1), true},
		"forbidden":         {[]kubetest.Fault{{Status: 403}}, seconds(0), false},
		"no namespace":      {[]kubetest.Fault{refusal(404, metav1.StatusReasonNotFound)}, seconds(0), false},
		"too many requests": {[]kubetest.Fault{{Status: 429, RetryAfter: 5 * time.Second}}, seconds(0, 5), true},
		"internal errors":   {[]kubetest.Fault{{Status: 500, Times: 3}}, seconds(0, 1, 3, 7), true},
		"no answer":         {[]kubetest.Fault{{Delay: time.Hour}}, seconds(0, 11), true},
	} {
		t.Run(name, func(t *testing.T) {
			sends(t, func(e *Events, api *fakeAPI, _ func()) {
				api.fail(test.faults...)
				e.Pod(aPod("a"), "NoNetworkFound", "AddNetwork", "no blue/x")
				settle(time.Hour)
				wantTimes(api, test.faults, test.want, times(api.take()))
				wantStats(api, e, map[bool]uint64{true: 1}[test.sent], map[bool]uint64{false: 1}[test.sent])
			})
		})
	}
}

func TestAnEventIsTriedForTenMinutes(t *testing.T) {
	sends(t, func(e *Events, api *fakeAPI, _ func()) {
		api.fail(kubetest.Fault{Cut: true, Times: 1000})
		e.Pod(aPod("a"), "NoNetworkFound", "AddNetwork", "no blue/x")
		settle(time.Hour)
		if n := len(api.take()); n < 20 || n > 30 {
			api.Errorf("%d requests, want about 24", n)
		}
		wantStats(api, e, 0, 1)
		// It was never told, so it is worth telling.
		e.Pod(aPod("a"), "NoNetworkFound", "AddNetwork", "no blue/x")
		synctest.Wait()
		nodetest.Equal(api, "requests for the next one", len(api.take()), 1)
	})
}

// The limits are those of events.k8s.io/v1. Events about the program are those of its pod, or of
// the node.
func TestEveryEventIsWhatAnAPIServerAccepts(t *testing.T) {
	faked(t, func(api *fakeAPI, v *View) {
		long := strings.Repeat("ä", 2000)
		definition := nad.Definition{Ref: nad.Ref{Namespace: "blue", Name: strings.Repeat("n", 253)}, UID: "7", Version: "8"}
		for _, self := range []nad.Pod{{Namespace: "kube-system", Name: "daemon", UID: "7"}, {}} {
			e := v.NewEvents(self)
			running(api, e.Run)
			e.Pod(aPod("a"), "NoNetworkFound", long, long)
			e.Pod(aPod(strings.Repeat("p", 236)+"."+strings.Repeat("y", 16)), addedInterface, "", "")
			e.Definition(definition, "InvalidNetwork", "AddNetwork", "text")
			e.program(statusNotWritten, "PatchStatus", "text")
			settle(time.Second)
		}
		v.config.Node = ""
		nobody := v.NewEvents(nad.Pod{})
		nobody.program(statusNotWritten, "PatchStatus", "text")
		nodetest.Equal(api, "Events of no pod and no node", nobody.waiting(), nil)
		var about []string
		names := map[string]bool{}
		for _, e := range kubetest.List[eventsv1.Event](api.Server) {
			if want := e.Reason == addedInterface; (e.Type == corev1.EventTypeNormal) != want {
				api.Errorf("%s is %s", e.Reason, e.Type)
			}
			for name, value := range map[string]string{"action": e.Action, "reason": e.Reason, "instance": e.ReportingInstance, "controller": e.ReportingController} {
				if n := len(value); n == 0 || n > 128 {
					api.Errorf("%s of %s: %d bytes", name, e.Reason, n)
				}
			}
			if errs := utilvalidation.IsDNS1123Subdomain(e.Name); len(e.Note) > 1024 || len(errs) > 0 || e.EventTime.IsZero() {
				api.Errorf("%s: note of %d bytes, name %v, at %v", e.Reason, len(e.Note), errs, e.EventTime)
			}
			names[e.Name] = true
			if e.Reason == statusNotWritten {
				about = append(about, e.Regarding.Kind+" "+e.Regarding.Name+" by "+e.ReportingInstance)
			}
		}
		nodetest.Equal(api, "names", len(names), 8)
		nodetest.Equal(api, "about the program", about, []string{"Pod daemon by daemon", "Node n1 by metacni-n1"})
	})
}
