package kube

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

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
	bubbleOf(t, true, StatusConfig{Outdated: func(pod nad.Pod, object Pod) {
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
		"the API server is away": {func(h *history) {
			h.attached("net")
			h.api.Break(kubetest.Fault{Status: 500})
		}, ErrNotSynced, nil, 1},
		"its status is being written": {func(h *history) {
			h.api.fail(kubetest.Fault{Verb: "patch", Delay: time.Second})
			h.attached("net")
			h.edit("new")
		}, nil, nil, 1},
		"its next status is being written": {func(h *history) {
			h.attached("net")
			h.api.fail(kubetest.Fault{Verb: "patch", Delay: time.Second})
			h.attached("nets")
			h.edit("new")
		}, nil, nil, 1},
		"its status is overwritten while the next is written": {func(h *history) {
			h.attached("net")
			kubetest.Edit(h.api.Server, "blue", "a", func(o *corev1.Pod) { o.Annotations[status.NetworkStatusAnnotation] = "[]" })
			h.api.fail(kubetest.Fault{Verb: "patch", Delay: time.Second})
			h.attached("nets")
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
		"somebody else has overwritten its status": {func(h *history) {
			h.attached("net")
			kubetest.Edit(h.api.Server, "blue", "a", func(o *corev1.Pod) { o.Annotations[status.NetworkStatusAnnotation] = "[]" })
		}, ErrOutdated, []string{"old"}, 1},
		"the writer has forgotten it": {func(*history) {}, ErrNotSynced, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			past(t, func(h *history) {
				test.first(h)
				h.api.take()
				h.api.seen = len(h.api.Requests())
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

// The first status that the next process writes is told of, unless the API server has it, whatever
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
				stop := running(h, next.Run)
				settle(time.Minute)
				h.wantStatus("net", told...)
				patches := h.api.Count("patch", "pods/status")
				nodetest.Equal(h, "patches", patches, map[bool]int{true: 1, false: 2}[there])
				_, err = next.Confirm(h.Context(), h.pod)
				nodetest.OK(h, err)
				stop()
			})
		})
	}
}

// An API server that cannot be asked what it has is not given a status yet.
func TestTheNextProcessWaitsUntilItKnowsWhatIsThere(t *testing.T) {
	past(t, func(h *history) {
		h.set(h.pod.Container, aStatus("net"))
		heal := h.api.Break(kubetest.Fault{Verb: "list", Status: 500})
		h.Resume([]nad.Pod{h.pod})
		settle(time.Minute)
		nodetest.Equal(h, "patches", h.api.Count("patch", "pods/status"), 0)
		heal()
		settle(time.Minute)
		h.wantStatus("net", "old")
	})
}
