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

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// newEvents returns Events that are sent until the test ends, or calls stop.
func newEvents(t *testing.T) (e *Events, api *fakeAPI, stop func()) {
	t.Helper()
	api, v := newFakeAPI(t)
	e = v.NewEvents(nad.Pod{})
	return e, api, running(t, e.Run)
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

func TestWhatWasAddedToAPodIsOneEvent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, api, _ := newEvents(t)
		e.Added(aPod("a"), networks())
		e.Added(aPod("b"), nil)
		e.Added(nad.Pod{Container: "of podman"}, networks())
		synctest.Wait()
		nodetest.Equal(t, "sent", sent(api), []string{"Add eth0 [10.1.0.5 fd00::5] from cbr0, net1 [10.2.0.5] from blue/storage, blue/raw"})
		wantStats(t, e, 1, 0)
	})
}

// wantStats fails the test unless so many Events were sent, and so many dropped.
func wantStats(t *testing.T, e *Events, sent, dropped uint64) {
	t.Helper()
	if s, d := e.Stats(); s != sent || d != dropped {
		t.Errorf("%d sent and %d dropped, want %d and %d", s, d, sent, dropped)
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, api, _ := newEvents(t)
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
		nodetest.Equal(t, "sent", sent(api), []string{"no blue/x", "no blue/y", "no blue/x", "version 7", "version 7"})
		settle(time.Hour)
		e.Pod(aPod("a"), "NoNetworkFound", "AddNetwork", "no blue/x")
		synctest.Wait()
		nodetest.Equal(t, "after an hour", sent(api), []string{"no blue/x"})
	})
}

// A network that is attached, detached and attached again is not left as detached.
func TestWhatHappensAgainIsSentAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, api, _ := newEvents(t)
		var want []string
		for range 2 {
			e.Added(aPod("a"), []status.Network{{Name: "ns/blue", Interface: "net1"}})
			e.Removed(aPod("a"), "net1", "ns/blue")
			want = append(want, "Add net1 from ns/blue", "Remove net1 from ns/blue")
		}
		settle(time.Minute)
		nodetest.Equal(t, "sent", sent(api), want)
	})
}

func TestEventsAreDroppedAndNothingWaitsForThem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, api, stop := newEvents(t)
		api.fail(kubetest.Fault{Delay: time.Hour, Times: 100})
		begin := time.Now()
		for i := range 3 * eventQueue {
			e.Pod(aPod("a"), "NoNetworkFound", "AddNetwork", strconv.Itoa(i))
		}
		nodetest.Equal(t, "adding Events has taken", time.Since(begin), 0)
		wantStats(t, e, 0, 2*eventQueue)
		begin = time.Now()
		stop()
		nodetest.Equal(t, "the end has taken", time.Since(begin), eventFlush)
		wantStats(t, e, 0, 3*eventQueue)
	})
}

// Namespaces whose admission webhooks hang or fail hold up no other.
func TestEventsWaitOnlyForThoseOfTheirNamespace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, api, _ := newEvents(t)
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
		nodetest.Equal(t, "sent", sent(api), []string{"Add eth0 [10.1.0.5 fd00::5] from cbr0"})
		wantStats(t, e, 1, bad*eventQueue)
	})
}

func TestEventsThatWaitAtTheEndAreSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, api, stop := newEvents(t)
		api.fail(kubetest.Fault{Delay: time.Second})
		for i := range 10 {
			e.Pod(aPod("a"), "NoNetworkFound", "AddNetwork", strconv.Itoa(i))
		}
		synctest.Wait()
		begin := time.Now()
		stop()
		nodetest.Equal(t, "the end has taken", time.Since(begin), time.Second)
		wantStats(t, e, 10, 0)
	})
}

// An API server that is there again at the end gets the Events that wait for the end of a pause.
func TestEventsThatWaitForAPauseAreSentAtTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, api, stop := newEvents(t)
		api.fail(kubetest.Fault{Status: 500, Times: 6})
		for i := range 3 {
			e.Pod(aPod("a"), "NoNetworkFound", "AddNetwork", strconv.Itoa(i))
		}
		settle(40 * time.Second) // the next pause has 23 s left
		begin := time.Now()
		stop()
		nodetest.Equal(t, "the end has taken", time.Since(begin), 0)
		wantStats(t, e, 3, 0)
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
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e, api, _ := newEvents(t)
				api.fail(test.faults...)
				e.Pod(aPod("a"), "NoNetworkFound", "AddNetwork", "no blue/x")
				settle(time.Hour)
				wantTimes(t, test.faults, test.want, api.times())
				wantStats(t, e, map[bool]uint64{true: 1}[test.sent], map[bool]uint64{false: 1}[test.sent])
			})
		})
	}
}

func TestAnEventIsTriedForTenMinutes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, api, _ := newEvents(t)
		api.fail(kubetest.Fault{Cut: true, Times: 1000})
		e.Pod(aPod("a"), "NoNetworkFound", "AddNetwork", "no blue/x")
		settle(time.Hour)
		if n := api.count(); n < 20 || n > 30 {
			t.Errorf("%d requests, want about 24", n)
		}
		wantStats(t, e, 0, 1)
		// It was never told, so it is worth telling.
		e.Pod(aPod("a"), "NoNetworkFound", "AddNetwork", "no blue/x")
		synctest.Wait()
		nodetest.Equal(t, "requests for the next one", api.count(), 1)
	})
}

func TestTheNamesOfEventsAreDifferentAndValid(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for i, object := range []string{"a", "a", "a.b-c", strings.Repeat("x", 253), strings.Repeat("x", 235) + "-.-.-.-.-.-.-.-.-.", "n1"} {
		name := eventName(object, time.Now().UnixNano()+int64(i))
		if errs := utilvalidation.IsDNS1123Subdomain(name); len(errs) > 0 || seen[name] {
			t.Errorf("%q: %v, seen: %v", name, errs, seen[name])
		}
		seen[name] = true
	}
}

func TestWhoseEventsThoseAboutTheProgramAre(t *testing.T) {
	t.Parallel()
	self := nad.Pod{Namespace: "kube-system", Name: "daemon-x", UID: "7"}
	for name, test := range map[string]struct {
		self nad.Pod
		node string
		want string // kind, namespace/name, instance
	}{
		"pod":     {self, "n1", "Pod kube-system/daemon-x daemon-x"},
		"node":    {nad.Pod{}, "n1", "Node /n1 multinetd-n1"},
		"neither": {nad.Pod{}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, v := newFakeAPI(t)
			v.config.Node, v.config.UserAgent = test.node, "multinetd"
			e := v.NewEvents(test.self)
			e.program(statusNotWritten, "", "text")
			got := ""
			for _, ev := range e.waiting() {
				got = ev.about.Kind + " " + ev.about.Namespace + "/" + ev.about.Name + " " + e.instance
			}
			nodetest.Equal(t, "got", got, test.want)
		})
	}
}
